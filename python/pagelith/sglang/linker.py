"""SGLang's external linker: device pools and the store, without host pools between them.

    --enable-unified-cache-external-linker --unified-cache-external-linker-backend dynamic
    --unified-cache-external-linker-config '{"linker": "Linker", "linker_module_path": "pagelith.sglang.linker",
      "linker_extra_config": {"store": {"dram": {"bytes": "32GiB", "pin": "cuda"}}}}'

SGLang calls it from its scheduler's thread; loads and offloads run on a thread each. Read against
SGLang 0.5.23.
"""

import logging
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter, UnifiedCacheLinker
from sglang.srt.runtime_context import get_model, get_parallel, get_serving

import pagelith

from ..devices import BoundDevice, bound
from ..identity import Identity, ModelError, admit
from ..identity.sglang import ServedModel
from ..missed import Missed
from ..releases import Releases
from ..replicas import of_sglang
from ..settings import StoreSettings, milliseconds, number
from .device_pools import DevicePool
from .loads import Load, Loading, Pages
from .offloads import Offered, Offload, Offloading, taken
from .pool_groups import group_of
from .pools import Placement, page_of, text_of
from .streams import DeviceStream

logger = logging.getLogger(__name__)

_SETTINGS_SOURCE = "'linker_extra_config'"
# Page-locked memory of a link to a store process, at least.
_STAGING_BYTES = 64 << 20
# What a range of an object may need in staging memory beyond its bytes.
_RANGE_MARGIN = 64 << 10


@dataclass(frozen=True)
class LinkerSettings(StoreSettings):
    """The keys of the linker."""

    # Longest lookup, and longest pin of a request; the scheduler waits for each.
    exists_timeout_ms: int = milliseconds(100)
    # Number of layers that are read together.
    read_layers: int = number(8, 1024)


@dataclass(frozen=True)
class _Names:
    """The key templates of all pools. Replaced when the model's weights are."""

    model: str
    namespace: pagelith.Namespace
    keys: dict[str, pagelith.Key]


class Linker(UnifiedCacheLinker):
    """An embedded store, or a store process, below SGLang's device pools."""

    def __init__(self, server_args: Any, params: Any, *, components: set[Any], extra_config: Any = None, forward_stream: Any = None) -> None:
        self.settings = LinkerSettings.read(_SETTINGS_SOURCE, {} if extra_config is None else extra_config)
        self.forward_stream = forward_stream
        pool = params.token_to_kv_pool_allocator.get_kvcache()
        self._group = group_of(pool, params, components)
        self.pools = self._group.entry_map
        self._placement = _placement(params, bool(self._group.rank_replicated))
        if self._placement.replicated and self._placement.tp[1] > 1 and self.settings.attach is None:
            raise ValueError(
                f"rank 0 of {self._placement.tp[1]} writes the pages that all ranks read, and no other rank can read a store in its process: run"
                ' `pagelith serve` and pass "attach": "unix:PATH" instead of "store"'
            )
        self._pools = {text_of(name): DevicePool(text_of(name), entry, self._placement) for name, entry in self.pools.items()}
        # Pools of which every page has an object; the first one represents pages.
        self._each = [one for one in self._pools.values() if text_of(self._group.sources[one.entry.name]) == "kv"]
        if not self._each:
            raise ValueError("pagelith's linker needs a pool of which every page has an object")
        self._page_tokens = int(params.page_size)
        self._served = ServedModel()
        self._names = self._make_names(self._served.now().identity)
        self._failures = self.settings.failures(logger)
        dp, (tp, _), (pp, _), (cp, _) = of_sglang(), self._placement.tp, self._placement.pp, self._placement.cp
        self._store = self.settings.open(f"rank_{dp}_{tp}_{pp}_{cp}")
        try:
            self._device = self._bind()
        except Exception:
            self._store.close()
            raise
        self.layer_done_counter = LayerWiseLoadCounter(self._group.num_layers)
        if "mamba" in self._pools:
            params.req_to_token_pool.register_layer_transfer_counter(self.layer_done_counter)
        # By request, loads that were not started yet, with the pins of their objects.
        self._queued: dict[str, tuple[list[Pages], list[pagelith.Pin]]] = {}
        stream, timeout = DeviceStream(self._device), self.settings.get_timeout_ms / 1000
        self._releases, self._missed = Releases(), Missed()
        self._loading = Loading(
            self._store, stream, self.layer_done_counter, self._failures, timeout, self.settings.read_layers, self._releases, self._missed
        )
        self._offloading = Offloading(
            self._store, DeviceStream(self._device), self._failures, self.settings.put_wait_ms / 1000, self._each[0], self._templates_for_writes,
            self._missed,
        )
        self._loads: queue.Queue[Load | None] = queue.Queue()
        self._offloads: queue.Queue[Offload | None] = queue.Queue()
        self._threads = [
            threading.Thread(target=body, daemon=True, name=f"pagelith-{name}")
            for name, body in (("load", self._run_loads), ("offload", self._run_offloads))
        ]
        self._closed = False
        for thread in self._threads:
            thread.start()
        named = ", ".join(f"{one.name}: {one.bytes} bytes" for one in self._pools.values())
        where = "host memory" if self._device is None else self._device.handle.name
        logger.info("pagelith: linker of pools in %s: %s a page; layers=%d", where, named, self._group.num_layers)

    def _bind(self) -> BoundDevice | None:
        """The device of the pools; `None` for host memory."""
        devices = {device_of(buffer) for entry in self._group.entries for buffer in entry.kv_buffer}
        if all(device.type == "cpu" for device in devices):
            return None
        most = max(sum(pool.bytes for pool in self._each), *(pool.bytes + _RANGE_MARGIN for pool in self._pools.values()))
        return bound(self._store, devices, True, max(_STAGING_BYTES, 4 * most), most)

    # Names.

    def _make_names(self, model: Identity) -> _Names:
        admit(model, self.settings.revision, _SETTINGS_SOURCE)
        namespace = pagelith.Namespace(
            str(get_serving().served_model_name or get_model().model_path),
            tenant=self.settings.tenant,
            revision=self.settings.revision,
            page_tokens=self._page_tokens,
            extra=[("client", "sglang-linker"), model.extra, *sorted(pool.facts() for pool in self._pools.values())],
        )
        return _Names(model.fingerprint, namespace, {name: pool.key(namespace) for name, pool in self._pools.items()})

    def _current_names(self) -> _Names:
        """The current key templates: weights may have been replaced since the last call. For the
        scheduler's thread only, so that the names never go back to those of older weights."""
        now = self._served.now()
        if self._names.model != now.identity.fingerprint:
            logger.warning("pagelith: the model's weights changed: fingerprint=%s was=%s", now.identity.fingerprint, self._names.model)
            self._names = self._make_names(now.identity)
        return self._names

    def _templates_for_writes(self) -> dict[str, pagelith.Key]:
        """The key templates of pages that are stored now. For the thread of offloads."""
        now, names = self._served.now(), self._names
        if now.stale:
            raise ModelError("these pages may be of replaced weights: flush SGLang's cache (POST /flush_cache)")
        if names.model != now.identity.fingerprint:
            # The scheduler's thread has not looked yet.
            names = self._make_names(now.identity)
        return names.keys

    # Lookups.

    def lookup(self, rid: str, transfers: list[Any]) -> list[int]:
        try:
            return self._lookup(transfers)
        except Exception as error:
            self._failures.call("lookup", error)
            return []

    def _lookup(self, transfers: list[Any]) -> list[int]:
        wanted = self._group.resolve_transfers(transfers)
        if not wanted:
            return []
        names = self._current_names()
        anchor = names.keys[self._each[0].name]
        hashes = next(list(transfer.keys) for transfer in transfers if text_of(transfer.name) == "kv")
        queries = []
        for transfer in wanted:
            key = names.keys[text_of(transfer.name)]
            # The other pools that each page has are in its group.
            if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                queries.append(pagelith.PoolQuery.trailing_pages([key], max(1, len(transfer.keys))))
        timeout = self.settings.exists_timeout_ms / 1000
        stops = list(self._store.exists_groups([page_of(one) for one in hashes], [anchor], queries, timeout=timeout).stops)
        if not self._missed:
            return stops
        # SGLang computes nothing of a load that fails: the request ends with an error.
        trailing = {
            text_of(one.name): max(1, len(one.keys)) for one in wanted if one.hit_policy == PoolHitPolicy.TRAILING_PAGES
        }
        others = [name for name in map(text_of, (one.name for one in wanted)) if name not in trailing]

        def is_missed(at: int, name: str) -> bool:
            return (name, hashes[at]) in self._missed

        readable = next((at for at in range(len(hashes)) if any(is_missed(at, name) for name in others)), len(hashes))

        def is_readable(stop: int) -> bool:
            # A load reads only the last pages of these pools.
            ends = ((at, name) for name, pages in trailing.items() for at in range(max(0, stop - pages), stop))
            return stop <= readable and not any(is_missed(at, name) for at, name in ends)

        return [stop for stop in stops if is_readable(stop)]

    # Loads.

    def load(self, rid: str, transfers: list[Any]) -> bool:
        # The answer depends on the transfers alone, as all ranks must give the same one.
        wanted = self._group.resolve_transfers(transfers, allow_partial=True, allow_missing_kv=True)
        if not wanted:
            return False
        if rid in self._queued:
            raise RuntimeError(f"pagelith: a load is queued already request={rid}")
        keys = self._names.keys
        pages = [
            Pages(self._pools[name], list(transfer.keys), keys[name].on_pages([page_of(key) for key in transfer.keys]), transfer.host_indices)
            for transfer in wanted
            for name in [text_of(transfer.name)]
        ]
        self._queued[rid] = pages, self._pinned([key for one in pages for key in one.keys])
        return True

    def _pinned(self, keys: list[pagelith.Key]) -> list[pagelith.Pin]:
        """Keep the objects that the lookup found. If that is not possible, the load may fail."""
        try:
            pin = self._store.pin(keys, timeout=self.settings.exists_timeout_ms / 1000)
            if pin.objects < len(keys):
                gone = pagelith.UnavailableError(f"objects were found and are gone objects={len(keys) - pin.objects} of={len(keys)}")
                self._failures.call("pin", gone)
            return [pin]
        except Exception as error:
            self._failures.call("pin", error)
            return []

    def cancel_queued_load(self, rid: str) -> bool:
        queued = self._queued.pop(rid, None)
        for pin in () if queued is None else queued[1]:
            self._releases.add(pin)
        return queued is not None

    def start_layer_wise_loading(self) -> int:
        if not self._queued:
            return -1
        queued, self._queued = list(self._queued.values()), {}
        # Pages of one pool, of all requests, are read together.
        by_pool: dict[DevicePool, list[Pages]] = {}
        for pages, _ in queued:
            for one in pages:
                by_pool.setdefault(one.pool, []).append(one)
        joined = [
            Pages(pool, [name for one in of for name in one.hashes], [key for one in of for key in one.keys], torch.cat([one.indices for one in of]))
            for pool, of in by_pool.items()
        ]
        index: int = self.layer_done_counter.update_producer()
        # The events are recorded after the kernels that join the slots. A load also waits for the
        # running forward pass, which may still write to pages that SGLang has freed since.
        self._loads.put(Load(index, joined, self.record_offload_ready(), [pin for _, pins in queued for pin in pins]))
        return index

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        landed = bool(self.layer_done_counter.finish(counter_index))
        # Before SGLang frees the slots.
        self._loading.check()
        return landed

    def _run_loads(self) -> None:
        _run(self._loads, self._loading.run)

    # Offloads.

    def offload(self, transfers: list[Any], session_id: str | None = None) -> bool:
        wanted = self._group.resolve_transfers(transfers, allow_partial=True)
        if not wanted:
            return False
        if self._placement.replicated and self._placement.tp[0] > 0:
            # Rank 0 stores the same bytes; SGLang combines the results of all ranks.
            self._missed.stored([(text_of(one.name), key) for one in wanted for key in one.keys])
            self._offloading.results.put(True)
            return True
        offered = [
            Offered(self._pools[text_of(one.name)], list(one.keys), one.host_indices, one.hit_policy == PoolHitPolicy.ALL_PAGES) for one in wanted
        ]
        self._offloads.put(Offload(offered, self.record_offload_ready()))
        return True

    def _run_offloads(self) -> None:
        def run(first: Offload) -> None:
            offloads = taken(self._offloads, first)
            self._offloading.run(offloads)
            for _ in offloads[1:]:
                self._offloads.task_done()

        _run(self._offloads, run)

    def num_completed_offloads(self) -> int:
        return self._offloading.results.qsize()

    def pop_completed_offload(self) -> bool:
        return self._offloading.results.get_nowait()

    # The end.

    def reset(self) -> None:
        for rid in list(self._queued):
            self.cancel_queued_load(rid)
        self._loads.join()
        self._offloads.join()
        while not self._offloading.results.empty():
            self._offloading.results.get_nowait()
        self.layer_done_counter.reset()
        self._missed.clear()
        # SGLang has flushed its cache.
        self._served.flushed()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._device is not None:
            self._device.end()
        self.reset()
        for tasks in (self._loads, self._offloads):
            tasks.put(None)
        for thread in self._threads:
            thread.join()
        self._store.close()
        self._releases.close()


def device_of(buffer: Any) -> Any:
    return buffer.device


def _run(tasks: "queue.Queue[Any]", body: Callable[[Any], None]) -> None:
    """Run a body for each task, until there is a `None`."""
    while True:
        task = tasks.get()
        try:
            if task is None:
                return
            body(task)
        finally:
            tasks.task_done()


def _placement(params: Any, replicated: bool) -> Placement:
    """The position of this rank. Ranks of context parallelism store pages of their own."""
    tp = (0, get_parallel().tp_size)
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        group = params.attn_tp_cache_group or params.tp_cache_group
        tp = torch.distributed.get_rank(group=group), torch.distributed.get_world_size(group=group)
    pp, cp = (params.pp_rank, params.pp_size), (params.attn_cp_rank, params.attn_cp_size)
    return Placement(tp=tp, pp=pp, cp=cp, replicated=replicated, layers_split=True)

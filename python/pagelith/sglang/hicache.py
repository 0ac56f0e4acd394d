"""The storage backend that SGLang's cache controllers call.

They call it from their own threads: queries, reads and writes are concurrent. Exceptions are raised
to them only for a wrong configuration. Any other failure is reported as a miss, or as a page that
was not stored.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from sglang.srt.mem_cache.hicache_storage import HiCacheStorage, PoolHitPolicy, PoolTransferResult

import pagelith

from ..identity import Identity, admit
from ..identity.sglang import ServedModel
from ..replicas import of_sglang
from .events import PageEvent
from .listening import Listening
from .pools import Pieces, Placement, Pool, has_heads, of_pages, page_of, splits_layers, text_of
from .prompts import Prompts
from .puts import Put, first_of
from .settings import Settings

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

# Most pages whose sidecars are stored and whose KV is not: twice the longest backup of SGLang
# today. Beyond that the oldest is dropped, and its KV is refused until its sidecars are put again.
_PENDING_MAX = 65536
# Pools of which a page may have no object, so that they cannot represent pages of a model without
# KV of its own.
_PARTIAL_POOLS = ("mamba", "swa", "auxiliary_swa", "draft_swa")
_SETTINGS_SOURCE = "--hicache-storage-backend-extra-config"


@dataclass(frozen=True)
class _Names:
    """The key templates of all pools. Replaced when a pool is registered, and when the model's
    weights are."""

    # Fingerprint of the model.
    model: str
    namespace: pagelith.Namespace
    # For each pool, a key template (without a page) for each component.
    keys: dict[str, list[pagelith.Key]]
    # The pool whose objects represent pages: KV, or if KV is only indices, the first pool of which
    # every page has objects.
    anchor_pool: str
    # The template of its first object.
    anchor: pagelith.Key


class _StaleWeights(Exception):
    """The pages to be written may have been computed with weights that were replaced since."""


class HiCache(HiCacheStorage):
    """An embedded store, or a store process, below SGLang's HiCache."""

    def __init__(self, storage_config: Any, kwargs: Any = None) -> None:
        self.settings = Settings.of(storage_config.extra_config)
        config = storage_config
        if not config.model_name:
            raise ValueError("pagelith needs the model's name to keep pages of models apart: pass --served-model-name")
        if config.dcp_size > 1:
            raise ValueError("pagelith does not support decode context parallelism; pass --dcp-size 1")
        if config.is_mla_model and config.tp_size > 1 and self.settings.attach is None:
            raise ValueError(
                f"rank 0 of {config.tp_size} writes the pages that all ranks read, and no other rank can read a store in its process: run"
                ' `pagelith serve` and pass "attach": "unix:PATH" instead of "store"'
            )
        if config.tp_lcm_size and config.tp_lcm_size != config.tp_size and not config.is_mla_model:
            logger.warning(
                "pagelith: servers of other tensor-parallel sizes share no pages with this one, although 'tp_lcm_size' is set: remove it"
                " tp_lcm_size=%d tp_size=%d",
                config.tp_lcm_size,
                config.tp_size,
            )
        split = config.tp_lcm_size // config.tp_size if config.should_split_heads else 0
        self._placement = Placement(
            tp=(config.tp_rank, config.tp_size),
            pp=(config.pp_rank, config.pp_size),
            cp=(config.attn_cp_rank, config.attn_cp_size),
            replicated=bool(config.is_mla_model),
            heads=split,
            heads_of=config.tp_lcm_size or 0,
        )
        self._model = config.model_name
        self._served = ServedModel()
        admit(self._served.now().identity, self.settings.revision, _SETTINGS_SOURCE)
        self._zero_copy = bool(self.settings.interface_v1)
        self._metrics_enabled = bool(config.enable_storage_metrics)
        self._wait = self.settings.put_wait_ms / 1000
        self._timeout = self.settings.get_timeout_ms / 1000
        self._pools: dict[str, Pool] = {}
        self._names: _Names | None = None
        self._lock = threading.Lock()
        # The pools of which every page has objects: a page is not stored without them. Learned from
        # the controller's transfers.
        self._required_pools: frozenset[str] = frozenset()
        # For each page without KV, the pools of those whose objects were put already.
        self._pending_sidecars: OrderedDict[str, frozenset[str]] = OrderedDict()
        self._transferred: dict[str, list[Any]] = {"prefetch": [], "backup": []}
        self._registered: list[pagelith.Registration] = []
        # Restores SGLang's host pool to its state before `_note_flushes`.
        self._unhook: Callable[[], None] = lambda: None
        self._failures = self.settings.failures(logger)
        self._listening = Listening(self.settings)
        # `config.dp_rank` is 0 for each replica without attention data parallelism.
        part = f"rank_{of_sglang()}_{config.tp_rank}_{config.pp_rank}_{config.attn_cp_rank}"
        try:
            self._store = self.settings.open(part, self._listening.events_max)
        except Exception:
            self._listening.close()
            raise
        self._backed_up, self._prefetched = Prompts(self._store), Prompts(self._store)
        try:
            self._listening.begin(self._store, self._anchor)
        except Exception:
            self._listening.close()
            self._store.close()
            raise

    # Events.

    def _anchor(self) -> pagelith.Key | None:
        names = self._names
        return None if names is None else names.anchor

    def on_host_pools_registered(self) -> None:
        self._listening.publish(int(self.mem_pool_host.page_size))

    def take_events(self) -> list[PageEvent]:
        """The events of this rank's pages in the tiers of the store, since the last call."""
        return self._listening.take()

    # Registration.

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._note_flushes(mem_pool_host)
        if splits_layers(mem_pool_host):
            self._split_layers()
        if getattr(mem_pool_host, "kv_buffer", None) is not None:
            self._register("kv", mem_pool_host)

    def _note_flushes(self, host: Any) -> None:
        """Learn of flushes: SGLang clears its host pool if and only if it flushes its cache and has
        stopped its storage threads."""
        clear = getattr(host, "clear", None)
        if clear is None:
            return

        def cleared() -> None:
            clear()
            self._served.flushed()

        def unhook() -> None:
            if host.__dict__.get("clear") is cleared:
                del host.clear

        self._unhook()
        host.clear, self._unhook = cleared, unhook

    def _split_layers(self) -> None:
        """Handle context parallelism in which each rank has its own layers, so that each rank must
        write."""
        from sglang.srt.runtime_context import get_parallel

        if self._placement.cp[1] > 1 and self._placement.tp[1] > get_parallel().attn_tp_size:
            raise ValueError(
                f"each of {self._placement.cp[1]} ranks of context parallelism has layers of its own, but SGLang backs up those of one rank only: no"
                " prefix could be restored. Remove --enable-dsa-cache-layer-split"
            )
        self._placement = replace(self._placement, layers_split=True)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = text_of(host_pool_name)
        # The anchor was registered before; if it has no bytes of its own, it only manages indices.
        if name != "kv":
            self._register(name, host_pool)

    def _register(self, name: str, host: Any) -> None:
        if self._placement.replicated and self._placement.tp[1] > 1 and name in ("draft", "draft_swa") and has_heads(host):
            raise ValueError(
                f"pool {name!r} has different bytes on each of {self._placement.tp[1]} ranks, and for a target whose KV all ranks share"
                " SGLang backs it up on one rank only with --hicache-storage-backend dynamic: no prefix could be restored."
                " Use a draft of the target's kind, or pass --speculative-algorithm none"
            )
        pool = Pool(name, host, self._placement)
        self._registered += self.settings.register(self._store, pool.spans())
        with self._lock:
            self._pools[name] = pool
            self._pending_sidecars.clear()
            self._names = self._make_names(self._served.now().identity)

    def _make_names(self, model: Identity) -> _Names | None:
        host = self.mem_pool_host
        first = int(getattr(host, "start_layer", 0) or 0)
        layers = [(first, first + int(getattr(host, "layer_num", 0) or 0))]
        way = [] if self._zero_copy else [("interface", "generic")]
        admit(model, self.settings.revision, _SETTINGS_SOURCE)
        namespace = pagelith.Namespace(
            self._model,
            tenant=self.settings.tenant,
            revision=self.settings.revision,
            dtype=str(getattr(host, "dtype", "")),
            page_tokens=int(host.page_size),
            layout=str(getattr(host, "layout", "")),
            layer_split=layers,
            extra=[("client", "sglang-hicache"), model.extra, *way, *sorted(pool.facts() for pool in self._pools.values())],
        )
        keys = {name: pool.keys(namespace) for name, pool in self._pools.items()}
        if not self._zero_copy and "kv" in keys:
            shard = self._placement.shard(sliced=not self._placement.replicated)
            keys["kv"] = [pagelith.Key(namespace, bytes(32), component="page", shard=shard)]
        named = sorted(name for name in keys if name not in _PARTIAL_POOLS and not name.endswith("_state"))
        if "kv" not in keys and not named:
            return None
        anchor_pool = "kv" if "kv" in keys else named[0]
        return _Names(model.fingerprint, namespace, keys, anchor_pool, keys[anchor_pool][0])

    def _current_names(self, writes: bool = False) -> _Names:
        """The current key templates: weights may have been replaced since the last call."""
        now = self._served.now()
        with self._lock:
            names = self._names
            if names is None:
                raise ValueError("no host pool with pages is registered")
            if names.model != now.identity.fingerprint:
                logger.warning(
                    "pagelith: the model's weights changed: fingerprint=%s was=%s. Pages of the old weights are not found, and none is stored"
                    " until SGLang flushes its cache (POST /flush_cache)",
                    now.identity.fingerprint,
                    names.model,
                )
                self._pending_sidecars.clear()
                renamed = self._make_names(now.identity)
                assert renamed is not None
                names = self._names = renamed
        if writes and now.stale:
            raise _StaleWeights("these pages may be of replaced weights: flush SGLang's cache (POST /flush_cache)")
        return names

    # Queries.

    def batch_exists_v2(self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None) -> PoolTransferResult:
        return self._guarded("query", PoolTransferResult(0, {}, []), lambda: self._query(keys, pool_transfers or []))

    def _query(self, keys: list[str], transfers: Sequence[Any]) -> PoolTransferResult:
        names, pages = self._current_names(), [page_of(key) for key in keys]
        self._record_required_pools(transfers)
        # One object represents all objects of a page in a pool, since they form a group.
        anchor = [names.anchor] if "kv" in names.keys else []
        queries = []
        for transfer in transfers:
            held = names.keys.get(text_of(transfer.name))
            key = held[0] if held else pagelith.Key(names.namespace, bytes(32), pool="unregistered")
            if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
                queries.append(pagelith.PoolQuery.trailing_pages([key], max(1, len(transfer.keys or ()))))
            elif transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
                listed = [page_of(key) for key in transfer.keys or ()]
                queries.append(pagelith.PoolQuery.block_groups([key], transfer.block_pages, transfer.group_pages, listed))
            else:
                queries.append(pagelith.PoolQuery.all_pages([key]))
        if not anchor and not queries:
            present = self._store.exists_prefix(names.anchor.on_pages(pages))
            return PoolTransferResult(present, {"kv": present}, list(range(1, present + 1)))
        found = self._store.exists_groups(pages, anchor, queries)
        own = {"kv": found.anchor_pages}
        own.update({transfer.name: hit for transfer, hit in zip(transfers, found.pool_pages, strict=True)})
        return PoolTransferResult(found.usable_pages, own, found.stops)

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        return self._guarded("query", 0, lambda: self._store.exists_prefix(self._anchor_keys(keys)))

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def _anchor_keys(self, keys: Sequence[str], names: _Names | None = None) -> list[pagelith.Key]:
        """The object that represents each page."""
        return (names or self._current_names()).anchor.on_pages([page_of(key) for key in keys])

    # Reads.

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        def read() -> list[bool]:
            if "kv" not in self._current_names().keys:
                return [True] * len(keys)
            return self._read([("kv", keys, host_indices)], extra_info)[0]

        return self._guarded("read", [False] * len(keys), read)

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        asked = [(text_of(t.name), t.keys or [], t.host_indices) for t in transfers]
        none = [[False] * len(keys) for _, keys, _ in asked]
        got = self._guarded("read", none, lambda: self._read(asked, extra_info))
        return {transfer.name: pages for transfer, pages in zip(transfers, got, strict=True)}

    def _read(self, asked: Sequence[tuple[str, Sequence[str], Any]], extra_info: Any) -> list[list[bool]]:
        """Read pages of pools. Returns for each pool whether each page was read."""
        names, started = self._current_names(), time.perf_counter()
        request, depth = self._prefetched.place(*next(((name, keys) for name, keys, _ in asked), ("", ())), extra_info)
        objects: list[pagelith.Key] = []
        into: list[Any] = []
        for name, keys, indices in asked:
            pool = self._pools.get(name)
            if pool is None:
                raise ValueError(f"pool {name!r} is not registered")
            objects += of_pages(names.keys[name], [page_of(key) for key in keys])
            into += [pieces for page in pool.memory(indices, len(keys)) for pieces in page]
        outcomes = self._store.get(objects, into, request=request, depth=depth, timeout=self._timeout)
        self._failures.read(objects, outcomes)
        got, at = [], 0
        for name, keys, _ in asked:
            width = len(names.keys[name])
            starts = range(at, at + width * len(keys), width)
            # A page is read if all of its objects are.
            read = [all(outcomes[start : start + width]) for start in starts]
            if name == names.anchor_pool:
                self._listening.read((objects[start], outcomes[start]) for start, ok in zip(starts, read, strict=True) if ok)
            got.append(read)
            at += width * len(keys)
        whole = sum(sum(pages) for (name, _, _), pages in zip(asked, got, strict=True) if name == names.anchor_pool)
        self._measure("prefetch", names, whole, started)
        return got

    # Writes.

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        def write() -> list[bool]:
            names = self._current_names(writes=True)
            if "kv" not in names.keys:
                # The pages consist of their sidecars, which were put before.
                return self._store.exists(self._anchor_keys(keys, names))
            return self._write_kv(keys, partial(self._pools["kv"].memory, host_indices, len(keys)), extra_info)

        return self._guarded("write", [False] * len(keys), write)

    def _write_kv(self, keys: Sequence[str], memory: Callable[[], list[list[Pieces]]], extra_info: Any) -> list[bool]:
        names, started = self._current_names(writes=True), time.perf_counter()
        place = self._backed_up.place("kv", keys, extra_info)
        stored = self._store.exists(self._anchor_keys(keys, names))
        first, put = first_of(keys), Put()
        with self._lock:
            needed = self._required_pools
            absent = [page for page in sorted(set(first)) if not stored[page]]
            new = [page for page in absent if needed.issubset(self._pending_sidecars.get(keys[page], ()))]
        without = len(absent) - len(new)
        if without:
            pools = ", ".join(sorted(needed))
            logger.warning("pagelith: %d of %d pages are not stored, since their objects in pools %s are incomplete", without, len(keys), pools)
        if new:
            pieces = memory()
            for page in new:
                put.add(page, [held.on_page(page_of(keys[page])) for held in names.keys["kv"]], pieces[page])
            # If an object that a page needs was evicted meanwhile, the page is not stored.
            for page, state in self._put(put, place, required=self._required(names, needed)):
                stored[page] = state in ("stored", "present")
        stored = [stored[page] for page in first]
        with self._lock:
            for key, ok in zip(keys, stored, strict=True):
                if ok:
                    self._pending_sidecars.pop(key, None)
        self._measure("backup", names, len(new), started)
        return stored

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[Any, list[bool]]:
        stored = {transfer.name: [False] * len(transfer.keys or ()) for transfer in transfers}
        each = [t for t in transfers if t.hit_policy == PoolHitPolicy.ALL_PAGES]
        some = [t for t in transfers if t.hit_policy != PoolHitPolicy.ALL_PAGES]
        self._record_required_pools(each)
        self._drop_sidecars(each)
        self._guarded("write", None, lambda: self._write_sidecars(each, stored, extra_info))
        for transfer in some:
            stored[transfer.name] = self._guarded("write", stored[transfer.name], partial(self._write_attached, transfer, extra_info))
        return stored

    def _record_required_pools(self, transfers: Sequence[Any]) -> None:
        """Record the pools of which the controller has objects for every page."""
        each = {text_of(t.name) for t in transfers if t.hit_policy == PoolHitPolicy.ALL_PAGES} - {"kv"}
        with self._lock:
            if not each <= self._required_pools:
                self._required_pools |= each

    def _write_sidecars(self, transfers: Sequence[Any], stored: dict[Any, list[bool]], extra_info: Any) -> None:
        """Put the pages' objects of some pools: as parts of groups that the page's KV completes, or
        if the KV is stored already, attached to it."""
        if not transfers:
            return
        names, started = self._current_names(writes=True), time.perf_counter()
        keys = list(dict.fromkeys(key for transfer in transfers for key in transfer.keys or ()))
        place = self._backed_up.place("sidecars", keys, extra_info)
        rows: dict[str, dict[str, list[Pieces]]] = {key: {} for key in keys}
        for transfer in transfers:
            pool = self._pools.get(text_of(transfer.name))
            if pool is None:
                raise ValueError(f"pool {text_of(transfer.name)!r} is not registered")
            for key, memory in zip(transfer.keys, pool.memory(transfer.host_indices, len(transfer.keys)), strict=True):
                # A repeated key is put once.
                rows[key].setdefault(pool.name, memory)
        has_kv = "kv" in names.keys
        anchored = self._store.exists(self._anchor_keys(keys, names)) if has_kv else [False] * len(keys)
        asked = [(key, name) for key in keys for name in rows[key]]
        flags = self._store.exists([names.keys[name][0].on_page(page_of(key)) for key, name in asked])
        present = {one for one, ok in zip(asked, flags, strict=True) if ok}
        # Groups that their KV completes, and the others: those are complete already if KV is only
        # indices.
        waiting, whole = Put(), Put()
        done: dict[str, bool] = {}
        for page, key in enumerate(keys):
            missing = [name for name in rows[key] if (key, name) not in present]
            done[key] = not missing
            put = waiting if has_kv and not anchored[page] else whole
            # Attached objects are put individually; objects that form a group, all together.
            for name in missing if anchored[page] or not missing else rows[key]:
                put.add(page, [held.on_page(page_of(key)) for held in names.keys[name]], rows[key][name])
        if waiting.pages:
            with self._lock:
                needed = self._required_pools
            for page, state in self._put(waiting, place, required=self._required(names, needed)):
                done[keys[page]] = state in ("stored", "present", "waiting")
        if whole.pages:
            for page, state in self._put(whole, place, base=names.anchor if has_kv else None):
                done[keys[page]] = state in ("stored", "present", "waiting")
        for transfer in transfers:
            stored[transfer.name] = [done[key] for key in transfer.keys]
        self._record_sidecars((keys[page], frozenset(rows[keys[page]])) for page in waiting.pages if done[keys[page]])
        if not has_kv:
            self._measure("backup", names, len(keys), started)

    def _record_sidecars(self, pages: Iterable[tuple[str, frozenset[str]]]) -> None:
        """Record that these pages have objects in these pools, which wait for the pages' KV."""
        with self._lock:
            for key, pools in pages:
                self._pending_sidecars[key] = pools.union(self._pending_sidecars.pop(key, ()))
            while len(self._pending_sidecars) > _PENDING_MAX:
                self._pending_sidecars.popitem(last=False)

    def _drop_sidecars(self, transfers: Sequence[Any]) -> None:
        """Remove the record of these pages' waiting objects in these pools: they are put again, or
        fail."""
        with self._lock:
            for transfer in transfers:
                for key in transfer.keys or ():
                    if key in self._pending_sidecars:
                        self._pending_sidecars[key] -= {text_of(transfer.name)}

    def _required(self, names: _Names, needed: Iterable[str]) -> list[pagelith.Key] | None:
        """The objects of a page's group, if it has more than KV; KV first, the order on SSD."""
        others = sorted(needed)
        missing = [name for name in others if name not in names.keys]
        if missing:
            raise ValueError(f"every page has objects in pool {missing[0]!r}, but that pool is not registered")
        return [key for name in ("kv", *others) for key in names.keys[name]] if others else None

    def _write_attached(self, transfer: Any, extra_info: Any) -> list[bool]:
        """Put objects that only some pages have: attached, so visible once their page is."""
        names, pool = self._current_names(writes=True), self._pools.get(text_of(transfer.name))
        if pool is None:
            raise ValueError(f"pool {text_of(transfer.name)!r} is not registered")
        held = names.keys[pool.name]
        pages = [page_of(key) for key in transfer.keys]
        stored = self._store.exists(held[0].on_pages(pages))
        if all(stored):
            return stored
        memory, put, first = pool.memory(transfer.host_indices, len(pages)), Put(), first_of(transfer.keys)
        place = self._backed_up.place(pool.name, transfer.keys, extra_info)
        for at in sorted(set(first)):
            if not stored[at]:
                put.add(at, [key.on_page(pages[at]) for key in held], memory[at])
        for at, state in self._put(put, place, base=names.anchor):
            stored[at] = state in ("stored", "present", "waiting")
        return [stored[at] for at in first]

    def _put(self, put: Put, place: tuple[Any, int], **how: Any) -> list[tuple[int, str]]:
        """The state of each page after the put. `place` is that of the call's first page."""
        request, depth = place
        depth += put.pages[0] if put.pages else 0
        outcomes = self._store.put_pages(put.keys, put.sources, request=request, depth=depth, wait=self._wait, **how)
        self._failures.written(outcomes)
        return [(page, outcome.state) for page, outcome in zip(put.pages, outcomes, strict=True)]

    # The generic interface: pages as flat tensors, which the controller copies.

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        host = self.mem_pool_host
        into = target_locations or [host.get_dummy_flat_data_page() for _ in keys]
        got = self._guarded("read", [False] * len(keys), lambda: self._read_flat(keys, into))
        return [page if present else None for page, present in zip(into, got, strict=True)]

    def _read_flat(self, keys: Sequence[str], into: Sequence[Any]) -> list[bool]:
        objects = self._anchor_keys(keys)
        outcomes = self._store.get(objects, [[_flat(page)] for page in into], timeout=self._timeout)
        self._failures.read(objects, outcomes)
        self._listening.read(zip(objects, outcomes, strict=True))
        return [bool(outcome) for outcome in outcomes]

    def batch_set(self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None) -> bool:
        pages = values if values is not None else target_locations
        if pages is None or len(pages) != len(keys):
            return False
        return all(self._guarded("write", [False], lambda: self._write_kv(keys, lambda: [[[_flat(page)]] for page in pages], None)))

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], None if target_location is None else [target_location])[0]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        page = value if value is not None else target_location
        return page is not None and self.batch_set([key], [page])

    # Clear, statistics and close.

    def clear(self) -> None:
        with self._lock:
            self._pending_sidecars.clear()
        if self._names is not None:
            self._store.clear(self._current_names().namespace)

    def get_stats(self) -> Any:
        if not self._metrics_enabled:
            return None
        from sglang.srt.observability.metrics_collector import StorageMetrics

        with self._lock:
            transferred, self._transferred = self._transferred, {"prefetch": [], "backup": []}
        metrics = StorageMetrics()
        for what in ("prefetch", "backup"):
            getattr(metrics, f"{what}_pgs").extend(pages for pages, _ in transferred[what])
            getattr(metrics, f"{what}_bandwidth").extend(speed for _, speed in transferred[what])
        return metrics

    def close(self) -> None:
        self._unhook()
        try:
            self._listening.close()
        finally:
            self._store.close()
        for registration in self._registered:
            registration.release()

    def _measure(self, what: str, names: _Names, pages: int, started: float) -> None:
        if not self._metrics_enabled or pages == 0:
            return
        length = sum(c.bytes for c in self._pools[names.anchor_pool].components)
        speed = pages * length / (time.perf_counter() - started) / (1 << 30)
        with self._lock:
            self._transferred[what].append((pages, speed))

    def _guarded(self, what: str, failed: _Result, body: Callable[[], _Result]) -> _Result:
        """Run `body` for the controller. On a failure, return `failed`: an exception would end the
        controller's thread."""
        try:
            return body()
        except _StaleWeights as error:
            # The change of the weights has been logged already.
            logger.debug("pagelith: a %s was refused: %s", what, error)
            return failed
        except Exception as error:
            self._failures.call(what, error)
            return failed


def _flat(page: Any) -> tuple[int, int]:
    """Address and length of a flat tensor."""
    if not page.is_contiguous() or page.device.type != "cpu":
        raise ValueError("a page must be a contiguous tensor in host memory")
    return page.data_ptr(), page.numel() * page.element_size()

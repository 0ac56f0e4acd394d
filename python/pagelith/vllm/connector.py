"""The connector class that vLLM loads: one instance in the scheduler's process and one in each
worker, with different roles."""

import logging
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window

from ..devices import bound
from ..identity import Identity, admit
from ..identity.vllm import identify
from ..threads import submit
from .blocks import InPlace, OnDevice
from .events import EVENTS_MAX
from .messages import Named, Plan, Report
from .names import Place, named
from .opened import Opened
from .policy import warn_of_failed_loads
from .pools import Pools
from .scheduler import Scheduler, by_rank
from .settings import ConnectorSettings, check
from .worker import Worker

logger = logging.getLogger(__name__)


class PagelithConnector(KVConnectorBase_V1, SupportsHMA):
    """Blocks in an embedded store, or in a store process. One object is one worker's slice of one
    block of a pool."""

    @property
    def requires_kv_delivery(self) -> bool:
        # A cache: blocks that were not stored are recomputed.
        return False

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        self.settings = ConnectorSettings.read("'kv_connector_extra_config'", transfer.kv_connector_extra_config or {})
        groups = kv_cache_config.kv_cache_groups
        self._kinds = [str(get_kv_cache_spec_kind(group.kv_cache_spec).value) for group in groups]
        check(self.settings, vllm_config, kv_cache_config, self._kinds)
        self._identity: Identity | None = None
        if role == KVConnectorRole.WORKER:
            # Key templates use the worker's identity. Its cache groups depend on its stage; they
            # are in the names of its layers.
            self._identity = identify(vllm_config)
            admit(self._identity, self.settings.revision, "'kv_connector_extra_config' of PagelithConnector")
        parallel = vllm_config.parallel_config
        self._pools = Pools.of(
            groups, self._kinds, getattr(kv_cache_config, "hash_block_size", None), parallel.decode_context_parallel_size
        )
        self._threads = self.settings.read_threads if self.settings.load_async else 0
        events = vllm_config.kv_events_config
        has_events = events is not None and events.enable_kv_cache_events
        part = f"dp_{vllm_config.parallel_config.data_parallel_index}"
        opened = Opened(self.settings, transfer.engine_id, part, EVENTS_MAX if has_events else 0)
        self._store = opened.store
        self._scheduler: Scheduler | None = None
        self._worker: Worker | None = None
        self._event_executor: ThreadPoolExecutor | None = None
        if role == KVConnectorRole.SCHEDULER:
            warn_of_failed_loads(logger, transfer)
            self._scheduler = Scheduler(
                self.settings, opened, self._pools, transfer.is_kv_consumer, partial(self._listener, opened.store) if has_events else None
            )
        else:
            self._worker = Worker(self.settings, opened, self._pools, self._threads, transfer.is_kv_producer)

    def _listener(self, store: Any, keys: Any) -> Any:
        from .listener import Listener

        if self.settings.asks_processes:
            # The scheduler does not block on another process.
            self._event_executor = ThreadPoolExecutor(1, "pagelith-events")
        groups = self._kv_cache_config.kv_cache_groups
        kinds = [(kind, get_kv_cache_spec_sliding_window(group.kv_cache_spec)) for kind, group in zip(self._kinds, groups, strict=True)]
        later = None if self._event_executor is None else partial(submit, self._event_executor)
        return Listener(store, self._pools, keys, kinds, self.settings.locality, later, self.settings.failures(logger))

    def shutdown(self) -> None:
        if self._event_executor is not None:
            self._event_executor.shutdown(wait=True)
        try:
            if self._scheduler is not None:
                self._scheduler.close()
        finally:
            if self._worker is not None:
                self._worker.close()

    # The worker's side.

    @property
    def _work(self) -> Worker:
        assert self._worker is not None, "vLLM called a worker method on the scheduler's connector"
        return self._worker

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        assert self._identity is not None
        config, cache_config = self._vllm_config, self._kv_cache_config
        groups, blocks, copies = cache_config.kv_cache_groups, cache_config.num_blocks, 1 + self._threads
        empty = [at for at, group in enumerate(groups) if not group.layer_names]
        if empty:
            raise ValueError(
                f"pagelith: this pipeline stage has no layer of cache group {empty[0]}, but each stage must have a layer of every group:"
                " pass another --pipeline-parallel-size"
            )
        by_pool = [[{name: kv_caches[name] for name in groups[at].layer_names} for at in pool.groups] for pool in self._pools.each]
        caches = [[list(layers.values()) for layers in of] for of in by_pool]
        way, memory = self._memory(caches, blocks, copies)
        # Consecutive tensor-parallel ranks with the same bytes store them once.
        place = Place.of(config.parallel_config, int(getattr(cache_config, "kv_tp_replicas", 1)))
        self._work.register(named(self.settings, config, self._identity, self._kinds, by_pool, self._pools, way, place), memory)

    def _memory(self, caches: list[Any], blocks: int, copies: int) -> tuple[str, list[Any]]:
        """How the store accesses the caches: a name, and one object for each thread."""
        each = [cache for of in caches for layers in of for cache in layers]
        if all(on_host(cache) for cache in each):
            return "in place", [InPlace(caches, blocks)] * copies
        most = self._pools.longest(InPlace(caches, blocks).bytes)
        device = bound(self._store, {cache.device for cache in each}, self.settings.wants_device_pieces, self.settings.staging_bytes, most)
        if device is not None:
            # The same bytes as in place. Loads within the step have a stream too.
            return "in place", [OnDevice(caches, blocks, device) for _ in range(max(2, copies))]
        from .staged import Staged

        return "staged", [Staged(caches, blocks, self.settings.staging_bytes) for _ in range(copies)]

    def unregister_kv_caches(self) -> None:
        """vLLM is about to sleep, and releases the memory of its caches. Their addresses stay."""
        self._work.quiesce()

    def restore_kv_caches(self) -> None:
        """The caches have memory again: nothing of it is registered."""

    def get_handshake_metadata(self) -> Named:
        return self._work.named

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        assert isinstance(kv_connector_metadata, Plan)
        self._work.before(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._work.load(self._bound())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """All layers that a forward pass needs are loaded before it begins."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """A block is stored once, with all layers, after the step has been computed."""

    def wait_for_save(self) -> None:
        self._work.save(self._bound())

    def _bound(self) -> Plan:
        plan = self._get_connector_metadata()
        assert isinstance(plan, Plan)
        return plan

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self._work.finished()[0] or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        ended, failed = self._work.finished()
        return KVConnectorTransferResults(finished_recving=ended, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self._work.take_failed()

    def build_connector_worker_meta(self) -> Report | None:
        return self._work.take_report()

    # The scheduler's side.

    @property
    def _plans(self) -> Scheduler:
        assert self._scheduler is not None, "vLLM called a scheduler method on a worker's connector"
        return self._scheduler

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], Any]) -> None:
        self._plans.named(by_rank(metadata))

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, Any]) -> None:
        self._plans.named(by_rank(metadata))

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        found = self._plans.matched(request, num_computed_tokens)
        return found, self._threads > 0 and found > 0

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._plans.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Plan:
        return self._plans.plan(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        self._plans.heard(connector_output.kv_connector_worker_meta)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._plans.finished(request)
        return False, None

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished(request, block_ids[0])

    def take_events(self) -> Iterable[Any]:
        listener = self._plans.listener
        return () if listener is None else listener.take()

    def reset_cache(self) -> bool | None:
        return self._plans.clear()


def on_host(cache: Any) -> bool:
    return bool(cache.device.type == "cpu")

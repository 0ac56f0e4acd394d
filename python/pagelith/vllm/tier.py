"""The secondary tier that vLLM's tiering manager calls, in the scheduler's process: no method here
blocks on I/O."""

import ctypes
import logging
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, OffloadingEvent, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager

import pagelith

from ..identity import Identity, admit
from ..identity.vllm import MODEL_KEY
from ..missed import Missed, forget
from ..settings import PoolSettings, milliseconds, of_type, threads
from ..threads import submit
from .events import EVENTS_MAX, ChunkEvents
from .hashes import page_of
from .hints import Named, RequestHints, give
from .prompts import Prompts

logger = logging.getLogger(__name__)

# Most chunks whose names are remembered for events: about 64 MB.
_HASHED_MAX = 1 << 18
# The identity if vLLM's own connector created the tier: only the model's name and its caches' type
# are known.
_UNKNOWN_MODEL = Identity(
    {"engine": "vllm"},
    (
        "the model's configuration, weights and revision (\"kv_connector\": \"PagelithOffloadingConnector\", \"kv_connector_module_path\":"
        " \"pagelith.vllm\" in --kv-transfer-config in place of OffloadingConnector provide them)",
    ),
)


@dataclass(frozen=True)
class Settings(PoolSettings):
    """The keys of a tier's entry in `secondary_tiers`."""

    put_wait_ms: int = milliseconds(1000)
    # Longest lookup.
    exists_timeout_ms: int = milliseconds(100)
    read_threads: int = threads(2)
    write_threads: int = threads(1)
    enable_kv_events: bool = of_type(bool, "true or false", False)
    locality: str | None = of_type(str, '"LOCAL" or "REMOTE"', None)


class _Lookups(AsyncLookupManager):
    """Lookups that ask another process, on a thread of vLLM's: the scheduler does not block."""

    def __init__(self, tier: "PagelithTier") -> None:
        self._of = tier
        super().__init__(tier_type=tier.tier_type)

    def batch_lookup(self, keys: list[Any], req_context: Any) -> Iterable[bool]:
        return self._of._are_stored(keys)


class PagelithTier(SecondaryTierManager):
    """Chunks in an embedded store, or in a store process. One chunk, a row of vLLM's host memory,
    is one object."""

    medium = Medium.STORAGE

    def __init__(
        self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None, **given: Any
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        self.settings = Settings.read(f"the secondary tier {tier_type!r}", given)
        # Checked before anything is opened that would need to be closed.
        events = offloading_spec.kv_events_config.enable_kv_cache_events
        if self.settings.enable_kv_events and not events:
            raise ValueError(f"the secondary tier {tier_type!r} has 'enable_kv_events', but --kv-events-config is not set")
        self.locality = Locality(self.settings.locality) if self.settings.locality else None
        config = offloading_spec.config
        model_facts = config.extra_config.get(MODEL_KEY)
        model = _UNKNOWN_MODEL if model_facts is None else Identity(model_facts["facts"], tuple(model_facts["unknown"]))
        admit(model, self.settings.revision, f"the secondary tier {tier_type!r}")
        # The base class keeps the view; this export of it ends here.
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(primary_kv_view))
        self._namespace = _namespace(self.settings, config, self._block_size_bytes, model)
        self._keys: dict[int, pagelith.Key] = {}
        # Chunks by key, for hashes that are not pages by themselves; used only for the store's events,
        # and under their lock.
        self._hashed: dict[pagelith.Key, Any] = {}
        events_max = EVENTS_MAX if self.settings.enable_kv_events else 0
        self._failures = self.settings.failures(logger)
        self._store = self.settings.open(f"dp_{config.parallel.data_parallel_index}", events_max)
        self._reads = ThreadPoolExecutor(self.settings.read_threads, "pagelith-read")
        self._writes = ThreadPoolExecutor(self.settings.write_threads, "pagelith-write")
        later = partial(submit, self._writes) if self.settings.asks_processes else None
        self._chunk_events = ChunkEvents(self._store, self._chunk, self._event, later, self._failures) if self.settings.enable_kv_events else None
        self._registered = self.settings.register(self._store, [(self._base, primary_kv_view.nbytes)])
        # Lookups in an embedded store without peers do not block.
        self._lookup_manager = _Lookups(self) if self.settings.asks_processes else None
        self._failed = Missed()
        self._hints = RequestHints(self._failures)
        # Of jobs: those of one request are in the order of its prompt, but vLLM does not say at
        # which depth, and does not order the chunks of a job that stores.
        self._prompts = Prompts(self._store)
        self._finished: queue.SimpleQueue[JobResult] = queue.SimpleQueue()
        self._open = 0
        self._settled = threading.Condition()
        self._loading: dict[int, list[Any]] = {}
        self._storing: dict[int, list[Any]] = {}

    # Called by the scheduler.

    def lookup(self, key: Any, req_context: Any) -> LookupResult:
        self._hints.seen(req_context, [key])
        if key in self._failed:
            return LookupResult.MISS
        if self._lookup_manager is None:
            present: bool | None = self._are_stored([key])[0]
        else:
            present = self._lookup_manager.lookup(key, req_context)
        if present is None:
            return LookupResult.RETRY
        return LookupResult.HIT if present else LookupResult.MISS

    def _are_stored(self, keys: Collection[Any]) -> list[bool]:
        try:
            return self._store.exists([self._key(key) for key in keys], timeout=self.settings.exists_timeout_ms / 1000)
        except pagelith.PagelithError as error:
            self._failures.call("lookup", error)
            return [False] * len(keys)

    def on_new_request(self, req_context: Any) -> RequestOffloadingContext:
        self._hints.begin(req_context)
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: Any) -> None:
        self._prompts.end([req_context.req_id])
        if self._lookup_manager is not None:
            self._lookup_manager.cleanup(req_context.req_id)
        hints, keys = self._hints.finished(req_context)
        if keys:
            try:
                # After the jobs that were submitted before.
                submit(self._writes, self._give, hints, keys)
            except RuntimeError as error:
                self._failures.call("hint", error)

    def _give(self, hints: list[Named], keys: Collection[Any]) -> None:
        give(self._store, hints, [self._key(key) for key in keys], None, self._failures)

    def on_schedule_end(self, context: Any) -> None:
        self._prompts.end(context.preempted_req_ids)
        if self._lookup_manager is not None:
            self._lookup_manager.flush()

    # Jobs: each runs on a thread as one batch, with any number of chunks, and is reported once.

    def submit_store(self, job_metadata: Any) -> None:
        keys = list(job_metadata.keys)
        self._storing[job_metadata.job_id] = keys
        self._submit(self._writes, job_metadata, keys, self._store_chunks)

    def submit_load(self, job_metadata: Any) -> None:
        keys = list(job_metadata.keys)
        self._loading[job_metadata.job_id] = keys
        self._submit(self._reads, job_metadata, keys, self._load_chunks)

    def _submit(self, threads: ThreadPoolExecutor, job: Any, keys: list[Any], body: Callable[..., list[bool]]) -> None:
        late = self._hints.seen(job.req_context, keys)
        rows = [(self._base + int(row) * self._block_size_bytes, self._block_size_bytes) for row in job.chunk_ids]
        prompt = self._prompts.of(job.req_context.req_id)
        of_prompt = partial(body, request=prompt.request, depth=prompt.append(len(keys)))
        with self._settled:
            self._open += 1
        try:
            submit(threads, self._run, job.job_id, keys, rows, of_prompt, late)
        except RuntimeError as error:
            # The executor was shut down or could not start a thread: the job is reported as failed.
            logger.warning("pagelith: a job of %d chunks was not started: %s", len(keys), error)
            self._end(job.job_id, keys, [False] * len(keys), 0.0)

    def _run(self, job_id: int, keys: list[Any], rows: list[tuple[int, int]], body: Callable[..., list[bool]], late: list[Named]) -> None:
        started, done = time.monotonic(), [False] * len(keys)
        try:
            done = body(keys, [self._key(key) for key in keys], rows)
            self._give(late, keys)
        except Exception as error:
            self._failures.call("job", error)
        self._end(job_id, keys, done, time.monotonic() - started)

    def _end(self, job_id: int, keys: list[Any], done: list[bool], seconds: float) -> None:
        whole = tuple(key for key, ok in zip(keys, done, strict=True) if ok)
        length = len(whole) * self._block_size_bytes
        self._finished.put(JobResult(job_id, all(done), whole or None, seconds, length))
        with self._settled:
            self._open -= 1
            self._settled.notify_all()

    def _store_chunks(
        self, chunks: list[Any], keys: list[pagelith.Key], rows: list[tuple[int, int]], *, request: pagelith.Request | None, depth: int
    ) -> list[bool]:
        if self._chunk_events is None:
            present = self._store.exists(keys)
        else:
            present = self._chunk_events.look(chunks, partial(self._look, self._chunk_events, chunks, keys))
        new = [at for at, is_present in enumerate(present) if not is_present]
        wait = self.settings.put_wait_ms / 1000
        outcomes = self._store.put([keys[at] for at in new], [rows[at] for at in new], request=request, depth=depth, wait=wait)
        self._failures.written(outcomes)
        for at, outcome in zip(new, outcomes, strict=True):
            present[at] = bool(outcome)
        if self._chunk_events is not None:
            self._chunk_events.stored([chunks[at] for at in new if present[at]])
        return present

    def _look(self, events: ChunkEvents, chunks: list[Any], keys: list[pagelith.Key]) -> list[bool]:
        if events.store_has_events:
            for key, chunk in zip(keys, chunks, strict=True):
                if len(chunk) != 36:
                    # As the newest: the oldest are forgotten first.
                    self._hashed.pop(key, None)
                    self._hashed[key] = chunk
            forget(self._hashed, _HASHED_MAX)
        return self._store.exists(keys)

    def _load_chunks(
        self, _: list[Any], keys: list[pagelith.Key], rows: list[tuple[int, int]], *, request: pagelith.Request | None, depth: int
    ) -> list[bool]:
        outcomes = self._store.get(keys, rows, request=request, depth=depth, timeout=self.settings.get_timeout_ms / 1000)
        self._failures.read(keys, outcomes)
        return [bool(outcome) for outcome in outcomes]

    def get_finished_jobs(self) -> Iterable[JobResult]:
        finished = []
        while not self._finished.empty():
            job = self._finished.get()
            stored = self._storing.pop(job.job_id, None)
            whole = set(job.successful_keys or ())
            if stored is None:
                self._loaded(self._loading.pop(job.job_id), whole)
            else:
                self._stored(whole)
                # For a store, vLLM only needs to know whether all chunks are stored.
                job.successful_keys = None
            finished.append(job)
        return finished

    def _loaded(self, keys: Collection[Any], whole: Collection[Any]) -> None:
        """Record chunks that could not be read as misses until they are stored: the scheduler would
        load them again and again."""
        missed = [key for key in keys if key not in whole]
        self._failed.add(missed)
        if self._lookup_manager is not None:
            self._lookup_manager.mark_miss(missed)

    def _stored(self, whole: Collection[Any]) -> None:
        self._failed.stored(whole)

    def take_events(self) -> Iterable[Any]:
        return () if self._chunk_events is None else self._chunk_events.take()

    def _event(self, chunks: list[Any], removed: bool) -> Any:
        return OffloadingEvent(keys=chunks, medium=self.medium, removed=removed, locality=self.locality)

    def _chunk(self, event: pagelith.Event) -> Any:
        """The chunk of a store event, as vLLM names it. For a chunk of an earlier process whose
        hash is not 32 bytes long, vLLM's name is unknown."""
        key = event.key
        if key is None or key.namespace != self._namespace:
            return None
        hashed = self._hashed.pop(key, None) if event.gone else self._hashed.get(key)
        return hashed or key.page + int(key.pool.removeprefix("group_")).to_bytes(4, "big")

    def drain_jobs(self) -> None:
        with self._settled:
            self._settled.wait_for(lambda: self._open == 0)

    def shutdown(self) -> None:
        try:
            for threads in (self._reads, self._writes):
                threads.shutdown(wait=True)
            if self._lookup_manager is not None:
                self._lookup_manager.shutdown()
        finally:
            self._store.close()
        for registration in self._registered:
            registration.release()

    def _key(self, key: Any) -> pagelith.Key:
        """The object's key for vLLM's key: a block's hash and, in four bytes, the index of the
        group of layers."""
        group, block = int.from_bytes(key[-4:], "big"), bytes(key[:-4])
        template = self._keys.get(group)
        if template is None:
            template = self._keys[group] = pagelith.Key(self._namespace, bytes(32), pool=f"group_{group}", component="data")
        return template.on_page(page_of(block))


def _namespace(settings: Settings, config: Any, row_bytes: int, model: Identity) -> pagelith.Namespace:
    """The namespace: everything that a row's bytes depend on, and that its key does not contain."""
    parallel, cache = config.parallel, config.cache
    extra = [
        ("client", "vllm-tiering"),
        model.extra,
        ("row", str(row_bytes)),
        ("canonical", str(config.canonical_layout)),
        *((f"group:{group.group_id}", f"{group.tokens_per_block} {','.join(group.layer_names)}") for group in config.groups),
    ]
    # Only in these layouts the bytes of a row have the same order with other sizes.
    if not (config.replicated_layout or (config.canonical_layout and parallel.is_parallelism_agnostic)):
        sizes = (parallel.tp_size, parallel.pp_size, parallel.pcp_size, parallel.dcp_size)
        extra.append(("parallel", "tp{} pp{} pcp{} dcp{}".format(*sizes)))
    return pagelith.Namespace(
        config.model.name,
        tenant=settings.tenant,
        revision=settings.revision,
        dtype=str(config.model.dtype),
        page_tokens=cache.tokens_per_hash * cache.blocks_per_chunk,
        layout=str(config.kv_cache_layout or ""),
        extra=extra,
    )

"""The connector in a worker: it reads the blocks that the scheduler names into vLLM's caches, and
stores them from there."""

import logging
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pagelith

from ..settings import joined
from ..threads import submit
from .hashes import page_of
from .messages import Load, Named, Paged, Plan, Report, Step
from .names import keys_of
from .opened import Opened
from .pools import NULL, Object, Pools
from .saving import Saving
from .settings import ConnectorSettings
from .spoiled import Spoiled

logger = logging.getLogger(__name__)


@dataclass
class _Put:
    """One step's save: objects with their keys, whether each is stored, and the pages whose objects
    in pools that need the whole prefix are incomplete."""

    objects: list[Object]
    keys: list[pagelith.Key]
    stored: list[bool]
    incomplete: set[int] = field(default_factory=set)


class Worker:
    """One worker's role. vLLM calls it from one thread; concurrent loads and saves use its own
    threads."""

    def __init__(self, settings: ConnectorSettings, opened: Opened, pools: Pools, threads: int, saves: bool) -> None:
        self._settings = settings
        self._opened = opened
        self._store = opened.store
        self._failures = settings.failures(logger)
        self._pools = pools
        self._saves = saves
        self._registered: list[Any] = []
        self._tables: dict[str, list[int]] = {}
        # With several groups vLLM computes nothing after a failed load.
        self._spoiled = None if pools.by_request else Spoiled(pools.tokens)
        # Blocks, or requests, whose loads failed and were not reported yet.
        self._failed: set[int] = set()
        self._failed_requests: set[str] = set()
        self._report = Report()
        # The memory of reading threads, and their completed loads.
        self._memory: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Load, list[Object], list[bool]]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(threads, "pagelith-read") if threads else None
        self._saving = Saving(settings.save_async, self._failures)
        self._stored: queue.SimpleQueue[set[Paged]] = queue.SimpleQueue()
        self._resets = 0

    def register(self, named: Named, memory: Sequence[Any]) -> None:
        """Called when the caches exist: this worker's names, and memory for saves and for each
        reading thread."""
        self.named, self._keys = named, keys_of(named, self._pools)
        self._save_memory = memory[0]
        self._registered = self._settings.register(self._store, joined(span for one in memory for span in one.spans()))
        for one in memory[1:]:
            self._memory.put(one)

    def before(self, plan: Plan) -> None:
        """The step is about to overwrite blocks: wait for the saves that still read them."""
        # Blocks with failed loads are recomputed together with the blocks after them, whichever
        # request has them.
        if plan.resets != self._resets or (self._spoiled is not None and self._spoiled.any):
            self._saving.end()
        self._resets = plan.resets
        self._saving.leave([*plan.taken, *(block for step in plan.steps for blocks in step.blocks for block in blocks)])

    def _keys_of(self, objects: Sequence[Object], pages: Sequence[bytes]) -> list[pagelith.Key]:
        """The keys of these objects of these pages."""
        return [self._keys[one.pool][one.part].on_page(page_of(pages[one.page])) for one in objects]

    # Loads.

    def load(self, plan: Plan) -> None:
        if plan.loads and self._threads is None and self._save_memory.copies:
            # Loads reuse the memory from which saves are put.
            self._saving.end()
        for load in plan.loads:
            objects = self._pools.objects_of(len(load.pages), load.tables)
            if self._threads is None:
                self._record_load(load, objects, self._read(load, objects, self._save_memory))
            else:
                try:
                    submit(self._threads, self._read_later, load, objects, self._save_memory.ready_event())
                except RuntimeError as error:
                    logger.warning("pagelith: a load of %d pages was not started: %s", len(load.pages), error)
                    self._done.put((load, objects, [False] * len(objects)))

    def _read_later(self, load: Load, objects: list[Object], after: Any) -> None:
        memory, whole = self._memory.get(), [False] * len(objects)
        try:
            if after is not None:
                after.synchronize()
            whole = self._read(load, objects, memory)
        finally:
            self._memory.put(memory)
            self._done.put((load, objects, whole))

    def _read(self, load: Load, objects: Sequence[Object], memory: Any) -> list[bool]:
        """Read the objects; returns which were read. Each is tried, even if others fail."""
        whole = [False] * len(objects)
        # An object without a block in one of its groups has no destination.
        wanted = [at for at, one in enumerate(objects) if NULL not in one.blocks]
        if len(wanted) < len(objects):
            logger.warning("pagelith: objects without a block in some group are not read objects=%d request=%s", len(objects) - len(wanted), load.request)
        keys = self._keys_of([objects[at] for at in wanted], load.pages)
        for start in range(0, len(wanted), memory.at_once):
            part = slice(start, start + memory.at_once)
            into = [objects[at] for at in wanted[part]]
            try:
                outcomes = self._store.get(
                    keys[part], memory.destination_ranges(into), depth=load.first + into[0].page, timeout=self._settings.get_timeout_ms / 1000
                )
                memory.finish_read(into)
            except Exception as error:
                self._failures.call("load", error)
                continue
            self._failures.read(keys[part], outcomes, "load", found=True)
            for at, outcome in zip(wanted[part], outcomes, strict=True):
                whole[at] = bool(outcome)
        return whole

    def _record_load(self, load: Load, objects: Sequence[Object], whole: Sequence[bool]) -> None:
        failed = [one for one, read in zip(objects, whole, strict=True) if not read]
        self._report.missed.update((one.pool, load.pages[one.page]) for one in failed)
        if self._spoiled is None:
            self._failed_requests.update([load.request] if failed else [])
            return
        self._spoiled.read(block for one, read in zip(objects, whole, strict=True) if read for block in one.blocks)
        blocks = [block for one in failed for block in one.blocks]
        self._failed.update(blocks)
        self._spoiled.failed(blocks)

    def finished(self) -> tuple[set[str], set[str]]:
        """Requests whose loads on threads have ended, and those among them that vLLM must compute
        from the beginning."""
        ended = set()
        while not self._done.empty():
            load, objects, whole = self._done.get()
            self._record_load(load, objects, whole)
            ended.add(load.request)
        failed, self._failed_requests = self._failed_requests, set()
        return ended, failed

    def take_failed(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def take_report(self) -> Report | None:
        report, self._report = self._report, Report(resets=self._resets)
        while not self._stored.empty():
            report.stored |= self._stored.get()
        report.resets = self._resets
        return report if report.missed or report.stored or report.resets else None

    # Saves.

    def save(self, plan: Plan) -> None:
        """Store the pages that the step completed. When this returns, or a later `before` does,
        vLLM may reuse the blocks."""
        if not self._saves:
            return
        pages: dict[bytes, dict[tuple[int, int], Object]] = {}
        for step in plan.steps:
            valid = self._valid_pages(step)
            for one in self._pools.objects_of(len(step.pages), step.tables):
                if NULL not in one.blocks and step.first + one.page < valid:
                    pages.setdefault(step.pages[one.page], {}).setdefault((one.pool, one.part), one)
        for state in plan.states:
            pages.setdefault(state.page, {}).setdefault((state.pool, 0), Object(0, state.pool, 0, state.blocks))
        for request in plan.finished:
            self._tables.pop(request, None)
        if pages:
            try:
                self._put(list(pages), [list(objects.values()) for objects in pages.values()])
            except Exception as error:
                self._failures.call("save", error)

    def _valid_pages(self, step: Step) -> int:
        """Number of the request's leading pages whose bytes are valid after the step."""
        if self._spoiled is None:
            return step.first + len(step.pages)
        if step.begins:
            self._tables[step.request] = []
        table = self._tables.setdefault(step.request, [])
        table += step.blocks[0] if step.blocks else []
        return self._spoiled.step(table, step.computed, step.scheduled)

    def _put(self, pages: list[bytes], objects_of: list[list[Object]]) -> None:
        """Store those objects of these pages that are not stored yet."""
        objects = [one._replace(page=at) for at, of in enumerate(objects_of) for one in of]
        keys = self._keys_of(objects, pages)
        put = _Put(objects, keys, self._store.exists(keys, timeout=self._settings.exists_timeout_ms / 1000))
        whole = [n for n, pool in enumerate(self._pools.each) if pool.pages is None]
        # Objects of pools that need the whole prefix become visible at once. Objects of other pools
        # are attached to them, and are removed with their page, but not vice versa. They are put
        # only if their page is stored.
        base = self._keys[0][0] if whole else None
        for pools in [whole, *([n] for n in range(len(whole), len(self._keys)))]:
            groups: dict[int, list[int]] = {}
            for at, one in enumerate(objects):
                if one.pool in pools and not put.stored[at]:
                    groups.setdefault(one.page, []).append(at)
            for batch in batches(list(groups.values()), self._save_memory.at_once):
                read = [objects[at] for group in batch for at in group]
                if self._save_memory.copies:
                    # All saves share one memory.
                    self._saving.end()
                memory = self._save_memory.source_ranges(read)
                blocks = [] if self._save_memory.copies else [block for one in read for block in one.blocks]
                self._saving.run(partial(self._put_batch, put, batch, memory, None if pools == whole else base), blocks)
        self._saving.run(partial(self._report_stored, put, pages), ())

    def _put_batch(self, put: _Put, batch: list[list[int]], memory: list[Any], base: pagelith.Key | None) -> None:
        """Put objects, one group per page, and record which are stored."""
        memory_of = dict(zip((at for group in batch for at in group), memory, strict=True))
        if base is not None:
            batch = [group for group in batch if put.objects[group[0]].page not in put.incomplete]
        each = [at for group in batch for at in group]
        keys, sources, wait = [put.keys[at] for at in each], [memory_of[at] for at in each], self._settings.put_wait_ms / 1000
        if base is None and len(batch) == len(each):
            outcomes = self._store.put(keys, sources, wait=wait)
        else:
            outcomes = self._store.put_pages(keys, sources, base=base, wait=wait)
        self._failures.written(outcomes, "save")
        for group, outcome in zip(batch, outcomes, strict=True):
            for at in group:
                put.stored[at] = bool(outcome)
            if base is None and not outcome:
                put.incomplete.add(put.objects[group[0]].page)

    def _report_stored(self, put: _Put, pages: list[bytes]) -> None:
        named = [(one.pool, pages[one.page]) for one in put.objects]
        self._stored.put(set(named) - {name for name, is_present in zip(named, put.stored, strict=True) if not is_present})

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        self._saving.close()
        self._opened.close()
        for registration in self._registered:
            registration.release()


def batches(groups: Sequence[list[int]], most: int) -> Iterator[list[list[int]]]:
    """Pack these groups, in order, into as few batches of at most `most` entries as possible;
    longer groups are split."""
    batch: list[list[int]] = []
    count = 0
    for group in (whole[start : start + most] for whole in groups for start in range(0, len(whole), most)):
        if count + len(group) > most:
            yield batch
            batch, count = [], 0
        batch.append(group)
        count += len(group)
    if batch:
        yield batch

"""The connector in a worker: it reads the blocks that the scheduler names into vLLM's caches, and
stores them from there."""

import logging
import queue
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pagelith

from ..devices import DeviceStuck
from ..settings import joined
from ..threads import submit
from .hashes import page_of
from .messages import Load, Named, Paged, Plan, Report, Step
from .names import keys_of
from .opened import Opened
from .pools import NULL, Object, Pools
from .prompts import Prompt, Prompts
from .saving import Saving
from .settings import ConnectorSettings
from .spoiled import Spoiled

logger = logging.getLogger(__name__)


@dataclass
class _Page:
    """A page to be stored: its request in vLLM, `None` if it contains an answer, its index in the
    prompt, and its objects by pool and part."""

    request: str | None
    index: int
    objects: dict[tuple[int, int], Object] = field(default_factory=dict)


@dataclass
class _Put:
    """One step's save: the prompt and the depth of each page, objects with their keys, whether each
    is stored, and the pages whose objects in pools that need the whole prefix are incomplete."""

    places: list[tuple[Prompt, int]]
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
        self._prompts = Prompts(opened.store)
        self._failures = settings.failures(logger)
        self._pools = pools
        self._saves = saves
        self._registered: list[Any] = []
        self._save_memory: Any = None
        # Of loads within the step.
        self._load_memory: Any = None
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
        self._loading: list[Future[None]] = []
        # Why it is not known whether a failed load still writes to its blocks.
        self._stuck: DeviceStuck | None = None
        self._saving = Saving(settings.save_async, self._failures)
        self._stored: queue.SimpleQueue[set[Paged]] = queue.SimpleQueue()
        self._resets = 0

    def register(self, named: Named, memory: Sequence[Any]) -> None:
        """Called when the caches exist: this worker's names, and memory for saves and for each
        reading thread. Without such threads the last one is for loads."""
        self.named, self._keys = named, keys_of(named, self._pools)
        self._save_memory, self._load_memory = memory[0], memory[-1]
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
        # First: a request that has ended may begin again in this step.
        self._prompts.end(plan.ended)
        for name in plan.ended:
            self._tables.pop(name, None)
        if plan.loads and self._threads is None and self._load_memory.copies:
            # Loads reuse the memory from which saves are put.
            self._saving.end()
        for load in plan.loads:
            objects = self._pools.objects_of(len(load.pages), load.tables)
            request = self._prompts.of(load.request).request
            if self._threads is None:
                # Torch copies on the current stream.
                after = None if self._load_memory.copies else self._load_memory.ready_event()
                self._record_load(load, objects, self._read(load, objects, request, self._load_memory, after))
            else:
                try:
                    job = submit(self._threads, self._read_later, load, objects, request, self._save_memory.ready_event())
                    self._loading = [one for one in (*self._loading, job) if one is not None and not one.done()]
                except RuntimeError as error:
                    logger.warning("pagelith: a load of %d pages was not started: %s", len(load.pages), error)
                    self._done.put((load, objects, [False] * len(objects)))

    def _read_later(self, load: Load, objects: list[Object], request: pagelith.Request | None, after: Any) -> None:
        memory, whole = self._memory.get(), [False] * len(objects)
        try:
            whole = self._read(load, objects, request, memory, after)
        except DeviceStuck as stuck:
            self._stuck = stuck
        finally:
            self._memory.put(memory)
            self._done.put((load, objects, whole))

    def _read(self, load: Load, objects: Sequence[Object], request: pagelith.Request | None, memory: Any, after: Any) -> list[bool]:
        """Read the objects, once the event `after` is done; returns which were read. Each is tried,
        even if others fail."""
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
                how = {"timeout": self._settings.get_timeout_ms / 1000, **memory.call_arguments(after)}
                depth = load.first + into[0].page
                outcomes = self._store.get(keys[part], memory.destination_ranges(into), request=request, depth=depth, **how)
                memory.finish_read(into)
            except Exception as error:
                memory.settle()
                self._failures.call("load", error)
                continue
            if not all(outcomes):
                # Blocks of a failed load are used for something else.
                memory.settle()
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
        if self._stuck is not None:
            # vLLM must not use the blocks for something else: this ends the engine.
            raise self._stuck
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
        pages: dict[bytes, _Page] = {}
        prompts = {step.request: step.prompt for step in plan.steps}

        def page_of(name: bytes, request: str, index: int) -> _Page:
            is_prompt = index < prompts.get(request, 0)
            return pages.setdefault(name, _Page(request, index) if is_prompt else _Page(None, 0))

        for step in plan.steps:
            valid = self._valid_pages(step)
            for one in self._pools.objects_of(len(step.pages), step.tables):
                if NULL not in one.blocks and step.first + one.page < valid:
                    page = page_of(step.pages[one.page], step.request, step.first + one.page)
                    page.objects.setdefault((one.pool, one.part), one)
        for state in plan.states:
            page = page_of(state.page, state.request, state.index)
            page.objects.setdefault((state.pool, 0), Object(0, state.pool, 0, state.blocks))
        if pages:
            try:
                self._put(pages)
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

    def _put(self, by_name: dict[bytes, _Page]) -> None:
        """Store those objects of these pages that are not stored yet."""
        after = None if self._save_memory.copies else self._save_memory.ready_event()
        pages = list(by_name)
        # Answers grow by a page at a time: a call for each would delay a step of many requests.
        answers = Prompt(None)
        prompts = [answers if page.request is None else self._prompts.of(page.request) for page in by_name.values()]
        places = list(zip(prompts, [page.index for page in by_name.values()], strict=True))
        objects = [one._replace(page=at) for at, page in enumerate(by_name.values()) for one in page.objects.values()]
        keys = self._keys_of(objects, pages)
        put = _Put(places, objects, keys, self._store.exists(keys, timeout=self._settings.exists_timeout_ms / 1000))
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
                self._saving.run(partial(self._put_batch, put, batch, memory, None if pools == whole else base, after), blocks)
        self._saving.run(partial(self._report_stored, put, pages), ())

    def _put_batch(self, put: _Put, batch: list[list[int]], memory: list[Any], base: pagelith.Key | None, after: Any) -> None:
        """Put objects, one group per page, once the event `after` is done, and record which are
        stored. Each prompt's are one call; all calls together wait at most once for a full store."""
        memory_of = dict(zip((at for group in batch for at in group), memory, strict=True))
        if base is not None:
            batch = [group for group in batch if put.objects[group[0]].page not in put.incomplete]
        arguments = self._save_memory.call_arguments(after)
        until = time.monotonic() + self._settings.put_wait_ms / 1000
        calls: dict[Prompt, list[list[int]]] = {}
        for group in batch:
            calls.setdefault(put.places[put.objects[group[0]].page][0], []).append(group)
        for prompt, groups in calls.items():
            if base is not None and prompt.has_gap:
                continue
            each = [at for group in groups for at in group]
            keys, sources = [put.keys[at] for at in each], [memory_of[at] for at in each]
            depth = put.places[put.objects[each[0]].page][1]
            how = {"request": prompt.request, "depth": depth, "wait": max(0.0, until - time.monotonic()), **arguments}
            if base is None and len(groups) == len(each):
                outcomes = self._store.put(keys, sources, **how)
            else:
                outcomes = self._store.put_pages(keys, sources, base=base, **how)
            self._failures.written(outcomes, "save")
            prompt.has_gap = prompt.has_gap or any(outcome.state == "waiting" for outcome in outcomes)
            for group, outcome in zip(groups, outcomes, strict=True):
                for at in group:
                    put.stored[at] = bool(outcome)
                if base is None and not outcome:
                    put.incomplete.add(put.objects[group[0]].page)

    def _report_stored(self, put: _Put, pages: list[bytes]) -> None:
        named = [(one.pool, pages[one.page]) for one in put.objects]
        self._stored.put(set(named) - {name for name, is_present in zip(named, put.stored, strict=True) if not is_present})

    def quiesce(self) -> None:
        """Wait until nothing accesses the caches: vLLM is about to release their memory."""
        self._saving.end()
        for load in self._loading:
            load.result()
        self._loading = []
        if self._save_memory is not None:
            # Copies that calls gave up.
            self._save_memory.settle()

    def close(self) -> None:
        if self._save_memory is not None:
            self._save_memory.end()
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

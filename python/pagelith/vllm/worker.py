"""The connector in a worker: the blocks that the scheduler names are read into vLLM's caches, and stored out of them."""

import logging
import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..settings import joined
from .hashes import page_of
from .messages import Load, Named, Plan, Report, Step
from .names import key_of
from .opened import Opened
from .settings import ConnectorSettings
from .spoiled import NULL, Spoiled

logger = logging.getLogger(__name__)


class Worker:
    """One worker's. vLLM calls it from one thread; loads of `load_async` run in threads of their own."""

    def __init__(self, settings: ConnectorSettings, opened: Opened, tokens: int, saves: bool) -> None:
        self._settings = settings
        self._opened = opened
        self._store = opened.store
        self._saves = saves
        self._registered: list[Any] = []
        self._tables: dict[str, list[int]] = {}
        self._spoiled = Spoiled(tokens)
        # Blocks that failed to load, and what is not reported yet.
        self._failed: set[int] = set()
        self._report = Report()
        # Threads' memory, and what they have done.
        self._memory: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[Load, list[bool]]] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(settings.read_threads, "pagelith-read") if settings.load_async else None

    def register(self, named: Named, memory: Sequence[Any]) -> None:
        """The caches are there: this worker's name, and memory for saves and for as many threads as read."""
        self.named, self._key = named, key_of(named)
        self._own = memory[0]
        self._registered = self._settings.register(self._store, joined(span for one in memory for span in one.spans()))
        for one in memory[1:]:
            self._memory.put(one)

    # Loads.

    def load(self, plan: Plan) -> None:
        for load in plan.loads:
            if self._threads is None:
                self._loaded(load, self._read(load, self._own))
            else:
                self._threads.submit(self._read_later, load, self._own.told())

    def _read_later(self, load: Load, after: Any) -> None:
        memory, whole = self._memory.get(), [False] * len(load.blocks)
        try:
            if after is not None:
                after.synchronize()
            whole = self._read(load, memory)
        finally:
            self._memory.put(memory)
            self._done.put((load, whole))

    def _read(self, load: Load, memory: Any) -> list[bool]:
        """Which blocks came: each is tried, whatever came of its neighbours."""
        # Of what a sliding window has left behind nothing is read.
        wanted = [at for at, block in enumerate(load.blocks) if block != NULL]
        whole = [block == NULL for block in load.blocks]
        keys = self._key.on_pages([page_of(load.hashes[at]) for at in wanted])
        for start in range(0, len(wanted), memory.at_once):
            part = slice(start, start + memory.at_once)
            blocks = [load.blocks[at] for at in wanted[part]]
            try:
                outcomes = self._store.get(
                    keys[part], memory.into(blocks), depth=load.first + wanted[start], timeout=self._settings.get_timeout_ms / 1000
                )
                memory.landed(blocks)
            except Exception:
                logger.exception("pagelith: a load of %d blocks failed", len(blocks))
                continue
            for at, outcome in zip(wanted[part], outcomes, strict=True):
                whole[at] = bool(outcome)
        if not all(whole):
            logger.warning("pagelith: %d of %d blocks of request %s could not be read", whole.count(False), len(whole), load.request)
        return whole

    def _loaded(self, load: Load, whole: Sequence[bool]) -> None:
        failed = [at for at, came in enumerate(whole) if not came]
        blocks = [load.blocks[at] for at in failed]
        self._failed.update(blocks)
        self._report.missed.update(load.hashes[at] for at in failed)
        self._spoiled.read(block for block, came in zip(load.blocks, whole, strict=True) if came)
        self._spoiled.failed(blocks)

    def finished(self) -> set[str]:
        """Requests whose loads in threads have ended, well or not."""
        ended = set()
        while not self._done.empty():
            load, whole = self._done.get()
            self._loaded(load, whole)
            ended.add(load.request)
        return ended

    def take_failed(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def take_report(self) -> Report | None:
        report, self._report = self._report, Report()
        return report if report.missed or report.stored else None

    # Saves.

    def save(self, plan: Plan) -> None:
        """Store what the step left whole. The blocks are vLLM's again when this returns."""
        if not self._saves:
            return
        objects: dict[bytes, int] = {}
        for step in plan.steps:
            table = self._table(step)
            sound = self._spoiled.step(table, step.computed, step.scheduled)
            for at, block_hash in enumerate(step.hashes, step.first):
                if at < sound and table[at] != NULL:
                    objects.setdefault(block_hash, table[at])
        for request in plan.finished:
            self._tables.pop(request, None)
        if objects:
            try:
                self._put(objects)
            except Exception:
                logger.exception("pagelith: %d blocks could not be stored", len(objects))

    def _table(self, step: Step) -> list[int]:
        if step.begins:
            self._tables[step.request] = []
        table = self._tables.setdefault(step.request, [])
        table += step.blocks
        return table

    def _put(self, objects: dict[bytes, int]) -> None:
        hashes = list(objects)
        keys = self._key.on_pages([page_of(block_hash) for block_hash in hashes])
        here = self._store.exists(keys, timeout=self._settings.exists_timeout_ms / 1000)
        new = [at for at, there in enumerate(here) if not there]
        for start in range(0, len(new), self._own.at_once):
            part = new[start : start + self._own.at_once]
            memory = self._own.out([objects[hashes[at]] for at in part])
            outcomes = self._store.put([keys[at] for at in part], memory, wait=self._settings.put_wait_ms / 1000)
            told = [outcome.error for outcome in outcomes if outcome.error is not None]
            if told:
                logger.warning("pagelith: %d of %d blocks could not be stored: %s", len(told), len(part), told[0])
            for at, outcome in zip(part, outcomes, strict=True):
                here[at] = bool(outcome)
        self._report.stored.update(block_hash for block_hash, there in zip(hashes, here, strict=True) if there)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=True)
        self._opened.close()
        for registration in self._registered:
            registration.release()

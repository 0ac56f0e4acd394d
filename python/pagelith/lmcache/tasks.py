"""Tasks of one kind: the threads that run them, their results until LMCache asks, and the descriptor that tells it to."""

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from lmcache.v1.platform import create_event_notifier

from ..failures import Failures
from ..threads import submit

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")


class Tasks(Generic[_Result]):
    """Each task that was submitted ends once, with one signal, whatever comes of it."""

    def __init__(self, name: str, threads: int, failures: Failures) -> None:
        self._name, self._failures = name, failures
        self._threads = ThreadPoolExecutor(threads, f"pagelith-{name}")
        self._event: Any = create_event_notifier()
        self._lock = threading.Lock()
        self._open = 0
        self._done: dict[int, _Result] = {}

    def fileno(self) -> int:
        return int(self._event.fileno())

    def submit(self, task: int, body: Callable[[], _Result], failed: Callable[[], _Result]) -> None:
        with self._lock:
            self._open += 1
        try:
            submit(self._threads, self._run, task, body, failed)
        except RuntimeError as error:
            # They were shut down, or there is no thread: what was given is reported all the same.
            logger.warning("pagelith: a %s task was not started: %s", self._name, error)
            self._end(task, failed())

    def _run(self, task: int, body: Callable[[], _Result], failed: Callable[[], _Result]) -> None:
        try:
            result = body()
        except Exception as error:
            self._failures.call(self._name, error)
            result = failed()
        self._end(task, result)

    def _end(self, task: int, result: _Result) -> None:
        with self._lock:
            self._done[task] = result
            self._open -= 1
            # Under the lock, so that the descriptor cannot be closed, and be somebody else's, meanwhile.
            if self._event is not None:
                self._event.notify()

    def take(self, task: int) -> _Result | None:
        """A task's result, once."""
        with self._lock:
            return self._done.pop(task, None)

    def take_all(self) -> dict[int, _Result]:
        """Results that nobody took."""
        with self._lock:
            done, self._done = self._done, {}
            return done

    def open(self) -> int:
        """How many tasks wait or run."""
        with self._lock:
            return self._open

    def drain(self) -> None:
        """End what was submitted; what comes behind fails."""
        self._threads.shutdown(wait=True)

    def close(self) -> None:
        with self._lock:
            event, self._event = self._event, None
        if event is not None:
            event.close()

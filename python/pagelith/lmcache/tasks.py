"""Tasks of one kind: the threads that run them, their results, and the descriptor that signals them
to LMCache."""

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
    """Every submitted task ends exactly once, with one signal, whether it succeeds or fails."""

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
            # The executor was shut down or could not start a thread: the task is reported as
            # failed.
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
            # With the lock held, so that the descriptor cannot be closed and reused meanwhile.
            if self._event is not None:
                self._event.notify()

    def take(self, task: int) -> _Result | None:
        """Remove and return a task's result."""
        with self._lock:
            return self._done.pop(task, None)

    def take_all(self) -> dict[int, _Result]:
        """Remove and return all results."""
        with self._lock:
            done, self._done = self._done, {}
            return done

    def open(self) -> int:
        """Number of tasks that are queued or running."""
        with self._lock:
            return self._open

    def drain(self) -> None:
        """Finish the submitted tasks; later ones fail."""
        self._threads.shutdown(wait=True)

    def close(self) -> None:
        with self._lock:
            event, self._event = self._event, None
        if event is not None:
            event.close()

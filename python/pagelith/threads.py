"""Submitting work to an executor that may be unable to start threads: a process may have reached
its limit."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


def submit(threads: Executor, body: Callable[..., None], *arguments: Any) -> "Future[None] | None":
    """Run `body` on one of the threads, exactly once or not at all.

    Raises RuntimeError if it will never run: the executor was shut down, or could not start a
    thread. An executor keeps work for which it could start no thread, and another thread may run it
    at any later time, when the caller has reused its memory; the claim prevents that. Returns None
    if the work ran although the executor raised an error.
    """
    claim = threading.Lock()

    def once() -> None:
        if claim.acquire(blocking=False):
            body(*arguments)

    try:
        return threads.submit(once)
    except RuntimeError:
        if claim.acquire(blocking=False):
            raise
        return None

"""Work for threads that may not all be there: a process can be short of them."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


def submit(threads: Executor, body: Callable[..., None], *arguments: Any) -> "Future[None] | None":
    """Have one of the threads do it.

    RuntimeError if it is never done: they were shut down, or none could be started. An executor keeps what it could start no thread
    for, and another thread may do it any time later, when its memory is somebody else's: here it is done once or refused, and never
    both. None if it is done though the executor said otherwise.
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

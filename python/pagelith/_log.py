"""Passes the engine's log events to the logger `pagelith`, with their fields in `record.fields` and
their module in `record.target`.

The engine queues its events (python/src/log.rs). A call that opens, flushes or closes a store logs
the queued events before it returns. All others are logged by a thread that waits on a socket: no
thread of the engine ever waits for the interpreter.
"""

import atexit
import contextlib
import logging
import os
import threading
from typing import Any

from ._native import _log_begin, _log_forked, _log_take, _log_wake

logger = logging.getLogger("pagelith")

# Longest that a call waits for another thread's log handlers, one of which may itself wait for the
# caller.
_WAIT_S = 1.0

_lock = threading.RLock()
_thread: threading.Thread | None = None


def begin() -> None:
    """Start to record events: those of INFO and above, and those below that the logger's level
    includes."""
    global _thread
    _log_begin(min(logger.getEffectiveLevel(), logging.INFO))
    with _lock:
        if _thread is None:
            # Without a descriptor or a thread, events are logged by calls only.
            with contextlib.suppress(OSError, RuntimeError):
                thread = threading.Thread(target=_run, args=(_log_wake(),), name="pagelith-log", daemon=True)
                thread.start()
                _thread = thread


def deliver(wait: float = _WAIT_S) -> None:
    """Log the queued events."""
    if not _lock.acquire(timeout=wait):
        return
    try:
        records, dropped = _log_take()
        for record in records:
            _log(*record)
        if dropped:
            fields = {"dropped": dropped}
            _log(logging.WARNING, __name__, None, 0, None, "log events were dropped: they arrived faster than they could be logged", fields)
    finally:
        _lock.release()


def _log(level: int, target: str, file: str | None, line: int, at: float | None, message: str, fields: dict[str, Any]) -> None:
    # An exception of a filter or handler must not fail the call that logs.
    with contextlib.suppress(Exception):
        if not logger.isEnabledFor(level):
            return
        text = message + "".join(f" {name}={value}" for name, value in fields.items())
        about = {"target": target, "fields": fields}
        record = logger.makeRecord(logger.name, level, file or target, line, text, (), None, extra=about)
        if at is not None:
            record.created, record.msecs = at, at % 1 * 1000
        logger.handle(record)


def _run(wake: int) -> None:
    while os.read(wake, 4096):
        deliver(wait=-1)


def _in_child() -> None:
    global _lock, _thread
    _lock, _thread = threading.RLock(), None
    _log_forked()


os.register_at_fork(after_in_child=_in_child)
atexit.register(deliver)

"""The engine's log events as records of the logger `pagelith`, each with its fields in `record.fields` and its module in `record.target`.

The engine keeps them in a bounded queue (python/src/log.rs). They are logged by the thread that opened, flushed or closed a store before that
call returns, and else by a thread of their own, which waits for a byte of a socket: no thread of the engine ever waits for the interpreter.
"""

import atexit
import contextlib
import logging
import os
import threading
from typing import Any

from ._native import _log_begin, _log_forked, _log_take, _log_wake

logger = logging.getLogger("pagelith")

# Longest that a call waits for another thread's handlers: one of them may itself wait for who calls.
_WAIT_S = 1.0

_lock = threading.RLock()
_thread: threading.Thread | None = None


def begin() -> None:
    """Hear of what happens from now on: of INFO and above, and of what the logger's level has below that."""
    global _thread
    _log_begin(min(logger.getEffectiveLevel(), logging.INFO))
    with _lock:
        if _thread is None:
            # Without a descriptor or a thread, calls that log remain.
            with contextlib.suppress(OSError, RuntimeError):
                thread = threading.Thread(target=_run, args=(_log_wake(),), name="pagelith-log", daemon=True)
                thread.start()
                _thread = thread


def deliver(wait: float = _WAIT_S) -> None:
    """Log what waits."""
    if not _lock.acquire(timeout=wait):
        return
    try:
        records, dropped = _log_take()
        for record in records:
            _log(*record)
        if dropped:
            fields = {"dropped": dropped}
            _log(logging.WARNING, __name__, None, 0, None, "log events were dropped, since they came faster than they were logged", fields)
    finally:
        _lock.release()


def _log(level: int, target: str, file: str | None, line: int, at: float | None, message: str, fields: dict[str, Any]) -> None:
    # A filter or handler that fails is no fault of the call that logs.
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

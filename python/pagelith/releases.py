"""Releases of pins on a thread of their own, so that no caller waits for a store process."""

import queue
import threading
from collections.abc import Callable
from typing import Protocol


class _Pin(Protocol):
    def release(self) -> None: ...


class Releases:
    """A queue of pins to be released. `idle` is called after each `interval` seconds without one."""

    def __init__(self, idle: Callable[[], None] | None = None, interval: float | None = None) -> None:
        self._idle, self._interval = idle, interval
        self._ended: queue.SimpleQueue[_Pin | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting = 0
        self._thread = threading.Thread(target=self._run, name="pagelith-unpin", daemon=True)
        self._thread.start()

    def add(self, pin: _Pin) -> None:
        """Release a pin later."""
        with self._lock:
            self._waiting += 1
        self._ended.put(pin)

    def waiting(self) -> int:
        """Number of pins that are waiting for their release."""
        with self._lock:
            return self._waiting

    def _run(self) -> None:
        while True:
            try:
                pin = self._ended.get(timeout=self._interval)
            except queue.Empty:
                if self._idle is not None:
                    self._idle()
                continue
            if pin is None:
                return
            pin.release()
            with self._lock:
                self._waiting -= 1

    def close(self) -> None:
        """Release the remaining pins, and stop the thread. Called after the store was closed, which
        ended all pins of a store process."""
        self._ended.put(None)
        self._thread.join()

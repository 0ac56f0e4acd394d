"""Pins of a store process, which may be gone, or stopped: they are taken in a short time, or none for a while, and let go of by a
thread of their own, so that nobody else waits for its answer.
"""

import queue
import threading
import time
from collections.abc import Callable
from typing import Protocol

import pagelith

from ..failures import Failures
from .settings import Settings

# How long no pin is asked for, after one was not to be had.
_REST_S = 10.0


class _Store(Protocol):
    def pin(self, keys: list[pagelith.Key], *, timeout: float | None = None) -> pagelith.Pin: ...


class _Held:
    """A pin that is let go of later."""

    def __init__(self, pin: pagelith.Pin, later: Callable[[pagelith.Pin], None]) -> None:
        self._pin, self._later = pin, later

    def release(self) -> None:
        self._later(self._pin)


class Pins:
    """Takes pins, and lets go of them. `idle` is called where nothing is to be let go of, once in a while."""

    def __init__(
        self, store: _Store, settings: Settings, idle: Callable[[], None], failures: Failures, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures = failures
        self._store, self._now, self._idle = store, now, idle
        self._timeout, self._every = settings.pin_timeout_ms / 1000, settings.lock_ms / 1000
        self._again = float("-inf")
        self._ended: queue.SimpleQueue[pagelith.Pin | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._left = 0
        self._thread = threading.Thread(target=self._release, name="pagelith-unpin", daemon=True)
        self._thread.start()

    def take(self, names: list[pagelith.Key]) -> _Held | None:
        """A pin of what is here of these; `None` if there is none to be had, and then of none for a while."""
        if self.given_up():
            return None
        try:
            return _Held(self._store.pin(names, timeout=self._timeout), self._release_later)
        except pagelith.PagelithError as error:
            self._again = self._now() + _REST_S
            self._failures.call(f"pin (found objects are not pinned for the next {_REST_S:.0f} s)", error)
            return None

    def given_up(self) -> bool:
        """Whether none is taken now."""
        return self._now() < self._again

    def to_be_released(self) -> int:
        """How many are held though nobody wants them any more."""
        with self._lock:
            return self._left

    def _release_later(self, pin: pagelith.Pin) -> None:
        with self._lock:
            self._left += 1
        self._ended.put(pin)

    def _release(self) -> None:
        while True:
            try:
                pin = self._ended.get(timeout=self._every)
            except queue.Empty:
                self._idle()
                continue
            if pin is None:
                return
            pin.release()
            with self._lock:
                self._left -= 1

    def close(self) -> None:
        """Behind the store's end, with which all pins have ended."""
        self._ended.put(None)
        self._thread.join()

"""Pins in a store process, which may be down or stalled. A pin is requested with a short timeout;
after a failure none is requested for a while. Pins are released by a separate thread, so that no
caller waits for the response.
"""

import time
from collections.abc import Callable
from typing import Protocol

import pagelith

from ..failures import Failures
from ..releases import Releases
from .settings import Settings

# Time without pin requests after one failed.
_SUSPENDED_S = 10.0


class _Store(Protocol):
    def pin(self, keys: list[pagelith.Key], *, timeout: float | None = None) -> pagelith.Pin: ...


class _DeferredPin:
    """A pin whose release is deferred to the thread."""

    def __init__(self, pin: pagelith.Pin, later: Callable[[pagelith.Pin], None]) -> None:
        self._pin, self._later = pin, later

    def release(self) -> None:
        self._later(self._pin)


class Pins:
    """Takes and releases pins. `idle` is called periodically while there are none to release."""

    def __init__(
        self, store: _Store, settings: Settings, idle: Callable[[], None], failures: Failures, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._failures = failures
        self._store, self._now, self._timeout = store, now, settings.pin_timeout_ms / 1000
        self._suspended_until = float("-inf")
        self._releases = Releases(idle, settings.lock_ms / 1000)

    def take(self, names: list[pagelith.Key]) -> _DeferredPin | None:
        """A pin of those objects that are stored; `None` if pinning failed, now or a short time
        ago."""
        if self.given_up():
            return None
        try:
            return _DeferredPin(self._store.pin(names, timeout=self._timeout), self._releases.add)
        except pagelith.PagelithError as error:
            self._suspended_until = self._now() + _SUSPENDED_S
            self._failures.call(f"pin (found objects are not pinned for the next {_SUSPENDED_S:.0f} s)", error)
            return None

    def given_up(self) -> bool:
        """Whether pinning is suspended after a failure."""
        return self._now() < self._suspended_until

    def to_be_released(self) -> int:
        """Number of pins that are waiting for their release."""
        return self._releases.waiting()

    def close(self) -> None:
        """Stop the thread. Called after the store was closed, which ended all pins."""
        self._releases.close()

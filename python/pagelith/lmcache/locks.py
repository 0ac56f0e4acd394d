"""What look-ups found and LMCache has not let go of yet."""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol


class _Pin(Protocol):
    def release(self) -> None: ...


@dataclass(eq=False)
class _Found:
    """One look-up's finds: pinned as long as one of its keys is locked."""

    pin: _Pin | None
    keys: list[Hashable]
    # How many of them are still locked by it.
    left: int
    until: float


class Locks:
    """Counts of locks by key. LMCache leaves locks behind where a request is given up: each ends after `seconds`."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._lock = threading.Lock()
        self._of: dict[Hashable, list[_Found]] = {}
        self._found: deque[_Found] = deque()

    def lock(self, keys: Iterable[Hashable], pin: _Pin | None) -> None:
        """Lock each key once more; the pin is released with the last of them."""
        locked = list(keys)
        found = _Found(pin, locked, len(locked), self._now() + self._seconds)
        with self._lock:
            ended = self._expired()
            for key in locked:
                self._of.setdefault(key, []).append(found)
            if locked:
                self._found.append(found)
            else:
                ended.append(found)
        _release(ended)

    def unlock(self, keys: Iterable[Hashable]) -> None:
        """Take one lock of each key back, the oldest; of a key that has none, nothing."""
        with self._lock:
            ended = self._expired()
            for key in keys:
                holders = self._of.get(key)
                if holders is None:
                    continue
                found = holders.pop(0)
                if not holders:
                    del self._of[key]
                found.left -= 1
                if not found.left:
                    ended.append(found)
        _release(ended)

    def is_locked(self, key: Hashable) -> bool:
        with self._lock:
            ended = self._expired()
            locked = key in self._of
        _release(ended)
        return locked

    def expire(self) -> None:
        """Let go of what is over. Every other call does too."""
        with self._lock:
            ended = self._expired()
        _release(ended)

    def count(self) -> int:
        """How many keys are locked."""
        with self._lock:
            ended = self._expired()
            count = len(self._of)
        _release(ended)
        return count

    def close(self) -> None:
        """Let go of everything."""
        with self._lock:
            ended = list(self._found)
            self._found.clear()
            self._of.clear()
        _release(ended)

    def _expired(self) -> list[_Found]:
        """Take out what is over: look-ups in the order in which they came, of which those that are let go of ended before."""
        ended = []
        while self._found and (self._found[0].until <= self._now() or not self._found[0].left):
            found = self._found.popleft()
            if found.left:
                ended.append(found)
                self._take_out(found)
        return ended

    def _take_out(self, found: _Found) -> None:
        for key in found.keys:
            holders = self._of.get(key, [])
            # Not where the key was unlocked before.
            if found in holders:
                holders.remove(found)
                if not holders:
                    del self._of[key]


def _release(ended: Iterable[_Found]) -> None:
    for found in ended:
        if found.pin is not None:
            found.pin.release()

"""Locks on objects that lookups found and LMCache has not unlocked yet."""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Protocol


class _Pin(Protocol):
    def release(self) -> None: ...


@dataclass(eq=False)
class _LockedLookup:
    """The objects found by one lookup: pinned while one of their keys is locked."""

    pin: _Pin | None
    keys: list[Hashable]
    # Number of its keys that are still locked.
    left: int
    until: float


class Locks:
    """Lock counts by key. LMCache leaves locks behind when a request is aborted, so each expires
    after `seconds`."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._now = now
        self._lock = threading.Lock()
        self._by_key: dict[Hashable, list[_LockedLookup]] = {}
        self._lookups: deque[_LockedLookup] = deque()

    def lock(self, keys: Iterable[Hashable], pin: _Pin | None) -> None:
        """Add one lock to each key; the pin is released with the last of these locks."""
        locked = list(keys)
        found = _LockedLookup(pin, locked, len(locked), self._now() + self._seconds)
        with self._lock:
            ended = self._take_expired()
            for key in locked:
                self._by_key.setdefault(key, []).append(found)
            if locked:
                self._lookups.append(found)
            else:
                ended.append(found)
        _release(ended)

    def unlock(self, keys: Iterable[Hashable]) -> None:
        """Release the oldest lock of each key. Keys without a lock are ignored."""
        with self._lock:
            ended = self._take_expired()
            for key in keys:
                holders = self._by_key.get(key)
                if holders is None:
                    continue
                found = holders.pop(0)
                if not holders:
                    del self._by_key[key]
                found.left -= 1
                if not found.left:
                    ended.append(found)
        _release(ended)

    def is_locked(self, key: Hashable) -> bool:
        with self._lock:
            ended = self._take_expired()
            locked = key in self._by_key
        _release(ended)
        return locked

    def expire(self) -> None:
        """Release expired locks. Every other call does this too."""
        with self._lock:
            ended = self._take_expired()
        _release(ended)

    def count(self) -> int:
        """Number of locked keys."""
        with self._lock:
            ended = self._take_expired()
            count = len(self._by_key)
        _release(ended)
        return count

    def close(self) -> None:
        """Release all locks."""
        with self._lock:
            ended = list(self._lookups)
            self._lookups.clear()
            self._by_key.clear()
        _release(ended)

    def _take_expired(self) -> list[_LockedLookup]:
        """Remove and return the expired lookups. They are in the order of their arrival, and so of
        their expiry."""
        ended = []
        while self._lookups and (self._lookups[0].until <= self._now() or not self._lookups[0].left):
            found = self._lookups.popleft()
            if found.left:
                ended.append(found)
                self._remove(found)
        return ended

    def _remove(self, found: _LockedLookup) -> None:
        for key in found.keys:
            holders = self._by_key.get(key, [])
            # Keys that were unlocked before have no entry any more.
            if found in holders:
                holders.remove(found)
                if not holders:
                    del self._by_key[key]


def _release(ended: Iterable[_LockedLookup]) -> None:
    for found in ended:
        if found.pin is not None:
            found.pin.release()

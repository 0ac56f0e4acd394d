"""Pages that could not be read."""

import threading
from collections.abc import Hashable, Iterable
from typing import Any

# Most keys that are remembered: 16 MB. Beyond that the oldest is looked up again.
_MAX = 65536


def forget(known: dict[Any, Any], most: int) -> None:
    """Remove the oldest entries beyond `most`."""
    while len(known) > most:
        del known[next(iter(known))]


class Missed:
    """Keys that count as misses until they are stored again. For any thread.

    An engine repeats a load for as long as the lookup succeeds, and an object that could not be
    read in time may still be stored.
    """

    def __init__(self) -> None:
        self._keys: dict[Hashable, None] = {}
        self._lock = threading.Lock()

    def add(self, keys: Iterable[Hashable]) -> None:
        with self._lock:
            self._keys.update(dict.fromkeys(keys))
            forget(self._keys, _MAX)

    def stored(self, keys: Iterable[Hashable]) -> None:
        if self._keys:
            with self._lock:
                for key in keys:
                    self._keys.pop(key, None)

    def clear(self) -> None:
        with self._lock:
            self._keys.clear()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

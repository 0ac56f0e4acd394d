"""vLLM's block hashes: the pages that they name, and those that could not be read."""

from collections.abc import Hashable, Iterable
from typing import Any

# Most keys that are remembered: 16 MB. Beyond that the oldest is looked up again.
_MAX = 65536


def page_of(block_hash: bytes) -> bytes | str:
    """The page for a block hash of any length."""
    return block_hash if len(block_hash) == 32 else f"vllm block {block_hash.hex()}"


def forget(known: dict[Any, Any], most: int) -> None:
    """Remove the oldest entries beyond `most`."""
    while len(known) > most:
        del known[next(iter(known))]


class Missed:
    """Keys that count as misses until they are stored again.

    vLLM repeats a load for as long as the lookup succeeds, and an object that could not be read in
    time may still be stored.
    """

    def __init__(self) -> None:
        self._keys: dict[Hashable, None] = {}

    def add(self, keys: Iterable[Hashable]) -> None:
        self._keys.update(dict.fromkeys(keys))
        forget(self._keys, _MAX)

    def stored(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            self._keys.pop(key, None)

    def clear(self) -> None:
        self._keys.clear()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

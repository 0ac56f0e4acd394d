"""vLLM's hashes of blocks: the pages that they name, and which of them could not be read."""

from collections.abc import Hashable, Iterable

# Most keys that are remembered: 16 MB. Beyond it the oldest is asked again.
_MAX = 65536


def page_of(block_hash: bytes) -> bytes | str:
    """The page that a block's hash names, of whatever length it is."""
    return block_hash if len(block_hash) == 32 else f"vllm block {block_hash.hex()}"


class Missed:
    """Keys that are not found again until they are stored again.

    vLLM asks again for as long as it is told "here", and a store may have what it could not read in time.
    """

    def __init__(self) -> None:
        self._keys: dict[Hashable, None] = {}

    def add(self, keys: Iterable[Hashable]) -> None:
        self._keys.update(dict.fromkeys(keys))
        while len(self._keys) > _MAX:
            del self._keys[next(iter(self._keys))]

    def stored(self, keys: Iterable[Hashable]) -> None:
        for key in keys:
            self._keys.pop(key, None)

    def clear(self) -> None:
        self._keys.clear()

    def __contains__(self, key: Hashable) -> bool:
        return key in self._keys

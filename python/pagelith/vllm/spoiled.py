"""Which of vLLM's blocks hold bytes that must not be stored.

A step whose load failed runs all the same, and vLLM computes anew what it made: until then the block that failed, and all that was
computed behind it, hold bytes that do not belong to their hashes. The first to put an object wins, so one such block in the store
would be a wrong answer for as long as it is there. A block is sound again once it was read, or computed behind sound ones.

Of one group alone, and a whole prefix of it: with others vLLM runs no step over what did not come.
"""

from collections.abc import Iterable, Sequence

from .pools import NULL


class Spoiled:
    def __init__(self, tokens: int) -> None:
        self._tokens = tokens
        self._blocks: set[int] = set()

    @property
    def any(self) -> bool:
        return bool(self._blocks)

    def failed(self, blocks: Iterable[int]) -> None:
        self._blocks.update(blocks)
        self._blocks.discard(NULL)

    def read(self, blocks: Iterable[int]) -> None:
        self._blocks.difference_update(blocks)

    def step(self, table: Sequence[int], computed: int, scheduled: int) -> int:
        """A request with this table computes a step: how many of its blocks, from the first on, are sound behind it."""
        if not self._blocks:
            return len(table)
        # A block that is computed from its first token on has nothing of before in it.
        first, end = -(-computed // self._tokens), -(-(computed + scheduled) // self._tokens)
        sound = self._sound(table[:first])
        if sound < first:
            self.failed(table[sound:])
            return sound
        self.read(table[first:end])
        return self._sound(table)

    def _sound(self, table: Sequence[int]) -> int:
        return next((at for at, block in enumerate(table) if block in self._blocks), len(table))

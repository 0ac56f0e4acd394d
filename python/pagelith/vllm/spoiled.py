"""Tracks vLLM's blocks whose bytes must not be stored.

With `load_async` false, a step with a failed load runs all the same. Until vLLM has ended the
request, the block that failed, and all blocks computed after it, hold bytes that do not match their
hashes. The first put of an object wins, so storing one such block would return wrong bytes for as
long as it is stored. A block is valid again once it was read, or recomputed after valid blocks.

This applies to models with one group that needs the whole prefix. With other groups vLLM runs no
step over failed loads.
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
        """Record a step of the request with this table. Returns the number of its leading blocks
        that are valid after the step."""
        if not self._blocks:
            return len(table)
        # A block that is computed from its first token on keeps no earlier content.
        first, end = -(-computed // self._tokens), -(-(computed + scheduled) // self._tokens)
        valid = self._valid_prefix(table[:first])
        if valid < first:
            self.failed(table[valid:])
            return valid
        self.read(table[first:end])
        return self._valid_prefix(table)

    def _valid_prefix(self, table: Sequence[int]) -> int:
        return next((at for at, block in enumerate(table) if block in self._blocks), len(table))

"""The grouping of vLLM's cache groups into pools, and the part of a prompt that each pool needs.

A group is layers that share a table of blocks. Groups with equal numbers of tokens per block that
keep the same part of a prompt gain and lose their blocks together: they form a *pool*, and one
block of a pool, with all layers of its groups, is one object. A *page* is the unit of a prompt: the
smallest number of tokens that is whole blocks of every group. vLLM continues only at ends of pages.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import Any, NamedTuple

# Kinds of caches (vLLM's names) with one block per range of tokens: a prefix needs all blocks, or
# those of its last tokens.
WHOLE = ("full_attention", "mla_attention")
LAST = ("sliding_window", "chunked_local_attention")
# Kinds whose block is the state after its last token; a prefix needs only the last one. `mamba` is
# vLLM's name for every recurrent layer: selective state spaces, linear attention, gated delta rules
# and short convolutions.
STATE = ("mamba",)

# vLLM's placeholder for blocks that a window has left: never read.
NULL = 0


@dataclass(frozen=True)
class Pool:
    """Groups whose blocks are stored together."""

    name: str
    # Indices of the groups.
    groups: tuple[int, ...]
    # Tokens of a block, and number of blocks in a page.
    tokens: int
    blocks: int
    # Number of pages at its end that a prefix needs; None: all.
    pages: int | None
    # Whether a block is a state. It is stable only in the step that vLLM reports, which no block
    # table shows.
    state: bool


class Object(NamedTuple):
    """A block of a pool: index of its page, of its pool, of the block within the page, and its
    block number in each group."""

    page: int
    pool: int
    part: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Pools:
    """All pools of a model. Those that need the whole prefix come first."""

    each: tuple[Pool, ...]
    # Tokens of a page, and its number of vLLM's hashes. The last of them is the page's name; it
    # depends on all tokens before it.
    tokens: int
    hashes: int
    groups: int

    @staticmethod
    def of(groups: Sequence[Any], kinds: Sequence[str], hash_tokens: int | None, context: int = 1) -> "Pools":
        """From vLLM's groups and their kinds, which must be known; `context` ranks share the tokens
        of each block."""
        sizes = [tokens_of(group, context) for group in groups]
        page = lcm(*sizes)
        alike: dict[tuple[int, int, bool], list[int]] = {}
        for at, (group, kind, size) in enumerate(zip(groups, kinds, sizes, strict=True)):
            alike.setdefault((reach(spec_of(group), kind), size, kind in STATE), []).append(at)
        each = []
        for (tokens, size, state), members in sorted(alike.items()):
            name = f"state_{size}" if state else f"last_{tokens}_{size}" if tokens else f"all_{size}"
            if len(groups) == 1:
                name = "group_0"
            pages = max(1, -(-tokens // page)) if tokens else None
            each.append(Pool(name, tuple(members), size, page // size, pages, state))
        return Pools(tuple(each), page, page // (hash_tokens or gcd(*sizes)), len(groups))

    @property
    def by_request(self) -> bool:
        """Whether a failed load fails the whole request. vLLM recomputes single blocks only with
        one group, and continues before the first failed block: from there, a window would reach
        back to blocks that were never loaded."""
        return self.groups > 1 or any(pool.pages is not None for pool in self.each)

    def longest(self, lengths: Sequence[int]) -> int:
        """Most bytes of a page that are stored together, if objects of each pool have these
        lengths."""
        pages = [length * pool.blocks for length, pool in zip(lengths, self.each, strict=True)]
        whole = sum(length for length, pool in zip(pages, self.each, strict=True) if pool.pages is None)
        return max([whole, *pages])

    def names(self, hashes: Sequence[bytes], first: int, end: int) -> list[bytes]:
        """The names of the pages `first..end` of a request with these hashes, as far as they
        exist."""
        return list(hashes[(first + 1) * self.hashes - 1 : end * self.hashes : self.hashes])

    @property
    def states(self) -> bool:
        """Whether any pool has states."""
        return any(pool.state for pool in self.each)

    def tables(self, tables: Sequence[Sequence[int]], first: int, end: int, states: bool = True) -> list[list[int]]:
        """The part of each group's table that belongs to these pages. The entries for states are
        valid only for loads: a computed state moves on with its request."""
        found: list[list[int]] = [[] for _ in range(self.groups)]
        for pool in self.each:
            for group in pool.groups if states or not pool.state else ():
                found[group] = list(tables[group][first * pool.blocks : end * pool.blocks])
        return found

    def objects_of(self, pages: int, tables: Sequence[Sequence[int]]) -> list[Object]:
        """All objects of `pages` pages with these tables that have a block in some group, page by
        page."""
        found = []
        for page in range(pages):
            for n, pool in enumerate(self.each):
                for part in range(pool.blocks):
                    at = page * pool.blocks + part
                    blocks = tuple(tables[group][at] if at < len(tables[group]) else NULL for group in pool.groups)
                    if any(block != NULL for block in blocks):
                        found.append(Object(page, n, part, blocks))
        return found


def specs_of(group: Any) -> list[Any]:
    """A group's specifications. Workers have one per layer if layers differ."""
    spec = group.kv_cache_spec
    layers = getattr(spec, "kv_cache_specs", None)
    return list(layers.values()) if layers else [spec]


def spec_of(group: Any) -> Any:
    """A group's specification; the first represents all."""
    return specs_of(group)[0]


def tokens_of(group: Any, context: int) -> int:
    """Tokens of a block of this group. With decode context parallelism, one block number is one
    block on each rank, each with its own tokens."""
    spec = spec_of(group)
    return int(spec.block_size) * (context if getattr(spec, "dcp_sharded", False) else 1)


def reach(spec: Any, kind: str) -> int:
    """Number of tokens before the next one that a group needs at most; 0: all of them."""
    if kind == "sliding_window":
        return max(1, int(spec.sliding_window) - 1 + int(getattr(spec, "extra_retained_tokens", 0)))
    if kind == "chunked_local_attention":
        return max(1, int(spec.attention_chunk_size) - 1)
    return 1 if kind in STATE else 0

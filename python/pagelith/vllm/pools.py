"""Which of vLLM's groups of caches are kept together, and how much of a prompt each needs.

A group is layers with one table of blocks. Groups with blocks of as many tokens that keep the same part of a prompt get and lose their
blocks together: they are a *pool*, and a block of a pool, with all layers of its groups, is an object. A *page* is what a prompt is cut
into: as many tokens as are whole blocks of every group, and the only lengths at which vLLM goes on from.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import Any, NamedTuple

# Kinds of caches (vLLM's names) of which a block stands for its tokens: all of them are needed, or those of the last so many tokens.
WHOLE = ("full_attention", "mla_attention")
LAST = ("sliding_window", "chunked_local_attention")
# Of which a block is the state behind its last token, and the last one is all that is needed. Mamba is vLLM's name of every recurrent layer:
# selective state spaces, linear attention, gated delta rules and short convolutions alike.
STATE = ("mamba",)

# vLLM's placeholder for what a window has left behind: nobody reads it.
NULL = 0


@dataclass(frozen=True)
class Pool:
    """Groups that are kept together."""

    name: str
    # By their numbers.
    groups: tuple[int, ...]
    # Tokens of a block, and how many of them make a page.
    tokens: int
    blocks: int
    # Pages before its end that a prefix needs; None: all.
    pages: int | None
    # Whether a block is a state, which lies still in the one step that vLLM says, and nowhere that a table would tell.
    state: bool


class Object(NamedTuple):
    """A block of a pool: in which of the pages, of which pool, which of the page's blocks, and its block in each group."""

    page: int
    pool: int
    part: int
    blocks: tuple[int, ...]


@dataclass(frozen=True)
class Pools:
    """All of a model's. Those that need a whole prefix come first."""

    each: tuple[Pool, ...]
    # Tokens of a page, and how many of vLLM's hashes it has. The last one is the page's name: it says what was before it too.
    tokens: int
    hashes: int
    groups: int

    @staticmethod
    def of(groups: Sequence[Any], kinds: Sequence[str], hash_tokens: int | None, context: int = 1) -> "Pools":
        """Of vLLM's groups and their kinds, which are known ones; `context` ranks have some of each block's tokens."""
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
        """Whether a load that failed is the whole request's. vLLM takes back single blocks of one group alone, and goes on before the
        first that failed: a window would reach back from there to what was never loaded."""
        return self.groups > 1 or any(pool.pages is not None for pool in self.each)

    def names(self, hashes: Sequence[bytes], first: int, end: int) -> list[bytes]:
        """The names of the pages `first..end` of a request with these hashes, as far as there are any."""
        return list(hashes[(first + 1) * self.hashes - 1 : end * self.hashes : self.hashes])

    @property
    def states(self) -> bool:
        """Whether there are states among them."""
        return any(pool.state for pool in self.each)

    def tables(self, tables: Sequence[Sequence[int]], first: int, end: int, states: bool = True) -> list[list[int]]:
        """The part of each group's table that these pages have. What it says of states is good to load them alone: a state that was computed moves
        on with its request."""
        found: list[list[int]] = [[] for _ in range(self.groups)]
        for pool in self.each:
            for group in pool.groups if states or not pool.state else ():
                found[group] = list(tables[group][first * pool.blocks : end * pool.blocks])
        return found

    def objects_of(self, pages: int, tables: Sequence[Sequence[int]]) -> list[Object]:
        """Of so many pages with these tables every object that has a block in some group, page after page."""
        found = []
        for page in range(pages):
            for n, pool in enumerate(self.each):
                for part in range(pool.blocks):
                    at = page * pool.blocks + part
                    blocks = tuple(tables[group][at] if at < len(tables[group]) else NULL for group in pool.groups)
                    if any(block != NULL for block in blocks):
                        found.append(Object(page, n, part, blocks))
        return found


def spec_of(group: Any) -> Any:
    """A group's specification: workers have one for each layer where layers differ, of which the first stands for all."""
    spec = group.kv_cache_spec
    layers = getattr(spec, "kv_cache_specs", None)
    return next(iter(layers.values())) if layers else spec


def tokens_of(group: Any, context: int) -> int:
    """How many tokens a block of this group is of: with decode context parallelism one number of a block is a block on each rank, with tokens of its own."""
    spec = spec_of(group)
    return int(spec.block_size) * (context if getattr(spec, "dcp_sharded", False) else 1)


def reach(spec: Any, kind: str) -> int:
    """How many of the tokens before the next one a group needs at most; 0: all of them."""
    if kind == "sliding_window":
        return max(1, int(spec.sliding_window) - 1 + int(getattr(spec, "extra_retained_tokens", 0)))
    if kind == "chunked_local_attention":
        return max(1, int(spec.attention_chunk_size) - 1)
    return 1 if kind in STATE else 0

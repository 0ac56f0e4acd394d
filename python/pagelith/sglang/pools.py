"""Host pools as objects: the mapping from the bytes of a pool's page to objects and their keys.

A pool returns the memory of a page (`get_page_buffer_meta`). At registration it is queried once for
the number of pieces of a page and their lengths. A pool that fails then is refused, with the flag
that is the remedy. Names are those of docs/names.md.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pagelith

from ..settings import joined

logger = logging.getLogger(__name__)

_HASH = re.compile("[0-9a-f]{64}")
# Draft state is stored in the pool of the same kind, with another role.
DRAFTS = {"draft": "kv", "draft_indexer": "indexer", "draft_swa": "swa"}

Pieces = list[tuple[int, int]]


def page_of(key: str) -> bytes | str:
    """SGLang's page hash as a store's page: 64 digits are 32 bytes; any other text is hashed."""
    return bytes.fromhex(key) if _HASH.fullmatch(key) else key


def text_of(name: Any) -> str:
    """A pool's name, which may be a member of an enumeration."""
    return str(getattr(name, "value", name))


def has_heads(host: Any) -> bool:
    """Whether a pool has K and V per head, according to its class: MHA and related."""
    return any(kind.__name__ == "MHATokenToKVPoolHost" for kind in type(host).__mro__)


def splits_layers(host: Any) -> bool:
    """Whether each rank of context parallelism has its own layers in a pool."""
    return bool(getattr(host, "_layer_shard_enabled", False))


@dataclass(frozen=True)
class Placement:
    """The position of this rank in each kind of parallelism."""

    tp: tuple[int, int]
    pp: tuple[int, int]
    cp: tuple[int, int]
    # All ranks have the same bytes in `kv` and in pools derived from it.
    replicated: bool
    # Number of head groups into which each rank's heads are split, and their number over all ranks;
    # 0 if not split.
    heads: int = 0
    heads_of: int = 0
    # Each rank of context parallelism has its own layers (--enable-dsa-cache-layer-split).
    layers_split: bool = False

    def shard(self, sliced: bool) -> str:
        """The name of this rank's slice. `sliced`: tensor parallelism slices the bytes.

        Bytes that it does not slice are equal on all ranks of context parallelism, and SGLang has
        one of them write: they have one name, unless the ranks split the layers.
        """
        slices = [*[("tp", self.tp)] * sliced, ("pp", self.pp), *[("cp", self.cp)] * (sliced or self.layers_split)]
        named = "".join(f".{name}{rank}of{of}" for name, (rank, of) in slices if of > 1)
        return f"rank{named}" if sliced or named else "whole"


@dataclass(frozen=True)
class Component:
    """One object of a pool's page."""

    name: str
    shard: str
    # The indices of its pieces among those that the pool returns for a page.
    pieces: tuple[int, ...]
    bytes: int


class Pool:
    """A registered host pool."""

    def __init__(self, name: str, host: Any, where: Placement) -> None:
        self.name = name
        self.host = host
        self.slots = int(getattr(host, "page_size", 1) or 1)
        self.sliced = not where.replicated or self.name == "mamba" or has_heads(host)
        self._split = where.heads if where.heads and has_heads(host) else 0
        lengths = [length for _, length in self._pieces_of_first_page()]
        self.components = self._components(lengths, where)
        self._pieces = len(lengths)

    def _pieces_of_first_page(self) -> Pieces:
        import torch

        try:
            return self._pieces_at(torch.arange(self.slots, dtype=torch.int64))
        except Exception as error:
            layout = getattr(self.host, "layout", None)
            raise ValueError(
                f"pool {self.name!r} ({type(self.host).__name__}, layout {layout!r}) does not report the memory of its pages: {error}."
                " Pass --hicache-mem-layout page_first (or page_first_direct), or disable the feature that adds the pool:"
                " without its bytes no page can be restored."
            ) from error

    def _pieces_at(self, indices: Any) -> Pieces:
        """All pieces of the pages at `indices`, in the pool's order."""
        if self._split:
            addresses, lengths = self.host.get_split_heads_page_buffer_meta(indices, self._split)
        else:
            addresses, lengths = self.host.get_page_buffer_meta(indices)
        return list(zip(addresses, lengths, strict=True))

    def _components(self, lengths: list[int], where: Placement) -> tuple[Component, ...]:
        count, shard = len(lengths), where.shard(self.sliced)
        taken: list[tuple[str, str, range]]
        if self._split:
            # K and V of each head group.
            first = where.tp[0] * self._split
            layers = _layers(self.host)
            heads = [f"heads{first + n}of{where.heads_of}.layers{layers[0]}to{layers[1]}" for n in range(self._split)]
            taken = [(name, heads[at // 2], range(at, at + 1)) for at, name in enumerate(["k", "v"] * self._split)]
        elif has_heads(self.host) and count % 2 == 0:
            # K and V alternate, for the whole page or for each layer.
            taken = [("k", shard, range(0, count, 2)), ("v", shard, range(1, count, 2))]
        elif self.name == "mamba":
            names = [f"conv_{n}" for n in range(count)]
            if getattr(self.host, "temporal_state_elem_size", 1) > 0:
                names = ["temporal", *names[:-1]]
            taken = [(name, shard, range(at, at + 1)) for at, name in enumerate(names)]
        else:
            name = "k" if self.name in ("kv", "draft") else "data"
            taken = [(name, shard, range(count))]
        return tuple(Component(name, of, tuple(at), sum(lengths[i] for i in at)) for name, of, at in taken)

    def spans(self) -> list[tuple[int, int]]:
        """The memory of all pages, by address and length; empty if the pool does not report its
        size."""
        import torch

        size = int(getattr(self.host, "size", 0) or 0)
        if size < self.slots:
            return []
        try:
            ends = [self._pieces_at(torch.arange(start, start + self.slots, dtype=torch.int64)) for start in (0, size - self.slots)]
        except Exception:
            # Without a registration, reads only cost more.
            logger.warning("pagelith: pool %r does not report the memory of its last page, so it is not registered", self.name, exc_info=True)
            return []
        return joined((min(a, b), abs(b - a) + length) for (a, length), (b, _) in zip(*ends, strict=True))

    def facts(self) -> tuple[str, str]:
        """What the bytes depend on: two servers that differ here share no page."""
        kinds = [getattr(self.host, name, "") for name in ("dtype", "temporal_dtype", "conv_dtype", "indexer_dtype")]
        lengths = ",".join(f"{c.name}={c.bytes}" for c in self.components)
        # The layout on the device, since pages are copied unchanged: orders of heads and tokens may
        # have equal lengths.
        of_device = getattr(getattr(self.host, "device_pool", None), "kv_cache_layout", "")
        return f"pool:{self.name}", f"{getattr(self.host, 'layout', '')} {of_device} {' '.join(map(str, kinds))} {lengths}"

    def keys(self, namespace: pagelith.Namespace) -> list[pagelith.Key]:
        """A key template, without a page, for each component."""
        pool = DRAFTS.get(self.name, self.name)
        draft = self.name in DRAFTS
        return [
            pagelith.Key(namespace, bytes(32), pool=pool, component=c.name, draft=draft, shard=c.shard)
            for c in self.components
        ]

    def memory(self, indices: Any, pages: int) -> list[list[Pieces]]:
        """The memory of each component of each page."""
        named = self._pieces_at(indices)
        if len(named) != pages * self._pieces:
            raise ValueError(f"pool {self.name!r} names {len(named)} pieces for {pages} pages of {self._pieces}")
        starts = range(0, len(named), self._pieces)
        return [[[named[start + at] for at in c.pieces] for c in self.components] for start in starts]


def _layers(host: Any) -> tuple[int, int]:
    first = int(getattr(host, "start_layer", 0) or 0)
    return first, first + int(host.layer_num)


def of_pages(keys: Sequence[pagelith.Key], pages: Sequence[bytes | str]) -> list[pagelith.Key]:
    """The keys of each page, page by page."""
    columns = [key.on_pages(pages) for key in keys]
    return [key for row in zip(*columns, strict=True) for key in row]

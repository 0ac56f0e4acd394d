"""Where the bytes of a block lie, over all layers of a pool.

vLLM gives each layer's cache as a tensor whose first axis is blocks (or parts of blocks, where the attention kernel's are smaller). How
far apart they are, and what lies between, is the layout's business: here it is read from shapes and strides alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..settings import joined
from .pools import Object


@dataclass(frozen=True)
class Layer:
    """One layer's part of a block: `pieces` (offset, length) of contiguous bytes behind `base + block * stride`."""

    base: int
    stride: int
    pieces: tuple[tuple[int, int], ...]

    @staticmethod
    def of(cache: Any, blocks: int) -> "Layer":
        parts, rest = divmod(cache.shape[0], blocks)
        if parts < 1 or rest:
            raise ValueError(f"pagelith: a cache of shape {tuple(cache.shape)} cannot be divided into {blocks} blocks")
        width = cache.element_size()
        axes = [(parts, cache.stride(0) * width), *zip(cache.shape[1:], (step * width for step in cache.stride()[1:]), strict=True)]
        return Layer(int(cache.data_ptr()), parts * cache.stride(0) * width, pieces(axes, width))

    @property
    def bytes(self) -> int:
        return sum(length for _, length in self.pieces)


def pieces(axes: Sequence[tuple[int, int]], width: int) -> tuple[tuple[int, int], ...]:
    """The contiguous runs of what has these axes (size, stride in bytes) and elements of this width, in the order of addresses."""
    run, outer = width, []
    for size, stride in sorted((axis for axis in axes if axis[0] > 1), key=lambda axis: axis[1]):
        if stride == run:
            run *= size
        else:
            outer.append((size, stride))
    if len(outer) > 0 and any(stride < run for _, stride in outer):
        raise ValueError(f"pagelith: parts of a cache with axes {list(axes)} overlap")
    offsets = [0]
    for size, stride in reversed(outer):
        offsets = [offset + n * stride for offset in offsets for n in range(size)]
    assert len(offsets) * run == width * prod(size for size, _ in axes)
    return tuple((offset, run) for offset in offsets)


class InPlace:
    """Caches in host memory: the store reads and writes them where they are."""

    copies = False

    def __init__(self, pools: Sequence[Sequence[Sequence[Any]]], blocks: int) -> None:
        # Threads may read them for as long as this is there.
        self._caches = pools
        # By pool and group, the layers.
        self._pools = [[[Layer.of(cache, blocks) for cache in caches] for caches in groups] for groups in pools]
        self._blocks = blocks
        # Objects that one call may have: a call of any size is one batch.
        self.at_once = blocks * len(pools)

    def spans(self) -> list[tuple[int, int]]:
        """Where all of it lies."""
        layers = (layer for groups in self._pools for layers in groups for layer in layers)
        return joined((of.base, of.stride * (self._blocks - 1) + sum(of.pieces[-1])) for of in layers)

    def lent(self, objects: Sequence[Object]) -> list[list[tuple[int, int]]]:
        """Of each object its memory, piece after piece; what lies side by side is one."""
        return [self._of(one) for one in objects]

    out = into = lent

    def told(self) -> Any:
        """What a thread waits for before it touches the caches: nothing runs here behind its call."""
        return None

    def landed(self, objects: Sequence[Object]) -> None:
        """What was read is where it belongs."""

    def _of(self, one: Object) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for block, layers in zip(one.blocks, self._pools[one.pool], strict=True):
            for layer in layers:
                start = layer.base + block * layer.stride
                for offset, length in layer.pieces:
                    if found and sum(found[-1]) == start + offset:
                        found[-1] = (found[-1][0], found[-1][1] + length)
                    else:
                        found.append((start + offset, length))
        return found

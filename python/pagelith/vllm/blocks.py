"""The memory of a block, over all layers of a pool.

vLLM passes each layer's cache as a tensor whose first axis is blocks (or parts of blocks, if the
attention kernel's are smaller). The distances and gaps between them depend on the layout; they are
derived from shapes and strides alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from ..devices import BoundDevice
from ..settings import joined
from .pools import Object


@dataclass(frozen=True)
class Layer:
    """One layer's part of a block: `pieces` (offset, length) of contiguous bytes from `base + block
    * stride` on."""

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
    """The contiguous ranges of a tensor with these axes (size, stride in bytes) and element width,
    in address order."""
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
    """Caches in host memory, which the store reads and writes directly."""

    copies = False

    def __init__(self, pools: Sequence[Sequence[Sequence[Any]]], blocks: int) -> None:
        # Keeps the tensors alive, since threads may access their memory.
        self._caches = pools
        # The layers, by pool and group.
        self._pools = [[[Layer.of(cache, blocks) for cache in caches] for caches in groups] for groups in pools]
        self._blocks = blocks
        # Bytes of an object of each pool.
        self.bytes = [sum(layer.bytes for layers in groups for layer in layers) for groups in self._pools]
        # Most objects per call: a call of any size is one batch.
        self.at_once = blocks * len(pools)

    def spans(self) -> list[tuple[int, int]]:
        """All memory of the caches."""
        layers = (layer for groups in self._pools for layers in groups for layer in layers)
        return joined((of.base, of.stride * (self._blocks - 1) + sum(of.pieces[-1])) for of in layers)

    def source_ranges(self, objects: Sequence[Object]) -> list[list[Any]]:
        """For each object its memory ranges, with adjacent ranges joined."""
        return [self._of(one) for one in objects]

    destination_ranges = source_ranges

    def ready_event(self) -> Any:
        """An event to wait for before accessing the caches: none, since operations on host memory
        are synchronous."""
        return None

    def finish_read(self, objects: Sequence[Object]) -> None:
        """Called after a read: the bytes are in place already."""

    def call_arguments(self, after: Any) -> dict[str, Any]:
        """Further arguments of a call of the store, which accesses the caches after this event."""
        return {}

    def settle(self) -> None:
        """Called after a failed load, and before vLLM releases the caches: nothing accesses them by
        calls that have returned."""

    def end(self) -> None:
        """The engine ends."""

    def _of(self, one: Object) -> list[Any]:
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


class OnDevice(InPlace):
    """Caches in memory of a device, which the store copies to and from, on streams of its own.

    For use by one thread at a time, whose stream is not that of the computation.
    """

    def __init__(self, pools: Sequence[Sequence[Sequence[Any]]], blocks: int, device: BoundDevice) -> None:
        super().__init__(pools, blocks)
        self._device, self._stream = device, device.stream()

    def spans(self) -> list[tuple[int, int]]:
        """No memory of the host."""
        return []

    def ready_event(self) -> Any:
        """An event: all operations submitted so far, also those that zero new blocks."""
        return self._device.ready()

    def call_arguments(self, after: Any) -> dict[str, Any]:
        self._stream.wait_event(after)
        return {"stream": self._stream}

    def settle(self) -> None:
        self._device.settle()

    def end(self) -> None:
        self._device.end()

    def _of(self, one: Object) -> list[Any]:
        return [(self._device.handle, *piece) for piece in super()._of(one)]

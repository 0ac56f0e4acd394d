"""Caches in a device's memory: copied by torch through host memory, pinned where the device can.

Not run with a device yet: under vLLM on the CPU, with the copies within host memory (python/clients/test_vllm.py).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .pools import Object


class Staged:
    """Host memory for `at_once` objects, a row each, which one thread at a time may use: the layers' parts of a block lie side by side."""

    copies = True

    def __init__(self, pools: Sequence[Sequence[Sequence[Any]]], blocks: int, most_bytes: int) -> None:
        # A block is one row of bytes of each, in the order of its axes, whatever the layout. By pool and group.
        self._pools = [
            [[cache.view(torch.uint8).unflatten(0, (blocks, -1)) for cache in caches] for caches in groups] for groups in pools
        ]
        self._bytes = [sum(cache[0].numel() for caches in groups for cache in caches) for groups in self._pools]
        most = max(self._bytes)
        self.at_once = min(most_bytes // most, blocks)
        if self.at_once < 1:
            raise ValueError(f"pagelith: 'staging_bytes' is {most_bytes}, but a block of all layers of a pool has {most} bytes: pass at least that")
        device = self._pools[0][0][0].device
        self._host = torch.empty((self.at_once, most), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = device

    def out(self, objects: Sequence[Object]) -> list[list[tuple[int, int]]]:
        """Copy these blocks to host memory; behind what the current stream does."""
        for cache, rows, at, blocks in self._parts(objects):
            part = cache.index_select(0, self._rows(blocks)).reshape(len(blocks), -1)
            # Not asynchronous: it is the store's to read when this returns.
            self._host[rows, at : at + part.shape[1]].copy_(part)
        return self.into(objects)

    def spans(self) -> list[tuple[int, int]]:
        """Where all of it lies."""
        return [(self._host.data_ptr(), self._host.numel())]

    def into(self, objects: Sequence[Object]) -> list[list[tuple[int, int]]]:
        """Host memory for these blocks."""
        found: list[list[tuple[int, int]]] = [[] for _ in objects]
        for row, at in enumerate(_by_pool(objects)):
            found[at] = [(self._host[row].data_ptr(), self._bytes[objects[at].pool])]
        return found

    def landed(self, objects: Sequence[Object]) -> None:
        """Copy what was read to where it belongs; it is there when this returns."""
        for cache, rows, at, blocks in self._parts(objects):
            part = self._host[rows, at : at + cache[0].numel()].contiguous().to(self._device)
            cache.index_copy_(0, self._rows(blocks), part.reshape(len(blocks), *cache.shape[1:]))
        if self._device.type != "cpu":
            torch.accelerator.current_stream(self._device).synchronize()

    def told(self) -> Any:
        """What a thread waits for before it touches the caches: all that the device was told so far."""
        if self._device.type == "cpu":
            return None
        event = torch.Event(self._device)
        event.record()
        return event

    def _parts(self, objects: Sequence[Object]) -> Iterator[tuple[Any, slice, int, list[int]]]:
        """Each layer's cache with the rows of its objects, where in a row its part begins, and the blocks."""
        order, row = _by_pool(objects), 0
        while row < len(order):
            pool = objects[order[row]].pool
            of = [objects[at] for at in order[row:] if objects[at].pool == pool]
            at = 0
            for n, caches in enumerate(self._pools[pool]):
                for cache in caches:
                    yield cache, slice(row, row + len(of)), at, [one.blocks[n] for one in of]
                    at += cache[0].numel()
            row += len(of)

    def _rows(self, blocks: Sequence[int]) -> Any:
        return torch.tensor(list(blocks), dtype=torch.int64, device=self._device)


def _by_pool(objects: Sequence[Object]) -> list[int]:
    """Which object each row has: those of a pool are rows one behind the other, so that a copy takes them at once."""
    return sorted(range(len(objects)), key=lambda at: objects[at].pool)

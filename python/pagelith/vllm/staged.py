"""Caches in device memory that the store cannot access: torch copies them through host memory,
which is pinned if the device supports that.

Not run with a device yet. It is tested under vLLM on the CPU, where the copies are within host
memory (python/clients/test_vllm.py).
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .pools import Object


class Staged:
    """Host memory for `at_once` objects, one row each, for use by one thread at a time. In a row,
    the layers' parts are adjacent."""

    copies = True

    def __init__(self, pools: Sequence[Sequence[Sequence[Any]]], blocks: int, most_bytes: int) -> None:
        # By pool and group, each cache viewed as one row of bytes per block, in the order of its
        # axes, for any layout.
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

    def source_ranges(self, objects: Sequence[Object]) -> list[list[tuple[int, int]]]:
        """Copy these blocks to host memory, in order with the current stream."""
        for cache, rows, at, blocks in self._parts(objects):
            part = cache.index_select(0, self._rows(blocks)).reshape(len(blocks), -1)
            # Synchronous: the store reads the bytes when this returns.
            self._host[rows, at : at + part.shape[1]].copy_(part)
        return self.destination_ranges(objects)

    def spans(self) -> list[tuple[int, int]]:
        """All host memory of the rows."""
        return [(self._host.data_ptr(), self._host.numel())]

    def destination_ranges(self, objects: Sequence[Object]) -> list[list[tuple[int, int]]]:
        """Host memory for these blocks."""
        found: list[list[tuple[int, int]]] = [[] for _ in objects]
        for row, at in enumerate(_by_pool(objects)):
            found[at] = [(self._host[row].data_ptr(), self._bytes[objects[at].pool])]
        return found

    def finish_read(self, objects: Sequence[Object]) -> None:
        """Copy the bytes that were read to the device; the copy is complete when this returns."""
        for cache, rows, at, blocks in self._parts(objects):
            part = self._host[rows, at : at + cache[0].numel()].contiguous().to(self._device)
            cache.index_copy_(0, self._rows(blocks), part.reshape(len(blocks), *cache.shape[1:]))
        if self._device.type != "cpu":
            torch.accelerator.current_stream(self._device).synchronize()

    def call_arguments(self, after: Any) -> dict[str, Any]:
        """Wait for this event; the store then reads or writes host memory."""
        if after is not None:
            after.synchronize()
        return {}

    def settle(self) -> None:
        """Torch's copies have ended already."""

    def end(self) -> None:
        """The engine ends."""

    def ready_event(self) -> Any:
        """An event to wait for before accessing the caches: the completion of all operations
        submitted so far."""
        if self._device.type == "cpu":
            return None
        event = torch.Event(self._device)
        event.record()
        return event

    def _parts(self, objects: Sequence[Object]) -> Iterator[tuple[Any, slice, int, list[int]]]:
        """For each layer's cache: the rows of its objects, the offset of its part in a row, and the
        blocks."""
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
    """The object of each row: objects of the same pool have consecutive rows, so that one copy
    handles them."""
    return sorted(range(len(objects)), key=lambda at: objects[at].pool)

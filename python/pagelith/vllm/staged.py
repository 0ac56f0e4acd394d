"""Caches in a device's memory: copied by torch through host memory, pinned where the device can.

Not run with a device yet: under vLLM on the CPU, with the copies within host memory (python/clients/test_vllm.py).
"""

from collections.abc import Sequence
from typing import Any

import torch


class Staged:
    """Host memory for `at_once` blocks, which one thread at a time may use: the layers' parts of a block lie side by side in it."""

    def __init__(self, caches: Sequence[Any], blocks: int, most_bytes: int) -> None:
        # A block is one row of bytes of each, in the order of its axes, whatever the layout.
        self._caches = [cache.view(torch.uint8).unflatten(0, (blocks, -1)) for cache in caches]
        self._lengths = [cache[0].numel() for cache in self._caches]
        self.bytes = sum(self._lengths)
        self.at_once = min(most_bytes // self.bytes, blocks)
        if self.at_once < 1:
            raise ValueError(f"pagelith: 'staging_bytes' is {most_bytes}, and a block of all layers has {self.bytes} bytes: give it at least that")
        device = self._caches[0].device
        self._host = torch.empty((self.at_once, self.bytes), dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = device

    def out(self, blocks: Sequence[int]) -> list[list[tuple[int, int]]]:
        """Copy these blocks to host memory; behind what the current stream does."""
        rows, at = self._rows(blocks), 0
        for cache, length in zip(self._caches, self._lengths, strict=True):
            part = cache.index_select(0, rows).reshape(len(blocks), -1)
            # Not asynchronous: it is the store's to read when this returns.
            self._host[: len(blocks), at : at + length].copy_(part)
            at += length
        return self.into(blocks)

    def spans(self) -> list[tuple[int, int]]:
        """Where all of it lies."""
        return [(self._host.data_ptr(), self._host.numel())]

    def into(self, blocks: Sequence[int]) -> list[list[tuple[int, int]]]:
        """Host memory for these blocks."""
        return [[(self._host[at].data_ptr(), self.bytes)] for at in range(len(blocks))]

    def landed(self, blocks: Sequence[int]) -> None:
        """Copy what was read to where it belongs; it is there when this returns."""
        rows, at = self._rows(blocks), 0
        for cache, length in zip(self._caches, self._lengths, strict=True):
            part = self._host[: len(blocks), at : at + length].contiguous().to(self._device)
            cache.index_copy_(0, rows, part.reshape(len(blocks), *cache.shape[1:]))
            at += length
        if self._device.type != "cpu":
            torch.accelerator.current_stream(self._device).synchronize()

    def told(self) -> Any:
        """What a thread waits for before it touches the caches: all that the device was told so far."""
        if self._device.type == "cpu":
            return None
        event = torch.Event(self._device)
        event.record()
        return event

    def _rows(self, blocks: Sequence[int]) -> Any:
        return torch.tensor(list(blocks), dtype=torch.int64, device=self._device)

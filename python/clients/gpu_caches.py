"""Measurements of `gpu.py` with the caches of vLLM's connector: blocks of many layers, which the
store copies to and from the GPU by itself, or torch does."""

import collections
import os
import statistics
import time

import torch

import pagelith
from pagelith.devices import bound
from pagelith.vllm.blocks import OnDevice
from pagelith.vllm.pools import Object
from pagelith.vllm.staged import Staged

# Timeout of a call, in seconds.
LONG = 120
LAYERS = 16
# Who copies: in the connector's terms `device_pieces` true and false.
WAYS = ("store", "torch")


class CachesBench:
    """Blocks of one size, over all layers: the first half of the caches is stored, and read into the
    second half."""

    def __init__(self, device, block_bytes, blocks):
        self.device, self.block_bytes, self.blocks = device, block_bytes, blocks
        shape = (2 * blocks, 2, 8, block_bytes // LAYERS // 16)
        self.caches = [torch.zeros(shape, dtype=torch.uint8, device=device.device) for _ in range(LAYERS)]
        self.figures = collections.defaultdict(dict)
        self.failed, self.compared, self.wrong, self.missing = {}, 0, 0, 0

    def run(self, folder, rounds, goes_on):
        for turn in filter(goes_on, range(rounds)):
            for way in WAYS if turn % 2 else reversed(WAYS):
                try:
                    self.turn(os.path.join(folder, f"caches-{way}-{turn}"), way, turn)
                except Exception as error:
                    self.failed.setdefault(way, f"{type(error).__name__}: {error}")
                    self.device.forget_error()

    def turn(self, folder, way, turn):
        ssd = {"dirs": [folder], "bytes": (self.block_bytes * self.blocks * 2 >> 20 << 20) + (256 << 20)}
        keys = [pagelith.Key(pagelith.Namespace("gpu"), f"block {n}") for n in range(self.blocks)]
        with pagelith.Store({"ssd": ssd, "dram": {"bytes": "256MiB", "pin": "cuda"}}) as store:
            memory = self.memory(store, way)
            # On the stream of the computation, which saves and loads wait for.
            for cache in self.caches:
                cache[: self.blocks].random_(0, 256)
            self.timed(way, "save", turn, lambda: self.save(store, memory, keys))
            store.flush(timeout=LONG)
            for cache in self.caches:
                cache[self.blocks :].zero_()
            outcomes = self.timed(way, "load", turn, lambda: self.load(store, memory, keys))
        self.compare(way, outcomes)

    def memory(self, store, way):
        if way == "torch":
            return Staged([[self.caches]], 2 * self.blocks, 256 << 20)
        return OnDevice([[self.caches]], 2 * self.blocks, bound(store, {self.device.device}, True, None, self.block_bytes))

    def batches(self, memory, keys, first):
        """Keys and blocks, as many as a call of the connector has."""
        most = min(memory.at_once, 128)
        for start in range(0, self.blocks, most):
            part = keys[start : start + most]
            yield part, [Object(0, 0, 0, (first + start + n,)) for n in range(len(part))]

    def save(self, store, memory, keys):
        for part, objects in self.batches(memory, keys, 0):
            after = None if memory.copies else memory.ready_event()
            outcomes = store.put(part, memory.source_ranges(objects), timeout=LONG, **memory.call_arguments(after))
            assert all(outcomes), f"blocks were not put: {[one.error for one in outcomes if not one][0]}"

    def load(self, store, memory, keys):
        found = []
        for part, objects in self.batches(memory, keys, self.blocks):
            after = None if memory.copies else memory.ready_event()
            found += store.get(part, memory.destination_ranges(objects), timeout=LONG, **memory.call_arguments(after))
            memory.finish_read(objects)
            memory.settle()
        return found

    def timed(self, way, what, turn, action):
        begun = time.perf_counter()
        done = action()
        self.figures[way, what][turn] = self.block_bytes * self.blocks / 1e9 / (time.perf_counter() - begun)
        return done

    def compare(self, way, outcomes):
        """Count blocks that are missing, and blocks that differ on the GPU."""
        differ = torch.zeros(self.blocks, dtype=torch.bool, device=self.device.device)
        for cache in self.caches:
            differ |= (cache[: self.blocks] != cache[self.blocks :]).flatten(1).any(dim=1)
        hits = torch.tensor([bool(one) for one in outcomes], device=self.device.device)
        self.compared += int(hits.sum())
        self.wrong += int((differ & hits).sum())
        self.missing += int((~hits).sum())

    def median(self, way, what):
        return statistics.median(self.figures[way, what].values()) if self.figures.get((way, what)) else None

    def saved(self):
        figures = {f"{what}, {way}": {"rounds": turns, "median": self.median(way, what)} for (way, what), turns in self.figures.items()}
        names = ("block_bytes", "compared", "wrong", "missing", "failed")
        return {**{name: getattr(self, name) for name in names}, "way": "caches", "gb_s": figures}


def table(benches):
    """All results, as Markdown."""
    lines = ["| block | layers | copied by | save, GB/s | load, GB/s |", "| ---: | ---: | --- | ---: | ---: |"]
    for bench in benches:
        for way in WAYS:
            figures = [bench.median(way, what) for what in ("save", "load")]
            if None not in figures:
                lines.append(f"| {bench.block_bytes >> 10} KiB | {LAYERS} | {way} | {' | '.join(f'{one:.2f}' for one in figures)} |")
    lines.append("")
    lines += [f"not done: {bench.block_bytes >> 10} KiB, caches copied by {way}: {why}" for bench in benches for way, why in bench.failed.items()]
    return "\n".join(lines)

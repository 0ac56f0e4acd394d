"""Stand-ins for what `pagelith.sglang.linker` uses of SGLang and torch, beside those of
`test_sglang_adapter`."""

import concurrent.futures
import sys
import types
from dataclasses import dataclass, replace
from typing import Any

import device_stand_ins
import test_sglang_adapter as sglang


class UnifiedCacheLinker:
    """SGLang's class: the events of the scheduler's stream and of the forward pass."""

    def record_offload_ready(self):
        module = sys.modules["torch"].get_device_module("cuda")
        slots, written = module.Event(), module.Event()
        slots.record()
        written.record(self.forward_stream)
        return [slots, written]


class LayerWiseLoadCounter:
    def __init__(self, num_layers):
        self.num_layers, self.futures, self.last = num_layers, {}, -1

    def update_producer(self):
        self.last += 1
        self.futures[self.last] = [concurrent.futures.Future() for _ in range(self.num_layers)]
        return self.last

    def complete(self, index, layer):
        self.futures[index][layer].set_result(None)

    def fail(self, index, error):
        for future in self.futures[index]:
            if not future.done():
                future.set_exception(error)

    def finish(self, index):
        # The loading thread still uses them.
        failed = [future.exception() for future in self.futures[index]]
        del self.futures[index]
        return not any(failed)

    def reset(self):
        self.futures.clear()


@dataclass
class Transfer:
    """Pages of a pool; without slots for a lookup."""

    name: str
    keys: list
    first: int | None
    hit_policy: str = sglang.PoolHitPolicy.ALL_PAGES
    host_indices: Any = None


class Entry:
    """A device pool with two buffers a layer, all first ones before all second ones."""

    def __init__(self, driver, name, layers, length, pages):
        self.name, self.page_size, self.device_pool = name, sglang.PAGE, None
        address = driver.fake.fake_device_allocate(0, 2 * layers * pages * length)
        starts = [address + n * pages * length for n in range(2 * layers)]
        self.buffer_meta = [[(start, length // sglang.PAGE, length) for start in starts]]
        self.layer_mapping = {layer: (layer, layers + layer) for layer in range(layers)}
        self.kv_buffer = [types.SimpleNamespace(device=driver.device, dtype="bf16", shape=(pages * sglang.PAGE, length // sglang.PAGE))]
        self.length = length

    def address(self, layer, part, page):
        return self.buffer_meta[0][self.layer_mapping[layer][part]][0] + page * self.length

    def prepare_locations(self, indices):
        return indices.tolist()[:: self.page_size]


class Group:
    """A group of device pools; each has its own slots."""

    def __init__(self, entries, layers, replicated):
        self.entries, self.entry_map = entries, {entry.name: entry for entry in entries}
        self.sources = {name: name for name in self.entry_map}
        self.num_layers, self.rank_replicated = layers, replicated

    def resolve_transfers(self, transfers, allow_partial=False, allow_missing_kv=False):
        slots = lambda one: None if one.first is None else sglang.slots(one.first, len(one.keys))  # noqa: E731
        return [replace(one, host_indices=slots(one)) for one in transfers if one.keys]


class Joined:
    """Slots that a kernel of the scheduler's stream joins, later."""

    def __init__(self, driver, parts):
        slots = [slot for part in parts for slot in part]
        self.driver, self.count = driver, len(slots)
        self.address = driver.fake.fake_device_allocate(0, self.count)
        for at, slot in enumerate(slots):
            driver.fill(self.address + at, 1, slot)

    def tolist(self):
        return list(self.driver.read(self.address, self.count))


def distributed(rank, ranks):
    """`torch.distributed` of this rank."""
    yes = lambda: True  # noqa: E731
    return types.SimpleNamespace(is_available=yes, is_initialized=yes, get_rank=lambda group: rank, get_world_size=lambda group: ranks)


def forward(driver):
    """The stream of the forward pass."""
    return device_stand_ins.Stream(driver.fake)


def install(driver):
    torch = sys.modules["torch"]
    torch.get_device_module = driver.torch.get_device_module
    torch.cat = lambda parts: Joined(driver, parts)
    torch.distributed = distributed(0, 1)
    sglang.stand_in("sglang.srt.mem_cache.unified_cache")
    sglang.stand_in(
        "sglang.srt.mem_cache.unified_cache.unified_cache_linker",
        LayerWiseLoadCounter=LayerWiseLoadCounter, UnifiedCacheLinker=UnifiedCacheLinker,
    )

"""Stores, loads and look-ups of LMCache's L2 adapters, made by its own factory: Pagelith's beside LMCache's for files, in Python, in
C++ and in C++ with O_DIRECT, in turns. GB/s and CPU-seconds per GB, and keys looked up a second.

    python compare_lmcache.py DIR [--sizes 65536,1048576] [--rounds 3] [--adapters pagelith,fs]

DIR is on the drive that is meant. Several tasks of 64 objects are under way at a time. Loads are by an adapter that was made anew; before
them the page cache is dropped (as root), through which two of the peers read. Medians of the rounds; ratios hold within a run.
"""

import argparse
import os
import select
import shutil
import statistics
import time

import lmcache_parts as parts
import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.config import L1MemoryManagerConfig
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.distributed.memory_manager import L1MemoryManager
from lmcache.v1.platform import consume_fd

BATCH, UNDER_WAY = 64, 4


def pagelith(folder):
    ssd = {"dirs": [folder], "bytes": "12GiB"}
    return parts.plugin(store={"dram": {"bytes": "256MiB", "promote": "never"}, "index": {"max_objects": 1000000}, "ssd": ssd}, put_wait_ms=60000)


ADAPTERS = {
    "pagelith": pagelith,
    "fs": lambda folder: {"type": "fs", "base_path": folder},
    "fs_native": lambda folder: {"type": "fs_native", "base_path": folder, "num_workers": 4},
    "fs_native, O_DIRECT": lambda folder: {"type": "fs_native", "base_path": folder, "num_workers": 4, "use_odirect": True},
}


def make(spec):
    return create_l2_adapter(get_l2_adapter_config_class(spec["type"]).from_dict(spec))


class Clock:
    """Wall time and CPU time of this process, its threads with it."""

    def __enter__(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu


def run(fd, submit, take, batches):
    """Submit a task for each batch, some at a time; what each said, in the order of the batches."""
    poller, waiting, under_way, said = select.poll(), list(enumerate(batches)), {}, {}
    poller.register(fd, select.POLLIN)
    while waiting or under_way:
        while waiting and len(under_way) < UNDER_WAY:
            at, batch = waiting.pop(0)
            under_way[submit(at, batch)] = at
        poller.poll(60000)
        consume_fd(fd)
        for task in list(under_way):
            result = take(task)
            if result is not None:
                said[under_way.pop(task)] = result
    return [said[at] for at in range(len(batches))]


def store(adapter, batches, memory):
    done = {}

    def take(task):
        done.update(adapter.pop_completed_store_tasks())
        return done.pop(task, None)

    submit = lambda at, keys: adapter.submit_store_task(keys, memory[at % len(memory)])  # noqa: E731
    said = run(adapter.get_store_event_fd(), submit, take, batches)
    assert all(result.is_successful() for result in said), "not everything was stored"


def load(adapter, batches, memory):
    submit = lambda at, keys: adapter.submit_load_task(keys, memory[at % len(memory)])  # noqa: E731
    said = run(adapter.get_load_event_fd(), submit, adapter.query_load_result, batches)
    return sum(bits.popcount() for bits in said)


def look(adapter, batches, layouts):
    submit = lambda at, keys: adapter.submit_lookup_and_lock_task(keys, layouts)  # noqa: E731
    said = run(adapter.get_lookup_and_lock_event_fd(), submit, adapter.query_lookup_and_lock_result, batches)
    for keys in batches:
        adapter.submit_unlock(keys)
    return sum(bits.popcount() for bits in said)


def settle(adapter):
    """What was stored is on the drive."""
    if hasattr(adapter, "_store"):
        adapter._store.flush()
    else:
        os.sync()


def one_round(spec_of, folder, size, count, memory, layouts):
    """What an adapter took: (GB/s, CPU-s/GB) of stores and of loads, keys a second."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    keys, others = ([[parts.key(from_ + n * BATCH + at) for at in range(BATCH)] for n in range(count)] for from_ in (0, 1 << 32))
    gigabytes = count * BATCH * size / 1e9
    # As many bytes in each slot as its place says, whichever chunk is in it.
    patterns = [[(slot * BATCH + at) % 251 + 1 for at in range(BATCH)] for slot in range(len(memory))]
    fill(memory, patterns)
    adapter = make(spec_of(folder))
    # As much once before: memory that was never touched costs more than the work.
    store(adapter, others, memory)
    settle(adapter)
    with Clock() as written:
        store(adapter, keys, memory)
        settle(adapter)
    adapter.close()
    adapter = make(spec_of(folder))
    assert load(adapter, others, memory) == count * BATCH
    fill(memory, [[0] * BATCH] * len(memory))
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as caches:
        caches.write("3")
    with Clock() as read:
        here = load(adapter, keys, memory)
    assert here == count * BATCH, f"{here} of {count * BATCH} objects were loaded"
    for objects, bytes_ in list(zip(memory, patterns, strict=True))[: count]:
        assert all(int(parts.view(one).min()) == int(parts.view(one).max()) == byte for one, byte in zip(objects, bytes_, strict=True))
    with Clock() as asked:
        assert look(adapter, keys * 4, layouts) == 4 * count * BATCH
    adapter.close()
    shutil.rmtree(folder, ignore_errors=True)
    speed = [(gigabytes / clock.wall, clock.cpu / gigabytes) for clock in (written, read)]
    return (*speed[0], *speed[1], 4 * count * BATCH / asked.wall)


def fill(memory, patterns):
    for objects, bytes_ in zip(memory, patterns, strict=True):
        for one, byte in zip(objects, bytes_, strict=True):
            parts.view(one).fill_(byte)


def main():
    asked = argparse.ArgumentParser()
    asked.add_argument("dir")
    asked.add_argument("--sizes", default="65536,262144,1048576,4194304")
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--bytes", type=int, default=1 << 30)
    asked.add_argument("--adapters", help="names of them, with / between; all, unless given")
    given = asked.parse_args()
    named = given.adapters.split("/") if given.adapters else list(ADAPTERS)
    print("| object | adapter | store GB/s | CPU-s/GB | load GB/s | CPU-s/GB | look-ups, keys/s |\n| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for size in map(int, given.sizes.split(",")):
        layout = MemoryLayoutDesc(shapes=[torch.Size([2, 8, size // 2048, 64])], dtypes=[torch.bfloat16])
        l1 = L1MemoryManager(L1MemoryManagerConfig(size_in_bytes=UNDER_WAY * BATCH * size + (1 << 20), use_lazy=False, shm_name=""))
        memory = [l1.allocate(layout, BATCH)[1] for _ in range(UNDER_WAY)]
        count = max(1, given.bytes // (BATCH * size))
        rounds = {name: [] for name in named}
        for _ in range(given.rounds):
            for name in named:
                folder = os.path.join(given.dir, name.replace(", ", "_"))
                rounds[name].append(one_round(ADAPTERS[name], folder, size, count, memory, {0: layout}))
        for name, seen in rounds.items():
            middle = [statistics.median(column) for column in zip(*seen)]
            print(f"| {size >> 10} KiB | {name} | {middle[0]:.2f} | {middle[1]:.2f} | {middle[2]:.2f} | {middle[3]:.2f} | {middle[4]:,.0f} |", flush=True)
        for objects in memory:
            l1.free(objects)
        l1.close()


if __name__ == "__main__":
    main()

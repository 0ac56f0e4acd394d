"""The sides of `compare.py` that are LMCache's L2 adapters, created by its own factory: Pagelith's,
and LMCache's for files in Python, in C++, and in C++ with O_DIRECT. Loads use a newly created
adapter.
"""

import os
import select
import shutil
import sys

import lmcache_parts as parts
import torch
from compare_worker import BATCH, Clock, drop_caches, figures, serve
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.config import L1MemoryManagerConfig
from lmcache.v1.distributed.l2_adapters import create_l2_adapter
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.distributed.memory_manager import L1MemoryManager
from lmcache.v1.platform import consume_fd

# Concurrent tasks, as its controllers submit them.
UNDER_WAY = 4


def pagelith(folder):
    ssd = {"dirs": [folder], "bytes": "4GiB"}
    return parts.plugin(store={"dram": {"bytes": "256MiB", "promote": "never"}, "index": {"max_objects": 1000000}, "ssd": ssd}, put_wait_ms=60000)


ADAPTERS = {
    "pagelith": pagelith,
    "fs": lambda folder: {"type": "fs", "base_path": folder},
    "fs_native": lambda folder: {"type": "fs_native", "base_path": folder, "num_workers": 4},
    "fs_native, O_DIRECT": lambda folder: {"type": "fs_native", "base_path": folder, "num_workers": 4, "use_odirect": True},
}


def make(spec):
    return create_l2_adapter(get_l2_adapter_config_class(spec["type"]).from_dict(spec))


def run(fd, submit, take, batches):
    """Submit a task per batch, a limited number at a time; returns the results in the order of the
    batches."""
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
    """Wait until stored objects are on the drive."""
    if hasattr(adapter, "_store"):
        adapter._store.flush()
    else:
        os.sync()


def one_round(spec_of, folder, size, count, memory, layouts):
    """The figures of an adapter: GB/s and CPU-s/GB of stores and of loads, keys per second."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    keys, others = ([[parts.key(from_ + n * BATCH + at) for at in range(BATCH)] for n in range(count)] for from_ in (0, 1 << 32))
    # Each slot contains bytes that depend on the slot, not on its chunk.
    patterns = [[(slot * BATCH + at) % 251 + 1 for at in range(BATCH)] for slot in range(len(memory))]
    fill(memory, patterns)
    adapter = make(spec_of(folder))
    # A run before the measurement: the first access to memory costs more than the work.
    store(adapter, others, memory)
    settle(adapter)
    with Clock() as written:
        store(adapter, keys, memory)
        settle(adapter)
    adapter.close()
    adapter = make(spec_of(folder))
    assert load(adapter, others, memory) == count * BATCH
    fill(memory, [[0] * BATCH] * len(memory))
    drop_caches()
    with Clock() as read:
        here = load(adapter, keys, memory)
    assert here == count * BATCH, f"{here} of {count * BATCH} objects were loaded"
    for objects, bytes_ in list(zip(memory, patterns, strict=True))[: count]:
        assert all(int(parts.view(one).min()) == int(parts.view(one).max()) == byte for one, byte in zip(objects, bytes_, strict=True))
    with Clock() as asked:
        assert look(adapter, keys * 4, layouts) == 4 * count * BATCH
    adapter.close()
    shutil.rmtree(folder, ignore_errors=True)
    return figures(count * BATCH * size, written, read, 4 * count * BATCH, asked)


def fill(memory, patterns):
    for objects, bytes_ in zip(memory, patterns, strict=True):
        for one, byte in zip(objects, bytes_, strict=True):
            parts.view(one).fill_(byte)


def main(size, length, directory):
    layout = MemoryLayoutDesc(shapes=[torch.Size([2, 8, size // 2048, 64])], dtypes=[torch.bfloat16])
    l1 = L1MemoryManager(L1MemoryManagerConfig(size_in_bytes=UNDER_WAY * BATCH * size + (1 << 20), use_lazy=False, shm_name=""))
    memory = [l1.allocate(layout, BATCH)[1] for _ in range(UNDER_WAY)]
    count = max(1, length // (BATCH * size))

    def asked(name):
        return one_round(ADAPTERS[name], os.path.join(directory, name.replace(", ", "_")), size, count, memory, {0: layout})

    serve(list(ADAPTERS), asked)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

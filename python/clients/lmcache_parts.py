"""LMCache's storage manager with one L2 adapter, without a GPU: its flags as for a server, its
memory, its controllers."""

import contextlib
import hashlib
import json
import os
import time

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")

import torch  # noqa: E402
from lmcache.v1.distributed.api import GroupedObjectKeys, MemoryLayoutDesc, ObjectKey, PrefetchTaskSpec  # noqa: E402
from lmcache.v1.distributed.config import parse_args  # noqa: E402
from lmcache.v1.distributed.storage_controllers.store_controller import StoreController  # noqa: E402
from lmcache.v1.distributed.storage_manager import StorageManager  # noqa: E402

MODEL = "a/model"
# Two object groups, as for a model with sliding windows: different layers and types.
LAYOUTS = {
    0: MemoryLayoutDesc(shapes=[torch.Size([2, 4, 64, 256])], dtypes=[torch.bfloat16]),
    1: MemoryLayoutDesc(shapes=[torch.Size([2, 64, 128]), torch.Size([1, 64, 96])], dtypes=[torch.uint8, torch.float32]),
}


def plugin(**params):
    """The JSON of `--l2-adapter`. LMCache's server does not know the model's weights."""
    params = {"revision": "a test", **params}
    return {"type": "plugin", "module_path": "pagelith.lmcache", "class_name": "PagelithL2Adapter", "adapter_params": params}


@contextlib.contextmanager
def manager(*adapters, l1_gb=0.25, flags=()):
    """LMCache's storage manager, created from flags as its server does."""
    said = [*flags, "--l1-size-gb", str(l1_gb), "--eviction-policy", "LRU", "--no-l1-use-lazy"]
    for adapter in adapters:
        said += ["--l2-adapter", json.dumps(adapter)]
    storage = StorageManager(parse_args(said))
    try:
        yield storage
    finally:
        storage.close()


def adapter_of(storage):
    """The adapter itself."""
    ((_, adapter),) = storage.l2_adapters()
    return adapter


def key(chunk, rank=0, world=2, group=0, salt="", model=MODEL):
    """LMCache's key of a chunk, with a hash of 32 bytes, as SHA-256 produces."""
    kv_rank = ObjectKey.ComputeKVRank(world, rank, world, rank)
    return ObjectKey(chunk.to_bytes(32, "little"), model, kv_rank, object_group_id=group, cache_salt=salt)


def rows(chunks, ranks=2, groups=(0, 1), layouts=LAYOUTS, **fields):
    """A request's rows: each group on each rank."""
    return [
        GroupedObjectKeys([key(chunk, rank, ranks, group, **fields) for chunk in chunks], group, layouts[group], -1)
        for group in groups
        for rank in range(ranks)
    ]


def expected(of, length):
    """The bytes of an object, which depend only on its key."""
    said = f"{of.chunk_hash.hex()} {of.model_name} {of.kv_rank} {of.object_group_id} {of.cache_salt}"
    seed = int.from_bytes(hashlib.sha256(said.encode()).digest()[:8], "little") >> 1
    return torch.randint(0, 256, (length,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def view(memory):
    """A memory object's bytes, for reading and writing."""
    return torch.frombuffer(memory.byte_array, dtype=torch.uint8)


def wait(done, seconds=60):
    end = time.monotonic() + seconds
    while not (answer := done()):
        if time.monotonic() > end:
            raise AssertionError("not in time")
        time.sleep(0.002)
    return answer


def _counted(process):
    def counted(self, keys):
        process(self, keys)
        self.processed = getattr(self, "processed", 0) + len(keys)

    return counted


# LMCache does not count keys between the states pending and in flight.
StoreController._process_new_keys = _counted(StoreController._process_new_keys)


def finish(storage, keys):
    """End writing to L1, so that LMCache stores the keys in L2."""
    storage.finish_write(keys)
    storage.finished = getattr(storage, "finished", 0) + len(keys)


def settled(storage):
    """Whether all finished keys were stored, or failed."""
    processed = sum(getattr(controller, "processed", 0) for controller in storage._store_controllers.values())
    flying = sum(state["in_flight_task_count"] for state in storage.report_status()["store_controllers"].values())
    return processed == getattr(storage, "finished", 0) and not flying


def write(storage, requests, settle=True):
    """Write rows into L1, and wait until LMCache has stored them; returns the number of objects
    that fit into L1."""
    written = 0
    for row in requests:
        objects = storage.reserve_write(row.keys, row.layout_desc)
        for of, memory in objects.items():
            view(memory).copy_(expected(of, memory.get_size()))
        finish(storage, list(objects))
        written += len(objects)
    if settle:
        wait(lambda: settled(storage))
    return written


def read(storage, requests, policy="full"):
    """Prefetch rows; returns their bits, which of them came from L2, and the number of objects with
    wrong bytes."""
    handle = storage.submit_prefetch_task(PrefetchTaskSpec(requests, fetching_policy=policy))
    result = wait(lambda: storage.query_prefetch_status(handle))
    wrong = 0
    for row, bits in zip(requests, result.hit_cells, strict=True):
        found = bits.gather(row.keys)
        with storage.read_prefetched_results(found) as objects:
            assert objects is not None, "what was prefetched is not there"
            for of, memory in zip(found, objects, strict=True):
                wrong += not torch.equal(view(memory), expected(of, memory.get_size()))
        storage.finish_read_prefetched(found)
    hits = [bits.get_indices_list() for bits in result.hit_cells]
    return hits, sum(bits.popcount() for bits in result.l2_hit_cells), wrong

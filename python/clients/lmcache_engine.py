"""LMCache in an engine's process, without the engine and without a GPU: its remote backend over its
own host memory, configured as by an engine.

    python lmcache_engine.py write '{"store": ...}'     puts chunks, and ends when they are durable
"""

import asyncio
import contextlib
import json
import os
import sys
import threading

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "CRITICAL")

import torch  # noqa: E402
from lmcache.utils import CacheEngineKey  # noqa: E402
from lmcache.v1.config import LMCacheEngineConfig  # noqa: E402
from lmcache.v1.memory_management import MemoryFormat  # noqa: E402
from lmcache.v1.metadata import LMCacheMetadata  # noqa: E402
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend  # noqa: E402
from lmcache.v1.storage_backend.remote_backend import RemoteBackend  # noqa: E402

CHUNK, CHUNKS = 64, 24
# No engine runs in this process, so only the revision identifies the model.
NAMED = {"module_path": "pagelith.lmcache.connector", "class_name": "PagelithConnector", "revision": "a test"}


def configuration(params, **more):
    extra = {f"remote_storage_plugin.pagelith.{name}": value for name, value in {**NAMED, **params}.items()}
    told = dict(chunk_size=CHUNK, remote_storage_plugins=["pagelith"], remote_serde="naive", max_local_cpu_size=0.25, extra_config=extra)
    return LMCacheEngineConfig.from_defaults(**{**told, **more})


def metadata(worker=0, world=1, heads=8):
    return LMCacheMetadata(
        model_name="a/model", world_size=world, local_world_size=world, worker_id=worker, local_worker_id=worker,
        kv_dtype=torch.bfloat16, kv_shape=(4, 2, CHUNK, heads, 32), chunk_size=CHUNK,
    )


@contextlib.contextmanager
def backend(params, worker=0, world=1, heads=8, **more):
    """LMCache's backend for a remote storage plugin, with its own event loop, as in an engine."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    config, facts = configuration(params, **more), metadata(worker, world, heads)
    memory = LocalCPUBackend(config, facts, dst_device="cpu")
    remote = RemoteBackend(config, facts, loop, memory, "cpu", plugin_name="pagelith")
    try:
        yield remote
    finally:
        remote.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def key(chunk, worker=0, world=1):
    return CacheEngineKey("a/model", world, worker, 1 + chunk * 7919, torch.bfloat16)


def tokens_of(chunk):
    """The tokens of a chunk. The last chunk is incomplete."""
    return CHUNK if chunk < CHUNKS - 1 else CHUNK // 4


def content(chunk, worker=0, heads=8):
    count = 2 * 4 * tokens_of(chunk) * heads * 32 * 2
    seed = torch.Generator().manual_seed(1000 * worker + chunk)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=seed)


def view(memory):
    return torch.frombuffer(memory.byte_array, dtype=torch.uint8)


def allocated(remote, chunk, heads=8):
    """Memory from LMCache for a chunk."""
    shape = torch.Size([2, 4, tokens_of(chunk), heads * 32])
    return remote.local_cpu_backend.allocate([shape], [torch.bfloat16], MemoryFormat.KV_2LTD)


def write(remote, chunks, worker=0, world=1, heads=8):
    """Put chunks from LMCache's memory, and wait until LMCache reports them stored."""
    keys, objects, done = [key(chunk, worker, world) for chunk in chunks], [], threading.Semaphore(0)
    for chunk in chunks:
        memory = allocated(remote, chunk, heads)
        view(memory).copy_(content(chunk, worker, heads))
        objects.append(memory)
    remote.batched_submit_put_task(keys, objects, on_complete_callback=lambda _: done.release())
    for memory in objects:
        memory.ref_count_down()
    for _ in keys:
        assert done.acquire(timeout=60), "not in time"


def read(remote, chunks, worker=0, world=1, heads=8):
    """Whether each chunk was read, and the number of chunks with wrong bytes."""
    got = remote.batched_get_blocking([key(chunk, worker, world) for chunk in chunks])
    wrong = 0
    for chunk, memory in zip(chunks, got, strict=True):
        if memory is not None:
            wrong += not torch.equal(view(memory), content(chunk, worker, heads))
            memory.ref_count_down()
    return [memory is not None for memory in got], wrong


def free_of(remote):
    """Free bytes of LMCache's memory."""
    return remote.local_cpu_backend.memory_allocator.memcheck()


def main(what, params):
    assert what == "write"
    with backend(json.loads(params)) as remote:
        write(remote, range(CHUNKS))
        remote.connection.getWrappedConnector()._store.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])

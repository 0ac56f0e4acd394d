"""The sides of `compare.py` that run under SGLang's cache controller: Pagelith, SGLang's file
backend and Mooncake.

A page is one object (MLA's). For backends that keep pages on the drive, reads use a newly opened
backend; for those in memory, the process that stored the pages. Mooncake's master is started here,
and its CPU time is not counted.
"""

import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import sglang_drive as drive
import sglang_parts as parts
from compare_worker import BATCH, Clock, drop_caches, figures, serve

# Seconds after which Mooncake's master considers a client ended, and lets it attach again with its
# files on the drive.
CLIENT_TTL = 5


class Pagelith:
    def __init__(self, folder, length, ssd, verified=1.0):
        store = {"dram": {"bytes": "256MiB"}, "ssd": {"dirs": [folder], "bytes": "4GiB"}}
        if not ssd:
            store = {"dram": {"bytes": 3 * length, "prefault": True, "verify_ratio": verified}}
        named = {"backend_name": "pagelith", "module_path": "pagelith.sglang", "class_name": "HiCache", "interface_v1": 1}
        self.backend, self.on_drive = "dynamic", ssd
        self.extra = {**named, "store": {**store, "index": {"max_objects": 1000000}}, "put_wait_ms": 60000}

    def settle(self, controller, _keys):
        """Wait until stored pages are on the drive, if the backend uses one."""
        if self.on_drive:
            controller.storage_backend._store.flush()

    def ready(self, _controller, _keys):
        """Wait until pages on the drive can be read."""

    def close(self, controller):
        controller.detach_storage_backend()

    def end(self):
        pass


class File(Pagelith):
    def __init__(self, folder, _length):
        os.makedirs(folder, exist_ok=True)
        os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = folder
        self.backend, self.on_drive, self.extra = "file", True, {}

    def settle(self, _controller, _keys):
        os.sync()


class Mooncake(Pagelith):
    """With its own master. On the drive in its fast configuration: io_uring, a heartbeat each
    second, buckets of one batch."""

    def __init__(self, folder, length, ssd):
        os.makedirs(folder, exist_ok=True)
        port, metrics = free_port(), free_port()
        package = importlib.util.find_spec("mooncake").submodule_search_locations[0]
        command = [f"{package}/mooncake_master", f"--rpc_port={port}", f"--metrics_port={metrics}"]
        command += ["--enable_offload=true", f"--client_ttl={CLIENT_TTL}"] if ssd else []
        self.master = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: answers(port), "Mooncake's master")
        os.environ.update(MC_TCP_BIND_ADDRESS="127.0.0.1", MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS="1", MOONCAKE_OFFLOAD_USE_URING="true")
        os.environ.update(MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT=str(BATCH), MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES=str(2 << 30))
        # A batch of the largest pages is half a GiB.
        os.environ.update(MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=str(12 << 30), MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=str(3 << 30))
        self.backend, self.on_drive, self.filled = "mooncake", ssd, 0
        self.extra = {"master_server_address": f"127.0.0.1:{port}", "metadata_server": "P2PHANDSHAKE", "global_segment_size": 3 * length}
        if ssd:
            self.extra |= {"enable_ssd_offload": True, "ssd_offload_path": folder}

    def objects(self, controller, keys):
        backend = controller.storage_backend
        return [f"{key}_{backend.mla_suffix}_k" for some in keys for key in backend._tag_keys(some)]

    def settle(self, controller, keys):
        if not self.on_drive:
            return
        if not self.filled:
            # It writes only full buckets, and SGLang's warm-up has put one object.
            self.fill(controller, BATCH - 1)
        names, store, filled = self.objects(controller, keys), controller.storage_backend.store, time.monotonic()

        def settled():
            nonlocal filled
            if time.monotonic() > filled + 15:
                # Sometimes a bucket stays open all the same.
                self.fill(controller, BATCH // 2)
                filled = time.monotonic()
            return self.lies_on_drive(store, names)

        # At times it never becomes ready: that round is repeated.
        until(settled, "Mooncake's drive", 60)

    def fill(self, controller, count):
        at = controller.storage_backend.mem_pool_host.kv_buffer.data_ptr()
        names = [f"filler {self.filled + n}" for n in range(count)]
        said = controller.storage_backend.store.batch_put_from(names, [at] * count, [64] * count)
        assert not any(said), said[:3]
        self.filled += count

    def lies_on_drive(self, store, names):
        found = store.batch_get_replica_desc(names)
        return all(any(replica.is_local_disk_replica() for replica in found.get(name, ())) for name in names)

    def ready(self, controller, keys):
        names = self.objects(controller, keys)
        until(lambda: all(one == 1 for one in controller.storage_backend.store.batch_is_exist(names)), "what Mooncake has on its drive")

    def close(self, controller):
        # SGLang leaves that to the end of the process.
        controller.storage_backend.store.close()
        controller.detach_storage_backend()
        if self.on_drive:
            time.sleep(CLIENT_TTL + 2)

    def end(self):
        self.master.terminate()
        self.master.wait()


BACKENDS = {
    "pagelith, SSD": lambda folder, length: Pagelith(folder, length, ssd=True),
    "file": File,
    "mooncake, SSD": lambda folder, length: Mooncake(folder, length, ssd=True),
    "pagelith, DRAM": lambda folder, length: Pagelith(folder, length, ssd=False),
    "pagelith, DRAM, a twentieth verified": lambda folder, length: Pagelith(folder, length, ssd=False, verified=0.05),
    "mooncake, DRAM": lambda folder, length: Mooncake(folder, length, ssd=False),
}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def answers(port):
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def until(ready, what, seconds=120):
    last = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < last, f"{what} does not come"
        time.sleep(0.1)


def pool(size):
    """A pool with pages of `size` bytes."""
    rope = 16
    return parts.mla("page_first", rank=size // (parts.PAGE * parts.LAYERS * 2) - rope, rope=rope, pages=BATCH)


def one_round(make, folder, size, batches):
    """The figures of a backend: GB/s and CPU-s/GB of backup and of prefetch, keys per second."""
    shutil.rmtree(folder, ignore_errors=True)
    side = make(folder, batches * BATCH * size)
    try:
        return round_of(side, size, batches)
    finally:
        side.end()
        shutil.rmtree(folder, ignore_errors=True)


def round_of(side, size, batches):
    parts.configure({}, backend="file")
    device, host = pool(size)
    indices = drive.slots(0, BATCH)
    drive.fill(host, indices, size)
    keys, others = ([drive.hashes_of(drive.tokens_of(n + from_, BATCH)) for n in range(batches)] for from_ in (0, 10_000))
    operation = SimpleNamespace(request_id="compare", is_terminated=lambda: False)
    controller = parts.plain(device, host, side.extra, backend=side.backend)
    # A run before the measurement: the first access to memory costs each backend more than its
    # work.
    assert all(controller.page_set_func(some, indices, None) for some in others)
    side.settle(controller, others)
    with Clock() as written:
        stored = all(controller.page_set_func(some, indices, None) for some in keys)
        side.settle(controller, keys)
    assert stored, "not everything was stored"
    if side.on_drive:
        side.close(controller)
        controller = parts.plain(device, host, side.extra, backend=side.backend)
        side.ready(controller, [*others, *keys])
        # The others first: this backend's memory was not accessed before either.
        assert sum(controller.page_get_func(operation, some, indices, None) for some in others) == batches * BATCH
        drop_caches()
    drive.fill(host, indices, "nothing")
    with Clock() as read:
        here = sum(controller.page_get_func(operation, some, indices, None) for some in keys)
    assert here == batches * BATCH, f"{here} of {batches * BATCH} pages were read"
    assert drive.wrong(host, indices, size) == 0
    with Clock() as asked:
        for some in keys * 4:
            assert controller.storage_backend.batch_exists(some) == BATCH
    side.close(controller)
    return figures(batches * BATCH * size, written, read, 4 * batches * BATCH, asked)


def main(size, length, directory):
    parts.configure({}, backend="file")
    parts.place()
    batches = max(1, length // (BATCH * size))
    named = [name for name in BACKENDS if "mooncake" not in name or importlib.util.find_spec("mooncake")]
    serve(named, lambda name: one_round(BACKENDS[name], os.path.join(directory, name.split(",")[0]), size, batches))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])

"""Backup and prefetch of SGLang's cache controllers through Pagelith, SGLang's file backend and Mooncake, in turns: GB/s and CPU-seconds
per GB, batches of 128 pages, and existence of keys a second.

    python compare_sglang.py DIR [--sizes 65536,1048576] [--rounds 3] [--bytes 1073741824] [--backends "pagelith, SSD/file"]

DIR is on the drive that is meant. A page is K and V of the size given. Backends that keep pages on the drive are asked for them by one
that was opened anew, the page cache dropped before (as root); backup is then until all is on the drive. Those in memory are asked in the process that stored
them. Mooncake's master is started here, its CPU time not counted; its package lies beside SGLang's environment, not in it:

    pip install --no-deps --target MOONCAKE mooncake-transfer-engine-non-cuda==0.3.13.post1, and PYTHONPATH=MOONCAKE

Medians of the rounds; ratios hold within a run.
"""

import argparse
import gc
import importlib.util
import os
import shutil
import socket
import statistics
import subprocess
import time
from types import SimpleNamespace

import sglang_drive as drive
import sglang_parts as parts

BATCH = 128
# Seconds after which Mooncake's master takes a client that is gone for gone, and has it come again with what is on its drive.
CLIENT_TTL = 5


class Pagelith:
    def __init__(self, folder, length, ssd):
        store = {"dram": {"bytes": "256MiB"}, "ssd": {"dirs": [folder], "bytes": "12GiB"}}
        if not ssd:
            store = {"dram": {"bytes": 3 * length, "prefault": True}}
        named = {"backend_name": "pagelith", "module_path": "pagelith.sglang", "class_name": "HiCache", "interface_v1": 1}
        self.backend, self.on_drive = "dynamic", ssd
        self.extra = {**named, "store": {**store, "index": {"max_objects": 1000000}}, "put_wait_ms": 60000}

    def settle(self, controller, _keys):
        """What was stored is on the drive, if it goes there."""
        if self.on_drive:
            controller.storage_backend._store.flush()

    def ready(self, _controller, _keys):
        """What is on the drive can be asked for."""

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
    """With a master of its own. On the drive as it is meant for speed: io_uring, a heartbeat each second, buckets that a batch fills."""

    def __init__(self, folder, length, ssd):
        os.makedirs(folder, exist_ok=True)
        port, metrics = free_port(), free_port()
        package = importlib.util.find_spec("mooncake").submodule_search_locations[0]
        command = [f"{package}/mooncake_master", f"--rpc_port={port}", f"--metrics_port={metrics}"]
        command += ["--enable_offload=true", f"--client_ttl={CLIENT_TTL}"] if ssd else []
        self.master = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: answers(port), "Mooncake's master")
        os.environ.update(MC_TCP_BIND_ADDRESS="127.0.0.1", MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS="1", MOONCAKE_OFFLOAD_USE_URING="true")
        os.environ.update(MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT=str(2 * BATCH), MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES=str(2 << 30))
        # A batch of the largest pages is a GiB.
        os.environ.update(MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES=str(12 << 30), MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=str(3 << 30))
        self.backend, self.on_drive, self.filled = "mooncake", ssd, False
        self.extra = {"master_server_address": f"127.0.0.1:{port}", "metadata_server": "P2PHANDSHAKE", "global_segment_size": 3 * length}
        if ssd:
            self.extra |= {"enable_ssd_offload": True, "ssd_offload_path": folder}

    def objects(self, controller, keys):
        backend = controller.storage_backend
        return [f"{key}_{backend.mha_suffix}_{part}" for some in keys for key in backend._tag_keys(some) for part in "kv"]

    def settle(self, controller, keys):
        if self.on_drive and not self.filled:
            # It writes full buckets alone, and SGLang has put an object to warm up.
            self.filled, count = True, 2 * BATCH - 1
            at = controller.storage_backend.mem_pool_host.kv_buffer.data_ptr()
            said = controller.storage_backend.store.batch_put_from([f"filler {n}" for n in range(count)], [at] * count, [64] * count)
            assert not any(said), said[:3]
        if self.on_drive:
            names = self.objects(controller, keys)
            until(lambda: self.lies_on_drive(controller.storage_backend.store, names), "Mooncake's drive")

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
    "mooncake, DRAM": lambda folder, length: Mooncake(folder, length, ssd=False),
}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def answers(port):
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def until(ready, what):
    last = time.monotonic() + 120
    while not ready():
        assert time.monotonic() < last, f"{what} does not come"
        time.sleep(0.1)


def pool(size):
    """A pool whose K of a page has so many bytes."""
    heads = max(1, size // (parts.PAGE * 128 * 2 * parts.LAYERS))
    head_dim = size // (parts.PAGE * heads * 2 * parts.LAYERS)
    return parts.mha("page_first", heads=heads, head_dim=head_dim, pages=BATCH)


class Clock:
    """Wall time and CPU time of this process, its threads with it."""

    def __enter__(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu


def one_round(make, folder, size, batches):
    """What a backend took: (GB/s, CPU-s/GB) of backup and of prefetch, keys a second."""
    shutil.rmtree(folder, ignore_errors=True)
    bytes_put = batches * BATCH * 2 * size
    side = make(folder, bytes_put)
    parts.configure({}, backend="file")
    device, host = pool(size)
    indices = drive.slots(0, BATCH)
    drive.fill(host, indices, size)
    keys, others = ([drive.hashes_of(drive.tokens_of(n + from_, BATCH)) for n in range(batches)] for from_ in (0, 10_000))
    operation = SimpleNamespace(request_id="compare", is_terminated=lambda: False)
    controller = parts.plain(device, host, side.extra, backend=side.backend)
    # As much once before: memory that was never touched costs each backend more than its work.
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
        # The others' first: this backend's memory was never touched either.
        assert sum(controller.page_get_func(operation, some, indices, None) for some in others) == batches * BATCH
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as caches:
            caches.write("3")
    drive.fill(host, indices, "nothing")
    with Clock() as read:
        here = sum(controller.page_get_func(operation, some, indices, None) for some in keys)
    assert here == batches * BATCH, f"{here} of {batches * BATCH} pages were read"
    assert drive.wrong(host, indices, size) == 0
    with Clock() as asked:
        for some in keys * 4:
            assert controller.storage_backend.batch_exists(some) == BATCH
    side.close(controller)
    side.end()
    shutil.rmtree(folder, ignore_errors=True)
    gigabytes = bytes_put / 1e9
    speed = [(gigabytes / clock.wall, clock.cpu / gigabytes) for clock in (written, read)]
    return (*speed[0], *speed[1], 4 * batches * BATCH / asked.wall)


def main():
    asked = argparse.ArgumentParser()
    asked.add_argument("dir")
    asked.add_argument("--sizes", default="65536,262144,1048576,4194304")
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--bytes", type=int, default=1 << 30)
    asked.add_argument("--backends", help="names of them, with / between; all, unless given")
    given = asked.parse_args()
    parts.configure({}, backend="file")
    parts.place()
    named = given.backends.split("/") if given.backends else list(BACKENDS)
    if any("mooncake" in name for name in named) and importlib.util.find_spec("mooncake") is None:
        print("skipped: Mooncake is not installed (mooncake-transfer-engine-non-cuda), so its rows are left out")
        named = [name for name in named if "mooncake" not in name]
    print("| object | backend | backup GB/s | CPU-s/GB | prefetch GB/s | CPU-s/GB | exists, keys/s |\n| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for size in map(int, given.sizes.split(",")):
        batches = max(1, given.bytes // (BATCH * 2 * size))
        rounds = {name: [] for name in named}
        for _ in range(given.rounds):
            for name in named:
                rounds[name].append(one_round(BACKENDS[name], os.path.join(given.dir, name.split(",")[0]), size, batches))
                # Pools of a gigabyte each refer to themselves.
                gc.collect()
        for name, seen in rounds.items():
            middle = [statistics.median(column) for column in zip(*seen, strict=True)]
            print(f"| {size >> 10} KiB | {name} | {middle[0]:.2f} | {middle[1]:.2f} | {middle[2]:.2f} | {middle[3]:.2f} | {middle[4]:,.0f} |", flush=True)


if __name__ == "__main__":
    main()

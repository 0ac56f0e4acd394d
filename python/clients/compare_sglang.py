"""Backup and prefetch of SGLang's cache controllers through Pagelith and through SGLang's file backend, in turns: GB/s and CPU-seconds
per GB, batches of 128 pages, and existence of keys a second.

    python compare_sglang.py DIR [--sizes 65536,1048576] [--rounds 3] [--mooncake HOST:PORT]

DIR is on the drive that is meant. Reads are of a backend that was opened anew; before them the page cache is dropped (as root), through
which the file backend reads. A page is K and V of the size given. Medians of the rounds; ratios hold within a run.
"""

import argparse
import os
import shutil
import statistics
import time
from types import SimpleNamespace

import sglang_drive as drive
import sglang_parts as parts

BATCH = 128


def pagelith(folder):
    ssd = {"dirs": [folder], "bytes": "12GiB"}
    store = {"dram": {"bytes": "256MiB"}, "index": {"max_objects": 1000000}, "ssd": ssd}
    named = {"backend_name": "pagelith", "module_path": "pagelith.sglang", "class_name": "HiCache", "interface_v1": 1}
    return "dynamic", {**named, "store": store, "put_wait_ms": 60000}


def file(folder):
    os.makedirs(folder, exist_ok=True)
    os.environ["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = folder
    return "file", {}


def mooncake(address):
    return lambda folder: ("mooncake", {"master_server_address": address, "global_segment_size": 3 << 30, "metadata_server": "P2PHANDSHAKE"})


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
    backend, extra = make(folder)
    device, host = pool(size)
    indices = drive.slots(0, BATCH)
    drive.fill(host, indices, size)
    keys, others = ([drive.hashes_of(drive.tokens_of(n + from_, BATCH)) for n in range(batches)] for from_ in (0, 10_000))
    operation = SimpleNamespace(request_id="compare", is_terminated=lambda: False)
    gigabytes = batches * BATCH * 2 * size / 1e9
    controller = parts.plain(device, host, extra, backend=backend)
    # As much once before: memory that was never touched costs each backend more than its work.
    assert all(controller.page_set_func(some, indices, None) for some in others)
    if backend == "mooncake":
        controller.storage_backend.clear()
    settle(controller)
    with Clock() as written:
        stored = all(controller.page_set_func(some, indices, None) for some in keys)
        settle(controller)
    assert stored, "not everything was stored"
    if backend != "mooncake":
        controller.detach_storage_backend()
        controller = parts.plain(device, host, extra, backend=backend)
        # The others' first: this backend's memory was never touched either.
        assert sum(controller.page_get_func(operation, some, indices, None) for some in others) == batches * BATCH
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as caches:
            caches.write("3")
    with Clock() as read:
        here = sum(controller.page_get_func(operation, some, indices, None) for some in keys)
    assert here == batches * BATCH, f"{here} of {batches * BATCH} pages were read"
    assert drive.wrong(host, indices, size) == 0
    with Clock() as asked:
        for some in keys * 4:
            assert controller.storage_backend.batch_exists(some) == BATCH
    if backend == "mooncake":
        # SGLang leaves its memory to the end of the process.
        controller.storage_backend.clear()
        controller.storage_backend.store.close()
    controller.detach_storage_backend()
    shutil.rmtree(folder, ignore_errors=True)
    speed = [(gigabytes / clock.wall, clock.cpu / gigabytes) for clock in (written, read)]
    return (*speed[0], *speed[1], 4 * batches * BATCH / asked.wall)


def settle(controller):
    """What was stored is on the drive, where it goes there."""
    if hasattr(controller.storage_backend, "_store"):
        controller.storage_backend._store.flush()
    else:
        os.sync()


def main():
    asked = argparse.ArgumentParser()
    asked.add_argument("dir")
    asked.add_argument("--sizes", default="65536,262144,1048576,4194304")
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--bytes", type=int, default=1 << 30)
    asked.add_argument("--mooncake")
    given = asked.parse_args()
    parts.place()
    makers = {"pagelith": pagelith, "file": file}
    if given.mooncake:
        makers["mooncake, DRAM"] = mooncake(given.mooncake)
    print("| object | backend | backup GB/s | CPU-s/GB | prefetch GB/s | CPU-s/GB | exists, keys/s |\n| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for size in map(int, given.sizes.split(",")):
        batches = max(1, given.bytes // (BATCH * 2 * size))
        rounds = {name: [] for name in makers}
        for _ in range(given.rounds):
            for name, make in makers.items():
                rounds[name].append(one_round(make, os.path.join(given.dir, name.split(",")[0]), size, batches))
        for name, seen in rounds.items():
            middle = [statistics.median(column) for column in zip(*seen)]
            print(f"| {size >> 10} KiB | {name} | {middle[0]:.2f} | {middle[1]:.2f} | {middle[2]:.2f} | {middle[3]:.2f} | {middle[4]:,.0f} |", flush=True)


if __name__ == "__main__":
    main()

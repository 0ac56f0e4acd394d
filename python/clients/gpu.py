"""Moves pages of a GPU through a store: with page-locked host memory as source and destination,
verified bit for bit, in GB/s, against pageable memory.

    python gpu.py DIR [--device cuda] [--page-bytes 65536,1048576] [--pages N] [--rounds 3] [--program PAGELITH] [--json FILE]

Runs in an environment with torch and Pagelith's wheel. DIR is on the drive to be measured; files
created in it are removed. Pages of random bytes are generated on the GPU, copied to a pool in host
memory, put, and made durable. Then the pool is overwritten, and every page is read back in random
order into another page's slot: from DRAM, and from SSD with a newly opened store. The pool is
copied to the GPU and compared there. This is done for each kind of memory: pageable, torch's
pin_memory, cudaHostRegister, and that in huge pages; for SSD also with the pool registered with the
store. With --program (`pagelith serve`), it is done through a store process as well, with memfds
that it maps. The kinds alternate, in an order that changes each round. Results are medians of the
rounds, with the medians of their ratios to pageable memory in parentheses. The last table has SSD
to GPU, with the copies of one half of the pool concurrent with the reads into the other. Then puts
and gets name memory of the GPU themselves, from a page-locked and a pageable arena, from SSD, and
through a store process: in GB/s, and in parts of a bare asynchronous copy of the same bytes. The
last table has blocks of many layers, saved and loaded as by vLLM's connector, with copies by the
store and by torch. The exit status is 1 if a page is wrong or missing, or none was compared.
Unsupported measurements are reported, and the rest continues. It needs some 6 GiB of the drive at
a time and 16 GiB of memory. --device cpu tries it without a GPU, --seconds (100) bounds it.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import resource
import shutil
import sys
import tempfile
import time

import gpu_caches
import gpu_memory as memory
from gpu_bench import Bench
from gpu_devices import DirectBench, table
from gpu_rows import tables

import pagelith


def text_of(path):
    with contextlib.suppress(OSError), open(path) as file:
        return file.read().strip()


def machine(device):
    cpus = [line.partition(":")[2].strip() for line in (text_of("/proc/cpuinfo") or "").splitlines() if line.startswith("model name")]
    return {
        **device.told(),
        "cpu": cpus[0] if cpus else None,
        "cores": len(os.sched_getaffinity(0)),
        "ram_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": os.uname().release,
        "memlock_bytes": resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "huge_pages": text_of("/sys/kernel/mm/transparent_hugepage/enabled"),
        "huge_pages_shared": text_of("/sys/kernel/mm/transparent_hugepage/shmem_enabled"),
        "python": sys.version.split()[0],
        "pagelith": pagelith.__version__,
    }


def made(kinds, device, length):
    """A pool of each kind, None for a kind that cannot be created; and the reasons."""
    hosts, failed = {}, {}
    for kind, make in kinds.items():
        try:
            hosts[kind] = make(device, length)
        except Exception as error:
            hosts[kind], failed[kind] = None, f"{type(error).__name__}: {error}"
            device.forget_error()
    return hosts, failed


def arguments():
    asked = argparse.ArgumentParser()
    asked.add_argument("dir")
    asked.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    asked.add_argument("--page-bytes", default="65536,1048576", help="sizes of pages, multiples of 4096, with commas between")
    asked.add_argument("--pages", type=int, help="of a pool; as many as 256 MiB have, unless given")
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--program", help="pagelith, for a store process; without it there is none")
    asked.add_argument("--json", help="a file for all of it")
    asked.add_argument("--seconds", type=float, default=100, help="of all of it: each size and way has its share, behind which it begins no further round")
    given = asked.parse_args()
    given.sizes = [int(size) for size in given.page_bytes.split(",")]
    if any(size <= 0 or size % memory.ALIGNED for size in given.sizes) or (given.pages or 2) < 2 or given.rounds < 1:
        asked.error("pages are multiples of 4096 bytes, two or more of them, and there is a round at least")
    return given


def record(path, here, given, rows):
    """All results so far, as JSON."""
    if path:
        with open(path, "w") as file:
            json.dump({"machine": here, "asked": vars(given), "rows": [row.saved() for row in rows]}, file, indent=1)


def run(bench, given, failed, until):
    """Run the rounds, at least one; an error that ends all of them is recorded in each row."""
    folder = tempfile.mkdtemp(prefix="pagelith-gpu-", dir=given.dir)
    for row in bench.rows:
        row.failed.update({"memory": failed[row.kind]} if row.kind in failed else {})
    try:
        turns = (folder, given.rounds, lambda turn: turn == 0 or time.monotonic() < until)
        if bench.way == "own":
            bench.own(*turns)
        else:
            bench.process(given.program, *turns)
    except Exception as error:
        for row in bench.rows:
            row.failed.setdefault("store", f"{type(error).__name__}: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def direct(device, hosts, page_bytes, pages, given, until):
    """The measurements with memory of the GPU; none without a GPU, or without a page-locked pool."""
    host = hosts.get("pin_memory")
    if not device.on_gpu or host is None:
        return []
    bench = DirectBench(device, host, page_bytes, pages)
    folder = tempfile.mkdtemp(prefix="pagelith-gpu-", dir=given.dir)
    try:
        turns = (folder, given.rounds, lambda turn: turn == 0 or time.monotonic() < until)
        bench.attempt("rounds", lambda: bench.run(*turns, given.program))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [bench]


def caches(device, page_bytes, pages, given, until):
    """The measurements with the caches of vLLM's connector."""
    bench = gpu_caches.CachesBench(device, page_bytes, pages)
    folder = tempfile.mkdtemp(prefix="pagelith-gpu-", dir=given.dir)
    try:
        bench.run(folder, given.rounds, lambda turn: turn == 0 or time.monotonic() < until)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return [bench]


def main():
    faulthandler.enable()
    begun, given = time.monotonic(), arguments()
    # Settings in the environment would override this run's.
    for name in [name for name in os.environ if name.startswith("PAGELITH_")]:
        del os.environ[name]
    device = memory.Device(given.device)
    pages_of = {size: given.pages or max(2, (256 << 20) // size) for size in given.sizes}
    ways = {"own": memory.OWN, **({"process": memory.PROCESS} if given.program else {})}
    kinds = {kind: make for some in ways.values() for kind, make in some.items()}
    hosts, failed = made(kinds, device, max(size * pages for size, pages in pages_of.items()))
    here, rows = machine(device), []
    print(json.dumps(here), file=sys.stderr, flush=True)
    os.makedirs(given.dir, exist_ok=True)
    # An embedded store has twice as many measurements.
    steps = [(size, way, 2 if way == "own" else 1) for size in pages_of for way in [*ways, "direct", "caches"]]
    whole, until = sum(share for _, _, share in steps), begun
    directs, of_layers = [], []
    for size, way, share in steps:
        until += given.seconds * share / whole
        if way == "direct":
            directs += direct(device, hosts, size, pages_of[size], given, until)
            record(given.json, here, given, rows + directs + of_layers)
            continue
        if way == "caches":
            of_layers += caches(device, size, pages_of[size], given, until)
            record(given.json, here, given, rows + directs + of_layers)
            continue
        bench = Bench(device, size, pages_of[size], {kind: hosts[kind] for kind in ways[way]}, way)
        bench.prove()
        rows += bench.rows
        run(bench, given, failed, until)
        record(given.json, here, given, rows + directs + of_layers)
    print(tables(rows))
    print(table(directs) if directs else "not done: memory of the GPU in puts and gets: there is no GPU, or no page-locked pool")
    print(gpu_caches.table(of_layers))
    for kind, host in hosts.items():
        print(f"pool: {kind}: {host.told() if host else failed[kind]}")
    for host in filter(None, hosts.values()):
        host.release()
    wrong, missing, compared = (sum(getattr(row, name) for row in rows + directs + of_layers) for name in ("wrong", "missing", "compared"))
    print(f"\n{compared:,} pages compared, {wrong} wrong, {missing} missing, in {time.monotonic() - begun:.0f} s", flush=True)
    raise SystemExit(1 if wrong or missing or not compared else 0)


if __name__ == "__main__":
    main()

"""Gets and puts of a client of a store process, in host memory: Pagelith over TCP, through rings in
shared memory, and from shared memory without a transfer, against Mooncake, alternating. GB/s and
CPU-seconds per GB of both processes together, and lookups per second.

    python compare_mooncake.py PROGRAM [--sizes 65536,1048576] [--rounds 5] [--modes "pagelith TCP/mooncake TCP"]

PROGRAM is `pagelith`. Needs the wheels of Pagelith and of mooncake-transfer-engine-non-cuda, and
numpy. Batches of 32; every byte read is compared. Results are medians of the rounds; ratios are
comparable within a run. Mooncake's modes: TCP to the segment of another process; a segment in the
client's own process; and the pool that a client without a segment shares with a store process
(`setup_dummy`), which that process fills.
"""

import argparse
import mmap
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import numpy

BATCH, BATCHES = 32, {65536: 64, 1048576: 8}
SEGMENT, POOL = 1 << 30, 256 << 20
TICKS = os.sysconf("SC_CLK_TCK")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def cpu_of(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def wait_for(ready, what):
    until = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < until, f"{what} does not come up"
        time.sleep(0.05)


def answers(port):
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


class Clock:
    """Wall time, and CPU time of this process and of its servers."""

    def __init__(self, pids):
        self.pids = pids

    def cpu_now(self):
        return time.process_time() + sum(map(cpu_of, self.pids))

    def __enter__(self):
        self.wall, self.cpu = time.perf_counter(), self.cpu_now()
        return self

    def __exit__(self, *_):
        self.wall, self.cpu = time.perf_counter() - self.wall, self.cpu_now() - self.cpu


class Side:
    """A client, its server processes, and two buffers of one batch, for puts and for gets."""

    def __init__(self):
        self.processes, self.told = [], tempfile.TemporaryFile()

    def start(self, *command, **settings):
        environment = {**os.environ, **settings}
        self.processes.append(subprocess.Popen(command, env=environment, stdout=self.told, stderr=self.told))

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Pagelith(Side):
    def __init__(self, program, how):
        super().__init__()
        import pagelith

        self.folder = tempfile.TemporaryDirectory()
        path, port = f"{self.folder.name}/socket", free_port()
        address = f"tcp:127.0.0.1:{port}" if how == "TCP" else f"unix:{path}"
        shared = "true" if how == "shown" else "false"
        self.start(program, "serve", "--listen", address, "--dram", f"{SEGMENT >> 20}MiB", "--ssd", "0", PAGELITH_DRAM__SHARED=shared, PAGELITH_DRAM__PREFAULT="true")
        wait_for(lambda: answers(port) if how == "TCP" else os.path.exists(path), "the store")
        self.store, self.space = pagelith.Store.attach(address), pagelith.Namespace(model="compare")
        self.key_of = lambda number: pagelith.Key(self.space, number.to_bytes(32, "little"), component="k")
        fd = os.memfd_create("buffers", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, POOL)
        self.memory = numpy.frombuffer(mmap.mmap(fd, POOL), dtype=numpy.uint8)
        if how == "shown":
            self.store.share(fd, self.memory.ctypes.data, POOL)

    def keys(self, numbers):
        return [self.key_of(number) for number in numbers]

    def put(self, keys, places):
        assert all(self.store.put(keys, places)), "not everything was stored"

    def get(self, keys, places):
        assert all(self.store.get(keys, places)), "not everything was a hit"

    def look(self, keys):
        assert all(self.store.exists(keys))

    def clear(self, _objects):
        self.store.clear(self.space)

    def place(self, at, length):
        return self.memory[at : at + length]


class Mooncake(Side):
    def __init__(self, _program, how):
        super().__init__()
        from mooncake.store import MooncakeDistributedStore

        master, tools = free_port(), os.path.dirname(sys.executable)
        self.start(f"{tools}/mooncake_master", f"--rpc_port={master}", f"--metrics_port={free_port()}", "--default_kv_lease_ttl=1000")
        wait_for(lambda: answers(master), "the master")
        at, metadata = f"127.0.0.1:{master}", "P2PHANDSHAKE"
        self.store = MooncakeDistributedStore()
        if how == "own segment":
            assert self.store.setup("127.0.0.1", metadata, SEGMENT, POOL, "tcp", "", at) == 0
        elif how == "TCP":
            self.start(sys.executable, __file__, "--segment", at)
            # An object outside of every segment cannot be put: wait until the other process has
            # mounted its own.
            assert self.store.setup("127.0.0.1", metadata, 0, POOL, "tcp", "", at) == 0
            wait_for(lambda: self.store.put("ready", b"1") == 0, "the segment")
        else:
            port = free_port()
            self.start(f"{tools}/mooncake_client", "--host=127.0.0.1", f"--port={port}", f"--global_segment_size={SEGMENT >> 20} MB",
                       f"--master_server_address={at}", f"--metadata_server={metadata}", "--protocol=tcp")
            wait_for(lambda: answers(port), "the store")
            assert self.store.setup_dummy(POOL, POOL, f"127.0.0.1:{port}") == 0
        if how == "shared pool":
            import ctypes

            address = self.store.alloc_from_mem_pool(POOL // 2)
            assert address
            self.memory = numpy.ctypeslib.as_array((ctypes.c_uint8 * (POOL // 2)).from_address(address))
        else:
            self.memory = numpy.frombuffer(mmap.mmap(-1, POOL), dtype=numpy.uint8)
        assert self.store.register_buffer(self.memory.ctypes.data, len(self.memory)) == 0

    def keys(self, numbers):
        return [f"{number:x}" for number in numbers]

    def put(self, keys, places):
        said = self.store.batch_put_from(keys, [at for at, _ in places], [length for _, length in places])
        assert all(one == 0 for one in said), said[:4]

    def get(self, keys, places):
        said = self.store.batch_get_into(keys, [at for at, _ in places], [length for _, length in places])
        assert all(one == length for one, (_, length) in zip(said, places, strict=True)), said[:4]

    def look(self, keys):
        assert all(one == 1 for one in self.store.batch_is_exist(keys))

    def clear(self, objects):
        # Objects that were looked up still have a lease.
        removed = [0]
        wait_for(lambda: removed.append(self.store.remove_all()) or sum(removed) >= objects, "an empty store")

    def place(self, at, length):
        return self.memory.ctypes.data + at, length


MODES = {
    "pagelith TCP": (Pagelith, "TCP"),
    "pagelith rings": (Pagelith, "rings"),
    "pagelith shown": (Pagelith, "shown"),
    "mooncake TCP": (Mooncake, "TCP"),
    "mooncake shared pool": (Mooncake, "shared pool"),
    "mooncake own segment": (Mooncake, "own segment"),
}


def one_round(side, size):
    """The figures of a side: (GB/s, CPU-s/GB) of puts and of gets, keys per second."""
    count = BATCHES.get(size, max(1, (256 << 20) // (BATCH * size)))
    gigabytes = count * BATCH * size / 1e9
    batches = [side.keys(range(at * BATCH, (at + 1) * BATCH)) for at in range(count)]
    sent = [side.place(at * size, size) for at in range(BATCH)]
    got = [side.place((BATCH + at) * size, size) for at in range(BATCH)]
    wanted, came = side.memory[: BATCH * size], side.memory[BATCH * size : 2 * BATCH * size]
    wanted[:] = numpy.random.default_rng(size).integers(0, 256, BATCH * size, dtype=numpy.uint8)
    pids = [process.pid for process in side.processes]
    with Clock(pids) as written:
        for keys in batches:
            side.put(keys, sent)
    came[:] = 0
    with Clock(pids) as read:
        for keys in batches:
            side.get(keys, got)
    for keys in batches[:4]:
        came[:] = 0
        side.get(keys, got)
        assert numpy.array_equal(came, wanted), "other bytes came"
    with Clock(pids) as asked:
        for keys in batches * 4:
            side.look(keys)
    side.clear(count * BATCH)
    speed = [(gigabytes / clock.wall, clock.cpu / gigabytes) for clock in (written, read)]
    return (*speed[0], *speed[1], 4 * count * BATCH / asked.wall)


def segment(master):
    """A process that provides a segment to others, until it is ended."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    assert store.setup("127.0.0.1", "P2PHANDSHAKE", SEGMENT, 16 << 20, "tcp", "", master) == 0
    signal.pause()


def main():
    asked = argparse.ArgumentParser()
    asked.add_argument("program", nargs="?")
    asked.add_argument("--sizes", default="65536,1048576")
    asked.add_argument("--rounds", type=int, default=5)
    asked.add_argument("--modes", help="names of them, with / between; all, unless given")
    asked.add_argument("--segment", help=argparse.SUPPRESS)
    given = asked.parse_args()
    if given.segment:
        return segment(given.segment)
    named = given.modes.split("/") if given.modes else list(MODES)
    sides = {}
    try:
        for name in named:
            made, how = MODES[name]
            try:
                sides[name] = made(given.program, how)
            except Exception as error:  # a mode that does not run here is said, and the others go on
                print(f"{name} does not run here: {error!r}", file=sys.stderr)
        print("| object | client | put GB/s | CPU-s/GB | get GB/s | CPU-s/GB | lookups, keys/s |\n| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
        for size in map(int, given.sizes.split(",")):
            rounds = {name: [] for name in sides}
            for _ in range(given.rounds + 1):
                for name, side in sides.items():
                    rounds[name].append(one_round(side, size))
            for name, seen in rounds.items():
                # Not the first round: the first access to memory costs more than the work.
                middle = [statistics.median(column) for column in zip(*seen[1:], strict=True)]
                print(f"| {size >> 10} KiB | {name} | {middle[0]:.2f} | {middle[1]:.2f} | {middle[2]:.2f} | {middle[3]:.2f} | {middle[4]:,.0f} |", flush=True)
    finally:
        for side in sides.values():
            side.close()


if __name__ == "__main__":
    main()

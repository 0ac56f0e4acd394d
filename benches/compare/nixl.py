"""The side of NIXL's POSIX plugin. src/peers/nixl.rs starts it, writes one line for each phase and reads one line of JSON.

One large file, O_DIRECT, io_uring; an object is an offset in it. There is no index and no checksum: with `verify` every
value is hashed here (xxh3-128) and compared with the hash of the put value; with `bare` only its first bytes are compared.
"""

import json
import os
import resource
import sys
import time

import numpy as np
import xxhash

try:
    from nixl_cu12._api import nixl_agent, nixl_agent_config
except ImportError:
    from nixl._api import nixl_agent, nixl_agent_config

MASK = (1 << 64) - 1
PAUSE_S = 20e-6  # Between polls of a transfer, if several are in flight: for a single one the caller polls without pause.


def mix(x):
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


def aligned(size):
    whole = np.zeros(size + 4096, dtype=np.uint8)
    start = -whole.ctypes.data % 4096
    return whole[start : start + size]


def fill(contents, object_bytes, seed):
    places = np.arange(object_bytes // 8, dtype=np.uint64)
    for number in range(len(contents) // object_bytes):
        base = mix(mix(seed) ^ number)
        x = np.uint64(base) + np.uint64(mix(base) | 1) * places
        x = (x ^ (x >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
        x ^= x >> np.uint64(29)
        contents[number * object_bytes : (number + 1) * object_bytes] = x.view(np.uint8)


class Cost:
    def __init__(self):
        self.cpu, self.begun, self.batches = self.now(), time.perf_counter(), []

    @staticmethod
    def now():
        used = resource.getrusage(resource.RUSAGE_SELF)
        return used.ru_utime + used.ru_stime

    def end(self, size):
        took, gb = time.perf_counter() - self.begun, size / 1e9
        batches = np.array(self.batches) * 1e6
        return {
            "gb_per_s": gb / took,
            "cpu_s_per_gb": (self.now() - self.cpu) / gb,
            "p50_us": float(np.percentile(batches, 50)),
            "p99_us": float(np.percentile(batches, 99)),
        }


class Side:
    def __init__(self, path, verify, object_bytes, objects, batch, depth, seed):
        self.path, self.verify = path, verify
        self.object_bytes, self.objects, self.batch, self.depth, self.seed = object_bytes, objects, batch, depth, seed
        self.contents = aligned(object_bytes * objects)
        fill(self.contents, object_bytes, seed)
        self.sums = [xxhash.xxh3_128_digest(self.object(self.contents, n)) for n in range(objects)]
        self.room = aligned(object_bytes * batch * depth)
        self.room.fill(1)  # Faulting in the destinations is not part of a get.
        self.agent = nixl_agent("compare", nixl_agent_config(backends=[]))
        self.agent.create_backend("POSIX", {"use_uring": "true"})
        self.memory = [self.register(m) for m in (self.contents, self.room)]

    def object(self, among, number):
        return among[number * self.object_bytes : (number + 1) * self.object_bytes]

    def places(self, start, count, device):
        size = self.object_bytes
        return [(start + n * size, size, device) for n in range(count)]

    def register(self, memory):
        start, count = memory.ctypes.data, len(memory) // self.object_bytes
        self.agent.register_memory([(start, len(memory), 0, "")], "DRAM", backends=["POSIX"])
        return self.agent.prep_xfer_dlist("", self.places(start, count, 0), "DRAM", backends=["POSIX"])

    def open(self, flags):
        fd = os.open(os.path.join(self.path, "data"), flags | os.O_DIRECT, 0o600)
        size = self.object_bytes * self.objects
        registered = self.agent.register_memory([(0, size, fd, "")], "FILE", backends=["POSIX"])
        places = self.places(0, self.objects, fd)
        return fd, registered, self.agent.prep_xfer_dlist("compare", places, "FILE", backends=["POSIX"])

    def close(self, fd, registered, places):
        places.release()
        self.agent.deregister_memory(registered, backends=["POSIX"])
        os.close(fd)

    def batches(self, op, file, memory, slots_of, order, ended):
        """Keep `depth` batches in flight; calls `ended` for each that completes."""
        cost, flying = Cost(), []
        waiting = [order[at : at + self.batch] for at in range(0, self.objects, self.batch)]
        free = list(range(self.depth))
        while waiting or flying:
            while waiting and free:
                slot, numbers = free.pop(), waiting.pop()
                slots = slots_of(slot, numbers)
                begun = time.perf_counter()
                handle = self.agent.make_prepped_xfer(op, memory, slots, file, numbers, backends=["POSIX"])
                state = self.agent.transfer(handle)
                flying.append((handle, state, begun, slot, slots, numbers))
            handle, state, begun, slot, slots, numbers = flying.pop(0)
            while state == "PROC":
                state = self.agent.check_xfer_state(handle)
                if state == "PROC" and self.depth > 1:
                    time.sleep(PAUSE_S)
            if state != "DONE":
                raise RuntimeError("a transfer failed")
            ended(slots, numbers)
            cost.batches.append(time.perf_counter() - begun)
            self.agent.release_xfer_handle(handle)
            free.append(slot)
        return cost

    def put(self):
        file = self.open(os.O_RDWR | os.O_CREAT)
        os.posix_fallocate(file[0], 0, self.object_bytes * self.objects)
        order = list(range(self.objects))[::-1]  # `pop` takes from the end.
        order = [n for at in range(0, self.objects, self.batch) for n in order[at : at + self.batch][::-1]]
        cost = self.batches("WRITE", file[2], self.memory[0], lambda _, n: n, order, lambda *_: None)
        os.fsync(file[0])
        answer = cost.end(self.object_bytes * self.objects)
        self.close(*file)
        return {**answer, "wrong": 0}

    def get(self, round_number):
        file = self.open(os.O_RDONLY)
        order = [int(n) for n in np.random.default_rng([self.seed, round_number]).permutation(self.objects)]
        wrong = 0

        def check(slots, numbers):
            nonlocal wrong
            for slot, number in zip(slots, numbers):
                value = self.object(self.room, slot)
                if self.verify:
                    wrong += xxhash.xxh3_128_digest(value) != self.sums[number]
                else:
                    wrong += not np.array_equal(value[:64], self.object(self.contents, number)[:64])

        def slots_of(slot, numbers):
            return list(range(slot * self.batch, slot * self.batch + len(numbers)))

        cost = self.batches("READ", file[2], self.memory[1], slots_of, order, check)
        answer = cost.end(self.object_bytes * self.objects)
        self.close(*file)
        return {**answer, "wrong": int(wrong)}


def main():
    # Libraries that print to stdout must not disturb the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    path, verify, *numbers = sys.argv[1:]
    side = Side(path, verify == "verify", *map(int, numbers))
    print("ready", file=answers)
    for line in sys.stdin:
        what, *round_number = line.split()
        print(json.dumps(side.put() if what == "put" else side.get(int(round_number[0]))), file=answers)


main()

"""Compares Pagelith with SGLang's file backend, Mooncake and LMCache's file adapters, in one run
with the same shapes: GB/s and CPU-seconds per GB of puts (until they are on the drive, for the
sides that use one) and of gets, and existence lookups per second.

    python compare.py CLIENTS DIR [--sizes 65536,1048576] [--rounds 3] [--bytes 536870912] [--sides "SGLang: file/LMCache: fs"]

CLIENTS was created by `setup.sh`, and `run.sh` installed Pagelith's wheel in it; DIR is on the
drive to be measured. The sides of one engine run in one process of its environment per size. All
sides alternate, one round each: calls of 128 objects of the size, one after the other. The same
number of bytes is written once before the measurement, and the page cache is dropped before reads
(as root). Results are medians of the rounds; ratios are comparable within a size.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys

ENGINES = {"SGLang": "sglang", "LMCache": "lmcache"}
HEADING = "| object | side | put GB/s | CPU-s/GB | get GB/s | CPU-s/GB | exists, keys/s |\n| ---: | --- | ---: | ---: | ---: | ---: | ---: |"


class Worker:
    """The sides of one engine, in its environment."""

    def __init__(self, clients, engine, size, length, directory):
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"compare_{engine}.py")
        # Mooncake's package is outside of SGLang's environment.
        path = os.pathsep.join([os.path.join(clients, "mooncake"), *filter(None, [os.environ.get("PYTHONPATH")])])
        programs = os.path.join(os.path.realpath(clients), engine, "bin")
        command = [os.path.join(programs, "python"), "-W", "ignore", script, str(size), str(length), directory]
        # SGLang builds its hash helper with ninja on its first use.
        changed = {"PYTHONPATH": path, "PATH": os.pathsep.join([programs, os.environ["PATH"]])}
        self.log = open(os.path.join(directory, f"{engine}.log"), "a")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env={**os.environ, **changed}
        )
        self.sides = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with {self.process.wait()}: {self.log.name}")
        return json.loads(line)

    def round_of(self, side):
        for _ in range(3):
            print(side, file=self.process.stdin, flush=True)
            told = self.answer()
            if isinstance(told, list):
                return told
            print(f"{side} failed and is asked again: {told['failed']}", file=sys.stderr, flush=True)
        raise SystemExit(f"{side} failed three times: {self.log.name}")

    def end(self):
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


def table_of(size, given):
    """Alternating rounds of every side, and their medians."""
    wanted = given.sides.split("/") if given.sides else None
    engines = [name for name in ENGINES if wanted is None or any(one.startswith(f"{name}: ") for one in wanted)]
    workers = {name: Worker(given.clients, ENGINES[name], size, given.bytes, given.dir) for name in engines}
    sides = {f"{name}: {side}": (worker, side) for name, worker in workers.items() for side in worker.sides}
    wanted = wanted or list(sides)
    for name in wanted:
        if name not in sides:
            raise SystemExit(f"there is no side {name!r} here, but {', '.join(map(repr, sides))}")
    rounds = {name: [] for name in wanted}
    for turn in range(given.rounds):
        for name in wanted:
            worker, side = sides[name]
            rounds[name].append(worker.round_of(side))
            print(f"{size >> 10} KiB, round {turn}: {name}: {rounds[name][-1]}", file=sys.stderr, flush=True)
    for worker in workers.values():
        worker.end()
    for name, seen in rounds.items():
        put, put_cpu, get, get_cpu, keys = (statistics.median(column) for column in zip(*seen, strict=True))
        print(f"| {size >> 10} KiB | {name} | {put:.2f} | {put_cpu:.2f} | {get:.2f} | {get_cpu:.2f} | {keys:,.0f} |", flush=True)


def main():
    asked = argparse.ArgumentParser()
    asked.add_argument("clients")
    asked.add_argument("dir")
    asked.add_argument("--sizes", default="65536,262144,1048576,4194304")
    asked.add_argument("--rounds", type=int, default=3)
    asked.add_argument("--bytes", type=int, default=1 << 29)
    asked.add_argument("--sides", help="names of them, with / between; all, unless given")
    given = asked.parse_args()
    os.makedirs(given.dir, exist_ok=True)
    print(HEADING)
    for size in map(int, given.sizes.split(",")):
        table_of(size, given)


if __name__ == "__main__":
    main()

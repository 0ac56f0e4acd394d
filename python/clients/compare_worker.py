"""Shared by the workers of `compare.py`: clocks, the page cache, and the protocol for requesting
rounds."""

import gc
import json
import os
import sys
import time
import traceback

# Objects per call, or per task.
BATCH = 128


class Clock:
    """Wall time, and CPU time of this process with all its threads."""

    def __enter__(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu


def figures(nbytes, written, read, looks, asked):
    """The figures of a round: GB/s and CPU-s/GB of puts and of gets, keys per second."""
    gigabytes = nbytes / 1e9
    speed = [figure for clock in (written, read) for figure in (gigabytes / clock.wall, clock.cpu / gigabytes)]
    return [*speed, looks / asked.wall]


def drop_caches():
    """Drop the page cache, so that reads use the drive (as root)."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as caches:
        caches.write("3")


def serve(sides, one_round):
    """Print the names of the sides and, for each that is named on standard input, the figures of
    one round, or why it failed."""
    # Output of the engines is redirected.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(sides), file=answers, flush=True)
    for line in sys.stdin:
        try:
            told = one_round(line.strip())
        except Exception as error:
            traceback.print_exc()
            told = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(told), file=answers, flush=True)
        # Pools of a gigabyte each are in reference cycles.
        gc.collect()
    os._exit(0)

"""What the workers of `compare.py` share: clocks, the page cache, and how they are asked for rounds."""

import gc
import json
import os
import sys
import time
import traceback

# Objects of a call, or of a task.
BATCH = 128


class Clock:
    """Wall time and CPU time of this process, its threads with it."""

    def __enter__(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_):
        self.wall, self.cpu = time.perf_counter() - self.wall, time.process_time() - self.cpu


def figures(nbytes, written, read, looks, asked):
    """What a round comes to: GB/s and CPU-s/GB of puts and of gets, keys a second."""
    gigabytes = nbytes / 1e9
    speed = [figure for clock in (written, read) for figure in (gigabytes / clock.wall, clock.cpu / gigabytes)]
    return [*speed, looks / asked.wall]


def drop_caches():
    """Have reads come from the drive (as root)."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as caches:
        caches.write("3")


def serve(sides, one_round):
    """Say which sides there are and, of each that is named on standard input, what a round of it came to, or why it failed."""
    # What engines print goes elsewhere.
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
        # Pools of a gigabyte each refer to themselves.
        gc.collect()
    os._exit(0)

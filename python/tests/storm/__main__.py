"""Run the stress test and print its counts. Fails on any error, and if an expected event never
occurred."""

import argparse
import faulthandler
import gc
import logging
import os
import sys
import tempfile
import time

# The store process has its sanitizer runtime linked in.
os.environ.pop("LD_PRELOAD", None)

from .memory import Slots  # noqa: E402
from .stores import Embedded, Served  # noqa: E402
from .tally import Tally  # noqa: E402
from .threads import Storm  # noqa: E402

# Events that must occur in every run, and in a long run.
ALWAYS = (
    "hit: dram, attached",
    "hit: dram, embedded",
    "hit: part of an object",
    "miss: absent",
    "put stored",
    "put present",
    "put_group stored",
    "put_pages stored",
    "put_pages in parts waiting",
    "put of a group waiting",
    "begin_group",
    "exists",
    "exists_prefix",
    "exists_groups",
    "prefetch",
    "view, embedded",
    "view, attached",
    "check of a view",
    "pin",
    "lease",
    "register",
    "remove",
    "flush",
    "events",
    "signal: SIGALRM",
    "signal: SIGINT",
    "signal: SIGUSR1",
    "interrupted in a call",
    "cancelled while in progress",
    "dropped while in progress",
    "not moved during a call",
    "ended without its memory",
    "submitted and waited for",
    "submitted and dropped",
    "error: busy",
    "slots checked",
)
LONG = (
    "hit: ssd, attached",
    "hit: ssd, embedded",
    "miss: late",
    "put_group present",
    "put_group waiting",
    "put_pages in parts stored",
    "commit of a group stored",
    "commit of a group waiting",
    "abort of a group",
    "missing of a group",
    "release",
    "release of memory",
    "clear",
    "stats",
    "reopened: embedded",
    "reopened: attached",
    "killed: the store process",
    "error: closed",
    "error: unavailable",
)
LONG_FROM = 50_000


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("storm")
    parser.add_argument("--operations", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=3600, help="seconds, after which it says where each thread is and gives up")
    options = parser.parse_args(given)
    faulthandler.dump_traceback_later(options.limit, exit=True)
    # The log reports that a store process was killed, which is expected here.
    logging.getLogger("pagelith").addHandler(logging.NullHandler())
    began, tally = time.monotonic(), Tally()
    with tempfile.TemporaryDirectory() as directory:
        homes = [Embedded(tally, Slots(256, tally), directory), Served(tally, Slots(256, tally, shared=True), directory)]
        Storm(options.seed, options.operations, homes, tally).run()
        for home in homes:
            home.close()
        gc.collect()
        for home in homes:
            held = home.slots.check_all()
            if held and not tally.failures:
                tally.fail(f"memory of ended calls is held: {held} slots, {home.name}")
    faulthandler.cancel_dump_traceback_later()
    counts = tally.counts()
    for what, times in counts.items():
        print(f"{times:9} {what}")
    never = [what for what in ALWAYS + (LONG if options.operations >= LONG_FROM else ()) if not counts.get(what)]
    if never and not tally.failures:
        tally.fail("never happened: " + ", ".join(never))
    for failure in tally.failures[:10]:
        print(f"storm: {failure}")
    word = "FAILED" if tally.failures else "clean"
    print(f"storm: {word}, {counts.get('operations', 0)} operations, seed {options.seed}, {time.monotonic() - began:.0f} s")
    return 1 if tally.failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""One run of LMCache's storage manager: it writes chunks, or reads them, and prints the result.

    python lmcache_life.py write|read L2_ADAPTER_JSON CHUNKS [--flushed N] [--killed]

The first N chunks are flushed before the others are written. Prints one line of JSON.
"""

import argparse
import json
import os
import signal

import lmcache_parts as parts


def main():
    asked = argparse.ArgumentParser()
    asked.add_argument("action")
    asked.add_argument("adapter", type=json.loads)
    asked.add_argument("chunks", type=int)
    asked.add_argument("--flushed", type=int, default=0)
    asked.add_argument("--killed", action="store_true")
    given = asked.parse_args()
    chunks = range(given.chunks)
    with parts.manager(given.adapter) as storage:
        if given.action == "read":
            hits, from_l2, wrong = parts.read(storage, parts.rows(chunks))
            print(json.dumps({"hits": hits, "from_l2": from_l2, "wrong": wrong}), flush=True)
        else:
            written = 0
            if given.flushed:
                written = parts.write(storage, parts.rows(chunks[: given.flushed]))
                parts.adapter_of(storage)._store.flush()
            written += parts.write(storage, parts.rows(chunks[given.flushed :]))
            print(json.dumps({"written": written}), flush=True)
        if given.killed:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main()

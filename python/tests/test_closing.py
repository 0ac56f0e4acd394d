"""What is kept of a store that the program does not close. `python/check.sh` runs these."""

import concurrent.futures
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

import pagelith
from pagelith.threads import submit

PAGES, PAGE = 500, 16 << 10
SPACE = pagelith.Namespace("test", dtype="bf16", page_tokens=64)
KEYS = [pagelith.Key(SPACE, n.to_bytes(32, "little")) for n in range(PAGES)]
# Fills a store; the rest of the program defines how it ends.
FILL = f"""
import multiprocessing, os, sys, pagelith
space = pagelith.Namespace("test", dtype="bf16", page_tokens=64)
keys = [pagelith.Key(space, n.to_bytes(32, "little")) for n in range({PAGES})]
def fill():
    store = pagelith.Store({{"dram": {{"bytes": "32MiB"}}, "ssd": {{"dirs": [sys.argv[1]], "bytes": "64MiB", "segment_bytes": "4MiB"}}}})
    assert all(store.put(keys, [bytes({PAGE})] * len(keys)))
    return store
"""


def opened(directory):
    ssd = {"dirs": [directory], "bytes": "64MiB", "segment_bytes": "4MiB"}
    return pagelith.Store({"dram": {"bytes": "32MiB"}, "ssd": ssd})


class Ends(unittest.TestCase):
    def kept(self, end):
        """The number of pages stored after a process that ended in this way."""
        with tempfile.TemporaryDirectory() as home:
            directory = os.path.join(home, "store")
            ran = subprocess.run([sys.executable, "-c", FILL + end, directory], capture_output=True, text=True, timeout=300)
            with opened(directory) as store:
                return sum(store.exists(KEYS)), ran

    def test_interpreter_exit_keeps_all_objects(self):
        for end, code in [
            ("store = fill()", 0),
            ("store = fill(); sys.exit(3)", 3),
            ("store = fill(); raise ValueError", 1),
            ("kept = [fill()]; kept.append(kept)", 0),
        ]:
            with self.subTest(end):
                kept, ran = self.kept(end)
                self.assertEqual((kept, ran.returncode), (PAGES, code), ran.stderr)

    def test_last_reference_closes_store_and_directory_reopens(self):
        # Nothing remains to be done at the interpreter's exit.
        kept, ran = self.kept("store = fill(); del store; os._exit(0)")
        self.assertEqual((kept, ran.returncode), (PAGES, 0), ran.stderr)
        with tempfile.TemporaryDirectory() as home:
            directory = os.path.join(home, "store")
            store = opened(directory)
            self.assertTrue(all(store.put(KEYS, [bytes(PAGE)] * PAGES)))
            del store
            with opened(directory) as store:
                self.assertEqual(sum(store.exists(KEYS)), PAGES)

    def test_multiprocessing_child_keeps_all_objects(self):
        for method in ("fork", "spawn", "forkserver"):
            with self.subTest(method), tempfile.TemporaryDirectory() as home:
                # A spawned child imports the file again.
                program = os.path.join(home, "program.py")
                with open(program, "w") as file:
                    file.write(FILL + "kept = []\ndef child():\n    kept.append(fill())\n")
                    file.write(f"if __name__ == '__main__':\n    context = multiprocessing.get_context({method!r})\n")
                    file.write("    process = context.Process(target=child)\n    process.start(); process.join(); sys.exit(process.exitcode)\n")
                directory = os.path.join(home, "store")
                ran = subprocess.run([sys.executable, program, directory], capture_output=True, text=True, timeout=300)
                self.assertEqual(ran.returncode, 0, ran.stderr)
                with opened(directory) as store:
                    self.assertEqual(sum(store.exists(KEYS)), PAGES)

    def test_forked_child_exit_leaves_parent_store_open(self):
        end = "store = fill()\nif os.fork() == 0:\n    sys.exit(0)\nos.wait()\nassert store.exists(keys) == [True] * len(keys)"
        kept, ran = self.kept(end)
        self.assertEqual((kept, ran.returncode), (PAGES, 0), ran.stderr)

    def test_close_reports_what_is_not_durable(self):
        with tempfile.TemporaryDirectory() as home:
            store = opened(os.path.join(home, "store"))
            self.assertTrue(all(store.put(KEYS, [bytes(PAGE)] * PAGES)))
            report = store.close(timeout=0)
            durable, unsaved = report.durable_objects, report.unsaved_objects
            self.assertEqual((durable + unsaved, report.unsaved_bytes), (PAGES, unsaved * PAGE))
            self.assertEqual(report.error is None, unsaved == 0)
            self.assertIsNone(store.close())
            store = opened(os.path.join(home, "other"))
            self.assertTrue(all(store.put(KEYS, [bytes(PAGE)] * PAGES)))
            report = store.close(timeout=60)
            self.assertEqual((report.durable_objects, report.unsaved_objects, report.error), (PAGES, 0, None))
            with self.assertRaises(pagelith.InvalidError):
                opened(os.path.join(home, "third")).close(timeout=-1)


class Threads(unittest.TestCase):
    def test_work_refused_without_thread_never_runs(self):
        done = []
        with concurrent.futures.ThreadPoolExecutor(1) as threads:
            with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
                with self.assertRaises(RuntimeError):
                    submit(threads, done.append, "refused")
            submit(threads, done.append, "taken")
        self.assertEqual(done, ["taken"])

    def test_work_for_shut_down_executor_is_refused(self):
        threads = concurrent.futures.ThreadPoolExecutor(1)
        threads.shutdown()
        with self.assertRaises(RuntimeError):
            submit(threads, print)


if __name__ == "__main__":
    unittest.main()

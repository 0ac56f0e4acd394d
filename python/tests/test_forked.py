"""Children forked without exec, as by multiprocessing: they have neither a store's memory nor its
files."""

import os
import subprocess
import sys
import tempfile
import unittest

import pagelith

PARENT = """
import os, sys
import pagelith
store = pagelith.Store({"dram": {"bytes": "64MiB"}, "ssd": {"bytes": "32MiB", "dirs": [sys.argv[1]]}})
space = pagelith.Namespace("m", page_tokens=64)
key = pagelith.Key(space, bytes(32))
assert store.put([key], [b"x" * 100_000])[0]
store.flush()
child = os.fork()
if child == 0:
    # Outlives the parent, until the test closes its input.
    print("child", os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
os._exit(0)
"""

# A child that is forked during such an import waits for ever, since it happens under a lock.
FIRST_OPEN = """
import multiprocessing.process, multiprocessing.util, selectors, sys, types
import pagelith
imported = sys.modules["collections.abc"]
class Watched(types.ModuleType):
    def __getattr__(self, name):
        assert name != "Mapping", "imported at the first use"
        return getattr(imported, name)
sys.modules["collections.abc"] = Watched("collections.abc")
pagelith.Store({"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10}}).close()
print("done")
"""


def mapped(process):
    """Bytes of the process's anonymous mappings of 8 MiB or more."""
    total = 0
    with open(f"/proc/{process}/maps") as maps:
        for line in maps:
            fields = line.split()
            begin, end = (int(at, 16) for at in fields[0].split("-"))
            nobodys = len(fields) == 5 or "pagelith" in fields[5]
            total += end - begin if nobodys and fields[1] != "---p" and end - begin >= 8 << 20 else 0
    return total


class Forked(unittest.TestCase):
    def setUp(self):
        home = tempfile.TemporaryDirectory()
        self.addCleanup(home.cleanup)
        self.dir = os.path.join(home.name, "store")

    def test_store_opens_while_child_of_dead_owner_lives(self):
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, self.dir], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            child = int(parent.stdout.readline().split()[1])
            self.assertEqual(parent.wait(), 0)
            os.kill(child, 0)
            with pagelith.Store({"ssd": {"bytes": "32MiB", "dirs": [self.dir]}, "dram": {"bytes": "64MiB"}}) as store:
                key = pagelith.Key(pagelith.Namespace("m", page_tokens=64), bytes(32))
                self.assertEqual(store.exists([key]), [True])
        finally:
            parent.stdin.close()
            parent.stdout.close()

    def test_first_open_imports_no_type(self):
        done = subprocess.run([sys.executable, "-c", FIRST_OPEN], capture_output=True, text=True, check=False)
        self.assertEqual((done.stdout, done.returncode), ("done\n", 0), done.stderr)

    def test_child_has_no_store_memory_and_parent_continues(self):
        before = mapped("self")
        store = pagelith.Store({"dram": {"bytes": "256MiB"}, "ssd": {"bytes": "32MiB", "dirs": [self.dir]}})
        space = pagelith.Namespace("m", page_tokens=64)
        keys = [pagelith.Key(space, bytes([n]) * 32) for n in range(20)]
        self.assertTrue(all(store.put(keys, [b"x" * 100_000] * 20)))
        self.assertGreater(mapped("self") - before, 256 << 20)
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, str(mapped("self")).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as said:
            self.assertLess(int(said.read()) - before, 64 << 20)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        # The child closed only its own descriptors.
        self.assertTrue(store.put([pagelith.Key(space, bytes([99]) * 32)], [b"y" * 100_000])[0])
        self.assertEqual(store.flush().lost_objects, 0)
        with self.assertRaisesRegex(pagelith.DeniedError, f"owner=.pid={os.getpid()} pid_ns=.* host=.* boot="):
            pagelith.Store({"dram": {"bytes": "64MiB"}, "ssd": {"bytes": "32MiB", "dirs": [self.dir]}})
        store.close()


if __name__ == "__main__":
    unittest.main()

"""A short stress run, and runs with planted errors that must be found. `python/sanitize.sh` makes a
long one."""

import ctypes
import os
import pickle
import subprocess
import sys
import unittest

from storm.memory import Slots
from storm.tally import Tally


def run(module, *given):
    """Run in a separate process, whose signals are its own."""
    paths = [os.path.dirname(__file__), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run([sys.executable, "-W", "error", "-m", module, *given], env=env, capture_output=True, text=True)


class Storms(unittest.TestCase):
    def test_storm_finds_nothing(self):
        ran = run("storm", "--operations", "4000", "--limit", "300")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertIn("storm: clean, 4000 operations", ran.stdout)
        self.assertEqual(ran.stderr, "")

    def test_planted_errors_are_found(self):
        for kind, found in [("other", "other bytes"), ("kept", "memory is held by a call that has returned")]:
            ran = run("storm.planted", kind)
            self.assertIn(found, ran.stdout, ran.stderr)

    def test_late_write_to_memory_is_found(self):
        tally = Tally()
        slots = Slots(4, tally)
        view = slots.take(100)
        address = ctypes.addressof(ctypes.c_char.from_buffer(view))
        held = pickle.PickleBuffer(view)
        del view
        # The memory is still referenced, so it may be written.
        ctypes.memset(address + 50, 0, 1)
        self.assertEqual((slots.check_all(), tally.failures), (1, []))
        held.release()
        self.assertEqual((slots.check_all(), tally.failures), (0, []))
        ctypes.memset(address + 50, 0, 1)
        slots.check_all()
        self.assertRegex(tally.failures[0], "written after its release, bytes 50 to 51")


if __name__ == "__main__":
    unittest.main()

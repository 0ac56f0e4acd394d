"""SGLang's real controllers and host pools, attached over RDMA: a store process inside of this
process (`python/tests/rdma-store`), and the devices of the fake verbs library, which live in one
process. `run.sh` builds both libraries and passes their paths in RDMA_STORE and FAKE_VERBS.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import sglang_drive as drive
from sglang_scenarios import NAMED, PAGES, SCENARIOS, Case

# Room for the pages of all scenarios.
ARENA_MIB = 256
LIBRARIES = {"RDMA_STORE", "FAKE_VERBS"}


class OverRdma(unittest.TestCase):
    def test_pages_of_every_scenario_are_equal_and_move_by_rdma_alone(self):
        if not LIBRARIES <= os.environ.keys():
            print("skipped: no RDMA_STORE and FAKE_VERBS, so no store over RDMA", file=sys.stderr)
            self.skipTest("no RDMA_STORE and FAKE_VERBS")
        with tempfile.TemporaryDirectory() as home:
            # The loader looks for a library when a process starts, so the test runs in another one.
            shutil.copy(os.environ["FAKE_VERBS"], os.path.join(home, "libibverbs.so.1"))
            environment = {**os.environ, "LD_LIBRARY_PATH": home, "TEST_PAGELITH_FAKE_VERBS": "late-bytes=2"}
            child = subprocess.run([sys.executable, "-W", "ignore", __file__], env=environment, capture_output=True, text=True)
        print(child.stdout, file=sys.stderr)
        self.assertEqual(child.returncode, 0, child.stderr)


def bytes_of(scenario, prompt):
    """The bytes of a prompt in pools whose memory is registered: none if SGLang puts copies."""
    if scenario.changed.get("interface_v1") == 0:
        return 0
    pages = [(host, drive.slots(3, PAGES, scenario.page)) for host, _ in scenario.of_each_page(prompt)]
    last = [(host, scenario.last_slots(host, 5)) for _, host, _ in scenario.of_last_pages(prompt)]
    return sum(length for host, indices in pages + last for _, length in drive.pieces(host, indices))


class Moved(Case):
    """Runs in the other process."""

    def setUp(self):
        super().setUp()
        serve = ctypes.CDLL(os.environ["RDMA_STORE"]).rdma_store_serve
        serve.restype = ctypes.c_uint16
        port = serve(ARENA_MIB)
        self.assertGreater(port, 0)
        self.extra = {**NAMED, "attach": f"rdma:127.0.0.1:{port}"}

    def moved(self, store, counter, before, wanted):
        """The growth of a counter of the store process. Its device counts a request when it has
        completed, for which the client does not wait."""
        end = time.monotonic() + drive.WAIT
        while (grown := store.stats()[counter] - before[counter]) < wanted and time.monotonic() < end:
            pass
        return grown

    def test_every_scenario(self):
        for n, (name, scenario) in enumerate(SCENARIOS.items()):
            with self.subTest(name):
                store = self.start(scenario, self.extra).storage_backend._store
                before, wanted = store.stats(), bytes_of(scenario, n)
                self.assertEqual(scenario.write(self.running[0], n), scenario.whole)
                put = self.moved(store, "rdma_bytes_read", before, wanted)
                self.end()
                # Other pools, and so other registrations.
                store = self.start(scenario, self.extra).storage_backend._store
                self.assertEqual(scenario.read(self.running[0], n), (scenario.whole, scenario.whole, 0))
                got = self.moved(store, "rdma_bytes_written", before, wanted)
                print(f"{name}: bytes={wanted} put_by_rdma={put} got_by_rdma={got}")
                self.assertEqual((put, got), (wanted, wanted))
                self.assertEqual(store.stats()["rdma_links_without"], {})
            self.end()


def load_tests(loader, tests, pattern):
    return loader.loadTestsFromTestCase(OverRdma)


if __name__ == "__main__":
    result = unittest.TextTestRunner(verbosity=2).run(unittest.defaultTestLoader.loadTestsFromTestCase(Moved))
    sys.exit(not result.wasSuccessful())

"""The tests of the adapter for SGLang again, attached over RDMA: a store process inside of this
process (`rdma-store/`), and the devices of the fake verbs library. Needs both libraries, whose paths
`check.sh` passes in RDMA_STORE and FAKE_VERBS.
"""

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

ARENA_MIB = 32
# Tests that set up a store of their own in this process, so they attach to none.
EMBEDDED = {
    "test_page_is_not_stored_if_full_store_refused_sidecar",
    "test_prompt_larger_than_its_room_keeps_first_pages_if_put_in_several_calls",
}


class OverRdma(unittest.TestCase):
    def test_pages_are_equal_and_move_by_rdma(self):
        if not {"RDMA_STORE", "FAKE_VERBS"} <= os.environ.keys():
            print("skipped: no RDMA_STORE and FAKE_VERBS, so no store over RDMA", file=sys.stderr)
            self.skipTest("no RDMA_STORE and FAKE_VERBS")
        with tempfile.TemporaryDirectory() as home:
            # The loader looks for a library when a process starts, so the tests run in another one.
            shutil.copy(os.environ["FAKE_VERBS"], os.path.join(home, "libibverbs.so.1"))
            environment = {**os.environ, "LD_LIBRARY_PATH": home, "TEST_PAGELITH_FAKE_VERBS": "late-bytes=2"}
            child = subprocess.run([sys.executable, "-W", "error", __file__], env=environment, capture_output=True, text=True)
        self.assertEqual(child.returncode, 0, child.stdout + child.stderr)
        self.assertIn("OK", child.stderr)


def run():
    """Run the adapter's tests in this process. Returns whether they passed."""
    import test_sglang_adapter as adapter

    serve = ctypes.CDLL(os.environ["RDMA_STORE"]).rdma_store_serve
    serve.restype = ctypes.c_uint16
    config_of = adapter.Case.config

    class Pages(adapter.Pages):
        """With a store process for each test, and its counters compared at the end."""

        def setUp(self):
            super().setUp()
            port = serve(ARENA_MIB)
            self.assertGreater(port, 0)
            self.address = f"tcp:127.0.0.1:{port}"

        def config(self, extra=None, **changed):
            attached = {"store": None, "attach": self.address, "transport": "rdma"}
            return config_of(self, {**attached, **(extra or {})}, **changed)

        def tearDown(self):
            with adapter.pagelith.Store.attach(self.address, transport="rdma") as store:
                counts = store.stats()
            moved = [counts[name] for name in ("rdma_bytes_written", "rdma_bytes_read")]
            print(self._testMethodName, *moved, counts["rdma_stream_bytes"], file=sys.stderr)
            self.assertEqual(counts["rdma_links_without"], {})
            totals[:] = [total + now for total, now in zip(totals, moved)]

    totals = [0, 0]
    names = [name for name in unittest.defaultTestLoader.getTestCaseNames(Pages) if name not in EMBEDDED]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(map(Pages, names)))
    print(f"{result.testsRun} tests, bytes written and read by RDMA: {totals}")
    return result.wasSuccessful() and not result.skipped and min(totals) > 0


if __name__ == "__main__":
    sys.exit(not run())

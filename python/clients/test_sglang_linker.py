"""SGLang's own device pools, tree and linker factory over `pagelith.sglang.linker`: in host memory,
and in memory of a fake device, which a process finds in FAKE_DEVICE. Run by clients/run.sh.
"""

import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, os.pardir, "tests"))

import fake_driver  # noqa: E402


class OverFakeDriver(unittest.TestCase):
    def test_device_pools_are_offloaded_and_loaded(self):
        fake_driver.run_file(self, os.path.join(HERE, "sglang_linker_cases.py"), "-W", "ignore")


def load_tests(loader, tests, pattern):
    """The same cases in host memory."""
    import sglang_linker
    import sglang_linker_cases

    tests.addTests(sglang_linker_cases.cases(sglang_linker.OnHost()))
    return tests


if __name__ == "__main__":
    unittest.main()

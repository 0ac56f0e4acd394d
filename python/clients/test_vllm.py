"""A vLLM engine on the CPU with `pagelith.vllm.PagelithTier` below its host memory: what one process computed, the next one does not, and
answers the same tokens with the same log-probabilities as one without a cache.

Run by clients/run.sh. `STORE_PROGRAM` is the program `pagelith`, for the test with a store process.
"""

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from pagelith.compat import mooncake

HERE = os.path.dirname(os.path.abspath(__file__))
# Prompt tokens of which vLLM may take all but the last block from elsewhere.
PROMPT, BLOCK = 320, 32


class Lives(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.mkdtemp()
        cls.addClassCleanup(shutil.rmtree, cls.home, ignore_errors=True)
        cls.expected = cls.live("none")

    @classmethod
    def live(cls, transfer, ends=0, **environment):
        """One engine's life: what it answered."""
        command = [sys.executable, "-W", "ignore", os.path.join(HERE, "vllm_life.py"), os.path.join(cls.home, "model"), transfer]
        environment = {**os.environ, "PYTHONPATH": HERE, **environment}
        done = subprocess.run(command, env=environment, cwd=cls.home, capture_output=True, text=True, timeout=300)
        if done.returncode != ends:
            raise AssertionError(f"the engine ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        lines = [line for line in done.stdout.splitlines() if line.startswith("[{")]
        return json.loads(lines[-1])

    def tiered(self, **store):
        tier = {"type": "PagelithTier", "module_path": "pagelith.vllm", **store}
        extra = {
            "spec_name": "HostCopies", "spec_module_path": "vllm_host_copies", "cpu_bytes_to_use": 64 << 20, "secondary_tiers": [tier],
        }
        return json.dumps({"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": extra})

    def embedded(self, name):
        self.directory = os.path.join(self.home, name)
        ssd = {"dirs": [self.directory], "bytes": "128MiB", "segment_bytes": "8MiB"}
        return self.tiered(store={"dram": {"bytes": "32MiB"}, "index": {"max_objects": 10000}, "ssd": ssd})

    def assert_same(self, answers):
        strip = lambda all: [(one["tokens"], one["logprobs"]) for one in all]  # noqa: E731
        self.assertEqual(strip(answers), strip(self.expected))

    def cached(self, answers):
        return [one["cached"] for one in answers]

    def test_the_next_process_takes_what_the_first_computed(self):
        transfer = self.embedded("closed")
        first = self.live(transfer)
        self.assert_same(first)
        self.assertEqual(self.cached(first), [0] * 4)
        second = self.live(transfer)
        self.assert_same(second)
        self.assertTrue(all(count >= PROMPT - BLOCK for count in self.cached(second)), self.cached(second))
        # Bits turned: what they are in is computed again.
        flip(self.directory)
        third = self.live(transfer)
        self.assert_same(third)
        self.assertLess(sum(self.cached(third)), sum(self.cached(second)))

    def test_after_the_first_was_killed(self):
        transfer = self.embedded("killed")
        self.assert_same(self.live(transfer, ends=-signal.SIGKILL, VLLM_LIFE_ENDS="killed"))
        second = self.live(transfer)
        self.assert_same(second)
        self.assertGreater(sum(self.cached(second)), 0)

    def test_a_store_process_keeps_it_between_them(self):
        if "STORE_PROGRAM" not in os.environ:
            print("skipped: no STORE_PROGRAM, so no store process", file=sys.stderr)
            self.skipTest("no STORE_PROGRAM")
        with self.store_process("socket") as address:
            self.assert_same(self.live(self.tiered(attach=address)))
            second = self.live(self.tiered(attach=address))
            self.assert_same(second)
            self.assertTrue(all(count >= PROMPT - BLOCK for count in self.cached(second)), self.cached(second))

    def test_vllms_own_connector_for_mooncake(self):
        if "STORE_PROGRAM" not in os.environ:
            print("skipped: no STORE_PROGRAM, so no store process", file=sys.stderr)
            self.skipTest("no STORE_PROGRAM")
        with self.store_process("mooncake") as address:
            config = os.path.join(self.home, "mooncake.json")
            with open(config, "w") as file:
                json.dump({"metadata_server": "none", "master_server_address": address, "protocol": "tcp"}, file)
            transfer = json.dumps({"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"})
            environment = {"MOONCAKE_CONFIG_PATH": config, "PYTHONPATH": os.pathsep.join([HERE, mooncake.path()])}
            self.assert_same(self.live(transfer, **environment))
            second = self.live(transfer, **environment)
            self.assert_same(second)
            self.assertTrue(all(count >= PROMPT - BLOCK for count in self.cached(second)), self.cached(second))

    @contextlib.contextmanager
    def store_process(self, name):
        """`pagelith serve`, and its address."""
        address = "unix:" + os.path.join(self.home, name)
        command = [os.environ["STORE_PROGRAM"], "serve", "--listen", address, "--dram", "64MiB", "--ssd", "0"]
        store = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            self.assertTrue(store.stdout.readline().startswith("listening "))
            yield address
        finally:
            store.terminate()
            store.wait()
            store.stdout.close()


def flip(directory):
    """Turn a bit in every 16 KiB that is written."""
    for path in glob.glob(os.path.join(directory, "**", "*"), recursive=True):
        if not os.path.isfile(path) or os.path.getsize(path) < 8 << 20:
            continue
        with open(path, "r+b") as file:
            for at in range(100 << 10, os.path.getsize(path), 16 << 10):
                file.seek(at)
                byte = file.read(1)
                if byte and byte != b"\0":
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 4]))


if __name__ == "__main__":
    unittest.main()

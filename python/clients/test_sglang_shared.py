"""SGLang's host pools of its `shm` allocator over a store process: the store process copies
backed-up pages from them."""

import contextlib
import os
import unittest
from functools import partial

import sglang_drive as drive
import sglang_stacks as stacks
from sglang_scenarios import NAMED, SCENARIOS, Case, Stack, flip, in_a_process, mha


def pools_of(pid):
    """SGLang's host pools that a process has open: the files' inodes."""
    held = [entry.path for entry in os.scandir(f"/proc/{pid}/fd")]
    pools = set()
    for path in held:
        # It closes some meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if "sglang_host_pool" in os.readlink(path):
                pools.add(os.stat(path).st_ino)
    return pools


class SharedMemoryPools(Case):
    def setUp(self):
        super().setUp()
        self.store = self.serve()

    def extra(self):
        return {**NAMED, "attach": self.store.address, "allocator": "shm"}

    def test_other_process_reads_pages_and_misses_damaged_ones(self):
        in_a_process("write", self.home, "closed", self.store.address, "shm")
        # From the process's memory.
        for n, (name, scenario) in enumerate(SCENARIOS.items()):
            with self.subTest(name):
                controller = self.start(scenario, self.extra())
                self.assertEqual(scenario.read(controller, n), (scenario.whole, scenario.whole, 0))
            self.end()
        self.store.stop()
        self.store.start()
        # From its SSD.
        for n, (name, scenario) in enumerate(SCENARIOS.items()):
            with self.subTest(name):
                controller = self.start(scenario, self.extra())
                self.assertEqual(scenario.read(controller, n), (scenario.whole, scenario.whole, 0))
            self.end()
        self.store.stop()
        flip(self.store.directory, 3)
        self.store.start()
        shorter = 0
        for n, (name, scenario) in enumerate(SCENARIOS.items()):
            with self.subTest(name):
                controller = self.start(scenario, self.extra())
                found, read, bad = scenario.read(controller, n)
                self.assertEqual(bad, 0)
                shorter += read < scenario.whole
                again = scenario.read(controller, n)
                self.assertEqual((again[1], again[2]), (again[0], 0))
            self.end()
        self.assertGreater(shorter, len(SCENARIOS) // 2, "flips that nothing noticed show nothing")

    def test_store_process_maps_every_pool(self):
        for name, scenario in SCENARIOS.items():
            if scenario.changed.get("interface_v1") == 0:
                # The controller puts copies.
                continue
            with self.subTest(name):
                controller = self.start(scenario, self.extra())
                hosts = {id(host): host for host, _ in scenario.of_each_page(1)}
                hosts |= {id(host): host for _, host, _ in scenario.of_last_pages(1)}
                files = {os.fstat(fd).st_ino for host in hosts.values() for fd in host.allocator.fds}
                self.assertTrue(files)
                self.assertEqual(scenario.write(controller, 7), scenario.whole)
                # Earlier links may not have ended yet.
                self.assertLessEqual(files, pools_of(self.store.process.pid))
            self.end()

    def test_pools_beyond_mapping_limit_are_sent(self):
        scenario = SCENARIOS["deepseek v4 layer_first"]
        many = Stack(partial(stacks.deepseek_v4, ratios=(4, 128) * 6), scenario.layout, page=scenario.page, window=scenario.window)
        with self.assertLogs("pagelith.shared", "WARNING") as logs:
            controller = self.start(many, self.extra())
        self.assertIn("too many shared memory regions", logs.output[0])
        self.assertEqual(many.write(controller, 3), many.whole)
        self.assertEqual(many.read(controller, 3), (many.whole, many.whole, 0))

    def test_foreign_memory_is_not_taken_for_pool_bytes(self):
        # As with a pool whose file is a different one: the store compares the bytes, and stores
        # none of it.
        scenario, other = mha("page_first"), mha("page_first")
        other.controller(self.extra()).detach_storage_backend()
        controller = self.start(scenario, {**NAMED, "attach": self.store.address})
        lying, address = other.anchor.allocator.fds[0], scenario.anchor.kv_buffer.data_ptr()
        controller.storage_backend._store.share(lying, address, scenario.anchor.kv_buffer.nbytes)
        with self.assertLogs("pagelith.sglang.hicache", "WARNING"):
            self.assertEqual(scenario.write(controller, 1), 0)
        self.assertEqual(controller.storage_backend.batch_exists(drive.hashes_of(drive.tokens_of(1, 20))), 0)


if __name__ == "__main__":
    unittest.main()

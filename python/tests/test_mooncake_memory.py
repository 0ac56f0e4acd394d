"""Memory of Mooncake's allocator: forks, memory that is freed while registered, and failed
allocations."""

import contextlib
import ctypes
import gc
import os
import resource
import subprocess
import sys
import unittest
from unittest import mock

from pagelith.compat import mooncake_memory
from pagelith.compat.mooncake import MooncakeDistributedStore, MooncakeHostMemAllocator

LENGTH = 8192
QUIET = "pagelith.compat.mooncake"


def descriptors():
    """The number of open descriptors of this memory."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += "pagelith-host-memory" in os.readlink(f"/proc/self/fd/{name}")
    return count


class Memory(unittest.TestCase):
    def in_a_child(self, body):
        """The exit code of a forked child that runs `body`."""
        child = os.fork()
        if child == 0:
            code = 99
            try:
                code = body()
            finally:
                os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def test_child_has_no_memory_of_its_parent(self):
        allocator = MooncakeHostMemAllocator()
        freed, held = allocator.alloc(LENGTH), allocator.alloc(LENGTH)
        allocator.free(freed)
        ctypes.memset(held, 1, LENGTH)

        def child():
            nonlocal allocator
            mapped, known = mooncake_memory.is_host_memory(held, 1), descriptors()
            mine = allocator.alloc(LENGTH)
            ctypes.memset(mine, 2, LENGTH)
            code = allocator.free(mine)
            allocator = None
            gc.collect()
            return 0 if (mapped, known, code) == (False, 0, 0) else 1

        self.assertEqual(self.in_a_child(child), 0)
        self.assertEqual(ctypes.string_at(held, LENGTH), b"\1" * LENGTH)
        mine = allocator.alloc(LENGTH)
        self.assertEqual(ctypes.string_at(mine, LENGTH), bytes(LENGTH))
        self.assertEqual((allocator.free(held), allocator.free(mine)), (0, 0))

    def test_child_does_not_free_parent_memory(self):
        allocator = MooncakeHostMemAllocator()
        held = allocator.alloc(LENGTH)
        ctypes.memset(held, 1, LENGTH)
        with mock.patch.object(mooncake_memory.logger, "error"):
            self.assertEqual(self.in_a_child(lambda: -allocator.free(held) % 256), 600 % 256)
        self.assertEqual(ctypes.string_at(held, LENGTH), b"\1" * LENGTH)

    def test_allocation_works_during_garbage_collection(self):
        # In a separate process, which a deadlock would hang.
        program = """if True:
            import faulthandler, gc
            from pagelith.compat.mooncake import MooncakeHostMemAllocator
            faulthandler.dump_traceback_later(60, exit=True)
            gc.set_threshold(1)
            for n in range(300):
                allocator = MooncakeHostMemAllocator()
                allocator.alloc(4096 * (1 + n % 7))
                allocator.itself = allocator
                del allocator
                MooncakeHostMemAllocator().alloc(4096 * (1 + n))
            """
        subprocess.run([sys.executable, "-c", program], check=True)

    def test_memory_outlives_its_allocator(self):
        allocator = MooncakeHostMemAllocator()
        address = allocator.alloc(LENGTH)
        ctypes.memset(address, 1, LENGTH)
        del allocator
        gc.collect()
        self.assertEqual(ctypes.string_at(address, LENGTH), b"\1" * LENGTH)

    def test_freed_address_is_not_reused(self):
        allocator = MooncakeHostMemAllocator()
        known, seen = descriptors(), set()
        for _ in range(100):
            address = allocator.alloc(LENGTH)
            seen.add(address)
            self.assertEqual(allocator.free(address), 0)
        self.assertEqual((len(seen), descriptors()), (100, known))

    def test_freed_memory_is_unregistered(self):
        client = MooncakeDistributedStore()
        self.assertEqual(client.setup("host", revision="weights-1"), 0)
        self.addCleanup(client.close)
        allocator, other = MooncakeHostMemAllocator(), ctypes.create_string_buffer(LENGTH)
        address = allocator.alloc(LENGTH)
        # In parts, and next to memory that is not the allocator's.
        parts = [(address, 4096), (address + 4096, 4096), (ctypes.addressof(other), LENGTH)]
        self.assertEqual([client.register_buffer(*part) for part in parts], [0, 0, 0])
        held = [registration for part in parts[:2] for registration in client._registrations[part[0]]]
        self.assertEqual(allocator.free(address), 0)
        self.assertEqual(len(held), 2)
        self.assertTrue(all("held=False" in repr(registration) for registration in held), held)
        self.assertEqual(client.batch_put_from(["a", "b"], [address, parts[2][0]], [8, 8]), [-600, 0])
        self.assertEqual(client._starts, [parts[2][0]])

    def test_locked_memory_is_freed(self):
        allocator = MooncakeHostMemAllocator()
        address = allocator.alloc(LENGTH)
        ctypes.memset(address, 1, LENGTH)
        self.assertEqual(ctypes.CDLL(None).mlock(ctypes.c_void_p(address), ctypes.c_size_t(LENGTH)), 0)
        self.assertEqual(allocator.free(address), 0)
        self.assertEqual(ctypes.string_at(address, LENGTH), bytes(LENGTH))

    def test_memory_whose_pages_cannot_be_released_is_freed(self):
        allocator = MooncakeHostMemAllocator()
        address = allocator.alloc(LENGTH)
        refuse = mock.Mock(wraps=mooncake_memory._libc, fallocate=mock.Mock(return_value=-1))
        with mock.patch.object(mooncake_memory, "_libc", refuse), self.assertLogs(QUIET, "WARNING") as logs:
            self.assertEqual(allocator.free(address), 0)
        self.assertIn("keeps its pages", logs.output[0])
        self.assertTrue(mooncake_memory.is_host_memory(address, LENGTH))

    def test_invalid_size_or_failed_allocation_returns_zero(self):
        allocator, known = MooncakeHostMemAllocator(), descriptors()
        for size in (-5, True, 1.5, "x", None, 1 << 62, 1 << 70, 1 << 50):
            with self.subTest(size=size), self.assertLogs(QUIET, "ERROR") as logs:
                self.assertEqual(allocator.alloc(size), 0)
            self.assertEqual(len(logs.output), 1)
        self.assertEqual(descriptors(), known)

    def test_unverifiable_buffer_returns_code(self):
        client, memory = MooncakeDistributedStore(), ctypes.create_string_buffer(LENGTH)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        self.addCleanup(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        with self.assertLogs(QUIET, "ERROR") as logs:
            resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
            code = client.register_buffer(ctypes.addressof(memory), LENGTH)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        self.assertEqual(code, -1)
        self.assertIn("cannot be checked", logs.output[0])


if __name__ == "__main__":
    unittest.main()

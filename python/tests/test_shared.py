"""Memory shared with a store process: which memory is shared, and that other memory is sent."""

import ctypes
import mmap
import os
import tempfile
import unittest
from unittest import mock

import pagelith
from pagelith import shared
from pagelith.compat.mooncake import MooncakeDistributedStore, MooncakeHostMemAllocator
from pagelith.settings import PoolSettings
from test_store import PAGE, Process, content, key

LENGTH = 8 * PAGE


def address_of(memory):
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


class Attached(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.process = Process(f"unix:{self.home.name}/socket", "--ssd", "0")
        self.addCleanup(self.process.end)

    def attach(self):
        store = pagelith.Store.attach(self.process.address)
        self.addCleanup(store.close)
        return store

    def mapped_files(self):
        """Files that the store process has mapped and did not create."""
        with open(f"/proc/{self.process.child.pid}/maps") as maps:
            return {name[0].rstrip() for line in maps if (name := line.split(maxsplit=5)[5:])}


class Shared(Attached):
    def put(self, store, address, first):
        """Put eight pages from that memory, and read them back."""
        keys, pages = [key(first + n) for n in range(8)], [content(first + n) for n in range(8)]
        ctypes.memmove(address, b"".join(pages), LENGTH)
        self.assertEqual([o.state for o in store.put(keys, [(address + n * PAGE, PAGE) for n in range(8)])], ["stored"] * 8)
        into = [bytearray(PAGE) for _ in keys]
        self.assertTrue(all(store.get(keys, into)))
        self.assertEqual(into, pages)

    def in_a_file(self, name="pagelith-test", keep=False):
        """Memory in a file in /dev/shm."""
        fd, path = tempfile.mkstemp(prefix=name, dir="/dev/shm")
        self.addCleanup(lambda: os.path.exists(path) and os.unlink(path))
        os.ftruncate(fd, LENGTH)
        # mmap duplicates the descriptor, which engines in C++ do not.
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        address = libc.mmap(None, LENGTH, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        if not keep:
            os.close(fd)
        else:
            self.addCleanup(os.close, fd)
        return path, address

    def test_memory_file_is_shared_by_name_or_descriptor(self):
        store, settings = self.attach(), PoolSettings(attach=self.process.address)
        for n, (keep, gone) in enumerate([(False, False), (True, False), (True, True)]):
            path, address = self.in_a_file(keep=keep)
            if gone:
                os.unlink(path)
            # Two ranges in one mapping, one of which begins within it.
            self.assertEqual(settings.register(store, [(address, PAGE), (address + PAGE, PAGE)]), [])
            self.put(store, address, 8 * n)
            self.assertIn(f"{path} (deleted)" if gone else path, self.mapped_files())

    def test_unsharable_memory_is_sent(self):
        store = self.attach()
        # A file without name and descriptor cannot be opened, and a different file with its name
        # must not be used.
        path, address = self.in_a_file()
        os.unlink(path)
        with self.assertLogs("pagelith.shared", "WARNING") as logs:
            self.assertEqual(shared.share(store, [(address, LENGTH)]), 0)
        self.assertRegex(logs.output[0], f"{LENGTH} bytes of host memory are not shared .* but sent: .*{path}")
        self.put(store, address, 0)
        ordinary = ctypes.create_string_buffer(LENGTH)
        self.assertEqual(shared.share(store, [(ctypes.addressof(ordinary), LENGTH)]), 0)
        self.put(store, ctypes.addressof(ordinary), 8)
        self.assertEqual({name for name in self.mapped_files() if "pagelith-test" in name}, set())

    def test_different_file_with_same_name_is_not_shared(self):
        path, address = self.in_a_file()
        os.unlink(path)
        (found,) = shared.mappings([(address, 1)])
        with open(path, "wb") as other:
            other.truncate(LENGTH)
        with (
            mock.patch.object(shared, "mappings", return_value=[found._replace(name=path)]),
            self.assertLogs("pagelith.shared", "WARNING") as logs,
        ):
            self.assertEqual(shared.share(self.attach(), [(address, LENGTH)]), 0)
        self.assertIn("a different file has this name", logs.output[0])

    def test_pipe_in_place_of_deleted_file_does_not_block(self):
        path, address = self.in_a_file()
        os.unlink(path)
        os.mkfifo(f"{path} (deleted)")
        self.addCleanup(os.unlink, f"{path} (deleted)")
        with self.assertLogs("pagelith.shared", "WARNING") as logs:
            self.assertEqual(shared.share(self.attach(), [(address, LENGTH)]), 0)
        self.assertIn("no descriptor of it", logs.output[0])

    def test_mappings_of_files_with_any_name_are_listed(self):
        store, memories = self.attach(), []
        for n, name in enumerate((b"odd\xff", b"odd\rname", b"odd\nname", "odd\u2028name".encode())):
            path = os.path.join(b"/dev/shm", b"pagelith-test-" + name)
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            self.addCleanup(os.close, fd)
            self.addCleanup(os.unlink, path)
            os.ftruncate(fd, LENGTH)
            memory = mmap.mmap(fd, LENGTH)
            # Shared memory must stay in place.
            memories.append(memory)
            (found,) = shared.mappings([(address_of(memory), 1)])
            self.assertEqual(os.fsencode(found.name), path.replace(b"\n", b"\\012"))
            self.assertEqual(shared.share(store, [(address_of(memory), LENGTH)]), 0 if b"\n" in name else 1)
            self.put(store, address_of(memory), 8 * n)

    def test_mappings_that_cannot_be_listed_are_sent(self):
        client = MooncakeDistributedStore()
        client._memory = PoolSettings(attach=self.process.address)
        client._store = self.attach()
        memory = ctypes.create_string_buffer(LENGTH)
        with (
            mock.patch("builtins.open", side_effect=OSError(24, "Too many open files")),
            self.assertLogs("pagelith.shared", "WARNING") as logs,
        ):
            self.assertEqual(client.register_buffer(ctypes.addressof(memory), LENGTH), 0)
        self.assertIn("cannot be listed", logs.output[0])

    def test_mapping_with_parts_of_different_flags_is_joined(self):
        address = MooncakeHostMemAllocator().alloc(LENGTH)
        libc = ctypes.CDLL(None, use_errno=True)
        self.assertEqual(libc.mlock(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE)), 0)
        (found,) = shared.mappings([(address + LENGTH - 1, 1)])
        self.assertEqual((found.address, found.length), (address, LENGTH))

    def test_pipe_is_refused_without_blocking(self):
        read, write = os.pipe()
        self.addCleanup(os.close, read)
        self.addCleanup(os.close, write)
        for fd in (read, write):
            with self.assertRaisesRegex(pagelith.InvalidError, f"^fd is not a descriptor of shared memory fd={fd}: not a regular file$"):
                self.attach().share(fd, PAGE, LENGTH)

    def test_unmapped_memory_is_not_shared(self):
        fd = os.memfd_create("pool")
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, LENGTH)
        with self.assertRaisesRegex(pagelith.InvalidError, "not mapped in this process"):
            self.attach().share(fd, 1 << 45, LENGTH)


class MooncakeMemory(Attached):
    """Memory from Mooncake's allocator."""

    NAME = "/memfd:pagelith-host-memory (deleted)"

    def setUp(self):
        super().setUp()
        known = mock.patch.dict(os.environ, MOONCAKE_PAGELITH_REVISION="weights-1")
        known.start()
        self.addCleanup(known.stop)
        self.client = MooncakeDistributedStore()
        self.addCleanup(self.client.close)

    def put(self, name, address, value):
        ctypes.memmove(address, value, len(value))
        self.assertEqual(self.client.batch_put_from([name], [address], [len(value)]), [0])
        self.assertEqual(self.client.get(name), value)

    def test_allocator_memory_is_shared_with_store_process(self):
        allocator = MooncakeHostMemAllocator()
        before, behind = allocator.alloc(LENGTH), allocator.alloc(LENGTH)
        # Registered before the client is set up, and after.
        self.assertEqual(self.client.register_buffer(before, LENGTH), 0)
        self.assertEqual(self.client.setup("host", master_server_addr=self.process.address), 0)
        self.put("a", before, content(1))
        self.assertIn(self.NAME, self.mapped_files())
        self.assertEqual(self.client.register_buffer(behind, LENGTH), 0)
        self.put("b", behind, content(2))

    def test_other_memory_is_sent(self):
        self.assertEqual(self.client.setup("host", master_server_addr=self.process.address), 0)
        memory = ctypes.create_string_buffer(LENGTH)
        self.assertEqual(self.client.register_buffer(ctypes.addressof(memory), LENGTH), 0)
        self.put("a", ctypes.addressof(memory), content(1))
        self.assertNotIn(self.NAME, self.mapped_files())

    def test_freed_addresses_are_not_reused(self):
        allocator = MooncakeHostMemAllocator()
        self.assertEqual(self.client.setup("host", master_server_addr=self.process.address), 0)
        seen = set()
        # More regions than a store maps: the others are sent.
        with self.assertLogs("pagelith.shared", "WARNING"):
            for n in range(40):
                address = allocator.alloc(LENGTH - n)
                seen.add(address)
                self.assertEqual(ctypes.string_at(address, LENGTH - n), bytes(LENGTH - n))
                self.assertEqual(self.client.register_buffer(address, LENGTH - n), 0)
                self.put(f"k{n}", address, content(n))
                self.assertEqual((self.client.unregister_buffer(address), allocator.free(address)), (0, 0))
                self.assertEqual(ctypes.string_at(address, LENGTH), bytes(LENGTH))
        self.assertEqual(len(seen), 40)

    def test_freed_memory_is_returned(self):
        allocator = MooncakeHostMemAllocator()
        address = allocator.alloc(LENGTH)
        ctypes.memset(address, 1, LENGTH)
        (found,) = shared.mappings([(address, LENGTH)])
        with shared._descriptor(found) as fd:
            self.assertEqual(os.fstat(fd).st_blocks * 512, LENGTH)
            allocator.free(address)
            self.assertEqual(os.fstat(fd).st_blocks, 0)


if __name__ == "__main__":
    unittest.main()

"""Memory of devices in puts and gets, over a fake of both drivers, whose library `check.sh` passes in
FAKE_DEVICE. The loader looks for a library when a process starts, so the tests run in another one.
"""

import ctypes
import gc
import os
import random
import subprocess
import sys
import tempfile
import unittest
import weakref

import fake_driver

HERE = os.path.dirname(os.path.abspath(__file__))


class OverFakeDriver(unittest.TestCase):
    def test_device_memory_is_put_and_got(self):
        fake_driver.run_file(self, __file__)

    def test_absent_driver_is_unavailable_and_package_works(self):
        import pagelith

        with pagelith.Store({"dram": {"bytes": "1MiB"}}) as store:
            with self.assertRaisesRegex(pagelith.UnavailableError, "no ascend driver: .*install CANN"):
                store.bind_device("npu:0")
            for name in ["cuda", "cuda:x", "tpu:0", ""]:
                with self.assertRaisesRegex(pagelith.InvalidError, "device must be cuda:N"):
                    store.bind_device(name)
            key = pagelith.Key(pagelith.Namespace("m"), "page")
            with self.assertRaisesRegex(pagelith.InvalidError, "stream is for memory of devices"):
                store.put([key], [b"bytes"], stream=0)
            self.assertTrue(all(store.put([key], [b"bytes"])))


def run():
    """Run the tests of devices in this process."""
    import pagelith
    import test_tensors

    fake, fake_ascend = fake_driver.loaded("libcuda.so.1"), fake_driver.loaded("libascendcl.so")

    def count(what):
        return fake.fake_device_count(what.encode())

    def change(script):
        assert fake.fake_device_change(script.encode()) == 0, script

    class Memory(fake_driver.Memory):
        """Memory of the device."""

        driver = fake

    class AscendMemory(Memory):
        """Memory of an Ascend device."""

        driver = fake_ascend

    class Array(Memory):
        """With `__cuda_array_interface__`: rows of two bytes an element."""

        def __init__(self, content, **changed):
            super().__init__(content)
            self.interface = {"shape": (self.length // 2,), "typestr": "<f2", "data": (self.address, False), "version": 3, **changed}

        @property
        def __cuda_array_interface__(self):
            return self.interface

    class Tensor(test_tensors.Tensor):
        """A tensor of device 0, or of another kind of device."""

        def __init__(self, memory, shape, device=test_tensors.CUDA, **changed):
            super().__init__(shape, device=device, **changed)
            self.structure.data, self.streams = memory.address, []

        def __dlpack__(self, stream=None):
            self.streams.append(stream)
            return super().__dlpack__()

    class Stream:
        """A stream as PyTorch has it."""

        def __init__(self, number):
            self.cuda_stream = number

    class Protocol:
        """A stream with NVIDIA's protocol."""

        def __init__(self, number):
            self.number = number

        def __cuda_stream__(self):
            return 0, self.number

    key, content = test_tensors.key, test_tensors.content

    class Devices(unittest.TestCase):
        def setUp(self):
            change("late=1 hang=0")
            self.store = pagelith.Store({"dram": {"bytes": "8MiB", "pin": "cuda"}, "staging": {"bytes": "4MiB"}})
            self.addCleanup(self.store.close)
            self.assertEqual(fake.fake_device_start(0), 0)
            self.device = self.store.bind_device("cuda:0")

        def test_each_kind_of_piece_is_put_and_got(self):
            whole = content(1, 10_000)
            memory = Memory(whole)
            address = (self.device, memory.address, memory.length)
            halves = [(self.device, memory.address, 4_000), (self.device, memory.address + 4_000, 6_000)]
            sources = [address, halves, Array(whole), Tensor(memory, [10, 500])]
            keys = [key(n) for n in range(len(sources))]
            self.assertTrue(all(self.store.put(keys, sources)))
            into = [bytearray(10_000) for _ in keys]
            self.assertTrue(all(self.store.get(keys, into)))
            self.assertEqual(into, [whole] * len(keys))
            for n, destination in enumerate([address, halves, Array(bytes(10_000)), Tensor(memory, [5_000])]):
                memory.write(bytes(10_000))
                (outcome,) = self.store.get([keys[n]], [destination])
                self.assertEqual((bool(outcome), outcome.tier, outcome.bytes), (True, "dram", 10_000))
                got = destination if isinstance(destination, Array) else memory
                self.assertEqual(got.read(), whole, n)
            (outcome,) = self.store.get([keys[0]], [halves[:1]], ranges=[(5, 4_005)])
            self.assertTrue(outcome and memory.read()[:4_000] == whole[5:4_005])

        def test_pages_groups_and_submitted_batches_take_device_memory(self):
            space = pagelith.Namespace("m")
            memories = [Memory(content(n, 5_000)) for n in range(4)]
            pieces = [(self.device, memory.address, memory.length) for memory in memories]
            page = [pagelith.Key(space, "a", component=name) for name in "kv"]
            self.assertTrue(self.store.put_group(page, pieces[:2]))
            state = pagelith.Key(space, "a", pool="mamba", component="state")
            self.assertTrue(self.store.put_group([state], pieces[2:3], base=page[0]))
            parts = [pagelith.Key(space, "b", component=name) for name in "kv"]
            (first,) = self.store.put_pages(parts[:1], pieces[:1], required=parts)
            (last,) = self.store.submit_put_pages(parts[1:], pieces[1:2], required=parts).result()
            self.assertEqual((first.state, last.state), ("waiting", "stored"))
            (one,) = self.store.submit_put([key(7)], pieces[3:]).result()
            self.assertTrue(one)
            for memory in memories:
                memory.write(bytes(5_000))
            wanted = [page[0], page[1], state, key(7)]
            self.assertTrue(all(self.store.submit_get(wanted, pieces).result()))
            self.assertEqual([memory.read() for memory in memories], [content(n, 5_000) for n in range(4)])
            with self.assertRaisesRegex(pagelith.InvalidError, r"sources\[0\]: memory must be a pair"):
                self.store.begin_group([key(8)]).put([key(8)], pieces[:1])

        def test_copies_wait_for_the_stream(self):
            for n in range(12):
                stream = fake.fake_device_stream()
                change(f"late=3 seed={n + 1}")
                array = Array(bytes(10_000), **({"stream": stream} if n % 4 == 2 else {}))
                own = 0 if n % 4 == 3 else stream
                self.assertEqual(fake.fake_device_fill(array.address, 10_000, n + 1, own), 0)
                given = {0: {"stream": stream}, 1: {"stream": Stream(stream)}, 2: {}, 3: {}}[n % 4]
                self.assertTrue(all(self.store.put([key(n)], [array], **given)))
                into = bytearray(10_000)
                self.assertTrue(all(self.store.get([key(n)], [into])))
                self.assertEqual(into, bytes([n + 1]) * 10_000, n)
            tensor = Tensor(Memory(bytes(10_000)), [5_000])
            for given in [{}, {"stream": 0}, {"stream": stream}]:
                self.store.put([key(1)], [tensor], **given)
            self.assertEqual(tensor.streams, [1, 1, stream])
            # Work of the default stream is not waited for by a wait for another stream.
            named, keys = Array(bytes(10_000), stream=stream), [key(20), key(21)]
            for other in [tensor, (self.device, named.address, 10_000), Array(bytes(10_000))]:
                for sources in [[named, other], [other, named]]:
                    with self.assertRaisesRegex(pagelith.InvalidError, r"sources\[1\]: memory of one call must be of one stream"):
                        self.store.put(keys, sources)
                    with self.assertRaisesRegex(pagelith.InvalidError, r"sources\[0\]\[1\]: memory of one call must be of one stream"):
                        self.store.put(keys[:1], [sources])
                    self.assertEqual(self.store.exists(keys), [False] * 2)
                self.assertTrue(all(self.store.put(keys, [named, other], stream=stream)))
                self.assertTrue(all(self.store.put(keys, [Array(bytes(10_000), stream=1), other])))
                self.store.remove(keys)

        def test_legacy_stream_is_the_default_stream_in_each_form(self):
            for n, stream in enumerate([1, Stream(1), Protocol(1), 0, Stream(0), Protocol(0)]):
                array = Array(bytes(10_000))
                self.assertEqual(fake.fake_device_fill(array.address, 10_000, n + 1, 0), 0)
                self.assertTrue(all(self.store.put([key(n)], [array], stream=stream)), n)
                into = bytearray(10_000)
                self.assertTrue(all(self.store.get([key(n)], [into])))
                self.assertEqual(into, bytes([n + 1]) * 10_000, n)

        def test_stream_of_submitted_batch_is_kept_until_its_end(self):
            change("hang=1")
            stream = Stream(fake.fake_device_stream())
            number, kept = stream.cuda_stream, weakref.ref(stream)
            batch = self.store.submit_put([key(1)], [Array(content(1, 10_000))], stream=stream)
            del stream
            gc.collect()
            self.assertEqual((batch.done(), kept().cuda_stream), (False, number))
            change("hang=0")
            self.assertTrue(all(batch.result()))
            gc.collect()
            self.assertIsNone(kept())

        def test_submitted_batch_refuses_the_default_stream_of_a_thread(self):
            array = Array(content(1, 10_000))
            own = Array(content(1, 10_000), stream=2)
            for sources, given in [([array], {"stream": 2}), ([array], {"stream": Protocol(2)}), ([own], {})]:
                for submit in [self.store.submit_put, self.store.submit_put_pages, self.store.submit_get]:
                    with self.assertRaisesRegex(pagelith.InvalidError, "each thread has its own stream 2"):
                        submit([key(1)], sources, **given)
            self.assertEqual(self.store.exists([key(1)]), [False])

        def test_ascend_memory_requires_a_stream(self):
            store = pagelith.Store({"dram": {"bytes": "8MiB"}, "staging": {"bytes": "4MiB"}})
            self.addCleanup(store.close)
            self.assertEqual(fake_ascend.fake_device_start(0), 0)
            device, memory = store.bind_device("npu:0"), AscendMemory(content(1, 10_000))
            piece, stream = (device, memory.address, 10_000), fake_ascend.fake_device_stream()
            for memories in [[piece], [Tensor(memory, [5_000], device=12)]]:
                calls = [store.put, store.put_group, store.put_pages, store.get, store.submit_put, store.submit_put_pages, store.submit_get]
                for call in calls:
                    with self.assertRaisesRegex(pagelith.InvalidError, r"\[0\]: memory of an Ascend device requires stream="):
                        call([key(1)], memories)
                self.assertEqual(store.exists([key(1)]), [False])
                self.assertTrue(all(store.put([key(1)], memories, stream=stream)))
                memory.write(bytes(10_000))
                self.assertTrue(all(store.get([key(1)], memories, stream=0)))
                self.assertEqual(memory.read(), content(1, 10_000))
                store.remove([key(1)])

        def test_closed_store_is_said_whatever_the_memory(self):
            piece = (self.device, Memory(bytes(10_000)).address, 10_000)
            tensor = Tensor(Memory(bytes(10_000)), [5_000])
            self.store.close()
            calls = ["put", "put_group", "put_pages", "get", "submit_put", "submit_put_pages", "submit_get"]
            for name in calls:
                for memory in [piece, tensor, Array(bytes(10_000)), (self.device, 4_096, 10)]:
                    with self.assertRaisesRegex(pagelith.ClosedError, "store is closed"):
                        getattr(self.store, name)([key(1)], [memory])
            self.assertEqual(tensor.streams, [])

        def test_forked_child_calls_no_driver(self):
            # A child that called the driver would be told that the memory is not of the device.
            foreign = Array(bytes(10_000), data=(4_096, False))
            piece = (self.device, 4_096, 10_000)

            def of_own_store():
                with pagelith.Store({"dram": {"bytes": "1MiB"}}) as store:
                    store.put([key(1)], [piece])

            calls = [lambda: self.store.put([key(1)], [foreign]), lambda: self.store.get([key(1)], [piece])]
            calls += [lambda: self.store.submit_put([key(1)], [foreign]), lambda: self.device.late_copies, of_own_store]
            for call in calls:
                child = os.fork()
                if child == 0:
                    try:
                        call()
                    except pagelith.ForkedError:
                        os._exit(0)
                    finally:
                        os._exit(1)
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual(self.device.late_copies, 0)

        def test_unusable_memory_is_refused_without_effect(self):
            whole = content(1, 10_000)
            self.store.put([key(1)], [whole])
            memory = Memory(bytes(10_000))
            unbound = pagelith.Store({"dram": {"bytes": "1MiB"}})
            self.addCleanup(unbound.close)
            refused = [
                (Array(bytes(10_000), strides=(4,)), BufferError, "not contiguous"),
                (Array(bytes(10_000), shape=(50, 100), strides=(2, 100)), BufferError, "not contiguous"),
                (Array(bytes(10_000), data=(memory.address, True)), BufferError, "read-only"),
                (Array(bytes(10_000), mask=memory), BufferError, "has a mask"),
                (Array(bytes(10_000), typestr="f"), pagelith.InvalidError, "typestr"),
                (Array(bytes(10_000), data=(4_096, False)), pagelith.InvalidError, "not bound to this store"),
                (Tensor(memory, [10, 250], strides=[500, 1]), BufferError, "not contiguous"),
                (Tensor(memory, [5_000], said=test_tensors.CPU), pagelith.InvalidError, "not in host memory"),
                (Tensor(memory, [5_000], device=10), pagelith.InvalidError, "not in host memory device_type=10"),
                ((self.device, memory.address, 10_001), pagelith.InvalidError, "not memory of the device"),
                ((self.device, memory.address), TypeError, "address must be"),
                ([(self.device, memory.address, 10), bytearray(9_990)], TypeError, "must all be of the host"),
            ]
            for destination, error, text in refused:
                with self.assertRaisesRegex(error, text):
                    self.store.get([key(1)], [destination])
                self.assertEqual(memory.read(), bytes(10_000), text)
            piece = (self.device, memory.address, 10_000)
            with self.assertRaisesRegex(pagelith.InvalidError, "must not overlap"):
                self.store.get([key(1), key(1)], [piece, piece])
            for one, text in [(piece, "was not bound through this store"), (Array(whole), "is not bound to this store")]:
                with self.assertRaisesRegex(pagelith.InvalidError, text):
                    for outcome in unbound.put([key(1)], [one]):
                        raise outcome.error
            (outcome,) = self.store.get([key(1)], [(self.device, memory.address, 9_999)])
            self.assertRegex(str(outcome.error), "destination is shorter than the object")
            self.assertEqual(memory.read(), bytes(10_000))

        def test_object_of_late_copy_is_kept_until_device_is_done(self):
            self.store.put([key(1)], [content(1, 10_000)])
            memory = Memory(bytes(10_000))
            tensor = Tensor(memory, [5_000])
            change("hang=1")
            (outcome,) = self.store.get([key(1)], [tensor], timeout=1)
            self.assertRegex(str(outcome.error), "device is not done with copies in time")
            gc.collect()
            self.assertEqual((self.device.late_copies, tensor.dropped), (1, 0))
            change("hang=0")
            while self.device.late_copies:
                fake.fake_device_step()
            gc.collect()
            self.assertEqual((memory.read(), tensor.dropped), (content(1, 10_000), 1))

        def test_attached_store_copies_through_memory_of_this_process(self):
            with tempfile.TemporaryDirectory() as home:
                address = f"unix:{home}/socket"
                command = [os.environ["STORE_PROGRAM"], "serve", "--listen", address, "--dram", "8MiB"]
                served = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
                try:
                    self.assertIn("listening", served.stdout.readline())
                    with pagelith.Store.attach(address) as store:
                        self.assertEqual(store.bind_device("cuda:0", staging_bytes=1 << 20).name, "cuda:0")
                        array, whole = Array(content(3, 10_000)), content(3, 10_000)
                        self.assertTrue(all(store.put([key(3)], [array])))
                        array.write(bytes(10_000))
                        self.assertTrue(all(store.get([key(3)], [array])))
                        self.assertEqual(array.read(), whole)
                finally:
                    served.terminate()
                    served.wait()
                    served.stdout.close()
            with self.assertRaisesRegex(pagelith.InvalidError, "staging_bytes is for attached stores"):
                self.store.bind_device("cuda:0", staging_bytes=1 << 20)

        def test_device_is_named_and_bound_once(self):
            again = self.store.bind_device("cuda:0")
            self.assertEqual((again.name, repr(again), again.late_copies), ("cuda:0", "Device(cuda:0)", 0))
            self.assertEqual(count("retained"), 1)
            with self.assertRaisesRegex(pagelith.InvalidError, "no such device"):
                pagelith.Store.bind_device(self.store, "cuda:1")

        def tearDown(self):
            self.store.close()
            del self.store, self.device
            gc.collect()
            self.assertEqual([count(what) for what in ("events", "work", "locked-bytes", "violations")], [0] * 4)

    class Pages(list):
        """Pages of the device, as pieces."""

        def __init__(self, arrays, page_bytes):
            super().__init__(arrays)
            self.page_bytes = page_bytes

    class Bare:
        """What `gpu.py` needs of a device, here without its framework."""

        name = "cuda:0"

        def random(self, pages, page_bytes, seed):
            return Pages([Array(random.Random(seed + n).randbytes(page_bytes)) for n in range(pages)], page_bytes)

        def copied(self, source, destination):
            for from_, to in zip(source, destination):
                to.write(from_.read())

        def spoil(self, pages):
            for page in pages:
                page.write(bytes(pages.page_bytes))

        def differing(self, pages, at, source, of):
            return [n for n, (here, there) in enumerate(zip(at, of)) if pages[here].read() != source[there].read()]

        def settle(self):
            pass

        forget_error = settle

    class Host:
        """A pool of the host; its pages are read and written as those of the device."""

        def __init__(self, length):
            self.memory = (ctypes.c_char * length)()
            self.address = ctypes.addressof(self.memory)

        def spoil(self):
            ctypes.memset(self.memory, 0xA5, len(self.memory))

        def pages(self, pages, page_bytes):
            class Page:
                def __init__(page, address):
                    page.address = address

                def read(page):
                    return ctypes.string_at(page.address, page_bytes)

                def write(page, content):
                    ctypes.memmove(page.address, content, page_bytes)

            return [Page(self.address + n * page_bytes) for n in range(pages)]

    class Measurements(unittest.TestCase):
        """The logic of `gpu.py`; its figures are those of a GPU only."""

        def test_each_way_between_device_and_store_is_measured_and_compared(self):
            import gpu_devices

            change("late=0 hang=0")
            fake.fake_device_start(0)
            with tempfile.TemporaryDirectory() as folder:
                bench = gpu_devices.DirectBench(Bare(), Host(10 * 16_384), 16_384, 10)
                bench.run(folder, 2, lambda turn: True, os.environ["STORE_PROGRAM"])
            self.assertEqual((bench.failed, bench.wrong, bench.missing), ({}, 0, 0))
            # Seven gets of ten pages in each of two rounds.
            self.assertEqual(bench.compared, 140)
            table = gpu_devices.table([bench])
            for what in gpu_devices.ROWS:
                self.assertIn(f"| 16 KiB | {what} | ", table)
            bench.back[3].write(bytes(16_384))
            self.assertEqual(bench.device.differing(bench.back, [3], bench.back, [4]), [0])

    classes = [Devices, Measurements]
    unordered = unittest.TestSuite(map(unittest.defaultTestLoader.loadTestsFromTestCase, classes))
    return unittest.TextTestRunner(verbosity=2).run(unordered).wasSuccessful()


if __name__ == "__main__":
    sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "clients")]
    raise SystemExit(0 if run() else 1)

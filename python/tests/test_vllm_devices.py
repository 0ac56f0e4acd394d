"""The connector with caches in memory of a device, which the store copies to and from: with stand-ins
for vLLM and torch, over a fake driver.
"""

import logging
import queue
import sys
import threading
import time
import types
import unittest
from unittest import mock

import fake_driver


class OverFakeDriver(unittest.TestCase):
    def test_connector_copies_between_device_and_store(self):
        fake_driver.run_file(self, __file__)


def run():
    """Run the tests in this process."""
    import device_stand_ins
    import pagelith
    import vllm_stand_ins
    from vllm_engine import FULL, TOKENS, Case, hashes, window
    from vllm_stand_ins import Blocks, Output, Request

    from pagelith.devices import DeviceStuck, bound

    driver = device_stand_ins.Driver()
    sys.modules["torch"] = driver.torch

    class Cache(vllm_stand_ins.Cache):
        """A tensor in memory of the device, written by the stream of the computation."""

        def allocate(self, length):
            self.device, self.length = driver.device, length
            self._address = driver.fake.fake_device_allocate(0, length)

        def fill(self, block, byte):
            for n, place in enumerate(self.at(block)[::16]):
                driver.fill(self._address + place, 16, (byte + n) % 251)

        def block(self, block):
            driver.drain()
            return driver.read(self._address + block * self.stride(0), self.stride(0))

    class Devices(Case):
        def setUp(self):
            super().setUp()
            driver.change("late=3 hang=0 seed=1")
            self.addCleanup(lambda: self.assertEqual(driver.left(), {}))
            self.addCleanup(driver.change, "hang=0")

        def extra(self, **given):
            return super().extra(device_pieces=True, **given)

        def engine(self, extra=None, **different):
            return super().engine(extra, **{"cache": Cache, "blocks": 16, **different})

        def zero(self, engine, ids):
            """Let the computation zero blocks, as vLLM does for some models when it allocates them."""
            for cache in engine.caches[0]:
                for block in ids:
                    driver.fill(cache.data_ptr() + block * cache.stride(0), cache.stride(0), 0)

        def assert_computed(self, engine, ids, by):
            """These blocks have the bytes that a computation of the blocks `by` wrote."""
            patterns = [tuple(bytes((block + 90 * n + at // 16) % 251 for at in range(64)) for n in range(2)) for block in by]
            self.assertEqual(engine.bytes(ids), patterns)

        def test_blocks_are_saved_and_loaded_in_order_with_computation(self):
            for n, extra in enumerate([{}, {"load_async": False}, {"save_async": True}]):
                for seed in range(1, 9):
                    driver.change(f"seed={seed}")
                    engine = self.filled(4, extra=self.extra(**extra, revision=f"{n} {seed}"), policy="fail")
                    ids = [6, 7, 8, 9]
                    engine.workers[0]._work._saving.end()
                    self.zero(engine, ids)
                    request = Request("second", 4 * TOKENS + 1, hashes(4))
                    self.assertEqual(engine.answer(request, [*ids, 10], {}), 4 * TOKENS)
                    self.assert_computed(engine, ids, [1, 2, 3, 4])
                    engine.close()

        def test_bytes_are_those_of_caches_in_host_memory(self):
            self.filled(3).close()
            host = self.engine(super().extra(), cache=vllm_stand_ins.Cache)
            request = Request("second", 3 * TOKENS + 1, hashes(3))
            self.assertEqual(host.answer(request, [6, 7, 8, 9], {}), 3 * TOKENS)
            self.assert_computed(host, [6, 7, 8], [1, 2, 3])

        def test_block_is_overwritten_after_asynchronous_save(self):
            for seed in range(1, 9):
                driver.change(f"seed={seed}")
                engine = self.filled(3, extra=self.extra(save_async=True, revision=str(seed)))
                other = Request("other", 3 * TOKENS, hashes(3, "other"))
                engine.scheduler.update_state_after_alloc(other, Blocks([1, 2, 3]), 0)
                engine.step(engine.new(other, [1, 2, 3], 0), {1: 11, 2: 12, 3: 13})
                engine.workers[0]._work._saving.end()
                for prompt, into, by in (("prompt", [6, 7, 8], [1, 2, 3]), ("other", [9, 10, 11], [11, 12, 13])):
                    request = Request(prompt, 3 * TOKENS + 1, hashes(3, prompt))
                    self.assertEqual(engine.answer(request, [*into, 12], {}), 3 * TOKENS)
                    self.assert_computed(engine, into, by)
                engine.close()

        def test_each_stream_is_used_by_one_thread(self):
            from pagelith.vllm.blocks import OnDevice

            for extra in ({"load_async": False}, {"read_threads": 1}):
                used, arguments = {}, OnDevice.call_arguments

                def records(memory, after):
                    used.setdefault(memory._stream, set()).add(threading.get_ident())
                    return arguments(memory, after)

                with mock.patch.object(OnDevice, "call_arguments", records):
                    engine = self.filled(3, extra=self.extra(**extra, save_async=True, revision=str(extra)), at_once=False, policy="fail")
                    request = Request("second", 3 * TOKENS + 1, hashes(3))
                    engine.workers[0]._work._saving.end()
                    self.assertEqual(engine.begin(request, [6, 7, 8, 9]), (3 * TOKENS, "load_async" not in extra))
                    engine.step(Output() if "load_async" not in extra else engine.new(request, [6, 7, 8, 9], 3 * TOKENS))
                    engine.close()
                self.assertEqual([len(threads) for threads in used.values()], [1, 1])

        def test_windows_and_several_groups_are_saved_and_loaded(self):
            engine = self.engine(specs=(FULL, window(2 * TOKENS + 1)))
            first = Request("first", 3 * TOKENS, hashes(3))
            engine.answer(first, ([1, 2, 3], [4, 5, 6]), {block: block for block in range(1, 7)})
            ids = ([7, 8, 9, 15], [0, 11, 12, 14])
            self.assertEqual(engine.answer(Request("second", 3 * TOKENS + 1, hashes(3)), ids, {}), 3 * TOKENS)
            self.assertEqual(engine.loaded.failed_requests, set())
            self.assert_computed(engine, [7, 8, 9, 11, 12], [1, 2, 3, 5, 6])

        def test_workers_of_a_store_process_copy_through_their_own_memory(self):
            with self.process() as attach:
                extra = {**attach, "device_pieces": True, "staging_bytes": 1 << 20}
                engine = self.engine(extra, ranks=2)
                engine.answer(Request("first", 3 * TOKENS, hashes(3)), [1, 2, 3], {1: 1, 2: 2, 3: 3})
                request = Request("second", 3 * TOKENS + 1, hashes(3))
                self.assertEqual(engine.answer(request, [6, 7, 8, 9], {}), 3 * TOKENS)
                for rank in range(2):
                    self.assertEqual(engine.bytes([6, 7, 8], rank), engine.bytes([1, 2, 3], rank))
                engine.close()

        def test_store_copies_by_itself_where_its_memory_is_locked(self):
            from pagelith.vllm.blocks import OnDevice

            class Torch:
                """The copies of torch, which are not run here."""

                def __init__(self, *_):
                    self.copies, self.end = True, lambda: None

                def spans(self):
                    return []

            staged = types.ModuleType("pagelith.vllm.staged")
            staged.Staged = Torch
            with self.process() as attach, mock.patch.dict(sys.modules, {"pagelith.vllm.staged": staged}):
                plain = super().extra()["store"]
                pinned = {**plain, "dram": {"bytes": "32MiB", "pin": "cuda"}}
                for extra, kind in (
                    ({"store": plain}, Torch), ({"store": pinned}, OnDevice), (attach, OnDevice), ({"store": plain, "device_pieces": True}, OnDevice),
                    ({"store": pinned, "device_pieces": False}, Torch), ({**attach, "device_pieces": False}, Torch),
                    # Two pages of the device do not fit: torch copies.
                    ({**attach, "staging_bytes": 255}, Torch),
                ):
                    engine = self.engine(extra)
                    self.assertIs(type(engine.workers[0]._work._save_memory), kind, extra)
                    engine.close()

        def test_late_load_is_reported_when_the_device_is_done(self):
            engine = self.filled(3, extra=self.extra(load_async=True, get_timeout_ms=1000), at_once=False)
            work, ends = engine.workers[0]._work, []
            device = work._save_memory._device

            class Done(queue.SimpleQueue):
                def put(self, item):
                    ends.append(device.handle.late_copies)
                    super().put(item)

            work._done = Done()
            driver.drain()
            driver.change("hang=1")
            request = Request("second", 3 * TOKENS + 1, hashes(3))
            self.assertEqual(engine.begin(request, [6, 7, 8, 9]), (3 * TOKENS, True))
            with self.assertLogs("pagelith", "WARNING") as logs:
                told, end = engine.step(Output()), time.monotonic() + 60
                while not device.handle.late_copies:
                    self.assertLess(time.monotonic(), end, "no copy is late")
                self.assertEqual((told.ended, ends), (set(), []))
                driver.change("hang=0")
                work._threads.shutdown(wait=True)
            self.assertRegex(" ".join(logs.output), "waiting for the device to end copies.*device=cuda:0 copies=1")
            told = engine.step(Output())
            self.assertEqual((ends, told.ended, told.failed), ([0], {"second"}, {6, 7, 8}))

        def late(self, device, store):
            """Let the device not end a copy that a call gave up."""
            address = driver.fake.fake_device_allocate(0, 4096)
            key = pagelith.Key(pagelith.Namespace("a/model"), bytes(32))
            self.assertTrue(all(store.put([key], [bytes(4096)])))
            driver.change("hang=1")
            while not device.handle.late_copies:
                store.get([key], [[(device.handle, address, 4096)]], timeout=0.02)

        def test_copies_that_a_device_does_not_end_are_an_error_at_the_limit(self):
            with pagelith.Store({"dram": {"bytes": "4MiB"}, "staging": {"bytes": "2MiB"}}) as store:
                device = bound(store, {driver.device}, True, None, 1 << 20)
                device.settle(limit_s=0)
                self.late(device, store)
                with self.assertLogs("pagelith.devices", "WARNING"), self.assertRaisesRegex(
                    DeviceStuck, "restart the engine.*not done after 0 s.*device=cuda:0 copies=1"
                ):
                    device.settle(limit_s=0)
                # The limit is not waited for if the device says that it is lost.
                lost = mock.patch.object(device_stand_ins.Event, "query", side_effect=RuntimeError("the device is lost"))
                with lost, self.assertLogs("pagelith.devices", "WARNING"), self.assertRaisesRegex(DeviceStuck, "the device is lost"):
                    device.settle(limit_s=1e9)
                device.end()
                device.settle(limit_s=0)
                driver.change("hang=0")
                while device.handle.late_copies:
                    pass

        def test_load_that_cannot_be_known_to_have_ended_ends_the_engine(self):
            for load_async in (False, True):
                engine = self.filled(3, extra=self.extra(load_async=load_async, revision=str(load_async)), at_once=False, policy="fail")
                memory = engine.workers[0]._work._save_memory
                request = Request("second", 3 * TOKENS + 1, hashes(3))
                self.assertEqual(engine.begin(request, [6, 7, 8, 9]), (3 * TOKENS, load_async))
                engine.store.remove(engine.keys(hashes(3))[1:2])
                with mock.patch.object(memory._device, "settle", side_effect=DeviceStuck("stuck")), self.assertRaisesRegex(DeviceStuck, "stuck"):
                    if load_async:
                        engine.step(Output())
                        engine.workers[0]._work._threads.shutdown(wait=True)
                        # Nothing of it is reported: vLLM would use the blocks.
                        engine.workers[0].get_transfer_results(set())
                    else:
                        engine.step(engine.new(request, [6, 7, 8, 9], 3 * TOKENS))
                engine.close()

        def test_whole_load_does_not_wait_for_copies_of_others(self):
            engine = self.filled(3)
            request = Request("second", 3 * TOKENS + 1, hashes(3))
            with mock.patch.object(engine.workers[0]._work._save_memory._device, "settle", side_effect=DeviceStuck("stuck")):
                self.assertEqual(engine.answer(request, [6, 7, 8, 9], {}), 3 * TOKENS)
            self.assert_computed(engine, [6, 7, 8], [1, 2, 3])

        def test_engine_ends_though_a_device_does_not(self):
            engine = self.filled(3, extra=self.extra(load_async=True, get_timeout_ms=1000), at_once=False)
            driver.drain()
            driver.change("hang=1")
            engine.begin(Request("second", 3 * TOKENS + 1, hashes(3)), [6, 7, 8, 9])
            with self.assertLogs("pagelith", "WARNING"):
                engine.step(Output())
                engine.workers[0].shutdown()
            driver.change("hang=0")
            driver.drain()

        def test_memory_is_not_accessed_after_vllm_released_it(self):
            engine = self.filled(3, extra=self.extra(save_async=True))
            engine.workers[0].unregister_kv_caches()
            self.assertEqual(engine.store.exists(engine.keys(hashes(3))), [True] * 3)
            engine.workers[0].restore_kv_caches()
            request = Request("second", 3 * TOKENS + 1, hashes(3))
            self.assertEqual(engine.answer(request, [6, 7, 8, 9], {}), 3 * TOKENS)
            self.assert_computed(engine, [6, 7, 8], [1, 2, 3])

        def test_memory_is_kept_until_late_copies_of_it_have_ended(self):
            for save_async in (False, True):
                engine = self.filled(3, extra=self.extra(save_async=save_async, revision=str(save_async)))
                work, late = engine.workers[0]._work, []
                # Copies of saves that were given up still read the memory.
                with mock.patch.object(work._save_memory._device, "settle", lambda: late.append(work._saving._pending)):
                    engine.workers[0].unregister_kv_caches()
                self.assertEqual(late, [[]])
                engine.close()

        def test_device_that_cannot_be_used_is_refused_or_left_to_torch(self):
            here, other = driver.device, device_stand_ins.Device("xpu")
            missing = device_stand_ins.Device("cuda", 7)
            with pagelith.Store({"dram": {"bytes": "4MiB"}, "staging": {"bytes": "2MiB"}}) as store:
                for devices, most, words in (
                    ({other}, 1, "no driver for devices of the kind 'xpu'"),
                    ({here, other}, 1, "several devices: cuda:0, xpu:0"),
                    ({missing}, 1, "no such device"),
                    ({here}, (1 << 20) + 1, "'staging.bytes of the store' is 2097152: raise it to 2097154"),
                ):
                    with self.assertRaisesRegex(ValueError, f"the store cannot copy to and from the device.*{words}"):
                        bound(store, devices, True, None, most)
                    with self.assertLogs("pagelith.devices", logging.INFO) as logs:
                        self.assertIsNone(bound(store, devices, None, None, most))
                    self.assertRegex(logs.output[0], f"torch copies.*{words}")
                self.assertIsNone(bound(store, {here}, False, None, 1))
                self.assertEqual(bound(store, {here}, None, None, 1 << 20).handle.name, "cuda:0")

    tests = unittest.defaultTestLoader.loadTestsFromTestCase(Devices)
    return unittest.TextTestRunner(verbosity=2).run(tests).wasSuccessful()


if __name__ == "__main__":
    raise SystemExit(0 if run() else 1)

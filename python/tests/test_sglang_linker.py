"""SGLang's external linker, with stand-ins for SGLang and torch, over a fake driver. Tests with
SGLang's own pools and tree are in `python/clients/`.
"""

import unittest

import fake_driver


class OverFakeDriver(unittest.TestCase):
    def test_linker_copies_between_device_pools_and_store(self):
        fake_driver.run_file(self, __file__)


def run():
    """Run the tests in this process."""
    import glob
    import os
    import subprocess
    import sys
    import threading
    import types
    from unittest import mock

    import device_stand_ins
    import pagelith
    import sglang_linker_stand_ins as stand_ins
    import test_sglang_adapter as sglang

    driver = device_stand_ins.Driver()
    stand_ins.install(driver)
    from pagelith.devices import DeviceStuck
    from pagelith.sglang import linker as module

    LAYERS, LENGTH, PAGES = 6, 40_000, 8

    class Engine:
        """A rank of a server: device pools with two buffers a layer, and the linker."""

        def __init__(self, extra, rank=(0, 1), replicated=False, window=False):
            sglang.parallel.tp_rank, sglang.parallel.tp_size, sglang.parallel.attn_dcp_size = *rank, 1
            sys.modules["torch"].distributed = stand_ins.distributed(*rank)
            names = ["kv", "swa"] if window else ["kv"]
            self.group = stand_ins.Group([stand_ins.Entry(driver, name, LAYERS, LENGTH, PAGES) for name in names], LAYERS, replicated)
            params = types.SimpleNamespace(
                page_size=sglang.PAGE, token_to_kv_pool_allocator=types.SimpleNamespace(get_kvcache=lambda: None), req_to_token_pool=None,
                attn_tp_cache_group=None, tp_cache_group=None, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1,
            )
            with mock.patch.object(module, "group_of", lambda pool, params, components: self.group):
                self.linker = module.Linker(None, params, components=set(), extra_config=extra, forward_stream=stand_ins.forward(driver))

        def transfers(self, keys, first):
            kv = stand_ins.Transfer("kv", keys, first)
            tail = [stand_ins.Transfer("swa", keys[-2:], first, sglang.PoolHitPolicy.TRAILING_PAGES)]
            return [kv, *(tail if "swa" in self.group.entry_map else [])]

        def content(self, key, layer, part):
            return bytes([int(key[:2], 16) ^ layer, 17 * layer + part, part]) * (LENGTH // 3) + bytes([layer]) * (LENGTH % 3)

        def fill(self, keys, first):
            for one in self.transfers(keys, first):
                for n, key in enumerate(one.keys):
                    for layer in range(LAYERS):
                        for part in range(2):
                            driver.write(self.group.entry_map[one.name].address(layer, part, first + n), self.content(key, layer, part))

        def right(self, keys, first, layer, name="kv"):
            entry = self.group.entry_map[name]
            return [
                all(driver.read(entry.address(layer, part, first + n), LENGTH) == self.content(key, layer, part) for part in range(2))
                for n, key in enumerate(keys)
            ]

        def offload(self, keys, first):
            assert self.linker.offload(self.transfers(keys, first))
            self.linker._offloads.join()
            return self.linker.pop_completed_offload()

        def lookup(self, keys):
            return self.linker.lookup("request", [stand_ins.Transfer(one.name, one.keys, None, one.hit_policy) for one in self.transfers(keys, 0)])

        def load(self, keys, first):
            """Load; returns the verdict, and for each layer whether it is said to be there."""
            assert self.linker.load("request", self.transfers(keys, first))
            index = self.linker.start_layer_wise_loading()
            futures = list(self.linker.layer_done_counter.futures[index])
            return self.linker.finish_layer_wise_loading(index), [future.exception() is None for future in futures]

        def close(self):
            self.linker.close()

    class Linked(sglang.Case):
        def setUp(self):
            super().setUp()
            sglang.serve()
            sglang.served.serving.served_model_name = "a/model"
            driver.change("late=1 hang=0")
            self.addCleanup(lambda: self.assertEqual(driver.left(), {}))

        def extra(self, **more):
            ssd = {"dirs": [os.path.join(self.home.name, "ssd")], "bytes": "128MiB", "segment_bytes": "8MiB"}
            return {"store": {"dram": {"bytes": "32MiB"}, "index": {"max_objects": 10000}, "ssd": ssd}, **more}

        def engine(self, extra=None, **how):
            engine = Engine(extra or self.extra(), **how)
            self.addCleanup(engine.close)
            return engine

        def filled(self, keys, **how):
            engine = self.engine(**how)
            engine.fill(keys, 0)
            self.assertTrue(engine.offload(keys, 0))
            return engine

        def test_layers_are_handed_out_as_they_arrive(self):
            keys = sglang.keys(3)
            engine = self.filled(keys, extra=self.extra(read_layers=1), window=True)
            self.assertEqual(engine.lookup(keys), [3])
            loading, begun, done = engine.linker._loading, [], []
            begin, complete = loading._begin, loading._counter.complete

            def begins(rows, layers, *how):
                begun.append(layers)
                return begin(rows, layers, *how)

            def completes(index, layer):
                done.append((layer, len(begun), engine.right(keys, 4, layer)))
                complete(index, layer)

            with mock.patch.object(loading, "_begin", begins), mock.patch.object(loading._counter, "complete", completes):
                self.assertEqual(engine.load(keys, 4), (True, [True] * LAYERS))
            # A layer is there when it is handed out, and the one after it is read by then.
            self.assertEqual(done, [(layer, min(layer + 2, LAYERS), [True] * 3) for layer in range(LAYERS)])
            self.assertEqual(engine.right(keys[1:], 4, 5, "swa"), [True, True])

        def test_slots_of_several_requests_are_joined_before_they_are_read(self):
            keys = sglang.keys(4)
            engine = self.filled(keys)
            for request, first, of in (("one", 4, keys[:1]), ("two", 6, keys[2:])):
                self.assertTrue(engine.linker.load(request, engine.transfers(of, first)))
            self.assertTrue(engine.linker.finish_layer_wise_loading(engine.linker.start_layer_wise_loading()))
            for layer in range(LAYERS):
                of_each = engine.right(keys, 0, layer), engine.right(keys[:1], 4, layer), engine.right(keys[2:], 6, layer)
                self.assertEqual(of_each, ([True] * 4, [True], [True] * 2))

        def test_load_waits_for_the_forward_pass_that_still_writes_its_slots(self):
            keys = sglang.keys(2)
            engine = self.filled(keys)
            entry = engine.group.entry_map["kv"]
            for seed in range(1, 5):
                driver.change(f"seed={seed}")
                # A long one.
                for _ in range(400):
                    driver.fill(entry.address(0, 0, 7), LENGTH, 0xAA, engine.linker.forward_stream)
                for page, layer in ((page, layer) for page in (4, 5) for layer in range(LAYERS)):
                    driver.fill(entry.address(layer, 0, page), LENGTH, 0xAA, engine.linker.forward_stream)
                self.assertEqual(engine.load(keys, 4), (True, [True] * LAYERS))
                driver.drain()
                self.assertEqual([engine.right(keys, 4, layer) for layer in range(LAYERS)], [[True, True]] * LAYERS)

        def test_damaged_layer_is_not_handed_out(self):
            keys = sglang.keys(2)
            engine = self.filled(keys)
            engine.close()
            (bad,) = [engine.content(keys[1], 4, 0)]
            for path in glob.glob(os.path.join(self.home.name, "ssd", "**"), recursive=True):
                if os.path.isfile(path):
                    with open(path, "r+b") as file:
                        at = file.read().find(bad[:3000])
                        if at >= 0:
                            # Not in the block that has the end of the layer before.
                            file.seek(at + 33_000)
                            file.write(bytes([bad[33_000] ^ 1]))
            second = self.engine(self.extra(read_layers=2))
            self.assertEqual(second.lookup(keys), [1, 2])
            with self.assertLogs("pagelith.sglang.linker", "WARNING") as logs:
                self.assertEqual(second.load(keys, 4), (False, [True, True, True, True, False, False]))
            self.assertIn("cause=damaged", " ".join(logs.output))
            self.assertEqual([second.right(keys, 4, layer) for layer in range(4)], [[True, True]] * 4)
            self.assertEqual(second.lookup(keys), [1])

        def test_page_that_was_late_is_not_found_until_it_is_stored_again(self):
            keys = sglang.keys(3)
            self.filled(keys).close()
            second = self.engine()
            self.assertEqual(second.lookup(keys), [1, 2, 3])
            second.linker._loading._timeout, usual = 0.0, second.linker._loading._timeout
            self.assertEqual(second.load(keys, 4)[0], False)
            # The store still has all pages.
            self.assertEqual(second.lookup(keys), [])
            second.linker._loading._timeout = usual
            second.fill(keys, 0)
            self.assertTrue(second.offload(keys, 0))
            self.assertEqual(second.lookup(keys), [1, 2, 3])
            self.assertEqual(second.load(keys, 4), (True, [True] * LAYERS))

        def test_reset_forgets_pages_that_were_late(self):
            keys = sglang.keys(3)
            self.filled(keys).close()
            second = self.engine()
            second.linker._loading._timeout = 0.0
            self.assertEqual(second.load(keys, 4)[0], False)
            self.assertEqual(second.lookup(keys), [])
            second.linker.reset()
            self.assertEqual(second.lookup(keys), [1, 2, 3])

        def test_window_page_that_was_late_hides_no_longer_prefix(self):
            keys = sglang.keys(6)
            first = self.filled(keys[:3], window=True)
            first.fill(keys, 0)
            self.assertTrue(first.offload(keys, 0))
            first.close()
            second = self.engine(window=True)
            self.assertEqual(second.lookup(keys), [3, 6])
            second.linker._loading._timeout, usual = 0.0, second.linker._loading._timeout
            self.assertEqual(second.load(keys[:3], 4)[0], False)
            self.assertEqual(second.lookup(keys), [])
            second.linker._loading._timeout = usual
            second.fill(keys, 0)
            # Stores the window's last two pages only.
            self.assertTrue(second.offload(keys, 0))
            self.assertEqual(second.lookup(keys), [6])

        def test_rank_of_replicated_pools_reads_what_rank_0_wrote(self):
            with self.assertRaisesRegex(ValueError, "rank 0 of 2 writes the pages.*pagelith serve"):
                self.engine(rank=(1, 2), replicated=True)
            address, keys = "unix:" + os.path.join(self.home.name, "socket"), sglang.keys(3)
            served = subprocess.Popen(
                [os.environ["STORE_PROGRAM"], "serve", "--listen", address, "--dram", "16MiB", "--ssd", "0"], stdout=subprocess.PIPE, text=True
            )
            try:
                self.assertIn("listening", served.stdout.readline())
                attach = {"attach": address, "exists_timeout_ms": 30_000}
                first, second = (self.engine(attach, rank=(rank, 2), replicated=True) for rank in range(2))
                self.assertTrue(second.offload(keys, 0))
                self.assertEqual(second.lookup(keys), [])
                first.fill(keys, 0)
                self.assertTrue(first.offload(keys, 0))
                self.assertEqual(second.lookup(keys), [1, 2, 3])
                self.assertEqual(second.load(keys, 4), (True, [True] * LAYERS))
                self.assertEqual([second.right(keys, 4, layer) for layer in range(LAYERS)], [[True] * 3] * LAYERS)
                # A slice of tensor parallelism is another object.
                self.assertEqual(self.engine(attach, rank=(1, 2)).lookup(keys), [])
            finally:
                for engine in (first, second):
                    engine.close()
                served.terminate()
                served.wait()
                served.stdout.close()

        def test_store_process_that_is_down_costs_misses(self):
            address, keys = "unix:" + os.path.join(self.home.name, "none"), sglang.keys(1)
            with self.assertLogs("pagelith", "WARNING"):
                engine = self.engine({"attach": address, "start_without_store": True})
                self.assertEqual(engine.lookup(keys), [])
                self.assertFalse(engine.offload(keys, 0))
                self.assertEqual(engine.load(keys, 4), (False, [False] * LAYERS))

        def test_load_that_cannot_be_known_to_have_ended_ends_the_engine(self):
            keys = sglang.keys(2)
            engine = self.filled(keys)
            stuck = mock.patch.object(engine.linker._device, "settle", side_effect=DeviceStuck("stuck"))
            with stuck, self.assertRaisesRegex(DeviceStuck, "stuck"), self.assertLogs("pagelith.sglang.linker", "WARNING"):
                engine.load(sglang.keys(2, "missing"), 4)
            # The thread of loads goes on: the engine waits for it when it ends.
            self.assertTrue(engine.linker._threads[0].is_alive())

        def test_page_that_is_gone_when_its_load_is_queued_is_logged(self):
            keys = sglang.keys(3)
            engine = self.filled(keys)
            (template,) = engine.linker._names.keys.values()
            engine.linker._store.remove([template.on_page(bytes.fromhex(keys[2]))])
            with self.assertLogs("pagelith.sglang.linker", "WARNING") as logs:
                self.assertTrue(engine.linker.load("request", engine.transfers(keys, 4)))
            self.assertRegex(logs.output[0], "a pin failed: .*objects=1 of=3")
            # The others stay.
            (pin,) = engine.linker._queued["request"][1]
            self.assertEqual((pin.objects, pin.held), (2, True))
            self.assertTrue(engine.linker.cancel_queued_load("request"))

        def test_pin_whose_release_waits_for_the_store_does_not_stop_the_scheduler(self):
            keys, go, waited = sglang.keys(2), threading.Event(), []
            self.addCleanup(go.set)
            engine = self.filled(keys)
            pin = types.SimpleNamespace(objects=2, release=lambda: waited.append(go.wait(20)))
            with mock.patch.object(engine.linker, "_pinned", lambda keys: [pin]):
                self.assertTrue(engine.linker.load("cancelled", engine.transfers(keys, 4)))
                self.assertTrue(engine.linker.cancel_queued_load("cancelled"))
                self.assertEqual(engine.load(keys, 4), (True, [True] * LAYERS))
                self.assertTrue(engine.linker.load("reset", engine.transfers(keys, 4)))
                engine.linker.reset()
            self.assertEqual(waited, [])
            go.set()
            engine.close()
            self.assertEqual(waited, [True] * 3)

        def test_each_replica_has_own_directory(self):
            for ranks, replica in ((dict(dp_rank=0), 0), (dict(dp_rank=1), 1), (dict(attn_dp_size=4, attn_dp_rank=2), 2)):
                sglang.place(self, **{"attn_dp_size": 1, "attn_dp_rank": 0, "dp_rank": None, **ranks})
                self.engine()
                self.assertIn(f"rank_{replica}_0_0_0", os.listdir(os.path.join(self.home.name, "ssd")))

        def joined(self, engine, nodes):
            """Offload nodes in one call; returns their results."""
            queued = []
            with mock.patch.object(engine.linker._offloads, "put", queued.append):
                for first, keys in enumerate(nodes):
                    self.assertTrue(engine.linker.offload(engine.transfers(keys, first)))
            engine.linker._offloading.run(queued)
            return [engine.linker.pop_completed_offload() for _ in nodes]

        def test_offload_that_fails_does_not_fail_those_joined_with_it(self):
            engine, keys = self.engine(), sglang.keys(3)
            engine.fill(keys, 0)
            entry = engine.group.entry_map["kv"]
            locate = entry.prepare_locations
            # The second node names too few slots.
            entry.prepare_locations = lambda slots: [] if slots[0] == sglang.PAGE else locate(slots)
            with self.assertLogs("pagelith.sglang.linker", "ERROR") as logs:
                self.assertEqual(self.joined(engine, [[key] for key in keys]), [True, False, True])
            self.assertEqual(len(logs.output), 1)
            entry.prepare_locations = locate
            self.assertEqual(engine.lookup(keys), [1])
            self.assertTrue(engine.offload(keys, 0))
            self.assertEqual(engine.load(keys, 4), (True, [True] * LAYERS))
            self.assertEqual([engine.right(keys, 4, layer) for layer in range(LAYERS)], [[True] * 3] * LAYERS)

        def test_store_that_is_down_is_asked_once_for_joined_offloads(self):
            engine = self.engine()
            store = mock.Mock()
            store.exists.side_effect = pagelith.UnavailableError("the link to the store is down")
            with mock.patch.object(engine.linker._offloading, "_store", store), self.assertLogs("pagelith.sglang.linker", "WARNING"):
                self.assertEqual(self.joined(engine, [[key] for key in sglang.keys(3)]), [False] * 3)
            store.exists.assert_called_once()

        def test_pages_of_replaced_weights_are_not_stored_until_a_flush(self):
            keys = sglang.keys(2)
            engine = self.filled(keys)
            sglang.served.change(weight_version="2")
            with self.assertLogs("pagelith.sglang.linker", "WARNING") as logs:
                self.assertEqual(engine.lookup(keys), [])
                self.assertFalse(engine.offload(keys, 0))
            self.assertIn("the model's weights changed", logs.output[0])
            engine.linker.reset()
            self.assertTrue(engine.offload(keys, 0))
            self.assertEqual(engine.lookup(keys), [1, 2])

        def test_offload_that_saw_old_weights_does_not_bring_their_names_back(self):
            keys = sglang.keys(2)
            engine = self.filled(keys)
            old = engine.linker._served.now()
            sglang.served.change(weight_version="2")
            with self.assertLogs("pagelith.sglang.linker", "WARNING"):
                self.assertEqual(engine.lookup(keys), [])
            engine.linker.reset()
            names = engine.linker._names
            with mock.patch.object(engine.linker._served, "now", lambda: old):
                self.assertTrue(engine.offload(keys, 0))
            self.assertIs(engine.linker._names, names)
            self.assertEqual(engine.lookup(keys), [])

        def test_offload_after_a_flush_has_new_names_before_a_lookup(self):
            keys = sglang.keys(2)
            engine = self.filled(keys)
            sglang.served.change(weight_version="2")
            engine.linker.reset()
            self.assertTrue(engine.offload(keys, 0))
            with self.assertLogs("pagelith.sglang.linker", "WARNING"):
                self.assertEqual(engine.lookup(keys), [1, 2])

        def test_other_pools_or_models_find_nothing(self):
            keys = sglang.keys(2)
            self.filled(keys).close()
            for extra, window, serving in (({}, True, {}), ({"revision": "2"}, False, {}), ({"tenant": "t"}, False, {}), ({}, False, {"commit": "d" * 40})):
                sglang.serve(**serving)
                sglang.served.serving.served_model_name = "a/model"
                other = self.engine(self.extra(**extra), window=window)
                self.assertEqual(other.lookup(keys), [])
                other.close()
            sglang.serve()
            sglang.served.serving.served_model_name = "a/model"
            self.assertEqual(self.engine().lookup(keys), [1, 2])

        def test_too_little_staging_memory_is_refused_with_its_setting(self):
            extra = self.extra()
            extra["store"]["staging"] = {"bytes": "256KiB", "chunk_bytes": "64KiB"}
            with self.assertRaisesRegex(ValueError, "'staging.bytes of the store' is 262144: raise it to"):
                self.engine(extra)

    tests = unittest.defaultTestLoader.loadTestsFromTestCase(Linked)
    return unittest.TextTestRunner(verbosity=2).run(tests).wasSuccessful()


if __name__ == "__main__":
    raise SystemExit(0 if run() else 1)

"""The cases of `test_sglang_linker.py`. Run as a program, over a fake device."""

import os
import shutil
import tempfile
import unittest
from array import array
from types import SimpleNamespace
from unittest import mock

import sglang_drive as drive
import sglang_linker as parts
import torch
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InitLoadBackParams, InsertParams, MatchPrefixParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache


def hashes(prompt, pages):
    return drive.hashes_of(drive.tokens_of(prompt, pages), parts.PAGE)


class Cases(unittest.TestCase):
    place = None

    def setUp(self):
        parts.configure()
        self.home = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.home)
        if hasattr(self.place, "driver"):
            self.place.driver.change("late=2 hang=0")
            self.addCleanup(lambda: self.assertEqual(self.place.driver.left(), {}))
            self.addCleanup(self.place.driver.change, "hang=0")

    def model(self, name, extra=None, **different):
        extra = parts.settings(os.path.join(self.home, name)) if extra is None else extra
        model = parts.Model(name, self.place, extra, **different)
        self.addCleanup(model.close)
        return model

    def filled(self, name, pages=4, **more):
        """A model with stored pages, and the pages."""
        model, keys = self.model(name, **more), hashes(1, pages)
        source = model.transfers(keys, 1)
        model.fill(source)
        self.assertTrue(model.offload(source))
        return model, keys

    def test_pages_of_every_model_survive_a_restart_layer_by_layer(self):
        for name in parts.MODELS:
            with self.subTest(name):
                first, keys = self.filled(name)
                first.close()
                extra = parts.settings(os.path.join(self.home, name), read_layers=2)
                second = self.model(name, extra)
                lookup = second.transfers(keys, 0, slots=False)
                found = second.linker.lookup("request", lookup)
                has_tail = len(second.components) > 1
                self.assertEqual(found, [4] if has_tail else [1, 2, 3, 4])
                self.assertEqual(second.linker.lookup("other", second.transfers(hashes(2, 4), 0, slots=False)), [])
                into = second.transfers(keys, 3)
                self.assertEqual(second.load(into), (True, 0))
                second.close()

    def test_offload_waits_for_the_forward_pass(self):
        for seed in range(1, 5):
            model, keys = self.model(f"latent {seed}"), hashes(1, 4)
            source, into = model.transfers(keys, 0), model.transfers(keys, 4)
            for layer in model.layers:
                for address, content in model.pieces(source, layer):
                    self.place.compute(address, len(content), 16 * seed + layer)
            self.assertTrue(model.offload(source))
            index = model.start({"request": into})
            self.assertTrue(model.linker.finish_layer_wise_loading(index))
            for layer in model.layers:
                for address, content in model.pieces(into, layer):
                    self.assertEqual(self.place.read(address, len(content)), bytes([16 * seed + layer]) * len(content))
            model.close()

    def test_load_waits_for_the_forward_pass(self):
        """SGLang may reuse pages that a forward pass still writes."""
        for seed in range(1, 5):
            model, keys = self.filled(f"latent {seed}")
            into = model.transfers(keys, 4)
            for layer in model.layers:
                for address, content in model.pieces(into, layer):
                    self.place.compute(address, len(content), 16 * seed + layer)
            self.assertEqual(model.load(into), (True, 0))
            self.place.settle()
            self.assertEqual(sum(model.wrong(into, layer) for layer in model.layers), 0)
            model.close()

    def test_several_requests_are_loaded_in_one_batch(self):
        model, keys = self.filled("window")
        more = hashes(3, 2)
        model.fill(model.transfers(more, 6))
        self.assertTrue(model.offload(model.transfers(more, 6)))
        loads = {"one": model.transfers(keys[:2], 0)[:1], "two": model.transfers(more, 2)[:1]}
        for transfers in loads.values():
            model.spoil(transfers)
        index = model.start(loads)
        self.assertTrue(model.linker.finish_layer_wise_loading(index))
        for transfers in loads.values():
            self.assertEqual(sum(model.wrong(transfers, layer) for layer in model.layers), 0)

    def test_missing_page_fails_its_batch_and_is_not_found_again(self):
        model, keys = self.filled("heads")
        (key,) = model.linker._names.keys.values()
        model.linker._pinned = lambda keys: []
        model.linker._store.remove([key.on_page(bytes.fromhex(keys[2]))])
        with self.assertLogs("pagelith.sglang.linker", "WARNING") as logs:
            self.assertFalse(model.load(model.transfers(keys, 4))[0])
        self.assertIn("cause=absent", " ".join(logs.output))
        self.assertEqual(model.linker.lookup("again", model.transfers(keys, 0, slots=False)), [1, 2])
        # It is stored again, and loaded.
        self.assertTrue(model.offload(model.transfers(keys, 1)))
        self.assertEqual(model.load(model.transfers(keys, 4)), (True, 0))

    def test_found_page_stays_until_its_load_has_ended(self):
        model, keys = self.filled("heads")
        self.assertTrue(model.linker.load("request", model.transfers(keys, 4)))
        (pin,) = model.linker._queued["request"][1]
        self.assertEqual((pin.objects, pin.held), (4, True))
        self.assertTrue(model.linker.cancel_queued_load("request"))
        # By a thread of its own.
        while model.linker._releases.waiting():
            pass
        self.assertFalse(pin.held)
        self.assertFalse(model.linker.cancel_queued_load("request"))
        self.assertEqual(model.linker.start_layer_wise_loading(), -1)

    def test_failed_offload_has_a_result_in_order(self):
        model, keys = self.filled("heads")
        more = [model.transfers(hashes(n, 1), n) for n in range(2, 6)]
        with self.place.linking(), mock.patch.object(model.linker._offloading, "_store") as store, self.assertLogs("pagelith", "ERROR"):
            store.exists.side_effect = ValueError("planted")
            for transfers in more[:2]:
                self.assertTrue(model.linker.offload(transfers))
            model.linker._offloads.join()
        with self.place.linking():
            for transfers in more[2:]:
                self.assertTrue(model.linker.offload(transfers))
            model.linker._offloads.join()
        self.assertEqual(model.linker.num_completed_offloads(), 4)
        self.assertEqual([model.linker.pop_completed_offload() for _ in range(4)], [False, False, True, True])

    def test_window_and_state_are_found_with_their_page_only(self):
        model, keys = self.filled("recurrent and window")
        self.assertEqual(model.linker.lookup("r", model.transfers(keys, 0, slots=False)), [4])
        self.assertEqual(model.linker.lookup("r", model.transfers(keys[:3], 0, slots=False)), [])
        anchor = model.linker._names.keys["kv"]
        model.linker._store.remove([anchor.on_page(bytes.fromhex(keys[3]))])
        self.assertEqual(model.linker.lookup("r", model.transfers(keys, 0, slots=False)), [])
        states = model.linker._names.keys["mamba"].on_pages([bytes.fromhex(keys[3])])
        self.assertEqual(model.linker._store.exists(states), [False])

    def test_reset_drops_loads_and_results(self):
        model, keys = self.filled("heads")
        with self.place.linking():
            model.linker.offload(model.transfers(hashes(2, 1), 6))
            model.linker.load("request", model.transfers(keys, 4))
            model.linker.reset()
            self.assertEqual((model.linker.num_completed_offloads(), model.linker.start_layer_wise_loading()), (0, -1))
        self.assertEqual(model.load(model.transfers(keys, 4)), (True, 0))

    def test_models_and_settings_that_are_not_supported_are_refused(self):
        extra = parts.settings(os.path.join(self.home, "refused"))
        for name, words, more in (
            ("heads", "does not support a draft model", {"mtp_draft_device_pools": (object(),)}),
            ("window", "does not support a draft model", {"sidecar_draft_device_pools": (object(),)}),
            ("deepseek v4", "does not support pipeline stages", {"pp_size": 2}),
            ("heads", "'root' is an unknown key", {"extra": {**extra, "root": 1}}),
            ("heads", "pass 'store'.*or 'attach'", {"extra": {}}),
        ):
            with self.subTest(words), self.assertRaisesRegex(ValueError, words):
                self.model(name, **{"extra": extra, **more})
        self.assertFalse(os.path.exists(os.path.join(self.home, "refused")))

    def test_tree_offloads_and_loads_a_prompt(self):
        for name in ("heads", "window"):
            with self.subTest(name):
                self.tree(name)

    def tree(self, name):
        """A prompt is computed, offloaded, evicted, and loaded, by SGLang's cache."""
        page, window = parts.PAGE, 2 * parts.PAGE
        with self.place.memory():
            pool, components, _ = parts.MODELS[name]()
        sizes = dict(page_size=page, dtype=torch.bfloat16, device="cpu", kvcache=pool, need_sort=False)
        allocator = (SWATokenToKVPoolAllocator if name == "window" else PagedTokenToKVPoolAllocator)(
            parts.PAGES * page, **({"size_swa": 16 * page} if name == "window" else {}), **sizes
        )
        params = CacheInitParams(
            disable=False, req_to_token_pool=ReqToTokenPool(4, 1024, "cpu", False), token_to_kv_pool_allocator=allocator, page_size=page,
            tp_cache_group=parts.parts.one_rank_group(), tree_components=tuple(sorted(components, key=int)),
            sliding_window_size=window if name == "window" else None,
        )
        cache = UnifiedRadixCache(params)
        config = {"linker": "Linker", "linker_module_path": "pagelith.sglang.linker"}
        config["linker_extra_config"] = parts.settings(os.path.join(self.home, name))
        with self.place.linking():
            linker = parts.create_unified_cache_linker(
                None, params, backend="dynamic", config=config, components=set(cache.components), forward_stream=self.place.forward_stream
            )
            cache.init_cache_linker(linker)
            pool.register_layer_transfer_counter(linker.layer_done_counter)
            tokens, keys = array("q", drive.tokens_of(1, 5)), hashes(1, 5)
            if name == "window":
                slots = allocator.full_attn_allocator.alloc(5 * page)
                allocator.set_full_to_swa_mapping(slots, allocator.swa_attn_allocator.alloc(5 * page))
            else:
                slots = allocator.alloc(5 * page)
            layers = range(linker._group.num_layers)

            def pages(at):
                """The pages of the prompt in these slots, and those of the window."""
                found = [parts.PoolTransfer(name=parts.PoolName.KV, keys=keys, device_indices=at)]
                if name == "window":
                    last = allocator.translate_loc_from_full_to_swa(at[-window:]).to(torch.int64)
                    trailing = parts.PoolHitPolicy.TRAILING_PAGES
                    found.append(parts.PoolTransfer(name=parts.PoolName.SWA, keys=keys[-2:], device_indices=last, hit_policy=trailing))
                return found

            computed = pages(slots)
            for layer in layers:
                for address, content in parts.pieces(linker, computed, layer):
                    self.place.write(address, content)
            cache.insert(InsertParams(key=RadixKey(tokens), value=slots))
            linker._offloads.join()
            cache.check_hicache_events()
            self.assertEqual(cache.linker.pending_offloads, [])
            cache.evict(EvictParams(num_tokens=5 * page, **({"swa_num_tokens": 5 * page} if name == "window" else {})))
            for layer in layers:
                for address, content in parts.pieces(linker, computed, layer):
                    self.place.write(address, bytes(len(content)))
            request = SimpleNamespace(rid="r", kv=None, last_node=None, swa_branching_seqlen=None, extra_key=None, session=None)
            match = cache.match_prefix(MatchPrefixParams(key=RadixKey(tokens + array("q", [9])), req=request))
            self.assertEqual(match.host_hit_length, 5 * page)
            request.last_node = match.last_device_node
            cache.init_load_back(InitLoadBackParams(best_match_node=match.best_match_node, host_hit_length=5 * page, req=request))
            linker.layer_done_counter.set_consumer(cache.ready_to_load_host_cache())
            loaded = pages(cache.linker.private_load_indices["r"])
            for layer in layers:
                # This waits for the layer.
                pool.get_key_buffer(layer)
                for address, content in parts.pieces(linker, loaded, layer):
                    self.assertEqual(self.place.read(address, len(content)), content)
            self.assertEqual(cache.finish_external_linker_loads([request]), [])
            cache.linker.close()


class DeviceCases(Cases):
    """Those of a device only."""

    def test_late_load_fails_when_the_device_is_done(self):
        extra = parts.settings(os.path.join(self.home, "late"), get_timeout_ms=20)
        model, keys = self.filled("heads", extra=extra)
        driver, loading = self.place.driver, model.linker._loading
        # Before the model is closed.
        self.addCleanup(driver.change, "hang=0")
        after = loading._stream.after

        def hung(events):
            how = after(events)
            driver.change("hang=1")
            return how

        with mock.patch.object(loading._stream, "after", hung), self.assertLogs("pagelith", "WARNING") as logs:
            index = model.start({"request": model.transfers(keys, 4)})
            while not model.linker._device.handle.late_copies:
                pass
            futures = list(model.linker.layer_done_counter.futures[index])
            self.assertEqual([future.done() for future in futures], [False] * len(futures))
            late = []
            futures[0].add_done_callback(lambda _: late.append(model.linker._device.handle.late_copies))
            driver.change("hang=0")
            self.assertFalse(model.linker.finish_layer_wise_loading(index))
            # A future wakes who waits for it before it calls back.
            model.linker._loads.join()
        self.assertEqual(late, [0])
        self.assertRegex(" ".join(logs.output), "waiting for the device to end copies")
        # The page is there, and the next load has it.
        self.assertEqual(model.load(model.transfers(keys, 4)), (True, 0))


def cases(place):
    """The cases for pools in this memory."""
    kind = type(type(place).__name__, (DeviceCases if hasattr(place, "driver") else Cases,), {"place": place})
    return unittest.defaultTestLoader.loadTestsFromTestCase(kind)


if __name__ == "__main__":
    raise SystemExit(0 if unittest.TextTestRunner(verbosity=2).run(cases(parts.OnDevice())).wasSuccessful() else 1)

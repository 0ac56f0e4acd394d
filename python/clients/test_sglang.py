"""SGLang's real controllers and host pools over `pagelith.sglang`: pages backed up by one process
are prefetched by another, byte for byte.

Run by clients/run.sh. The pages of each scenario are written by another process than reads them;
`STORE_PROGRAM` is the program `pagelith`, for the scenarios with a store process.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import unittest
from unittest import mock

import sglang_drive as drive
import sglang_parts as parts
from pagelith.compat import mooncake
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.runtime_context import get_context
from sglang_scenarios import (
    NAMED,
    PAGES,
    SCENARIOS,
    Case,
    Scenario,
    embedded,
    flip,
    folder,
    in_a_process,
    mha,
    with_draft,
    with_everything,
)


class AfterARestart(Case):
    def assert_all_is_there(self, home):
        for n, (name, scenario) in enumerate(SCENARIOS.items()):
            with self.subTest(name):
                controller = self.start(scenario, embedded(folder(home, name)))
                whole = scenario.whole
                self.assertEqual(scenario.read(controller, n), (whole, whole, 0))
                # Another prompt has no pages.
                self.assertEqual(scenario.read(controller, n + 500)[:2], (0, 0))
            self.end()

    def folder(self, name):
        """A directory for the stores of all scenarios, which take some gigabytes until the test
        ends."""
        home = os.path.join(self.home, name)
        self.addCleanup(shutil.rmtree, home, ignore_errors=True)
        return home

    def test_pages_survive_close(self):
        home = self.folder("closed")
        in_a_process("write", home, "closed")
        self.assert_all_is_there(home)

    def test_flushed_pages_survive_kill(self):
        home = self.folder("killed")
        in_a_process("write", home, "killed", ends=-signal.SIGKILL)
        self.assert_all_is_there(home)

    def test_damaged_pages_are_misses_and_no_wrong_byte_is_read(self):
        home = self.folder("flipped")
        in_a_process("write", home, "closed")
        shorter = 0
        for n, (name, scenario) in enumerate(SCENARIOS.items()):
            flip(folder(home, name), n)
            with self.subTest(name):
                controller = self.start(scenario, embedded(folder(home, name)))
                found, read, bad = scenario.read(controller, n)
                self.assertEqual(bad, 0)
                shorter += read < scenario.whole
                # A page missed for its bytes is not found again.
                again = scenario.read(controller, n)
                self.assertEqual((again[1], again[2]), (again[0], 0))
            self.end()
        self.assertGreater(shorter, len(SCENARIOS) // 2, "flips that nothing noticed show nothing")


class Visible(Case):
    """Visibility of a page while its pools are written in separate calls."""

    def setUp(self):
        super().setUp()
        self.scenario = Scenario(with_everything)
        self.controller = self.start(self.scenario, embedded(os.path.join(self.home, self.id())))
        self.backend = self.controller.storage_backend
        self.keys = drive.hashes_of(drive.tokens_of(1, 6))
        self.indices = drive.slots(0, 6)

    def sidecars(self, *names):
        of_kv = [PoolTransfer(name=n, host_indices=self.indices, keys=self.keys, indices_from_pool=PoolName.KV) for n in names]
        return of_kv

    def last(self, page):
        return drive.last_pages(PoolName.MAMBA, drive.slots(7, 1, 1), [self.keys[page]])

    def found(self, *transfers):
        return self.backend.batch_exists_v2(self.keys, list(transfers))

    def test_page_is_visible_with_its_kv(self):
        each = self.sidecars(PoolName.INDEXER, PoolName.DRAFT)
        stored = self.backend.batch_set_v2([*each, self.last(3)])
        self.assertEqual(stored, {PoolName.INDEXER: [True] * 6, PoolName.DRAFT: [True] * 6, PoolName.MAMBA: [True]})
        self.assertEqual(self.found(*each).kv_hit_pages, 0)
        self.assertEqual(self.backend.batch_get_v2(each)[PoolName.DRAFT], [False] * 6)
        self.assertEqual(self.backend.batch_set_v1(self.keys, self.indices), [True] * 6)
        found = self.found(*each, self.last(0))
        self.assertEqual((found.kv_hit_pages, found.restorable_prefix_pages), (4, [4]))
        own = {"kv": 6, PoolName.INDEXER: 6, PoolName.DRAFT: 6, PoolName.MAMBA: 4}
        self.assertEqual(found.extra_pool_hit_pages, own)
        self.assertEqual(self.found(*each).restorable_prefix_pages, [1, 2, 3, 4, 5, 6])
        self.assertEqual(self.backend.batch_exists(self.keys), 6)

    def test_page_without_stored_sidecars_is_not_stored(self):
        wrong = self.sidecars(PoolName.INDEXER)
        wrong[0].host_indices = self.indices[: 2 * parts.PAGE]
        self.assertEqual(self.backend.batch_set_v2(wrong), {PoolName.INDEXER: [False] * 6})
        self.assertEqual(self.backend.batch_set_v1(self.keys, self.indices), [False] * 6)
        self.assertEqual(self.backend.batch_exists(self.keys), 0)
        # The next backup of the same pages works as if this one had not been made.
        self.backend.batch_set_v2(self.sidecars(PoolName.INDEXER))
        self.assertEqual(self.backend.batch_set_v1(self.keys, self.indices), [True] * 6)
        self.assertEqual(self.found(*self.sidecars(PoolName.INDEXER)).kv_hit_pages, 6)

    def test_sidecar_joins_stored_pages(self):
        self.assertEqual(self.backend.batch_set_v1(self.keys, self.indices), [True] * 6)
        self.assertEqual(self.found(*self.sidecars(PoolName.INDEXER)).kv_hit_pages, 0)
        self.backend.batch_set_v2(self.sidecars(PoolName.INDEXER))
        self.assertEqual(self.found(*self.sidecars(PoolName.INDEXER)).kv_hit_pages, 6)
        self.assertEqual(self.backend.batch_get_v2(self.sidecars(PoolName.INDEXER)), {PoolName.INDEXER: [True] * 6})

    def test_unknown_pool_works(self):
        self.backend.register_mem_host_pool_v2(parts.mha("page_first")[1], "novel_state")
        novel = self.sidecars("novel_state")
        self.backend.batch_set_v2(novel)
        self.assertEqual(self.backend.batch_set_v1(self.keys, self.indices), [True] * 6)
        self.assertEqual(self.found(*novel).extra_pool_hit_pages, {"kv": 6, "novel_state": 6})
        self.assertEqual(self.found(*self.sidecars("never_registered")).kv_hit_pages, 0)
        self.assertEqual(self.backend.batch_get_v2(self.sidecars("never_registered")), {"never_registered": [False] * 6})

    def test_block_groups_have_own_hit_policy(self):
        self.backend.batch_set_v1(self.keys, self.indices)
        self.backend.batch_set_v2(self.sidecars(PoolName.INDEXER)[:1])
        blocks = PoolTransfer(
            name=PoolName.INDEXER, keys=self.keys[:4], hit_policy=PoolHitPolicy.BLOCK_GROUPS, block_pages=3, group_pages=2
        )
        found = self.found(blocks)
        self.assertEqual((found.kv_hit_pages, found.extra_pool_hit_pages[PoolName.INDEXER]), (6, 6))

    def test_clear_works_while_attached(self):
        self.backend.batch_set_v1(self.keys, self.indices)
        self.backend.clear()
        self.assertEqual(self.backend.batch_exists(self.keys), 0)
        self.assertEqual(self.backend.batch_set_v1(self.keys, self.indices), [True] * 6)
        self.assertEqual(self.backend.batch_exists(self.keys), 6)

    def test_full_store_refuses_at_once_and_recovers(self):
        extra = embedded(os.path.join(self.home, "full"))
        del extra["store"]["ssd"]
        extra["store"]["dram"]["bytes"] = "4MiB"
        scenario = mha("page_first")
        backend = self.start(scenario, extra).storage_backend
        keys, indices = drive.hashes_of(drive.tokens_of(2, 64)), drive.slots(0, 64)
        self.assertEqual(backend.batch_set_v1(keys, indices), [True] * 64)
        held = backend._store.pin(backend._anchor_keys(keys))
        more = drive.hashes_of(drive.tokens_of(3, 60))
        stored = backend.batch_set_v1(more, drive.slots(0, 60))
        self.assertEqual(stored, [False] * 60)
        held.release()
        self.assertEqual(backend.batch_set_v1(more, drive.slots(0, 60)), [True] * 60)

    def test_metrics_are_returned_once(self):
        self.assertIsNone(self.backend.get_stats())
        extra = embedded(os.path.join(self.home, "measured"))
        parts.configure(extra)
        parts.place()
        device, host = parts.mha("page_first")
        controller = parts.plain(device, host, extra, enable_storage_metrics=True)
        self.running.append(controller)
        backend = controller.storage_backend
        backend.batch_set_v1(self.keys, self.indices)
        backend.batch_get_v1(self.keys, self.indices)
        told = backend.get_stats()
        self.assertEqual((told.backup_pgs, told.prefetch_pgs), ([6], [6]))
        self.assertTrue(told.backup_bandwidth[0] > 0 and told.prefetch_bandwidth[0] > 0)
        self.assertEqual(backend.get_stats().backup_pgs, [])


class ConcurrentCalls(Case):
    def test_target_and_draft_work_concurrently(self):
        scenario = Scenario(with_draft)
        controller = self.start(scenario, embedded(os.path.join(self.home, "overlap")))
        for prompt in range(4):
            self.assertEqual(scenario.write(controller, prompt), scenario.whole)
        # Backups of new prompts are queued while old ones are read.
        tokens = [drive.tokens_of(100 + n, PAGES) for n in range(30)]
        for prompt in tokens:
            keys = drive.hashes_of(prompt)
            controller.write_storage(drive.slots(3, PAGES), prompt, hash_value=keys, extra_pools=scenario.transfers(keys, 5))
        for turn in range(12):
            self.assertEqual(scenario.read(controller, turn % 4), (scenario.whole, scenario.whole, 0))
        done = [controller.ack_backup_queue.get(timeout=drive.WAIT).completed_tokens for _ in tokens]
        self.assertEqual(done, [scenario.whole] * 30)


class OtherModel(Case):
    """The model's identity in SGLang's own configuration and in its updates of weights."""

    def test_pages_of_other_model_are_not_found(self):
        extra, scenario = embedded(os.path.join(self.home, "models")), mha("page_first")
        self.assertEqual(scenario.write(self.start(scenario, extra), 1), scenario.whole)
        self.end()
        rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}
        for flags in (
            {"json_model_override_args": json.dumps({"rope_parameters": rope})}, {"json_model_override_args": json.dumps({"rms_norm_eps": 1e-3})},
            {"weight_version": "2"}, {"revision": "other"}, {"dtype": "float16"}, {"context_length": 4096}, {"kv_cache_dtype": "fp8_e4m3"},
        ):
            with self.subTest(flags):
                other = mha("page_first")
                other.flags = flags
                self.assertEqual(other.read(self.start(other, extra), 1), (0, 0, 0))
                self.end()
        with self.subTest("another revision of the operator's"):
            self.assertEqual(scenario.read(self.start(scenario, {**extra, "revision": "other"}), 1), (0, 0, 0))
            self.end()
        self.assertEqual(scenario.read(self.start(scenario, extra), 1), (scenario.whole, scenario.whole, 0))

    def test_weight_update_hides_pages_and_blocks_puts_until_flush(self):
        scenario = mha("page_first")
        controller = self.start(scenario, embedded(os.path.join(self.home, "updated")))
        self.assertEqual(scenario.write(controller, 1), scenario.whole)
        # As SGLang's scheduler after an update of weights; then it flushes its tree, which resets
        # the controller and clears its host pool.
        get_context().override("scheduler.weight_version", weight_version="2")
        self.assertEqual(scenario.read(controller, 1), (0, 0, 0))
        self.assertEqual(scenario.write(controller, 2), 0)
        controller.reset()
        self.assertEqual(scenario.write(controller, 2), 0)
        controller.reset()
        controller.mem_pool_host.clear()
        self.assertEqual(scenario.write(controller, 2), scenario.whole)
        self.assertEqual(scenario.read(controller, 2), (scenario.whole, scenario.whole, 0))
        self.assertEqual(scenario.read(controller, 1), (0, 0, 0))
        get_context().override("scheduler.weight_version", weight_version="default")
        controller.reset()
        self.assertEqual(scenario.read(controller, 1), (scenario.whole, scenario.whole, 0))
        self.assertEqual(scenario.read(controller, 2), (0, 0, 0))

    def test_model_with_unidentified_weights_requires_revision(self):
        extra, scenario = embedded(os.path.join(self.home, "weights")), mha("page_first")
        # A directory with a configuration, and no weights.
        scenario.flags = {"load_format": "auto"}
        with self.assertRaisesRegex(ValueError, "cannot identify weights.*set 'revision'"):
            scenario.controller(extra)
        self.assertEqual(scenario.write(self.start(scenario, {**extra, "revision": "weights-1"}), 1), scenario.whole)


class FailingCalls(Case):
    def test_failure_injector_causes_misses_only(self):
        in_a_process("fail", os.path.join(self.home, "injected"), SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE="0.25")


class AttachedStore(Case):
    def setUp(self):
        super().setUp()
        self.store = self.serve()

    def extra(self):
        return {**NAMED, "attach": self.store.address}

    def test_other_process_reads_pages_after_store_restart(self):
        for n, (name, scenario) in enumerate(SCENARIOS.items()):
            with self.subTest(name):
                controller = self.start(scenario, self.extra())
                self.assertEqual(scenario.write(controller, n), scenario.whole)
                controller.storage_backend._store.flush()
            self.end()
        self.store.stop()
        self.store.start()
        for n, (name, scenario) in enumerate(SCENARIOS.items()):
            with self.subTest(name):
                controller = self.start(scenario, self.extra())
                whole = scenario.whole
                self.assertEqual(scenario.read(controller, n), (whole, whole, 0))
            self.end()

    def test_one_of_two_ranks_with_shared_kv_writes_and_both_read(self):
        ranks = []
        parts.configure(self.extra())
        for rank in range(2):
            parts.place(tp_size=2, tp_rank=rank, attn_tp_size=2, attn_tp_rank=rank)
            device, anchor = parts.mla("page_first", dsa=True)
            sidecars = [(PoolName.INDEXER, parts.indexer(device, anchor)), (PoolName.MAMBA, parts.mamba())]
            controller = parts.hybrid(device, anchor, sidecars, self.extra())
            self.running.append(controller)
            scenario = Scenario(None)
            scenario.anchor, scenario.sidecars, scenario.trailing, scenario.derived = anchor, sidecars[:1], sidecars[1:], []
            ranks.append((controller, scenario))
        self.assertEqual([controller.backup_skip for controller, _ in ranks], [False, True])
        whole = scenario.whole
        # The second rank first: its own objects wait for the first one's KV.
        self.assertEqual(ranks[1][1].write(ranks[1][0], 1), whole)
        self.assertEqual(ranks[1][1].read(ranks[1][0], 1), (0, 0, 0))
        self.assertEqual(ranks[0][1].write(ranks[0][0], 1), whole)
        for controller, scenario in ranks:
            self.assertEqual(scenario.read(controller, 1), (whole, whole, 0))


class MooncakeInterface(Case):
    """SGLang's own backend for Mooncake, over `pagelith.compat.mooncake`."""

    def test_sglang_own_tests_pass(self):
        file = importlib.util.find_spec("sglang.srt.mem_cache.storage.mooncake_store.test_mooncake_store").origin
        before = [mooncake.path(), *filter(None, [os.environ.get("PYTHONPATH")])]
        # It is no server, so nothing in its process identifies the model.
        named = {"MOONCAKE_PAGELITH_REVISION": "a test"}
        environment = {"MOONCAKE_MASTER": "127.0.0.1:50051", "MOONCAKE_GLOBAL_SEGMENT_SIZE": str(64 << 20), **named}
        environment = {**os.environ, **environment, "PYTHONPATH": os.pathsep.join(before)}
        done = subprocess.run([sys.executable, "-W", "ignore", file], env=environment, capture_output=True, text=True)
        self.assertIn("All tests passed", done.stdout + done.stderr)
        self.assertEqual(done.returncode, 0)

    def test_pages_survive_restart(self):
        mooncake.install()
        # Otherwise it takes most of the disk's free space.
        os.environ["MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES"] = str(512 << 20)
        self.addCleanup(os.environ.pop, "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES")
        offload = {"enable_ssd_offload": True, "ssd_offload_path": os.path.join(self.home, "mooncake")}
        extra = {"master_server_address": "127.0.0.1:50051", "global_segment_size": 64 << 20, **offload}
        for name in ("mha page_first", "mla layer_first"):
            scenario = SCENARIOS[name]
            for turn in ("write", "read"):
                # Any memory can hold a page's bytes here.
                parts.configure(extra, backend="file")
                parts.place()
                scenario.device, scenario.anchor, scenario.sidecars, scenario.trailing = scenario.make()
                scenario.derived = []
                controller = parts.plain(scenario.device, scenario.anchor, extra, backend="mooncake")
                if turn == "write":
                    self.assertEqual(scenario.write(controller, 1), scenario.whole)
                else:
                    self.assertEqual(scenario.read(controller, 1), (scenario.whole, scenario.whole, 0))
                # SGLang does not close a Mooncake client.
                controller.storage_backend.store.close()
                controller.detach_storage_backend()


class Misconfigured(Case):
    """Each raises an error when the server starts, and names the flag."""

    def assert_refused(self, scenario, extra, *words):
        with self.assertRaises(ValueError) as caught:
            scenario.controller(extra)
        for word in words:
            self.assertIn(word, str(caught.exception))

    def test_invalid_json_settings_are_refused(self):
        scenario, good = mha("page_first"), embedded(os.path.join(self.home, "never"))
        self.assert_refused(scenario, {**good, "dram_bytes": 1, "tenant": 3}, "'dram_bytes' is an unknown key", "'tenant' must be a string")
        self.assert_refused(scenario, {**good, "attach": "unix:/x"}, "one of the two")
        self.assert_refused(scenario, NAMED, "one of the two")
        self.assert_refused(scenario, {**good, "put_wait_ms": True}, "'put_wait_ms' must be a whole number")
        self.assert_refused(scenario, {**good, "key_name": "rank"}, "go together")

    def test_pool_without_page_addresses_is_refused(self):
        def unsaid():
            device, anchor = parts.mla("layer_first", dsa=True)
            return device, anchor, [(PoolName.INDEXER, parts.indexer(device, anchor))], []

        self.assert_refused(Scenario(unsaid), embedded(os.path.join(self.home, "unsaid")), "'indexer'", "--hicache-mem-layout")

    def test_layer_split_without_all_ranks_writing_is_refused(self):
        store = self.serve()
        extra = {**NAMED, "attach": store.address}
        parts.configure(extra)
        parts.place(tp_size=2, tp_rank=1, attn_cp_size=2, attn_cp_rank=1)
        # One of two ranks, without the other one.
        of_two = mock.patch.object(parts.HiCacheController, "get_attn_cp_rank_and_size", lambda _: (1, 2))
        with of_two, self.assertRaises(ValueError) as caught:
            parts.plain(*parts.mla("page_first", layer_shard_enabled=True), extra)
        self.assertIn("--enable-dsa-cache-layer-split", str(caught.exception))

    def test_ranks_sharing_pages_require_store_process(self):
        extra = embedded(os.path.join(self.home, "ranks"))
        parts.configure(extra)
        parts.place(tp_size=2, attn_tp_size=2)
        with self.assertRaises(ValueError) as caught:
            parts.plain(*parts.mla("page_first"), extra)
        self.assertIn("pagelith serve", str(caught.exception))


if __name__ == "__main__":
    unittest.main()

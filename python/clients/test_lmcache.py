"""LMCache's storage manager, its L1, controllers, policies, factory, serde and failure injector,
with `pagelith.lmcache` as its L2: chunks stored by one process are prefetched by the next, byte for
byte.

Run by clients/run.sh. `STORE_PROGRAM` is the program `pagelith`, for the tests with a store
process; `LMCACHE_TESTS` is the root of LMCache's source distribution, for its own tests.
"""

import contextlib
import glob
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import lmcache_parts as parts
import torch
from lmcache.v1.distributed.api import MemoryLayoutDesc
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class

HERE = os.path.dirname(os.path.abspath(__file__))
ALL = list(range(24))


class Home(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.home, ignore_errors=True)

    def embedded(self, ssd="128MiB", dram="32MiB", **params):
        """The JSON of an adapter with an embedded store."""
        ssd = {"dirs": [os.path.join(self.home, "ssd")], "bytes": ssd, "segment_bytes": "4MiB"}
        store = {"dram": {"bytes": dram}, "index": {"max_objects": 20000}, "ssd": ssd}
        return parts.plugin(**{"store": store, **params})

    @contextlib.contextmanager
    def store_process(self):
        """`pagelith serve`, and the JSON of an adapter that attaches to it."""
        if "STORE_PROGRAM" not in os.environ:
            print("skipped: no STORE_PROGRAM, so no store process", file=sys.stderr)
            self.skipTest("no STORE_PROGRAM")
        address = "unix:" + os.path.join(self.home, "socket")
        directory = os.path.join(self.home, "served")
        # A client may pin a quarter of the memory: one request's chunks have 14 MiB.
        sizes = ["--dram", "64MiB", "--ssd", "128MiB"]
        command = [os.environ["STORE_PROGRAM"], "serve", "--listen", address, "--dir", directory, *sizes]
        store = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            self.assertTrue(store.stdout.readline().startswith("listening "))
            yield parts.plugin(attach=address), store
        finally:
            store.terminate()
            store.wait()
            store.stdout.close()

    def flip(self):
        """Flip a bit in every 16 KiB that is written."""
        for path in glob.glob(os.path.join(self.home, "**", "*"), recursive=True):
            if not os.path.isfile(path) or os.path.getsize(path) < 8 << 20:
                continue
            with open(path, "r+b") as file:
                for at in range(100 << 10, os.path.getsize(path), 16 << 10):
                    file.seek(at)
                    byte = file.read(1)
                    if byte and byte != b"\0":
                        file.seek(at)
                        file.write(bytes([byte[0] ^ 4]))


class Lives(Home):
    """Each run is a separate process."""

    def live(self, action, adapter, *more, ends=0):
        command = [sys.executable, "-W", "ignore", os.path.join(HERE, "lmcache_life.py"), action, json.dumps(adapter), "24", *more]
        done = subprocess.run(command, cwd=self.home, capture_output=True, text=True, timeout=120)
        if done.returncode != ends:
            raise AssertionError(f"it ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        return json.loads([line for line in done.stdout.splitlines() if line.startswith("{")][-1])

    def test_next_process_reads_stored_chunks_and_misses_damaged_ones(self):
        adapter = self.embedded()
        self.assertEqual(self.live("write", adapter), {"written": 96})
        self.assertEqual(self.live("read", adapter), {"hits": [ALL] * 4, "from_l2": 96, "wrong": 0})
        self.flip()
        after = self.live("read", adapter)
        self.assertEqual(after["wrong"], 0)
        self.assertLess(after["from_l2"], 96)

    def test_adapter_with_other_revision_finds_nothing(self):
        self.live("write", self.embedded())
        self.assertEqual(self.live("read", self.embedded(revision="another"))["from_l2"], 0)
        self.assertEqual(self.live("read", self.embedded())["from_l2"], 96)

    def test_chunks_survive_kill(self):
        adapter = self.embedded()
        self.live("write", adapter, "--flushed", "12", "--killed", ends=-signal.SIGKILL)
        after = self.live("read", adapter)
        self.assertEqual(after["wrong"], 0)
        # Flushed chunks are stored; of the others, those that had reached the drive.
        self.assertEqual([row[:12] for row in after["hits"]], [ALL[:12]] * 4)

    def test_store_process_serves_several_servers(self):
        with self.store_process() as (adapter, _):
            self.assertEqual(self.live("write", adapter, "--killed", ends=-signal.SIGKILL), {"written": 96})
            with parts.manager(adapter) as other:
                for adapter in (adapter, adapter):
                    self.assertEqual(self.live("read", adapter), {"hits": [ALL] * 4, "from_l2": 96, "wrong": 0})
                self.assertEqual(parts.read(other, parts.rows(ALL)), ([ALL] * 4, 96, 0))

    def test_found_objects_are_pinned_in_store_process_until_read(self):
        with self.store_process() as (adapter, _), parts.manager(adapter) as storage:
            parts.write(storage, parts.rows(ALL))
            asked, row = parts.adapter_of(storage), parts.rows(ALL)[0]
            pinned = lambda: asked.report_status()["stats"]["objects_pinned"]  # noqa: E731
            task = asked.submit_lookup_and_lock_task(row.keys, {0: parts.LAYOUTS[0]})
            self.assertEqual(parts.wait(lambda: asked.query_lookup_and_lock_result(task)).get_indices_list(), list(range(len(row.keys))))
            self.assertEqual(pinned(), len(row.keys))
            asked.submit_unlock(row.keys)
            parts.wait(lambda: pinned() == 0)
            # LMCache's own controllers unlock the chunks that they have read.
            storage.clear(force=True)
            self.assertEqual(parts.read(storage, parts.rows(ALL)), ([ALL] * 4, 96, 0))
            parts.wait(lambda: pinned() == 0 and asked.report_status()["pins_to_be_released"] == 0)
            self.assertEqual((asked.report_status()["locked_key_count"], asked.report_status()["pins_taken"]), (0, True))

    def test_ended_store_process_causes_misses(self):
        with self.store_process() as (adapter, store), parts.manager(adapter) as storage:
            parts.write(storage, parts.rows(ALL))
            store.terminate()
            store.wait()
            storage.clear()
            with self.assertLogs("pagelith.lmcache"):
                self.assertEqual(parts.read(storage, parts.rows(ALL)), ([[]] * 4, 0, 0))
            self.assertFalse(storage.report_status()["is_healthy"])


class Controllers(Home):
    """All in one process."""

    def again(self, adapter, requests, **more):
        """The chunks that a new storage manager reads."""
        with parts.manager(adapter) as storage:
            return parts.read(storage, requests, **more)

    def test_damaged_chunk_is_a_miss_until_stored_again(self):
        adapter = self.embedded()
        with parts.manager(adapter) as storage:
            parts.write(storage, parts.rows(ALL))
        self.flip()
        with parts.manager(adapter) as storage:
            first = parts.read(storage, parts.rows(ALL))
            self.assertLess(first[1], 96)
            storage.clear(force=True)
            asked = parts.adapter_of(storage)
            task = asked.submit_lookup_and_lock_task(parts.rows(ALL)[0].keys, {0: parts.LAYOUTS[0]})
            found = parts.wait(lambda: asked.query_lookup_and_lock_result(task))
            self.assertTrue(set(found.get_indices_list()) <= set(first[0][0]))
            parts.write(storage, parts.rows(ALL))
            storage.clear(force=True)
            self.assertEqual(parts.read(storage, parts.rows(ALL)), ([ALL] * 4, 96, 0))

    def test_other_layout_rank_salt_or_model_is_a_miss(self):
        adapter = self.embedded()
        with parts.manager(adapter) as storage:
            parts.write(storage, parts.rows(ALL))
        tensors = [
            ([torch.Size([2, 4, 64, 256])], [torch.float16]), ([torch.Size([4, 2, 64, 256])], [torch.bfloat16]),
            ([torch.Size([2, 4, 32, 256])], [torch.bfloat16]), ([torch.Size([1, 4, 64, 256])] * 2, [torch.bfloat16] * 2),
        ]
        for shapes, dtypes in tensors:
            layouts = {0: MemoryLayoutDesc(shapes=shapes, dtypes=dtypes)}
            self.assertEqual(self.again(adapter, parts.rows(ALL, groups=[0], layouts=layouts)), ([[]] * 2, 0, 0), shapes)
        for fields in ({"ranks": 3}, {"salt": "user"}, {"model": "another"}):
            requests = parts.rows(ALL, **fields)
            self.assertEqual(self.again(adapter, requests), ([[]] * len(requests), 0, 0), fields)
        self.assertEqual(self.again(adapter, parts.rows(ALL)), ([ALL] * 4, 96, 0))

    def test_prefix_ends_at_first_missing_chunk(self):
        adapter = self.embedded()
        with parts.manager(adapter) as storage:
            parts.write(storage, parts.rows([chunk for chunk in ALL if chunk != 17]))
        self.assertEqual(self.again(adapter, parts.rows(ALL), policy="prefix"), ([ALL[:17]] * 4, 68, 0))

    def test_failure_injector_causes_misses_only(self):
        adapter = self.embedded()
        with parts.manager({"type": "fault_inject", "inner": adapter, "rate": 0.3, "seed": 7}) as storage:
            parts.write(storage, parts.rows(ALL))
            storage.clear(force=True)
            hits, from_l2, wrong = parts.read(storage, parts.rows(ALL))
            self.assertEqual((wrong, from_l2), (0, sum(map(len, hits))))
            self.assertTrue(0 < from_l2 < 96)
        self.assertEqual(self.again(adapter, parts.rows(ALL)), ([ALL] * 4, 96, 0))

    def test_serde_with_its_setting_works(self):
        serde = {"serde": {"type": "fp8"}}
        layout = {0: MemoryLayoutDesc(shapes=[torch.Size([2, 4, 64, 256])], dtypes=[torch.bfloat16])}
        (row,) = parts.rows(ALL, ranks=1, groups=[0], layouts=layout)
        values = torch.linspace(-100, 100, 2 * 4 * 64 * 256).to(torch.bfloat16)
        adapter = {**self.embedded(serde="fp8 float8_e4m3fn"), **serde}
        with parts.manager(adapter) as storage:
            for memory in storage.reserve_write(row.keys, row.layout_desc).values():
                parts.view(memory).copy_(values.view(torch.uint8))
            parts.finish(storage, row.keys)
            parts.wait(lambda: parts.settled(storage))
        with parts.manager(adapter) as storage:
            handle = storage.submit_prefetch_task(parts.PrefetchTaskSpec([row]))
            result = parts.wait(lambda: storage.query_prefetch_status(handle))
            self.assertEqual(result.hit_cells[0].get_indices_list(), ALL)
            with storage.read_prefetched_results(row.keys) as objects:
                for memory in objects:
                    read = parts.view(memory).view(torch.bfloat16)
                    self.assertTrue(torch.equal(read, values.to(torch.float8_e4m3fn).to(torch.bfloat16)))
            storage.finish_read_prefetched(row.keys)
        # Without the setting nothing is found, and an error is logged.
        with parts.manager({**self.embedded(), **serde}) as storage:
            parts.write(storage, [row])
            storage.clear(force=True)
            with self.assertLogs("pagelith.lmcache.names", "ERROR"):
                self.assertEqual(parts.read(storage, [row]), ([[]], 0, 0))

    def test_l1_as_buffer_only_works(self):
        adapter = self.embedded()
        with parts.manager(adapter, flags=["--l2-store-policy", "skip_l1"]) as storage:
            parts.write(storage, parts.rows(ALL))
            parts.wait(lambda: storage.get_l1_usage()[0] == 0)
            self.assertEqual(parts.read(storage, parts.rows(ALL)), ([ALL] * 4, 96, 0))

    def test_adapters_are_added_and_removed_at_run_time(self):
        adapter = self.embedded()
        config = get_l2_adapter_config_class("plugin").from_dict(adapter)
        with parts.manager() as storage:
            one = storage.add_l2_adapter(config)
            parts.write(storage, parts.rows(ALL[:12]))
            # Some of its stores are in progress when it is removed.
            parts.write(storage, parts.rows(ALL[12:]), settle=False)
            storage.delete_l2_adapter(one)
            storage.clear(force=True)
            self.assertEqual(parts.read(storage, parts.rows(ALL[:12])), ([[]] * 4, 0, 0))
            storage.add_l2_adapter(config)
            self.assertEqual(parts.read(storage, parts.rows(ALL[:12])), ([ALL[:12]] * 4, 48, 0))

    def test_quota_removes_excess_chunks(self):
        adapter = self.embedded()
        adapter["eviction"] = {"eviction_policy": "IsolatedLRU"}
        with parts.manager(adapter) as storage:
            storage.quota_manager.set_quota("kept", 1 << 30)
            kept = parts.rows(ALL, salt="kept")
            parts.write(storage, kept)
            # One without a quota stores nothing.
            parts.write(storage, parts.rows(ALL, salt="dropped"))
            parts.wait(lambda: "dropped" not in storage.get_usage_bytes_by_cache_salt())
            size = sum(row.layout_desc.shapes[0].numel() for row in kept)
            self.assertGreater(storage.get_usage_bytes_by_cache_salt()["kept"], size)
        self.assertEqual(self.again(adapter, kept), ([ALL] * 4, 96, 0))
        self.assertEqual(self.again(adapter, parts.rows(ALL, salt="dropped"))[1], 0)

    def test_invalid_flags_are_refused_at_start(self):
        adapter = self.embedded()
        misplaced = {**adapter, "adapter_params": {}, "store": adapter["adapter_params"]["store"]}
        for wrong, said in ((misplaced, "one of the two"), (self.embedded(ssd_dir="/x"), "'ssd_dir' is an unknown key")):
            with self.assertRaisesRegex(ValueError, said), parts.manager(wrong):
                pass

    def test_concurrent_requests_over_evicting_store_are_correct(self):
        """Writers and readers of overlapping chunks, with an L1 and an L2 that are both too small:
        no wrong byte is read."""
        adapter = self.embedded(ssd="32MiB", dram="8MiB", put_wait_ms=200)
        wrong, reads, until = [], [], time.monotonic() + 15

        def work(storage, seed):
            dice = random.Random(seed)
            while time.monotonic() < until:
                start = dice.randrange(200)
                requests = parts.rows(range(start, start + dice.randrange(1, 20)))
                if dice.random() < 0.4:
                    parts.write(storage, requests, settle=False)
                _, from_l2, other = parts.read(storage, requests, policy=dice.choice(["prefix", "full"]))
                reads.append(from_l2)
                wrong.append(other)

        with parts.manager(adapter, l1_gb=0.05, flags=["--l2-store-policy", "skip_l1"]) as storage:
            threads = [threading.Thread(target=work, args=(storage, seed)) for seed in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertGreater(parts.adapter_of(storage)._store.stats()["segments_reclaimed"], 0)
            print(f"{len(reads)} requests, {sum(reads)} objects from L2", file=sys.stderr)
            parts.wait(lambda: parts.adapter_of(storage)._locks.count() == 0)
        self.assertEqual(sum(wrong), 0)
        self.assertGreater(sum(reads), 100)


class OwnTests(unittest.TestCase):
    def test_lmcache_own_tests_pass(self):
        root = os.environ.get("LMCACHE_TESTS")
        if not root:
            print("skipped: no LMCACHE_TESTS, so none of LMCache's own tests", file=sys.stderr)
            self.skipTest("no LMCACHE_TESTS")
        named = ["mock_l2_adapter", "store_controller", "prefetch_controller", "runtime_adapters", "cache_salt_l2_eviction", "fault_inject_l2_adapter"]
        files = [os.path.join("tests", "v1", "distributed", f"test_{name}.py") for name in named]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "lmcache_own", "-p", "no:cacheprovider", "--log-cli-level=CRITICAL", *files]
        done = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": HERE}, capture_output=True, text=True, timeout=600)
        said = done.stdout.strip().splitlines()
        print(said[-1] if said else "", file=sys.stderr)
        self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])


if __name__ == "__main__":
    unittest.main()

"""The secondary tier for vLLM, with stand-ins for the classes of vLLM that it uses, so that it is
tested wherever the wheel is built. Tests under vLLM itself are in `python/clients/`.
"""

import hashlib
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

from test_store import Process
from vllm_stand_ins import KVConnectorRole, Locality, LookupResult, Medium, OffloadingEvent, Spec, model_config, vllm_config

from pagelith.vllm import PagelithOffloadingConnector, PagelithTier  # noqa: E402
from pagelith.vllm import tier as module  # noqa: E402

ROW = 4096
ROWS = 4096
REQUEST = types.SimpleNamespace(req_id="request")
# The end of a step that preempted no request.
SCHEDULED = types.SimpleNamespace(preempted_req_ids=())


def told(config=None):
    """The model's identity, as the connector passes it to a tier."""
    return PagelithOffloadingConnector(config or vllm_config(), KVConnectorRole.SCHEDULER, types.SimpleNamespace(kv_cache_groups=[])).extra_config


def keys(count, group=0, of="block"):
    return [hashlib.sha256(f"{of}{n}".encode()).digest() + group.to_bytes(4, "big") for n in range(count)]


class Case(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.memory = memoryview(bytearray(ROW * ROWS)).cast("B", (ROWS, ROW))
        self.job = 0

    def tier(self, events=False, model="a/model", layers=("layer.0",), extra=None, ranks=1, agnostic=True, replicated=False, canonical=False, **given):
        group = types.SimpleNamespace(group_id=0, tokens_per_block=16, layer_names=layers)
        parallel = dict(tp_size=ranks, pp_size=1, pcp_size=1, dcp_size=1, data_parallel_index=0, is_parallelism_agnostic=agnostic)
        config = types.SimpleNamespace(
            model=types.SimpleNamespace(name=model, dtype="bf16"),
            cache=types.SimpleNamespace(tokens_per_hash=16, blocks_per_chunk=1),
            parallel=types.SimpleNamespace(**parallel),
            extra_config=told() if extra is None else extra,
            groups=(group,), replicated_layout=replicated, canonical_layout=canonical, kv_cache_layout="NHD",
        )
        spec = types.SimpleNamespace(config=config, kv_events_config=types.SimpleNamespace(enable_kv_cache_events=events))
        ssd = {"dirs": [os.path.join(self.home.name, "ssd")], "bytes": "128MiB", "segment_bytes": "4MiB"}
        store = {"dram": {"bytes": "32MiB"}, "index": {"max_objects": 20000}, "ssd": ssd}
        # A machine under load is slow.
        given = {"store": store, "exists_timeout_ms": 30_000, **given}
        given = {name: value for name, value in given.items() if value is not None}
        return PagelithTier(spec, self.memory, "PagelithTier", None, **given)

    def run_job(self, submit, keys, rows):
        self.job += 1
        submit(types.SimpleNamespace(job_id=self.job, keys=keys, chunk_ids=rows, req_context=REQUEST))
        return self.job

    def finished(self, tier):
        tier.drain_jobs()
        return list(tier.get_finished_jobs())

    def fill(self, rows, seed):
        for n, row in enumerate(rows):
            self.memory[row : row + 1].cast("B")[:] = hashlib.sha256(f"{seed}{n}".encode()).digest() * (ROW // 32)

    def rows(self, rows):
        return [bytes(self.memory[row : row + 1]) for row in rows]


class Tier(Case):
    def test_job_is_one_batch_and_next_process_reads_it(self):
        tier, chunks = self.tier(), keys(1000)
        self.fill(range(1000), "store")
        job = self.run_job(tier.submit_store, chunks, list(range(1000)))
        (done,) = self.finished(tier)
        self.assertEqual((done.job_id, done.success, done.transfer_bytes), (job, True, 1000 * ROW))
        self.assertEqual(list(tier.get_finished_jobs()), [])
        self.assertEqual(tier.lookup(chunks[7], REQUEST), LookupResult.HIT)
        self.assertEqual(tier.lookup(keys(1, group=1)[0], REQUEST), LookupResult.MISS)
        tier.shutdown()
        again = self.tier()
        self.addCleanup(again.shutdown)
        into = list(range(4000, 3000, -1))
        self.run_job(again.submit_load, chunks, into)
        self.assertEqual([job.success for job in self.finished(again)], [True])
        self.assertEqual(self.rows(into), self.rows(range(1000)))

    def test_too_large_row_and_repeated_chunk_have_results(self):
        tier, chunks = self.tier(), keys(2)
        self.addCleanup(tier.shutdown)
        self.run_job(tier.submit_store, [chunks[0], chunks[0]], [0, 0])
        self.assertTrue(self.finished(tier)[0].success)
        self.memory = memoryview(bytearray(5 << 20)).cast("B", (1, 5 << 20))
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        large = self.tier()
        self.addCleanup(large.shutdown)
        with self.assertLogs("pagelith.vllm.tier", "WARNING") as said:
            self.run_job(large.submit_store, chunks[1:], [0])
            self.assertFalse(self.finished(large)[0].success)
        self.assertIn("object is too large", said.output[0])
        self.assertEqual(large.lookup(chunks[1], REQUEST), LookupResult.MISS)

    def test_failed_chunks_of_job_are_reported_and_are_misses(self):
        """vLLM's own split of large loads leaves untried chunks unreported; here each chunk is
        tried and reported."""
        tier, chunks = self.tier(), keys(2000)
        self.addCleanup(tier.shutdown)
        here = [at for at in range(2000) if at % 3 != 1]
        self.fill(here, "store")
        self.run_job(tier.submit_store, [chunks[at] for at in here], here)
        self.assertTrue(self.finished(tier)[0].success)
        into = [2000 + at for at in range(2000)]
        self.run_job(tier.submit_load, chunks, into)
        (done,) = self.finished(tier)
        self.assertFalse(done.success)
        self.assertEqual(set(done.successful_keys), {chunks[at] for at in here})
        self.assertEqual(self.rows(into[at] for at in here), self.rows(here))
        found = [tier.lookup(chunk, REQUEST) for chunk in chunks]
        self.assertEqual(found, [LookupResult.MISS if at % 3 == 1 else LookupResult.HIT for at in range(2000)])
        # Failed chunks are found again once they were computed and stored again.
        self.run_job(tier.submit_store, [chunks[1]], [0])
        self.finished(tier)
        self.assertEqual(tier.lookup(chunks[1], REQUEST), LookupResult.HIT)

    def test_failed_chunk_is_a_miss_though_stored(self):
        tier, chunks = self.tier(), keys(3)
        self.addCleanup(tier.shutdown)
        self.run_job(tier.submit_store, chunks, [0, 1, 2])
        self.finished(tier)
        wrong = types.SimpleNamespace(job_id=77, keys=chunks, chunk_ids=[5, 5, 5], req_context=REQUEST)
        with self.assertLogs("pagelith.vllm.tier", "ERROR"):
            tier.submit_load(wrong)
            (done,) = self.finished(tier)
        self.assertEqual((done.success, done.successful_keys), (False, None))
        self.assertEqual([tier.lookup(chunk, REQUEST) for chunk in chunks], [LookupResult.MISS] * 3)

    def test_events_report_stored_chunks(self):
        tier, chunks = self.tier(events=True, enable_kv_events=True, locality="LOCAL"), keys(3)
        self.addCleanup(tier.shutdown)
        self.run_job(tier.submit_store, chunks, [0, 1, 2])
        self.finished(tier)
        self.assertEqual(list(tier.take_events()), [OffloadingEvent(chunks, Medium.STORAGE, False, Locality.LOCAL)])
        self.assertEqual(list(tier.take_events()), [])
        # Chunks of another process are reported when they are met, and only once per step.
        tier.shutdown()
        again = self.tier(events=True, enable_kv_events=True)
        self.addCleanup(again.shutdown)
        self.run_job(again.submit_store, chunks[1:] + keys(1, of="new"), [0, 1, 2])
        self.finished(again)
        (event,) = again.take_events()
        self.assertEqual((event.keys, event.removed), (chunks[1:] + keys(1, of="new"), False))

    def test_vllm_memory_is_shared_with_store_process(self):
        # As in vLLM: a file in /dev/shm, which is deleted once all workers have mapped it.
        fd, path = tempfile.mkstemp(prefix="vllm_offload_test", dir="/dev/shm")
        self.addCleanup(os.close, fd)
        os.ftruncate(fd, ROW * ROWS)
        self.memory = memoryview(mmap.mmap(fd, ROW * ROWS)).cast("B", (ROWS, ROW))
        os.unlink(path)
        process = Process(f"unix:{self.home.name}/socket", "--ssd", "0")
        self.addCleanup(process.end)
        tier = self.tier(store=None, attach=process.address)
        chunks = keys(10)
        for row in range(10):
            self.memory[row, 0] = row
        self.run_job(tier.submit_store, chunks, list(range(10)))
        self.assertTrue(all(job.success for job in self.finished(tier)))
        with open(f"/proc/{process.child.pid}/maps") as maps:
            self.assertIn(f"{path} (deleted)", maps.read())
        self.run_job(tier.submit_load, chunks, list(range(100, 110)))
        self.assertTrue(all(job.success for job in self.finished(tier)))
        self.assertEqual([self.memory[100 + row, 0] for row in range(10)], list(range(10)))

    def test_store_process_events_are_used_if_recorded(self):
        for kept in (1000, 0):
            tells = kept > 0
            socket = os.path.join(self.home.name, f"socket{tells}")
            child = subprocess.Popen(
                [os.environ["STORE_PROGRAM"], "serve", "--listen", f"unix:{socket}", "--dram", "1MiB"],
                env={**os.environ, "PAGELITH_EVENTS__MAX": str(kept)},
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )
            self.addCleanup(child.stdout.close)
            self.addCleanup(child.wait)
            self.addCleanup(child.kill)
            self.assertTrue(child.stdout.readline().startswith("listening "))
            with self.assertNoLogs(level="WARNING") if tells else self.assertLogs(level="WARNING") as logs:
                tier = self.tier(events=True, enable_kv_events=True, store=None, attach=f"unix:{socket}")
            if not tells:
                self.assertIn("events.max is 0", logs.output[0])
            if tells:
                # A poll for which no thread could be started is not run later.
                with mock.patch.object(tier._chunk_events, "_poll") as ask:
                    with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
                        self.assertEqual(list(tier.take_events()), [])
                    tier._writes.submit(bool).result(60)
                    ask.assert_not_called()
            known, chunks = set(), keys(600)
            for first in range(0, 600, 50):
                self.run_job(tier.submit_store, chunks[first : first + 50], list(range(50)))
                self.finished(tier)
            # A thread polls the store process; its events are returned in a later step.
            told = list(tier.take_events())
            tier._writes.submit(bool).result(60)
            for event in told + list(tier.take_events()):
                (known.difference_update if event.removed else known.update)(event.keys)
            here = {chunk for chunk, there in zip(chunks, tier._are_stored(chunks)) if there}
            self.assertEqual(known, here if tells else set(chunks))
            self.assertLess(len(here), 400)
            tier.shutdown()

    def test_events_report_removed_chunks(self):
        # A tier of a few hundred chunks receives thousands: applying its events gives its content.
        small = {"dram": {"bytes": "1MiB"}, "index": {"max_objects": 20000}}
        for length in (32, 8):
            tier = self.tier(events=True, enable_kv_events=True, store=small)
            known, chunks = set(), [hashlib.sha256(str(n).encode()).digest()[:length] + bytes(4) for n in range(1500)]
            for first in range(0, 1500, 50):
                self.run_job(tier.submit_store, chunks[first : first + 50], list(range(50)))
                self.finished(tier)
                for event in tier.take_events():
                    (known.difference_update if event.removed else known.update)(event.keys)
                here = {chunk for chunk in chunks if tier.lookup(chunk, REQUEST) is LookupResult.HIT}
                self.assertEqual(known, here, first)
            self.assertLess(len(known), 1000)
            self.assertGreater(len(known), 10)
            self.assertLessEqual(len(tier._hashed), len(known))
            tier.shutdown()

    def test_names_of_chunks_for_events_are_bounded(self):
        process = Process(f"unix:{self.home.name}/socket", "--ssd", "0")
        self.addCleanup(process.end)
        chunks = [hashlib.sha256(str(n).encode()).digest()[:8] + bytes(4) for n in range(50)]
        with self.assertLogs("pagelith.vllm.events", "WARNING"):
            # Without events of the store they are not used.
            none = self.tier(events=True, enable_kv_events=True, store=None, attach=process.address)
        for tier, most in ((none, 0), (self.tier(events=True, enable_kv_events=True), 20)):
            self.addCleanup(tier.shutdown)
            with mock.patch.object(module, "_HASHED_MAX", 20):
                for first in range(0, 50, 10):
                    self.run_job(tier.submit_store, chunks[first : first + 10], list(range(10)))
                    self.assertTrue(all(job.success for job in self.finished(tier)))
            self.assertEqual(len(tier._hashed), most)

    def test_other_model_or_layers_find_nothing(self):
        tier, chunks = self.tier(), keys(1)
        self.run_job(tier.submit_store, chunks, [0])
        self.finished(tier)
        tier.shutdown()
        for other in ({"model": "another"}, {"layers": ("layer.1",)}, {"revision": "2"}, *self.other_models()):
            tier = self.tier(**other)
            self.assertEqual(tier.lookup(chunks[0], REQUEST), LookupResult.MISS, other)
            tier.shutdown()

    def test_row_of_other_parallel_sizes_is_found_only_in_layout_without_them(self):
        for n, (layout, found) in enumerate((
            ({}, False), ({"canonical": True}, True), ({"replicated": True, "agnostic": False}, True), ({"canonical": True, "agnostic": False}, False),
        )):  # fmt: skip
            tier, chunks = self.tier(tenant=str(n), **layout), keys(1)
            self.run_job(tier.submit_store, chunks, [0])
            self.finished(tier)
            tier.shutdown()
            tier = self.tier(tenant=str(n), ranks=2, **layout)
            self.assertEqual(tier.lookup(chunks[0], REQUEST), LookupResult.HIT if found else LookupResult.MISS, layout)
            tier.shutdown()

    def test_connector_without_prefix_caching_is_refused(self):
        group = types.SimpleNamespace(kv_cache_spec=Spec(16, rswa_window=8))
        config = vllm_config(cache={"enable_prefix_caching": False})
        for role in KVConnectorRole:
            with self.assertRaisesRegex(ValueError, "'enable_prefix_caching' is false.*cache group 0 has 'rswa_window' 8"):
                PagelithOffloadingConnector(config, role, types.SimpleNamespace(kv_cache_groups=[group]))

    def other_models(self):
        """Identities of other models, and a missing one."""
        linear = {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}
        for model in ({"hf": linear}, {"revision": "other"}, {"quantization": "fp8"}, {"max_model_len": 8192}, {"commit": "d" * 40}):
            yield {"extra": told(vllm_config(model_config(**model)))}
        yield {"extra": told(vllm_config(cache={"cache_dtype": "fp8"}))}
        yield {"extra": {}, "revision": "1"}

    def test_tier_below_vllm_connector_requires_revision(self):
        with self.assertRaisesRegex(ValueError, "PagelithOffloadingConnector.*set 'revision' to a text"):
            self.tier(extra={})
        with self.assertLogs("pagelith.identity", "WARNING") as said:
            tier = self.tier(extra={}, revision="weights-7")
        self.addCleanup(tier.shutdown)
        self.assertIn("revision='weights-7' keeps its pages apart", said.output[0])

    def test_tier_with_lora_requires_revision(self):
        with_adapters = told(vllm_config(lora_config=types.SimpleNamespace(lora_dtype="auto")))
        with self.assertRaisesRegex(ValueError, "weights of LoRA adapters"):
            self.tier(extra=with_adapters)
        self.tier(extra=with_adapters, revision="adapters-3").shutdown()

    def test_invalid_entry_is_refused_at_start(self):
        with self.assertRaisesRegex(ValueError, "'root_dir' is an unknown key.*'read_threads' must be a whole number"):
            self.tier(root_dir="/x", read_threads=0)
        with self.assertRaisesRegex(ValueError, "one of the two"):
            self.tier(attach="unix:/x")
        with self.assertRaisesRegex(ValueError, "--kv-events-config"):
            self.tier(enable_kv_events=True)

    def test_jobs_after_shutdown_are_reported(self):
        tier = self.tier()
        tier.shutdown()
        self.run_job(tier.submit_load, keys(2), [0, 1])
        self.assertEqual([job.success for job in self.finished(tier)], [False])
        with self.assertLogs("pagelith.vllm.tier", "ERROR"):
            self.assertEqual(tier.lookup(keys(3)[2], REQUEST), LookupResult.MISS)

    def of_peers(self, **given):
        """A tier whose store has peers, by its settings, or by the environment."""
        peer = f"unix:{self.home.name}/none"
        yield self.tier(store={"dram": {"bytes": "1MiB"}, "remote": {"peers": [peer]}}, exists_timeout_ms=None, **given)
        with mock.patch.dict(os.environ, {"PAGELITH_REMOTE__PEERS": peer}):
            yield self.tier(store={"dram": {"bytes": "1MiB"}}, exists_timeout_ms=None, **given)

    def test_lookup_in_peers_does_not_block(self):
        for tier in self.of_peers():
            self.addCleanup(tier.shutdown)
            asked, real = [], tier._store
            tier._store = types.SimpleNamespace(exists=lambda keys, timeout: (asked.append(timeout), [True])[1], close=real.close)
            self.assertEqual((tier.lookup(keys(1)[0], REQUEST), asked), (LookupResult.RETRY, []))
            tier.on_schedule_end(SCHEDULED)
            self.assertEqual((tier.lookup(keys(1)[0], REQUEST), asked), (LookupResult.HIT, [0.1]))

    def test_events_do_not_wait_for_lookup_in_peers(self):
        for tier in self.of_peers(events=True, enable_kv_events=True):
            self.addCleanup(tier.shutdown)
            began, go, waited, real = threading.Event(), threading.Event(), [], tier._store

            def exists(keys, began=began, go=go, waited=waited):
                began.set()
                waited.append(go.wait(20))
                return [False] * len(keys)

            tier._store = types.SimpleNamespace(exists=exists, put=real.put, hint=real.hint, close=real.close)
            self.run_job(tier.submit_store, keys(1), [0])
            self.assertTrue(began.wait(60))
            self.assertEqual(list(tier.take_events()), [])
            go.set()
            self.finished(tier)
            self.assertEqual(waited, [True])

    def test_lookup_in_store_process_does_not_block(self):
        tier, chunks = self.tier(), keys(2)
        self.addCleanup(tier.shutdown)
        self.run_job(tier.submit_store, chunks[:1], [0])
        self.finished(tier)
        # The lookup manager for a store process.
        tier._lookup_manager = sys.modules["pagelith.vllm.tier"]._Lookups(tier)
        self.assertEqual([tier.lookup(chunk, REQUEST) for chunk in chunks], [LookupResult.RETRY] * 2)
        tier.on_schedule_end(SCHEDULED)
        self.assertEqual([tier.lookup(chunk, REQUEST) for chunk in chunks], [LookupResult.HIT, LookupResult.MISS])
        tier.on_request_finished(REQUEST)
        self.assertEqual(tier.lookup(chunks[0], REQUEST), LookupResult.RETRY)

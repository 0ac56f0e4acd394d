"""A store process that is down, with every adapter: the engine starts if the operator permits it,
its log is not flooded, and pages are stored and found once the process is up.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import tempfile
import time
import types
import unittest
from unittest import mock

import test_lmcache_adapter
import test_lmcache_connector
import test_mooncake_api
import test_sglang_adapter
import test_vllm_adapter
import vllm_engine
from lmcache_stand_ins import Memory
from lmcache_stand_ins import keys as lmcache_keys
from test_store import Process
from vllm_stand_ins import LookupResult, Output, Request

import pagelith
from pagelith.compat.mooncake import MooncakeDistributedStore
from pagelith.failures import EVERY_S, NAMED_MAX, Failures
from pagelith.lmcache import PagelithL2Adapter

CALLS = 50


class Lines(unittest.TestCase):
    """Log lines, with a clock that the test controls."""

    def setUp(self):
        self.now = 0.0
        self.failures = Failures(logging.getLogger("here"), "unix:/x", lambda: self.now)
        self.key = pagelith.Key(pagelith.Namespace("m"), bytes(32))

    @contextlib.contextmanager
    def said(self):
        """The logged lines, with their tracebacks."""
        lines = []
        with self.assertLogs("here") as logs:
            logging.getLogger("here").info("nothing")
            yield lines
        lines += logs.output[1:]

    def test_down_store_is_logged_at_intervals_with_address_and_count(self):
        with self.said() as lines:
            for n in range(100):
                self.now = n * EVERY_S / 99.5
                self.failures.call(("lookup", "read", "write")[n % 3], pagelith.UnavailableError("there is no link to the store"))
        self.assertEqual(lines, ["WARNING:here:pagelith: a lookup failed: there is no link to the store store=unix:/x failed_calls=1"])
        self.now = EVERY_S
        with self.said() as lines:
            self.failures.call("read", pagelith.UnavailableError("there is no link to the store"))
        self.assertEqual(lines, ["WARNING:here:pagelith: a read failed: there is no link to the store store=unix:/x failed_calls=100"])

    def test_failed_outcomes_of_down_store_share_its_line(self):
        down = types.SimpleNamespace(error=pagelith.UnavailableError("there is no link to the store"), cause=None)
        outcome = mock.MagicMock(error=down.error, cause=None)
        outcome.__bool__.return_value = False
        with self.said() as lines:
            for _ in range(100):
                self.failures.read([self.key] * 2, [outcome] * 2)
                self.failures.written([outcome] * 2)
                self.failures.call("lookup", down.error)
        self.assertEqual(len(lines), 1)
        self.assertIn("a read failed for 2 of 2 objects", lines[0])

    def test_kinds_of_failures_are_logged_separately_by_text(self):
        with self.said() as lines:
            for length in range(100):
                self.failures.call("write", pagelith.InvalidError(f"object is too large length={length}"))
                self.failures.call("write", pagelith.InvalidError(f"object has no bytes length={length}"))
                self.failures.call("read", pagelith.InvalidError(f"object is too large length={length}"))
        self.assertEqual(len(lines), 3)
        self.assertTrue(all(line.startswith("ERROR") and "Traceback" not in line for line in lines), lines)

    def test_down_store_is_logged_after_other_failure(self):
        with self.said() as lines:
            self.failures.call("read", pagelith.UnavailableError("a checksum is wrong segment=1"))
            self.failures.call("read", pagelith.UnavailableError("a checksum is wrong segment=2"))
            self.failures.call("read", pagelith.UnavailableError("there is no link to the store"))
        self.assertEqual(len(lines), 2)

    def test_new_kind_is_logged_once_old_kinds_expired(self):
        for n in range(1000):
            self.failures.call("read", KeyError(n))
        self.now = 2 * EVERY_S
        with self.said() as lines:
            for _ in range(2):
                self.failures.call("read", KeyError("new"))
                self.failures.call("write", KeyError("new"))
        self.assertEqual(len(lines), 2)

    def test_kinds_of_failures_are_bounded(self):
        with self.said() as lines:
            for n in range(10_000):
                self.failures.call("read", KeyError(n))
        self.assertLess(len(lines), 300)

    def test_adapter_bug_is_logged_with_traceback(self):
        with self.said() as lines:
            for _ in range(100):
                try:
                    raise KeyError("a fault")
                except KeyError as error:
                    self.failures.call("lookup", error)
        self.assertEqual(len(lines), 1)
        self.assertIn("Traceback", lines[0])

    def test_unreadable_objects_are_named_with_cause(self):
        def missed(cause):
            outcome = mock.MagicMock(error=None, cause=cause)
            outcome.__bool__.return_value = cause is None
            return outcome

        keys = self.key.on_pages([f"page {n}" for n in range(5)])
        with self.said() as lines:
            self.failures.read(keys, [missed(cause) for cause in ("damaged", None, "absent", "damaged", "late")])
        self.assertEqual(
            lines,
            [
                f"WARNING:here:pagelith: 2 of 5 objects could not be read and count as misses: cause=damaged store=unix:/x not_named=0 objects={keys[0]} {keys[3]}",
                f"WARNING:here:pagelith: 1 of 5 objects could not be read and count as misses: cause=late store=unix:/x not_named=0 objects={keys[4]}",
            ],
        )
        # A limited number per period.
        many = self.key.on_pages([f"many {n}" for n in range(1000)])
        with self.said() as lines:
            for one in many:
                self.failures.read([one], [missed("damaged")])
        self.assertEqual(len(lines), NAMED_MAX - 2)
        self.now = EVERY_S
        with self.said() as lines:
            self.failures.read(keys[:1], [missed("damaged")])
        self.assertIn(f"not_named={1000 - NAMED_MAX + 2} objects={keys[0]}", lines[0])


class Down(unittest.TestCase):
    def setUp(self):
        if "STORE_PROGRAM" not in os.environ:
            self.skipTest("no STORE_PROGRAM, so no store process")
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.address = "unix:" + os.path.join(self.home.name, "socket")
        self.given = {"attach": self.address, "start_without_store": True}

    def start(self):
        process = Process(self.address, "--dram", "16MiB", "--ssd", "0")
        self.addCleanup(process.ended)

    def until(self, done):
        """Repeat a call until it succeeds, once the process is contacted again."""
        end = time.monotonic() + 60
        while not done():
            self.assertLess(time.monotonic(), end, "not in time")
            time.sleep(0.01)

    @contextlib.contextmanager
    def one_line(self, logger):
        """All calls together log one line of this logger that reports the store down, and no
        traceback."""
        with self.assertLogs(logger) as logs:
            yield
        lines = [line for line in logs.output if f"store={self.address}" in line]
        self.assertEqual(len(lines), 1, logs.output)
        self.assertFalse([line for line in logs.output if "Traceback" in line])

    def test_sglang_backend_survives_down_store(self):
        pool, pages = test_sglang_adapter.MHATokenToKVPoolHost(), test_sglang_adapter.keys(2)
        of = test_sglang_adapter.Pages("test_pages_are_found_by_next_process_only_with_equal_settings")
        of.home = self.home
        with self.assertRaisesRegex(pagelith.UnavailableError, f"address={self.address}.*'start_without_store'"):
            of.open(pool, extra={"store": None, "attach": self.address})
        backend = of.open(pool, extra={"store": None, "enable_kv_events": True, **self.given})
        self.addCleanup(backend.close)
        slots = test_sglang_adapter.slots
        with self.one_line("pagelith.sglang"):
            for _ in range(CALLS):
                self.assertEqual(backend.batch_exists(pages), 0)
                self.assertEqual(backend.batch_get_v1(pages, slots(0, 2)), [False] * 2)
                self.assertEqual(backend.batch_set_v1(pages, slots(0, 2)), [False] * 2)
        self.start()
        self.until(lambda: backend.batch_set_v1(pages, slots(0, 2)) == [True] * 2)
        self.assertEqual((backend.batch_exists(pages), backend.batch_get_v1(pages, slots(4, 2))), (2, [True] * 2))

    def test_vllm_tier_survives_down_store(self):
        of = test_vllm_adapter.Tier("test_job_is_one_batch_and_next_process_reads_it")
        of.setUp()
        self.addCleanup(of.doCleanups)
        chunks = test_vllm_adapter.keys(2)
        with self.one_line("pagelith.vllm"):
            tier = of.tier(store=None, events=True, enable_kv_events=True, **self.given)
            self.addCleanup(tier.shutdown)
            for _ in range(CALLS):
                for request in ("one", "two"):
                    asked = types.SimpleNamespace(req_id=request)
                    tier.lookup(chunks[0], asked)
                    tier.on_schedule_end(test_vllm_adapter.SCHEDULED)
                    self.assertEqual(tier.lookup(chunks[0], asked), LookupResult.MISS)
                    tier.on_request_finished(asked)
                of.run_job(tier.submit_store, chunks, [0, 1])
                of.run_job(tier.submit_load, chunks, [0, 1])
                self.assertEqual([job.success for job in of.finished(tier)], [False] * 2)
                list(tier.take_events())
        self.start()

        def stored():
            of.run_job(tier.submit_store, chunks, [0, 1])
            return all(job.success for job in of.finished(tier))

        self.until(stored)
        of.run_job(tier.submit_load, chunks, [4, 5])
        self.assertEqual([job.success for job in of.finished(tier)], [True])

    def test_vllm_connector_survives_down_store(self):
        hashes, tokens = vllm_engine.hashes, vllm_engine.TOKENS
        for more in ({}, {"save_async": True}, {"load_async": False}):
            with self.subTest(more):
                with self.assertLogs("pagelith.vllm") as logs:
                    engine = vllm_engine.Engine({**self.given, **more}, events=True, engine=str(more), policy="fail")
                    self.addCleanup(engine.close)
                    for n in range(CALLS):
                        request = Request(f"request {n}", 2 * tokens, hashes(2, str(n)))
                        self.assertEqual(engine.answer(request, [1, 2], {1: n, 2: n}), 0)
                    for worker in engine.workers:
                        worker._work._saving.end()
                # One of the scheduler, one of the worker, and one of events.
                lines = [line for line in logs.output if f"store={self.address}" in line]
                self.assertLessEqual(len(lines), 3, logs.output)
                self.assertGreater(len(lines), 0)
                self.assertFalse([line for line in logs.output if "Traceback" in line])
        self.start()

        def found():
            request = Request("later", 2 * tokens + 1, hashes(2, "later"))
            engine.answer(request, [1, 2, 3], {1: 1, 2: 2, 3: 3})
            again = Request("again", 2 * tokens + 1, hashes(2, "later"))
            return engine.scheduler.get_num_new_matched_tokens(again, 0)[0] == 2 * tokens

        self.until(found)
        engine.step(Output())

    def test_lmcache_adapter_survives_down_store(self):
        adapter = PagelithL2Adapter({"revision": "weights-1", **self.given})
        self.addCleanup(adapter.close)
        of, chunks = test_lmcache_adapter.Adapter("test_repeated_key_is_stored_once"), lmcache_keys(2)
        objects = [Memory(0), Memory(1)]
        with self.one_line("pagelith.lmcache"):
            for _ in range(CALLS):
                self.assertEqual(of.look(adapter, chunks), [0, 0])
                self.assertEqual(of.load(adapter, chunks, [Memory(), Memory()]), [0, 0])
                self.assertEqual(of.store(adapter, chunks, objects), (False, 0))
                adapter.delete(chunks)
        self.assertFalse(adapter.report_status()["is_healthy"])
        self.start()
        self.until(lambda: of.store(adapter, chunks, objects)[0])
        self.assertEqual(of.look(adapter, chunks), [1, 1])

    def test_lmcache_connector_survives_down_store(self):
        of = test_lmcache_connector.Connector("test_repeated_key_is_stored_once_with_the_others")
        of.home = self.home
        chunk, key = test_lmcache_connector.Chunk, test_lmcache_connector.Key

        async def body(connector):
            with self.one_line("pagelith.lmcache"):
                for _ in range(CALLS):
                    self.assertEqual(connector.batched_contains([key("a")]), 0)
                    await connector.batched_put([key("a")], [chunk(b"1" * 100)])
                    self.assertEqual(await connector.batched_get([key("a")]), [None])
                    self.assertFalse(connector.remove_sync(key("a")))
            await asyncio.get_running_loop().run_in_executor(None, self.start)
            end = time.monotonic() + 60
            while not connector.batched_contains([key("a")]):
                self.assertLess(time.monotonic(), end, "not in time")
                await connector.batched_put([key("a")], [chunk(b"1" * 100)])
            return [bytes(got.byte_array) for got in await connector.batched_get([key("a")])]

        self.assertEqual(of.run_with(body, store=False, **self.given), [b"1" * 100])

    def test_mooncake_client_survives_down_store(self):
        of = test_mooncake_api.Client("test_objects_in_several_pieces")
        of.setUp()
        self.addCleanup(of.doCleanups)
        refused = MooncakeDistributedStore()
        with self.assertLogs("pagelith.compat", "ERROR") as logs:
            self.assertEqual(refused.setup("host", master_server_addr=self.address), -600)
        self.assertIn(f"address={self.address}", logs.output[0])
        by_variable, client = MooncakeDistributedStore(), MooncakeDistributedStore()
        with mock.patch.dict(os.environ, {"MOONCAKE_PAGELITH_START_WITHOUT_STORE": "true"}):
            self.assertEqual(by_variable.setup("host", master_server_addr=self.address), 0)
        by_variable.close()
        self.assertEqual(client.setup("host", master_server_addr=self.address, start_without_store=True), 0)
        self.addCleanup(client.close)
        memory = ctypes.create_string_buffer(8)
        at = ctypes.addressof(memory)
        self.assertEqual(client.register_buffer(at, 8), 0)
        with self.one_line("pagelith.compat"):
            for _ in range(CALLS):
                self.assertLess(client.is_exist("a"), 0)
                self.assertLess(client.put("a", b"12345678"), 0)
                self.assertLess(client.batch_put_from(["a"], [at], [8])[0], 0)
                self.assertLess(client.batch_get_into(["a"], [at], [8])[0], 0)
                self.assertEqual(client.get("a"), b"")
        self.start()
        self.until(lambda: client.put("a", b"12345678") == 0)
        self.assertEqual(client.get("a"), b"12345678")

    def test_start_without_store_requires_attach(self):
        of = test_sglang_adapter.Pages("test_pages_are_found_by_next_process_only_with_equal_settings")
        of.home = self.home
        with self.assertRaisesRegex(ValueError, "'start_without_store' requires 'attach'"):
            of.open(test_sglang_adapter.Pool(), extra={"start_without_store": True})


if __name__ == "__main__":
    unittest.main()

"""The events that a router receives of pages in the store: published by SGLang's own publisher
while its own controllers back up and prefetch."""

import os
import tempfile
import unittest

import msgspec
import sglang_drive as drive
import zmq
from sglang.srt.disaggregation.kv_events import BlockRemoved, BlockStored, KVEventBatch, StorageMedium
from sglang.srt.mem_cache.utils import hash_str_to_int64
from sglang_scenarios import NAMED, PAGES, SCENARIOS, Case, embedded

BOTH = {StorageMedium.EXTERNAL, StorageMedium.DISK}


class Router:
    """Receives all published events, however late, by the replay that SGLang's publisher offers to
    those who missed some."""

    def __init__(self, address):
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.RCVTIMEO, 60_000)
        self.socket.connect(address)
        self.next, self.there, self.removed = 0, {medium: set() for medium in BOTH}, 0

    def listen(self):
        """Request a replay from the last received event on, and apply it."""
        self.socket.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            _, _, number, payload = self.socket.recv_multipart()
            if int.from_bytes(number, "big", signed=True) < 0:
                return
            self.next = int.from_bytes(number, "big") + 1
            for event in msgspec.msgpack.decode(payload, type=KVEventBatch).events:
                there = self.there[StorageMedium(event.medium)]
                if isinstance(event, BlockStored):
                    there |= set(event.block_hashes)
                else:
                    assert isinstance(event, BlockRemoved) and there.issuperset(event.block_hashes), event
                    there -= set(event.block_hashes)
                    self.removed += len(event.block_hashes)

    def until(self, known):
        """Listen until the condition holds; events are published up to a tenth of a second late,
        and each replay request is answered as late."""
        for _ in range(600):
            self.listen()
            if known():
                return True
        return False

    def anywhere(self):
        return set().union(*self.there.values())

    def close(self):
        self.socket.close(linger=0)


class Published(Case):
    def listening(self, scenario, extra):
        place = tempfile.mkdtemp(dir=self.home)
        config = {"publisher": "zmq", "endpoint": f"ipc://{place}/events", "replay_endpoint": f"ipc://{place}/replay"}
        controller = self.start(scenario, {**extra, "kv_events_config": config})
        router = Router(config["replay_endpoint"])
        self.addCleanup(router.close)
        return controller, router

    def hashes(self, scenario, prompts):
        """The hashes that SGLang publishes for its own memory."""
        keys = [key for n in prompts for key in drive.hashes_of(drive.tokens_of(n, PAGES, scenario.page), scenario.page)]
        return {hash_str_to_int64(key) for key in keys}

    def test_events_report_pages_by_tier_and_removal_at_detach(self):
        for name in ("mha page_first", "mla, indexer, draft and mamba", "sliding window page_first", "deepseek v4 page_first"):
            with self.subTest(name):
                scenario = SCENARIOS[name]
                controller, router = self.listening(scenario, embedded(tempfile.mkdtemp(dir=self.home)))
                self.assertEqual(scenario.write(controller, 1), scenario.whole)
                controller.storage_backend._store.flush()
                wanted = self.hashes(scenario, [1])
                self.assertTrue(router.until(lambda: router.there == dict.fromkeys(BOTH, wanted)), router.there)
                self.assertEqual(scenario.read(controller, 1), (scenario.whole, scenario.whole, 0))
                told = []
                sink = controller.storage_backend._listening._publisher._sink
                shutdown, sink.shutdown = sink.shutdown, lambda: told.append(router.until(lambda: not router.anywhere()))
                self.end()
                shutdown()
                self.assertEqual(told, [True])

    def test_events_report_evictions(self):
        scenario = SCENARIOS["mha page_first"]
        extra = {**NAMED, "store": {"dram": {"bytes": "4MiB"}, "index": {"max_objects": 10000}}}
        controller, router = self.listening(scenario, extra)
        for prompt in range(12):
            self.assertEqual(scenario.write(controller, prompt), scenario.whole)
        backend = controller.storage_backend
        keys = [key for n in range(12) for key in drive.hashes_of(drive.tokens_of(n, PAGES))]
        here = {hash_str_to_int64(key) for key in keys if backend.exists(key)}
        self.assertTrue(0 < len(here) < len(keys))
        self.assertTrue(router.until(lambda: router.anywhere() == here))
        self.assertGreater(router.removed, 0)

    def test_all_listeners_of_store_process_get_events(self):
        store = self.serve(PAGELITH_EVENTS__MAX="100000")
        scenario, extra = SCENARIOS["mla page_first"], {**NAMED, "attach": store.address}
        writer, first = self.listening(scenario, extra)
        _, second = self.listening(scenario, extra)
        # It receives events from here on.
        self.assertEqual(scenario.write(writer, 5), scenario.whole)
        wanted = self.hashes(scenario, [5])
        for router in (first, second):
            self.assertTrue(router.until(lambda heard=router: heard.anywhere() == wanted))
        writer.storage_backend.clear()
        for router in (first, second):
            self.assertTrue(router.until(lambda heard=router: not heard.anywhere()))


class ReturnedEvents(Case):
    def test_events_have_sglang_hashes(self):
        scenario = SCENARIOS["mha page_first"]
        controller = self.start(scenario, embedded(os.path.join(self.home, "handed"), enable_kv_events=True))
        scenario.write(controller, 1)
        controller.storage_backend._store.flush()
        there = {"dram": set(), "ssd": set()}
        for event in controller.storage_backend.take_events():
            self.assertFalse(event.removed)
            there[event.tier] |= set(event.pages)
        self.assertEqual(there, dict.fromkeys(there, set(drive.hashes_of(drive.tokens_of(1, PAGES)))))


if __name__ == "__main__":
    unittest.main()

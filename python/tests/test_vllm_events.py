"""vLLM's events of the connector, with stand-ins for vLLM: applying them gives the blocks that the
store has."""

import threading
import types
import unittest
from unittest import mock

from vllm_engine import FULL, TOKENS, Case, hashes, window
from vllm_stand_ins import BlockRemoved, BlockStored, Blocks, Output, Request

HYBRID = (FULL, window(2 * TOKENS + 1), window(2 * TOKENS + 1))
SMALL = {"store": {"dram": {"bytes": "1MiB"}, "index": {"max_objects": 20000}}}


class Events(Case):
    def listening(self, extra=None, **different):
        return self.engine(extra or SMALL, events=True, blocks=128, **different)

    def store_pages(self, engine, pages):
        """Each page is the only one of its request."""
        groups = len(engine.layers)
        for name in pages:
            request = Request(name.hex(), TOKENS, [name])
            tables = tuple([1 + group] for group in range(groups))
            engine.scheduler.update_state_after_alloc(request, Blocks(*tables), 0)
            engine.step(engine.new(request, tables, 0))

    def note(self, known, events):
        for event in events:
            known_of = known.setdefault(event.group_idx, set())
            (known_of.difference_update if isinstance(event, BlockRemoved) else known_of.update)(event.block_hashes)

    def test_listener_tracks_stored_blocks(self):
        # A few hundred of 900 pages are stored at a time. Also with hashes that are no pages by
        # themselves.
        for length in (32, 8):
            engine, known = self.listening(), {}
            pages = [name[:length] for name in hashes(900)]
            for first in range(0, 900, 30):
                self.store_pages(engine, pages[first : first + 30])
                self.note(known, engine.scheduler.take_events())
                here = engine.store.exists(engine.keys([name if length == 32 else f"vllm block {name.hex()}" for name in pages]))
                self.assertEqual(known[0], {name for name, there in zip(pages, here) if there}, first)
            self.assertTrue(10 < len(known[0]) < 600, len(known[0]))
            engine.close()

    def test_each_group_is_reported(self):
        engine, known = self.listening(specs=HYBRID), {}
        pages = hashes(600)
        for first in range(0, 600, 30):
            self.store_pages(engine, pages[first : first + 30])
            self.note(known, engine.scheduler.take_events())
            self.assertEqual(known[1], known[2])
            here = [engine.store.exists(engine.keys(pages, pool)) for pool in (0, 1)]
            whole, windows = ({name for name, there in zip(pages, of) if there} for of in here)
            # Attached objects are removed with their page, which is reported.
            self.assertEqual((known[0], known[0] & known[1]), (whole, windows), first)
        self.assertTrue(10 < len(known[0]) < 500, len(known[0]))

    def test_event_has_fields_for_routers(self):
        engine = self.listening(self.extra(locality="LOCAL"), specs=HYBRID)
        prompt = hashes(3)
        request = Request("first", 3 * TOKENS, prompt)
        tables = ([1, 2, 3], [4, 5, 6], [7, 8, 9])
        engine.scheduler.update_state_after_alloc(request, Blocks(*tables), 0)
        engine.step(engine.new(request, tables, 0, TOKENS))
        engine.step(engine.again(request, TOKENS, 2 * TOKENS))
        expected = [
            BlockStored(
                [prompt[at]], prompt[at - 1] if at else None, list(range(at * TOKENS, (at + 1) * TOKENS)), TOKENS, None, "STORAGE", None,
                group, "sliding_window" if group else "full_attention", 2 * TOKENS + 1 if group else None, "LOCAL",
            )
            for at in range(3) for group in range(3)
        ]
        in_order = lambda event: (event.block_hashes, event.group_idx)  # noqa: E731
        self.assertEqual(sorted(engine.scheduler.take_events(), key=in_order), sorted(expected, key=in_order))
        self.assertEqual(list(engine.scheduler.take_events()), [])
        engine.store.remove(engine.keys(prompt[1:2]))
        self.assertIn(BlockRemoved([prompt[1]], "STORAGE", 0, "LOCAL"), list(engine.scheduler.take_events()))

    def test_blocks_of_earlier_process_are_reported_when_met(self):
        self.filled(4).close()
        engine, prompt = self.listening(self.extra()), hashes(4)
        self.assertEqual(list(engine.scheduler.take_events()), [])
        request = Request("second", 3 * TOKENS + 1, prompt)
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0)[0], 3 * TOKENS)
        told = [(event.block_hashes, event.parent_block_hash) for event in engine.scheduler.take_events()]
        self.assertEqual(told, [([prompt[0]], None), ([prompt[1]], prompt[0]), ([prompt[2]], prompt[1])])
        # Once.
        engine.scheduler.get_num_new_matched_tokens(request, 0)
        self.assertEqual(list(engine.scheduler.take_events()), [])
        # A request that computed a stored block made no lookup that reported it.
        engine.answer(Request("third", 4 * TOKENS, prompt), [1, 2, 3, 4], {})
        self.assertEqual([event.block_hashes for event in engine.scheduler.take_events()], [[prompt[3]]])
        engine.store.remove(engine.keys(prompt[3:]))
        self.assertEqual(list(engine.scheduler.take_events()), [BlockRemoved([prompt[3]], "STORAGE", 0, None)])

    def test_block_met_twice_before_lookup_is_reported_once(self):
        self.filled(3).close()
        engine, looks = self.listening(self.extra()), []
        # As with a store process, which is polled on a thread.
        engine.scheduler._plans.listener._later = looks.append
        for name in ("second", "third"):
            engine.scheduler.get_num_new_matched_tokens(Request(name, 3 * TOKENS + 1, hashes(3)), 0)
        self.assertEqual((len(looks), list(engine.scheduler.take_events())), (2, []))
        for look in looks:
            look()
        self.assertEqual([event.block_hashes for event in engine.scheduler.take_events()], [[name] for name in hashes(3)])
        # Known blocks are not looked up again.
        engine.scheduler.get_num_new_matched_tokens(Request("fourth", 3 * TOKENS + 1, hashes(3)), 0)
        self.assertEqual(len(looks), 2)

    def test_met_blocks_are_looked_up_in_peers_on_a_thread(self):
        engine = self.listening({"store": {"dram": {"bytes": "1MiB"}, "remote": {"peers": ["unix:/nowhere/socket"]}}})
        self.addCleanup(engine.close)
        listener, asked = engine.scheduler._plans.listener, []
        exists = lambda keys: (asked.append(threading.current_thread()), [False] * len(keys))[1]  # noqa: E731
        with mock.patch.object(listener, "_store", types.SimpleNamespace(exists=exists)):
            listener.met([(0, hashes(1)[0])])
            self.assertNotIn(threading.current_thread(), asked)
            engine.scheduler._event_executor.submit(bool).result(60)
        self.assertEqual(len(asked), 1)

    def test_blocks_removed_by_reset_are_reported(self):
        engine, known = self.listening(), {}
        self.store_pages(engine, hashes(5))
        self.note(known, engine.scheduler.take_events())
        self.assertEqual(known[0], set(hashes(5)))
        engine.scheduler.reset_cache()
        self.note(known, engine.scheduler.take_events())
        self.assertEqual(known[0], set())
        # Pages of the step that may have been in progress are removed too.
        engine.step(Output())
        self.store_pages(engine, hashes(1))
        self.note(known, engine.scheduler.take_events())
        self.assertEqual(known[0], set(hashes(1)))

        # For objects that are only on SSD, the store has no keys.
        engine.close()
        self.filled(4).close()
        engine, known = self.listening(self.extra()), {}
        engine.scheduler.get_num_new_matched_tokens(Request("second", 4 * TOKENS + 1, hashes(4)), 0)
        self.note(known, engine.scheduler.take_events())
        self.assertEqual(known[0], set(hashes(4)))
        engine.scheduler.reset_cache()
        self.note(known, engine.scheduler.take_events())
        self.assertEqual(known[0], set())

    def test_no_events_are_recorded_unless_enabled(self):
        engine = self.engine(SMALL, blocks=128)
        self.store_pages(engine, hashes(2))
        self.assertEqual((list(engine.scheduler.take_events()), engine.store.take_events()), ([], ([], 0)))

    def taken(self, engine):
        """A thread polls, once at a time; its events are returned in a later step."""
        engine.scheduler._event_executor.submit(bool).result(60)
        told = list(engine.scheduler.take_events())
        engine.scheduler._event_executor.submit(bool).result(60)
        return told + list(engine.scheduler.take_events())

    def test_poll_without_thread_is_not_run_later(self):
        with self.process(1000) as attach:
            engine = self.listening(attach)
            told = engine.scheduler._plans.listener._chunk_events
            with mock.patch.object(told, "_poll") as ask:
                with mock.patch.object(threading.Thread, "start", side_effect=RuntimeError("can't start new thread")):
                    self.assertEqual(list(engine.scheduler.take_events()), [])
                engine.scheduler._event_executor.submit(bool).result(60)
                ask.assert_not_called()
                list(engine.scheduler.take_events())
                engine.scheduler._event_executor.submit(bool).result(60)
                ask.assert_called_once()
            engine.close()

    def test_block_of_several_ranks_is_stored_with_all_slices(self):
        with self.process(100_000) as attach:
            engine, known, pages = self.listening(attach, ranks=2), {}, hashes(400)
            ranks = engine.scheduler._plans._keys[0]
            for first in range(0, 400, 20):
                self.store_pages(engine, pages[first : first + 20])
                self.note(known, self.taken(engine))
                slices = [engine.store.exists(key.on_pages(pages)) for key in ranks]
                self.assertEqual(known[0], {name for name, one, other in zip(pages, *slices) if one and other}, first)
            self.assertTrue(10 < len(known[0]) < 200, len(known[0]))
            # Another server has the whole block in one slice: that is another block.
            other = self.engine(attach, ranks=1, blocks=128)
            self.store_pages(other, hashes(3, "another"))
            self.note(known, self.taken(engine))
            self.assertFalse(known[0] & set(hashes(3, "another")))
            other.close()
            # One slice of a block is removed, and then the other; and one is stored again.
            name = min(known[0])
            engine.store.remove(ranks[1].on_pages([name]))
            self.assertEqual(self.taken(engine), [BlockRemoved([name], "STORAGE", 0, None)])
            engine.store.remove(ranks[0].on_pages([name]))
            self.assertEqual(self.taken(engine), [])
            engine.store.put(ranks[0].on_pages([name]), [bytes(64)])
            self.assertEqual(self.taken(engine), [])
            engine.store.put(ranks[1].on_pages([name]), [bytes(64)])
            self.assertEqual([event.block_hashes for event in self.taken(engine)], [[name]])
            engine.close()

    def test_store_process_without_events_reports_no_removals(self):
        with self.process(0) as attach:
            with self.assertLogs("pagelith.vllm.events", "WARNING") as logs:
                engine, known, pages = self.listening(attach), {}, hashes(400)
            self.assertIn("events.max is 0", logs.output[0])
            for first in range(0, 400, 20):
                self.store_pages(engine, pages[first : first + 20])
                self.note(known, self.taken(engine))
            self.assertEqual(known[0], set(pages))
            engine.close()


if __name__ == "__main__":
    unittest.main()

"""Asynchronous saves of the connector (`save_async`), with stand-ins for vLLM: no block is
overwritten while it is still read."""

import unittest

from vllm_engine import FULL, TOKENS, Case, hashes, window
from vllm_stand_ins import Blocks, Output, Request


class Waiting:
    """A save that starts only when it, or a later one, is waited for."""

    def __init__(self, thread, body, arguments):
        self._thread, self._body, self._arguments, self._done = thread, body, arguments, False

    def done(self):
        return self._done

    def result(self):
        while not self._done:
            self._thread.next()

    def run(self):
        self._body(*self._arguments)
        self._done = True


class Slow:
    """A thread that runs jobs only when they are waited for."""

    def __init__(self):
        self.waiting = []

    def submit(self, body, *arguments):
        self.waiting.append(Waiting(self, body, arguments))
        return self.waiting[-1]

    def next(self):
        self.waiting[0].run()
        del self.waiting[0]

    def shutdown(self, wait):
        while self.waiting:
            self.next()


class Saves(Case):
    def slow(self, extra=None, **different):
        """An engine whose saves end as late as possible."""
        engine = self.engine(extra or self.extra(save_async=True), blocks=128, **different)
        for worker in engine.workers:
            worker._work._saving._thread.shutdown(wait=True)
            worker._work._saving._thread = Slow()
        return engine

    def waiting(self, engine):
        return len(engine.workers[0]._work._saving._thread.waiting)

    def computed(self, engine, name, ids, of="prompt", **more):
        """A request that computes these blocks; each block contains its number and the prompt's
        name."""
        tables = ids if isinstance(ids, tuple) else (ids,)
        request = Request(name, len(tables[0]) * TOKENS, hashes(len(tables[0]), of))
        engine.scheduler.update_state_after_alloc(request, Blocks(*tables), 0)
        engine.step(engine.new(request, ids, 0), {block: block + len(of) for table in tables for block in table})
        return request

    def stored(self, engine, ids, into, of="prompt"):
        """The stored pages that were in blocks `ids`, read into other blocks."""
        request = Request("reading", len(into) * TOKENS + 1, hashes(len(into), of))
        self.assertEqual(engine.answer(request, [*into, 127], {}), len(into) * TOKENS)
        return engine.bytes(into)

    def test_step_does_not_wait_for_save(self):
        engine = self.slow()
        self.computed(engine, "first", [1, 2, 3])
        self.assertEqual((engine.store.exists(engine.keys(hashes(3))), self.waiting(engine)), ([False] * 3, 2))
        # Nor does one with other blocks.
        self.computed(engine, "second", [4, 5], "another")
        self.assertEqual(self.waiting(engine), 4)
        engine.workers[0]._work._saving.end()
        self.assertEqual(engine.store.exists(engine.keys(hashes(3))), [True] * 3)
        # Stored pages are reported when they are stored.
        engine.scheduler._plans._missed.add((0, name) for name in hashes(3))
        engine.step(Output())
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(Request("third", 3 * TOKENS + 1, hashes(3)), 0)[0], 3 * TOKENS)

    def test_block_is_given_to_new_request_after_save(self):
        engine = self.slow()
        self.computed(engine, "first", [1, 2, 3])
        was = engine.bytes([1, 2, 3])
        self.computed(engine, "second", [3, 4], "another")
        self.assertNotEqual(engine.bytes([3]), was[2:])
        self.assertEqual(self.stored(engine, [1, 2, 3], [11, 12, 13]), was)

    def test_block_is_given_to_running_request_after_save(self):
        engine = self.slow()
        self.computed(engine, "first", [1, 2, 3])
        was = engine.bytes([1, 2, 3])
        running = self.computed(engine, "second", [4], "another")
        self.assertGreater(self.waiting(engine), 0)
        running.num_tokens, running.block_hashes = 2 * TOKENS, hashes(2, "another")
        engine.step(engine.again(running, TOKENS, TOKENS, more=[2]), {2: 99})
        self.assertEqual(self.stored(engine, [1, 2, 3], [11, 12, 13]), was)

    def test_block_is_saved_before_load_into_it(self):
        # Within a step, and on threads.
        for specs, ids in (((FULL,), ([1, 2, 3],)), ((FULL, window(TOKENS + 1)), ([1, 2, 3], [4, 5, 6]))):
            engine = self.slow(specs=specs, engine=str(len(specs)), model=str(len(specs)))
            flat = [block for table in ids for block in table]
            self.computed(engine, "early", tuple([block + 20 for block in table] for table in ids), "early")
            engine.workers[0]._work._saving.end()
            self.computed(engine, "first", ids)
            was = engine.bytes(flat)
            # It is loaded into the blocks of the first one, which were freed.
            early = Request("again", 3 * TOKENS + 1, hashes(3, "early"))
            self.assertEqual(engine.answer(early, ids, {}), 3 * TOKENS)
            self.assertNotEqual(engine.bytes([2, 3]), was[1:3])
            first = Request("reading", 3 * TOKENS + 1, hashes(3))
            into = tuple([block + 40 for block in table] for table in ids)
            self.assertEqual(engine.answer(first, into, {}), 3 * TOKENS)
            self.assertEqual(engine.bytes(into[0]), was[:3])
            engine.close()

    def test_blocks_are_saved_before_recomputation(self):
        engine = self.slow(**self.in_step(save_async=True))
        self.computed(engine, "early", [1, 2])
        engine.workers[0]._work._saving.end()
        request, ids = Request("first", 4 * TOKENS, hashes(4)), [11, 12, 13, 14]
        self.assertEqual(engine.begin(request, ids), (2 * TOKENS, False))
        engine.store.remove(engine.keys(hashes(2)[1:]))
        # A save of a shared block by another request is in progress when the load fails.
        with self.assertLogs("pagelith.vllm.worker", "WARNING"):
            engine.step(engine.new(request, ids, 2 * TOKENS), {13: 9, 14: 9})
        shared = self.computed(engine, "sharing", [21], "another")
        self.assertGreater(self.waiting(engine), 0)
        was = engine.bytes([21])
        # vLLM reassigns no block in the step that recomputes.
        again = engine.again(request, TOKENS, 3 * TOKENS)
        engine.step(again, {12: 12, 13: 13, 14: 14, 21: 99})
        engine.workers[0]._work._saving.end()
        self.assertEqual(engine.store.exists(engine.keys(hashes(4))), [True] * 4)
        self.assertEqual(self.stored(engine, [21], [31], "another"), was)
        self.assertEqual(shared.num_tokens, TOKENS)

    def test_saves_in_progress_at_shutdown_are_stored(self):
        engine = self.slow()
        self.computed(engine, "first", [1, 2, 3])
        engine.close()
        again = self.engine(self.extra(), blocks=128)
        self.assertEqual(again.store.exists(again.keys(hashes(3))), [True] * 3)

    def test_reset_covers_saves_in_progress(self):
        engine = self.slow()
        self.computed(engine, "first", [1, 2, 3])
        self.assertTrue(engine.scheduler.reset_cache())
        # It is stored after the reset, by itself or because a step must wait for it.
        engine.step(Output())
        engine.workers[0]._work._saving.end()
        self.assertEqual(engine.store.exists(engine.keys(hashes(3))), [False] * 3)
        self.computed(engine, "again", [1, 2, 3])
        self.assertTrue(engine.scheduler.reset_cache())
        engine.workers[0]._work._saving._thread.next()
        self.assertEqual(engine.store.exists(engine.keys(hashes(3))), [True] * 3)
        asked = Request("second", 3 * TOKENS + 1, hashes(3))
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(asked, 0), (0, False))
        engine.step(Output())
        self.assertEqual(engine.store.exists(engine.keys(hashes(3))), [False] * 3)
        # Pages stored since are found.
        self.computed(engine, "third", [4, 5, 6])
        engine.workers[0]._work._saving.end()
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(asked, 0), (3 * TOKENS, True))

    def test_copy_memory_is_reused_after_save(self):
        engine = self.slow(**self.in_step(save_async=True))
        work = engine.workers[0]._work
        length = len(engine.caches[0][0].block(0))
        made = bytearray(2 * length)

        class Copies:
            """Memory for one object, through which a device's blocks are copied."""

            copies, at_once = True, 1

            def source_ranges(self, objects):
                made[:] = b"".join(engine.bytes(objects[0].blocks)[0])
                return [made]

            def destination_ranges(self, objects):
                return [made]

            def call_arguments(self, after):
                return {}

            def settle(self):
                pass

            end = settle

            def finish_read(self, objects):
                for n, cache in enumerate(engine.caches[0]):
                    for at, place in enumerate(cache.at(objects[0].blocks[0])):
                        cache.memory[place] = made[n * length + at]

        own = work._save_memory
        work._save_memory = work._load_memory = Copies()
        self.computed(engine, "first", [1, 2, 3])
        was = engine.bytes([1, 2, 3])
        # The blocks are vLLM's again at once, without a wait.
        waiting = self.waiting(engine)
        self.computed(engine, "second", [1, 2], "another")
        self.assertGreater(waiting, 0)
        # A load uses the copy memory while the last save still reads it.
        self.assertEqual(self.stored(engine, [1], [11]), was[:1])
        self.assertGreater(self.waiting(engine), 0)
        work._saving.end()
        work._save_memory = work._load_memory = own
        self.assertEqual(self.stored(engine, [1, 2, 3], [21, 22, 23]), was)
        self.assertEqual(self.stored(engine, [1, 2], [31, 32], "another"), engine.bytes([1, 2]))

    def test_failed_save_is_logged(self):
        engine = self.slow()
        self.computed(engine, "first", [1, 2])
        engine.store.close()
        with self.assertLogs("pagelith.vllm", "WARNING"):
            engine.workers[0]._work._saving.end()
        self.assertIsNone(engine.workers[0].build_connector_worker_meta())

    def test_asynchronous_saves_with_zeroed_blocks_are_refused(self):
        with self.assertRaisesRegex(ValueError, "'save_async' is true.*leave it out"):
            self.engine(self.extra(save_async=True), zeroing=True)


if __name__ == "__main__":
    unittest.main()

"""The connector with several cache groups, with stand-ins for vLLM: which objects are stored
together, where a prefix can be continued, and the effect of failed loads. Tests under vLLM itself
are in `python/clients/`.
"""

import random
import unittest

from vllm_engine import FULL, TOKENS, Case, hashes, window
from vllm_stand_ins import Blocks, Output, Request, Spec

# A window that requires two blocks before the next token.
WINDOW = window(2 * TOKENS + 1)
HYBRID = (FULL, WINDOW, WINDOW)


def apart(count, groups=3, start=1):
    """Tables of `count` blocks for each group; no block is in two tables."""
    return tuple(list(range(start + n * count, start + (n + 1) * count)) for n in range(groups))


def left(tables, stop, needed=2, windows=(1, 2)):
    """The tables of a request that continues after `stop` pages: without the blocks that its
    windows do not need."""
    return tuple([0 if n in windows and at < stop - needed else block for at, block in enumerate(table)] for n, table in enumerate(tables))


class Groups(Case):
    def hybrid(self, count, specs=HYBRID, start=1, **different):
        """An engine that has computed and stored `count` pages."""
        engine = self.engine(specs=specs, blocks=128, **different)
        tables = apart(count, len(specs), start)
        engine.answer(Request("first", count * TOKENS, hashes(count)), tables, {block: block for table in tables for block in table})
        return engine

    def test_groups_of_pool_are_one_object_and_windows_read_their_reach(self):
        first = self.hybrid(8)
        stored, was = first.store.stats(), first.bytes(range(1, 25))
        self.assertEqual(stored["objects"], 16)
        first.close()
        engine = self.engine(specs=HYBRID, blocks=128)
        tables = left(apart(9, start=40), 8)
        request = Request("second", 8 * TOKENS + 1, hashes(8))
        null = engine.bytes([0])
        self.assertEqual(engine.begin(request, tables), (8 * TOKENS, True))
        told = engine.step(Output())
        self.assertEqual((told.ended, told.failed, told.failed_requests), ({"second"}, set(), set()))
        self.assertEqual(engine.bytes(tables[0][:8]), was[:8])
        for group in (1, 2):
            self.assertEqual(engine.bytes(tables[group][6:8]), was[8 * group + 6 : 8 * group + 8])
        self.assertEqual(engine.bytes([0]), null)

    def test_prefix_ends_where_every_pool_is_complete(self):
        # Pools that need the whole prefix, two windows, and chunks: compared with the rules, for
        # every set of missing objects.
        specs, count = (FULL, WINDOW, window(5 * TOKENS), Spec(TOKENS, "chunked_local_attention", attention_chunk_size=2 * TOKENS)), 12
        engine = self.hybrid(count, specs=specs)
        pools, prompt, asked = engine.scheduler._pools.each, hashes(count), Request("second", count * TOKENS + 1, hashes(count))
        self.assertEqual([(pool.groups, pool.pages) for pool in pools], [((0,), None), ((3,), 2), ((1,), 2), ((2,), 5)])
        some, found = random.Random(7), set()
        for _ in range(200):
            here = [[some.random() < (0.98 if pool.pages is None else 0.7) for _ in prompt] for pool in pools]
            gone = [key for n in range(len(pools)) for key, there in zip(engine.keys(prompt, n), here[n]) if not there]
            engine.store.remove(gone)
            needed = lambda pool, stop: range(0 if pool.pages is None else max(0, stop - pool.pages), stop)  # noqa: E731
            stops = [
                stop for stop in range(count + 1)
                if all(here[n][at] for n, pool in enumerate(pools) for at in needed(pool, stop))
            ]
            self.assertEqual(engine.scheduler.get_num_new_matched_tokens(asked, 0), (max(stops) * TOKENS, max(stops) > 0))
            found.add(max(stops))
            # Recomputed blocks are stored again: the missing ones only.
            again = Request("again", count * TOKENS, prompt)
            engine.scheduler.update_state_after_alloc(again, Blocks(*apart(count, 4)), 0)
            engine.step(engine.new(again, apart(count, 4), 0))
            self.assertEqual([engine.store.exists(engine.keys(prompt, n)) for n in range(len(pools))], [[True] * count] * len(pools))
        self.assertGreater(len(found), 8)

    def test_failed_load_fails_its_request_and_is_a_miss(self):
        engine = self.hybrid(8)
        prompt, tables = hashes(8), left(apart(9, start=40), 8)
        request = Request("second", 8 * TOKENS + 1, prompt)
        self.assertEqual(engine.begin(request, tables), (8 * TOKENS, True))
        # Removed between the lookup and the load: the last page of the windows.
        engine.store.remove(engine.keys(prompt[7:8], 1))
        with self.assertLogs("pagelith.vllm.worker", "WARNING"):
            told = engine.step(Output())
        # No block of several groups is reported: vLLM could not attribute it.
        self.assertEqual((told.ended, told.failed_requests, told.failed), ({"second"}, {"second"}, set()))
        self.assertEqual(engine.step(Output()).failed_requests, set())
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (7 * TOKENS, True))

    def test_unreadable_window_block_bars_only_ends_that_need_it(self):
        engine = self.hybrid(8)
        prompt, request = hashes(8), Request("second", 8 * TOKENS + 1, hashes(8))
        matched = lambda: engine.scheduler.get_num_new_matched_tokens(request, 0)[0] // TOKENS  # noqa: E731
        missed = lambda pool, page: engine.scheduler._plans._missed.add([(pool, prompt[page])])  # noqa: E731
        # The store has all pages. Page 5 is outside of a window that ends at 8.
        missed(1, 5)
        self.assertEqual(matched(), 8)
        missed(1, 7)
        self.assertEqual(matched(), 5)
        # For pools that need the whole prefix, nothing after it is found.
        missed(0, 3)
        self.assertEqual(matched(), 3)
        # Stored again by a step that computes all pages.
        again = Request("again", 8 * TOKENS, prompt)
        engine.answer(again, apart(8), {}, local=0)
        self.assertEqual(matched(), 8)

    def test_object_with_block_in_one_group_only_is_not_loaded(self):
        engine = self.hybrid(4)
        tables = left(apart(5, start=40), 4)
        tables[2][3] = 0
        request = Request("second", 4 * TOKENS + 1, hashes(4))
        engine.begin(request, tables)
        was = engine.bytes([0, tables[1][3]])
        with self.assertLogs("pagelith.vllm.worker", "WARNING"):
            told = engine.step(Output())
        self.assertEqual((told.failed_requests, engine.bytes([0, tables[1][3]])), ({"second"}, was))

    def test_blocks_left_by_window_are_stored_without_it(self):
        engine = self.engine(specs=HYBRID, blocks=128)
        prompt = hashes(6)
        request = Request("first", 6 * TOKENS, prompt)
        tables = left(apart(6), 4)
        engine.scheduler.update_state_after_alloc(request, Blocks(*tables), 0)
        engine.step(engine.new(request, tables, 0), {block: block for table in tables for block in table if block})
        self.assertEqual(engine.store.exists(engine.keys(prompt)), [True] * 6)
        self.assertEqual(engine.store.exists(engine.keys(prompt, 1)), [False, False, True, True, True, True])
        # Another request has the other blocks: they are stored in addition.
        engine.answer(Request("second", 6 * TOKENS, prompt), apart(6, start=40), {})
        self.assertEqual(engine.store.exists(engine.keys(prompt, 1)), [True] * 6)

    def test_window_objects_are_removed_with_page_but_not_vice_versa(self):
        engine = self.hybrid(3)
        prompt = hashes(3)
        here = lambda: [engine.store.exists(engine.keys(prompt, pool)) for pool in (0, 1)]  # noqa: E731
        engine.store.remove(engine.keys(prompt[:1]))
        engine.store.remove(engine.keys(prompt[2:], 1))
        self.assertEqual(here(), [[False, True, True], [False, True, False]])

    def test_page_left_by_one_group_of_pool_is_not_stored(self):
        engine, tables, prompt = self.engine(specs=HYBRID, blocks=128), apart(2), hashes(2)
        tables[2][0] = 0
        request = Request("first", 2 * TOKENS, prompt)
        engine.scheduler.update_state_after_alloc(request, Blocks(*tables), 0)
        engine.step(engine.new(request, tables, 0))
        self.assertEqual([engine.store.exists(engine.keys(prompt, pool)) for pool in (0, 1)], [[True, True], [False, True]])

    def test_reassigned_block_is_not_stored_under_old_name(self):
        engine = self.engine(specs=HYBRID, blocks=128)
        prompt, tables = hashes(3), apart(3)
        # The hash of the third page is known one step later.
        request = Request("first", 3 * TOKENS, prompt[:2])
        engine.scheduler.update_state_after_alloc(request, Blocks(*tables), 0)
        engine.step(engine.new(request, tables, 0), {block: block for table in tables for block in table})
        self.assertEqual(engine.store.exists(engine.keys(prompt, 1)), [True, True, False])
        request.block_hashes, request.num_tokens = prompt, 3 * TOKENS + 1
        # The windows have left it by then, and other requests have its blocks.
        engine.tables["first"][1][2] = engine.tables["first"][2][2] = 0
        engine.step(engine.again(request, 3 * TOKENS, 1), {tables[1][2]: 99, tables[2][2]: 98})
        self.assertEqual(engine.store.exists(engine.keys(prompt)), [True] * 3)
        self.assertEqual(engine.store.exists(engine.keys(prompt, 1)), [True, True, False])

    def test_page_is_smallest_unit_of_complete_blocks(self):
        # The windows' blocks are twice as long; vLLM's hashes are those of the shorter blocks.
        long = window(2 * TOKENS + 1, size=2 * TOKENS)
        specs = (FULL, long)
        engine = self.engine(specs=specs, blocks=128, hash_tokens=TOKENS)
        prompt = hashes(8)
        request = Request("first", 8 * TOKENS, prompt)
        tables = (list(range(1, 9)), list(range(11, 15)))
        engine.scheduler.update_state_after_alloc(request, Blocks(*tables), 0)
        # Three blocks of the first group: one page, named by its last hash.
        engine.step(engine.new(request, tables, 0, 3 * TOKENS), {block: block for table in tables for block in table})
        parts = engine.workers[0]._work._keys[0]
        self.assertEqual(len(parts), 2)
        here = lambda keys, at: engine.store.exists([key.on_page(prompt[at]) for key in keys])  # noqa: E731
        self.assertEqual([here(parts, 1), here(parts, 3), here(parts, 0)], [[True, True], [False, False], [False, False]])
        engine.step(engine.again(request, 3 * TOKENS, 5 * TOKENS))
        self.assertEqual(engine.store.exists(engine.keys([prompt[at] for at in (1, 3, 5, 7)], 1)), [True] * 4)
        was = engine.bytes([*tables[0], *tables[1]])
        second = Request("second", 8 * TOKENS + 1, prompt)
        into = ([*range(40, 49)], [0, 0, 0, 53, 54])
        self.assertEqual(engine.begin(second, into), (8 * TOKENS, True))
        self.assertEqual(engine.step(Output()).failed_requests, set())
        self.assertEqual(engine.bytes(into[0][:8]), was[:8])
        self.assertEqual(engine.bytes([53]), was[11:12])
        # Seven blocks end within a page: three pages.
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(Request("third", 7 * TOKENS + 1, prompt), 0), (6 * TOKENS, True))

    def test_window_needs_objects_of_every_rank(self):
        with self.process() as attach:
            engine = self.hybrid(6, extra=attach, ranks=2)
            request, tables = Request("second", 6 * TOKENS + 1, hashes(6)), left(apart(7, start=40), 6)
            was = [engine.bytes(range(1, 19), rank) for rank in (0, 1)]
            self.assertEqual(engine.begin(request, tables), (6 * TOKENS, True))
            self.assertEqual(engine.step(Output()).failed_requests, set())
            for rank in (0, 1):
                self.assertEqual(engine.bytes(tables[0][:6], rank), was[rank][:6])
                self.assertEqual(engine.bytes(tables[2][4:6], rank), was[rank][16:])
            # One rank's slice of the last window is missing; afterwards its read fails on one rank
            # only.
            second = engine.workers[1]._work._keys[1][0]
            engine.begin(request, tables)
            engine.store.remove(second.on_pages(hashes(6)[5:]))
            with self.assertLogs("pagelith.vllm.worker", "WARNING"):
                self.assertEqual(engine.step(Output()).failed_requests, {"second"})
            self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (5 * TOKENS, True))
            engine.close()

    def test_other_window_or_grouping_finds_nothing(self):
        self.hybrid(4).close()
        request = Request("second", 4 * TOKENS + 1, hashes(4))
        for specs in ((FULL,), (FULL, WINDOW), (FULL, WINDOW, window(3 * TOKENS)), (FULL, FULL, WINDOW), (WINDOW, FULL, WINDOW)):
            with self.subTest(specs):
                engine = self.engine(specs=specs)
                self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (0, False))
                engine.close()
        self.assertEqual(self.engine(specs=HYBRID).scheduler.get_num_new_matched_tokens(request, 0), (4 * TOKENS, True))


if __name__ == "__main__":
    unittest.main()

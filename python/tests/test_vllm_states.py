"""The connector with recurrent states and attention (vLLM's Mamba groups), with stand-ins for vLLM:
which states are stored, and where a prefix is continued. Tests under vLLM itself are in
`python/clients/`.
"""

import random
import types
import unittest

from vllm_engine import FULL, TOKENS, Case, Recorded, hashes, window
from vllm_stand_ins import Blocks, Output, Request, Spec

STATE = Spec(TOKENS, "mamba")
# In vLLM's order: groups of states first.
HYBRID = (STATE, STATE, FULL)


class States(Case):
    def hybrid(self, **different):
        return self.engine(specs=different.pop("specs", HYBRID), blocks=128, **different)

    def computed(self, engine, pages, steps, of="prompt", name="first", start=1):
        """A request computes these pages, in steps that end after `steps`; returns the blocks in
        which it left its states, by step and group."""
        request, at = Request(name, pages * TOKENS, hashes(pages, of)), start + pages
        table, states, left, done = list(range(start, at)), ([], []), [], 0
        for end in steps:
            # Blocks before the step's last one are unused, and the earlier state moves on.
            for group in states:
                group += [0] * (end - 1 - len(group)) + [at]
                at += 1
            blocks = [group[-1] for group in states]
            tables = (list(states[0]), list(states[1]), table)
            if done == 0:
                engine.scheduler.update_state_after_alloc(request, Blocks(*tables), 0)
                output = engine.new(request, tables, 0, end * TOKENS)
            else:
                output = engine.again(request, done * TOKENS, (end - done) * TOKENS)
            engine.tables[name] = [list(of) for of in tables]
            offers = {name: [(group, block, end * TOKENS) for group, block in enumerate(blocks)]}
            engine.step(output, {block: block for block in (*table[done:end], *blocks)}, offers)
            left.append(blocks)
            done = end
        return request, table, left

    def tables(self, pages, stop, start=60):
        """The tables of a request that continues after `stop` pages: for states only the last
        block."""
        states = [[0] * (stop - 1) + [start + 20 + n] for n in range(2)]
        return (*states, list(range(start, start + pages)))

    def pages_here(self, engine, count, pool, of="prompt"):
        return engine.store.exists(engine.keys(hashes(count, of), pool))

    def matched(self, engine, pages, of="prompt"):
        return engine.scheduler.get_num_new_matched_tokens(Request("asking", pages * TOKENS + 1, hashes(pages, of)), 0)[0] // TOKENS

    def test_next_process_continues_from_last_stored_state(self):
        first = self.hybrid()
        _, table, left = self.computed(first, 9, [4, 8])
        self.assertEqual([(pool.groups, pool.pages) for pool in first.scheduler._pools.each], [((2,), None), ((0, 1), 1)])
        pages, states = first.bytes(table[:8]), first.bytes(left[1])
        self.assertEqual(self.pages_here(first, 9, 1), [False] * 3 + [True] + [False] * 3 + [True, False])
        first.close()
        engine = self.hybrid()
        tables = self.tables(10, 8)
        request, null = Request("second", 9 * TOKENS + 1, hashes(9)), engine.bytes([0])
        self.assertEqual(engine.begin(request, tables), (8 * TOKENS, True))
        told = engine.step(Output())
        self.assertEqual((told.ended, told.failed_requests), ({"second"}, set()))
        self.assertEqual(engine.bytes(tables[2][:8]), pages)
        self.assertEqual(engine.bytes([tables[0][7], tables[1][7]]), states)
        self.assertEqual(engine.bytes([0]), null)

    def test_state_has_request_and_depth_of_its_page(self):
        engine = self.hybrid()
        engine.workers[0]._work._store = store = Recorded(engine.store)
        self.computed(engine, 9, [4, 8])
        self.assertEqual([(name, *place) for name, _, *place in store.calls], [("put", 0, 4), ("put_pages", 3, 1), ("put", 4, 4), ("put_pages", 7, 1)])
        self.assertEqual(len({id(request) for _, request, *_ in store.calls}), 1)

    def test_state_is_stored_in_its_step_and_not_from_tables(self):
        engine = self.hybrid()
        request, table = Request("first", 2 * TOKENS, hashes(2)), [1, 2]
        engine.scheduler.update_state_after_alloc(request, Blocks([11], [12], table), 0)
        # In the middle of the second page: the last blocks of the tables are moving states.
        engine.step(engine.new(request, ([11], [12], table), 0, TOKENS), {1: 1, 11: 11, 12: 12})
        engine.step(engine.again(request, TOKENS, 2, more=([21], [22], [])), {2: 2, 21: 21, 22: 22})
        self.assertEqual([self.pages_here(engine, 2, pool) for pool in (0, 1)], [[True, False], [False, False]])
        # Blocks that are in no table: vLLM reports those.
        engine.step(engine.again(request, TOKENS + 2, 2), {2: 5, 31: 31, 32: 32}, {"first": [(0, 31, 2 * TOKENS), (1, 32, 2 * TOKENS)]})
        self.assertEqual([self.pages_here(engine, 2, pool) for pool in (0, 1)], [[True, True], [False, True]])
        into = self.tables(3, 2)
        self.assertEqual(engine.begin(Request("second", 2 * TOKENS + 1, hashes(2)), into), (2 * TOKENS, True))
        engine.step(Output())
        self.assertEqual(engine.bytes([into[0][1], into[1][1]]), engine.bytes([31, 32]))

    def test_state_of_some_groups_or_within_page_is_not_stored(self):
        engine = self.hybrid(hash_tokens=2)
        prompt = hashes(4)
        request, table = Request("first", 2 * TOKENS, prompt), [1, 2]
        engine.scheduler.update_state_after_alloc(request, Blocks([0, 11], [0, 12], table), 0)
        offers = [(0, 11, 2 * TOKENS), (1, 0, 2 * TOKENS), (0, 13, TOKENS + 2), (1, 14, TOKENS + 2), (0, 15, 0), (1, 16, 0)]
        engine.step(engine.new(request, ([0, 11], [0, 12], table), 0), {}, {"first": offers, "nobody": [(0, 17, TOKENS), (1, 18, TOKENS)]})
        here = lambda pool: engine.store.exists(engine.keys(prompt, pool))  # noqa: E731
        self.assertEqual((here(0), here(1)), ([False, True, False, True], [False] * 4))

    def test_prefix_ends_at_state_with_complete_prefix(self):
        engine, count, some, found = self.hybrid(), 8, random.Random(3), set()
        self.computed(engine, count, range(1, count + 1))
        prompt = hashes(count)
        for _ in range(100):
            here = [[some.random() < 0.9 for _ in prompt], [some.random() < 0.5 for _ in prompt]]
            for pool in (0, 1):
                engine.store.remove([key for key, there in zip(engine.keys(prompt, pool), here[pool]) if not there])
            stops = [end for end in range(1, count + 1) if all(here[0][:end]) and here[1][end - 1]]
            self.assertEqual(self.matched(engine, count), max(stops, default=0))
            found.add(max(stops, default=0))
            self.computed(engine, count, range(1, count + 1), name="again")
            self.assertEqual([self.pages_here(engine, count, pool) for pool in (0, 1)], [[True] * count] * 2)
        self.assertGreater(len(found), 6)

    def test_unreadable_state_is_a_miss_until_stored_again(self):
        engine = self.hybrid()
        self.computed(engine, 8, [4, 8])
        request, tables = Request("second", 8 * TOKENS + 1, hashes(8)), self.tables(9, 8)
        self.assertEqual(engine.begin(request, tables), (8 * TOKENS, True))
        engine.store.remove(engine.keys(hashes(8)[7:], 1))
        with self.assertLogs("pagelith.vllm.worker", "WARNING"):
            told = engine.step(Output())
        self.assertEqual((told.failed_requests, told.failed), ({"second"}, set()))
        # States that were read in time are still stored, and another process stored the missing
        # state meanwhile, unreported.
        self.assertEqual(self.matched(engine, 8), 4)
        self.computed(engine, 8, [8], name="third", start=40)
        self.assertEqual(self.matched(engine, 8), 8)

    def test_state_is_removed_with_page_but_not_vice_versa(self):
        engine = self.hybrid()
        self.computed(engine, 3, [1, 2, 3])
        engine.store.remove(engine.keys(hashes(1)))
        engine.store.remove(engine.keys(hashes(3)[2:], 1))
        self.assertEqual([self.pages_here(engine, 3, pool) for pool in (0, 1)], [[False, True, True], [False, True, False]])

    def test_model_with_states_only_works(self):
        engine = self.engine(specs=(STATE,), blocks=64)
        request = Request("first", 3 * TOKENS, hashes(3))
        engine.scheduler.update_state_after_alloc(request, Blocks([0, 0, 5]), 0)
        engine.step(engine.new(request, [0, 0, 5], 0), {5: 5}, {"first": [(0, 5, 3 * TOKENS)]})
        self.assertEqual(self.pages_here(engine, 3, 0), [False, False, True])
        second = Request("second", 3 * TOKENS + 1, hashes(3))
        self.assertEqual(engine.begin(second, [0, 0, 9]), (3 * TOKENS, True))
        self.assertEqual(engine.step(Output()).failed_requests, set())
        self.assertEqual(engine.bytes([9]), engine.bytes([5]))

    def test_state_needs_parts_of_every_rank(self):
        with self.process() as attach:
            engine = self.hybrid(extra=attach, ranks=2)
            _, _, left = self.computed(engine, 4, [4])
            request, tables = Request("second", 4 * TOKENS + 1, hashes(4)), self.tables(5, 4)
            self.assertEqual(engine.begin(request, tables), (4 * TOKENS, True))
            self.assertEqual(engine.step(Output()).failed_requests, set())
            for rank in (0, 1):
                self.assertEqual(engine.bytes([tables[0][3], tables[1][3]], rank), engine.bytes(left[0], rank))
            engine.store.remove(engine.workers[1]._work._keys[1][0].on_pages(hashes(4)[3:]))
            self.assertEqual(self.matched(engine, 4), 0)
            engine.close()

    def test_states_of_other_shape_are_not_found(self):
        engine = self.hybrid()
        self.computed(engine, 2, [2])
        engine.close()
        for other in (
            {"state_shapes": ((8, 2),)}, {"state_types": ("fp32",)}, {"specs": (STATE, FULL)}, {"specs": (FULL, STATE, STATE)},
            {"specs": (window(2), window(2), FULL)},
        ):
            with self.subTest(other):
                engine = self.hybrid(**other)
                self.assertEqual(self.matched(engine, 2), 0)
                engine.close()
        self.assertEqual(self.matched(self.hybrid(), 2), 2)

    def test_invalid_configuration_is_refused_at_start(self):
        for wrong, words in (
            ({"specs": (Spec(TOKENS, "mamba", mamba_cache_mode="none"), FULL)}, "--enable-prefix-caching"),
            ({"specs": (STATE, Spec(2 * TOKENS))}, "state has blocks of 4 tokens, but blocks of all groups end together every 8 tokens"),
            ({"specs": (Spec(TOKENS, "mamba", num_speculative_blocks=2), FULL)}, "remove --speculative-config"),
            ({"guesses": object()}, "remove --speculative-config"),
            ({"replays": True}, "remove --use-replayssm"),
            ({"extra": self.extra(load_async=False)}, "'load_async' is false"),
            # Whether or not vLLM zeroes new blocks.
            ({"extra": self.extra(save_async=True), "zeroing": True}, "'save_async' is true, but the next step"),
            ({"extra": self.extra(save_async=True)}, "'save_async' is true, but the next step"),
        ):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, words):
                self.hybrid(**wrong)
        # Irrelevant for a model without recurrent layers.
        self.hybrid(specs=(FULL,), guesses=types.SimpleNamespace(method="ngram", draft_model_config=None)).close()


if __name__ == "__main__":
    unittest.main()

"""The tier and the connector for vLLM, with every combination of outcomes of a load's objects, and
with blocks whose bytes must not be stored.
"""

import random
import unittest

import test_vllm_adapter
from outcome_stand_ins import STATES, ScriptedStore, combinations, is_there, whole
from test_vllm_groups import HYBRID, apart
from vllm_engine import TOKENS, Case, hashes
from vllm_stand_ins import Blocks, LookupResult, Output, Request

from pagelith.vllm.spoiled import Spoiled


class TierOutcomes(test_vllm_adapter.Case):
    def test_job_reports_each_chunk_and_failed_ones_are_misses(self):
        tier, ids = self.tier(), list(range(3))
        self.addCleanup(tier.shutdown)
        tier._store = ScriptedStore(tier._store)
        self.fill(ids, "store")
        for ends in combinations(3):
            chunks = test_vllm_adapter.keys(3, of=str(ends))
            self.run_job(tier.submit_store, chunks, ids)
            self.finished(tier)
            tier._store.ends = dict(zip(map(tier._key, chunks), ends, strict=True))
            self.run_job(tier.submit_load, chunks, [10, 11, 12])
            (done,) = self.finished(tier)
            came = [end == "hit" for end in ends]
            self.assertEqual(done.success, all(came), ends)
            self.assertEqual(set(done.successful_keys or ()), {chunk for chunk, ok in zip(chunks, came, strict=True) if ok}, ends)
            found = [tier.lookup(chunk, test_vllm_adapter.REQUEST) == LookupResult.HIT for chunk in chunks]
            self.assertEqual(found, came, ends)
            for at, ok in enumerate(came):
                if ok:
                    self.assertEqual(self.rows([10 + at]), self.rows([at]), ends)

    def test_store_job_succeeds_if_all_chunks_are_stored(self):
        tier, ids = self.tier(), list(range(3))
        self.addCleanup(tier.shutdown)
        tier._store = ScriptedStore(tier._store)
        for states in combinations(3, STATES):
            chunks = test_vllm_adapter.keys(3, of=str(states))
            tier._store.states = dict(zip(map(tier._key, chunks), states, strict=True))
            self.run_job(tier.submit_store, chunks, ids)
            (done,) = self.finished(tier)
            self.assertEqual(done.success, all(map(is_there, states)), states)
            self.assertEqual(done.transfer_bytes, sum(map(is_there, states)) * test_vllm_adapter.ROW, states)


class ConnectorOutcomes(Case):
    def ending(self, engine):
        """Make all workers' reads end as `ends` defines."""
        for worker in engine.workers:
            worker._work._store = ScriptedStore(worker._work._store)
        return [worker._work._store for worker in engine.workers]

    def test_load_reports_each_block_and_failed_ones_are_misses(self):
        engine = self.engine(**self.in_step())
        (store,) = self.ending(engine)
        for n, ends in enumerate(combinations(3)):
            prompt, ids = hashes(3, str(ends)), [10, 11, 12, 13]
            engine.answer(Request(f"first {n}", 3 * TOKENS, prompt), [1, 2, 3], {1: n, 2: n + 1, 3: n + 2})
            store.ends = dict(zip(engine.keys(prompt), ends, strict=True))
            request = Request(f"second {n}", 3 * TOKENS + 1, prompt)
            self.assertEqual(engine.answer(request, ids, {}), 3 * TOKENS)
            came = [end == "hit" for end in ends]
            self.assertEqual(engine.last.failed, {block for block, ok in zip(ids, came) if not ok}, ends)
            for block, was, ok in zip(ids, (1, 2, 3), came):
                if ok:
                    self.assertEqual(engine.bytes([block]), engine.bytes([was]), ends)
            found = engine.scheduler.get_num_new_matched_tokens(request, 0)[0]
            self.assertEqual(found, TOKENS * next((at for at, ok in enumerate(came) if not ok), 3), ends)

    def test_block_is_reported_stored_if_stored(self):
        engine = self.engine(specs=HYBRID, blocks=128)
        (store,) = self.ending(engine)
        for states in combinations(2, STATES):
            prompt, tables = hashes(1, str(states)), apart(1)
            store.states = dict(zip([*engine.keys(prompt), *engine.keys(prompt, 1)], states, strict=True))
            told = []
            engine.scheduler._plans.heard = lambda report, told=told: told.extend(report.stored if report else ())
            engine.answer(Request(str(states), TOKENS, prompt), tables, {})
            # A window's object depends on its page: it is not put if the page is not stored.
            there = [(pool, prompt[0]) for pool in (0, 1) if all(map(is_there, states[: pool + 1]))]
            self.assertEqual(sorted(told), there, states)

    def test_load_of_several_groups_succeeds_if_all_objects_are_read(self):
        engine = self.engine(specs=HYBRID, blocks=128)
        (store,) = self.ending(engine)
        for n, ends in enumerate(combinations(4)):
            prompt = hashes(2, str(ends))
            tables, into = apart(2), apart(3, start=40)
            engine.answer(Request(f"first {n}", 2 * TOKENS, prompt), tables, {block: block + n for table in tables for block in table})
            # For both pages, the objects of pools that need the whole prefix, and those of windows.
            store.ends = dict(zip([*engine.keys(prompt), *engine.keys(prompt, 1)], ends, strict=True))
            request = Request(f"second {n}", 2 * TOKENS + 1, prompt)
            self.assertEqual(engine.begin(request, into), (2 * TOKENS, True))
            told = engine.step(Output())
            self.assertEqual((told.ended, told.failed), ({request.request_id}, set()), ends)
            self.assertEqual(told.failed_requests, set() if whole(ends) else {request.request_id}, ends)
            missed = [one for one in [(pool, page) for pool in (0, 1) for page in prompt] if one in engine.scheduler._plans._missed]
            self.assertEqual(len(missed), sum(end != "hit" for end in ends), ends)

    def test_block_of_several_ranks_is_found_with_all_slices(self):
        with self.process() as attach:
            engine = self.engine(extra=attach, ranks=2)
            stores = self.ending(engine)
            for n, ends in enumerate(combinations(2)):
                prompt, ids = hashes(1, str(ends)), [10, 11]
                engine.answer(Request(f"first {n}", TOKENS, prompt), [1], {1: n})
                for rank, (store, end) in enumerate(zip(stores, ends, strict=True)):
                    ((key,),) = engine.workers[rank]._work._keys
                    store.ends = {key.on_page(prompt[0]): end}
                request = Request(f"second {n}", TOKENS + 1, prompt)
                self.assertEqual(engine.begin(request, ids), (TOKENS, True))
                told = engine.step(Output())
                self.assertEqual(told.failed, set() if whole(ends) else {10}, ends)
                found = engine.scheduler.get_num_new_matched_tokens(request, 0)[0]
                self.assertEqual(found, TOKENS if whole(ends) else 0, ends)


class Truth:
    """The bytes at each token of each block: those of its hash, or others."""

    def __init__(self, tokens):
        self.tokens, self.wrong = tokens, set()

    def places(self, blocks):
        return {(block, at) for block in blocks for at in range(self.tokens)}

    def failed(self, blocks):
        self.wrong |= self.places(blocks)

    def read(self, blocks):
        self.wrong -= self.places(blocks)

    def step(self, table, computed, scheduled):
        place = lambda at: (table[at // self.tokens], at % self.tokens)  # noqa: E731
        sound = not any(place(at) in self.wrong for at in range(computed))
        written = {place(at) for at in range(computed, computed + scheduled)}
        self.wrong = self.wrong - written if sound else self.wrong | written

    def is_right(self, block):
        return not self.places([block]) & self.wrong


class Steps:
    """Requests with a common prefix that compute over failing loads: the claims about their blocks
    are compared with the bytes."""

    def __init__(self, seed):
        self.some, self.spoiled, self.truth = random.Random(seed), Spoiled(TOKENS), Truth(TOKENS)
        blocks = self.some.sample(range(1, 12), 8)
        self.tables = [blocks[:5], blocks[:2] + blocks[5:]]
        # How far each request has computed: it continues there, or is set back. The common prefix
        # existed for all of them.
        self.ends = [self.some.randint(2 * TOKENS, 5 * TOKENS) for _ in self.tables]
        self.claimed = self.spoiled_ones = 0

    def step(self, at):
        table, computed = self.tables[at], self.ends[at]
        scheduled = self.some.randint(1, max(1, 5 * TOKENS - computed))
        if computed + scheduled > len(table) * TOKENS:
            computed, scheduled = 0, len(table) * TOKENS
        sound = self.spoiled.step(table, computed, scheduled)
        self.truth.step(table, computed, scheduled)
        self.ends[at] = computed + scheduled
        # A block that is not complete yet is not stored.
        claimed = min(sound, (computed + scheduled) // TOKENS)
        self.claimed, self.spoiled_ones = self.claimed + claimed, self.spoiled_ones + (sound < len(table))
        return all(self.truth.is_right(block) for block in table[:claimed]), (table, computed, scheduled, sound)

    def read(self):
        blocks = self.some.sample(self.some.choice(self.tables), self.some.randint(1, 3))
        self.spoiled.read(blocks)
        self.truth.read(blocks)

    def fail(self):
        """A load fails. Steps in progress end, and so do loads of others; then requests are set
        back to the failed block."""
        blocks = self.some.sample(self.some.choice(self.tables), self.some.randint(1, 2))
        self.spoiled.failed(blocks)
        self.truth.failed(blocks)
        for _ in range(self.some.randint(0, 3)):
            at = self.some.randrange(2)
            if self.some.random() < 0.4:
                self.read()
            elif all(self.tables[at].index(block) < self.ends[at] // TOKENS for block in blocks if block in self.tables[at]):
                yield self.step(at)
        for at, table in enumerate(self.tables):
            first = next((n for n, block in enumerate(table) if not self.truth.is_right(block)), len(table))
            self.ends[at] = min(self.ends[at], first * TOKENS)


class SpoiledBlocks(unittest.TestCase):
    def test_block_with_any_wrong_token_is_invalid(self):
        claimed = spoiled = 0
        for seed in range(400):
            steps = Steps(seed)
            for _ in range(20):
                done = list(steps.fail()) if steps.some.random() < 0.3 else [steps.step(steps.some.randrange(2))]
                for right, said in done:
                    self.assertTrue(right, (seed, said))
            claimed, spoiled = claimed + steps.claimed, spoiled + steps.spoiled_ones
        # It checked both.
        self.assertGreater(claimed, 1000)
        self.assertGreater(spoiled, 1000)

    def test_invalid_block_is_valid_after_full_recomputation(self):
        for computed, sound in ((TOKENS, 3), (TOKENS + 1, 1), (2 * TOKENS - 1, 1), (2 * TOKENS, 1), (0, 3)):
            spoiled = Spoiled(TOKENS)
            spoiled.failed([8])
            self.assertEqual(spoiled.step([7, 8, 9], computed, 3 * TOKENS - computed), sound, computed)


class StepOutcomes(Case):
    def test_failed_block_recomputed_from_middle_is_not_stored(self):
        engine, prompt, ids = self.filled(2), hashes(3), [10, 11, 12]
        engine.store.remove(engine.keys(prompt[1:2]))
        engine.workers[0]._work._spoiled.failed([11])
        request = Request("second", 3 * TOKENS, prompt)
        engine.scheduler.update_state_after_alloc(request, Blocks(ids), 0)
        # Its first half has the bytes from the failed load.
        engine.step(engine.new(request, ids, TOKENS + TOKENS // 2), {11: 99, 12: 98})
        self.assertEqual(engine.store.exists(engine.keys(prompt)), [True, False, False])
        engine.step(engine.again(request, TOKENS, 2 * TOKENS), {11: 2, 12: 3})
        self.assertEqual(engine.store.exists(engine.keys(prompt)), [True, True, True])


if __name__ == "__main__":
    unittest.main()

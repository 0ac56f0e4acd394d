"""Prompts that vLLM computes in several steps, with stand-ins for vLLM: their loads and saves are one
request for the store, so that a store with too little room keeps the first pages of a prompt.
"""

import types
import unittest
from unittest import mock

import pagelith
from vllm_engine import FULL, TOKENS, Case, Recorded, hashes, window
from vllm_stand_ins import Blocks, LookupResult, Output, Request

import test_vllm_adapter
from pagelith.vllm import prompts

# A block of both layers, and a store of 256 such objects.
SHAPE, LENGTH = (160, 2, TOKENS, 250), 4000
MEMORY = {"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10000}}
PAGES, STEP = 60, 10


def others(first, end):
    """Keys of other pages."""
    return pagelith.Key(pagelith.Namespace("other"), bytes(32)).on_pages([f"{n}" for n in range(first, end)])


def fill(store):
    """Fill the store with pages that are requested often, so that new ones have a tenth of it."""
    often = others(0, 250)
    store.put(often, [bytes(LENGTH)] * 250)
    for _ in range(3):
        store.get(often, [bytearray(LENGTH) for _ in often])
    # The next ones move them to the main queue.
    store.put(others(250, 300), [bytes(LENGTH)] * 50)


class Prompts(Case):
    def memory(self, **given):
        return {"store": MEMORY, **given}

    def recorded(self, **different):
        engine = self.engine(**different)
        engine.workers[0]._work._store = Recorded(engine.store)
        return engine, engine.workers[0]._work._store

    def begin(self, engine, request, tables):
        engine.scheduler.update_state_after_alloc(request, Blocks(*tables), 0)

    def together(self, *outputs, **more):
        """One step of several requests."""
        whole = Output(**more)
        for output in outputs:
            whole.scheduled_new_reqs += output.scheduled_new_reqs
            for name, of in vars(output.scheduled_cached_reqs).items():
                both = getattr(whole.scheduled_cached_reqs, name)
                both.update(of) if isinstance(both, set) else both.extend(of)
            whole.num_scheduled_tokens.update(output.num_scheduled_tokens)
        return whole

    def found(self, engine, pages=PAGES, of="prompt"):
        return engine.scheduler.get_num_new_matched_tokens(Request("asking", pages * TOKENS + 1, hashes(pages, of)), 0)[0] // TOKENS

    def compute_in_steps(self, engine, groups=1):
        """A request computes a prompt that is larger than a tenth of the store."""
        request = Request("first", PAGES * TOKENS, hashes(PAGES))

        def tables(start):
            return tuple(list(range(1 + n * PAGES + start, 1 + n * PAGES + start + STEP)) for n in range(groups))

        self.begin(engine, request, tables(0))
        engine.step(engine.new(request, tables(0), 0, STEP * TOKENS))
        for page in range(STEP, PAGES, STEP):
            engine.step(engine.again(request, page * TOKENS, STEP * TOKENS, tables(page)))
        engine.workers[0]._work._saving.end()

    def test_prompt_larger_than_its_room_keeps_first_pages_if_computed_in_several_steps(self):
        for at, (given, specs) in enumerate((({}, (FULL,)), ({"save_async": True}, (FULL,)), ({}, (FULL, window(TOKENS + 1))))):
            with self.subTest(at):
                engine = self.engine(extra=self.memory(**given), specs=specs, shape=SHAPE, blocks=SHAPE[0], engine=str(at))
                fill(engine.store)
                self.compute_in_steps(engine, len(specs))
                self.assertIn(self.found(engine), range(STEP, PAGES))
                # No window is kept without its page for long: at most those of one step.
                self.assertLessEqual(engine.store.stats()["groups_waiting"], STEP)
                engine.close()

    def test_store_process_keeps_first_pages_of_prompt_computed_in_several_steps(self):
        with self.process() as attach:
            engine = self.engine(extra=attach, shape=SHAPE, blocks=SHAPE[0])
            fill(engine.store)
            self.compute_in_steps(engine)
            self.assertIn(self.found(engine), range(STEP, PAGES))
            engine.close()

    def test_prompts_computed_in_same_steps_do_not_evict_each_others_first_pages(self):
        engine = self.engine(extra=self.memory(), shape=SHAPE, blocks=SHAPE[0])
        fill(engine.store)
        both = [Request(name, PAGES * TOKENS, hashes(PAGES, name)) for name in ("first", "second")]
        for page in range(0, PAGES, STEP):
            ids = [list(range(1 + n * PAGES + page, 1 + n * PAGES + page + STEP)) for n in range(2)]
            if page == 0:
                for request, table in zip(both, ids):
                    self.begin(engine, request, [table])
                steps = [engine.new(request, table, 0, STEP * TOKENS) for request, table in zip(both, ids)]
            else:
                steps = [engine.again(request, page * TOKENS, STEP * TOKENS, table) for request, table in zip(both, ids)]
            engine.step(self.together(*steps))
        self.assertIn(self.found(engine, of="second"), range(STEP, PAGES))

    def test_loads_and_saves_of_one_request_are_one_until_it_ends(self):
        engine, store = self.recorded()
        first, second = Request("first", 20 * TOKENS, hashes(20, "a")), Request("second", 20 * TOKENS, hashes(20, "b"))
        self.begin(engine, first, [[1, 2]])
        self.begin(engine, second, [[11, 12, 13]])
        engine.step(self.together(engine.new(first, [1, 2], 0, 2 * TOKENS), engine.new(second, [11, 12, 13], 0, 3 * TOKENS)))
        (_, of_first, *one), (_, of_second, *other) = store.take()
        self.assertEqual((one, other), ([0, 2], [0, 3]))
        self.assertIsNot(of_first, of_second)
        # Each in its place, whichever is scheduled first.
        engine.step(self.together(engine.again(second, 3 * TOKENS, TOKENS, [14]), engine.again(first, 2 * TOKENS, 2 * TOKENS, [3, 4])))
        self.assertEqual(store.take(), [("put", of_second, 3, 1), ("put", of_first, 2, 2)])
        # One is preempted, and continues later; the other one finishes, and its name is used again.
        engine.step(Output(preempted_req_ids={"second"}, finished_req_ids={"first"}))
        resumed, engine.tables["second"] = engine.again(second, 4 * TOKENS, TOKENS, [11, 12, 13, 14, 15]), [[]]
        resumed.scheduled_cached_reqs.resumed_req_ids = {"second"}
        engine.scheduler.request_finished(first, [])
        third = Request("first", 20 * TOKENS, hashes(20, "c"))
        self.begin(engine, third, [[21]])
        engine.step(self.together(resumed, engine.new(third, [21], 0, TOKENS)))
        (_, again, *other), (_, resumed, *one) = store.take()
        self.assertEqual((one, other), ([4, 1], [0, 1]))
        self.assertEqual(len({id(request) for request in (of_first, of_second, resumed, again)}), 4)
        # What a request loads comes before what it stores.
        longer = Request("longer", 6 * TOKENS, [*hashes(4, "a"), *hashes(2, "d")])
        self.assertEqual(engine.answer(longer, [31, 32, 33, 34, 35, 36], {}), 4 * TOKENS)
        (read, of_load, *one), (put, of_save, *other) = store.take()
        self.assertEqual((read, one, put, other), ("get", [0, 4], "put", [4, 2]))
        self.assertIs(of_load, of_save)

    def test_request_that_ends_and_begins_in_one_step_is_another(self):
        engine, store = self.recorded()
        request = Request("first", 2 * TOKENS, hashes(2))
        self.begin(engine, request, [[1]])
        engine.step(engine.new(request, [1], 0, TOKENS))
        for ended in ("finished_req_ids", "preempted_req_ids"):
            ((_, before, *_),) = store.take()
            engine.scheduler.request_finished(request, [])
            request.block_hashes = hashes(2, ended)
            self.begin(engine, request, [[2]])
            engine.step(self.together(engine.new(request, [2], 0, TOKENS), **{ended: {"first"}}))
            self.assertIsNot(store.calls[0][1], before)

    def test_pages_of_answers_share_a_call(self):
        engine, store = self.recorded()
        several = [Request(name, 3 * TOKENS, hashes(3, name), prompt_tokens=TOKENS) for name in ("first", "second")]
        for n, request in enumerate(several):
            self.begin(engine, request, [[3 * n + 1, 3 * n + 2]])
        engine.step(self.together(*(engine.new(request, [3 * n + 1, 3 * n + 2], 0, 2 * TOKENS) for n, request in enumerate(several))))
        (_, _, *first), (_, answers, *pages), (_, _, *second) = store.take()
        self.assertEqual((first, answers, pages, second), ([0, 1], None, [0, 2], [0, 1]))
        engine.step(self.together(*(engine.again(request, 2 * TOKENS, TOKENS, [3 * n + 3]) for n, request in enumerate(several))))
        self.assertEqual(store.take(), [("put", None, 0, 2)])

    def test_shared_page_counts_once_for_each_request_that_reads_it(self):
        """Pages that two later requests read move to the main queue, and those of one do not."""
        for readers in (1, 2):
            engine = self.engine(extra=self.memory(), shape=SHAPE, blocks=SHAPE[0], engine=str(readers))
            request = Request("first", 5 * TOKENS, hashes(5))
            self.begin(engine, request, [[1]])
            engine.step(engine.new(request, [1], 0, TOKENS))
            for page in range(1, 5):
                engine.step(engine.again(request, page * TOKENS, TOKENS, [page + 1]))
            for n in range(readers):
                # Its later steps look up the pages that are stored already.
                reader = Request(f"reader {n}", 8 * TOKENS, [*hashes(5), *hashes(3, f"{n}")])
                found, _ = engine.begin(reader, list(range(11, 19)))
                self.assertEqual(found, 5 * TOKENS)
                engine.step(engine.new(reader, list(range(11, 19)), found, TOKENS))
                engine.step(engine.again(reader, 6 * TOKENS, 2 * TOKENS))
            for key in others(0, 1000):
                engine.store.put([key], [bytes(LENGTH)])
            self.assertEqual(self.found(engine, 5), 0 if readers == 1 else 5, readers)
            engine.close()

    def test_calls_of_one_step_wait_together_for_a_full_store(self):
        engine, store = self.recorded()
        several = [Request(name, TOKENS, hashes(1, name)) for name in ("first", "second", "third")]
        for n, request in enumerate(several):
            self.begin(engine, request, [[n + 1]])
        clock = types.SimpleNamespace(monotonic=iter([100, 100, 100.03, 100.07]).__next__)
        with mock.patch("pagelith.vllm.worker.time", clock):
            engine.step(self.together(*(engine.new(request, [n + 1], 0) for n, request in enumerate(several))))
        for wait, expected in zip(store.waits, (0.05, 0.02, 0), strict=True):
            self.assertAlmostEqual(wait, expected)

    def test_most_requests_remembered_are_bounded(self):
        engine = self.engine()
        known = prompts.Prompts(engine.store)
        with mock.patch.object(prompts, "_PROMPTS_MAX", 2):
            first = known.of("first")
            known.of("second")
            self.assertIs(known.of("first"), first)
            known.of("third")
            self.assertEqual(list(known._prompts), ["first", "third"])
        known.end(["first", "unknown"])
        self.assertEqual(list(known._prompts), ["third"])
        engine.store.close()
        self.assertIsNone(known.of("fourth").request)


class Jobs(test_vllm_adapter.Case):
    def submit(self, submit, chunks, rows, name="request"):
        self.job += 1
        submit(types.SimpleNamespace(job_id=self.job, keys=chunks, chunk_ids=rows, req_context=types.SimpleNamespace(req_id=name)))

    def test_prompt_larger_than_its_room_keeps_first_chunks_if_stored_in_several_jobs(self):
        tier, chunks = self.tier(store=MEMORY), test_vllm_adapter.keys(PAGES)
        self.addCleanup(tier.shutdown)
        fill(tier._store)
        for at in range(0, PAGES, STEP):
            self.submit(tier.submit_store, chunks[at : at + STEP], list(range(at, at + STEP)))
        self.finished(tier)
        found = [tier.lookup(chunk, test_vllm_adapter.REQUEST) for chunk in chunks]
        self.assertEqual((found[:STEP], found[-STEP]), ([LookupResult.HIT] * STEP, LookupResult.MISS))

    def test_jobs_of_one_request_are_one_until_it_ends(self):
        tier, chunks = self.tier(), test_vllm_adapter.keys(9)
        self.addCleanup(tier.shutdown)
        tier._store = store = Recorded(tier._store)

        def job(submit, a, b, name="request"):
            self.submit(submit, chunks[a:b], list(range(a, b)), name)
            self.finished(tier)

        job(tier.submit_store, 0, 2)
        ((_, first, *_),) = store.take()
        job(tier.submit_store, 2, 5)
        job(tier.submit_load, 0, 2, "other")
        job(tier.submit_store, 5, 6, "other")
        (_, same, *one), (_, loaded, *two), (_, stored, *three) = store.take()
        self.assertEqual((one, two, three), ([2, 3], [0, 2], [2, 1]))
        self.assertIs(same, first)
        self.assertIs(loaded, stored)
        self.assertIsNot(first, stored)
        tier.on_request_finished(types.SimpleNamespace(req_id="request"))
        tier.on_schedule_end(types.SimpleNamespace(preempted_req_ids={"other"}))
        job(tier.submit_store, 6, 7)
        job(tier.submit_store, 7, 8, "other")
        (_, one, *place), (_, two, *other) = store.take()
        self.assertEqual((place, other), ([0, 1], [0, 1]))
        self.assertEqual(len({id(request) for request in (first, stored, one, two)}), 4)


if __name__ == "__main__":
    unittest.main()

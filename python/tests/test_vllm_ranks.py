"""The connector with several workers, with stand-ins for vLLM and a store process: tensor parallel
ranks, pipeline stages, and ranks that each have some of a block's tokens.
"""

import unittest

from vllm_engine import FULL, TOKENS, Case, hashes, window
from vllm_stand_ins import Output, Request, Spec


class Ranks(Case):
    def test_failed_load_on_one_rank_leaves_others_correct(self):
        for kept, different in enumerate(({"ranks": 2}, {"pipeline": 2})):
            with self.subTest(different), self.process(kept) as attach:
                engine = self.filled(4, extra=attach, **different)
                prompt, ids = hashes(6), [10, 11, 12, 13, 14, 15]
                request = Request("second", 6 * TOKENS, prompt)
                found, later = engine.begin(request, ids)
                self.assertEqual(found, 4 * TOKENS)
                # The first rank's slice of a block is removed between the lookup and the load.
                first = engine.workers[0]._work._keys[0][0]
                engine.store.remove(first.on_pages(prompt[1:2]))
                with self.assertLogs("pagelith.vllm.worker", "WARNING"):
                    told = engine.step(Output() if later else engine.new(request, ids, 4 * TOKENS), {14: 91, 15: 92})
                self.assertEqual(told.failed, {11})
                # Both ranks computed without it so far. vLLM recomputes those blocks.
                compute = {11: 2, 12: 3, 13: 4, 14: 5, 15: 6}
                again = engine.new(request, ids, TOKENS) if later else engine.again(request, TOKENS, 5 * TOKENS)
                engine.step(again, compute)
                was = [engine.bytes(ids, rank) for rank in (0, 1)]
                third = Request("third", 6 * TOKENS + 1, prompt)
                into = [30, 31, 32, 33, 34, 35, 36]
                self.assertEqual(engine.answer(third, into, {}), 6 * TOKENS)
                self.assertEqual([engine.bytes(into[:6], rank) for rank in (0, 1)], was)
                engine.close()

    def test_page_is_found_with_layers_of_all_stages(self):
        with self.process() as attach:
            specs = (FULL, window(2 * TOKENS + 1))
            engine = self.engine(extra=attach, specs=specs, pipeline=2, ranks=2, blocks=64)
            tables = ([1, 2, 3, 4], [5, 6, 7, 8])
            engine.answer(Request("first", 4 * TOKENS, hashes(4)), tables, {block: block for table in tables for block in table})
            shards = [worker.get_handshake_metadata().shard for worker in engine.workers]
            self.assertEqual(shards, ["rank.tp0of2.pp0of2", "rank.tp1of2.pp0of2", "rank.tp0of2.pp1of2", "rank.tp1of2.pp1of2"])
            request, into = Request("second", 4 * TOKENS + 1, hashes(4)), ([10, 11, 12, 13, 14], [0, 0, 22, 23, 24])
            self.assertEqual(engine.begin(request, into), (4 * TOKENS, True))
            self.assertEqual(engine.step(Output()).failed_requests, set())
            for rank in range(4):
                self.assertEqual(engine.bytes(into[0][:4], rank), engine.bytes(tables[0], rank))
                self.assertEqual(engine.bytes(into[1][2:4], rank), engine.bytes(tables[1][2:], rank))
            # A slice of the last stage's windows is removed, and then one of its full attention.
            matched = lambda: engine.scheduler.get_num_new_matched_tokens(request, 0)[0] // TOKENS  # noqa: E731
            engine.store.remove(engine.workers[2]._work._keys[1][0].on_pages(hashes(4)[3:]))
            self.assertEqual(matched(), 3)
            engine.store.remove(engine.workers[3]._work._keys[0][0].on_pages(hashes(4)[1:2]))
            self.assertEqual(matched(), 1)
            engine.close()

    def test_other_split_of_layers_or_tokens_finds_nothing(self):
        with self.process() as attach:
            self.filled(3, extra=attach, pipeline=2).close()
            request = Request("second", 3 * TOKENS + 1, hashes(3))
            for other in ({"ranks": 2}, {"pipeline": 3}, {"pipeline": 2, "split": "b"}, {"pipeline": 2, "ranks": 2}, {"ranks": 2, "context": 2}):
                with self.subTest(other):
                    engine = self.engine(extra=attach, **other)
                    self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0)[0], 0)
                    engine.close()
            engine = self.engine(extra=attach, pipeline=2)
            self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (3 * TOKENS, True))
            engine.close()

    def test_stage_without_part_of_page_is_refused(self):
        with self.process() as attach, self.assertRaisesRegex(ValueError, "no layer of cache group 1.*--pipeline-parallel-size"):
            self.engine(extra=attach, specs=(FULL, window(9)), pipeline=2, without=(1, 1))

    def test_context_parallel_block_covers_tokens_of_all_ranks(self):
        with self.process() as attach:
            sharded = (Spec(TOKENS, dcp_sharded=True),)
            engine = self.engine(extra=attach, specs=sharded, ranks=4, context=2)
            long = 2 * TOKENS
            request = Request("first", 3 * long, hashes(3))
            engine.answer(request, [1, 2, 3], {1: 1, 2: 2, 3: 3})
            self.assertEqual(
                [worker.get_handshake_metadata().shard for worker in engine.workers],
                ["rank.tp0of4.dcp0of2", "rank.tp1of4.dcp1of2", "rank.tp2of4.dcp0of2", "rank.tp3of4.dcp1of2"],
            )
            was = [engine.bytes([1, 2, 3], rank) for rank in range(4)]
            # Its last block is not complete: one token is missing.
            short = engine.scheduler.get_num_new_matched_tokens(Request("short", 3 * long, hashes(3)), 0)
            self.assertEqual(short, (2 * long, True))
            second = Request("second", 3 * long + 1, hashes(3))
            self.assertEqual(engine.answer(second, [11, 12, 13, 14], {}), 3 * long)
            self.assertEqual([engine.bytes([11, 12, 13], rank) for rank in range(4)], was)
            engine.close()
            for other in ({"interleave": TOKENS}, {"context": 4}, {"context": 1}):
                with self.subTest(other):
                    engine = self.engine(extra=attach, specs=sharded, ranks=4, **{"context": 2, **other})
                    self.assertEqual(engine.scheduler.get_num_new_matched_tokens(second, 0)[0], 0)
                    engine.close()


if __name__ == "__main__":
    unittest.main()

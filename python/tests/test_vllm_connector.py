"""The connector for vLLM, with stand-ins for the parts of vLLM that it uses, so that it is tested
wherever the wheel is built. Tests under vLLM itself are in `python/clients/`.
"""

import logging
import types
import unittest
from unittest import mock

from vllm_engine import FULL, TOKENS, Case, hashes, window
from vllm_stand_ins import Blocks, Output, Request, Spec

from pagelith.vllm import PagelithConnector
from pagelith.vllm.blocks import InPlace, pieces
from pagelith.vllm.pools import Object


class Connector(Case):
    def test_next_process_loads_blocks_in_every_layout(self):
        # Dense blocks, tokens before heads, heads before blocks, and kernels with blocks half as
        # long as vLLM's.
        for order, parts in (((0, 1, 2, 3), 1), ((0, 2, 1, 3), 1), ((1, 0, 2, 3), 1), ((0, 1, 2, 3), 2)):
            different = {"order": order, "shape": (64 * parts, 2, TOKENS // parts, 8)}
            with self.subTest(different):
                first = self.filled(8, **different)
                was = first.bytes([part for block in range(1, 9) for part in range(block * parts, (block + 1) * parts)][: 8 * parts])
                first.close()
                second = self.engine(**different)
                # Into other blocks; the prompt has one more token than is stored.
                ids = [40, 20, 41, 21, 42, 22, 43, 23, 50]
                found = second.answer(Request("second", 8 * TOKENS + 1, hashes(8)), ids, {})
                self.assertEqual((found, second.last.failed), (8 * TOKENS, set()))
                into = [part for block in ids[:8] for part in range(block * parts, (block + 1) * parts)]
                self.assertEqual(second.bytes(into), was)
                second.close()

    def test_too_large_block_is_computed_and_fails_no_step(self):
        with self.assertLogs("pagelith.vllm.worker", "WARNING") as logs:
            engine = self.filled(2, blocks=4, shape=(4, 2, TOKENS, 1 << 20))
        self.assertIn("object is too large", logs.output[0])
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(Request("a", 3 * TOKENS, hashes(2)), 0), (0, False))

    def test_last_token_is_computed_and_computed_blocks_are_not_looked_up(self):
        engine = self.filled(8)
        matched = engine.scheduler.get_num_new_matched_tokens
        self.assertEqual(matched(Request("a", 8 * TOKENS, hashes(8)), 0), (7 * TOKENS, True))
        self.assertEqual(matched(Request("b", 8 * TOKENS + 1, hashes(8)), 0), (8 * TOKENS, True))
        self.assertEqual(matched(Request("c", 8 * TOKENS, hashes(8)), 3 * TOKENS), (4 * TOKENS, True))
        self.assertEqual(matched(Request("d", 8 * TOKENS, hashes(8)), 7 * TOKENS), (0, False))
        self.assertEqual(matched(Request("e", 8 * TOKENS, hashes(8), skip_reading_prefix_cache=True), 0), (0, False))
        self.assertEqual(matched(Request("f", 8 * TOKENS, hashes(8, "another")), 0), (0, False))

    def test_failed_blocks_of_load_are_reported_and_are_misses(self):
        count = 2000
        engine = self.filled(count, blocks=2 * count + 2, **self.in_step())
        prompt, ids = hashes(count), list(range(count + 1, 2 * count + 1))
        request = Request("second", count * TOKENS + 1, prompt)
        self.assertEqual(engine.begin(request, ids), (count * TOKENS, False))
        # Removed between the lookup and the load.
        gone = [at for at in range(count) if at % 3 == 1]
        engine.store.remove(engine.keys([prompt[at] for at in gone]))
        with self.assertLogs("pagelith.vllm.worker", "WARNING"):
            told = engine.step(engine.new(request, ids, count * TOKENS))
        self.assertEqual(told.failed, {ids[at] for at in gone})
        came = [at for at in range(count) if at % 3 != 1]
        self.assertEqual(engine.bytes(ids[at] for at in came), engine.bytes(at + 1 for at in came))
        # Reported once, and not found again until stored again.
        self.assertEqual(engine.step(Output()).failed, set())
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (TOKENS, False))
        engine.step(engine.again(request, TOKENS, TOKENS), {ids[1]: 9})
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (4 * TOKENS, False))

    def test_late_block_is_a_miss_though_stored(self):
        engine = self.filled(4, **self.in_step())
        request, ids = Request("second", 4 * TOKENS + 1, hashes(4)), [10, 11, 12, 13, 14]
        engine.begin(request, ids)
        # No destination: an error of the call fails all of its objects.
        nothing = lambda *_: None  # noqa: E731
        engine.workers[0]._work._load_memory = types.SimpleNamespace(
            at_once=64, copies=False, ready_event=nothing, call_arguments=lambda after: {}, settle=nothing, end=nothing
        )
        with self.assertLogs("pagelith.vllm.worker", "ERROR"):
            told = engine.step(engine.new(request, ids, 4 * TOKENS, 0))
        self.assertEqual(told.failed, {10, 11, 12, 13})
        self.assertEqual(engine.store.exists(engine.keys(hashes(4))), [True] * 4)
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (0, False))

    def test_blocks_computed_after_failed_block_are_not_stored(self):
        engine = self.filled(4, **self.in_step())
        prompt, ids = hashes(8), [10, 11, 12, 13, 14, 15, 16, 17]
        request = Request("second", 8 * TOKENS, prompt)
        self.assertEqual(engine.begin(request, ids), (4 * TOKENS, False))
        engine.store.remove(engine.keys(prompt[1:2]))
        # Another request of the step shares the blocks being loaded, which vLLM permits.
        sharing = Request("sharing", 6 * TOKENS, [*prompt[:4], *hashes(2, "another")])
        shared = [*ids[:4], 20, 21]
        engine.scheduler.update_state_after_alloc(sharing, Blocks(shared), 0)
        output = engine.new(request, ids, 4 * TOKENS)
        output.scheduled_new_reqs += engine.new(sharing, shared, 4 * TOKENS).scheduled_new_reqs
        output.num_scheduled_tokens["sharing"] = 2 * TOKENS
        with self.assertLogs("pagelith.vllm.worker", "WARNING"):
            told = engine.step(output, {block: 99 for block in (14, 15, 16, 17, 20, 21)})
        self.assertEqual(told.failed, {11})
        here = lambda of: engine.store.exists(engine.keys(of))  # noqa: E731
        self.assertEqual(here(prompt), [True, False, True, True, False, False, False, False])
        self.assertEqual(here(sharing.block_hashes[4:]), [False, False])
        # A step in progress computes after the failed block.
        request.num_tokens, more = 9 * TOKENS, hashes(1, "more")
        request.block_hashes = [*prompt, *more]
        on = engine.again(request, 8 * TOKENS, TOKENS)
        on.scheduled_cached_reqs.new_block_ids = [([18],)]
        engine.step(on, {18: 99})
        self.assertEqual(here(more), [False])
        # Set back, in two steps: recomputed blocks are stored, and no others.
        engine.step(engine.again(request, TOKENS, 3 * TOKENS), {11: 2, 12: 3, 13: 4})
        self.assertEqual(here(prompt), [True] * 4 + [False] * 4)
        third = Request("third", 6 * TOKENS, prompt[:6])
        engine.scheduler.update_state_after_alloc(third, Blocks(ids[:6]), 0)
        engine.step(engine.new(third, ids[:6], 6 * TOKENS, 0))
        self.assertEqual(here(prompt[4:6]), [False, False])
        engine.step(engine.again(request, 4 * TOKENS, 5 * TOKENS), {block: block for block in range(14, 19)})
        self.assertEqual(here([*prompt, *more]), [True] * 9)

    def test_only_complete_blocks_of_known_tokens_are_stored(self):
        engine = self.engine()
        # Two tokens of the second block are speculative: vLLM has no hash for it.
        request = Request("guessing", TOKENS + 2, hashes(1))
        engine.scheduler.update_state_after_alloc(request, Blocks([1, 2]), 0)
        engine.step(engine.new(request, [1, 2], 0, 2 * TOKENS), {1: 1, 2: 2})
        request.block_hashes = hashes(2)
        self.assertEqual(engine.store.exists(engine.keys(hashes(2))), [True, False])
        request.num_tokens = 2 * TOKENS
        engine.step(engine.again(request, TOKENS + 2, 2), {2: 3})
        self.assertEqual(engine.store.exists(engine.keys(hashes(2))), [True, True])

    def test_prompt_computed_in_parts_is_stored_in_complete_blocks(self):
        engine, prompt = self.engine(), hashes(3)
        request = Request("long", 3 * TOKENS, prompt)
        engine.scheduler.update_state_after_alloc(request, Blocks([1, 2, 3]), 0)
        engine.step(engine.new(request, [1, 2, 3], 0, TOKENS + 2), {1: 1, 2: 2})
        self.assertEqual(engine.store.exists(engine.keys(prompt)), [True, False, False])
        engine.step(engine.again(request, TOKENS + 2, 2 * TOKENS - 2), {2: 5, 3: 6})
        self.assertEqual(engine.store.exists(engine.keys(prompt)), [True, True, True])
        second = Request("second", 3 * TOKENS + 1, prompt)
        self.assertEqual(engine.answer(second, [11, 12, 13, 14], {}), 3 * TOKENS)
        self.assertEqual(engine.bytes([11, 12, 13]), engine.bytes([1, 2, 3]))

    def test_blocks_left_by_sliding_window_are_neither_read_nor_stored(self):
        engine = self.filled(4, specs=[window(2 * TOKENS + 1)])
        request, ids = Request("second", 4 * TOKENS + 1, hashes(4)), [0, 0, 12, 13, 14]
        was = engine.bytes([0])
        self.assertEqual(engine.answer(request, ids, {}), 4 * TOKENS)
        self.assertEqual((engine.loaded.failed_requests, engine.bytes([0])), (set(), was))
        self.assertEqual(engine.bytes([12, 13]), engine.bytes([3, 4]))
        another = Request("third", 3 * TOKENS, hashes(3, "another"))
        engine.answer(another, [0, 31, 32], {})
        self.assertEqual(engine.store.exists(engine.keys(another.block_hashes)), [False, True, True])

    def test_load_within_step_without_failing_policy_is_refused(self):
        with self.assertRaisesRegex(ValueError, "'load_async' is false.*'kv_load_failure_policy' is 'recompute'.*leave 'load_async' out"):
            self.engine(extra=self.extra(load_async=False))
        engine = self.filled(1, **self.in_step())
        self.assertEqual(engine.begin(Request("second", TOKENS + 1, hashes(1)), [2, 3]), (TOKENS, False))

    def test_asynchronous_loads_are_reported_when_ended(self):
        engine = self.filled(4, at_once=False)
        request, ids = Request("second", 4 * TOKENS + 1, hashes(4)), [10, 11, 12, 13]
        self.assertEqual(engine.begin(request, ids), (4 * TOKENS, True))
        engine.store.remove(engine.keys(hashes(4)[2:3]))
        with self.assertLogs("pagelith.vllm.worker", "WARNING"):
            first = engine.step(Output())
            engine.workers[0]._work._threads.shutdown(wait=True)
        told = engine.step(Output())
        self.assertEqual((first.ended | told.ended, first.failed | told.failed), ({"second"}, {12}))
        self.assertEqual(engine.bytes([10, 11, 13]), engine.bytes([1, 2, 4]))

    def test_other_model_or_bytes_find_nothing(self):
        self.filled(2).close()
        request = Request("second", 2 * TOKENS + 1, hashes(2))
        others = [
            {"model": "another"}, {"extra": self.extra(revision="2")}, {"extra": self.extra(tenant="t")}, {"backend": "another"},
            {"isa": "amx"}, {"cache_dtype": "fp8"}, {"quantization": "awq"}, {"rope": 500000}, {"order": (0, 2, 1, 3)},
            {"shape": (64, 1, TOKENS, 16)}, {"specs": [FULL, FULL]}, {"revision": "other"}, {"code_revision": "other"}, {"max_model_len": 8192},
            {"commit": "d" * 40}, {"dtype": "fp16"}, {"scale": 0.5}, {"skip_layers": ["0"]}, {"mamba_dtype": "float32"},
            {"guesses": types.SimpleNamespace(method="ngram", draft_model_config=None)},
        ]
        for other in others:
            with self.subTest(other):
                engine = self.engine(**other)
                self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (0, False))
                engine.close()
        self.assertEqual(self.engine().scheduler.get_num_new_matched_tokens(request, 0), (2 * TOKENS, True))

    def test_reset_clears_only_own_namespace(self):
        self.filled(2, model="another").close()
        engine = self.filled(2)
        request = Request("second", 2 * TOKENS + 1, hashes(2))
        self.assertTrue(engine.scheduler.reset_cache())
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (0, False))
        engine.close()
        another = self.engine(model="another")
        self.assertEqual(another.scheduler.get_num_new_matched_tokens(request, 0), (2 * TOKENS, True))

    def test_reset_covers_step_in_progress(self):
        engine, build = self.engine(), PagelithConnector.build_connector_meta

        def reset_after(connector, output):
            plan = build(connector, output)
            self.assertTrue(connector.reset_cache())
            return plan

        ids, asked = [1, 2, 3], Request("second", 3 * TOKENS + 1, hashes(3))
        with mock.patch.object(PagelithConnector, "build_connector_meta", reset_after):
            engine.answer(Request("first", 3 * TOKENS, hashes(3)), ids, {1: 1, 2: 2, 3: 3})
        self.assertEqual(engine.store.exists(engine.keys(hashes(3))), [True] * 3)
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(asked, 0), (0, False))
        engine.step(Output())
        self.assertEqual(engine.store.exists(engine.keys(hashes(3))), [False] * 3)
        engine.answer(Request("third", 3 * TOKENS, hashes(3)), ids, {1: 1, 2: 2, 3: 3})
        self.assertEqual(engine.scheduler.get_num_new_matched_tokens(asked, 0), (3 * TOKENS, True))

    def test_roles_load_or_store(self):
        self.filled(2, role="kv_consumer").close()
        request = Request("second", 2 * TOKENS + 1, hashes(2))
        producer = self.filled(2, role="kv_producer")
        self.assertEqual(producer.scheduler.get_num_new_matched_tokens(request, 0), (0, False))
        producer.close()
        consumer = self.engine(role="kv_consumer")
        self.assertEqual(consumer.scheduler.get_num_new_matched_tokens(request, 0), (2 * TOKENS, True))

    def test_both_roles_share_store_until_closed(self):
        engine = self.filled(2)
        self.assertIs(engine.store, engine.workers[0]._work._store)
        engine.scheduler.shutdown()
        engine.scheduler.shutdown()
        self.assertEqual(engine.store.exists(engine.keys(hashes(2))), [True, True])
        engine.close()
        self.assertEqual(self.engine().store.exists(engine.keys(hashes(2))), [True, True])

    def test_block_is_found_with_slices_of_all_ranks(self):
        with self.process() as attach:
            engine = self.filled(4, extra=attach, ranks=2)
            request, ids = Request("second", 4 * TOKENS + 1, hashes(4)), [10, 11, 12, 13, 14]
            self.assertEqual(engine.answer(request, ids, {}), 4 * TOKENS)
            self.assertEqual([engine.bytes(ids[:4], rank) for rank in (0, 1)], [engine.bytes([1, 2, 3, 4], rank) for rank in (0, 1)])
            # One rank's slice of the third block is missing.
            ((second,),) = engine.workers[1]._work._keys
            engine.store.remove(second.on_pages(hashes(4)[2:3]))
            self.assertEqual(engine.scheduler.get_num_new_matched_tokens(request, 0), (2 * TOKENS, True))

    def test_invalid_configuration_is_refused_at_start(self):
        for wrong, words in (
            ({"extra": {"root_dir": "/x"}}, "'root_dir' is an unknown key.*one of the two"),
            ({"extra": self.extra(attach="unix:/x")}, "one of the two"),
            ({"extra": self.extra(load_async="yes", read_threads=0)}, "'load_async' must be true or false.*'read_threads' must be a whole number"),
            ({"ranks": 2}, "'store' is a store in the scheduler's process, and 2 worker.*pagelith serve"),
            ({"pipeline": 2}, "'store' is a store in the scheduler's process, and 2 worker.*pagelith serve"),
            ({"prefill_context": 2}, "'prefill_context_parallel_size' is 2.*--prefill-context-parallel-size 1"),
            ({"ranks": 2, "extra": {"attach": "unix:/x", "load_async": False}}, "'load_async' is false, but with 2 workers"),
            ({"specs": []}, "no cache groups"),
            ({"prefix_caching": False}, "'enable_prefix_caching' is false.*--enable-prefix-caching"),
            ({"specs": [Spec(TOKENS, non_causal=True)]}, "cache group 0 has 'non_causal' true.*without --kv-transfer-config"),
            ({"specs": [FULL, Spec(TOKENS, rswa_window=8)]}, "cache group 1 has 'rswa_window' 8.*without --kv-transfer-config"),
            ({"specs": [Spec(TOKENS, "cross_attention")]}, "the kind 'cross_attention'.*PagelithTier"),
            ({"specs": [FULL, Spec(TOKENS, "sliding_window", TOKENS, prefix_cacheable=False)]}, "group 1 .*to no connector.*PagelithTier"),
            ({"specs": [FULL, FULL], "extra": self.extra(load_async=False)}, "'load_async' is false"),
            ({"specs": [window(8)], "extra": self.extra(load_async=False)}, "'load_async' is false"),
        ):
            with self.subTest(wrong), self.assertRaisesRegex(ValueError, words):
                self.engine(**wrong)

    def test_failing_load_policy_is_logged_with_remedy_at_start(self):
        for policy, role, lines in (("fail", "kv_both", 1), ("fail", "kv_consumer", 1), ("fail", "kv_producer", 0), ("recompute", "kv_both", 0)):
            with self.subTest(policy=policy, role=role), self.assertLogs("pagelith.vllm.connector", "WARNING") as logs:
                # `assertLogs` requires at least one line.
                logging.getLogger("pagelith.vllm.connector").warning("nothing")
                self.engine(policy=policy, role=role).close()
            self.assertEqual(len(logs.output) - 1, lines)
            for line in logs.output[1:]:
                self.assertRegex(line, '"kv_load_failure_policy": "recompute".*kv_load_failure_policy=fail$')

    def test_connector_with_lora_requires_revision(self):
        with_adapters = {"lora": types.SimpleNamespace(lora_dtype="auto")}
        with self.assertRaisesRegex(ValueError, "weights of LoRA adapters"):
            self.engine(**with_adapters)
        self.engine(extra=self.extra(revision="adapters-3"), **with_adapters)

    def test_adjacent_layers_are_one_piece(self):
        layer = lambda at: types.SimpleNamespace(  # noqa: E731
            shape=(4, 1, 2, 8), stride=lambda axis=None: (48, 16, 8, 1) if axis is None else 48, element_size=lambda: 1,
            data_ptr=lambda: 1000 + at,
        )
        block = lambda at: Object(0, 0, 0, (at,))  # noqa: E731
        # All layers of a block together, and then with a gap between them.
        self.assertEqual(InPlace([[[layer(0), layer(16)]]], 4).source_ranges([block(0), block(2)]), [[(1000, 32)], [(1096, 32)]])
        self.assertEqual(InPlace([[[layer(0), layer(32)]]], 4).source_ranges([block(1)]), [[(1048, 16), (1080, 16)]])
        # Groups of a pool, each with a different block.
        groups = InPlace([[[layer(0)], [layer(16)]]], 4)
        self.assertEqual(groups.source_ranges([Object(0, 0, 0, (1, 2))]), [[(1048, 16), (1112, 16)]])

    def test_contiguous_ranges_of_every_layout(self):
        self.assertEqual(pieces([(1, 64), (2, 32), (4, 8), (8, 1)], 1), ((0, 64),))
        self.assertEqual(pieces([(1, 64), (2, 1000), (4, 8), (8, 1)], 1), ((0, 32), (1000, 32)))
        self.assertEqual(pieces([(3, 4), (2, 12)], 4), ((0, 24),))
        self.assertEqual(pieces([(2, 100), (2, 10), (3, 1)], 1), ((0, 3), (10, 3), (100, 3), (110, 3)))
        with self.assertRaisesRegex(ValueError, "overlap"):
            pieces([(3, 2), (4, 1)], 1)

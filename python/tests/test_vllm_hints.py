"""Hints that vLLM's requests carry, through the tier and the connector, with stand-ins for the
classes of vLLM."""

import types
import unittest

import test_vllm_adapter
import vllm_engine
from vllm_engine import TOKENS, hashes
from vllm_stand_ins import Request

import pagelith
from pagelith.vllm.hints import ACTION, PARAMS, give, hints_of


class Recorded:
    """Failures of calls, in place of their log lines."""

    def __init__(self):
        self.calls = []

    def call(self, what, error):
        self.calls.append((what, str(error)))


def action(payload, kind=ACTION):
    return types.SimpleNamespace(action_id="1", action_type=kind, action_version="0.1", payload=payload)


def envelope(*actions):
    return types.SimpleNamespace(protocol_version="0.1", message_id="m", actions=list(actions))


def context(*hints, **more):
    """vLLM's `ReqContext`."""
    return types.SimpleNamespace(**{"req_id": "request", "kv_transfer_params": {PARAMS: list(hints)} if hints else None, "kv_hints": None, **more})


RETAIN = {"hint": "retain", "seconds": 600}


class Fields(unittest.TestCase):
    def test_hints_are_read_from_both_fields_and_the_priority(self):
        hints = envelope(action({"hint": "demote"}), action({"blocks": 5}, "kv.fetch"))
        request = context(RETAIN, kv_hints=hints, priority=3)
        failures = Recorded()
        self.assertEqual(hints_of(request, failures), [("retain", 600), ("demote", None), ("low_priority", None)])
        self.assertEqual(hints_of(context(priority=-1), failures), [("high_priority", None)])
        for plain in (context(), context(priority=0), context(kv_transfer_params={"do_remote_prefill": True}), types.SimpleNamespace(req_id="r")):
            self.assertEqual(hints_of(plain, failures), [])
        self.assertEqual(len(hints_of(context(*[RETAIN] * 100), failures)), 8)
        self.assertEqual(failures.calls, [])

    def test_invalid_hints_are_logged_and_others_followed(self):
        seconds = [-1, 0, 86_401, 10**400, "600", [600], True, False, float("nan"), float("inf"), -float("inf"), 1j]
        wrong = [5, {}, {"hint": 7}, *({**RETAIN, "seconds": wrong} for wrong in seconds)]
        failures = Recorded()
        self.assertEqual(hints_of(context(*wrong, RETAIN), failures), [("retain", 600)])
        self.assertEqual([what for what, _ in failures.calls], ["hint"] * len(wrong))
        self.assertEqual(hints_of(context(kv_transfer_params={PARAMS: RETAIN}), failures), [])
        self.assertIn("must be a list, not dict", failures.calls[-1][1])
        for actions in (5, {"a": 1}, [{"payload": 1}], [types.SimpleNamespace(action_type="pagelith.hint")]):
            self.assertEqual(hints_of(context(kv_hints=types.SimpleNamespace(actions=actions)), failures), [])


class Given(unittest.TestCase):
    def test_hint_that_the_store_cannot_take_is_logged_and_others_given(self):
        failures = Recorded()
        key = pagelith.Key(pagelith.Namespace("m"), "page")
        with pagelith.Store({"dram": {"bytes": "1MiB"}}) as store:
            self.assertTrue(all(store.put([key], [b"bytes"])))
            refused = [("\ud800", None), ("retain", True), ("retain", "600"), ("retain", None)]
            give(store, [*refused, ("retain", 600)], [key], None, failures)
            self.assertEqual(store.stats()["objects_leased"], 1)
        self.assertEqual([what for what, _ in failures.calls], ["hint"] * 4)
        self.assertIn("hint must be a string in UTF-8", failures.calls[0][1])

    def test_error_of_any_class_ends_no_request(self):
        class Broken:
            def hint(self, *_, **__):
                raise OSError("broken")

        failures = Recorded()
        give(Broken(), [("demote", None)], [pagelith.Key(pagelith.Namespace("m"), "page")], None, failures)
        self.assertEqual(failures.calls, [("hint", "broken")])

    def test_store_that_is_down_is_asked_once(self):
        class Down:
            def hint(self, *_, **__):
                raise pagelith.UnavailableError("down")

        failures = Recorded()
        keys = [pagelith.Key(pagelith.Namespace(model), "page") for model in ("a", "b")]
        give(Down(), [("demote", None), ("retain", 1)], keys, None, failures)
        self.assertEqual(failures.calls, [("hint", "down")])


class Tier(test_vllm_adapter.Case):
    def store(self, tier, chunks, request):
        self.job += 1
        tier.submit_store(types.SimpleNamespace(job_id=self.job, keys=chunks, chunk_ids=list(range(len(chunks))), req_context=request))

    def leased(self, tier):
        """Leased objects, once the tier's threads have no work."""
        tier._writes.submit(lambda: None).result()
        return tier._store.stats()["objects_leased"]

    def test_chunks_of_a_request_follow_its_hints_once_it_has_ended(self):
        tier, chunks, request = self.tier(), test_vllm_adapter.keys(4), context(RETAIN)
        self.addCleanup(tier.shutdown)
        tier.on_new_request(request)
        self.store(tier, chunks[:1], context(req_id="another"))
        tier.lookup(chunks[0], request)
        self.store(tier, chunks[1:3], request)
        self.finished(tier)
        self.assertEqual(self.leased(tier), 0)
        tier.on_request_finished(request)
        self.assertEqual(self.leased(tier), 3)
        # vLLM stores the last chunks after the end of their request.
        self.store(tier, chunks[3:], request)
        self.finished(tier)
        self.assertEqual(self.leased(tier), 4)

    def test_unknown_hint_is_logged_and_fails_no_job(self):
        tier, chunks, request = self.tier(), test_vllm_adapter.keys(1), context({"hint": "forget"})
        self.addCleanup(tier.shutdown)
        with self.assertLogs("pagelith.vllm.tier", "ERROR") as logs:
            self.store(tier, chunks, request)
            self.assertEqual([job.success for job in self.finished(tier)], [True])
        self.assertIn("hint must be one of", logs.output[0])


class Connector(vllm_engine.Case):
    def ended(self, engine, **more):
        """A request for eight stored blocks has ended."""
        request = Request("second", 8 * TOKENS + 1, hashes(8))
        for name, value in more.items():
            setattr(request, name, value)
        engine.answer(request, list(range(20, 29)), {})
        engine.scheduler.request_finished(request, [])

    def test_blocks_follow_the_hints_of_a_request_once_it_has_ended(self):
        engine = self.filled(8)
        self.ended(engine)
        stats = engine.store.stats()
        self.assertEqual((stats["objects_leased"], stats["hints_ended"]), (0, 0))
        self.ended(engine, kv_transfer_params={PARAMS: [RETAIN, {"hint": "session_ended"}]}, priority=1, session_id="a")
        stats = engine.store.stats()
        self.assertEqual((stats["objects_leased"], stats["hints_ended"]), (8, 1))

    def test_session_end_is_not_passed_while_saves_may_follow(self):
        engine = self.engine(self.extra(save_async=True))
        self.ended(engine, kv_transfer_params={PARAMS: [RETAIN, {"hint": "session_ended"}]})
        self.assertEqual(engine.store.stats()["hints_ended"], 0)


if __name__ == "__main__":
    unittest.main()

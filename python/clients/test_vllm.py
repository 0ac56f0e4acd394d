"""A vLLM engine on the CPU with `pagelith.vllm.PagelithTier` below its host memory, or with
`pagelith.vllm.PagelithConnector`: blocks computed by one process are not computed by the next,
whose answers have the same tokens and log-probabilities as those without a cache.

Run by clients/run.sh. `STORE_PROGRAM` is the program `pagelith`, for the test with a store process.
"""

import contextlib
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from pagelith.compat import mooncake

HERE = os.path.dirname(os.path.abspath(__file__))
# Prompt tokens of which vLLM may take all but the last block from the cache.
PROMPT, BLOCK = 320, 32


def setUpModule():
    Lives.home = tempfile.mkdtemp()
    unittest.addModuleCleanup(shutil.rmtree, Lives.home, ignore_errors=True)


# Other models in the same directory, and whether their answers differ too: for a directory vLLM
# accepts any revision.
OTHERS = (
    ({"hf_overrides": {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}}}, True),
    ({"revision": "other"}, False),
)


def tiers(tier, own=False):
    """vLLM's tiered offloading with one more tier, below our connector or vLLM's own."""
    extra = {"spec_name": "HostCopies", "spec_module_path": "vllm_host_copies", "cpu_bytes_to_use": 64 << 20, "secondary_tiers": [tier]}
    ours = {"kv_connector": "PagelithOffloadingConnector", "kv_connector_module_path": "pagelith.vllm"}
    connector = {"kv_connector": "OffloadingConnector"} if own else ours
    return json.dumps({**connector, "kv_role": "kv_both", "kv_connector_extra_config": extra})


class Lives(unittest.TestCase):
    # The kind of model, and its answers without a cache.
    model, without, whole = "full", {}, None

    @classmethod
    def setUpClass(cls):
        if cls.model not in Lives.without:
            Lives.without[cls.model] = cls.live("none")
        cls.expected = Lives.without[cls.model]

    @classmethod
    def live(cls, transfer, ends=0, **environment):
        """The answers of one run of an engine. Its log is in `said`."""
        command = [sys.executable, "-W", "ignore", os.path.join(HERE, "vllm_life.py"), os.path.join(cls.home, cls.model), transfer]
        environment = {**os.environ, "PYTHONPATH": HERE, **environment}
        done = subprocess.run(command, env=environment, cwd=cls.home, capture_output=True, text=True, timeout=300)
        if done.returncode != ends:
            raise AssertionError(f"the engine ended with {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
        cls.said = done.stderr
        if ends > 0:
            # It did not start.
            return []
        lines = [line for line in done.stdout.splitlines() if line.startswith("[{")]
        cls.told = json.loads(lines[0]) if len(lines) > 1 else []
        return json.loads(lines[-1])

    def store(self, name):
        """Settings of an embedded store in the engine's process."""
        self.directory = os.path.join(self.home, f"{self.model}_{name}")
        ssd = {"dirs": [self.directory], "bytes": "128MiB", "segment_bytes": "8MiB"}
        return {"dram": {"bytes": "32MiB"}, "index": {"max_objects": 10000}, "ssd": ssd}

    def assert_same(self, answers):
        """The answers are those without a cache; for a prompt found completely, those with vLLM's
        own tier that keeps files."""
        prompts = len(self.expected)
        self.assertEqual([one["tokens"] for one in answers], [self.expected[n % prompts]["tokens"] for n in range(len(answers))])
        for n, one in enumerate(answers):
            like = self.expected if one["cached"] < PROMPT else self.taken_whole()
            self.assertEqual(one["logprobs"], like[n % prompts]["logprobs"], f"prompt {n} cached {one['cached']}")

    @classmethod
    def taken_whole(cls):
        """The answers if vLLM computes only the last token: some CPUs sum a single token in another
        order than many."""
        if Lives.whole is None:
            transfer = tiers({"type": "fs", "root_dir": os.path.join(Lives.home, "files")}, own=True)
            said = cls.said
            cls.live(transfer)
            Lives.whole = cls.live(transfer)
            cls.said = said
            assert all(one["cached"] == PROMPT for one in Lives.whole), Lives.whole
        return Lives.whole

    def assert_hits(self, answers):
        self.assertTrue(all(count >= PROMPT - BLOCK for count in self.cached(answers)), self.cached(answers))

    def other_models(self, transfer):
        """Runs of other models between two runs of one: none uses a block of another, and each
        answers as without a cache."""
        self.assert_same(self.live(transfer))
        for options, answers_others in OTHERS:
            with self.subTest(options):
                other = {"VLLM_LIFE_OPTIONS": json.dumps(options)}
                expected = self.live("none", **other) if answers_others else self.expected
                answers = self.live(transfer, **other)
                self.assertEqual(self.cached(answers), [0] * 4)
                of = [[(one["tokens"], one["logprobs"]) for one in each] for each in (answers, expected, self.expected)]
                self.assertEqual(of[0], of[1])
                self.assertEqual(of[0] != of[2], answers_others, "an option that changes nothing shows nothing")
        again = self.live(transfer)
        self.assert_same(again)
        self.assert_hits(again)

    def cached(self, answers):
        return [one["cached"] for one in answers]

    @contextlib.contextmanager
    def store_process(self, name):
        """`pagelith serve`, and its address."""
        if "STORE_PROGRAM" not in os.environ:
            print("skipped: no STORE_PROGRAM, so no store process", file=sys.stderr)
            self.skipTest("no STORE_PROGRAM")
        address = "unix:" + os.path.join(self.home, f"{self.model}_{name}")
        command = [os.environ["STORE_PROGRAM"], "serve", "--listen", address, "--dram", "64MiB", "--ssd", "0"]
        store = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            self.assertTrue(store.stdout.readline().startswith("listening "))
            yield address
        finally:
            store.terminate()
            store.wait()
            store.stdout.close()


class Tiers(Lives):
    def tiered(self, **store):
        return tiers({"type": "PagelithTier", "module_path": "pagelith.vllm", **store})

    def embedded(self, name):
        return self.tiered(store=self.store(name))

    def test_next_process_reads_computed_blocks(self):
        transfer = self.embedded("closed")
        first = self.live(transfer)
        self.assert_same(first)
        self.assertEqual(self.cached(first), [0] * 4)
        second = self.live(transfer)
        self.assert_same(second)
        self.assert_hits(second)
        # Bits are flipped: the blocks that contain them are computed again.
        flip(self.directory)
        third = self.live(transfer)
        self.assert_same(third)
        self.assertLess(sum(self.cached(third)), sum(self.cached(second)))

    def test_tier_of_other_model_finds_nothing(self):
        self.other_models(self.embedded("models"))

    def test_tier_below_vllm_connector_requires_revision(self):
        tier = {"type": "PagelithTier", "module_path": "pagelith.vllm", "store": self.store("own")}
        self.live(tiers(tier, own=True), ends=1)
        self.assertIn("PagelithOffloadingConnector", self.said)
        self.assertIn("set 'revision' to a text", self.said)
        self.assertFalse(os.path.exists(self.directory))
        self.assert_same(self.live(tiers({**tier, "revision": "weights-1"}, own=True)))

    def test_blocks_survive_kill(self):
        transfer = self.embedded("killed")
        self.assert_same(self.live(transfer, ends=-signal.SIGKILL, VLLM_LIFE_ENDS="killed"))
        second = self.live(transfer)
        self.assert_same(second)
        self.assertGreater(sum(self.cached(second)), 0)

    def test_store_process_shares_blocks(self):
        with self.store_process("socket") as address:
            self.assert_same(self.live(self.tiered(attach=address)))
            second = self.live(self.tiered(attach=address))
            self.assert_same(second)
            self.assert_hits(second)

    def test_mooncake_connector_works(self):
        with self.store_process("mooncake") as address:
            config = os.path.join(self.home, "mooncake.json")
            with open(config, "w") as file:
                json.dump({"metadata_server": "none", "master_server_address": address, "protocol": "tcp"}, file)
            transfer = json.dumps({"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"})
            environment = {"MOONCAKE_CONFIG_PATH": config, "PYTHONPATH": os.pathsep.join([HERE, mooncake.path()])}
            self.assert_same(self.live(transfer, **environment))
            second = self.live(transfer, **environment)
            self.assert_same(second)
            self.assert_hits(second)


class Connected(Lives):
    def connected(self, module="pagelith.vllm", **given):
        return json.dumps({
            "kv_connector": "PagelithConnector", "kv_connector_module_path": module, "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute", "kv_connector_extra_config": given,
        })

    def lives(self, transfer):
        """Two runs, of which the second loads all blocks of the first."""
        first = self.live(transfer)
        self.assert_same(first)
        self.assertEqual(self.cached(first), [0] * 4)
        second = self.live(transfer)
        self.assert_same(second)
        self.assert_hits(second)
        self.assertNotIn("could not be", self.said)

    def damaged_lives(self, transfer):
        """Two more runs over damaged files: blocks that could not be read are computed and stored
        again."""
        flip(self.directory)
        self.assert_same(self.live(transfer))
        self.assertIn("could not be read", self.said)
        again = self.live(transfer)
        self.assert_same(again)
        self.assert_hits(again)
        self.assertNotIn("could not be", self.said)

    def killed_lives(self, transfer):
        """Two runs, of which the first is killed after its answers."""
        self.assert_same(self.live(transfer, ends=-signal.SIGKILL, VLLM_LIFE_ENDS="killed"))
        second = self.live(transfer)
        self.assert_same(second)
        self.assertGreater(sum(self.cached(second)), 0)

    def late_lives(self, name):
        """Two runs with few blocks, so that each prompt's are reused by the next one, and saves end
        as late as possible. Prompts are repeated: the second time, blocks that vLLM has evicted are
        loaded after those that it has."""
        transfer = self.connected("vllm_late_saves", store=self.store(name), save_async=True)
        first = self.live(transfer, VLLM_LIFE_CACHE=str(self.few), VLLM_LIFE_ROUNDS="2", VLLM_LIFE_STEP="128")
        self.assert_same(first)
        self.assert_hits(first[4:])
        self.assertRegex(self.said, "saves that a step waited for: [1-9]")
        second = self.live(transfer)
        self.assert_same(second)
        self.assert_hits(second)
        self.assertNotIn("could not be", self.said)

    def preempted_lives(self, name):
        """Two runs, of which the first has blocks for prompts but not for answers: preempted
        requests have saves in progress, ended as late as possible."""
        transfer = self.connected("vllm_late_saves", store=self.store(name), save_async=True)
        long = dict(VLLM_LIFE_TOKENS=str(self.long), VLLM_LIFE_STEP="128")
        expected = self.live("none", **long)
        answers = self.live(transfer, **long, VLLM_LIFE_CACHE=str(self.tight), VLLM_LIFE_TOGETHER="1")
        self.assertRegex(self.said, "requests that were preempted: [1-9]")
        self.assertRegex(self.said, "saves that a step waited for: [1-9]")
        self.assertEqual([one["tokens"] for one in answers], [one["tokens"] for one in expected])
        # The blocks that it stored.
        again = self.live(transfer, **long)
        self.assert_hits(again)
        self.assertEqual([(one["tokens"], one["logprobs"]) for one in again], [(one["tokens"], one["logprobs"]) for one in expected])
        self.assertNotIn("could not be", self.said)

    def assert_events(self, first, again, groups):
        """The events of two runs, of which the second loads: each block of each prompt by each
        group, with its tokens, after the previous block."""
        for told in (first, again):
            stored = {(event["group_idx"], event["block_hashes"][0]): event for event in told if event["type"] == "BlockStored"}
            self.assertEqual(len(stored), len([event for event in told if event["type"] == "BlockStored"]), "told twice")
            for group in range(groups):
                prompts = set()
                for event in (event for (of, _), event in stored.items() if of == group):
                    tokens = []
                    while event is not None:
                        tokens = event["token_ids"] + tokens
                        event = stored[group, event["parent_block_hash"]] if event["parent_block_hash"] else None
                    prompts.add(tuple(tokens))
                whole = [tuple((7 * n + 13 * prompt) % 500 + 1 for n in range(PROMPT)) for prompt in range(4)]
                self.assertLessEqual({prompt[:end] for prompt in whole for end in range(BLOCK, PROMPT + 1, BLOCK)}, prompts)

    def several_lives(self, name, **workers):
        """Two runs with several workers, over a store process, since the workers are processes: one
        core each, or as many as exist."""
        cores = {"VLLM_CPU_OMP_THREADS_BIND": "|".join(str(n % os.cpu_count()) for n in range(2))}
        with self.store_process(name) as address:
            expected = self.live("none", **workers, **cores)
            first, second = (self.live(self.connected(attach=address), **workers, **cores) for _ in range(2))
            self.assertNotIn("could not be", self.said)
        self.assertEqual(self.cached(first), [0] * 4)
        self.assert_hits(second)
        for answers in (first, second):
            self.assertEqual([(one["tokens"], one["logprobs"]) for one in answers], [(one["tokens"], one["logprobs"]) for one in expected])

    def staged(self):
        # A block has 16 to 64 KiB: several copies for each prompt.
        return self.connected("vllm_staged", store=self.store("staged"), staging_bytes=200 << 10, load_async=True)


class Connectors(Connected):
    # With 24 KiB per block: one prompt at a time, and a part of the next.
    few = tight = 1 << 19
    long = 40

    def test_damaged_block_with_default_policy_ends_request_after_warning(self):
        given = {"store": self.store("policy")}
        recompute = self.connected(**given)
        default = json.dumps({name: value for name, value in json.loads(recompute).items() if name != "kv_load_failure_policy"})
        self.assert_same(self.live(default))
        self.assertIn('"kv_load_failure_policy": "recompute"', self.said)
        flip(self.directory)
        kept = shutil.copytree(self.directory, self.directory + "_kept")
        answers = self.live(default)
        ended = [n for n, one in enumerate(answers) if not one["tokens"]]
        self.assertGreater(len(ended), 0)
        self.assertIn("cause=damaged", self.said)
        # The remedy, over the same files.
        shutil.rmtree(self.directory)
        shutil.move(kept, self.directory)
        self.assert_same(self.live(recompute))
        self.assertNotIn('"kv_load_failure_policy": "recompute"', self.said)

    def test_engine_starts_while_store_process_is_down(self):
        address = "unix:" + os.path.join(self.home, "nobody")
        self.live(self.connected(attach=address), ends=1)
        self.assertIn(address, self.said)
        self.assertIn("'start_without_store': true", self.said)
        self.assert_same(self.live(self.connected(attach=address, start_without_store=True), VLLM_LIFE_ROUNDS="4"))
        lines = [line for line in self.said.splitlines() if f"store={address}" in line]
        self.assertEqual(len(lines), 2, self.said)
        self.assertNotIn("Traceback", self.said)

    def test_connector_of_other_model_finds_nothing(self):
        self.other_models(self.connected(store=self.store("models")))

    def test_preemption_during_save_is_correct(self):
        self.preempted_lives("preempted")

    def test_concurrent_saves_are_correct(self):
        self.late_lives("late")

    def test_next_process_reads_computed_blocks(self):
        transfer = self.connected(store=self.store("connector"))
        self.lives(transfer)
        self.damaged_lives(transfer)

    def test_asynchronous_loads_are_correct(self):
        transfer = self.connected(store=self.store("threads"), load_async=True)
        self.lives(transfer)
        self.damaged_lives(transfer)

    def test_blocks_survive_kill(self):
        self.killed_lives(self.connected(store=self.store("connector_killed")))

    def test_staged_copies_are_correct(self):
        self.lives(self.staged())

    def test_store_process_shares_blocks(self):
        with self.store_process("connector_socket") as address:
            self.lives(self.connected(attach=address))

    def test_two_workers_are_correct(self):
        self.several_lives("workers", VLLM_LIFE_RANKS="2")

    def test_two_stages_are_correct(self):
        self.several_lives("stages", VLLM_LIFE_STAGES="2")


class Hybrids(Connected):
    """Several cache groups, some of which have windows."""

    model = "hybrid"
    # Blocks of 16 KiB, of which a prompt has ten in each of three groups.
    few, tight = 1 << 20, 74 << 14
    # Windows leave blocks as an answer grows.
    long = 120

    def test_preemption_during_save_is_correct(self):
        self.preempted_lives("preempted")

    def test_concurrent_saves_are_correct(self):
        self.late_lives("late")
        transfer = self.connected(store=self.store("thread"), save_async=True)
        self.lives(transfer)

    def test_next_process_reads_computed_blocks(self):
        transfer = self.connected(store=self.store("connector"))
        self.lives(transfer)
        self.damaged_lives(transfer)

    def test_blocks_survive_kill(self):
        self.killed_lives(self.connected(store=self.store("connector_killed")))

    def test_staged_copies_are_correct(self):
        self.lives(self.staged())

    def test_store_process_shares_blocks(self):
        with self.store_process("connector_socket") as address:
            self.lives(self.connected(attach=address))


    def test_events_report_every_group(self):
        transfer = self.connected(store=self.store("events"))
        self.assert_same(self.live(transfer, VLLM_LIFE_EVENTS="1"))
        first = self.told
        second = self.live(transfer, VLLM_LIFE_EVENTS="1")
        self.assert_same(second)
        self.assert_hits(second)
        self.assert_events(first, self.told, 3)


class Windows(Connected):
    """One group, whose layers all have windows."""

    model = "windows"

    def test_next_process_reads_computed_blocks(self):
        transfer = self.connected(store=self.store("connector"))
        self.lives(transfer)
        self.damaged_lives(transfer)


class Recurrent(Connected):
    """Layers with recurrent states and full attention: short convolutions."""

    model = "states"
    # Blocks of 16 KiB: one prompt at a time, and a part of the next.
    few = 22 << 14

    def test_next_process_reads_computed_blocks(self):
        transfer = self.connected(store=self.store("connector"))
        self.lives(transfer)
        self.damaged_lives(transfer)

    def test_two_workers_are_correct(self):
        self.several_lives("workers", VLLM_LIFE_RANKS="2")

    def test_blocks_survive_kill(self):
        self.killed_lives(self.connected(store=self.store("connector_killed")))

    def test_blocks_evicted_by_vllm_are_loaded_after_its_own(self):
        # In steps of four blocks, each of which leaves its state.
        steps = dict(VLLM_LIFE_STEP="128", VLLM_LIFE_RETAIN=str(BLOCK))
        answers = self.live(self.connected(store=self.store("few")), **steps, VLLM_LIFE_ROUNDS="2", VLLM_LIFE_CACHE=str(self.few))
        self.assert_alike(answers[:4], self.live("none", **steps))
        self.assert_alike(answers[4:], answers[:4])
        self.assert_hits(answers[4:])
        self.assertNotIn("could not be", self.said)

    def test_answer_is_continued_as_from_vllm_cache(self):
        # For an answer longer than a block, completed by a step of one token. vLLM keeps the state
        # after it if it is set to keep all.
        long = dict(VLLM_LIFE_TOKENS="48", VLLM_LIFE_RETAIN=str(BLOCK))
        asked = [[(7 * n + 13 * prompt) % 500 + 1 for n in range(PROMPT)] for prompt in range(4)]
        answered = self.live("none", **long)
        followed = [[*prompt, *one["tokens"], *range(1, 21)] for prompt, one in zip(asked, answered)]
        own = self.live("none", **long, VLLM_LIFE_PROMPTS=self.prompts([*asked, *followed]))[4:]
        self.assertEqual(self.cached(own), [PROMPT + BLOCK] * 4)
        transfer = self.connected(store=self.store("turns"))
        self.assert_alike(self.live(transfer, **long), answered)
        taken = self.live(transfer, **long, VLLM_LIFE_PROMPTS=self.prompts(followed))
        self.assertEqual(self.cached(taken), self.cached(own))
        self.assert_alike(taken, own)

    def test_staged_copies_are_correct(self):
        self.lives(self.staged())

    def test_store_process_shares_blocks(self):
        with self.store_process("connector_socket") as address:
            self.lives(self.connected(attach=address))

    def prompts(self, prompts):
        path = os.path.join(self.home, f"{self.model}_prompts.json")
        with open(path, "w") as file:
            json.dump(prompts, file)
        return path

    def assert_alike(self, answers, expected):
        said = lambda of: [(one["tokens"], one["logprobs"]) for one in of]  # noqa: E731
        self.assertEqual(said(answers), said(expected))


class Deltas(Recurrent):
    """The same with gated delta rules, whose states depend on a whole prompt."""

    model = "deltas"
    # Two workers would have half a head of the states each.
    test_two_workers_are_correct = None
    # Blocks of 64 KiB.
    few = 22 << 16


def flip(directory):
    """Flip a bit in every 16 KiB that is written."""
    for path in glob.glob(os.path.join(directory, "**", "*"), recursive=True):
        if not os.path.isfile(path) or os.path.getsize(path) < 8 << 20:
            continue
        with open(path, "r+b") as file:
            for at in range(100 << 10, os.path.getsize(path), 16 << 10):
                file.seek(at)
                byte = file.read(1)
                if byte and byte != b"\0":
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 4]))


if __name__ == "__main__":
    unittest.main()

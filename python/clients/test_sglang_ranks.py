"""Several ranks over `pagelith.sglang`, each a process with SGLang's own controller, over its own
collectives: pipeline and context parallelism, and replicas with data parallel attention."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import sglang_parts as parts
from sglang_ranks import LAYOUTS, RANKS, REPLICAS, SHARED_KV
from sglang_scenarios import PAGES, Case, flip

WHOLE = PAGES * parts.PAGE


class Ranks(Case):
    def run_ranks(self, phases, where):
        """The results of the ranks for each model: for each phase, one per rank."""
        meeting = os.path.join(tempfile.mkdtemp(dir=self.home), "meeting")
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sglang_ranks.py")
        commands = [[sys.executable, "-W", "ignore", program, str(rank), meeting, phases, where] for rank in range(RANKS)]
        ranks = [subprocess.Popen(one, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for one in commands]
        said = [rank.communicate() for rank in ranks]
        for rank, (out, err) in zip(ranks, said, strict=True):
            if rank.returncode != 0:
                raise AssertionError(f"a rank ended with {rank.returncode}\n{out[-2000:]}\n{err[-4000:]}")
        told = [json.loads(out.splitlines()[-1]) for out, _ in said]
        return {model: list(zip(*(one[model] for one in told), strict=True)) for model in told[0]}

    def test_embedded_ranks_read_common_prefix(self):
        directory = tempfile.mkdtemp(dir=self.home)
        models = [model for model in LAYOUTS if model != SHARED_KV]
        self.assertEqual(self.run_ranks("write", directory), dict.fromkeys(models, [(WHOLE,) * RANKS]))
        read = self.run_ranks("read,lose", directory)
        for model in models:
            # A prefix that one rank has lost is shorter for all, or useless if a state at its end
            # is needed.
            fewer = 0 if "mamba" in model else WHOLE - 5 * parts.PAGE
            whole, short = [WHOLE, WHOLE, 0], [fewer, fewer, 0]
            # A replica's loss does not affect the others.
            lost = (whole, short) if model in REPLICAS else (short, short)
            self.assertEqual(read[model], [(whole,) * RANKS, lost], model)
        # The pages of an MLA replica take less than a MiB.
        flip(directory, 5, start=96 << 10)
        for model, [ranks] in self.run_ranks("read", directory).items():
            self.assertEqual([bad for _, _, bad in ranks], [0] * RANKS, model)
            self.assertTrue(all(read < WHOLE for _, read, _ in ranks), (model, ranks))

    def test_attached_ranks_share_restarted_store_process(self):
        store = self.serve()
        # Only one rank writes bytes that are equal on all, and one replica reads the pages of the
        # other.
        written = {**dict.fromkeys(LAYOUTS, [(WHOLE,) * RANKS]), **dict.fromkeys([SHARED_KV, *REPLICAS], [(WHOLE, 0)])}
        self.assertEqual(self.run_ranks("write", store.address), written)
        store.stop()
        store.start()
        self.assertEqual(self.run_ranks("read", store.address), dict.fromkeys(LAYOUTS, [([WHOLE, WHOLE, 0],) * RANKS]))


if __name__ == "__main__":
    unittest.main()

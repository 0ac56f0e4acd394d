"""One of several ranks, each a process with SGLang's controller, over real collectives: `test_sglang_ranks.py` starts them.

    python sglang_ranks.py RANK FOLDER PHASES DIRECTORY|ADDRESS

For each model it prints what each phase said, as JSON. Phases, with commas: `write`; `read`; `lose`, which removes the last five pages of
the second rank, and reads then. FOLDER is where the ranks meet; the stores lie in DIRECTORY, or are the process at ADDRESS.
"""

import json
import os
import sys

import sglang_drive as drive
import sglang_parts as parts
import torch.distributed
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang_scenarios import NAMED, PAGES, Scenario, embedded, folder

RANKS = 2
# KV that all ranks have alike, of which one rank writes it all.
SHARED_KV = "context, mla and indexer"
# What each model's ranks are to each other, as `place` has it.
LAYOUTS = {
    "pipeline": lambda rank: dict(pp_size=RANKS, pp_rank=rank),
    "pipeline, mla and mamba": lambda rank: dict(pp_size=RANKS, pp_rank=rank),
    "context": lambda rank: dict(tp_size=RANKS, tp_rank=rank, attn_cp_size=RANKS, attn_cp_rank=rank),
    SHARED_KV: lambda rank: dict(tp_size=RANKS, tp_rank=rank, attn_cp_size=RANKS, attn_cp_rank=rank),
    "data": lambda rank: dict(tp_size=RANKS, tp_rank=rank, attn_dp_size=RANKS, attn_dp_rank=rank),
    "data, mla and mamba": lambda rank: dict(tp_size=RANKS, tp_rank=rank, attn_dp_size=RANKS, attn_dp_rank=rank),
}
# Whose ranks are replicas: each serves prompts of its own, and asks nobody else.
REPLICAS = [model for model in LAYOUTS if model.startswith("data")]


class Rank(Scenario):
    """This rank's pools: of a stage of the pipeline, its own layers."""

    def __init__(self, model, rank, alone):
        super().__init__(None)
        self.model, self.rank, self.alone = model, rank, alone

    def controller(self, extra):
        parts.configure(extra)
        parts.place(**LAYOUTS[self.model](self.rank))
        world = torch.distributed.group.WORLD
        groups = {
            "pipeline": dict(group=self.alone, pp_group=world),
            "context": dict(group=world, attn_cp_group=world, attn_tp_group=self.alone),
            "data": dict(group=self.alone),
        }[self.model.split(",")[0]]
        self.sidecars, self.trailing, self.derived = [], [], []
        if "mla" not in self.model:
            first = self.rank * parts.LAYERS if self.model == "pipeline" else 0
            device, self.anchor = parts.mha("page_first", first=first)
            return parts.plain(device, self.anchor, extra, **groups)
        device, self.anchor = parts.mla("page_first", dsa=True)
        if "mamba" in self.model:
            self.trailing = [(PoolName.MAMBA, parts.mamba())]
        else:
            self.sidecars = [(PoolName.INDEXER, parts.indexer(device, self.anchor))]
        return parts.hybrid(device, self.anchor, self.sidecars + self.trailing, extra, **groups)

    @property
    def seed(self):
        """What makes this rank's bytes up: of KV that all ranks share, and of a prompt that two replicas serve, the same."""
        return 1 if self.model in (SHARED_KV, *REPLICAS) else 1 + self.rank

    def of_each_page(self, prompt):
        return [(host, (self.seed, seed)) for host, seed in super().of_each_page(prompt)]

    def of_last_pages(self, prompt):
        return [(name, host, (self.seed, seed)) for name, host, seed in super().of_last_pages(prompt)]


def settings(model, where):
    """One model's pages are nobody else's, and in a store of this process its ranks have a folder of their own."""
    if where.startswith("unix:"):
        return {**NAMED, "attach": where, "allocator": "shm", "revision": model}
    return embedded(folder(where, model))


def phase_of(scenario, controller, phase):
    backend = controller.storage_backend
    if phase == "write":
        if scenario.rank and scenario.model in REPLICAS and backend.settings.attach:
            # What the other replica stores is for this one too.
            return 0
        told = scenario.write(controller, 1)
        backend._store.flush()
        return told
    if phase == "lose" and scenario.rank == 1:
        last = drive.hashes_of(drive.tokens_of(1, PAGES))[-5:]
        backend._store.remove(backend._anchor_keys(last))
    torch.distributed.barrier()
    return scenario.read(controller, 1)


def main(rank, meeting, phases, where):
    rank = int(rank)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    alone = [torch.distributed.new_group([each]) for each in range(RANKS)][rank]
    said = {}
    for model in LAYOUTS:
        if model == SHARED_KV and not where.startswith("unix:"):
            continue
        scenario = Rank(model, rank, alone)
        controller = scenario.controller(settings(model, where))
        said[model] = [phase_of(scenario, controller, phase) for phase in phases.split(",")]
        # None goes while another one waits for it.
        torch.distributed.barrier()
        controller.detach_storage_backend()
    print(json.dumps(said), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""One of several ranks, each a process with SGLang's controller, over real collectives:
`test_sglang_ranks.py` starts them.

    python sglang_ranks.py RANK FOLDER PHASES DIRECTORY|ADDRESS

For each model it prints the results of each phase, as JSON. Phases, separated by commas: `write`;
`read`; `lose`, which removes the last five pages of the second rank and then reads. In FOLDER the
ranks rendezvous; the stores are in DIRECTORY, or in the process at ADDRESS.
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
# KV that is equal on all ranks, of which one rank writes all.
SHARED_KV = "context, mla and indexer"
# The parallel layout of each model's ranks, as for `place`.
LAYOUTS = {
    "pipeline": lambda rank: dict(pp_size=RANKS, pp_rank=rank),
    "pipeline, mla and mamba": lambda rank: dict(pp_size=RANKS, pp_rank=rank),
    "context": lambda rank: dict(tp_size=RANKS, tp_rank=rank, attn_cp_size=RANKS, attn_cp_rank=rank),
    SHARED_KV: lambda rank: dict(tp_size=RANKS, tp_rank=rank, attn_cp_size=RANKS, attn_cp_rank=rank),
    "data": lambda rank: dict(tp_size=RANKS, tp_rank=rank, attn_dp_size=RANKS, attn_dp_rank=rank),
    "data, mla and mamba": lambda rank: dict(tp_size=RANKS, tp_rank=rank, attn_dp_size=RANKS, attn_dp_rank=rank),
}
# Models whose ranks are replicas: each serves its own prompts, independent of the others.
REPLICAS = [model for model in LAYOUTS if model.startswith("data")]


class Rank(Scenario):
    """This rank's pools: those of its own layers for a pipeline stage."""

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
        """The seed of this rank's bytes: equal for KV that all ranks share, and for a prompt that
        two replicas serve."""
        return 1 if self.model in (SHARED_KV, *REPLICAS) else 1 + self.rank

    def of_each_page(self, prompt):
        return [(host, (self.seed, seed)) for host, seed in super().of_each_page(prompt)]

    def of_last_pages(self, prompt):
        return [(name, host, (self.seed, seed)) for name, host, seed in super().of_last_pages(prompt)]


def settings(model, where):
    """Each model's pages are separate, and in an embedded store its ranks have their own
    directory."""
    if where.startswith("unix:"):
        return {**NAMED, "attach": where, "allocator": "shm", "revision": model}
    return embedded(folder(where, model))


def phase_of(scenario, controller, phase):
    backend = controller.storage_backend
    if phase == "write":
        if scenario.rank and scenario.model in REPLICAS and backend.settings.attach:
            # Pages stored by the other replica are found by this one too.
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
        # No rank ends while another one waits for it.
        torch.distributed.barrier()
        controller.detach_storage_backend()
    print(json.dumps(said), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Measurements of `gpu.py` with memory of the GPU in puts and gets, next to a bare copy of the same
bytes and next to a host pool that is copied by the program. Names no framework: a test runs it over a
fake driver."""

import collections
import os
import random
import statistics
import time

import gpu_process

import pagelith

# Timeout of a call, in seconds.
LONG = 120
# Pages of a call: the store overlaps the copies of some with the reads of others.
BATCH = 128

TO_GPU, FROM_GPU = "bare copy, pool to GPU", "bare copy, GPU to pool"
# Each measurement with the bare copy that it is compared with.
ROWS = {
    TO_GPU: TO_GPU,
    FROM_GPU: FROM_GPU,
    "put, page-locked arena": FROM_GPU,
    "put, pageable arena": FROM_GPU,
    "put, copy to pool": FROM_GPU,
    "DRAM, page-locked arena": TO_GPU,
    "DRAM, pageable arena": TO_GPU,
    "DRAM, get to pool and copy": TO_GPU,
    "SSD, to GPU": TO_GPU,
    "SSD, get to pool and copy": TO_GPU,
    "put, store process": FROM_GPU,
    "store process, to GPU": TO_GPU,
    "store process, get to pool and copy": TO_GPU,
}


class DirectBench:
    """Pages of one size between a GPU and stores, over a page-locked pool where there is one."""

    def __init__(self, device, host, page_bytes, pages):
        self.device, self.host, self.page_bytes, self.pages = device, host, page_bytes, pages
        self.nbytes = pages * page_bytes
        self.figures = collections.defaultdict(dict)
        self.failed, self.compared, self.wrong, self.missing = {}, 0, 0, 0
        self.back = device.random(pages, page_bytes, 0)
        self.pool = host.pages(pages, page_bytes)
        self.places = [(host.address + page * page_bytes, page_bytes) for page in range(pages)]

    def run(self, folder, rounds, goes_on, program=None):
        for turn in filter(goes_on, range(rounds)):
            self.source = self.device.random(self.pages, self.page_bytes, random.getrandbits(62))
            space = pagelith.Namespace("gpu", dtype="bytes", extra=[("direct", str(turn))])
            self.keys = [pagelith.Key(space, f"page {page}") for page in range(self.pages)]
            self.bare(turn)
            for pin, arena in (("cuda", "page-locked arena"), ("off", "pageable arena")):
                self.attempt(arena, lambda: self.in_dram(turn, pin, arena))
            self.attempt("SSD", lambda: self.on_ssd(turn, os.path.join(folder, f"direct-{turn}")))
            if program:
                self.attempt("store process", lambda: self.in_process(turn, program, os.path.join(folder, f"served-{turn}")))

    def attempt(self, what, measure):
        """Limits a failure to these measurements."""
        try:
            measure()
        except Exception as error:
            self.failed.setdefault(what, f"{type(error).__name__}: {error}")
            self.device.forget_error()

    def timed(self, what, turn, action):
        self.device.settle()
        begun = time.perf_counter()
        done = action()
        self.figures[what][turn] = self.nbytes / 1e9 / (time.perf_counter() - begun)
        return done

    def bare(self, turn):
        self.timed(TO_GPU, turn, lambda: self.device.copied(self.pool, self.back))
        self.timed(FROM_GPU, turn, lambda: self.device.copied(self.source, self.pool))

    def in_dram(self, turn, pin, arena):
        room = (self.nbytes * 2 >> 20 << 20) + (64 << 20)
        with pagelith.Store({"dram": {"bytes": room, "prefault": True, "pin": pin}}) as store:
            store.bind_device(self.device.name)
            self.put(store, self.source, f"put, {arena}", turn)
            self.get(store, f"DRAM, {arena}", turn)
            if pin != "off":
                self.get_to_pool(store, "DRAM, get to pool and copy", turn)
        if pin != "off":
            with pagelith.Store({"dram": {"bytes": room, "prefault": True}}) as store:
                self.put_from_pool(store, turn)

    def on_ssd(self, turn, folder):
        ssd = {"dirs": [folder], "bytes": (self.nbytes * 2 >> 20 << 20) + (256 << 20)}
        settings = {"ssd": ssd, "staging": {"bytes": "256MiB"}}
        with pagelith.Store({**settings, "dram": {"bytes": "256MiB"}}) as store:
            store.bind_device(self.device.name)
            self.put(store, self.source, None, turn)
            store.flush(timeout=LONG)
        with pagelith.Store({**settings, "dram": {"bytes": "16MiB", "promote": "never", "pin": "cuda"}}) as store:
            store.bind_device(self.device.name)
            self.get(store, "SSD, to GPU", turn)
            self.get_to_pool(store, "SSD, get to pool and copy", turn)

    def in_process(self, turn, program, folder):
        room = (self.nbytes * 2 >> 20 << 20) + (256 << 20)
        with gpu_process.serving(program, folder, ssd=room, dram=room) as address, pagelith.Store.attach(address) as store:
            store.bind_device(self.device.name, staging_bytes=256 << 20)
            self.put(store, self.source, "put, store process", turn)
            self.get(store, "store process, to GPU", turn)
            self.get_to_pool(store, "store process, get to pool and copy", turn)

    def batches(self, order):
        return [order[n : n + BATCH] for n in range(0, self.pages, BATCH)]

    def put(self, store, memory, what, turn):
        def action():
            return [one for part in self.batches(range(self.pages)) for one in store.put([self.keys[n] for n in part], [memory[n] for n in part], timeout=LONG)]

        outcomes = self.timed(what, turn, action) if what else action()
        refused = [one for one in outcomes if one.state != "stored"]
        if refused:
            self.missing += len(refused)
            raise RuntimeError(f"{len(refused)} pages were not put: {refused[0].state}, {refused[0].error}")

    def put_from_pool(self, store, turn):
        def action():
            self.device.copied(self.source, self.pool)
            return [one for part in self.batches(range(self.pages)) for one in store.put([self.keys[n] for n in part], [self.places[n] for n in part], timeout=LONG)]

        assert all(self.timed("put, copy to pool", turn, action)), "pages were not put"

    def get(self, store, what, turn):
        """Get every page into another page's place on the GPU, in random order."""
        order, into = self.orders()
        self.device.spoil(self.back)

        def action():
            parts = zip(self.batches(order), self.batches(into))
            return [one for part, to in parts for one in store.get([self.keys[n] for n in part], [self.back[n] for n in to], timeout=LONG)]

        self.compare(what, self.timed(what, turn, action), order, into)

    def get_to_pool(self, store, what, turn):
        """The same through the pool, which is copied to the GPU afterwards."""
        order, into = self.orders()
        self.device.spoil(self.back)
        self.host.spoil()

        def action():
            parts = zip(self.batches(order), self.batches(into))
            outcomes = [one for part, to in parts for one in store.get([self.keys[n] for n in part], [self.places[n] for n in to], timeout=LONG)]
            self.device.copied(self.pool, self.back)
            return outcomes

        self.compare(what, self.timed(what, turn, action), order, into)

    def orders(self):
        order = random.sample(range(self.pages), self.pages)
        return order, order[1:] + order[:1]

    def compare(self, what, outcomes, order, into):
        """Count pages that are missing, and pages that differ on the GPU."""
        hits = [n for n, one in enumerate(outcomes) if one]
        differing = self.device.differing(self.back, [into[n] for n in hits], self.source, [order[n] for n in hits]) if hits else []
        self.compared += len(hits)
        self.wrong += len(differing)
        missed = [one for one in outcomes if not one]
        self.missing += len(missed)
        if missed:
            self.failed.setdefault(what, f"{len(missed)} pages missed: {missed[0].cause or missed[0].error}")

    def median(self, what):
        return statistics.median(self.figures[what].values()) if self.figures.get(what) else None

    def ratio(self, what):
        """The median of the rounds' ratios to the bare copy."""
        bare, own = self.figures.get(ROWS[what], {}), self.figures.get(what, {})
        both = [own[turn] / bare[turn] for turn in own if turn in bare]
        return statistics.median(both) if both else None

    def saved(self):
        figures = {what: {"rounds": turns, "median": self.median(what), "of_bare": self.ratio(what)} for what, turns in self.figures.items()}
        names = ("page_bytes", "compared", "wrong", "missing", "failed")
        return {**{name: getattr(self, name) for name in names}, "way": "direct", "gb_s": figures}


def table(benches):
    """All results, as Markdown."""
    lines = ["| page | memory of the GPU | GB/s | of the bare copy |", "| ---: | --- | ---: | ---: |"]
    for bench in benches:
        for what in ROWS:
            if (figure := bench.median(what)) is not None:
                lines.append(f"| {bench.page_bytes >> 10} KiB | {what} | {figure:.2f} | {bench.ratio(what):.2f} |")
    lines.append("")
    lines += [f"not done: {bench.page_bytes >> 10} KiB, {what}: {why}" for bench in benches for what, why in bench.failed.items()]
    return "\n".join(lines)

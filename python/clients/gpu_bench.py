"""The measurements of `gpu.py` with pages of one size, over one kind of store: put, read and
compare, alternating between the kinds of memory."""

import contextlib
import random
import statistics
import sys
import time

import gpu_memory as memory
import gpu_process
from compare_worker import BATCH, Clock
from gpu_rows import Row

import pagelith

# Timeout of a call, in seconds.
LONG = 120


class Bench:
    """Pages of one size through a store, for each kind of memory."""

    def __init__(self, device, page_bytes, pages, hosts, way):
        self.device, self.way = device, way
        self.page_bytes, self.pages, self.nbytes = page_bytes, pages, pages * page_bytes
        self.rows = [Row(page_bytes, way, kind, hosts.get(kind)) for kind in hosts]
        self.back = device.random(pages, page_bytes, 0)

    def in_turns(self, turn):
        usable = [row for row in self.rows if row.host is not None]
        return usable[turn % len(usable) :] + usable[: turn % len(usable)]

    def place(self, row, page):
        return (row.host.address + page * self.page_bytes, self.page_bytes)

    def write(self, row, store, turn):
        """Put pages of the GPU into the store, until they are on the drive."""
        seed = random.getrandbits(62)
        source = self.device.random(self.pages, self.page_bytes, seed)
        row.add("D2H", turn, self.nbytes, self.device.copied(source, row.host.pages(self.pages, self.page_bytes)))
        space = pagelith.Namespace("gpu", dtype="bytes", extra=[("kind", row.kind), ("turn", str(turn))])
        keys = [pagelith.Key(space, f"page {page}") for page in range(self.pages)]
        places = [self.place(row, page) for page in range(self.pages)]
        with Clock() as durable:
            with Clock() as put:
                outcomes = [one for n in range(0, self.pages, BATCH) for one in store.put(keys[n : n + BATCH], places[n : n + BATCH], timeout=LONG)]
            store.flush(timeout=LONG)
        refused = [one for one in outcomes if one.state != "stored"]
        if refused:
            row.missing += len(refused)
            raise RuntimeError(f"{len(refused)} pages were not put: {refused[0].state}, {refused[0].error}")
        for what, clock in (("put", put), ("durable", durable)):
            row.add(what, turn, self.nbytes, clock.wall)
            row.cpu[what].append(clock.cpu * 1e9 / self.nbytes)
        row.put[turn] = keys, seed

    def read(self, row, store, turn, what, before=1):
        """Read every page into another page's slot, in random order, and copy it to the GPU;
        `before` reads of all precede the measurement."""
        keys, source = self.kept(row, turn)
        order = random.sample(range(self.pages), self.pages)
        places = order[1:] + order[:1]
        asked = [keys[page] for page in order]
        into = [self.place(row, place) for place in places]
        # The first read of a ring looks up registered memory, and the first access to another
        # process's memory maps it.
        store.get(asked[:before], into[:before], timeout=LONG)
        row.host.spoil()
        staged = store.stats()["staged_bytes"]
        with Clock() as clock:
            outcomes = [one for n in range(0, self.pages, BATCH) for one in store.get(asked[n : n + BATCH], into[n : n + BATCH], timeout=LONG)]
        row.told[f"{what}: bytes through staging memory"] += store.stats()["staged_bytes"] - staged
        row.add(what, turn, self.nbytes, clock.wall)
        row.cpu[what].append(clock.cpu * 1e9 / self.nbytes)
        self.device.spoil(self.back)
        row.add("H2D", turn, self.nbytes, self.device.copied(row.host.pages(self.pages, self.page_bytes), self.back))
        self.compare(row, what, outcomes, places, source, order)

    def both_ways(self, row, store, turn):
        """Read from SSD into one half of the pool while the other is copied to the GPU; and the
        same reads without copies."""
        keys, source = self.kept(row, turn)
        most = max(1, min(BATCH, self.pages // 8))
        order = random.sample(range(self.pages), self.pages)
        halves = [[self.place(row, half * most + n) for n in range(most)] for half in range(2)]
        pool = row.host.pages(self.pages, self.page_bytes)
        for what in ("reads", "overlapped") if turn % 2 else ("overlapped", "reads"):
            row.host.spoil()
            self.device.spoil(self.back)
            under_way, outcomes = [None, None], []
            begun = time.perf_counter()
            for step, n in enumerate(range(0, self.pages, most)):
                part, half = [keys[page] for page in order[n : n + most]], step % 2
                self.device.wait(under_way[half])
                outcomes += store.get(part, halves[half][: len(part)], timeout=LONG)
                if what == "overlapped":
                    from_ = pool[half * most : half * most + len(part)]
                    under_way[half] = self.device.begin_copy(from_, self.back[n : n + len(part)])
            self.device.settle()
            row.add(what, turn, self.nbytes, time.perf_counter() - begun)
            if what == "overlapped":
                self.compare(row, what, outcomes, list(range(self.pages)), source, order)

    def kept(self, row, turn):
        """The keys of the pages put in that turn, and the pages, generated again."""
        if turn not in row.put:
            raise RuntimeError("it was not put")
        keys, seed = row.put[turn]
        return keys, self.device.random(self.pages, self.page_bytes, seed)

    def compare(self, row, what, outcomes, places, source, order):
        """Count pages that are missing, and pages that differ."""
        hits = [n for n, one in enumerate(outcomes) if one]
        missed = [one for one in outcomes if not one]
        row.told.update(f"{what}: from {outcomes[n].tier}" for n in hits)
        row.told.update(f"{what}: missed, {one.cause or one.error}" for one in missed)
        differing = self.device.differing(self.back, [places[n] for n in hits], source, [order[n] for n in hits]) if hits else []
        row.compared += len(hits)
        row.missing += len(missed)
        row.wrong += len(differing)
        if missed or differing:
            print(f"{row.way}, {row.kind}, {what}: {len(missed)} missing, {len(differing)} wrong", file=sys.stderr, flush=True)

    def tensors(self, row, store):
        """Put pages passed as tensors instead of addresses; a page on the GPU must be refused."""
        count = min(8, self.pages // 2)
        pool = row.host.pages(self.pages, self.page_bytes)
        space = pagelith.Namespace("gpu", dtype="tensors", extra=[("kind", row.kind)])
        keys = [pagelith.Key(space, f"page {page}") for page in range(count)]
        source = self.device.random(count, self.page_bytes, 1)
        self.device.copied(source, pool[:count])
        assert all(store.put(keys, list(pool[:count]), timeout=LONG)), "tensors were not put"
        row.host.spoil()
        outcomes = store.get(keys, list(pool[count : 2 * count]), timeout=LONG)
        self.device.spoil(self.back)
        self.device.copied(pool, self.back)
        self.compare(row, "tensors", outcomes, list(range(count, 2 * count)), source, list(range(count)))
        if self.device.on_gpu:
            try:
                store.put([pagelith.Key(space, "on the GPU")], [source[0]])
            except pagelith.InvalidError:
                return
            row.wrong += 1
            raise RuntimeError("memory of the GPU was taken for the host's")

    def prove(self):
        """Check that one flipped bit is detected, or the comparison proves nothing."""
        source = self.device.random(self.pages, self.page_bytes, 2)
        self.back.copy_(source)
        self.back[self.pages // 2, -1] ^= 1 << 17
        every = list(range(self.pages))
        found = self.device.differing(self.back, every, source, every)
        if found != [self.pages // 2]:
            raise SystemExit(f"a planted difference in page {self.pages // 2} was not found: {found}")

    def own(self, folder, rounds, goes_on):
        """Measure an embedded store."""
        ssd = {"dirs": [folder], "bytes": self.room(rounds)}
        whole = {"dram": {"bytes": self.room(1), "prefault": True}, "ssd": ssd}
        for turn in filter(goes_on, range(rounds)):
            with pagelith.Store(whole) as store:
                for row in self.in_turns(turn):
                    with row.attempt("put", self.device):
                        self.write(row, store, turn)
                    with row.attempt("DRAM", self.device):
                        self.read(row, store, turn, "DRAM")
                    if turn == 0:
                        with row.attempt("tensors", self.device):
                            self.tensors(row, store)
            for row in self.in_turns(turn):
                # Opened for each kind: after failed reads into one kind of memory a store may
                # consider the drive broken.
                with row.attempt("SSD", self.device), pagelith.Store({"dram": {"bytes": 0}, "ssd": ssd}) as store:
                    self.from_ssd(row, store, turn)
            self.say(turn)

    def from_ssd(self, row, store, turn):
        with row.attempt("SSD", self.device):
            self.read(row, store, turn, "SSD")
        with row.attempt("registered", self.device), store.register((row.host.address, self.nbytes)) as registration:
            if not registration.used:
                raise RuntimeError("the store has no use for it: no io_uring")
            self.read(row, store, turn, "registered")
            row.told[f"registered: rings have {memory.buffers_of_rings()} ranges"] += 1
        with row.attempt("overlapped", self.device), contextlib.ExitStack() as stack:
            if "registered" not in row.failed:
                stack.enter_context(store.register((row.host.address, self.nbytes)))
            self.both_ways(row, store, turn)

    def process(self, program, folder, rounds, goes_on):
        """Measure a store process over a Unix socket; and another one that reads what the first has
        left on the drive."""
        room, done = self.room(rounds), []
        with gpu_process.serving(program, folder, ssd=room, dram=room, prefault=True) as address, self.attached(address) as stores:
            for turn in filter(goes_on, range(rounds)):
                for row in self.in_turns(turn):
                    with row.attempt("put", self.device):
                        self.write(row, stores[row], turn)
                    with row.attempt("DRAM", self.device):
                        self.read(row, stores[row], turn, "DRAM", before=self.pages)
                done.append(turn)
        # Gets leave the pages on SSD.
        with gpu_process.serving(program, folder, ssd=room, dram=64 << 20, promote="never") as address, self.attached(address) as stores:
            for turn in done:
                for row in self.in_turns(turn):
                    with row.attempt("SSD", self.device):
                        self.read(row, stores[row], turn, "SSD")
                self.say(turn)

    @contextlib.contextmanager
    def attached(self, address):
        """A client for each kind of memory, with its memory shared as far as possible."""
        with contextlib.ExitStack() as stack:
            stores = {row: stack.enter_context(pagelith.Store.attach(address)) for row in self.in_turns(0)}
            for row, store in stores.items():
                if row.host.fd is not None:
                    with row.attempt("share", self.device):
                        store.share(row.host.fd, row.host.address, row.host.length)
            yield stores

    def room(self, rounds):
        """Bytes that the puts of these rounds need, with headers and ends of segments; sizes are
        multiples of 1 MiB."""
        return ((self.nbytes * len(self.rows) * rounds * 3 // 2) >> 20 << 20) + (256 << 20)

    def say(self, turn):
        for row in self.in_turns(0):
            row.turns += 1
            seen = {what: round(statistics.median(turns[turn]), 2) for what, turns in row.figures.items() if turn in turns}
            print(f"{self.page_bytes >> 10} KiB, round {turn}: {row.way}, {row.kind}: {seen}", file=sys.stderr, flush=True)

"""Models by their pools: the pages that each backs up and prefetches, and the check of the bytes.
`test_sglang*.py` run them."""

import glob
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import sglang_drive as drive
import sglang_parts as parts
import sglang_stacks as stacks
from sglang.srt.mem_cache.hicache_storage import PoolName

PAGES = 20
HOME = tempfile.gettempdir()

NAMED = {"backend_name": "pagelith", "module_path": "pagelith.sglang", "class_name": "HiCache", "interface_v1": 1}


def embedded(directory, **more):
    """The settings of an embedded store."""
    ssd = {"dirs": [directory], "bytes": "128MiB", "segment_bytes": "16MiB"}
    return {**NAMED, "store": {"dram": {"bytes": "64MiB"}, "index": {"max_objects": 100000}, "ssd": ssd}, **more}


class Scenario:
    """A model's pools: the controller over them, and the pools of each page."""

    page = parts.PAGE
    # Pages at the end of a prompt for which pools have state that not every page has.
    window = 1
    # Further flags of the server.
    flags: dict = {}

    def __init__(self, make, **changed):
        self.make, self.changed = make, changed

    def controller(self, extra):
        extra = {**extra, **self.changed}
        parts.configure(extra, **self.flags)
        parts.place()
        self.device, self.anchor, self.sidecars, self.trailing = self.make()
        self.derived = []
        if not self.sidecars and not self.trailing:
            return parts.plain(self.device, self.anchor, extra)
        return parts.hybrid(self.device, self.anchor, self.sidecars + self.trailing, extra)

    def transfers(self, keys, slot):
        """The transfers of these pools other than KV, for a backup or prefetch; None if there are
        none."""
        last = keys[-self.window :]
        each = [drive.each_page(name) for name, _ in self.sidecars]
        some = [drive.last_pages(name, self.last_slots(host, slot), last) for name, host in self.trailing]
        same = [drive.same_pages(name, source, last) for name, _, source in self.derived]
        return each + some + same or None

    def last_slots(self, host, slot):
        return drive.slots(slot, self.window, host.page_size)

    def of_each_page(self, prompt):
        """Pools of which every page has objects, with the seeds of their bytes."""
        kv = [(self.anchor, prompt)] if self.anchor is not None else []
        return kv + [(host, (prompt, n)) for n, (_, host) in enumerate(self.sidecars)]

    def of_last_pages(self, prompt):
        hosts = [(name, host) for name, host, *_ in [*self.trailing, *self.derived]]
        return [(name, host, (prompt, "last", n)) for n, (name, host) in enumerate(hosts)]

    def write(self, controller, prompt, pages=PAGES):
        indices, tokens = drive.slots(3, pages, self.page), drive.tokens_of(prompt, pages, self.page)
        for host, seed in self.of_each_page(prompt):
            drive.fill(host, indices, seed)
        for _, host, seed in self.of_last_pages(prompt):
            drive.fill(host, self.last_slots(host, 5), seed)
        return drive.backup(controller, indices, tokens, self.transfers(drive.hashes_of(tokens, self.page), 5))

    def read(self, controller, prompt, pages=PAGES):
        """The tokens that were found and usable, and the number of wrong pieces among those
        read."""
        tokens, into = drive.tokens_of(prompt, pages, self.page), drive.slots(30, pages, self.page)
        for host, _ in self.of_each_page(prompt):
            drive.fill(host, into, "nothing")
        for _, host, _ in self.of_last_pages(prompt):
            drive.fill(host, self.last_slots(host, 9), "nothing")
        found, read, pools = drive.prefetch(controller, tokens, into, self.transfers(drive.hashes_of(tokens, self.page), 9))
        here, bad = read // self.page, 0
        for host, seed in self.of_each_page(prompt) if here else ():
            bad += drive.wrong(host, into, seed, here * drive.pieces_of_a_page(host))
        for name, host, seed in self.of_last_pages(prompt) if here else ():
            came = pools.get(name, 0)
            bad += drive.wrong(host, self.last_slots(host, 9), seed, came * drive.pieces_of_a_page(host))
            # As in SGLang: without all of its last pages the rest is unusable.
            read = read if came == self.window else 0
        return found, read, bad

    @property
    def whole(self):
        return PAGES * self.page


def mha(layout, **how):
    return Scenario(lambda: (*parts.mha(layout), [], []), **how)


def mla(layout):
    return Scenario(lambda: (*parts.mla(layout), [], []))


def with_indexer():
    device, anchor = parts.mla("page_first", dsa=True)
    return device, anchor, [(PoolName.INDEXER, parts.indexer(device, anchor))], []


def with_mamba():
    return *parts.mha("page_first"), [], [(PoolName.MAMBA, parts.mamba())]


def with_draft():
    _, draft = parts.mha("page_first", heads=1)
    return *parts.mha("page_first"), [(PoolName.DRAFT, draft)], []


def with_everything():
    device, anchor = parts.mla("page_first", dsa=True)
    _, draft = parts.mha("page_first_direct", heads=1)
    each = [(PoolName.INDEXER, parts.indexer(device, anchor)), (PoolName.DRAFT, draft)]
    return device, anchor, each, [(PoolName.MAMBA, parts.mamba())]


class Stack(Scenario):
    """Pools and controller as SGLang's own assembler creates them from a model's device pools."""

    def __init__(self, build, layout, page=parts.PAGE, window=1, **changed):
        super().__init__(None, **changed)
        self.build, self.layout, self.page, self.window = build, layout, page, window

    def controller(self, extra):
        extra = {**extra, **self.changed}
        parts.configure(extra, self.layout, self.page)
        parts.place()
        group, controller, specs = self.build(extra, self.page)
        self.take(group, specs)
        return controller

    def take(self, group, specs):
        """Which of the group's pools each page has, and which only its last pages have: a pool
        without a spec has its own slots."""
        of = {spec.pool_name: spec.indices_from_pool for spec in specs}
        hosts = {entry.name: entry.host_pool for entry in group.entries}
        anchor = hosts.pop(PoolName.KV)
        self.anchor = None if anchor.kv_buffer is None else anchor
        self.sidecars = [(name, host) for name, host in hosts.items() if of.get(name) == PoolName.KV]
        self.trailing = [(name, host) for name, host in hosts.items() if name not in of]
        self.derived = [(name, host, of[name]) for name, host in hosts.items() if of.get(name) not in (None, PoolName.KV)]


SCENARIOS = {
    "mha page_first": mha("page_first"),
    "mha page_first_direct": mha("page_first_direct"),
    "mha page_head": mha("page_head"),
    "mha layer_first": mha("layer_first"),
    "mha in head groups": Scenario(lambda: (*parts.mha("page_head", heads=4), [], []), tp_lcm_size=2),
    "mla page_first": mla("page_first"),
    "mla page_first_direct": mla("page_first_direct"),
    "mla layer_first": mla("layer_first"),
    "mha, the copying interface": mha("page_first", interface_v1=0),
    "mla and indexer": Scenario(with_indexer),
    "mha and mamba": Scenario(with_mamba),
    "mha and draft": Scenario(with_draft),
    "mla, indexer, draft and mamba": Scenario(with_everything),
    "sliding window page_first": Stack(stacks.sliding_window, "page_first", window=4),
    "sliding window page_first_direct": Stack(stacks.sliding_window, "page_first_direct", window=4),
    "sliding window layer_first": Stack(stacks.sliding_window, "layer_first", window=4),
    "sliding window and draft": Stack(stacks.sliding_window_with_draft, "page_first", window=4),
    "deepseek v4 page_first": Stack(stacks.deepseek_v4, "page_first", page=256, window=2),
    "deepseek v4 page_first_direct": Stack(stacks.deepseek_v4, "page_first_direct", page=256, window=2),
    "deepseek v4 layer_first": Stack(stacks.deepseek_v4, "layer_first", page=256, window=2),
    "deepseek v4 of low ratios": Stack(stacks.deepseek_v4_of_low_ratios, "page_first", page=256, window=2),
    "deepseek v4 and draft": Stack(stacks.deepseek_v4_with_draft, "page_first", page=256, window=2),
    "sliding window and its draft's": Stack(stacks.sliding_window_with_draft_window, "page_first", window=4),
    "recurrent page_first": Stack(stacks.recurrent, "page_first"),
    "recurrent page_first_direct": Stack(stacks.recurrent, "page_first_direct"),
    "recurrent and sparse": Stack(stacks.recurrent_and_sparse, "page_first"),
    "recurrent and compressed index": Stack(stacks.recurrent_and_compressed_index, "page_first"),
    "recurrent and sliding window": Stack(stacks.recurrent_and_sliding_window, "page_first_direct"),
    "sparse and sparse draft": Stack(stacks.sparse_with_sparse_draft, "page_first"),
    "sparse and packed draft": Stack(stacks.sparse_with_packed_draft, "page_first_direct"),
    "minimax": Stack(stacks.minimax, "page_first"),
}


def folder(home, name):
    return os.path.join(home, name.replace(" ", "_").replace(",", "").replace("'", ""))


def write_all(home, end, attach="", allocator=""):
    """Back all scenarios up, in a separate process, and end it as `end` defines."""
    for n, (name, scenario) in enumerate(SCENARIOS.items()):
        extra = {**NAMED, "attach": attach} if attach else embedded(folder(home, name))
        controller = scenario.controller({**extra, "allocator": allocator} if allocator else extra)
        stored = scenario.write(controller, n)
        assert stored == scenario.whole, (name, stored)
        if end == "killed":
            controller.storage_backend._store.flush()
        else:
            controller.detach_storage_backend()
    if end == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


def in_a_process(*arguments, ends=0, **environment):
    """Run `write_all`, or another function of `__main__` below, in a separate process."""
    command = [sys.executable, "-W", "ignore", os.path.abspath(__file__), *arguments]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if done.returncode != ends:
        raise AssertionError(f"{arguments} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}")


def fail(home):
    """Back up and read while calls fail at random."""
    read = 0
    for name in ("mha page_first", "mla, indexer, draft and mamba"):
        scenario = SCENARIOS[name]
        controller = scenario.controller(embedded(folder(home, name)))
        assert type(controller.storage_backend).__name__ == "HiCacheStorageFailureInjector"
        for prompt in range(12):
            scenario.write(controller, prompt)
        for prompt in range(12):
            found, tokens, bad = scenario.read(controller, prompt)
            assert bad == 0, (name, prompt)
            read += tokens
        controller.detach_storage_backend()
    assert read > 0, "nothing at all was read"


def flip(directory, seed, start=1 << 20):
    """Flip a bit in every 64 KiB of the payloads, from byte `start` of each file on."""
    for path in glob.glob(os.path.join(directory, "**", "*"), recursive=True):
        if not os.path.isfile(path) or os.path.getsize(path) < 16 << 20:
            continue
        with open(path, "r+b") as file:
            for at in range(start + seed, os.path.getsize(path), 64 << 10):
                file.seek(at)
                byte = file.read(1)
                if byte and byte != b"\0":
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 4]))


class StoreProcess:
    """`pagelith serve` at a Unix socket."""

    def __init__(self, home, **environment):
        self.address = "unix:" + os.path.join(home, "socket")
        self.directory = os.path.join(home, "store")
        flags = ["--dir", self.directory, "--dram", "64MiB", "--ssd", "512MiB"]
        self.command = [os.environ["STORE_PROGRAM"], "serve", "--listen", self.address, *flags]
        self.environment = {**os.environ, **environment}
        self.start()

    def start(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True, env=self.environment)
        line = self.process.stdout.readline()
        if not line.startswith("listening "):
            raise AssertionError(f"no store process: {line}")

    def stop(self):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.home = tempfile.mkdtemp(dir=HOME)
        cls.addClassCleanup(shutil.rmtree, cls.home, ignore_errors=True)

    def setUp(self):
        self.running = []

    def tearDown(self):
        self.end()

    def end(self):
        """Detach the started controllers."""
        while self.running:
            self.running.pop().detach_storage_backend()

    def serve(self, **environment):
        """A store process of this test."""
        if "STORE_PROGRAM" not in os.environ:
            print("skipped: no STORE_PROGRAM, so no store process", file=sys.stderr)
            self.skipTest("no STORE_PROGRAM")
        store = StoreProcess(tempfile.mkdtemp(dir=self.home), **environment)
        self.addCleanup(store.stop)
        return store

    def start(self, scenario, extra):
        controller = scenario.controller(extra)
        self.running.append(controller)
        return controller


if __name__ == "__main__":
    {"write": write_all, "fail": fail}[sys.argv[1]](*sys.argv[2:])

"""The adapter for SGLang, over stand-ins for the few things of SGLang and torch that it uses, so that it is shown wherever the wheel
is built. Against SGLang itself: `python/clients/`.
"""

import ctypes
import hashlib
import os
import sys
import tempfile
import types
import unittest


def stand_in(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


class Indices(list):
    """Slots of a host pool, where SGLang has a tensor."""

    def tolist(self):
        return list(self)

    def __getitem__(self, at):
        return Indices(super().__getitem__(at)) if isinstance(at, slice) else super().__getitem__(at)


class HiCacheStorage:
    def register_mem_pool_host(self, mem_pool_host):
        self.mem_pool_host = mem_pool_host

    def register_mem_host_pool_v2(self, host_pool, host_pool_name):
        pass


class PoolHitPolicy:
    ALL_PAGES = "all_pages"
    TRAILING_PAGES = "trailing_pages"
    BLOCK_GROUPS = "block_groups"


class PoolTransferResult:
    def __init__(self, kv_hit_pages, extra_pool_hit_pages, restorable_prefix_pages=None):
        self.kv_hit_pages = kv_hit_pages
        self.extra_pool_hit_pages = extra_pool_hit_pages
        self.restorable_prefix_pages = restorable_prefix_pages


stand_in("torch", arange=lambda *bounds, dtype=None: Indices(range(*bounds)), int64=None)
for package in ("sglang", "sglang.srt", "sglang.srt.mem_cache"):
    stand_in(package)
stand_in(
    "sglang.srt.mem_cache.hicache_storage",
    HiCacheStorage=HiCacheStorage,
    PoolHitPolicy=PoolHitPolicy,
    PoolTransferResult=PoolTransferResult,
)

from pagelith.sglang import HiCache  # noqa: E402

PAGE = 4


class Pool:
    """A host pool of one object a page."""

    dtype, layout, layer_num, start_layer = "bf16", "page_first", 2, 0

    def __init__(self, length=3000, pages=32, page_size=PAGE, parts=1):
        self.page_size, self.length, self.parts, self.size = page_size, length, parts, pages * page_size
        self.kv_buffer = ctypes.create_string_buffer(length * parts * pages)

    def get_page_buffer_meta(self, indices):
        starts = indices.tolist()[:: self.page_size]
        base = ctypes.addressof(self.kv_buffer)
        at = [base + ((slot // self.page_size) * self.parts + part) * self.length for slot in starts for part in range(self.parts)]
        return at, [self.length] * len(at)

    def write(self, page, what):
        block = hashlib.sha256(what.encode()).digest() * (self.length * self.parts // 32 + 1)
        ctypes.memmove(ctypes.addressof(self.kv_buffer) + page * self.length * self.parts, block, self.length * self.parts)

    def read(self, page):
        return ctypes.string_at(ctypes.addressof(self.kv_buffer) + page * self.length * self.parts, self.length * self.parts)


class MHATokenToKVPoolHost(Pool):
    """K and V of heads, which the adapter knows by its class's name."""

    def __init__(self, **how):
        super().__init__(parts=2, **how)


class Anchor(Pool):
    """Indices without bytes: DeepSeek-V4's."""

    def __init__(self):
        super().__init__()
        self.kv_buffer = None


class Transfer:
    def __init__(self, name, keys, first, policy=PoolHitPolicy.ALL_PAGES, page_size=PAGE):
        self.name, self.keys, self.hit_policy = name, keys, policy
        self.host_indices = slots(first, len(keys), page_size)
        self.block_pages = self.group_pages = 0


def slots(first, count, page_size=PAGE):
    return Indices(range(first * page_size, (first + count) * page_size))


def keys(count, of="prompt"):
    return [hashlib.sha256(f"{of}{n}".encode()).hexdigest() for n in range(count)]


class Case(unittest.TestCase):
    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)

    def config(self, extra=None, **changed):
        ssd = {"dirs": [os.path.join(self.home.name, "ssd")], "bytes": "64MiB", "segment_bytes": "4MiB"}
        store = {"dram": {"bytes": "8MiB"}, "index": {"max_objects": 10000}, "ssd": ssd}
        one = dict(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, dp_rank=0, dcp_size=1, is_mla_model=False,
            enable_storage_metrics=False, model_name="a/model", tp_lcm_size=None, should_split_heads=False,
            extra_config={"backend_name": "pagelith", "interface_v1": 1, "store": store, **(extra or {})},
        )
        return types.SimpleNamespace(**{**one, **changed})

    def open(self, anchor, sidecars=(), **how):
        backend = HiCache(self.config(**how), {})
        backend.register_mem_pool_host(anchor)
        for name, pool in sidecars:
            backend.register_mem_host_pool_v2(pool, name)
        return backend


class Pages(Case):
    def test_are_there_for_the_next_process_and_nobody_elses(self):
        pool, pages = MHATokenToKVPoolHost(), keys(6)
        for page in range(6):
            pool.write(page, f"page {page}")
        first = self.open(pool)
        self.assertEqual(first.batch_set_v1(pages, slots(0, 6)), [True] * 6)
        self.assertEqual(first.batch_set_v1(pages, slots(0, 6)), [True] * 6)
        self.assertEqual((first.batch_exists([*pages, *keys(1, "other")]), first.batch_exists(keys(1, "other"))), (6, 0))
        first.close()
        other = MHATokenToKVPoolHost()
        second = self.open(other)
        self.assertEqual(second.batch_get_v1([*pages, *keys(1, "other")], slots(10, 7)), [True] * 6 + [False])
        self.assertEqual([other.read(10 + page) for page in range(6)], [pool.read(page) for page in range(6)])
        second.close()
        # The same directory for pages of another type, length or model.
        changed = MHATokenToKVPoolHost()
        changed.dtype = "fp16"
        for anchor, how in [(changed, {}), (MHATokenToKVPoolHost(length=1500), {}), (other, {"model_name": "another"})]:
            third = self.open(anchor, **how)
            self.assertEqual((third.batch_exists(pages), third.batch_get_v1(pages[:1], slots(0, 1))), (0, [False]))
            third.close()

    def test_come_with_their_sidecars_or_not_at_all(self):
        anchor, indexer = Pool(), Pool(length=500)
        backend, pages = self.open(anchor, [("indexer", indexer)], is_mla_model=True), keys(5)
        self.addCleanup(backend.close)
        sidecar = Transfer("indexer", pages, 0)
        self.assertEqual(backend.batch_set_v2([sidecar]), {"indexer": [True] * 5})
        self.assertEqual((backend.batch_exists_v2(pages, [sidecar]).kv_hit_pages, backend.batch_exists(pages)), (0, 0))
        self.assertEqual(backend.batch_set_v1(pages[:3], slots(0, 3)), [True] * 3)
        found = backend.batch_exists_v2(pages, [sidecar])
        self.assertEqual((found.kv_hit_pages, found.extra_pool_hit_pages), (3, {"kv": 3, "indexer": 3}))
        self.assertEqual(backend._store.stats()["groups_waiting"], 2)
        # One that failed takes its page with it, once.
        failing = Transfer("indexer", keys(2, "failing"), 0)
        failing.host_indices = slots(0, 1)
        with self.assertLogs("pagelith.sglang.hicache", "ERROR"):
            self.assertEqual(backend.batch_set_v2([failing]), {"indexer": [False] * 2})
        self.assertEqual(backend.batch_set_v1(failing.keys, slots(0, 2)), [False] * 2)
        self.assertEqual(backend.batch_set_v1(failing.keys, slots(0, 2)), [True] * 2)

    def test_that_are_there_are_joined_by_a_sidecar_and_go_with_it(self):
        anchor, indexer = Pool(), Pool(length=500)
        backend, pages = self.open(anchor, [("indexer", indexer)], is_mla_model=True), keys(3)
        self.addCleanup(backend.close)
        sidecar = Transfer("indexer", pages, 0)
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 3)), [True] * 3)
        self.assertEqual(backend.batch_exists_v2(pages, [sidecar]).kv_hit_pages, 0)
        self.assertEqual(backend.batch_set_v2([sidecar]), {"indexer": [True] * 3})
        self.assertEqual(backend.batch_exists_v2(pages, [sidecar]).kv_hit_pages, 3)
        kv, joined = (backend._names.keys[name][0].on_page(bytes.fromhex(pages[0])) for name in ("kv", "indexer"))
        backend._store.remove([kv])
        self.assertEqual(backend._store.exists([joined]), [False])

    def test_whose_sidecars_are_of_another_type_are_others(self):
        pages = keys(2)
        for dtype, here in [("fp8", 0), ("fp8", 2), ("int8", 0)]:
            indexer = Pool(length=500)
            indexer.dtype = dtype
            backend = self.open(Pool(), [("indexer", indexer)], is_mla_model=True)
            sidecar = Transfer("indexer", pages, 0)
            self.assertEqual(backend.batch_exists_v2(pages, [sidecar]).kv_hit_pages, here)
            backend.batch_set_v2([sidecar])
            backend.batch_set_v1(pages, slots(0, 2))
            backend.close()

    def test_whose_kv_is_only_indices_are_their_sidecars(self):
        anchor, rows, state = Anchor(), Pool(length=700), Pool(length=900)
        sidecars = [("deepseek_v4_c4", rows), ("deepseek_v4_c4_state", state)]
        backend, pages = self.open(anchor, sidecars, is_mla_model=True), keys(4)
        self.addCleanup(backend.close)
        each = Transfer("deepseek_v4_c4", pages, 0)
        last = Transfer("deepseek_v4_c4_state", pages[2:3], 0, PoolHitPolicy.TRAILING_PAGES)
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 4)), [True] * 4)
        self.assertEqual(backend.batch_exists_v2(pages, [each, last]).kv_hit_pages, 0)
        stored = backend.batch_set_v2([last, each])
        self.assertEqual(stored, {"deepseek_v4_c4": [True] * 4, "deepseek_v4_c4_state": [True]})
        found = backend.batch_exists_v2(pages, [each, last])
        self.assertEqual((found.kv_hit_pages, found.restorable_prefix_pages), (3, [3]))
        got = backend.batch_get_v2([each, last])
        self.assertEqual(got, {"deepseek_v4_c4": [True] * 4, "deepseek_v4_c4_state": [True]})

    def test_no_exception_reaches_a_controller(self):
        backend, pages = self.open(Pool()), keys(2)
        backend.close()
        strange = Transfer("never registered", pages, 0)
        with self.assertLogs("pagelith.sglang.hicache", "ERROR"):
            self.assertEqual(backend.batch_set_v1(pages, slots(0, 2)), [False] * 2)
            self.assertEqual(backend.batch_get_v1(pages, slots(0, 2)), [False] * 2)
            self.assertEqual(backend.batch_set_v2([strange]), {"never registered": [False] * 2})
            self.assertEqual(backend.batch_get_v2([strange]), {"never registered": [False] * 2})
            self.assertEqual((backend.batch_exists(pages), backend.batch_exists_v2(pages, []).kv_hit_pages), (0, 0))


class SetUp(Case):
    def assert_refused(self, word, **how):
        with self.assertRaisesRegex(ValueError, word):
            self.open(Pool(), **how)

    def test_what_is_wrong_is_said_at_the_start(self):
        self.assert_refused("'sizes' is no key", extra={"sizes": 3})
        self.assert_refused("one of the two", extra={"attach": "unix:/nowhere"})
        self.assert_refused("'store' is a dictionary", extra={"store": 7})
        self.assert_refused("at least 1", extra={"get_timeout_ms": 0})
        self.assert_refused("--served-model-name", model_name=None)
        self.assert_refused("pagelith serve", is_mla_model=True, tp_size=2)

    def test_all_of_a_pool_is_registered_once(self):
        for host in (Pool(pages=7), Pool(pages=1), MHATokenToKVPoolHost(pages=9)):
            told = []
            backend = HiCache(self.config(), {})
            backend._store, store = types.SimpleNamespace(register=told.append, close=lambda: None), backend._store
            backend.register_mem_pool_host(host)
            self.assertEqual(told, [(ctypes.addressof(host.kv_buffer), ctypes.sizeof(host.kv_buffer))])
            store.close()

    def test_a_pool_that_does_not_name_its_last_page_is_used_all_the_same(self):
        class Shy(Pool):
            def get_page_buffer_meta(self, indices):
                if indices and indices[0] > 0:
                    raise ValueError("only the first")
                return super().get_page_buffer_meta(indices)

        with self.assertLogs("pagelith.sglang.pools", "WARNING"):
            backend = self.open(Shy())
        self.assertEqual(backend._registered, [])
        backend.close()

    def test_a_pool_without_places_is_refused_by_name(self):
        class Unsaid(Pool):
            def get_page_buffer_meta(self, indices):
                raise ValueError("layout")

        with self.assertRaisesRegex(ValueError, "'swa'.*--hicache-mem-layout"):
            self.open(Pool(), [("swa", Unsaid())])

    def test_each_rank_has_a_directory_of_its_own(self):
        for rank in range(2):
            backend = self.open(MHATokenToKVPoolHost(), tp_rank=rank, tp_size=2)
            self.addCleanup(backend.close)
            self.assertEqual(backend.batch_exists(keys(1)), 0)
            backend.batch_set_v1(keys(1), slots(0, 1))
        self.assertEqual(sorted(os.listdir(os.path.join(self.home.name, "ssd"))), ["rank_0_0_0_0", "rank_0_1_0_0"])

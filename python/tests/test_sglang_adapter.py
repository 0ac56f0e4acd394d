"""The adapter for SGLang, with stand-ins for the parts of SGLang and torch that it uses, so that it
is tested wherever the wheel is built. Tests under SGLang itself are in `python/clients/`.
"""

import concurrent.futures
import ctypes
import enum
import hashlib
import json
import logging
import os
import queue
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock


def stand_in(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module
    return module


class Indices(list):
    """Slots of a host pool, in place of SGLang's tensor."""

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

class Published(queue.Queue):
    """SGLang's publisher of events, with its arguments and the published events."""

    made = []

    def __init__(self, config, rank):
        if json.loads(config)["publisher"] != "zmq":
            raise ValueError("Unknown event publisher")
        super().__init__()
        self.config, self.rank, self.ended = json.loads(config), rank, False
        Published.made.append(self)

    def publish(self, batch):
        self.put(batch)

    def shutdown(self):
        self.ended = True


class Medium(str, enum.Enum):
    DISK = "DISK"
    EXTERNAL = "EXTERNAL"


parallel = types.SimpleNamespace(attn_dp_size=1, attn_dp_rank=0, dp_rank=None, tp_rank=0)
stand_in("sglang.srt.disaggregation")
stand_in(
    "sglang.srt.disaggregation.kv_events",
    BlockRemoved=lambda **fields: ("removed", fields),
    BlockStored=lambda **fields: ("stored", fields),
    EventPublisherFactory=types.SimpleNamespace(create=Published),
    KVEventBatch=lambda ts, events: events,
    StorageMedium=Medium,
    is_kv_publisher_rank=lambda config: parallel.tp_rank == 0,
    select_kv_publisher_dp_rank=lambda size, rank, dp_rank: rank if size > 1 else dp_rank or 0,
)
stand_in("sglang.srt.observability")
stand_in(
    "sglang.srt.observability.metrics_collector",
    StorageMetrics=lambda: types.SimpleNamespace(prefetch_pgs=[], backup_pgs=[], prefetch_bandwidth=[], backup_bandwidth=[]),
)
stand_in("sglang.srt.mem_cache.utils", hash_str_to_int64=lambda text: int.from_bytes(bytes.fromhex(text[:16]), "big", signed=True))
stand_in("sglang").__version__ = "0.5.23"


class Served:
    """SGLang's runtime context of one server: its model, and the changes since the start."""

    def __init__(self, **different):
        get = different.get
        rope = get("rope", {"rope_type": "default"})
        hf = {"architectures": ["Llama"], "rope_parameters": rope, **get("hf", {})}
        hf_config = types.SimpleNamespace(to_dict=lambda: hf, rope_parameters=rope, _commit_hash=get("commit", "c" * 40))
        self.config = types.SimpleNamespace(
            hf_config=hf_config, dtype=get("dtype", "bf16"), context_len=get("context_len", 4096), quantization=get("quantization")
        )
        self.serving = types.SimpleNamespace(weight_version=get("weight_version", "default"))
        self.model = types.SimpleNamespace(
            model_path=get("model_path", "a/model"), load_format="auto", revision=get("revision"), download_dir=None,
            kv_cache_dtype=get("kv_cache_dtype", "auto"), quantization_param_path=get("scales"), quantization=get("quantization"),
        )
        self.exec = types.SimpleNamespace(
            kernel=types.SimpleNamespace(attention_backend=get("backend", "fa3")), mamba=types.SimpleNamespace(mamba_ssm_dtype=get("ssm", "float32")),
            deterministic=types.SimpleNamespace(), dllm=types.SimpleNamespace(), features=types.SimpleNamespace(),
            moe=types.SimpleNamespace(
                kt_weight_path=get("experts"), kt_method=get("experts_by", "AMXINT4"), kt_num_gpu_experts=get("experts_on_gpu"),
                kt_max_deferred_experts_per_token=None,
            ),
        )
        self.memory = types.SimpleNamespace(hicache_mem_layout="page_first", enable_page_major_kv_layout=False)
        self.spec = types.SimpleNamespace(
            speculative_algorithm=get("draft_by"), speculative_draft_model_path=get("draft"), speculative_draft_model_revision=None,
            speculative_draft_load_format=None, speculative_draft_model_quantization=get("draft_quantization"), uno_lora_path=get("uno"),
        )
        self.lora = types.SimpleNamespace(enable_lora=bool(get("adapters")), lora_paths=get("adapters"))
        self.changes = []

    def change(self, source="scheduler.weight_version", **weights):
        """The changes that SGLang records after an update of weights."""
        self.changes.append((source, weights))
        for name, value in weights.items():
            setattr(self.serving if name == "weight_version" else self.model, name, value)


served = Served()


def place(case, **ranks):
    """Set this rank, until the test ends."""
    patch = mock.patch.multiple(parallel, **ranks)
    patch.start()
    case.addCleanup(patch.stop)


def serve(**different):
    """Set the server that this process is from here on."""
    served.__dict__.update(Served(**different).__dict__)


stand_in(
    "sglang.srt.runtime_context",
    get_parallel=lambda: parallel, process_model_config=lambda: served.config, get_serving=lambda: served.serving, get_model=lambda: served.model,
    get_exec=lambda: served.exec, get_memory=lambda: served.memory, get_spec=lambda: served.spec, get_lora=lambda: served.lora,
    get_device=lambda: types.SimpleNamespace(device="cuda"), attention_backends=lambda: (served.exec.kernel.attention_backend,) * 2,
    get_context=lambda: types.SimpleNamespace(
        overrides_log=lambda: served.changes, config_leaf=lambda name: PAGE, is_config_namespace_published=lambda name: True
    ),
    publish_role=lambda: "scheduler",
)

import pagelith  # noqa: E402
from pagelith.identity.host import model_of_this_process  # noqa: E402
from pagelith.sglang import HiCache  # noqa: E402
from pagelith.sglang.pools import Placement  # noqa: E402
from pagelith.sglang.pools import Pool as Host  # noqa: E402
from pagelith.sglang.prompts import Prompts  # noqa: E402

PAGE = 4


class Pool:
    """A host pool with one object per page."""

    dtype, layout, layer_num, start_layer = "bf16", "page_first", 2, 0

    def __init__(self, length=3000, pages=32, page_size=PAGE, parts=1):
        self.page_size, self.length, self.parts, self.size = page_size, length, parts, pages * page_size
        self.kv_buffer = ctypes.create_string_buffer(length * parts * pages)

    def get_page_buffer_meta(self, indices):
        starts = indices.tolist()[:: self.page_size]
        base = ctypes.addressof(self.kv_buffer)
        at = [base + ((slot // self.page_size) * self.parts + part) * self.length for slot in starts for part in range(self.parts)]
        return at, [self.length] * len(at)

    def clear(self):
        """Called when SGLang flushes its cache, after it has stopped its storage threads."""

    def write(self, page, what):
        block = hashlib.sha256(what.encode()).digest() * (self.length * self.parts // 32 + 1)
        ctypes.memmove(ctypes.addressof(self.kv_buffer) + page * self.length * self.parts, block, self.length * self.parts)

    def read(self, page):
        return ctypes.string_at(ctypes.addressof(self.kv_buffer) + page * self.length * self.parts, self.length * self.parts)


class MHATokenToKVPoolHost(Pool):
    """K and V per head, which the adapter detects by the class's name."""

    def __init__(self, **how):
        super().__init__(parts=2, **how)


class Anchor(Pool):
    """Indices without bytes, as DeepSeek-V4 has."""

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
        given = {"backend_name": "pagelith", "interface_v1": 1, "store": store, **(extra or {})}
        one = dict(
            tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1, dp_rank=0, dcp_size=1, is_mla_model=False,
            enable_storage_metrics=False, model_name="a/model", tp_lcm_size=None, should_split_heads=False,
            extra_config={name: value for name, value in given.items() if value is not None},
        )
        return types.SimpleNamespace(**{**one, **changed})

    def open(self, anchor, sidecars=(), **how):
        backend = HiCache(self.config(**how), {})
        backend.register_mem_pool_host(anchor)
        for name, pool in sidecars:
            backend.register_mem_host_pool_v2(pool, name)
        return backend


class Pages(Case):
    def test_pages_are_found_by_next_process_only_with_equal_settings(self):
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

    def test_pages_are_read_with_their_sidecars_or_not_at_all(self):
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
        # A failed sidecar makes its page fail, until it was put.
        failing = Transfer("indexer", keys(2, "failing"), 0)
        failing.host_indices = slots(0, 1)
        with self.assertLogs("pagelith.sglang.hicache", "ERROR"):
            self.assertEqual(backend.batch_set_v2([failing]), {"indexer": [False] * 2})
        for _ in range(2):
            with self.assertLogs("pagelith.sglang.hicache", "WARNING") as logs:
                self.assertEqual(backend.batch_set_v1(failing.keys, slots(0, 2)), [False] * 2)
            self.assertIn("indexer", logs.output[0])
        self.assertEqual(backend.batch_exists(failing.keys), 0)
        failing.host_indices = slots(0, 2)
        self.assertEqual(backend.batch_set_v2([failing]), {"indexer": [True] * 2})
        self.assertEqual(backend.batch_set_v1(failing.keys, slots(0, 2)), [True] * 2)
        self.assertEqual(backend.batch_exists_v2(failing.keys, [failing]).kv_hit_pages, 2)

    def test_page_is_not_stored_if_full_store_refused_sidecar(self):
        small = {"store": {"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10000}}, "put_wait_ms": 1}
        backend, pages = self.open(Pool(), [("indexer", Pool(length=500))], extra=small, is_mla_model=True), keys(2)
        self.addCleanup(backend.close)
        other, pins = pagelith.Key(pagelith.Namespace("other"), bytes(32)), []
        for length in (30000, 3000, 500):
            while backend._store.put([other.on_page(f"{len(pins)}")], [bytes([1]) * length], wait=0)[0]:
                pins.append(backend._store.pin([other.on_page(f"{len(pins)}")]))
        sidecar = Transfer("indexer", pages, 0)
        with self.assertLogs("pagelith.sglang.hicache", "WARNING"):
            self.assertEqual(backend.batch_set_v2([sidecar]), {"indexer": [False] * 2})
        for pin in pins:
            pin.release()
        with self.assertLogs("pagelith.sglang.hicache", "WARNING"):
            self.assertEqual(backend.batch_set_v1(pages, slots(0, 2)), [False] * 2)
            self.assertEqual(backend.batch_set_v1(pages, slots(0, 2)), [False] * 2)
        self.assertEqual((backend.batch_exists(pages), backend.batch_get_v1(pages, slots(4, 2))), (0, [False] * 2))

    def test_prompt_larger_than_its_room_keeps_first_pages_if_put_in_several_calls(self):
        """As SGLang backs up a long prompt: with `hicache_storage_pass_prefix_keys`, or sidecars of
        the whole prompt first."""
        memory = {"store": {"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10000}}}
        length, pages = 16000, keys(60)
        for by_prefix in (True, False):
            sidecars = [] if by_prefix else [("indexer", Pool(length=500, pages=64))]
            backend = self.open(Pool(length=length, pages=64), sidecars, extra=memory, is_mla_model=True)
            self.addCleanup(backend.close)
            # Pages that are requested often fill the store.
            other = pagelith.Key(pagelith.Namespace("other"), bytes(32))
            often = [other.on_page(f"{n}") for n in range(60)]
            backend._store.put(often, [bytes(length)] * 60)
            for _ in range(3):
                backend._store.get(often, [bytearray(length) for _ in often])
            if sidecars:
                backend.batch_set_v2([Transfer("indexer", pages, 0)])
            for at in range(0, 60, 10):
                prefix = types.SimpleNamespace(prefix_keys=pages[:at] if by_prefix else None)
                backend.batch_set_v1(pages[at : at + 10], slots(at, 10), prefix)
            self.assertIn(backend.batch_exists(pages), range(1, 60), by_prefix)

    def test_calls_of_one_prompt_are_one_request_until_its_pages_are_wanted_again(self):
        backend, pages = self.open(Pool()), keys(8)
        self.addCleanup(backend.close)
        after = [types.SimpleNamespace(prefix_keys=pages[:at] or None) for at in range(8)]
        for by_prefix in (True, False):
            place = Prompts(backend._store).place
            calls = [("indexer", 0, 4), ("mamba", 3, 4), ("kv", 0, 2), ("kv", 2, 4)]
            placed = [place(pool, pages[a:b], after[a] if by_prefix else None) for pool, a, b in calls]
            self.assertEqual([depth for _, depth in placed], [0, 3, 0, 2])
            self.assertEqual(len({id(request) for request, _ in placed}), 1)
            again = [place("kv", pages[a:b], after[a] if by_prefix else None) for a, b in ((0, 2), (2, 4), (1, 3))]
            self.assertEqual(len({id(request) for request, _ in [placed[0], *again]}), 3 if by_prefix else 4)
            if by_prefix:
                # A call that begins where the last one ended continues it; one further on does not.
                last = place("kv", pages[3:5], after[3])
                self.assertEqual((last[0] is again[2][0], last[1]), (True, 3))
                other = place("kv", pages[7:8], after[7])
                self.assertEqual((other[0] is last[0], other[1]), (False, 7))

    def test_kv_refused_by_full_store_needs_its_sidecar_again(self):
        backend, pages = self.open(Pool(), [("indexer", Pool(length=500))], is_mla_model=True), keys(2)
        self.addCleanup(backend.close)
        sidecar = Transfer("indexer", pages, 0)
        backend.batch_set_v2([sidecar])
        with self.assertLogs("pagelith.sglang.hicache", "ERROR"):
            self.assertEqual(backend.batch_set_v1(pages, slots(0, 1)), [False] * 2)
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 2)), [True] * 2)
        self.assertEqual(backend.batch_exists_v2(pages, [sidecar]).kv_hit_pages, 2)

    def test_pages_put_in_two_sidecar_calls_have_both(self):
        sidecars = [("indexer", Pool(length=500)), ("draft", Pool(length=700))]
        backend, pages = self.open(Pool(), sidecars, is_mla_model=True), keys(2)
        self.addCleanup(backend.close)
        both = [Transfer("indexer", pages, 0), Transfer("draft", pages, 0)]
        # A query shows which pools every page has.
        backend.batch_exists_v2(pages, both)
        self.assertEqual(backend.batch_set_v2(both[:1]), {"indexer": [True] * 2})
        with self.assertLogs("pagelith.sglang.hicache", "WARNING"):
            self.assertEqual(backend.batch_set_v1(pages, slots(0, 2)), [False] * 2)
        self.assertEqual(backend.batch_set_v2(both[1:]), {"draft": [True] * 2})
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 2)), [True] * 2)
        self.assertEqual(backend.batch_exists_v2(pages, both).kv_hit_pages, 2)
        # Stored objects count as stored, individually.
        self.assertEqual(backend.batch_set_v2(both), {"indexer": [True] * 2, "draft": [True] * 2})

    def test_repeated_key_has_one_result(self):
        pool = Pool()
        backend, pages = self.open(pool, [("indexer", Pool(length=500))], is_mla_model=True), keys(9)
        self.addCleanup(backend.close)
        for page in range(9):
            pool.write(page, f"page {page}")
        for given in ([0, 0], [1, 2, 1], [3, 3, 4]):
            twice = [pages[n] for n in given]
            self.assertEqual(backend.batch_set_v1(twice, slots(given[0], len(twice))), [True] * len(twice))
            self.assertEqual(backend.batch_exists(twice), len(twice))
            self.assertEqual(backend.batch_get_v1(twice, slots(20, len(twice))), [True] * len(twice))
            self.assertEqual(pool.read(20), pool.read(given[0]))
        sidecar = Transfer("indexer", [pages[5], pages[5], pages[6]], 0)
        self.assertEqual(backend.batch_set_v2([sidecar]), {"indexer": [True] * 3})
        self.assertEqual(backend.batch_set_v1([pages[5], pages[6], pages[5]], slots(0, 3)), [True] * 3)
        self.assertEqual(backend.batch_get_v2([sidecar]), {"indexer": [True] * 3})
        window = Transfer("indexer", [pages[7], pages[7]], 0, PoolHitPolicy.TRAILING_PAGES)
        self.assertEqual(backend.batch_set_v2([window]), {"indexer": [True] * 2})

    def test_sidecar_joins_stored_pages_and_is_removed_with_them(self):
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

    def test_pages_with_other_sidecar_types_are_not_found(self):
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

    def test_pages_with_indices_only_consist_of_sidecars(self):
        anchor, rows, state = Anchor(), Pool(length=700), Pool(length=900)
        sidecars = [("deepseek_v4_c4", rows), ("deepseek_v4_c4_state", state)]
        backend, pages = self.open(anchor, sidecars, is_mla_model=True), keys(4)
        self.addCleanup(backend.close)
        each = Transfer("deepseek_v4_c4", pages, 0)
        last = Transfer("deepseek_v4_c4_state", pages[2:3], 0, PoolHitPolicy.TRAILING_PAGES)
        # A page without a stored sidecar is no page.
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 4)), [False] * 4)
        self.assertEqual(backend.batch_exists_v2(pages, [each, last]).kv_hit_pages, 0)
        stored = backend.batch_set_v2([last, each])
        self.assertEqual(stored, {"deepseek_v4_c4": [True] * 4, "deepseek_v4_c4_state": [True]})
        self.assertEqual(backend.batch_set_v1([*pages, *keys(1, "other")], slots(0, 5)), [True] * 4 + [False])
        found = backend.batch_exists_v2(pages, [each, last])
        self.assertEqual((found.kv_hit_pages, found.restorable_prefix_pages), (3, [3]))
        got = backend.batch_get_v2([each, last])
        self.assertEqual(got, {"deepseek_v4_c4": [True] * 4, "deepseek_v4_c4_state": [True]})

    def test_pages_with_indices_only_are_counted_once(self):
        rows = [("deepseek_v4_c4", Pool(length=700)), ("deepseek_v4_c128", Pool(length=90))]
        for anchor, sidecars in ((Pool(), []), (Anchor(), rows)):
            backend, pages = self.open(anchor, sidecars, is_mla_model=True, enable_storage_metrics=True), keys(4)
            self.addCleanup(backend.close)
            each = [Transfer(name, pages, 0) for name, _ in sidecars]
            backend.batch_set_v2(each)
            backend.batch_set_v1(pages, slots(0, 4))
            backend.batch_get_v1(pages, slots(0, 4))
            backend.batch_get_v2(each)
            told = backend.get_stats()
            self.assertEqual((told.backup_pgs, told.prefetch_pgs), ([4], [4]))
            self.assertTrue(told.backup_bandwidth[0] > 0 and told.prefetch_bandwidth[0] > 0)
            self.assertEqual(backend.get_stats().backup_pgs, [])
            backend.close()

    def test_controller_gets_no_exception(self):
        backend, pages = HiCache(self.config(), {}), keys(2)
        with self.assertLogs("pagelith.sglang.hicache", "ERROR"):
            self.assertEqual(backend.batch_set_v1(pages, slots(0, 2)), [False] * 2)
            self.assertEqual(backend.batch_get_v1(pages, slots(0, 2)), [False] * 2)
        backend.close()
        backend = self.open(Pool())
        backend.close()
        strange = Transfer("never registered", pages, 0)
        with self.assertLogs("pagelith.sglang.hicache", "ERROR"):
            self.assertEqual(backend.batch_set_v1(pages, slots(0, 2)), [False] * 2)
            self.assertEqual(backend.batch_get_v1(pages, slots(0, 2)), [False] * 2)
            self.assertEqual(backend.batch_set_v2([strange]), {"never registered": [False] * 2})
            self.assertEqual(backend.batch_get_v2([strange]), {"never registered": [False] * 2})
            self.assertEqual((backend.batch_exists(pages), backend.batch_exists_v2(pages, []).kv_hit_pages), (0, 0))


def in_a_thread(body, *arguments):
    """Run on a new storage thread of SGLang's."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        return thread.submit(body, *arguments).result()


class Models(Case):
    def setUp(self):
        super().setUp()
        self.addCleanup(serve)
        serve()

    def stored(self, count=3, **how):
        backend, pages = self.open(Pool(), is_mla_model=True, **how), keys(count)
        self.addCleanup(backend.close)
        return backend, pages

    def test_pages_of_other_model_are_not_found(self):
        backend, pages = self.stored()
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 3)), [True] * 3)
        backend.close()
        folder = os.path.join(self.home.name, "draft")
        os.mkdir(folder)
        for name in ("config.json", "model.safetensors", "scales.json"):
            with open(os.path.join(folder, name), "w") as file:
                file.write(name)
        adapter = types.SimpleNamespace(lora_name="a", lora_path=folder)
        for other in (
            {"rope": {"rope_type": "linear", "factor": 2.0}}, {"hf": {"rms_norm_eps": 1e-3}}, {"commit": "d" * 40}, {"revision": "other"},
            {"quantization": "fp8"}, {"dtype": "fp16"}, {"context_len": 8192}, {"kv_cache_dtype": "fp8_e4m3"}, {"backend": "triton"},
            {"ssm": "bfloat16"}, {"weight_version": "2"}, {"draft_by": "EAGLE", "draft": folder}, {"draft_by": "NGRAM"},
            {"scales": os.path.join(folder, "scales.json")}, {"adapters": {"a": adapter}}, {"draft_by": "UNO", "uno": folder},
            {"experts": folder}, {"experts": folder, "experts_by": "AMXINT8"}, {"experts": folder, "experts_on_gpu": 4},
        ):
            with self.subTest(other):
                serve(**other)
                backend, _ = self.stored()
                self.assertEqual((backend.batch_exists(pages), backend.batch_get_v1(pages, slots(9, 3))), (0, [False] * 3))
                backend.close()
        serve()
        backend, _ = self.stored()
        self.assertEqual(backend.batch_exists(pages), 3)

    def test_weight_version_change_hides_pages_until_reverted(self):
        backend, pages = self.stored()
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 3)), [True] * 3)
        with self.assertLogs("pagelith.sglang.hicache", "WARNING") as logs:
            served.change(weight_version="2")
            self.assertEqual(backend.batch_exists(pages), 0)
        self.assertIn("POST /flush_cache", logs.output[0])
        self.assertEqual(backend.batch_get_v1(pages, slots(9, 3)), [False] * 3)
        # The new weights have other pages, and each version finds its own.
        backend.mem_pool_host.clear()
        self.assertEqual(backend.batch_set_v1(pages[:2], slots(4, 2)), [True] * 2)
        self.assertEqual(backend.batch_exists(pages), 2)
        served.change(weight_version="default")
        self.assertEqual(backend.batch_exists(pages), 3)

    def test_stale_pages_are_not_stored_before_cache_flush(self):
        backend, pages = self.stored()
        with concurrent.futures.ThreadPoolExecutor(1) as before:
            self.assertEqual(before.submit(backend.batch_set_v1, pages[:1], slots(0, 1)).result(), [True])
            served.change(weight_version="2")
            self.assertEqual(before.submit(backend.batch_set_v1, pages, slots(0, 3)).result(), [False] * 3)
            # Nor by a new thread.
            self.assertEqual(in_a_thread(backend.batch_set_v1, pages, slots(0, 3)), [False] * 3)
            # Also when the first version is back: the threads may bring pages of the second one.
            served.change(weight_version="default")
            self.assertEqual(before.submit(backend.batch_set_v1, pages, slots(0, 3)).result(), [False] * 3)
            self.assertEqual(in_a_thread(backend.batch_set_v1, pages, slots(0, 3)), [False] * 3)
            backend.mem_pool_host.clear()
            self.assertEqual(before.submit(backend.batch_set_v1, pages[:2], slots(0, 2)).result(), [True] * 2)
        self.assertEqual(in_a_thread(backend.batch_set_v1, pages, slots(0, 3)), [True] * 3)

    def test_backend_attached_after_weight_update_waits_for_flush(self):
        pool, pages = Pool(), keys(3)
        self.open(pool, is_mla_model=True).close()
        served.change(weight_version="2")
        for turn in range(2):
            backend = self.open(pool, is_mla_model=True)
            self.assertEqual(in_a_thread(backend.batch_set_v1, pages, slots(0, 3)), [False] * 3)
            backend.close()
        backend = self.open(pool, is_mla_model=True)
        self.addCleanup(backend.close)
        pool.clear()
        self.assertEqual(in_a_thread(backend.batch_set_v1, pages, slots(0, 3)), [True] * 3)
        # Other changes do not change the weights.
        served.change("scheduler.something")
        self.assertEqual(in_a_thread(backend.batch_set_v1, pages, slots(0, 3)), [True] * 3)

    def test_clients_that_cannot_see_flush_store_nothing_after_weight_update(self):
        without = mock.patch.dict(sys.modules, {"vllm.config": None})
        without.start()
        self.addCleanup(without.stop)
        model = model_of_this_process()
        self.assertFalse(in_a_thread(lambda: model().stale))
        served.change(weight_version="2")
        self.assertTrue(in_a_thread(lambda: model().stale))
        self.assertTrue(model_of_this_process()().stale)

    def test_reloaded_hub_weights_are_identified_by_local_cache(self):
        backend, pages = self.stored()
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 3)), [True] * 3)
        with self.assertLogs("pagelith.sglang.hicache", "ERROR") as logs:
            for path in ("a/model", "another/model"):
                served.change("model_runner.update_model_fields", model_path=path, load_format="auto")
                self.assertEqual((backend.batch_exists(pages), backend.batch_get_v1(pages, slots(9, 3))), (0, [False] * 3))
        # Once for queries, and once for reads.
        self.assertEqual([("cannot identify weights" in line, "Traceback" in line) for line in logs.output], [(True, False)] * 2)
        commits = {"a/model": "d" * 40, "another/model": "e" * 40}
        cached = lambda model, file, **where: f"/cache/snapshots/{commits[model]}/{file}"  # noqa: E731
        with mock.patch.dict(sys.modules, {"huggingface_hub": types.SimpleNamespace(try_to_load_from_cache=cached)}):
            for path in commits:
                served.change("model_runner.update_model_fields", model_path=path, load_format="auto")
                self.assertEqual(backend.batch_exists(pages), 0)
                self.assertEqual(backend._served.now().identity.facts["weights"], f"{path}@{commits[path]}")

    def test_reloaded_weights_change_model(self):
        folder = os.path.join(self.home.name, "model")
        os.mkdir(folder)

        def write(weights):
            with open(os.path.join(folder, "model.safetensors"), "w") as file:
                file.write(weights)

        write("first")
        serve(model_path=folder)
        backend, pages = self.stored()
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 3)), [True] * 3)
        write("other")
        served.change("model_runner.update_model_fields", model_path=folder, load_format="auto")
        self.assertEqual(in_a_thread(backend.batch_exists, pages), 0)
        write("first")
        served.change("model_runner.update_model_fields", model_path=folder, load_format="auto")
        self.assertEqual(in_a_thread(backend.batch_exists, pages), 3)

    def test_backend_with_unknown_model_requires_revision(self):
        for other, word in (
            ({"commit": None}, "weights"), ({"draft_by": "EAGLE", "draft": "somebody/draft"}, "weights of the draft model"),
            ({"adapters": {"a": types.SimpleNamespace(lora_name="a", lora_path="somebody/adapter")}}, "weights of LoRA adapters"),
            ({"draft_by": "UNO", "uno": "somebody/adapter"}, "weights of the draft's adapter"),
            ({"experts": os.path.join(self.home.name, "none")}, "weights of experts on the CPU"),
        ):
            with self.subTest(other):
                serve(**other)
                with self.assertRaisesRegex(ValueError, f"--hicache-storage-backend-extra-config: .*{word}.*set 'revision'"):
                    self.open(Pool(), is_mla_model=True)
                self.open(Pool(), is_mla_model=True, extra={"revision": "weights-7"}).close()

    def test_pages_of_other_layout_environment_are_not_found(self):
        backend, pages = self.stored()
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 3)), [True] * 3)
        backend.close()
        for name, value, here in (
            ("SGLANG_USE_HND_KVCACHE", "1", 0), ("SGLANG_AITER_KV_CACHE_LAYOUT", "vectorized_5d", 0), ("SGLANG_DSV4_KV_LAYOUT", "new", 0),
            ("SGLANG_RUN_ID", "1", 3), ("OTHER_LAYOUT", "1", 3),
        ):
            with self.subTest(name), mock.patch.dict(os.environ, {name: value}):
                backend, _ = self.stored()
                self.assertEqual(backend.batch_exists(pages), here)
                backend.close()

    def test_pages_of_other_device_layout_are_not_found(self):
        backend, pages = self.stored()
        self.assertEqual(backend.batch_set_v1(pages, slots(0, 3)), [True] * 3)
        backend.close()
        pool = Pool()
        pool.device_pool = types.SimpleNamespace(kv_cache_layout="hnd")
        backend = self.open(pool, is_mla_model=True)
        self.addCleanup(backend.close)
        self.assertEqual(backend.batch_exists(pages), 0)

    def test_longrope_beyond_original_length_is_refused(self):
        rope = {"rope_type": "longrope", "original_max_position_embeddings": 4096}
        serve(rope=rope, context_len=131072)
        with self.assertRaisesRegex(ValueError, "--context-length 4096"):
            self.open(Pool(), is_mla_model=True, extra={"revision": "1"})
        serve(rope=rope, context_len=4096)
        self.open(Pool(), is_mla_model=True).close()


class Listener:
    """Applies events, as a router does."""

    def __init__(self, backend):
        self.backend, self.there = backend, {"dram": set(), "ssd": set()}

    def listen(self):
        """Read the events."""
        events = self.backend.take_events()
        for event in events:
            if event.removed:
                # Only added pages are removed.
                assert self.there[event.tier].issuperset(event.pages), event
                self.there[event.tier] -= set(event.pages)
            else:
                self.there[event.tier] |= set(event.pages)
        return events

    @property
    def anywhere(self):
        return self.there["dram"] | self.there["ssd"]


class Events(Case):
    def listening(self, anchor=None, sidecars=(), small=False, **how):
        extra = {"enable_kv_events": True, **how.pop("extra", {})}
        if small:
            extra["store"] = {"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10000}}
        backend = self.open(anchor or Pool(), sidecars, extra=extra, is_mla_model=True, **how)
        self.addCleanup(backend.close)
        return backend, Listener(backend)

    def test_page_is_reported_once_per_tier_with_its_last_part(self):
        backend, listener = self.listening(sidecars=[("indexer", Pool(length=500))])
        pages = keys(4)
        backend.batch_set_v2([Transfer("indexer", pages, 0)])
        self.assertEqual(listener.listen(), [])
        backend.batch_set_v1(pages[:3], slots(0, 3))
        backend._store.flush()
        told = listener.listen()
        self.assertEqual({event.tier for event in told}, {"dram", "ssd"})
        self.assertEqual(listener.there, {"dram": set(pages[:3]), "ssd": set(pages[:3])})
        self.assertEqual(sum(len(event.pages) for event in told), 6)
        backend.batch_set_v1(pages[:3], slots(0, 3))
        backend.batch_get_v1(pages[:3], slots(0, 3))
        self.assertEqual(listener.listen(), [])

    def test_listener_tracks_pages_during_eviction(self):
        backend, listener = self.listening(small=True)
        gone = False
        for turn in range(40):
            pages = keys(20, f"turn {turn}")
            backend.batch_set_v1(pages, slots(0, 20))
            gone |= any(event.removed for event in listener.listen())
            here = {page for n in range(turn + 1) for page in keys(20, f"turn {n}") if backend.exists(page)}
            self.assertEqual(listener.anywhere, here)
        self.assertTrue(gone, "nothing was evicted, so nothing was shown")
        # A page reported for a tier that it had left is removed completely.
        backend._listening._tracker.read([(bytes.fromhex(pages[0]), "ssd")])
        listener.listen()
        self.assertIn(pages[0], listener.there["ssd"])
        backend._store.remove([backend._names.anchor.on_page(bytes.fromhex(pages[0]))])
        listener.listen()
        self.assertNotIn(pages[0], listener.anywhere)

    def test_listener_knows_tier_of_pages(self):
        ssd = {"dirs": [os.path.join(self.home.name, "tiers")], "bytes": "64MiB", "segment_bytes": "4MiB"}
        backend, listener = self.listening(extra={"store": {"dram": {"bytes": "4MiB"}, "index": {"max_objects": 10000}, "ssd": ssd}})
        pages = keys(3000)
        for start in range(0, 3000, 30):
            self.assertEqual(backend.batch_set_v1(pages[start : start + 30], slots(0, 30)), [True] * 30)
            backend._store.flush()
            listener.listen()
        self.assertEqual(listener.there["ssd"], set(pages))
        # As many as fit.
        self.assertTrue(0 < len(listener.there["dram"]) * 3000 <= 4 << 20, len(listener.there["dram"]))

    def test_cleared_pages_are_reported_and_other_models_are_not(self):
        backend, listener = self.listening()
        backend.batch_set_v1(keys(5), slots(0, 5))
        backend._store.flush()
        listener.listen()
        self.assertEqual(listener.there, {"dram": set(keys(5)), "ssd": set(keys(5))})
        other = pagelith.Namespace("another model")
        self.assertNotEqual(backend._names.anchor.namespace, other)
        backend._store.put([pagelith.Key(other, "page")], [b"x" * 3000])
        self.assertEqual(listener.listen(), [])
        # So that some are only on SSD, and have no key when they are lost.
        backend._store.put([backend._names.anchor.on_page(f"more {n}") for n in range(4000)], [b"x" * 3000] * 4000, wait=60)
        listener.listen()
        self.assertTrue(listener.there["ssd"] - listener.there["dram"])
        backend.clear()
        listener.listen()
        self.assertEqual(listener.anywhere, set())

    def test_pages_of_earlier_process_are_reported_when_read(self):
        first = self.open(Pool(), is_mla_model=True)
        first.batch_set_v1(keys(6), slots(0, 6))
        first.close()
        backend, listener = self.listening()
        self.assertEqual(listener.listen(), [])
        self.assertEqual(backend.batch_get_v1([*keys(4), *keys(1, "nobody's")], slots(0, 5)), [True] * 4 + [False])
        listener.listen()
        self.assertEqual((listener.there["ssd"], listener.anywhere), (set(keys(4)), set(keys(4))))
        # And its removal, like any other.
        removed = [backend._names.anchor.on_page(bytes.fromhex(page)) for page in keys(2)]
        backend._store.remove(removed)
        listener.listen()
        self.assertEqual(listener.anywhere, set(keys(4)) - set(keys(2)))

    def test_dropped_events_are_corrected_by_lookup(self):
        small = {"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10000}, "events": {"max": 8}}
        backend, listener = self.listening(extra={"store": small})
        for turn in range(60):
            backend.batch_set_v1(keys(20, f"turn {turn}"), slots(0, 20))
            if turn == 2:
                listener.listen()
        with self.assertLogs("pagelith.events", "WARNING"):
            listener.listen()
        # Some stored pages are not reported. Every reported page is stored.
        self.assertTrue(listener.anywhere)
        self.assertEqual([page for page in listener.anywhere if not backend.exists(page)], [])

    def test_pages_with_indices_only_are_reported_by_rows(self):
        sidecars = [("deepseek_v4_c4", Pool(length=700)), ("deepseek_v4_c128", Pool(length=90))]
        backend, listener = self.listening(Anchor(), sidecars)
        backend.batch_set_v2([Transfer(name, keys(3), 0) for name, _ in sidecars])
        backend._store.flush()
        listener.listen()
        self.assertEqual(listener.there, {"dram": set(keys(3)), "ssd": set(keys(3))})

    def test_store_process_must_record_events(self):
        if "STORE_PROGRAM" not in os.environ:
            print("skipped: no STORE_PROGRAM, so no store process", file=sys.stderr)
            self.skipTest("no STORE_PROGRAM")
        for most in (0, 1000):
            address = "unix:" + os.path.join(self.home.name, f"socket{most}")
            command = [os.environ["STORE_PROGRAM"], "serve", "--listen", address, "--dram", "8MiB", "--ssd", "0"]
            environment = {**os.environ, "PAGELITH_EVENTS__MAX": str(most)}
            process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.addCleanup(process.stdout.close)
            self.addCleanup(process.wait)
            self.addCleanup(process.terminate)
            self.assertIn("listening", process.stdout.readline())
            extra = {"store": None, "attach": address, "enable_kv_events": True}
            if most == 0:
                with self.assertRaisesRegex(ValueError, "PAGELITH_EVENTS__MAX"):
                    self.open(Pool(), extra=extra, is_mla_model=True)
                continue
            # One writes, and both get the events.
            backends = [self.open(Pool(), extra=extra, is_mla_model=True) for _ in range(2)]
            listeners = [Listener(backend) for backend in backends]
            for listener in listeners:
                self.assertEqual(listener.listen(), [])
            backends[0].batch_set_v1(keys(5), slots(0, 5))
            for listener in listeners:
                listener.listen()
                self.assertEqual(listener.there["dram"], set(keys(5)))
            backends[1].clear()
            for listener in listeners:
                listener.listen()
                self.assertEqual(listener.anywhere, set())
            for backend in backends:
                backend.close()


class Publishing(Case):
    def publishing(self, config=None, **extra):
        config = config or {"publisher": "zmq", "endpoint": "tcp://*:5567"}
        backend = self.open(Pool(), extra={"kv_events_config": config, **extra}, is_mla_model=True)
        backend.on_host_pools_registered()
        return backend, Published.made[-1]

    def hashes(self, pages):
        return [int.from_bytes(bytes.fromhex(page)[:8], "big", signed=True) for page in pages]

    def test_events_are_published_with_sglang_hashes_and_removed_at_end(self):
        place(self, dp_rank=3)
        backend, published = self.publishing()
        self.assertEqual((published.config["endpoint"], published.rank), ("tcp://*:5567", 3))
        backend.batch_set_v1(keys(3), slots(0, 3))
        backend._store.flush()
        told = []
        while sum(len(fields["block_hashes"]) for _, fields in told) < 6:
            told += published.get(timeout=60)
        for medium in (Medium.EXTERNAL, Medium.DISK):
            of = [fields for kind, fields in told if fields["medium"] == medium and kind == "stored"]
            self.assertEqual(sorted(one for fields in of for one in fields["block_hashes"]), sorted(self.hashes(keys(3))))
            self.assertEqual({(f["block_size"], f["parent_block_hash"], tuple(f["token_ids"])) for f in of}, {(PAGE, None, ())})
        with self.assertRaisesRegex(ValueError, "are published"):
            backend.take_events()
        backend.close()
        self.assertTrue(published.ended)
        last = published.get_nowait()
        self.assertEqual({(kind, fields["medium"]) for kind, fields in last}, {("removed", m) for m in Medium})
        self.assertEqual({one for _, fields in last for one in fields["block_hashes"]}, set(self.hashes(keys(3))))

    def test_pages_in_dram_are_external(self):
        backend, published = self.publishing(store={"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10000}})
        self.addCleanup(backend.close)
        backend.batch_set_v1(keys(3), slots(0, 3))
        self.assertEqual({fields["medium"] for _, fields in published.get(timeout=60)}, {Medium.EXTERNAL})

    def test_rank_without_sglang_events_records_none(self):
        made = len(Published.made)
        parallel.tp_rank = 1
        self.addCleanup(setattr, parallel, "tp_rank", 0)
        backend = self.open(Pool(), extra={"kv_events_config": {"publisher": "zmq"}}, is_mla_model=True)
        self.addCleanup(backend.close)
        backend.on_host_pools_registered()
        self.assertEqual((len(Published.made), backend._listening._tracker), (made, None))

    def test_unpublishable_configuration_is_refused_and_store_is_closed(self):
        for _ in range(2):
            with self.assertRaisesRegex(ValueError, "Unknown event publisher"):
                self.publishing({"publisher": "carrier pigeon"})
        # Nor is one created.
        self.assertEqual(os.listdir(self.home.name), [])
        backend = self.open(Pool(), is_mla_model=True)
        self.addCleanup(backend.close)
        with self.assertRaisesRegex(ValueError, "enable_kv_events"):
            backend.take_events()
        with self.assertRaisesRegex(ValueError, "'kv_events_config' must be a dictionary.*"):
            self.open(Pool(), extra={"kv_events_config": "zmq"})


class SetUp(Case):
    def assert_refused(self, word, **how):
        with self.assertRaisesRegex(ValueError, word):
            self.open(Pool(), **how)

    def test_invalid_configuration_is_refused_at_start(self):
        self.assert_refused("'sizes' is an unknown key", extra={"sizes": 3})
        self.assert_refused("one of the two", extra={"attach": "unix:/nowhere"})
        self.assert_refused("'store' must be a dictionary", extra={"store": 7})
        self.assert_refused("at least 1", extra={"get_timeout_ms": 0})
        self.assert_refused("--served-model-name", model_name=None)
        self.assert_refused("pagelith serve", is_mla_model=True, tp_size=2)

    def test_pool_is_registered_once(self):
        for host in (Pool(pages=7), Pool(pages=1), MHATokenToKVPoolHost(pages=9)):
            told = []
            backend = HiCache(self.config(), {})
            backend._store, store = types.SimpleNamespace(register=told.append, close=lambda: None), backend._store
            backend.register_mem_pool_host(host)
            self.assertEqual(told, [(ctypes.addressof(host.kv_buffer), ctypes.sizeof(host.kv_buffer))])
            store.close()

    def test_pool_without_last_page_address_works_unregistered(self):
        class Shy(Pool):
            def get_page_buffer_meta(self, indices):
                if indices and indices[0] > 0:
                    raise ValueError("only the first")
                return super().get_page_buffer_meta(indices)

        with self.assertLogs("pagelith.sglang.pools", "WARNING"):
            backend = self.open(Shy())
        self.assertEqual(backend._registered, [])
        backend.close()

    def test_pool_without_page_addresses_is_refused_by_name(self):
        class Unsaid(Pool):
            def get_page_buffer_meta(self, indices):
                raise ValueError("layout")

        with self.assertRaisesRegex(ValueError, "'swa'.*--hicache-mem-layout"):
            self.open(Pool(), [("swa", Unsaid())])

    def test_context_parallel_ranks_share_names_of_unsliced_bytes(self):
        shards = {}
        for rank in range(2):
            for pool in (Pool(), MHATokenToKVPoolHost()):
                where = Placement((rank, 2), (0, 1), (rank, 2), replicated=type(pool) is Pool)
                (shards[type(pool).__name__, rank],) = {component.shard for component in Host("kv", pool, where).components}
        self.assertEqual((shards["Pool", 0], shards["Pool", 1]), ("whole", "whole"))
        self.assertEqual(shards["MHATokenToKVPoolHost", 1], "rank.tp1of2.cp1of2")

    def test_layer_split_ranks_have_own_names_and_all_write(self):
        pool = Pool()
        pool._layer_shard_enabled = True
        of_two = dict(is_mla_model=True, attn_cp_rank=1, attn_cp_size=2)
        # With attention data parallelism each of them writes.
        parallel.attn_tp_size = 1
        self.addCleanup(delattr, parallel, "attn_tp_size")
        backend = self.open(pool, [("indexer", Pool(length=500))], **of_two)
        self.addCleanup(backend.close)
        shards = {key.shard for keys in backend._names.keys.values() for key in keys}
        self.assertEqual(shards, {"rank.cp1of2"})
        backend = HiCache(self.config(extra={"store": {"dram": {"bytes": "1MiB"}, "index": {"max_objects": 10}}}, **of_two), {})
        self.addCleanup(backend.close)
        backend._placement = Placement((1, 2), (0, 1), (1, 2), replicated=True)
        with self.assertRaisesRegex(ValueError, "--enable-dsa-cache-layer-split"):
            backend.register_mem_pool_host(pool)

    def test_each_rank_has_own_directory(self):
        for rank in range(2):
            backend = self.open(MHATokenToKVPoolHost(), tp_rank=rank, tp_size=2)
            self.addCleanup(backend.close)
            self.assertEqual(backend.batch_exists(keys(1)), 0)
            backend.batch_set_v1(keys(1), slots(0, 1))
        self.assertEqual(sorted(os.listdir(os.path.join(self.home.name, "ssd"))), ["rank_0_0_0_0", "rank_0_1_0_0"])

    def test_each_replica_has_own_directory(self):
        # SGLang passes the replica only with attention data parallelism.
        for ranks, passed, replica in (
            (dict(attn_dp_size=1, attn_dp_rank=0, dp_rank=0), 0, 0),
            (dict(attn_dp_size=1, attn_dp_rank=0, dp_rank=1), 0, 1),
            (dict(attn_dp_size=4, attn_dp_rank=2, dp_rank=None), 2, 2),
        ):
            place(self, **ranks)
            self.addCleanup(self.open(Pool(), dp_rank=passed).close)
            self.assertIn(f"rank_{replica}_0_0_0", os.listdir(os.path.join(self.home.name, "ssd")))

    def test_head_split_that_shares_no_pages_is_logged_at_start(self):
        for size, kind, lines in ((8, {}, 1), (2, {}, 0), (8, {"is_mla_model": True}, 0), (None, {}, 0)):
            attach = {"store": None, "attach": f"unix:{self.home.name}/none", "start_without_store": True}
            with self.assertLogs("pagelith.sglang.hicache", "WARNING") as logs:
                logging.getLogger("pagelith.sglang.hicache").warning("nothing")
                HiCache(self.config(attach, tp_size=2, tp_lcm_size=size, **kind), {}).close()
            self.assertEqual(len(logs.output) - 1, lines, logs.output)
            for line in logs.output[1:]:
                self.assertRegex(line, "share no pages.* tp_lcm_size=8 tp_size=2$")

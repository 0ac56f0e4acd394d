"""SGLang's own memory pools, host pools and cache controllers, on a machine without a GPU.

The only stand-in is the allocator, which the controllers ask only for the device pool. `place` sets
the parallel layout, and SGLang creates the configuration from flags.
"""

import atexit
import functools
import json
import os
import shutil
import tempfile
import threading
from types import SimpleNamespace

import torch
import torch.distributed
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
from sglang.srt.mem_cache.hicache_storage import PoolName
from sglang.srt.mem_cache.hybrid_cache.hybrid_cache_controller import HybridCacheController
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.pool_host.common import get_allocator_type
from sglang.srt.mem_cache.pool_host.dsa import DSAIndexerPoolHost, make_dsa_indexer_pool_decl
from sglang.srt.mem_cache.pool_host.group import HostPoolGroup, PoolEntry
from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost
from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost
from sglang.srt.runtime_context import get_flags, get_parallel, publish
from sglang.srt.server_args import ServerArgs

PAGE = 64
TOKENS = 64 * PAGE
LAYERS = 4


# A model for which SGLang has a configuration. Its weights are not used: the pools are filled
# without it.
MODEL = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=LAYERS,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=131072, torch_dtype="bfloat16",
)


@functools.cache
def model_folder():
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(MODEL, file)
    return folder


def configure(extra, layout="page_first", page=PAGE, backend="dynamic", **more):
    """Let SGLang create a server's configuration from flags; host pools read their allocator and
    layout from it."""
    flags = dict(hicache_storage_backend=backend, hicache_storage_backend_extra_config=json.dumps(extra), hicache_mem_layout=layout)
    flags.update(hicache_io_backend="direct", hicache_ratio=2.0, page_size=page, enable_hierarchical_cache=True)
    flags.update(model_path=model_folder(), load_format="dummy", device="cpu")
    publish(ServerArgs(**{**flags, **more}), role="scheduler")


def place(**changed):
    """Set this process's rank and the numbers of ranks: by default 0 of 1."""
    sizes = dict.fromkeys(("tp", "pp", "attn_tp", "attn_dp", "attn_dcp", "attn_cp", "moe_ep", "moe_dp"), 1)
    ranks = dict.fromkeys((f"{name}_rank" for name in sizes if not name.startswith("moe")), 0)
    values = {**{f"{name}_size": size for name, size in sizes.items()}, **ranks, "dp_rank": None, **changed}
    # Experts matter only for the layout, whose sizes must be consistent.
    values["moe_tp_size"] = values["tp_size"]
    get_parallel().override_permanently(**values)
    # SGLang derives these from the sizes before they are set.
    get_flags().dp.enabled = values["attn_dp_size"] > 1


def one_rank_group():
    """The process group of one rank over which the controllers reduce."""
    if not torch.distributed.is_initialized():
        meeting = os.path.join(tempfile.mkdtemp(), "meeting")
        torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    return torch.distributed.group.WORLD


def capacity(device_pool, first=0):
    return dict(device_capacity_tokens=device_pool.size, start_layer=first, end_layer=first + LAYERS)


def mha(layout, heads=2, head_dim=32, pages=TOKENS // PAGE, first=0):
    device = MHATokenToKVPool(pages * PAGE, PAGE, torch.bfloat16, heads, head_dim, LAYERS, "cpu", False)
    info = device._mha_buffer_info()
    host = MHATokenToKVPoolHost(
        info, 1.0, 0, PAGE, layout, pin_memory=False, allocator_type=get_allocator_type(), **capacity(device, first)
    )
    return device, host


def mla(layout, dsa=False, rank=64, rope=16, pages=TOKENS // PAGE, **more):
    if dsa:
        device = DSATokenToKVPool(
            pages * PAGE, PAGE, rank, torch.bfloat16, rope, LAYERS, "cpu", 128, False, rank + rope
        )
    else:
        device = MLATokenToKVPool(pages * PAGE, PAGE, torch.bfloat16, rank, rope, LAYERS, "cpu", False)
    info = device._mla_buffer_info()
    host = MLATokenToKVPoolHost(
        info, 1.0, 0, PAGE, layout, pin_memory=False, allocator_type=get_allocator_type(), target_layer_num=LAYERS, **capacity(device), **more
    )
    return device, host


def indexer(device, anchor):
    return DSAIndexerPoolHost(
        make_dsa_indexer_pool_decl(device), anchor, pin_memory=False, allocator_type=get_allocator_type()
    )


def mamba(slots=32, layout="page_first"):
    info = MambaStateBufferInfo(
        temporal=torch.zeros(LAYERS, slots, 4, 16, 16, dtype=torch.float32),
        conv=[torch.zeros(LAYERS, slots, 64, 3, dtype=torch.bfloat16)],
    )
    return MambaPoolHost(
        info, 1.0, 0, device_capacity=slots, pin_memory=False, layout=layout, allocator_type=get_allocator_type()
    )


def plain(device, host, extra, backend="dynamic", group=None, **more):
    """The controller of a model whose only state is KV; `group` has the ranks of tensor
    parallelism."""
    return HiCacheController(
        SimpleNamespace(get_kvcache=lambda: device), host, PAGE, group or one_rank_group(), threading.Event(),
        write_policy="write_through", io_backend="direct", storage_backend=backend, prefetch_threshold=PAGE,
        model_name="a/model", storage_backend_extra_config=dict(extra), **more,
    )


def hybrid(device, anchor, sidecars, extra, group=None, **more):
    """The controller of a model whose pages have state in several pools."""
    entries = [PoolEntry(PoolName.KV, anchor, device, lambda layer: layer, is_primary_index_anchor=True)]
    entries += [PoolEntry(name, host, device, lambda layer: layer) for name, host in sidecars]
    return HybridCacheController(
        SimpleNamespace(get_kvcache=lambda: device), HostPoolGroup(entries), PAGE, group or one_rank_group(), threading.Event(),
        write_policy="write_through", io_backend="direct", storage_backend="dynamic", prefetch_threshold=PAGE,
        model_name="a/model", storage_backend_extra_config=dict(extra), **more,
    )

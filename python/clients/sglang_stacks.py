"""Stacks of host pools as SGLang assembles them for a model: sliding windows, DeepSeek-V4.

SGLang's own device pools, on the CPU, and its own assembler (`hybrid_pool_assembler`). What stands in beside the allocators: host
memory is not pinned, for which SGLang's host pools call CUDA ("Found no NVIDIA driver on your system").
"""

import threading
from types import SimpleNamespace

import sglang_parts as parts
import torch
from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool
from sglang.srt.mem_cache.hicache_storage import PoolName, SidecarPoolSpec
from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler as assembler
from sglang.srt.mem_cache.pool_host import common
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

PAGES = 32
SPECS = {
    PoolName.DRAFT_SWA: PoolName.KV,
    PoolName.DEEPSEEK_V4_C1: PoolName.KV,
    PoolName.DEEPSEEK_V4_C1_INDEXER: PoolName.KV,
    PoolName.DEEPSEEK_V4_C2: PoolName.KV,
    PoolName.DEEPSEEK_V4_C2_INDEXER: PoolName.KV,
    PoolName.DEEPSEEK_V4_C4: PoolName.KV,
    PoolName.DEEPSEEK_V4_C4_INDEXER: PoolName.KV,
    PoolName.DEEPSEEK_V4_C128: PoolName.KV,
    PoolName.DEEPSEEK_V4_C4_STATE: PoolName.SWA,
    PoolName.DEEPSEEK_V4_C4_INDEXER_STATE: PoolName.SWA,
}


def unpinned():
    """Leave host memory as it is."""
    common._cuda_host_register = lambda *_, **__: None


def params(device, page, drafts=(), **allocator):
    """What SGLang hands its assembler: sizes, groups of one rank, and allocators that nobody asks here."""
    unpinned()
    own = SimpleNamespace(get_kvcache=lambda: device, swa_attn_allocator=SimpleNamespace(alloc=None, free=None), **allocator)
    return SimpleNamespace(
        page_size=page, token_to_kv_pool_allocator=own, mtp_draft_device_pools=drafts, mtp_draft_mamba_pools=(),
        tp_cache_group=parts.one_rank_group(), attn_cp_cache_group=None, attn_tp_cache_group=None, pp_cache_group=None,
    )


def attached(extra):
    """The arguments by which the assembler's controllers get their storage."""
    return dict(load_cache_event=threading.Event(), storage_backend="dynamic", model_name="a/model", storage_backend_extra_config=dict(extra))


def specs_of(group):
    """Whose slots each pool uses: as SGLang's strategies say it of the pools that are there."""
    return [SidecarPoolSpec(name, of) for name, of in SPECS.items() if name in group.entry_map]


def window_pools(page, layers=2):
    """The device pools of a model half of whose layers look at a window."""
    window, full = list(range(layers)), list(range(layers, 2 * layers))
    return SWAKVPool(
        size=PAGES * page, size_swa=16 * page, page_size=page, dtype=torch.bfloat16, head_num=2, head_dim=32,
        swa_attention_layer_ids=window, full_attention_layer_ids=full, device="cpu",
    )


def sliding_window(extra, page, drafts=()):
    device = window_pools(page)
    group, controller = assembler.build_hybrid_swa_stack(
        params=params(device, page, drafts), full_kv_pool=device.full_kv_pool, swa_kv_pool=device.swa_kv_pool, use_mla=False,
        full_layer_mapping={2: 0, 3: 1}, swa_layer_mapping={0: 0, 1: 1}, **attached(extra),
    )
    return group, controller, specs_of(group)


def sliding_window_with_draft(extra, page):
    """With a draft that looks at a window of its own, and has all its tokens."""
    draft = window_pools(page, layers=1)
    draft.full_kv_pool.layer_num, draft.swa_uses_full_indices = 0, True
    draft.swa_kv_pool = parts.MHATokenToKVPool(PAGES * page, page, torch.bfloat16, 1, 64, 1, "cpu", False)
    return sliding_window(extra, page, drafts=(draft,))


def deepseek_v4(extra, page, ratios=(4, 128, 4, 128), **more):
    device = DeepSeekV4TokenToKVPool(
        max_num_reqs=4, swa_size=8 * page, c4_size=PAGES * page // 4, c128_size=PAGES * page // 128, c4_state_pool_size=128,
        c128_state_pool_size=64, page_size=page, swa_page_size=page, dtype=torch.float8_e4m3fn, c4_state_dtype=torch.float32,
        c128_state_dtype=torch.float32, qk_nope_head_dim=448, qk_rope_head_dim=64, indexer_head_dim=128, layer_num=len(ratios),
        device="cpu", enable_memory_saver=False, compression_ratios=list(ratios), start_layer=0, end_layer=len(ratios), **more,
    )
    group, controller = assembler.build_deepseek_v4_hicache_stack(
        params=params(device, page, size_full=PAGES * page), kvcache=device, **attached(extra),
    )
    return group, controller, specs_of(group)


def deepseek_v4_of_low_ratios(extra, page):
    """V4.1's shared layers beside the compressed ones."""
    return deepseek_v4(extra, page, (1, 2, 4, 1), kv_source_layers=(0, 1), full_size=PAGES * page)

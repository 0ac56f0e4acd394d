"""Stacks of host pools as SGLang assembles them for a model: sliding windows, DeepSeek-V4,
recurrent layers, sparse attention, drafts.

SGLang's own device pools, on the CPU, and its own strategies (`hybrid_pool_assembler`), which
define for each pool whose slots it uses. Besides the allocators one thing is replaced: host memory
is not pinned, for which SGLang's host pools call CUDA ("Found no NVIDIA driver on your system").
"""

import threading
from types import SimpleNamespace

import sglang_parts as parts
import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool
from sglang.srt.mem_cache.hybrid_cache import hybrid_pool_assembler as assembler
from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool, HybridLinearKVPool, MambaPool, MiniMaxSparseKVPool
from sglang.srt.mem_cache.pool_host import common
from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType

PAGES = 32


def unpinned():
    """Do not pin host memory."""
    common._cuda_host_register = lambda *_, **__: None


def params(device, page, drafts=(), states=None, **allocator):
    """The arguments of SGLang's assembler: sizes, groups of one rank, and allocators that are not
    used here."""
    unpinned()
    nothing = SimpleNamespace(alloc=None, free=None)
    own = SimpleNamespace(get_kvcache=lambda: device, swa_attn_allocator=nothing, **allocator)
    return SimpleNamespace(
        page_size=page, token_to_kv_pool_allocator=own, req_to_token_pool=SimpleNamespace(mamba_allocator=nothing, mamba_pool=states),
        mtp_draft_device_pools=drafts, mtp_draft_mamba_pools=(), sidecar_draft_device_pools=(), pp_size=1,
        tp_cache_group=parts.one_rank_group(), attn_cp_cache_group=None, attn_tp_cache_group=None, pp_cache_group=None,
    )


def assembled(device, extra, components, page, **more):
    """Group, controller, and the slots that each pool uses, as in SGLang's cache of a model with
    such state."""
    components = {ComponentType.FULL, *components}
    cache = SimpleNamespace(components=dict.fromkeys(components), page_size=page, evict_host=None)
    built = assembler._select_strategy(device, components).build(
        cache=cache, kvcache=device, params=params(device, page, **more), server_args=None, load_cache_event=threading.Event(),
        storage_backend="dynamic", model_name="a/model", storage_backend_extra_config=dict(extra),
    )
    assert not built.pool_declarations or {one.pool_name for one in built.pool_declarations} <= set(built.host_pool_group.entry_map)
    return built.host_pool_group, built.cache_controller, built.sidecars


def with_draft_of(group, controller, specs, draft):
    """Add a draft model's pools to a stack, as SGLang does."""
    more, entries = assembler.build_hicache_draft_sidecars(draft_device_pools=(draft,), tree_cache=SimpleNamespace(cache_controller=controller))
    for entry in entries:
        controller.register_host_pool_entry(entry)
    return group, controller, [*specs, *more]


def window_pools(page, layers=2):
    """The device pools of a model half of whose layers have a window."""
    window, full = list(range(layers)), list(range(layers, 2 * layers))
    return SWAKVPool(
        size=PAGES * page, size_swa=16 * page, page_size=page, dtype=torch.bfloat16, head_num=2, head_dim=32,
        swa_attention_layer_ids=window, full_attention_layer_ids=full, device="cpu",
    )


def sliding_window(extra, page, drafts=()):
    return assembled(window_pools(page), extra, {ComponentType.SWA}, page, drafts=drafts)


def sliding_window_with_draft(extra, page):
    """With a draft that has its own window, and has all its tokens."""
    draft = window_pools(page, layers=1)
    draft.full_kv_pool.layer_num, draft.swa_uses_full_indices = 0, True
    draft.swa_kv_pool = parts.MHATokenToKVPool(PAGES * page, page, torch.bfloat16, 1, 64, 1, "cpu", False)
    return sliding_window(extra, page, drafts=(draft,))


def sliding_window_with_draft_window(extra, page):
    """With a draft whose window is the target's, in the target's slots."""
    return with_draft_of(*sliding_window(extra, page), window_pools(page, layers=1))


def states(layers):
    """The states of recurrent layers."""
    shape = Mamba2StateShape.create(tp_world_size=1, intermediate_size=64, n_groups=1, num_heads=4, head_dim=16, state_size=16, conv_kernel=4)
    of = Mamba2CacheParams(shape=shape, layers=layers)
    return MambaPool(size=32, spec_state_size=4, cache_params=of, mamba_layer_ids=layers, device="cpu")


def recurrent(extra, page, kind=HybridLinearKVPool, **more):
    """Half of the layers are recurrent, the other half attention."""
    pool = states([0, 2])
    device = kind(
        size=PAGES * page, dtype=torch.bfloat16, page_size=page, head_num=2, head_dim=32, full_attention_layer_ids=[1, 3], device="cpu",
        mamba_pool=pool, **more,
    )
    return assembled(device, extra, {ComponentType.MAMBA}, page, states=pool)


def recurrent_and_sparse(extra, page):
    """DeepSeek's sparse attention with its indexer, between recurrent layers."""
    sparse = dict(use_mla=True, use_dsa=True, kv_lora_rank=64, qk_rope_head_dim=16, index_head_dim=128, kv_cache_dim=80)
    return recurrent(extra, page, **sparse)


def recurrent_and_compressed_index(extra, page):
    """QSA's keys of groups of tokens, between recurrent layers."""
    index = dict(qsa_index_kv_heads=1, qsa_index_head_dim=32, qsa_compress_ratio=4, qsa_token_topk=64, num_request_slots=4)
    return recurrent(extra, page, kind=QSATokenToKVPool, **index)


def recurrent_and_sliding_window(extra, page):
    return assembled(window_pools(page), extra, {ComponentType.SWA, ComponentType.MAMBA}, page, states=states([4, 5]))


def sparse(layers=parts.LAYERS, page=parts.PAGE):
    return DSATokenToKVPool(PAGES * page, page, 64, torch.bfloat16, 16, layers, "cpu", 128, False, 80)


def sparse_with_sparse_draft(extra, page):
    """With a draft of the target's kind, whose indexer has its own pool."""
    return with_draft_of(*assembled(sparse(page=page), extra, set(), page), sparse(layers=1, page=page))


def sparse_with_packed_draft(extra, page):
    """With draft layers after the target's in the target's pools."""
    return assembled(sparse(page=page), extra, set(), page, drafts=(sparse(layers=1, page=page),))


def minimax(extra, page):
    """MiniMax's sparse layers, some of which keep search keys and no values."""
    device = MiniMaxSparseKVPool(
        size=PAGES * page, page_size=page, dtype=torch.bfloat16, head_num=2, head_dim=32, idx_head_dim=64, dense_layer_ids=[0, 1],
        sparse_layer_ids=[2, 3], disable_value_sparse_layer_ids=[2, 3], device="cpu", start_layer=0, end_layer=4,
    )
    return assembled(device, extra, set(), page)


def v4_pools(page, ratios, **more):
    """The device pools of a DeepSeek-V4 whose layers compress by these ratios."""
    rows = dict(c4_size=PAGES * page // 4, c128_size=PAGES * page // 128, c4_state_pool_size=128, c128_state_pool_size=64)
    return DeepSeekV4TokenToKVPool(
        max_num_reqs=4, swa_size=8 * page, page_size=page, swa_page_size=page, dtype=torch.float8_e4m3fn, c4_state_dtype=torch.float32,
        c128_state_dtype=torch.float32, qk_nope_head_dim=448, qk_rope_head_dim=64, indexer_head_dim=128, layer_num=len(ratios),
        device="cpu", enable_memory_saver=False, compression_ratios=list(ratios), start_layer=0, end_layer=len(ratios), **{**rows, **more},
    )


def deepseek_v4(extra, page, ratios=(4, 128, 4, 128), **more):
    return assembled(v4_pools(page, ratios, **more), extra, {ComponentType.SWA}, page, size_full=PAGES * page)


def deepseek_v4_of_low_ratios(extra, page):
    """V4.1's shared layers and the compressed ones."""
    return deepseek_v4(extra, page, (1, 2, 4, 1), kv_source_layers=(0, 1), full_size=PAGES * page)


def deepseek_v4_with_draft(extra, page):
    """With a draft that uses the target's window, in its slots."""
    nothing = dict.fromkeys(("c4_size", "c128_size", "c4_state_pool_size", "c128_state_pool_size"), 0)
    return with_draft_of(*deepseek_v4(extra, page), v4_pools(page, (0,), is_draft_worker=True, **nothing))

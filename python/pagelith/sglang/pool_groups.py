"""The device pools of a model, as SGLang's linkers have them.

SGLang builds groups for DeepSeek V4, sparse attention and some models with recurrent layers. Plain
attention, windows, and recurrent layers between attention with heads are built here, from the same
parts.
"""

from typing import Any


def group_of(pool: Any, params: Any, components: set[Any]) -> Any:
    """The group of the device pools of a model whose cache tree has these components."""
    from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import resolve_hybrid_device_pool_group
    from sglang.srt.runtime_context import get_parallel

    if get_parallel().attn_dcp_size > 1:
        raise ValueError("pagelith does not support decode context parallelism; pass --dcp-size 1")
    if params.pp_size > 1:
        raise ValueError("pagelith's linker does not support pipeline stages, whose lookups SGLang does not compare: pass --pp-size 1")
    if getattr(pool, "layer_shard_enabled", False):
        raise ValueError("pagelith's linker does not support layers that ranks share out: remove --enable-dsa-cache-layer-split")
    build = _own(pool, components)
    if build is None:
        return resolve_hybrid_device_pool_group(kvcache=pool, page_size=params.page_size, params=params, components=components)
    if params.mtp_draft_device_pools or params.sidecar_draft_device_pools:
        raise ValueError(f"pagelith's linker does not support a draft model with {type(pool).__name__}: pass --speculative-algorithm none")
    return build(pool, params)


def _own(pool: Any, components: set[Any]) -> Any:
    """The builder below for this pool; `None` for a pool that is left to SGLang. Derived classes
    keep more, or other bytes, so that classes are compared exactly."""
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, MHATokenToKVPool, MLATokenToKVPool
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    has = {component.name for component in components}
    if has == {"FULL"} and type(pool) is MHATokenToKVPool:
        return _heads
    if has == {"FULL"} and type(pool) is MLATokenToKVPool:
        return _latent
    if has == {"FULL", "SWA"} and type(pool) is SWAKVPool:
        return _window
    if has == {"FULL", "MAMBA"} and type(pool) is HybridLinearKVPool and type(pool.full_kv_pool) is MHATokenToKVPool:
        return _recurrent
    return None


def _heads(pool: Any, params: Any) -> Any:
    return _group([_entry("KV", pool, {layer: layer for layer in range(pool.layer_num)}, params)], params)


def _latent(pool: Any, params: Any) -> Any:
    from sglang.srt.mem_cache.hicache_storage import PoolName
    from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import DevicePoolEntry

    if pool.kv_scale_buffer is not None:
        raise ValueError("pagelith's linker does not support caches with scales: pass another --kv-cache-dtype")
    entry = DevicePoolEntry(
        name=PoolName.KV, indices_from_pool=PoolName.KV, device_pool=pool, components=[pool.kv_buffer],
        layer_mapping={layer: layer for layer in range(pool.layer_num)}, page_size=params.page_size, rows_are_pages=False,
    )  # fmt: skip
    return _group([entry], params, rank_replicated=True)


def _window(pool: Any, params: Any) -> Any:
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _swa_layer_mappings

    full, window = _swa_layer_mappings(pool)
    return _group([_entry("KV", pool.full_kv_pool, full, params), _entry("SWA", pool.swa_kv_pool, window, params)], params)


def _recurrent(pool: Any, params: Any) -> Any:
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import _stage_local_layer_mapping
    from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import _mamba_device_pool_entry

    layers = _stage_local_layer_mapping(pool.full_attention_layer_id_mapping, pool.start_layer)
    return _group([_entry("KV", pool.full_kv_pool, layers, params), _mamba_device_pool_entry(params.req_to_token_pool, pool.start_layer)], params)


def _entry(name: str, pool: Any, layers: dict[int, int], params: Any) -> Any:
    from sglang.srt.mem_cache.hicache_storage import PoolName
    from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import _mha_device_pool_entry
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    if type(pool) is not MHATokenToKVPool or pool.kv_cache_layout != "nhd":
        layout = getattr(pool, "kv_cache_layout", None)
        raise ValueError(f"pagelith's linker does not support pools of {type(pool).__name__} with the layout {layout!r}")
    return _mha_device_pool_entry(PoolName[name], pool, layers, params.page_size)


def _group(entries: list[Any], params: Any, **more: Any) -> Any:
    from sglang.srt.mem_cache.hybrid_cache.linker_pool_assembler import DevicePoolGroup

    layers = 1 + max(layer for entry in entries for layer in entry.layer_mapping)
    return DevicePoolGroup(entries, layers, params.page_size, **more)

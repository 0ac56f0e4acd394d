"""The model, from vLLM's configuration. Read against vLLM 0.32 and 0.33."""

import os
from functools import partial
from typing import Any

from .facts import Identity, Reader, environment, fields_of
from .weights import weights_of

# Fields of ModelConfig that do not change the bytes of a KV cache, are read separately, or are
# secrets. All others are facts.
_IGNORED_MODEL_FIELDS = {
    "allowed_local_media_path", "allowed_media_domains", "disable_cascade_attn", "enable_cumem_allocator", "enable_nccl_comm_suspend",
    "enable_sleep_mode", "enable_trace_replay", "enforce_eager", "generation_config", "hf_overrides", "hf_token", "io_processor_plugin",
    "logits_processors", "logprobs_mode", "max_logprobs", "model", "override_generation_config", "renderer_num_workers",
    "return_sampling_mask", "seed", "served_model_name", "skip_tokenizer_init", "sleep_mode_backend", "sleep_mode_offload_cudagraph",
    "sleep_preserve_parameter_names", "tokenizer", "tokenizer_mode", "tokenizer_revision", "use_fp64_gumbel",
}  # fmt: skip
# Fields of CacheConfig about the amount of memory and its use.
_IGNORED_CACHE_FIELDS = {
    "cache_hit_alignment_tokens", "cpu_kvcache_space_bytes", "cpu_offload_gb", "effective_attention_block_size", "enable_prefix_caching",
    "gpu_memory_utilization", "hash_block_size", "kv_cache_max_concurrency", "kv_cache_memory_bytes", "kv_cache_size_tokens",
    "kv_offloading_backend", "kv_offloading_size", "num_cpu_blocks", "num_gpu_blocks", "num_gpu_blocks_override", "prefix_cache_retention_interval",
    "prefix_match_unit", "swap_space", "user_specified_block_size",
}  # fmt: skip
# Fields of SpeculativeConfig that describe another model, or where a draft runs.
_IGNORED_DRAFT_FIELDS = {
    "draft_model_config", "draft_parallel_config", "draft_tensor_parallel_size", "model", "target_model_config", "target_parallel_config",
    "tensor_parallel_size",
}  # fmt: skip
_WHOLE_CONFIGS = ("attention_config", "mamba_config", "engram_config", "diffusion_config", "additional_config")
_REQUIRED_FIELDS = ("max_model_len", "revision", "code_revision", "quantization", "dtype", "hf_config")
# Attributes of a group's specification that define the meaning of its bytes, other than their
# number.
_GROUP_FIELDS = (
    "dtype", "kv_quant_mode", "cache_dtype_str", "model_version", "block_size", "sliding_window", "num_head_slots", "shapes", "dtypes", "mamba_type",
)  # fmt: skip
_VARIABLES = (
    "VLLM_USE_MODELSCOPE", "VLLM_KV_CACHE_LAYOUT", "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "VLLM_MLA_DISABLE", "VLLM_SSM_CONV_STATE_LAYOUT",
    "VLLM_HUMMING_ONLINE_QUANT_CONFIG", "VLLM_HUMMING_INPUT_QUANT_CONFIG",
)  # fmt: skip
# Variables about the amount of memory.
_IGNORED_VARIABLES = ("VLLM_CPU_KVCACHE_SPACE",)

# Key of `kv_connector_extra_config` under which a tier receives the model's identity.
MODEL_KEY = "pagelith_model"


def identify(config: Any, caches: Any = None, sizes: bool = False) -> Identity:
    """The model of a server with this configuration and the cache groups in `caches`. With `sizes`,
    the numbers of ranks are facts too: for keys that do not contain them."""
    reader = Reader()
    reader.read("engine", _engine)
    reader.read("device", lambda: _device(config))
    reader.read("environment", lambda: environment("VLLM_", _VARIABLES, _IGNORED_VARIABLES))
    model = config.model_config
    _model(reader, "model", model, getattr(config, "load_config", None))
    reader.read("cache.cache_dtype", lambda: config.cache_config.cache_dtype)
    reader.read("cache", lambda: fields_of(config.cache_config, _IGNORED_CACHE_FIELDS))
    for name in _WHOLE_CONFIGS:
        reader.read(name, partial(getattr, config, name, None))
    if caches is not None:
        reader.read("groups", lambda: [_group(group) for group in caches.kv_cache_groups])
    draft = getattr(config, "speculative_config", None)
    if draft is not None:
        reader.read("draft.method", lambda: draft.method)
        reader.read("draft", lambda: fields_of(draft, _IGNORED_DRAFT_FIELDS))
        own = getattr(draft, "draft_model_config", None)
        if own is not None and own is not model:
            _model(reader, "draft.model", own, getattr(draft, "draft_load_config", None) or config.load_config)
    if getattr(config, "lora_config", None) is not None:
        # vLLM's block hashes contain an adapter's name and path; no connector gets its weights.
        reader.read("lora", lambda: config.lora_config.lora_dtype)
        reader.miss("weights of LoRA adapters")
    if sizes:
        parallel = config.parallel_config
        names = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size", "decode_context_parallel_size")
        reader.read("sizes", lambda: [getattr(parallel, name, 1) for name in names])
        reader.variable("VLLM_PP_LAYER_PARTITION")  # Which layers each stage has.
    return reader.identity()


def _model(reader: Reader, name: str, model: Any, load: Any) -> None:
    for needed in _REQUIRED_FIELDS:
        reader.read(f"{name}.{needed}", partial(getattr, model, needed))
    reader.read(name, lambda: fields_of(model, {*_IGNORED_MODEL_FIELDS, *_REQUIRED_FIELDS}))
    reader.read(f"{name}.load", lambda: [str(load.load_format), load.model_loader_extra_config])
    weights = _weights(model, load)
    if weights is None:
        reader.miss(f"{name}.weights")
    else:
        reader.facts[f"{name}.weights"] = weights


def _weights(model: Any, load: Any) -> str | None:
    if getattr(model, "model_weights", "") and not os.path.exists(model.model_weights):
        # Weights streamed from an object store.
        return None
    path = getattr(model, "model_weights", "") or model.model
    # If the configuration was read from another place, its commit is not that of the weights.
    separate_config = getattr(model, "hf_config_path", None) not in (None, model.model)
    commit = None if separate_config else getattr(model.hf_config, "_commit_hash", None)
    found = weights_of(str(path), model.revision, str(load.load_format), commit, load.download_dir)
    return f"dummy {getattr(model, 'seed', None)}" if found == "dummy" else found


def _group(group: Any) -> Any:
    spec = group.kv_cache_spec
    each = getattr(spec, "kv_cache_specs", None)
    specs = list(each.values()) if each else [spec]
    return [{"kind": type(one).__name__, **{name: getattr(one, name) for name in _GROUP_FIELDS if hasattr(one, name)}} for one in specs]


def _engine() -> str:
    import vllm

    return f"vllm {vllm.__version__}"


def _device(config: Any) -> Any:
    """The device properties by which vLLM chooses kernels, and with them the packing of keys."""
    from vllm.platforms import current_platform

    kind = str(current_platform.device_type)
    if kind == "cpu":
        import torch

        flags = ("_is_amx_tile_supported", "_is_avx512_supported", "_is_avx2_supported")
        return [kind, str(current_platform.get_cpu_architecture()), *(bool(getattr(torch.cpu, flag, bool)()) for flag in flags)]
    return [kind, str(current_platform.get_device_capability() or current_platform.get_device_name())]

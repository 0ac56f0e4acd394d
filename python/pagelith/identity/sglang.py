"""The model that this process serves, from SGLang's runtime context. Read against SGLang 0.5.23."""

import logging
import threading
from functools import partial
from typing import Any, NamedTuple

from .facts import Identity, ModelError, Reader, environment, fields_of
from .weights import files_of, weights_of

logger = logging.getLogger(__name__)

# Fields of SGLang's namespaces that do not change the bytes of a KV cache, or are read separately.
# All others are facts.
_IGNORED_MODEL_FIELDS = {
    "checkpoint_engine_wait_weights_before_ready", "delete_ckpt_after_loading", "download_dir", "engine_info_bootstrap_port", "load_format",
    "model_path", "modelopt_checkpoint_save_path", "modelopt_export_path", "quantization_param_path",
    "remote_instance_weight_loader_seed_instance_ip", "remote_instance_weight_loader_seed_instance_service_port",
    "remote_instance_weight_loader_send_weights_group_ports", "shared_experts", "startup_weight_load_mode", "trust_remote_code", "weight_cache_socket",
    "weight_cache_timeout", "weight_loader_disable_mmap", "weight_loader_drop_cache_after_load", "weight_loader_prefetch_checkpoints",
    "weight_loader_prefetch_num_threads",
}  # fmt: skip
_IGNORED_KERNEL_FIELDS = {
    "disable_flashinfer_autotune", "flashinfer_autotune_skip_ops", "grammar_backend", "sampling_backend",
}  # fmt: skip
# Fields about the capacity for states.
_IGNORED_STATE_FIELDS = {"int8_mamba_ckpt_size", "mamba_max_states_per_path"}
_IGNORED_DRAFT_FIELDS = {"spec_trace_dir", "speculative_draft_model_path", "uno_lora_path"}
_WINDOW_FIELDS = ("enable_encoder_swa_bounded_replay", "enable_decoder_swa_bounded_replay")
_CONFIG_FIELDS = ("hf_config", "dtype", "context_len", "quantization")
# How experts are computed on the CPU; the directory of their weights is read separately.
_EXPERT_FIELDS = ("kt_method", "kt_num_gpu_experts", "kt_max_deferred_experts_per_token")
_VARIABLES = ("SGLANG_HIP_DSV41_INDEX_K_PAGE8", "SGLANG_USE_MODELSCOPE", "SGLANG_USE_HND_KVCACHE", "SGLANG_AITER_KV_CACHE_LAYOUT")
# SGLang sets it while it reads the model's configuration, from the content of that.
_IGNORED_VARIABLES = ("SGLANG_DSV4_FP4_DEQUANT",)
# SGLang's log entries for weights that were reloaded from disk, and for a new label of the weights.
_LOADED, _LABELLED = "model_runner.update_model_fields", "scheduler.weight_version"


class Now(NamedTuple):
    """The model at one moment."""

    identity: Identity
    # The weights were replaced, so pages in the engine's memory may be those of the old weights.
    stale: bool


class _Live(NamedTuple):
    """The facts about a model that change at run time."""

    weight_version: str
    path: str
    load_format: str
    # Number of reloads of weights from disk, and number of new labels.
    loaded: int
    labelled: int


class ServedModel:
    """The model of this process. Weights may be replaced at run time, so it is read for each
    call."""

    def __init__(self, sizes: bool = False) -> None:
        self._sizes = sizes
        self._lock = threading.Lock()
        self._live: _Live | None = None
        self._identity: Identity | None = None
        live = _live()
        # The state to which all pages in SGLang's memory belong. Unknown if weights were replaced
        # before this point.
        self._clean = None if live is not None and live.loaded + live.labelled else live

    def now(self) -> Now:
        """The current model. All facts but the live ones are read once per version of the
        weights."""
        live = _live()
        with self._lock:
            if self._identity is None or live != self._live:
                self._live, self._identity = live, identify(live, self._sizes)
            return Now(self._identity, live != self._clean)

    def flushed(self) -> None:
        """SGLang's memory has no pages, and no storage thread will return pages that it had."""
        self._clean = _live()


def _live() -> _Live | None:
    try:
        from sglang.srt.runtime_context import get_context, get_model, get_serving

        sources = [source for source, _ in get_context().overrides_log()]
        model = get_model()
        changes = sources.count(_LOADED), sources.count(_LABELLED)
        return _Live(str(get_serving().weight_version), str(model.model_path), str(model.load_format), *changes)
    except Exception:
        logger.debug("pagelith: SGLang's runtime context cannot be read", exc_info=True)
        return None


def identify(live: _Live | None, sizes: bool = False) -> Identity:
    """The model that SGLang's runtime context describes, with these weights. With `sizes`, the
    numbers of ranks are facts too: for keys that do not contain them."""
    reader = Reader()
    reader.read("engine", _engine)
    reader.read("environment", lambda: environment("SGLANG_", _VARIABLES, _IGNORED_VARIABLES))
    if live is None:
        reader.miss("SGLang's runtime context")
        return reader.identity()
    from sglang.srt import runtime_context as context

    reader.facts["weight_version"] = live.weight_version
    reader.read("device", lambda: str(context.get_device().device))
    config = reader.read("model config", lambda: context.process_model_config())
    # Only the fields below: most of it is irrelevant.
    reader.facts.pop("model config", None)
    for name in _CONFIG_FIELDS if config is not None else ():
        reader.read(name, partial(getattr, config, name))
    if config is not None:
        _check_rope(config)
    reader.read("model", lambda: fields_of_bag(context.get_model(), _IGNORED_MODEL_FIELDS))
    reader.read("kernels", lambda: [context.attention_backends(), fields_of_bag(context.get_exec().kernel, _IGNORED_KERNEL_FIELDS)])
    for name in ("mamba", "deterministic", "dllm"):
        reader.read(name, partial(_exec_fields, context, name))
    # How much state beyond a window is recomputed.
    reader.read("windows", lambda: [getattr(context.get_exec().features, name, None) for name in _WINDOW_FIELDS])
    reader.read("memory", lambda: [context.get_memory().hicache_mem_layout, context.get_memory().enable_page_major_kv_layout])
    reader.read("page_size", lambda: context.get_context().config_leaf("page_size"))
    _weights(reader, context, config, live)
    if sizes:
        names = ("tp_size", "attn_tp_size", "pp_size", "attn_cp_size", "attn_dcp_size")
        reader.read("sizes", lambda: [getattr(context.get_parallel(), name) for name in names])
        reader.variable("SGLANG_PP_LAYER_PARTITION")  # Which layers each stage has.
    return reader.identity()


def _weights(reader: Reader, context: Any, config: Any, live: _Live) -> None:
    model, draft, lora = context.get_model(), context.get_spec(), context.get_lora()
    # If the configuration was read from another place, or before a reload, its commit is not that
    # of the weights.
    separate_config = live.loaded or getattr(model, "decrypted_config_file", None)
    commit = None if separate_config else getattr(getattr(config, "hf_config", None), "_commit_hash", None)
    _add_fact(reader, "weights", weights_of(live.path, model.revision, live.load_format, commit, model.download_dir))
    if model.quantization_param_path:
        _add_fact(reader, "scales of the KV cache", files_of(model.quantization_param_path))
    if draft.speculative_algorithm is not None:
        reader.read("draft", lambda: fields_of_bag(draft, _IGNORED_DRAFT_FIELDS))
        if draft.speculative_draft_model_path:
            of_draft = draft.speculative_draft_load_format or live.load_format
            found = weights_of(draft.speculative_draft_model_path, draft.speculative_draft_model_revision, of_draft, cache=model.download_dir)
            _add_fact(reader, "weights of the draft model", found)
        if getattr(draft, "uno_lora_path", None):
            _add_fact(reader, "weights of the draft's adapter", files_of(draft.uno_lora_path))
    experts = context.get_exec().moe
    if getattr(experts, "kt_weight_path", None):
        reader.read("experts on the CPU", lambda: [getattr(experts, name, None) for name in _EXPERT_FIELDS])
        _add_fact(reader, "weights of experts on the CPU", files_of(experts.kt_weight_path))
    if lora.enable_lora:
        # An adapter loaded later changes the page hashes in each process.
        adapters = [[ref.lora_name, files_of(ref.lora_path)] for ref in _adapters(lora.lora_paths)]
        _add_fact(reader, "weights of LoRA adapters", adapters if all(found for _, found in adapters) else None)


def _add_fact(reader: Reader, name: str, found: Any) -> None:
    if found is None:
        reader.miss(name)
    else:
        reader.facts[name] = found


def _adapters(given: Any) -> list[Any]:
    """SGLang's references to adapters, in any form that its flag accepts."""
    return list(given.values()) if isinstance(given, dict) else list(given or ())


def _exec_fields(context: Any, name: str) -> dict[str, Any]:
    return fields_of_bag(getattr(context.get_exec(), name), _IGNORED_STATE_FIELDS)


def fields_of_bag(bag: Any, without: Any = ()) -> dict[str, Any]:
    """The leaves of a namespace."""
    leaves = object.__getattribute__(bag, "_fields") if hasattr(bag, "_fields") else fields_of(bag)
    return {name: value for name, value in leaves.items() if name not in without}


def _check_rope(config: Any) -> None:
    """With LongRoPE in SGLang, one position beyond the original length changes the keys of the
    whole batch."""
    text = getattr(config, "hf_text_config", None) or config.hf_config
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    if not isinstance(rope, dict) or str(rope.get("rope_type", rope.get("type"))) not in ("longrope", "su"):
        return
    original = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
    if original and config.context_len > int(original):
        raise ModelError(
            f"pagelith: the model has LongRoPE and context_length={config.context_len}: beyond {original} tokens the keys that SGLang computes"
            f" depend on the rest of the batch, so no page can be shared: pass --context-length {original}, or use another storage backend"
        )


def _engine() -> str:
    import sglang

    return f"sglang {sglang.__version__}"

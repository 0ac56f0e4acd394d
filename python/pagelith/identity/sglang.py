"""What SGLang's runtime context says of the model that its process serves, now. Read against SGLang 0.5.23."""

import logging
import threading
from functools import partial
from typing import Any, NamedTuple

from .facts import Identity, ModelError, Reader, environment, fields_of
from .weights import files_of, weights_of

logger = logging.getLogger(__name__)

# Of SGLang's namespaces what changes no byte of a KV cache, or is read apart. Everything else in them is a fact.
_NOT_OF_A_MODEL = {
    "checkpoint_engine_wait_weights_before_ready", "delete_ckpt_after_loading", "download_dir", "engine_info_bootstrap_port", "load_format",
    "model_path", "modelopt_checkpoint_save_path", "modelopt_export_path", "quantization_param_path",
    "remote_instance_weight_loader_seed_instance_ip", "remote_instance_weight_loader_seed_instance_service_port",
    "remote_instance_weight_loader_send_weights_group_ports", "shared_experts", "startup_weight_load_mode", "trust_remote_code", "weight_cache_socket",
    "weight_cache_timeout", "weight_loader_disable_mmap", "weight_loader_drop_cache_after_load", "weight_loader_prefetch_checkpoints",
    "weight_loader_prefetch_num_threads",
}  # fmt: skip
_NOT_OF_KERNELS = {
    "disable_flashinfer_autotune", "flashinfer_autotune_skip_ops", "grammar_backend", "sampling_backend",
}  # fmt: skip
# How many states there is room for.
_NOT_OF_STATES = {"int8_mamba_ckpt_size", "mamba_max_states_per_path"}
_NOT_OF_A_DRAFT = {"spec_trace_dir", "speculative_draft_model_path", "uno_lora_path"}
_OF_WINDOWS = ("enable_encoder_swa_bounded_replay", "enable_decoder_swa_bounded_replay")
_OF_THE_CONFIG = ("hf_config", "dtype", "context_len", "quantization")
# How experts are computed on the CPU, beside the folder of their weights.
_OF_EXPERTS = ("kt_method", "kt_num_gpu_experts", "kt_max_deferred_experts_per_token")
_ENVIRONMENT = ("SGLANG_HIP_DSV41_INDEX_K_PAGE8", "SGLANG_USE_MODELSCOPE", "SGLANG_USE_HND_KVCACHE", "SGLANG_AITER_KV_CACHE_LAYOUT")
# SGLang sets it while it reads the model's configuration, by what is in that.
_NOT_OF_THE_ENVIRONMENT = ("SGLANG_DSV4_FP4_DEQUANT",)
# How SGLang notes that weights were loaded from disk again, and that they have another label.
_LOADED, _LABELLED = "model_runner.update_model_fields", "scheduler.weight_version"


class Now(NamedTuple):
    """The model at one moment."""

    identity: Identity
    # The weights were replaced, and what the engine has in memory may be of the old ones.
    stale: bool


class _Live(NamedTuple):
    """What of a model changes at run time."""

    weight_version: str
    path: str
    load_format: str
    # How often weights were loaded from disk again, and how often they had another label.
    loaded: int
    labelled: int


class ServedModel:
    """The model of this process. Weights may be replaced while it runs, so it is asked for at each call."""

    def __init__(self, sizes: bool = False) -> None:
        self._sizes = sizes
        self._lock = threading.Lock()
        self._live: _Live | None = None
        self._identity: Identity | None = None
        live = _live()
        # The last state of which is all that SGLang has in memory. Where weights were replaced before, nothing is known of that.
        self._clean = None if live is not None and live.loaded + live.labelled else live

    def now(self) -> Now:
        """What it is at this moment. All but what is live is read once for each version of the weights."""
        live = _live()
        with self._lock:
            if self._identity is None or live != self._live:
                self._live, self._identity = live, identify(live, self._sizes)
            return Now(self._identity, live != self._clean)

    def flushed(self) -> None:
        """SGLang has nothing in memory, and no storage thread brings what it had."""
        self._clean = _live()


def _live() -> _Live | None:
    try:
        from sglang.srt.runtime_context import get_context, get_model, get_serving

        sources = [source for source, _ in get_context().overrides_log()]
        model = get_model()
        changes = sources.count(_LOADED), sources.count(_LABELLED)
        return _Live(str(get_serving().weight_version), str(model.model_path), str(model.load_format), *changes)
    except Exception:
        logger.debug("pagelith: SGLang's runtime context does not answer", exc_info=True)
        return None


def identify(live: _Live | None, sizes: bool = False) -> Identity:
    """The model that SGLang's runtime context describes, with these weights. `sizes`: keys do not say of how many ranks they are."""
    reader = Reader()
    reader.read("engine", _engine)
    reader.read("environment", lambda: environment("SGLANG_", _ENVIRONMENT, _NOT_OF_THE_ENVIRONMENT))
    if live is None:
        reader.miss("SGLang's runtime context")
        return reader.identity()
    from sglang.srt import runtime_context as context

    reader.facts["weight_version"] = live.weight_version
    reader.read("device", lambda: str(context.get_device().device))
    config = reader.read("model config", lambda: context.process_model_config())
    # Named one by one: it has much that is of no account.
    reader.facts.pop("model config", None)
    for name in _OF_THE_CONFIG if config is not None else ():
        reader.read(name, partial(getattr, config, name))
    if config is not None:
        _check_rope(config)
    reader.read("model", lambda: fields_of_bag(context.get_model(), _NOT_OF_A_MODEL))
    reader.read("kernels", lambda: [context.attention_backends(), fields_of_bag(context.get_exec().kernel, _NOT_OF_KERNELS)])
    for name in ("mamba", "deterministic", "dllm"):
        reader.read(name, partial(_way, context, name))
    # How much of what lies beyond a window is computed again.
    reader.read("windows", lambda: [getattr(context.get_exec().features, name, None) for name in _OF_WINDOWS])
    reader.read("memory", lambda: [context.get_memory().hicache_mem_layout, context.get_memory().enable_page_major_kv_layout])
    reader.read("page_size", lambda: context.get_context().config_leaf("page_size"))
    _weights(reader, context, config, live)
    if sizes:
        names = ("tp_size", "attn_tp_size", "pp_size", "attn_cp_size", "attn_dcp_size")
        reader.read("sizes", lambda: [getattr(context.get_parallel(), name) for name in names])
    return reader.identity()


def _weights(reader: Reader, context: Any, config: Any, live: _Live) -> None:
    model, draft, lora = context.get_model(), context.get_spec(), context.get_lora()
    # The commit of a configuration that was read elsewhere, or before the weights were, is not that of the weights.
    elsewhere = live.loaded or getattr(model, "decrypted_config_file", None)
    commit = None if elsewhere else getattr(getattr(config, "hf_config", None), "_commit_hash", None)
    _known(reader, "weights", weights_of(live.path, model.revision, live.load_format, commit, model.download_dir))
    if model.quantization_param_path:
        _known(reader, "scales of the KV cache", files_of(model.quantization_param_path))
    if draft.speculative_algorithm is not None:
        reader.read("draft", lambda: fields_of_bag(draft, _NOT_OF_A_DRAFT))
        if draft.speculative_draft_model_path:
            of_draft = draft.speculative_draft_load_format or live.load_format
            found = weights_of(draft.speculative_draft_model_path, draft.speculative_draft_model_revision, of_draft, cache=model.download_dir)
            _known(reader, "weights of the draft model", found)
        if getattr(draft, "uno_lora_path", None):
            _known(reader, "weights of the draft's adapter", files_of(draft.uno_lora_path))
    experts = context.get_exec().moe
    if getattr(experts, "kt_weight_path", None):
        reader.read("experts on the CPU", lambda: [getattr(experts, name, None) for name in _OF_EXPERTS])
        _known(reader, "weights of experts on the CPU", files_of(experts.kt_weight_path))
    if lora.enable_lora:
        # One that is loaded later has another hash of pages in each process.
        adapters = [[ref.lora_name, files_of(ref.lora_path)] for ref in _adapters(lora.lora_paths)]
        _known(reader, "weights of LoRA adapters", adapters if all(found for _, found in adapters) else None)


def _known(reader: Reader, name: str, found: Any) -> None:
    if found is None:
        reader.miss(name)
    else:
        reader.facts[name] = found


def _adapters(given: Any) -> list[Any]:
    """SGLang's references to adapters, of whatever form its flag has them in."""
    return list(given.values()) if isinstance(given, dict) else list(given or ())


def _way(context: Any, name: str) -> dict[str, Any]:
    return fields_of_bag(getattr(context.get_exec(), name), _NOT_OF_STATES)


def fields_of_bag(bag: Any, without: Any = ()) -> dict[str, Any]:
    """A namespace's leaves."""
    leaves = object.__getattribute__(bag, "_fields") if hasattr(bag, "_fields") else fields_of(bag)
    return {name: value for name, value in leaves.items() if name not in without}


def _check_rope(config: Any) -> None:
    """LongRoPE as SGLang has it: a position beyond the original length anywhere in a batch changes the keys of all of it."""
    text = getattr(config, "hf_text_config", None) or config.hf_config
    rope = getattr(text, "rope_parameters", None) or getattr(text, "rope_scaling", None) or {}
    if not isinstance(rope, dict) or str(rope.get("rope_type", rope.get("type"))) not in ("longrope", "su"):
        return
    original = rope.get("original_max_position_embeddings") or getattr(text, "original_max_position_embeddings", None)
    if original and config.context_len > int(original):
        raise ModelError(
            f"pagelith: the model has LongRoPE and context_length={config.context_len}: beyond {original} tokens the keys that SGLang computes"
            f" depend on what else is in the batch, so no page can be shared: pass --context-length {original}, or another storage"
        )


def _engine() -> str:
    import sglang

    return f"sglang {sglang.__version__}"

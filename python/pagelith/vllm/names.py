"""Under which names blocks are kept: what their bytes depend on, and vLLM's hashes do not say."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pagelith

from ..settings import StoreSettings
from .messages import Named


def key_of(named: Named) -> pagelith.Key:
    """The key of a worker's slices, on no page."""
    return pagelith.Key(pagelith.Namespace(**named.namespace), bytes(32), pool="group_0", component="data", shard=named.shard)


def named(settings: StoreSettings, config: Any, kind: str, caches: Mapping[str, Any], tokens: int, way: str, rank: tuple[int, int]) -> Named:
    """What this worker, the `rank`th of so many with other bytes, keeps. `way` is how caches become an object's bytes."""
    model, cache = config.model_config, config.cache_config
    extra = [
        ("client", "vllm-connector"),
        ("way", way),
        ("kind", kind),
        ("layers", _digest([[name, *_layer(config, name, caches[name])] for name in caches])),
        ("model", _digest(_config(model.hf_config))),
        ("model_revision", str(model.revision)),
        ("quantization", str(model.quantization)),
        ("cache_dtype", str(cache.cache_dtype)),
        ("hash", str(cache.prefix_caching_hash_algo)),
    ]
    at, ranks = rank
    namespace = {
        "model": str(model.model),
        "tenant": settings.tenant,
        "revision": settings.revision,
        "dtype": str(model.dtype),
        "page_tokens": tokens,
        "extra": extra,
    }
    return Named(namespace, "whole" if ranks == 1 else f"rank.tp{at}of{ranks}")


def _layer(config: Any, name: str, cache: Any) -> list[Any]:
    """What a block's bytes mean in one layer: axes in the order of memory, type, and the kernels that read them."""
    order = sorted(range(1, len(cache.shape)), key=lambda axis: -cache.stride()[axis])
    layer = config.compilation_config.static_forward_context[name]
    # On the CPU the kernel's instructions decide how keys are packed.
    return [list(cache.shape[1:]), order, str(cache.dtype), layer.get_attn_backend().full_cls_name(), getattr(layer, "isa", None)]


def _config(hf_config: Any) -> Any:
    """The model's own configuration, which overrides change: without where it was read from, and by what."""
    known = hf_config.to_dict()
    return {name: value for name, value in known.items() if name not in ("_name_or_path", "transformers_version")}


def _digest(value: Sequence[Any] | Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()

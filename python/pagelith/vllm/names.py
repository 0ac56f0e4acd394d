"""Under which names blocks are kept: what their bytes depend on, and vLLM's hashes do not say."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pagelith

from ..identity import Identity
from ..settings import StoreSettings
from .messages import Named
from .pools import Pools


@dataclass(frozen=True)
class Place:
    """Which worker it is, of those with bytes of their own: on each axis of parallelism its rank, and of how many."""

    tensor: tuple[int, int]
    pipeline: tuple[int, int]
    context: tuple[int, int]

    @staticmethod
    def of(parallel: Any, same: int) -> "Place":
        """By vLLM's configuration of a worker, where so many consecutive tensor-parallel ranks hold the same. vLLM counts tensor-parallel ranks first,
        and those of decode context parallelism are consecutive ones among them."""
        tensor, pipeline, context = parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.decode_context_parallel_size
        rank = parallel.rank % tensor
        return Place((rank // same, tensor // same), (parallel.rank // tensor % pipeline, pipeline), (rank % context, context))

    @property
    def shard(self) -> str:
        axes = (("tp", self.tensor), ("pp", self.pipeline), ("dcp", self.context))
        return ".".join(["rank", *(f"{axis}{at}of{of}" for axis, (at, of) in axes if of > 1)]) if any(of > 1 for _, (_, of) in axes) else "whole"


# By pool and group, the layers' caches by name.
Caches = Sequence[Sequence[Mapping[str, Any]]]


def keys_of(named: Named, pools: Pools) -> list[list[pagelith.Key]]:
    """By pool, the keys of a worker's slices of a page's blocks, on no page."""
    space = pagelith.Namespace(**named.namespace)
    return [
        [
            pagelith.Key(space, bytes(32), pool=pool.name, component=named.component.format(f".{part}" if part else ""), shard=named.shard)
            for part in range(pool.blocks)
        ]
        for pool in pools.each
    ]


def named(
    settings: StoreSettings, config: Any, identity: Identity, kinds: Sequence[str], caches: Caches, pools: Pools, way: str, place: Place
) -> Named:
    """What this worker keeps. `way` is how caches become an object's bytes."""
    model, cache = config.model_config, config.cache_config
    # Of one group its layers, of several those of each pool's groups, in the order in which they lie in an object.
    layers: list[Any] = [[[[name, *_layer(config, name, of[name])] for name in of] for of in groups] for groups in caches]
    if pools.groups == 1:
        layers = layers[0][0]
    # Stages of a pipeline have other layers, and what they keep of a page is of one namespace: their objects' names say which.
    stages = place.pipeline[1] > 1
    component = "data{}." + _digest(layers)[:14] if stages else "data{}"
    extra = [
        ("client", "vllm-connector"),
        ("way", way),
        ("kind", "+".join(kinds)),
        ("layers", "by stage" if stages else _digest(layers)),
        identity.extra,
        ("hash", str(cache.prefix_caching_hash_algo)),
    ]
    if place.context[1] > 1:
        # Each rank has some of a block's tokens, so many one behind the other.
        extra.append(("context", f"{place.context[1]} by {config.parallel_config.cp_kv_cache_interleave_size}"))
    namespace = {
        "model": str(model.model),
        "tenant": settings.tenant,
        "revision": settings.revision,
        "dtype": str(model.dtype),
        "page_tokens": pools.tokens,
        "extra": extra,
    }
    return Named(namespace, place.shard, component)


def _layer(config: Any, name: str, cache: Any) -> list[Any]:
    """What a block's bytes mean in one layer: axes in the order of memory, type, and the kernels that read them."""
    order = sorted(range(1, len(cache.shape)), key=lambda axis: -cache.stride()[axis])
    layer = config.compilation_config.static_forward_context[name]
    # On the CPU the kernel's instructions decide how keys are packed.
    known = [list(cache.shape[1:]), order, str(cache.dtype), layer.get_attn_backend().full_cls_name(), getattr(layer, "isa", None)]
    # By which a cache of a smaller type is to be multiplied.
    known += [getattr(layer, name, None) for name in ("_k_scale_float", "_v_scale_float")]
    if hasattr(layer, "get_state_shape"):
        # A recurrent layer's cache is so many bytes; what is in them, it says itself.
        from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

        shapes, types = [list(shape) for shape in layer.get_state_shape()], [str(dtype) for dtype in layer.get_state_dtype()]
        known += [shapes, types, bool(is_conv_state_dim_first())]
    return known


def _digest(value: Sequence[Any] | Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()

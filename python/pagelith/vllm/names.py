"""The names of stored blocks: everything that their bytes depend on, and that vLLM's hashes do not
contain."""

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
    """The position of a worker among those with distinct bytes: on each axis of parallelism its
    rank, and the number of ranks."""

    tensor: tuple[int, int]
    pipeline: tuple[int, int]
    context: tuple[int, int]

    @staticmethod
    def of(parallel: Any, same: int) -> "Place":
        """From vLLM's configuration of a worker, if `same` consecutive tensor-parallel ranks hold
        the same bytes. In vLLM, tensor parallelism is the innermost axis, and the ranks of decode
        context parallelism are consecutive within it."""
        tensor, pipeline, context = parallel.tensor_parallel_size, parallel.pipeline_parallel_size, parallel.decode_context_parallel_size
        rank = parallel.rank % tensor
        return Place((rank // same, tensor // same), (parallel.rank // tensor % pipeline, pipeline), (rank % context, context))

    @property
    def shard(self) -> str:
        axes = (("tp", self.tensor), ("pp", self.pipeline), ("dcp", self.context))
        return ".".join(["rank", *(f"{axis}{at}of{of}" for axis, (at, of) in axes if of > 1)]) if any(of > 1 for _, (_, of) in axes) else "whole"


# The layers' caches, by pool, group and layer name.
Caches = Sequence[Sequence[Mapping[str, Any]]]


def keys_of(named: Named, pools: Pools) -> list[list[pagelith.Key]]:
    """By pool, the key templates of a worker's slices of a page's blocks."""
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
    """The names of this worker's objects. `way` is how caches are converted to an object's
    bytes."""
    model, cache = config.model_config, config.cache_config
    # For one group its layers; for several the layers of each pool's groups, in the order of the
    # bytes in an object.
    layers: list[Any] = [[[[name, *_layer(config, name, of[name])] for name in of] for of in groups] for groups in caches]
    if pools.groups == 1:
        layers = layers[0][0]
    # Stages of a pipeline have different layers but share a namespace: the names of their objects
    # contain the layers.
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
        # Each rank has a part of a block's tokens, interleaved in runs of this length.
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
    """What defines the meaning of a block's bytes in one layer: axes in memory order, type, and the
    kernels that read them."""
    order = sorted(range(1, len(cache.shape)), key=lambda axis: -cache.stride()[axis])
    layer = config.compilation_config.static_forward_context[name]
    # On CPUs the kernel's instruction set determines the packing of keys.
    known = [list(cache.shape[1:]), order, str(cache.dtype), layer.get_attn_backend().full_cls_name(), getattr(layer, "isa", None)]
    # The scales of a cache with a smaller type.
    known += [getattr(layer, name, None) for name in ("_k_scale_float", "_v_scale_float")]
    if hasattr(layer, "get_state_shape"):
        # A recurrent layer's cache is untyped bytes; the layer reports their types and shapes.
        from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

        shapes, types = [list(shape) for shape in layer.get_state_shape()], [str(dtype) for dtype in layer.get_state_dtype()]
        known += [shapes, types, bool(is_conv_state_dim_first())]
    return known


def _digest(value: Sequence[Any] | Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()

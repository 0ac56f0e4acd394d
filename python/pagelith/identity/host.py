"""The model of the engine in this process, for adapters that get no configuration: LMCache's
connector and Mooncake's client interface."""

import sys
from collections.abc import Callable
from typing import Any

from ..replicas import of_sglang
from .facts import Identity, ModelError
from .sglang import Now, ServedModel

_NO_ENGINE = Now(Identity({"engine": "unknown"}, ("which engine and model it is for",)), stale=False)


# Models of vLLM's configurations in this process, by fingerprint. A connection may be made again
# while none is set.
_identified: dict[str, Now] = {}
# Index of vLLM's data-parallel replica in this process, for the same reason.
_replica = 0


def no_engine() -> Now:
    return _NO_ENGINE


def model_of_this_process() -> Callable[[], Now]:
    """A function that returns the current model, from vLLM's configuration or SGLang's. Without an
    engine it is unknown."""
    config = vllm_config()
    if config is not None:
        from .vllm import identify

        known = Now(identify(config, sizes=True), stale=False)
        _identified[known.identity.fingerprint] = known
        return lambda: known
    if _is_sglang_server():
        return ServedModel(sizes=True).now
    if len(_identified) == 1:
        [earlier] = _identified.values()
        return lambda: earlier
    if _identified or _is_vllm_worker():
        raise ModelError(
            f"pagelith: vLLM's configuration is not set for this connection, and earlier connections of this process had {len(_identified)} configurations:"
            " its model is unknown, and a 'revision' cannot replace it; restart the server, with one model per process"
        )
    return no_engine


def replica_of_this_process() -> int:
    """The index of this process's data-parallel replica; 0 without an engine."""
    global _replica
    config = vllm_config()
    if config is not None:
        # vLLM's data_parallel_rank is 0 in each replica of a dense model.
        _replica = int(config.parallel_config.data_parallel_index)
    return of_sglang() if config is None and _is_sglang_server() else _replica


def vllms_transfer() -> Any:
    """The `kv_transfer_config` of vLLM's configuration in this process; `None` without one."""
    return getattr(vllm_config(), "kv_transfer_config", None)


def vllm_config() -> Any:
    """vLLM's configuration. It is set only while a worker starts."""
    module = sys.modules.get("vllm.config")
    getter = getattr(module, "get_current_vllm_config_or_none", None)
    return None if getter is None else getter()


def _is_vllm_worker() -> bool:
    """Whether this process is a vLLM worker."""
    getter = getattr(sys.modules.get("vllm.distributed.parallel_state"), "model_parallel_is_initialized", None)
    return bool(getter is not None and getter())


def _is_sglang_server() -> bool:
    module = sys.modules.get("sglang.srt.runtime_context")
    if module is None:
        return False
    return bool(module.publish_role() is not None and module.get_context().is_config_namespace_published("model"))

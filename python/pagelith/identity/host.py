"""The engine in whose process an adapter runs that is handed no configuration: LMCache's connector, Mooncake's interface."""

import sys
from collections.abc import Callable
from typing import Any

from .facts import Identity, ModelError
from .sglang import Now, ServedModel

_NONE = Now(Identity({"engine": "unknown"}, ("which engine and model it is for",)), stale=False)


# What vLLM's configurations said in this process, by fingerprint. A connection may be made again when none is set any more.
_told: dict[str, Now] = {}


def no_engine() -> Now:
    return _NONE


def model_of_this_process() -> Callable[[], Now]:
    """What says which model it is, at each call: by vLLM's configuration or by SGLang's. Without an engine it is unknown."""
    config = _vllms()
    if config is not None:
        from .vllm import identify

        known = Now(identify(config, sizes=True), stale=False)
        _told[known.identity.fingerprint] = known
        return lambda: known
    if _sglang_serves():
        return ServedModel(sizes=True).now
    if len(_told) == 1:
        [earlier] = _told.values()
        return lambda: earlier
    if _told or _vllm_works():
        raise ModelError(
            f"pagelith: a connection is made while vLLM's configuration is not set, and earlier ones of this process had {len(_told)} of them:"
            " nothing says which model this one is for, and no 'revision' stands in for that; start the server again, with one model in a process"
        )
    return no_engine


def vllms_transfer() -> Any:
    """What vLLM's configuration in this process says of its connectors; `None` where there is none."""
    return getattr(_vllms(), "kv_transfer_config", None)


def _vllms() -> object | None:
    """vLLM's configuration, where it is set: while a worker starts."""
    module = sys.modules.get("vllm.config")
    ask = getattr(module, "get_current_vllm_config_or_none", None)
    return None if ask is None else ask()


def _vllm_works() -> bool:
    """Whether this is a worker of vLLM's."""
    ask = getattr(sys.modules.get("vllm.distributed.parallel_state"), "model_parallel_is_initialized", None)
    return bool(ask is not None and ask())


def _sglang_serves() -> bool:
    module = sys.modules.get("sglang.srt.runtime_context")
    if module is None:
        return False
    return bool(module.publish_role() is not None and module.get_context().is_config_namespace_published("model"))

"""The engine in whose process an adapter runs that is handed no configuration: LMCache's connector, Mooncake's interface."""

import sys
from collections.abc import Callable

from .facts import Identity
from .sglang import Now, ServedModel

_NONE = Now(Identity({"engine": "unknown"}, ("which engine and model it is for",)), stale=False)


def no_engine() -> Now:
    return _NONE


def model_of_this_process() -> Callable[[], Now]:
    """What says which model it is, at each call: by vLLM's configuration or by SGLang's. Of neither it is unknown."""
    config = _vllms()
    if config is not None:
        from .vllm import identify

        known = Now(identify(config, sizes=True), stale=False)
        return lambda: known
    if _sglang_serves():
        return ServedModel(sizes=True).now
    return no_engine


def _vllms() -> object | None:
    """vLLM's configuration, where it is set while an adapter is made: in a worker."""
    module = sys.modules.get("vllm.config")
    ask = getattr(module, "get_current_vllm_config_or_none", None)
    return None if ask is None else ask()


def _sglang_serves() -> bool:
    module = sys.modules.get("sglang.srt.runtime_context")
    if module is None:
        return False
    return bool(module.publish_role() is not None and module.get_context().is_config_namespace_published("model"))

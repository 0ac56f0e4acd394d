"""vLLM on Pagelith: a secondary tier of its tiered offloading,

    --kv-transfer-config '{"kv_connector": "PagelithOffloadingConnector", "kv_connector_module_path": "pagelith.vllm",
        "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 34359738368, "secondary_tiers": [
            {"type": "PagelithTier", "module_path": "pagelith.vllm",
             "store": {"dram": {"bytes": "8GiB"}, "ssd": {"dirs": ["/mnt/nvme/kv"], "bytes": "500GiB"}}}]}}'

or a connector of its own, without tiering:

    --kv-transfer-config '{"kv_connector": "PagelithConnector", "kv_connector_module_path": "pagelith.vllm", "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {
            "store": {"dram": {"bytes": "8GiB"}, "ssd": {"dirs": ["/mnt/nvme/kv"], "bytes": "500GiB"}}}}'

docs/vllm.md describes the other keys, sizing, and what is not supported. Read against vLLM 0.32 and
0.33.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .connector import PagelithConnector
    from .offloading import PagelithOffloadingConnector
    from .tier import PagelithTier

__all__ = ["PagelithConnector", "PagelithOffloadingConnector", "PagelithTier"]


def __getattr__(name: str) -> Any:
    """Imports each class on its first use: an interface of vLLM that only another class needs may
    have moved."""
    if name == "PagelithTier":
        from .tier import PagelithTier

        return PagelithTier
    if name == "PagelithConnector":
        from .connector import PagelithConnector

        return PagelithConnector
    if name == "PagelithOffloadingConnector":
        from .offloading import PagelithOffloadingConnector

        return PagelithOffloadingConnector
    raise AttributeError(f"module {__name__!r} has no {name!r}")

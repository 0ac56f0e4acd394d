"""vLLM on Pagelith: a secondary tier of its tiered offloading,

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 34359738368, "secondary_tiers": [
            {"type": "PagelithTier", "module_path": "pagelith.vllm",
             "store": {"dram": {"bytes": "8GiB"}, "ssd": {"dirs": ["/mnt/nvme/kv"], "bytes": "500GiB"}}}]}}'

docs/vllm.md has the other keys, sizing, and what is not supported. Read against vLLM 0.32 and 0.33.
"""

from .tier import PagelithTier

__all__ = ["PagelithTier"]

"""vLLM's offloading connector, extended to pass the model's identity to the tier: vLLM passes a
tier no model configuration."""

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from ..identity.vllm import MODEL_KEY, identify
from .settings import check_caches


class PagelithOffloadingConnector(OffloadingConnector):
    """vLLM's `OffloadingConnector`, with the model's identity added to its configuration."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        # In each role: vLLM may disable prefix caching in the workers' processes only.
        check_caches(vllm_config, kv_cache_config.kv_cache_groups)
        if role == KVConnectorRole.SCHEDULER:
            # Only this role has tiers.
            transfer = vllm_config.kv_transfer_config
            model = identify(vllm_config, kv_cache_config)
            entry = {MODEL_KEY: {"facts": model.facts, "unknown": list(model.unknown)}}
            transfer.kv_connector_extra_config = {**(transfer.kv_connector_extra_config or {}), **entry}
        super().__init__(vllm_config, role, kv_cache_config)

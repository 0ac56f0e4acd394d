"""The connector's path for a device's caches, over caches in host memory: each block goes through
torch's copies and staging memory.

Loaded by `"kv_connector_module_path": "vllm_staged"`.
"""

from pagelith.vllm import PagelithConnector, connector

__all__ = ["PagelithConnector"]

connector.on_host = lambda cache: False

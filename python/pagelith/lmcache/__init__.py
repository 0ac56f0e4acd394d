"""LMCache on Pagelith: an L2 adapter for its multiprocess server,

    lmcache server --l2-adapter '{"type": "plugin", "module_path": "pagelith.lmcache", "class_name": "PagelithL2Adapter",
        "adapter_params": {"revision": "MODEL@COMMIT ...", "store": {"dram": {"bytes": "8GiB"}, "ssd": {"dirs": ["/mnt/nvme/kv"], "bytes": "500GiB"}}}}'

docs/lmcache.md describes the other keys, sizing, and what is not supported. Read against LMCache
0.5.6.
"""

from .adapter import PagelithL2Adapter

__all__ = ["PagelithL2Adapter"]

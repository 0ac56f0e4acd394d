"""SGLang's HiCache on Pagelith: `--hicache-storage-backend dynamic` with

    {"backend_name": "pagelith", "module_path": "pagelith.sglang", "class_name": "HiCache", "interface_v1": 1,
     "store": {"dram": {"bytes": "32GiB"}, "ssd": {"dirs": ["/mnt/nvme/kv"], "bytes": "500GiB"}}}

docs/sglang.md describes the other keys, sizing, and what is not supported. Read against SGLang
0.5.23.
"""

from .events import PageEvent
from .hicache import HiCache

__all__ = ["HiCache", "PageEvent"]

"""Mooncake's client interface, over Pagelith."""

from pagelith.compat.mooncake import MooncakeDistributedStore, MooncakeHostMemAllocator, ReplicateConfig

__all__ = ["MooncakeDistributedStore", "MooncakeHostMemAllocator", "ReplicateConfig"]

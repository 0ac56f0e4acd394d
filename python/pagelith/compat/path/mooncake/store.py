"""Mooncake's client interface, implemented over Pagelith."""

from pagelith.compat.mooncake import MooncakeDistributedStore, MooncakeHostMemAllocator, ReplicateConfig

__all__ = ["MooncakeDistributedStore", "MooncakeHostMemAllocator", "ReplicateConfig"]

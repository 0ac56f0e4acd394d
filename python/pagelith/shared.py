"""Host pools in shared memory, which a store process copies from without their bytes being sent."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from ._native import PagelithError

if TYPE_CHECKING:
    from . import Store

__all__ = ["mappings", "share_pool"]

logger = logging.getLogger(__name__)


def mappings(fd: int) -> list[tuple[int, int]]:
    """Where this process shares the file of `fd` by a mapping from its first byte on: addresses and lengths."""
    there = os.fstat(fd)
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, allowed, offset, device, inode = line.split()[:5]
            major, minor = (int(part, 16) for part in device.split(":"))
            is_it = int(inode) == there.st_ino and os.makedev(major, minor) == there.st_dev
            if is_it and allowed.endswith("s") and int(offset, 16) == 0:
                start, end = (int(part, 16) for part in addresses.split("-"))
                found.append((start, end - start))
    return found


def share_pool(store: Store, host: Any) -> int:
    """Let the store look at a host pool of SGLang's `shm` allocator; how many mappings that is. None for a pool in other memory.

    What the store cannot be shown, since it is shown as much as it takes, is said, and sent to it: that costs more, and is all.
    """
    allocator = getattr(host, "allocator", None)
    fds = list(getattr(allocator, "fds", None) or [])
    first = getattr(host, "fd", None)
    if isinstance(first, int) and first not in fds:
        fds.append(first)
    shared = 0
    for fd in fds:
        for address, length in mappings(fd):
            try:
                store.share(fd, address, length)
                shared += 1
            except PagelithError as error:
                logger.warning("pagelith: %d bytes of host memory are not shown to the store process, but sent: %s", length, error)
    return shared

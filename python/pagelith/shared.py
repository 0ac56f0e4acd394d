"""Host memory that a store process copies from without its bytes being sent."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ._native import PagelithError

if TYPE_CHECKING:
    from . import Store

__all__ = ["Mapping", "mappings", "share"]

logger = logging.getLogger(__name__)


class Mapping(NamedTuple):
    """A file in memory that this process shares by a mapping from its first byte on."""

    address: int
    length: int
    # As the kernel writes it, also where nothing has this name any more; and which file it is.
    name: str
    device: int
    inode: int

    def is_of(self, fd: int) -> bool:
        there = os.fstat(fd)
        return (there.st_dev, there.st_ino) == (self.device, self.inode)


def mappings(spans: Iterable[tuple[int, int]]) -> list[Mapping]:
    """Those in which some of these addresses lie: of memfds, and of files in /dev/shm."""
    wanted, found = list(spans), []
    with open("/proc/self/maps") as maps:
        for line in maps:
            addresses, allowed, offset, device, inode, *name = line.rstrip("\n").split(maxsplit=5)
            if not name or not name[0].startswith(("/memfd:", "/dev/shm/")) or not allowed.endswith("s") or int(offset, 16) != 0:
                continue
            start, end = (int(part, 16) for part in addresses.split("-"))
            if any(at < end and at + length > start for at, length in wanted):
                major, minor = (int(part, 16) for part in device.split(":"))
                found.append(Mapping(start, end - start, name[0], os.makedev(major, minor), int(inode)))
    return found


def share(store: Store, spans: Iterable[tuple[int, int]]) -> int:
    """Let a store process look at what of this memory it can be shown; in how many mappings that is.

    What it cannot be shown is sent to it: that costs more, and is all. It is memory that is no shared mapping of a file in memory, and what
    the store refuses, since it is shown as much as it takes, which is said.
    """
    shared = 0
    for mapping in mappings(spans):
        try:
            with _descriptor(mapping) as fd:
                store.share(fd, mapping.address, mapping.length)
            shared += 1
        except (PagelithError, OSError) as error:
            logger.warning("pagelith: %d bytes of host memory are not shown to the store process, but sent: %s", mapping.length, error)
    return shared


@contextlib.contextmanager
def _descriptor(mapping: Mapping) -> Iterator[int]:
    """One of the file: this process's own, or by its name."""
    for name in os.listdir("/proc/self/fd"):
        # By its name first: a look at another file may take as long as its owner likes.
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == mapping.name and mapping.is_of(int(name)):
                found = os.dup(int(name))
                break
    else:
        found = os.open(mapping.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if not mapping.is_of(found):
            raise FileNotFoundError(f"another file has this name by now: {mapping.name}")
        yield found
    finally:
        os.close(found)

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

    @property
    def end(self) -> int:
        return self.address + self.length

    def is_of(self, fd: int) -> bool:
        there = os.fstat(fd)
        return (there.st_dev, there.st_ino) == (self.device, self.inode)


def mappings(spans: Iterable[tuple[int, int]]) -> list[Mapping]:
    """Those in which some of these addresses lie: of memfds, and of files in /dev/shm."""
    wanted = list(spans)
    return [mapping for mapping in _files_in_memory() if any(at < mapping.end and at + length > mapping.address for at, length in wanted)]


def _files_in_memory() -> list[Mapping]:
    """All of them. The kernel lists a mapping in parts, where its parts have other flags (`mlock`)."""
    found: list[Mapping] = []
    # A name has any bytes but newlines.
    with open("/proc/self/maps", "rb") as maps:
        for line in maps:
            addresses, allowed, at, device, inode, *name = line.rstrip(b"\n").split(maxsplit=5)
            if not name or not name[0].startswith((b"/memfd:", b"/dev/shm/")) or not allowed.endswith(b"s"):
                continue
            (start, end), offset = (int(part, 16) for part in addresses.split(b"-")), int(at, 16)
            major, minor = (int(part, 16) for part in device.split(b":"))
            part = Mapping(start, end - start, os.fsdecode(name[0]), os.makedev(major, minor), int(inode))
            if offset == 0:
                found.append(part)
            elif found and found[-1].end == start and found[-1].length == offset and found[-1][2:] == part[2:]:
                found[-1] = found[-1]._replace(length=offset + part.length)
    return found


def share(store: Store, spans: Iterable[tuple[int, int]]) -> int:
    """Let a store process look at what of this memory it can be shown; in how many mappings that is.

    What it cannot be shown is sent to it: that costs more, and is all. It is memory that is no shared mapping of a file in memory, and what
    the store refuses, since it is shown as much as it takes, which is said.
    """
    shared = 0
    try:
        found = mappings(spans)
    except OSError as error:
        logger.warning("pagelith: no host memory is shown to the store process, but sent: this process's mappings cannot be listed: %s", error)
        return 0
    for mapping in found:
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
        # Another file may have the name that the kernel writes for one that has none any more.
        if mapping.name.endswith(" (deleted)"):
            raise FileNotFoundError(f"its file has no name any more, and this process no descriptor of it: {mapping.name}")
        # A pipe in its place is not waited for.
        found = os.open(mapping.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not mapping.is_of(found):
            raise FileNotFoundError(f"another file has this name by now: {mapping.name}")
        yield found
    finally:
        os.close(found)

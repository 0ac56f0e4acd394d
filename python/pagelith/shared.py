"""Host memory that a store process maps, so that it copies from there without its bytes being
sent."""

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
    """A shared mapping of an in-memory file in this process, from the first byte of the file."""

    address: int
    length: int
    # The name in the kernel's list, also of a deleted file; and the identity of the file.
    name: str
    device: int
    inode: int

    @property
    def end(self) -> int:
        return self.address + self.length

    def is_of(self, fd: int) -> bool:
        status = os.fstat(fd)
        return (status.st_dev, status.st_ino) == (self.device, self.inode)


def mappings(spans: Iterable[tuple[int, int]]) -> list[Mapping]:
    """The mappings that overlap these address ranges: of memfds, and of files in /dev/shm."""
    wanted = list(spans)
    return [mapping for mapping in _files_in_memory() if any(at < mapping.end and at + length > mapping.address for at, length in wanted)]


def _files_in_memory() -> list[Mapping]:
    """All mappings of in-memory files. The kernel splits a mapping whose parts differ in flags
    (`mlock`); they are joined."""
    found: list[Mapping] = []
    # A name may contain any bytes but newlines.
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
    """Let a store process map this memory, as far as possible. Returns the number of mappings.

    All other memory is sent to the store process, which costs more. This is memory that is not a
    shared mapping of an in-memory file, and memory that the store refuses because it would exceed
    its limits, which is logged.
    """
    shared = 0
    try:
        found = mappings(spans)
    except OSError as error:
        logger.warning("pagelith: host memory is not shared with the store process but sent: the mappings of this process cannot be listed: %s", error)
        return 0
    for mapping in found:
        try:
            with _descriptor(mapping) as fd:
                store.share(fd, mapping.address, mapping.length)
            shared += 1
        except (PagelithError, OSError) as error:
            logger.warning("pagelith: %d bytes of host memory are not shared with the store process but sent: %s", mapping.length, error)
    return shared


@contextlib.contextmanager
def _descriptor(mapping: Mapping) -> Iterator[int]:
    """A descriptor of the mapped file: one that this process has open, or a new one, opened by
    name."""
    for name in os.listdir("/proc/self/fd"):
        # The name is compared first: fstat on an unrelated file may block as long as its file
        # system does.
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == mapping.name and mapping.is_of(int(name)):
                found = os.dup(int(name))
                break
    else:
        # A different file may now have the name that the kernel shows for a deleted one.
        if mapping.name.endswith(" (deleted)"):
            raise FileNotFoundError(f"the mapped file was deleted, and this process has no descriptor of it: {mapping.name}")
        # O_NONBLOCK: a pipe in its place must not block.
        found = os.open(mapping.name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not mapping.is_of(found):
            raise FileNotFoundError(f"a different file has this name now: {mapping.name}")
        yield found
    finally:
        os.close(found)

"""Host memory of Mooncake's client: allocation, and the check whether an address is host memory.

An address is allocated once. A store process that has mapped the memory at an address assumes that
it does not change while the client is attached. So a mapping stays in place until the process ends,
and `free` only returns its pages.
"""

import ctypes
import logging
import mmap
import operator
import os
import weakref
from typing import Protocol

# The client's logger: this module is part of the client.
logger = logging.getLogger("pagelith.compat.mooncake")

OK = 0
INVALID_PARAMS = -600

# From linux/falloc.h and madvise(2); Python does not define all of them.
_FALLOC_FL_KEEP_SIZE = 1
_FALLOC_FL_PUNCH_HOLE = 2
_MADV_DONTFORK = 10

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]
_MAP_FAILED = ctypes.c_void_p(-1).value


class _Client(Protocol):
    def forget_memory(self, address: int, length: int) -> None: ...


# Clients that may have memory registered.
clients: "weakref.WeakValueDictionary[int, _Client]" = weakref.WeakValueDictionary()
# Memory of all allocators of this process: by address, its allocator, descriptor and length. Single
# dictionary operations need no lock.
_allocated: dict[int, tuple[object, int, int]] = {}


class MooncakeHostMemAllocator:
    """Page-aligned host memory, which a store process maps and copies from without a transfer
    (`register_buffer` shares it).

    The memory stays until `free`, even if the allocator is dropped. A forked child does not have
    it.
    """

    def __init__(self) -> None:
        # Identifies the allocator as owner without keeping it alive.
        self._owner = object()

    def alloc(self, size: int) -> int:
        """Allocate memory and return its address; 0 if that fails, with the reason in the log."""
        try:
            wanted = -1 if isinstance(size, bool) else operator.index(size)
        except TypeError:
            wanted = -1
        if wanted < 0:
            logger.error("pagelith: the size of host memory must be a whole number of bytes, at least 0 size=%r", size)
            return 0
        length = -(-max(wanted, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            address, fd = _map_memfd(length)
        except (OSError, OverflowError, ctypes.ArgumentError) as error:
            logger.error("pagelith: host memory cannot be allocated: %s size=%d", error, wanted)
            return 0
        _allocated[address] = (self._owner, fd, length)
        return address

    def free(self, address: int) -> int:
        """Return the pages, and end all registrations in the memory."""
        owner, fd, length = _allocated.get(address, (None, -1, 0))
        if owner is not self._owner or _allocated.pop(address, None) is None:
            logger.error("pagelith: no memory of this allocator is at address=%r", address)
            return INVALID_PARAMS
        # An embedded store would continue to read into the pages that were registered.
        for reference in clients.valuerefs():
            client = reference()
            if client is not None:
                client.forget_memory(address, length)
        if _libc.fallocate(fd, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, 0, length) != 0:
            logger.warning("pagelith: freed host memory keeps its pages: %s length=%d", os.strerror(ctypes.get_errno()), length)
        os.close(fd)
        return OK


def _map_memfd(length: int) -> tuple[int, int]:
    """Zeroed memory in a memfd, which a store process can seal against shrinking and map; its
    address and descriptor."""
    fd = os.memfd_create("pagelith-host-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, length)
        address = _libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        # Not inherited: a child would write to its parent's memory.
        if address in (None, _MAP_FAILED) or _libc.madvise(address, length, _MADV_DONTFORK) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    except BaseException:
        os.close(fd)
        raise
    return address, fd


def _after_fork() -> None:
    """The memory belongs to the parent: it is not mapped in the child, and the clients' locks may
    be held for ever."""
    clients.clear()
    for _, fd, _ in _allocated.values():
        os.close(fd)
    _allocated.clear()


os.register_at_fork(after_in_child=_after_fork)


def is_host_memory(address: int, size: int) -> bool:
    """Whether the first and the last byte can be read. A system call checks that; a direct access
    could crash the process."""
    read, write = os.pipe()
    try:
        at = (address, address + size - 1)
        return all(_libc.write(write, ctypes.c_void_p(byte), ctypes.c_size_t(1)) == 1 for byte in at)
    finally:
        os.close(read)
        os.close(write)

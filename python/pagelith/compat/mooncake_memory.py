"""Host memory of Mooncake's client: where it comes from, and whether an address is of it.

An address is handed out once: a store process takes what lies at an address that it was shown for the memory that was there, as long as a client is
attached. So a mapping stays where it is until the process ends, and `free` gives its pages back alone.
"""

import ctypes
import logging
import mmap
import operator
import os
import weakref
from typing import Protocol

# The client's: this is a part of it.
logger = logging.getLogger("pagelith.compat.mooncake")

OK = 0
INVALID_PARAMS = -600

# linux/falloc.h and madvise(2); Python has not all of them.
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


# Those to which memory may be registered.
clients: "weakref.WeakValueDictionary[int, _Client]" = weakref.WeakValueDictionary()
# Of all allocators in this process: each address's allocator, descriptor and length. One operation of a dictionary at a time needs no lock.
_allocated: dict[int, tuple[object, int, int]] = {}


class MooncakeHostMemAllocator:
    """Host memory at page boundaries, which a store process copies from without its bytes being sent (`register_buffer` shows it).

    It stays until `free`, also where the allocator goes. A forked child does not have it.
    """

    def __init__(self) -> None:
        # What names it as an owner, without keeping it.
        self._owner = object()

    def alloc(self, size: int) -> int:
        """Its address; 0 if there is no such memory, and the log says why."""
        try:
            wanted = -1 if isinstance(size, bool) else operator.index(size)
        except TypeError:
            wanted = -1
        if wanted < 0:
            logger.error("pagelith: the size of host memory must be a whole number of bytes, at least 0 size=%r", size)
            return 0
        length = -(-max(wanted, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            address, fd = _mapped(length)
        except (OSError, OverflowError, ctypes.ArgumentError) as error:
            logger.error("pagelith: host memory cannot be allocated: %s size=%d", error, wanted)
            return 0
        _allocated[address] = (self._owner, fd, length)
        return address

    def free(self, address: int) -> int:
        """Give the pages back; what is registered there is registered no more."""
        owner, fd, length = _allocated.get(address, (None, -1, 0))
        if owner is not self._owner or _allocated.pop(address, None) is None:
            logger.error("pagelith: no memory of this allocator is at address=%r", address)
            return INVALID_PARAMS
        # A store of this process reads into the pages that were there when they were registered.
        for there in clients.valuerefs():
            client = there()
            if client is not None:
                client.forget_memory(address, length)
        if _libc.fallocate(fd, _FALLOC_FL_PUNCH_HOLE | _FALLOC_FL_KEEP_SIZE, 0, length) != 0:
            logger.warning("pagelith: freed host memory keeps its pages: %s length=%d", os.strerror(ctypes.get_errno()), length)
        os.close(fd)
        return OK


def _mapped(length: int) -> tuple[int, int]:
    """Zeros in a memfd, which a store process seals against becoming shorter and maps; their address and its descriptor."""
    fd = os.memfd_create("pagelith-host-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, length)
        address = _libc.mmap(None, length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
        # A child would write its parent's memory.
        if address in (None, _MAP_FAILED) or _libc.madvise(address, length, _MADV_DONTFORK) != 0:
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    except BaseException:
        os.close(fd)
        raise
    return address, fd


def _after_fork() -> None:
    """The memory is the parent's: nothing is mapped here at its addresses, and its clients' locks may be held for ever."""
    clients.clear()
    for _, fd, _ in _allocated.values():
        os.close(fd)
    _allocated.clear()


os.register_at_fork(after_in_child=_after_fork)


def is_host_memory(address: int, size: int) -> bool:
    """Whether its first and last byte can be read: the kernel says so, where a look would end the process."""
    read, write = os.pipe()
    try:
        at = (address, address + size - 1)
        return all(_libc.write(write, ctypes.c_void_p(byte), ctypes.c_size_t(1)) == 1 for byte in at)
    finally:
        os.close(read)
        os.close(write)

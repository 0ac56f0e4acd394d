"""Host memory of Mooncake's client: where it comes from, and whether an address is of it."""

import ctypes
import logging
import mmap
import os
import threading
import weakref

# The client's: this is a part of it.
logger = logging.getLogger("pagelith.compat.mooncake")

OK = 0
INVALID_PARAMS = -600

# By length, what was freed by whichever allocator: addresses and their memory.
_freed: dict[int, list[tuple[int, mmap.mmap]]] = {}
_lock = threading.Lock()


class MooncakeHostMemAllocator:
    """Host memory at page boundaries, which a store process copies from without its bytes being sent (`register_buffer` shows it).

    What is freed gives its pages back and keeps its addresses, for memory of the same length: a store process that was shown memory takes
    what lies at its addresses for that memory as long as a client is attached.
    """

    def __init__(self) -> None:
        self._maps: dict[int, mmap.mmap] = {}
        weakref.finalize(self, _free_all, self._maps).atexit = False

    def alloc(self, size: int) -> int:
        length = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        with _lock:
            freed = _freed.get(length)
            address, memory = freed.pop() if freed else _mapped(length)
            self._maps[address] = memory
        return address

    def free(self, address: int) -> int:
        memory = self._maps.pop(address, None)
        if memory is None:
            logger.error("pagelith: no memory of this allocator lies at %r", address)
            return INVALID_PARAMS
        _free_all({address: memory})
        return OK


def _free_all(maps: dict[int, mmap.mmap]) -> None:
    for address, memory in maps.items():
        memory.madvise(mmap.MADV_REMOVE)
        with _lock:
            _freed.setdefault(len(memory), []).append((address, memory))


def _mapped(length: int) -> tuple[int, mmap.mmap]:
    """Zeros in a memfd, which a store process seals against becoming shorter and maps."""
    fd = os.memfd_create("pagelith-host-memory", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, length)
        # It has a descriptor of its own.
        memory = mmap.mmap(fd, length)
    finally:
        os.close(fd)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)), memory


def is_host_memory(address: int, size: int) -> bool:
    """Whether its first and last byte can be read: the kernel says so, where a look would end the process."""
    read, write = os.pipe()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        at = (address, address + size - 1)
        return all(libc.write(write, ctypes.c_void_p(byte), ctypes.c_size_t(1)) == 1 for byte in at)
    finally:
        os.close(read)
        os.close(write)

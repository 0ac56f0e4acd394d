"""Stand-ins for those classes of LMCache that its adapter uses, with the members that it uses;
imported before the adapter."""

import ctypes
import hashlib
import os
import sys
import time
import types
from dataclasses import dataclass


def stand_in(name, **members):
    module = types.ModuleType(name)
    module.__dict__.update(members)
    sys.modules[name] = module


class Bitmap:
    def __init__(self, size):
        self.bits = [0] * size

    def set(self, at):
        self.bits[at] = 1


class Notifier:
    def __init__(self):
        self.fd = os.eventfd(0, os.EFD_NONBLOCK)

    def fileno(self):
        return self.fd

    def notify(self):
        os.eventfd_write(self.fd, 1)

    def close(self):
        os.close(self.fd)


class L2StoreResult:
    def __init__(self, success, bytes_transferred):
        self.said = (success, bytes_transferred)


class L2AdapterInterface:
    """LMCache's interface, with its byte counts, and with all notifications in one list."""

    def __init__(self, max_capacity_bytes=0):
        self.told, self.used = [], {}

    def _notify_keys_stored(self, keys, sizes):
        self.told.append(("stored", keys, sizes))
        for key, size in zip(keys, sizes, strict=True):
            self.used[key.cache_salt] = self.used.get(key.cache_salt, 0) + size

    def _notify_keys_accessed(self, keys):
        self.told.append(("accessed", keys))

    def _notify_keys_deleted(self, keys, sizes):
        self.told.append(("deleted", keys, sizes))
        for key, size in zip(keys, sizes, strict=True):
            self.used[key.cache_salt] -= size


for package in ("lmcache", "lmcache.v1", "lmcache.v1.distributed", "lmcache.v1.distributed.l2_adapters"):
    stand_in(package)
stand_in("lmcache.lmcache_native", Bitmap=Bitmap)
stand_in("lmcache.v1.platform", create_event_notifier=Notifier)
stand_in("lmcache.v1.distributed.internal_api", L2StoreResult=L2StoreResult)
stand_in("lmcache.v1.distributed.l2_adapters.base", L2AdapterInterface=L2AdapterInterface)


@dataclass(frozen=True)
class ObjectKey:
    chunk_hash: bytes
    model_name: str = "a/model"
    kv_rank: int = 0x01000100
    object_group_id: int = 0
    cache_salt: str = ""


@dataclass(frozen=True)
class DType:
    name: str
    itemsize: int

    def __str__(self):
        return f"torch.{self.name}"


BF16, FP16, UINT8 = DType("bfloat16", 2), DType("float16", 2), DType("uint8", 1)
SHAPE = (2, 4, 64, 8)
SIZE = 2 * 4 * 64 * 8 * 2


class Memory:
    """A memory object in LMCache's L1."""

    def __init__(self, seed=None, shapes=(SHAPE,), dtypes=(BF16,), device="cpu", room=None):
        self.length = sum(dtype.itemsize * _product(shape) for shape, dtype in zip(shapes, dtypes, strict=True))
        self.buffer = (ctypes.c_char * (self.length if room is None else room))()
        self.valid = True
        self.metadata = types.SimpleNamespace(shapes=list(shapes), dtypes=list(dtypes), shape=shapes[0], dtype=dtypes[0])
        self.raw_tensor = types.SimpleNamespace(
            device=types.SimpleNamespace(type=device), is_contiguous=lambda: True, numel=lambda: len(self.buffer), element_size=lambda: 1,
        )
        if seed is not None:
            self.buffer.raw = (hashlib.sha256(str(seed).encode()).digest() * (self.length // 32 + 1))[: self.length]

    @property
    def data_ptr(self):
        return ctypes.addressof(self.buffer)

    def get_size(self):
        return self.length

    def is_valid(self):
        return self.valid


def _product(shape):
    total = 1
    for length in shape:
        total *= length
    return total


def layouts(shapes=(SHAPE,), dtypes=(BF16,), group=0):
    return {group: types.SimpleNamespace(shapes=list(shapes), dtypes=list(dtypes))}


def keys(count, of="chunk", **fields):
    return [ObjectKey(hashlib.sha256(f"{of}{n}".encode()).digest(), **fields) for n in range(count)]


def signals(fd):
    try:
        return os.eventfd_read(fd)
    except BlockingIOError:
        return 0


def until(said, seconds=30):
    """Poll `said` until its result is not None; returns the result."""
    end = time.monotonic() + seconds
    while (answer := said()) is None:
        if time.monotonic() > end:
            raise AssertionError("not in time")
        time.sleep(0.001)
    return answer

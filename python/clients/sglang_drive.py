"""The operations of SGLang's scheduler on a cache controller: backup and prefetch of pages; and the
bytes of the pages."""

import ctypes
import random

import torch
from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang_parts import PAGE

WAIT = 60


def tokens_of(prompt, pages, page=PAGE):
    return [prompt * 100_000 + n for n in range(pages * page)]


def hashes_of(tokens, page=PAGE):
    return get_storage_hash_str(tokens, None, page_size=page)


def content(seed, length):
    return random.Random(seed).randbytes(length)


def pieces(host, indices):
    return list(zip(*host.get_page_buffer_meta(indices)))


def pieces_of_a_page(host):
    return len(pieces(host, slots(0, 1, host.page_size)))


def fill(host, indices, seed):
    for n, (at, length) in enumerate(pieces(host, indices)):
        ctypes.memmove(at, content((seed, n).__repr__(), length), length)


def wrong(host, indices, seed, count=None):
    """The number of pieces among the first `count` whose bytes differ from those that `fill`
    wrote."""
    given = pieces(host, indices)[:count]
    return sum(ctypes.string_at(at, length) != content((seed, n).__repr__(), length) for n, (at, length) in enumerate(given))


def slots(first, count, size=PAGE):
    return torch.arange(first * size, (first + count) * size, dtype=torch.int64)


def backup(controller, indices, tokens, extra_pools=None):
    """Back pages up; returns the number of tokens that the controller reports as stored."""
    more = {} if extra_pools is None else {"extra_pools": extra_pools}
    controller.write_storage(indices, tokens, hash_value=hashes_of(tokens, controller.page_size), **more)
    return controller.ack_backup_queue.get(timeout=WAIT).completed_tokens


def prefetch(controller, tokens, into, extra_pools=None):
    """Look up a prompt and read the stored pages into `into`; returns the tokens found, the tokens
    read, and the pages read from each pool other than KV."""
    more = {} if extra_pools is None else {"extra_pools": extra_pools}
    handle = CacheRequestHandle("request", 0) if extra_pools is not None else None
    if handle is None:
        operation = controller.prefetch("request", tokens)
    else:
        operation = controller.prefetch(handle, tokens, **more)
    found = controller.prefetch_hit_queue.get(timeout=WAIT).storage_hit_count
    if found == 0:
        return 0, 0, {}
    operation.host_indices = into[:found]
    controller.prefetch_buffer.put(operation)
    read, pools = 0, {}
    while True:
        ack = controller.ack_prefetch_queue.get(timeout=WAIT)
        read = max(read, ack.completed_tokens or 0)
        pools.update(getattr(ack, "pool_hits", None) or {})
        if ack.completed_req:
            return found, read, pools


def each_page(name):
    """A pool with state for each page of KV, in the same slots."""
    return PoolTransfer(name=name, indices_from_pool=PoolName.KV)


def last_pages(name, indices, keys):
    """A pool with state for the last pages only."""
    return PoolTransfer(name=name, host_indices=indices, keys=keys, hit_policy=PoolHitPolicy.TRAILING_PAGES)


def same_pages(name, source, keys):
    """A pool with state in the slots of another pool that has state for the last pages only."""
    return PoolTransfer(name=name, keys=keys, hit_policy=PoolHitPolicy.TRAILING_PAGES, indices_from_pool=source)

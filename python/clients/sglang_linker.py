"""SGLang's device pools, created for the CPU, below `pagelith.sglang.linker.Linker`: in host memory,
or in memory of a fake device, which only its driver can access.
"""

import contextlib
import ctypes
import math
import os
import random
import sys
from types import SimpleNamespace
from unittest import mock

import sglang_parts as parts
import sglang_stacks as stacks
import torch
from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, MHATokenToKVPool, MLATokenToKVPool
from sglang.srt.mem_cache.unified_cache import unified_cache_linker
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.mem_cache.unified_cache.linker_factory import create_unified_cache_linker

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "tests"))

import device_stand_ins  # noqa: E402

FULL, SWA, MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA
PAGE, PAGES = 64, 8


def configure():
    """SGLang's configuration of one rank."""
    parts.configure({}, enable_hierarchical_cache=False, hicache_storage_backend=None, page=PAGE)
    parts.place()


def settings(folder, **more):
    ssd = {"dirs": [folder], "bytes": "256MiB", "segment_bytes": "8MiB"}
    return {"store": {"dram": {"bytes": "64MiB"}, "index": {"max_objects": 10000}, "ssd": ssd}, **more}


class OnHost:
    """Pools in host memory."""

    forward_stream = None

    def memory(self):
        return contextlib.nullcontext()

    linking = memory

    def settle(self):
        pass

    def read(self, address, length):
        return ctypes.string_at(address, length)

    def write(self, address, content):
        ctypes.memmove(address, content, len(content))

    def compute(self, address, length, byte):
        """The forward pass writes."""
        ctypes.memset(address, byte, length)


class OnDevice:
    """Pools in memory of a fake device. The forward pass and the scheduler have a stream each."""

    def __init__(self):
        self.driver = device_stand_ins.Driver()
        self.forward_stream = device_stand_ins.Stream(self.driver.fake)

    @contextlib.contextmanager
    def memory(self):
        """What SGLang allocates here is memory of the device."""

        def zeros(*shape, size=None, dtype=torch.float32, **_):
            shape = size or (shape[0] if isinstance(shape[0], (tuple, list, torch.Size)) else shape)
            length = math.prod(shape) * dtype.itemsize
            if length == 0:
                return plain(shape, dtype=dtype)
            address = self.driver.fake.fake_device_allocate(0, length)
            return torch.frombuffer((ctypes.c_char * length).from_address(address), dtype=torch.uint8).view(dtype).reshape(shape)

        plain = torch.zeros
        with contextlib.ExitStack() as undo:
            for name in ("zeros", "empty"):
                undo.enter_context(mock.patch.object(torch, name, zeros))
            for name in ("zero_", "fill_"):
                # It is zeroed already.
                undo.enter_context(mock.patch.object(torch.Tensor, name, lambda tensor, *_: tensor))
            yield

    @contextlib.contextmanager
    def linking(self):
        """A linker that is created here finds its pools on the device, and SGLang's streams there."""
        from pagelith.sglang import linker

        with contextlib.ExitStack() as undo:
            undo.enter_context(mock.patch.object(linker, "device_of", lambda buffer: self.driver.device))
            undo.enter_context(mock.patch.object(torch, "get_device_module", lambda kind: self.driver.module))
            undo.enter_context(mock.patch.object(unified_cache_linker, "device_module", self.driver.module))
            yield

    def settle(self):
        self.driver.drain()

    def read(self, address, length):
        return self.driver.read(address, length)

    def write(self, address, content):
        self.driver.write(address, content)

    def compute(self, address, length, byte):
        """The forward pass writes, later."""
        self.driver.fill(address, length, byte, self.forward_stream)


def plain_heads():
    return MHATokenToKVPool(PAGES * PAGE, PAGE, torch.bfloat16, 2, 32, 5, "cpu", False), {FULL}, None


def plain_latent():
    return MLATokenToKVPool(PAGES * PAGE, PAGE, torch.bfloat16, 64, 16, 5, "cpu", False), {FULL}, None


def sparse():
    return stacks.sparse(page=PAGE), {FULL}, None


def window():
    return stacks.window_pools(PAGE), {FULL, SWA}, None


def recurrent(**more):
    states = stacks.states([0, 2])
    pool = HybridLinearKVPool(
        size=PAGES * PAGE, dtype=torch.bfloat16, page_size=PAGE, head_num=2, head_dim=32, full_attention_layer_ids=[1, 3], device="cpu",
        mamba_pool=states, **more,
    )
    return pool, {FULL, MAMBA}, states


def recurrent_and_latent():
    return recurrent(use_mla=True, kv_lora_rank=64, qk_rope_head_dim=16)


def recurrent_and_window():
    return stacks.window_pools(PAGE), {FULL, SWA, MAMBA}, stacks.states([4, 5])


def deepseek_v4():
    # A page of SGLang's V4 is one row of the window.
    return stacks.v4_pools(256, (4, 128, 4, 128)), {FULL, SWA}, None


MODELS = {
    "heads": plain_heads, "latent": plain_latent, "sparse": sparse, "window": window, "recurrent": recurrent,
    "recurrent and latent": recurrent_and_latent, "recurrent and window": recurrent_and_window, "deepseek v4": deepseek_v4,
}  # fmt: skip


def pieces(linker, transfers, layer):
    """The memory of a layer of these pages: the address of each piece, and its content, by its
    page."""
    for one in linker._group.resolve_transfers(transfers, allow_partial=True):
        entry = linker.pools[one.name]
        for key, row in zip(one.keys, entry.prepare_locations(one.host_indices), strict=True):
            meta = entry.get_prepared_layer_range_meta([row], layer)
            for n, (address, length) in enumerate(zip(meta[0][0], meta[1][0], strict=True) if meta else ()):
                yield address, random.Random(f"{entry.name} {key} {layer} {n}").randbytes(length)


class Model:
    """A model's pools, their linker, and SGLang's operations on it."""

    def __init__(self, name, place, extra, **different):
        self.place, self.page = place, 256 if name == "deepseek v4" else PAGE
        # A number keeps models of one kind apart.
        kind = name.rstrip(" 123456789") if name not in MODELS else name
        with place.memory():
            self.pool, self.components, states = MODELS[kind]()
        nothing = SimpleNamespace(enabled=False)
        requests = SimpleNamespace(
            mamba_pool=states, mamba_map=states and {layer: n for n, layer in enumerate(states.mamba_layer_ids)},
            mamba_ckpt_pool=None, short_conv_pool=nothing, ngram_pool=nothing, register_layer_transfer_counter=lambda counter: None,
        )
        params = SimpleNamespace(
            page_size=self.page, token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: self.pool), req_to_token_pool=requests,
            mtp_draft_device_pools=(), sidecar_draft_device_pools=(), attn_tp_cache_group=None, tp_cache_group=parts.one_rank_group(), pp_rank=0,
            pp_size=1, attn_cp_rank=0, attn_cp_size=1,
        )
        for field, value in different.items():
            setattr(params, field, value)
        config = {"linker": "Linker", "linker_module_path": "pagelith.sglang.linker", "linker_extra_config": extra}
        with place.linking():
            self.linker = create_unified_cache_linker(
                None, params, backend="dynamic", config=config, components=self.components, forward_stream=place.forward_stream
            )

    def transfers(self, hashes, first, slots=True):
        """SGLang's transfers of these pages, from page `first` of each pool on: all pages, the last
        two of a window, and the last state."""

        def of(name, keys, size, at):
            policy = {} if name == PoolName.KV else {"hit_policy": PoolHitPolicy.TRAILING_PAGES}
            indices = torch.arange(at * size, (at + len(keys)) * size, dtype=torch.int64) if slots else None
            return PoolTransfer(name=name, keys=list(keys), device_indices=indices, **policy)

        found = [of(PoolName.KV, hashes, self.page, first)]
        if SWA in self.components:
            found.append(of(PoolName.SWA, hashes[-2:], self.page, first))
        if MAMBA in self.components:
            found.append(of(PoolName.MAMBA, hashes[-1:], 1, first + 1))
        return found

    def pieces(self, transfers, layer):
        return pieces(self.linker, transfers, layer)

    @property
    def layers(self):
        return range(self.linker._group.num_layers)

    def fill(self, transfers):
        for layer in self.layers:
            for address, content in self.pieces(transfers, layer):
                self.place.write(address, content)

    def wrong(self, transfers, layer):
        """Number of pieces of a layer whose bytes are not those that `fill` wrote."""
        return sum(self.place.read(address, len(content)) != content for address, content in self.pieces(transfers, layer))

    def spoil(self, transfers):
        for layer in self.layers:
            for address, content in self.pieces(transfers, layer):
                self.place.write(address, bytes(len(content)))

    def offload(self, transfers):
        """Whether the pages were stored."""
        with self.place.linking():
            assert self.linker.offload(transfers)
            self.linker._offloads.join()
        assert self.linker.num_completed_offloads() == 1
        return self.linker.pop_completed_offload()

    def start(self, loads):
        """Start loads, by request; returns their index."""
        with self.place.linking():
            for request, transfers in loads.items():
                assert self.linker.load(request, transfers)
            index = self.linker.start_layer_wise_loading()
        self.linker.layer_done_counter.set_consumer(index)
        return index

    def load(self, transfers):
        """Load, and compare each layer as soon as SGLang would use it; returns whether SGLang is told
        that all landed, and the number of wrong pieces."""
        index = self.start({"request": transfers})
        wrong = 0
        for layer in self.layers:
            self.linker.layer_done_counter.wait_until(layer)
            wrong += self.wrong(transfers, layer)
        return self.linker.finish_layer_wise_loading(index), wrong

    def close(self):
        with self.place.linking():
            self.linker.close()
        self.place.settle()

"""vLLM's tiered offloading on a machine without a GPU: copies between GPU and host memory are made
within host memory.

An offloading spec, selected by `"spec_name": "HostCopies", "spec_module_path": "vllm_host_copies"`.
Everything else is vLLM's own: its manager, its primary tier, its worker and the shared region of
host memory.
"""

import contextlib
import ctypes

import torch
from vllm.platforms import current_platform
from vllm.v1.kv_offload.cpu import gpu_worker
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class OnGpu(torch.Tensor):
    """A tensor of the engine that reports the device which the worker requires."""

    is_cuda = True


class Handler(gpu_worker.SingleDirectionOffloadingHandler):
    def __init__(self, gpu_tensors, *arguments, **more):
        super().__init__([tensor.as_subclass(OnGpu) for tensor in gpu_tensors], *arguments, **more)


class Done:
    """A stream, and an event on it: all submitted operations are complete."""

    def __init__(self, **_):
        pass

    def wait_stream(self, _):
        pass

    wait_event = wait_stream

    def record(self, _=None):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, _):
        return 1.0


class PatchedModule:
    """A module with some of its names replaced."""

    def __init__(self, module, **names):
        self.__dict__.update(names, _module=module)

    def __getattr__(self, name):
        return getattr(self._module, name)


def copy(sources, destinations, lengths, **_):
    for source, destination, length in zip(sources.tolist(), destinations.tolist(), lengths.tolist()):
        ctypes.memmove(destination, source, length)


gpu_worker.SingleDirectionOffloadingHandler = Handler
gpu_worker.HAS_TRITON = False
gpu_worker.ops = PatchedModule(None, swap_blocks_batch=copy)
gpu_worker.torch = PatchedModule(torch, Event=Done)
gpu_worker.current_platform = PatchedModule(
    current_platform, Stream=Done, current_stream=Done, stream=lambda _: contextlib.nullcontext()
)


class HostCopies(TieringOffloadingSpec):
    def get_worker(self, kv_caches):
        if not self._worker:
            self._worker = self.create_worker(kv_caches)
        return self._worker

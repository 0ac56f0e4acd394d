"""Stand-ins for the classes of vLLM that `pagelith.vllm` uses, so that it is tested wherever the
wheel is built."""

import enum
import sys
import types
from dataclasses import dataclass, field
from typing import Any


def stand_in(name, **members):
    module = sys.modules.get(name)
    if module is None:
        module = sys.modules[name] = types.ModuleType(name)
    module.__dict__.update(members)


for package in (
    "vllm", "vllm.v1", "vllm.v1.kv_offload", "vllm.v1.kv_offload.tiering", "vllm.v1.core", "vllm.distributed", "vllm.distributed.kv_transfer",
    "vllm.distributed.kv_transfer.kv_connector", "vllm.distributed.kv_transfer.kv_connector.v1",
):
    stand_in(package)

# The model's configuration.

stand_in("vllm", __version__="0.33.0")
platform = types.SimpleNamespace(device_type="cuda", get_device_capability=lambda: "9.0", get_device_name=lambda: "a GPU")
stand_in("vllm.platforms", current_platform=platform)


def model_config(**different):
    """vLLM's configuration of a Hub model, with the fields that are read."""
    hf = {"architectures": ["Llama"], "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, **different.pop("hf", {})}
    known = dict(
        model="a/model", model_weights="", dtype="bf16", revision=None, code_revision=None, quantization=None, quantization_config=None,
        max_model_len=4096, hf_config_path=None, seed=0, tokenizer="a/tokenizer", served_model_name="served", max_logprobs=20,
    )
    config = types.SimpleNamespace(**{**known, **different})
    config.hf_config = types.SimpleNamespace(to_dict=lambda: {**hf, "_name_or_path": "/anywhere"}, _commit_hash=different.get("commit", "c" * 40))
    return config


def vllm_config(model=None, load=None, cache=None, **different):
    """vLLM's whole configuration."""
    load = {"load_format": "auto", "model_loader_extra_config": {}, "download_dir": None, **(load or {})}
    caches = dict(
        cache_dtype="auto", kv_cache_dtype_skip_layers=[], mamba_cache_dtype="auto", mamba_ssm_cache_dtype="auto", block_size=16, num_gpu_blocks=None,
        prefix_caching_hash_algo="sha256", gpu_memory_utilization=0.9, enable_prefix_caching=True,
    )
    known = dict(
        model_config=model or model_config(), load_config=types.SimpleNamespace(**load), cache_config=types.SimpleNamespace(**{**caches, **(cache or {})}),
        attention_config=types.SimpleNamespace(backend=None), speculative_config=None, lora_config=None,
        parallel_config=types.SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        kv_transfer_config=types.SimpleNamespace(kv_connector_extra_config={"cpu_bytes_to_use": 1}),
    )
    return types.SimpleNamespace(**{**known, **different})


# Tiered offloading.


class SecondaryTierManager:
    def __init__(self, offloading_spec, primary_kv_view, tier_type, backpressure_detector=None):
        self._primary_kv_view = primary_kv_view
        self._block_size_bytes = primary_kv_view.strides[0]
        self.tier_type = tier_type


class AsyncLookupManager:
    """vLLM's class, without its thread: results are available after `flush`."""

    def __init__(self, tier_type):
        self.answers, self.asked = {}, []

    def lookup(self, key, req_context):
        if key not in self.answers:
            self.answers[key] = None
            self.asked.append(key)
        return self.answers[key]

    def flush(self):
        self.answers.update(zip(self.asked, self.batch_lookup(self.asked, None), strict=True))
        self.asked = []

    def mark_miss(self, keys):
        self.answers.update(dict.fromkeys(keys, False))

    def cleanup(self, req_id):
        self.answers.clear()

    def shutdown(self):
        pass


@dataclass
class JobResult:
    job_id: int
    success: bool
    successful_keys: Any = None
    transfer_time: float | None = None
    transfer_bytes: int | None = None


@dataclass
class OffloadingEvent:
    keys: list
    medium: Any
    removed: bool
    locality: Any = None


Medium = enum.Enum("Medium", ["CPU", "STORAGE"])
Locality = enum.Enum("Locality", {"LOCAL": "LOCAL", "REMOTE": "REMOTE"})
LookupResult = enum.Enum("LookupResult", ["MISS", "HIT", "HIT_PENDING", "RETRY"])
stand_in(
    "vllm.v1.kv_offload.base",
    Locality=Locality, LookupResult=LookupResult, Medium=Medium, OffloadingEvent=OffloadingEvent, RequestOffloadingContext=object,
)
stand_in("vllm.v1.kv_offload.tiering.base", JobResult=JobResult, SecondaryTierManager=SecondaryTierManager)
stand_in("vllm.v1.kv_offload.tiering.async_lookup", AsyncLookupManager=AsyncLookupManager)

# Connectors.

KVConnectorRole = enum.Enum("KVConnectorRole", ["SCHEDULER", "WORKER"])


class KVConnectorBase_V1:
    def __init__(self, vllm_config, role, kv_cache_config):
        self._vllm_config, self._role, self._kv_cache_config = vllm_config, role, kv_cache_config

    def bind_connector_metadata(self, metadata):
        self._bound_metadata = metadata

    def _get_connector_metadata(self):
        return self._bound_metadata


class Nothing:
    pass


@dataclass
class KVConnectorTransferResults:
    finished_sending: set = field(default_factory=set)
    finished_recving: set = field(default_factory=set)
    failed_recving: set = field(default_factory=set)


stand_in(
    "vllm.distributed.kv_transfer.kv_connector.v1.base",
    KVConnectorBase_V1=KVConnectorBase_V1, KVConnectorRole=KVConnectorRole, SupportsHMA=Nothing,
    KVConnectorHandshakeMetadata=Nothing, KVConnectorMetadata=Nothing, KVConnectorWorkerMetadata=Nothing,
    KVConnectorTransferResults=KVConnectorTransferResults,
)


class OffloadingConnector(KVConnectorBase_V1):
    """vLLM's class, which reads its configuration when it is created."""

    def __init__(self, vllm_config, role, kv_cache_config):
        super().__init__(vllm_config, role, kv_cache_config)
        self.extra_config = dict(vllm_config.kv_transfer_config.kv_connector_extra_config)


stand_in("vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector", OffloadingConnector=OffloadingConnector)


@dataclass
class Spec:
    block_size: int
    kind: str = "full_attention"
    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    prefix_cacheable: bool = True
    mamba_cache_mode: str = "align"
    num_speculative_blocks: int = 0
    dcp_sharded: bool = False
    non_causal: bool = False
    rswa_window: int | None = None


stand_in(
    "vllm.v1.kv_cache_interface",
    get_kv_cache_spec_kind=lambda spec: types.SimpleNamespace(value=spec.kind),
    get_kv_cache_spec_sliding_window=lambda spec: spec.sliding_window,
)


@dataclass
class BlockStored:
    block_hashes: list
    parent_block_hash: bytes | None
    token_ids: list
    block_size: int
    lora_id: int | None
    medium: str
    lora_name: str | None
    group_idx: int
    kv_cache_spec_kind: str
    kv_cache_spec_sliding_window: int | None
    locality: str | None


@dataclass
class BlockRemoved:
    block_hashes: list
    medium: str
    group_idx: int
    locality: str | None


stand_in("vllm.distributed.kv_events", MEDIUM_STORAGE="STORAGE", BlockRemoved=BlockRemoved, BlockStored=BlockStored)
stand_in("vllm.model_executor.layers.mamba.mamba_utils", is_conv_state_dim_first=lambda: False)
stand_in("vllm.v1.core.kv_cache_utils", maybe_convert_block_hash=lambda name: name)


class Cache:
    """A tensor of bytes in host memory, with vLLM's shape [blocks, heads, tokens, content] over any
    order of axes."""

    def __init__(self, shape, order=(0, 1, 2, 3), device="cpu"):
        self.shape, self.dtype, self.device = shape, "int8", types.SimpleNamespace(type=device)
        steps, step = [0] * len(shape), 1
        for axis in reversed(order):
            steps[axis], step = step, step * shape[axis]
        self._steps = tuple(steps)
        self.allocate(step)

    def allocate(self, length):
        self.memory = bytearray(length)
        self._address = address(self.memory)

    def stride(self, axis=None):
        return self._steps if axis is None else self._steps[axis]

    def element_size(self):
        return 1

    def data_ptr(self):
        return self._address

    def at(self, block):
        """The offsets of a block's bytes."""
        start, places = block * self._steps[0], [0]
        for size, step in zip(self.shape[1:], self._steps[1:]):
            places = [place + n * step for place in places for n in range(size)]
        return [start + place for place in places]

    def fill(self, block, byte):
        for n, place in enumerate(self.at(block)):
            self.memory[place] = (byte + n) % 251

    def block(self, block):
        return bytes(self.memory[place] for place in self.at(block))


def address(memory):
    import ctypes

    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@dataclass
class Request:
    """The fields of a request that the connector reads."""

    request_id: str
    num_tokens: int
    block_hashes: list
    skip_reading_prefix_cache: bool = False
    lora_request: Any = None
    # Without an answer, all of them.
    prompt_tokens: int | None = None

    @property
    def num_prompt_tokens(self):
        return self.num_tokens if self.prompt_tokens is None else self.prompt_tokens

    @property
    def all_token_ids(self):
        return list(range(self.num_tokens))


@dataclass
class New:
    req_id: str
    block_ids: tuple
    num_computed_tokens: int


@dataclass
class Cached:
    req_ids: list = field(default_factory=list)
    resumed_req_ids: set = field(default_factory=set)
    new_block_ids: list = field(default_factory=list)
    num_computed_tokens: list = field(default_factory=list)


@dataclass
class Output:
    scheduled_new_reqs: list = field(default_factory=list)
    scheduled_cached_reqs: Cached = field(default_factory=Cached)
    num_scheduled_tokens: dict = field(default_factory=dict)
    finished_req_ids: set = field(default_factory=set)
    preempted_req_ids: set | None = None
    kv_connector_block_state: Any = None


class Blocks:
    def __init__(self, *ids):
        self._ids = ids

    def get_block_ids(self):
        return self._ids

"""LMCache in the engine's own process: a remote connector, which LMCache loads as a remote storage
plugin.

LMCache calls it from its event loop. Batches are submitted (`Store.submit_get`), so the loop is not
blocked. The metadata of a chunk (length, shapes, types) is an object of its own, visible together
with the bytes: the last chunk of a prompt is shorter than the others, and its key does not say so.
"""

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

import pagelith

from ..identity import Identity, ModelError, admit
from ..identity.host import model_of_this_process, replica_of_this_process, vllm_config, vllms_transfer
from ..settings import StoreSettings, milliseconds
from ..vllm.policy import warn_of_failed_loads

logger = logging.getLogger(__name__)

# Prefix of each key of this plugin in LMCache's `extra_config`.
PREFIX = "remote_storage_plugin.pagelith."


@dataclass(frozen=True)
class ConnectorSettings(StoreSettings):
    """The keys of `extra_config` with the prefix `remote_storage_plugin.pagelith.`"""

    put_wait_ms: int = milliseconds(1000)
    # LMCache itself waits for `blocking_timeout_secs`, 10 by default.
    get_timeout_ms: int = milliseconds(5000)
    # Longest wait of a lookup for a store process, which blocks LMCache's event loop.
    look_timeout_ms: int = milliseconds(1000)


class _Names(NamedTuple):
    """Key templates, without a page, for a chunk's bytes and its metadata."""

    # Fingerprint of the model.
    model: str
    bytes: pagelith.Key
    facts: pagelith.Key


def _check(lmcache: Any, vllm: Any) -> None:
    """Raise if LMCache would use a chunk that was not read, or if its keys do not contain something
    on which the bytes under this engine depend."""
    if lmcache.use_layerwise:
        raise ValueError(
            "pagelith: LMCache's 'use_layerwise' is true, but LMCache then reports a chunk with a missing layer as loaded: set use_layerwise: false"
        )
    if vllm is None:
        return
    if not lmcache.enable_async_loading:
        raise ValueError(
            "pagelith: LMCache's 'enable_async_loading' is false, but after a chunk that could not be read LMCache then stores those computed on it:"
            " set enable_async_loading: true"
        )
    algorithm = str(lmcache.pre_caching_hash_algorithm)
    if not algorithm.startswith("sha256") and os.environ.get("PYTHONHASHSEED", "random") in ("", "random"):
        raise ValueError(
            f"pagelith: LMCache's 'pre_caching_hash_algorithm' is {algorithm!r}, whose hashes differ in each process, so no chunk is found after a"
            " restart: set pre_caching_hash_algorithm: sha256_cbor, or the environment variable PYTHONHASHSEED"
        )
    instead = "keys: start vLLM without {}, or use pagelith.vllm.PagelithOffloadingConnector"
    if vllm.lora_config is not None:
        raise ModelError(f"pagelith: vLLM's 'lora_config' is set, but LoRA adapters are not in LMCache's {instead.format('--enable-lora')}")
    if vllm.model_config.enable_prompt_embeds:
        raise ModelError(
            f"pagelith: vLLM's 'enable_prompt_embeds' is true, but prompt embeddings are not in LMCache's {instead.format('--enable-prompt-embeds')}"
        )


class PagelithConnector(RemoteConnector):
    """An embedded store, or a store process, below LMCache's own memory."""

    def __init__(self, loop: asyncio.AbstractEventLoop, local_cpu_backend: Any, config: Any) -> None:
        metadata = local_cpu_backend.metadata
        super().__init__(local_cpu_backend.config, metadata)
        self._metadata, self._serde = metadata, str(config.remote_serde)
        given = {name: value for name, value in (config.extra_config or {}).items() if str(name).startswith(PREFIX)}
        ours = {name.removeprefix(PREFIX): value for name, value in given.items()}
        for name in ("module_path", "class_name"):
            ours.pop(name, None)
        where = "extra_config (remote_storage_plugin.pagelith.*)"
        self.settings = ConnectorSettings.read(where, ours)
        # Before the model is identified: LMCache connects again where the engine's configuration is
        # not set, and would be accepted then.
        _check(config, vllm_config())
        self._model, self._where = model_of_this_process(), where
        admit(self._model().identity, self.settings.revision, where)
        warn_of_failed_loads(logger, vllms_transfer())
        self._memory = local_cpu_backend
        self._put_wait = self.settings.put_wait_ms / 1000
        self._get_timeout = self.settings.get_timeout_ms / 1000
        self._look_timeout = self.settings.look_timeout_ms / 1000
        self._names: _Names | None = None
        self._failures = self.settings.failures(logger)
        # LMCache's numbers are those within a replica.
        replica = replica_of_this_process()
        self._store = self.settings.open(f"lmcache_{metadata.worker_id}of{metadata.world_size}" + (f"_dp{replica}" if replica else ""))

    def _current_names(self, writes: bool = False) -> _Names:
        """The current key templates: SGLang may have replaced the model's weights since the last
        call."""
        now = self._model()
        names = self._names
        if names is None or names.model != now.identity.fingerprint:
            admit(now.identity, self.settings.revision, self._where)
            names = self._names = self._make_names(now.identity)
        if writes and now.stale:
            raise pagelith.InvalidError("the model's weights were replaced at run time, and LMCache may hold chunks of the old ones: restart the server to store chunks")
        return names

    def _make_names(self, model: Identity) -> _Names:
        metadata = self._metadata
        shapes = " ".join(f"{list(shape)} {kind}" for shape, kind in zip(self.meta_shapes, self.meta_dtypes, strict=True))
        space = pagelith.Namespace(
            metadata.model_name,
            tenant=self.settings.tenant,
            revision=self.settings.revision,
            dtype=str(metadata.kv_dtype),
            page_tokens=int(metadata.chunk_size),
            layout=str(self.meta_fmt),
            extra=[("client", "lmcache-engine"), model.extra, ("chunk", shapes), ("serde", self._serde)],
        )
        # Templates without a page; a worker's key contains its number.
        return _Names(model.fingerprint, *(pagelith.Key(space, bytes(32), component=name) for name in ("k", "facts")))

    def _keys_on(self, key: pagelith.Key, keys: Sequence[Any]) -> list[pagelith.Key]:
        return key.on_pages([one.to_string() for one in keys])

    # Lookups.

    def exists_sync(self, key: Any) -> bool:
        return self.batched_contains([key]) == 1

    async def exists(self, key: Any) -> bool:
        return self.exists_sync(key)

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: list[Any]) -> int:
        try:
            return self._store.exists_prefix(self._keys_on(self._current_names().bytes, keys), timeout=self._look_timeout)
        except (pagelith.PagelithError, ModelError) as error:
            self._failures.call("lookup", error)
            return 0

    async def batched_async_contains(self, lookup_id: str, keys: list[Any], pin: bool = False) -> int:
        return self.batched_contains(keys)

    # Reads.

    async def get(self, key: Any) -> Any:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: list[Any]) -> list[Any]:
        """The chunks, each in memory from LMCache; `None` for a chunk that is not stored, or for
        which there is no memory."""
        found: list[Any] = [None] * len(keys)
        try:
            names = self._current_names()
        except ModelError as error:
            self._failures.call("read", error)
            return found
        facts = [bytearray(self.remote_metadata_bytes) for _ in keys]
        present = await self._read_batch(self._keys_on(names.facts, keys), facts)
        whole: set[int] = set()
        try:
            for at in (at for at, is_present in enumerate(present) if is_present):
                metadata = RemoteMetadata.deserialize(facts[at])
                # Otherwise LMCache sleeps on this event loop until other requests free memory.
                found[at] = self._memory.allocate(metadata.shapes, metadata.dtypes, metadata.fmt, busy_loop=False)
                if found[at] is None:
                    break
            wanted = [at for at, memory in enumerate(found) if memory is not None]
            objects = self._keys_on(names.bytes, [keys[at] for at in wanted])
            read = await self._read_batch(objects, [found[at].byte_array for at in wanted])
            whole.update(at for at, ok in zip(wanted, read, strict=True) if ok)
        finally:
            # The batch has ended, so nothing writes to this memory any more.
            for at, memory in enumerate(found):
                if memory is not None and at not in whole:
                    memory.ref_count_down()
                    found[at] = None
        return found

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[Any]) -> list[Any]:
        """The chunks before the first one that is not stored."""
        found = await self.batched_get(keys)
        end = next((at for at, memory in enumerate(found) if memory is None), len(found))
        for memory in found[end:]:
            if memory is not None:
                memory.ref_count_down()
        return found[:end]

    async def _read_batch(self, objects: list[pagelith.Key], into: list[Any]) -> list[bool]:
        try:
            outcomes = await self._outcomes_of(self._store.submit_get(objects, into, timeout=self._get_timeout))
        except pagelith.PagelithError as error:
            self._failures.call("read", error)
            return [False] * len(objects)
        self._failures.read(objects, outcomes)
        return [bool(outcome) for outcome in outcomes]

    # Writes.

    async def put(self, key: Any, memory_obj: Any) -> None:
        await self.batched_put([key], [memory_obj])

    def support_batched_put(self) -> bool:
        return True

    async def batched_put(self, keys: list[Any], memory_objs: list[Any]) -> None:
        objects, sources = [], []
        # A repeated key is put once.
        chunks: dict[str, tuple[Any, Any]] = {}
        for key, memory in zip(keys, memory_objs, strict=True):
            chunks.setdefault(key.to_string(), (key, memory))
        named = [key for key, _ in chunks.values()]
        try:
            known = self._current_names(writes=True)
            names = zip(self._keys_on(known.facts, named), self._keys_on(known.bytes, named), strict=True)
            for (facts, chunk), (_, memory) in zip(names, chunks.values(), strict=True):
                held = memory.byte_array
                metadata = RemoteMetadata(len(held), memory.get_shapes(), memory.get_dtypes(), memory.get_memory_format())
                objects += [facts, chunk]
                sources += [metadata.serialize(), held]
            outcomes = await self._outcomes_of(self._store.submit_put_pages(objects, sources, wait=self._put_wait))
        except (pagelith.PagelithError, ModelError) as error:
            self._failures.call("write", error)
            return
        self._failures.written(outcomes)

    @staticmethod
    async def _outcomes_of(batch: Any) -> Any:
        """The outcomes of a batch. A cancelled task waits for the batch all the same: LMCache
        reuses the memory afterwards."""
        try:
            return await batch
        except asyncio.CancelledError:
            batch.result()
            raise

    # Removals and close.

    def remove_sync(self, key: Any) -> bool:
        try:
            return self._store.remove(self._keys_on(self._current_names().bytes, [key])) > 0
        except (pagelith.PagelithError, ModelError) as error:
            self._failures.call("removal", error)
            return False

    async def list(self) -> list[str]:
        """A store has only hashes of keys, so this is empty."""
        return []

    async def close(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._store.close)
        finally:
            # If no thread could be started. A second close does nothing.
            self._store.close()

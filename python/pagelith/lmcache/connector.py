"""LMCache in the engine's own process: a remote connector, which its engine loads as a remote storage plugin.

LMCache calls from its event loop. Batches are handed over to the store (`Store.submit_get`), so that the loop goes on. What a chunk is (length, shapes,
types) lies beside its bytes, visible with them: LMCache's last chunk of a prompt is shorter than the others, and a key does not say so.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from lmcache.v1.protocol import RemoteMetadata
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

import pagelith

from ..identity import Identity, ModelError, admit
from ..identity.host import model_of_this_process, vllms_transfer
from ..settings import StoreSettings, milliseconds
from ..vllm.policy import warn_of_failed_loads

logger = logging.getLogger(__name__)

# Before each key of this plugin in LMCache's `extra_config`.
PREFIX = "remote_storage_plugin.pagelith."


@dataclass(frozen=True)
class ConnectorSettings(StoreSettings):
    """The keys of `extra_config` behind `remote_storage_plugin.pagelith.`"""

    put_wait_ms: int = milliseconds(1000)
    # LMCache itself waits for `blocking_timeout_secs`, 10 unless told otherwise.
    get_timeout_ms: int = milliseconds(5000)
    # Longest that a look-up waits for a store process: LMCache's loop waits behind it.
    look_timeout_ms: int = milliseconds(1000)


class _Names(NamedTuple):
    """Of a chunk's bytes and of what it is, on no page."""

    # Of the model, as `Identity` has it.
    model: str
    bytes: pagelith.Key
    facts: pagelith.Key


class PagelithConnector(RemoteConnector):
    """A store of this process, or a store process, behind LMCache's own memory."""

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
        self._model, self._where = model_of_this_process(), where
        admit(self._model().identity, self.settings.revision, where)
        warn_of_failed_loads(logger, vllms_transfer())
        self._memory = local_cpu_backend
        self._wait = self.settings.put_wait_ms / 1000
        self._timeout = self.settings.get_timeout_ms / 1000
        self._look = self.settings.look_timeout_ms / 1000
        self._names: _Names | None = None
        self._failures = self.settings.failures(logger)
        self._store = self.settings.open(f"lmcache_{metadata.worker_id}of{metadata.world_size}")

    def _known(self, writes: bool = False) -> _Names:
        """The names that chunks have now: SGLang may have replaced the model's weights since the last call."""
        now = self._model()
        names = self._names
        if names is None or names.model != now.identity.fingerprint:
            admit(now.identity, self.settings.revision, self._where)
            names = self._names = self._named(now.identity)
        if writes and now.stale:
            raise pagelith.InvalidError("the model's weights were replaced at run time, and LMCache may hold chunks of the old ones: restart the server to store chunks")
        return names

    def _named(self, model: Identity) -> _Names:
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
        # On no page; a worker's key says which worker's it is.
        return _Names(model.fingerprint, *(pagelith.Key(space, bytes(32), component=name) for name in ("k", "facts")))

    def _on(self, key: pagelith.Key, keys: Sequence[Any]) -> list[pagelith.Key]:
        return key.on_pages([one.to_string() for one in keys])

    # Look-ups.

    def exists_sync(self, key: Any) -> bool:
        return self.batched_contains([key]) == 1

    async def exists(self, key: Any) -> bool:
        return self.exists_sync(key)

    def support_batched_contains(self) -> bool:
        return True

    def batched_contains(self, keys: list[Any]) -> int:
        try:
            return self._store.exists_prefix(self._on(self._known().bytes, keys), timeout=self._look)
        except (pagelith.PagelithError, ModelError) as error:
            self._failures.call("look-up", error)
            return 0

    async def batched_async_contains(self, lookup_id: str, keys: list[Any], pin: bool = False) -> int:
        return self.batched_contains(keys)

    # Reads.

    async def get(self, key: Any) -> Any:
        return (await self.batched_get([key]))[0]

    def support_batched_get(self) -> bool:
        return True

    async def batched_get(self, keys: list[Any]) -> list[Any]:
        """The chunks, each in memory of LMCache's; `None` for one that is not here, or that there is no memory for."""
        found: list[Any] = [None] * len(keys)
        try:
            names = self._known()
        except ModelError as error:
            self._failures.call("read", error)
            return found
        facts = [bytearray(self.remote_metadata_bytes) for _ in keys]
        here = await self._got(self._on(names.facts, keys), facts)
        for at, chunk in enumerate(facts):
            if here[at]:
                told = RemoteMetadata.deserialize(chunk)
                found[at] = self._memory.allocate(told.shapes, told.dtypes, told.fmt)
        wanted = [at for at, memory in enumerate(found) if memory is not None]
        whole: list[bool] = [False] * len(wanted)
        try:
            objects = self._on(names.bytes, [keys[at] for at in wanted])
            whole = await self._got(objects, [found[at].byte_array for at in wanted])
        finally:
            # Whatever came of it, nobody writes there any more.
            for at, ok in zip(wanted, whole, strict=True):
                if not ok:
                    found[at].ref_count_down()
                    found[at] = None
        return found

    async def batched_get_non_blocking(self, lookup_id: str, keys: list[Any]) -> list[Any]:
        """The chunks before the first that is not here."""
        found = await self.batched_get(keys)
        here = next((at for at, memory in enumerate(found) if memory is None), len(found))
        for memory in found[here:]:
            if memory is not None:
                memory.ref_count_down()
        return found[:here]

    async def _got(self, objects: list[pagelith.Key], into: list[Any]) -> list[bool]:
        try:
            outcomes = await self._ended(self._store.submit_get(objects, into, timeout=self._timeout))
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
        # A key that is given twice is put once.
        chunks: dict[str, tuple[Any, Any]] = {}
        for key, memory in zip(keys, memory_objs, strict=True):
            chunks.setdefault(key.to_string(), (key, memory))
        named = [key for key, _ in chunks.values()]
        try:
            known = self._known(writes=True)
            names = zip(self._on(known.facts, named), self._on(known.bytes, named), strict=True)
            for (facts, chunk), (_, memory) in zip(names, chunks.values(), strict=True):
                held = memory.byte_array
                told = RemoteMetadata(len(held), memory.get_shapes(), memory.get_dtypes(), memory.get_memory_format())
                objects += [facts, chunk]
                sources += [told.serialize(), held]
            outcomes = await self._ended(self._store.submit_put_pages(objects, sources, wait=self._wait))
        except (pagelith.PagelithError, ModelError) as error:
            self._failures.call("write", error)
            return
        self._failures.written(outcomes)

    @staticmethod
    async def _ended(batch: Any) -> Any:
        """What became of a batch. A task that is cancelled waits for it all the same: the memory is given to others behind it."""
        try:
            return await batch
        except asyncio.CancelledError:
            batch.result()
            raise

    # The rest.

    def remove_sync(self, key: Any) -> bool:
        try:
            return self._store.remove(self._on(self._known().bytes, [key])) > 0
        except (pagelith.PagelithError, ModelError) as error:
            self._failures.call("removal", error)
            return False

    async def list(self) -> list[str]:
        """A store knows hashes of keys, and no keys."""
        return []

    async def close(self) -> None:
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._store.close)
        finally:
            # For lack of a thread; closing twice is nothing.
            self._store.close()

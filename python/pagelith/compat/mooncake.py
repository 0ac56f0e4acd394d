"""Mooncake Store's client interface over Pagelith, for engines that support Mooncake and no other
store.

    PYTHONPATH=$(python -m pagelith.compat.mooncake) python -m sglang.launch_server ... --hicache-storage-backend mooncake

or, in a program, call `pagelith.compat.mooncake.install()` before the engine is imported.
docs/mooncake-api.md lists what is supported. Read against Mooncake at 3b5a5941 (August 2026),
SGLang 0.5.23 and vLLM 0.32 and 0.33.
"""

import inspect
import logging
import os
import sys
import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import pagelith

from ..failures import Failures
from ..identity import Identity, ModelError, admit
from ..identity.host import Now, model_of_this_process, no_engine, vllms_transfer
from ..settings import PoolSettings
from ..vllm.policy import warn_of_failed_loads
from .mooncake_memory import MooncakeHostMemAllocator as MooncakeHostMemAllocator
from .mooncake_memory import clients, is_host_memory
from .mooncake_setup import flag_of, path_of, size_of, store_settings, text_of

logger = logging.getLogger(__name__)

_Code = TypeVar("_Code")
# For each object, the memory ranges of its bytes.
_Pieces = list[list[tuple[int, int]]]

# Those of Mooncake's error codes that apply here.
OK = 0
INTERNAL = -1
BUFFER_OVERFLOW = -10
NO_AVAILABLE_HANDLE = -200
INVALID_PARAMS = -600
ILLEGAL_CLIENT = -601
OBJECT_NOT_FOUND = -704
TRANSFER_FAIL = -800
CHECKSUM_MISMATCH = -801
RPC_FAIL = -900
NOT_SUPPORTED = -1012

_PUT_ERRORS = {
    "BusyError": NO_AVAILABLE_HANDLE,
    "NoSpaceError": NO_AVAILABLE_HANDLE,
    "InvalidError": INVALID_PARAMS,
    "UnavailableError": RPC_FAIL,
    "DeniedError": ILLEGAL_CLIENT,
}
# A get that found no staging memory in time, unlike a put that found no space.
_GET_ERRORS = {**_PUT_ERRORS, "BusyError": BUFFER_OVERFLOW}
_MISSES = {"absent": OBJECT_NOT_FOUND, "gone": OBJECT_NOT_FOUND, "damaged": CHECKSUM_MISMATCH}
# Most object lengths that are cached for `get`; beyond that the oldest is dropped.
_LENGTHS_MAX = 65536
# Variables for engines whose call of `setup` has no argument for these.
_REVISION = "MOONCAKE_PAGELITH_REVISION"
_START_WITHOUT_STORE = "MOONCAKE_PAGELITH_START_WITHOUT_STORE"


class _Names(NamedTuple):
    """Key templates, without a page, for an object's bytes and its length."""

    # Fingerprint of the model.
    model: str
    data: pagelith.Key
    length: pagelith.Key


class _StaleWeights(ModelError):
    """The bytes to be put may have been computed with weights that were replaced since."""


class _Refused(pagelith.PagelithError):
    """A call that the client refuses, independent of the store."""


@dataclass
class ReplicateConfig:
    """Accepted without effect: one store has one copy, in the tier that its policies choose."""

    replica_num: int = 1
    with_soft_pin: bool = False
    with_hard_pin: bool = False
    preferred_segment: str = ""
    preferred_segments: list[str] = field(default_factory=list)
    prefer_alloc_in_same_node: bool = False
    # There are no fields `group_ids` and `session_ids`: an engine that looks for them disables the
    # feature.


@dataclass(frozen=True)
class ReplicaDescriptor:
    """The location of an object at the time of the call."""

    tier: str

    def is_memory_replica(self) -> bool:
        return self.tier == "dram"

    def is_disk_replica(self) -> bool:
        return False

    def is_local_disk_replica(self) -> bool:
        return self.tier == "ssd"


class MooncakeDistributedStore:
    """A client of an embedded store, or of a store process if the master's address names one
    (`unix:PATH`, `tcp:HOST:PORT`)."""

    def __init__(self) -> None:
        self._store: pagelith.Store | None = None
        self._failures = _failures(None)
        self._model: Callable[[], Now] = no_engine
        self._names: _Names | None = None
        self._tenant = self._revision = ""
        self._hostname = ""
        self._lock = threading.Lock()
        self._lengths: dict[str, int] = {}
        self._starts: list[int] = []
        self._regions: dict[int, int] = {}
        self._registrations: dict[int, list[pagelith.Registration]] = {}
        self._memory = PoolSettings()
        clients[id(self)] = self

    def setup(
        self,
        local_hostname: str | dict[str, Any] = "",
        metadata_server: str = "",
        global_segment_size: int = 16 << 20,
        local_buffer_size: int = 16 << 20,
        protocol: str = "tcp",
        rdma_devices: str = "",
        master_server_addr: str = "",
        engine: Any = None,
        *,
        enable_ssd_offload: bool = False,
        ssd_offload_path: str = "",
        tenant_id: str = "default",
        enable_client_http_server: bool = False,
        client_http_port: int = 9300,
        revision: str = "",
        start_without_store: bool = False,
    ) -> int:
        """Open the store. Parameters without meaning here (metadata, protocol, devices, an engine)
        are accepted and ignored.

        `revision` is not Mooncake's. It is a text that separates objects which keys do not
        separate, in addition to the model's identity that an engine in this process provides.
        Without an engine it is required, here or as `MOONCAKE_PAGELITH_REVISION`.
        `start_without_store` (`MOONCAKE_PAGELITH_START_WITHOUT_STORE`) is not Mooncake's either:
        the store process may be down, and nothing is found or stored until it is up.
        """
        if isinstance(local_hostname, dict):
            return self._setup_with(local_hostname)
        try:
            local_hostname = text_of("local_hostname", local_hostname)
            master_server_addr, tenant_id = path_of("master_server_addr", master_server_addr, "unix:"), text_of("tenant_id", tenant_id)
            offload, path = flag_of("enable_ssd_offload", enable_ssd_offload), path_of("ssd_offload_path", ssd_offload_path)
            dram = size_of("global_segment_size", global_segment_size)
            self._tenant, self._revision = tenant_id, text_of("revision", revision) or os.environ.get(_REVISION, "")
            self._model, self._names = model_of_this_process(), None
            self._current_names()
            warn_of_failed_loads(logger, vllms_transfer())
            may_be_down = flag_of("start_without_store", start_without_store) or flag_of(_START_WITHOUT_STORE, os.environ.get(_START_WITHOUT_STORE, "false"))
            attached = master_server_addr.startswith(("unix:", "tcp:", "rdma:"))
            if attached:
                store = pagelith.Store.attach(master_server_addr, may_be_down=may_be_down)
                self._failures = _failures(master_server_addr)
            else:
                store = pagelith.Store(store_settings(dram, path if offload else None))
        except (pagelith.PagelithError, OSError, ValueError) as error:
            logger.error("pagelith: cannot open the store: %s", error)
            return INVALID_PARAMS
        except Exception:
            logger.exception("pagelith: cannot open the store")
            return INVALID_PARAMS
        with self._lock:
            self._hostname, self._store = local_hostname, store
            self._memory = PoolSettings(attach=master_server_addr if attached else None)
            for address in self._starts:
                self._register(address)
        return OK

    def _setup_with(self, config: dict[str, Any]) -> int:
        """`setup` with a dictionary, whose values may all be strings."""
        known = inspect.signature(self.setup).parameters
        unknown = [name for name in config if name not in known]
        if unknown or isinstance(config.get("local_hostname"), dict):
            logger.error("pagelith: %r is not a parameter of setup; its parameters are %s", (unknown or ["local_hostname"])[0], ", ".join(known))
            return INVALID_PARAMS
        return self.setup(**config)

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Attach to a store process, the only server that this client supports."""
        if not isinstance(server_address, str) or not server_address.startswith(("unix:", "tcp:")):
            logger.error("pagelith: the address of a store process must begin with unix: or tcp: address=%r", server_address)
            return INVALID_PARAMS
        return self.setup(master_server_addr=server_address)

    def close(self) -> int:
        store, self._store = self._store, None
        if store is not None:
            store.close()
        with self._lock:
            for registration in [one for held in self._registrations.values() for one in held]:
                registration.release()
            self._registrations.clear()
        return OK

    def get_hostname(self) -> str:
        return self._hostname

    # Memory. An address that is not registered is not accessed: it may be GPU memory.

    def register_buffer(self, address: int, size: int) -> int:
        with self._lock:
            if not isinstance(address, int) or not isinstance(size, int):
                logger.error("pagelith: memory must be an address and a length in bytes, not %r and %r", address, size)
                return INVALID_PARAMS
            if self._regions.get(address) == size:
                return OK
            try:
                is_host = size > 0 and is_host_memory(address, size)
            except OSError as error:
                logger.error("pagelith: memory at %#x of %d bytes cannot be checked: %s", address, size, error)
                return INTERNAL
            if not is_host:
                logger.error("pagelith: no host memory at %#x of %d bytes; GPU memory is not supported", address, size)
                return INVALID_PARAMS
            at = bisect_right(self._starts, address)
            before = self._starts[at - 1] if at else None
            after = self._starts[at] if at < len(self._starts) else None
            if before is not None and before + self._regions[before] > address or after is not None and address + size > after:
                logger.error("pagelith: memory at %#x of %d bytes overlaps a registration with another length", address, size)
                return INVALID_PARAMS
            self._starts.insert(at, address)
            self._regions[address] = size
            self._register(address)
            return OK

    def unregister_buffer(self, address: int) -> int:
        with self._lock:
            if address not in self._regions:
                logger.error("pagelith: no memory is registered at address=%r", address)
                return INVALID_PARAMS
            self._unregister(address)
            return OK

    def forget_memory(self, address: int, length: int) -> None:
        """Called when the allocator frees memory: ends the registrations in it. Not part of
        Mooncake's interface."""
        with self._lock:
            for start in [start for start in self._starts if start < address + length and start + self._regions[start] > address]:
                self._unregister(start)

    def _unregister(self, address: int) -> None:
        del self._regions[address]
        self._starts.remove(address)
        for registration in self._registrations.pop(address, []):
            registration.release()

    def _register(self, address: int) -> None:
        """Register the memory with the store too, once it is open."""
        if self._store is not None:
            self._registrations[address] = self._memory.register(self._store, [(address, self._regions[address])])

    def _is_registered(self, pieces: Sequence[tuple[int, int]]) -> bool:
        for address, size in pieces:
            at = bisect_right(self._starts, address)
            if size < 0 or not at or address + size > self._starts[at - 1] + self._regions[self._starts[at - 1]]:
                return False
        return True

    # Lookups.

    def is_exist(self, key: str) -> int:
        return self.batch_is_exist([key])[0]

    def batch_is_exist(self, keys: Sequence[str]) -> list[int]:
        keys = list(keys)

        def look_up(store: pagelith.Store) -> list[int]:
            return [int(present) for present in store.exists(self._keys(keys))]

        return self._guarded(look_up, lambda code: [code] * len(keys))

    def get_size(self, key: str) -> int:
        return self._guarded(lambda store: self._length_of(store, key), lambda code: code)

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        return self.batch_get_replica_desc([key])[key]

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        """The location of each object; one byte of it is read to find out."""
        keys = list(keys)

        def look_up(store: pagelith.Store) -> dict[str, list[ReplicaDescriptor]]:
            into = [bytearray(1) for _ in keys]
            got = store.get(self._keys(keys), into, ranges=[(0, 1)] * len(keys))
            return {key: [ReplicaDescriptor(g.tier)] if g.tier else [] for key, g in zip(keys, got, strict=True)}

        return self._guarded(look_up, lambda code: {key: [] for key in keys})

    # Puts. Write once: an object that is already stored counts as success.

    def put(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        return self.put_parts(key, value)

    def put_parts(self, key: str, *parts: Any, config: ReplicateConfig | None = None) -> int:
        def put(store: pagelith.Store) -> int:
            # Exported once, so that the length counted is the length put.
            views: list[Any] = [memoryview(part) for part in parts]
            length = sum(view.nbytes for view in views)
            # The length is stored as an object too, so that a get need not know it.
            names = self._current_names(writes=True)
            data, named = names.data.on_page(key), names.length.on_page(key)
            outcome = store.put_group([data, named], [views, length.to_bytes(8, "little")], wait=0.0)
            code = _put_code(outcome)
            self._log_put_errors([outcome])
            if code == OK:
                self._remember(key, length)
            return code

        return self._guarded(put, lambda code: code)

    def put_batch(self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None) -> int:
        keys, values = list(keys), list(values)
        if len(keys) != len(values):
            logger.error("pagelith: there must be one value per key keys=%d values=%d", len(keys), len(values))
            return INVALID_PARAMS
        codes = [self.put(key, value) for key, value in zip(keys, values, strict=True)]
        return next((code for code in codes if code != OK), OK)

    def put_from(self, key: str, address: int, size: int, config: ReplicateConfig | None = None) -> int:
        return self.batch_put_from([key], [address], [size])[0]

    def batch_put_from(
        self, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        return self._put_pieces(keys, lambda: [[pair] for pair in zip(addresses, sizes, strict=True)])

    def batch_put_from_multi_buffers(
        self,
        keys: Sequence[str],
        addresses: Sequence[Sequence[int]],
        sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        return self._put_pieces(keys, lambda: _pieces(addresses, sizes))

    def _put_pieces(self, keys: Sequence[str], given: Callable[[], _Pieces]) -> list[int]:
        # Copied: another thread may change the caller's list meanwhile.
        keys = list(keys)

        def put(store: pagelith.Store) -> list[int]:
            names = self._current_names(writes=True)
            pieces = given()
            codes, some = self._check_registered("put", keys, pieces)
            outcomes = store.put(names.data.on_pages([keys[at] for at in some]), [pieces[at] for at in some], wait=0.0)
            for at, outcome in zip(some, outcomes, strict=True):
                codes[at] = _put_code(outcome)
                if codes[at] == OK:
                    self._remember(keys[at], sum(size for _, size in pieces[at]))
            self._log_put_errors(outcomes)
            return codes

        return self._guarded(put, lambda code: [code] * len(keys))

    # Gets.

    def get(self, key: str) -> bytes:
        """The bytes of an object that `put` or this client stored; empty if it is not found."""

        def get(store: pagelith.Store) -> bytes:
            length = self._length_of(store, key)
            value = bytearray(max(length, 0))
            return bytes(value) if length > 0 and store.get(self._keys([key]), [value])[0] else b""

        return self._guarded(get, lambda code: b"")

    def get_batch(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in list(keys)]

    def get_into(self, key: str, address: int, size: int) -> int:
        return self.batch_get_into([key], [address], [size])[0]

    def batch_get_into(self, keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int]) -> list[int]:
        return self._get_pieces(keys, lambda: [[pair] for pair in zip(addresses, sizes, strict=True)])

    def batch_get_into_multi_buffers(
        self, keys: Sequence[str], addresses: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]
    ) -> list[int]:
        return self._get_pieces(keys, lambda: _pieces(addresses, sizes))

    def _get_pieces(self, keys: Sequence[str], given: Callable[[], _Pieces]) -> list[int]:
        keys = list(keys)

        def get(store: pagelith.Store) -> list[int]:
            pieces = given()
            codes, some = self._check_registered("get", keys, pieces)
            names = self._keys([keys[at] for at in some])
            outcomes = store.get(names, [pieces[at] for at in some])
            for at, outcome in zip(some, outcomes, strict=True):
                codes[at] = _get_code(outcome)
            # Missing staging memory is expected under load, so it is not logged.
            logged = [at for at, outcome in enumerate(outcomes) if not isinstance(outcome.error, pagelith.BusyError)]
            self._failures.read([names[at] for at in logged], [outcomes[at] for at in logged], "get")
            return codes

        return self._guarded(get, lambda code: [code] * len(keys))

    # Removals.

    def remove(self, key: str, force: bool = False) -> int:
        def remove(store: pagelith.Store) -> int:
            with self._lock:
                self._lengths.pop(key, None)
            return OK if store.remove(self._keys([key])) else OBJECT_NOT_FOUND

        return self._guarded(remove, lambda code: code)

    def remove_all(self, force: bool = False) -> int:
        """Make all objects of this tenant and model invisible for ever. Returns 0 or an error; the
        objects are not counted."""

        def clear(store: pagelith.Store) -> int:
            with self._lock:
                self._lengths.clear()
            store.clear(self._current_names().data.namespace)
            return OK

        return self._guarded(clear, lambda code: code)

    def remove_by_regex(self, pattern: str, force: bool = False) -> int:
        return NOT_SUPPORTED

    # Internals.

    def _current_names(self, writes: bool = False) -> _Names:
        """The current key templates: an engine may have replaced its model's weights since the last
        call."""
        now = self._model()
        if writes and now.stale:
            raise _StaleWeights("the model's weights were replaced at run time, and these bytes may be of the old ones: restart the server to store objects")
        names = self._names
        if names is None or names.model != now.identity.fingerprint:
            admit(now.identity, self._revision, f"Mooncake's setup ('revision' is its argument, or the variable {_REVISION})")
            names = self._make_names(now.identity)
            with self._lock:
                self._names = names
                self._lengths.clear()
        return names

    def _make_names(self, model: Identity) -> _Names:
        space = pagelith.Namespace("mooncake-client", tenant=self._tenant, revision=self._revision, extra=[model.extra])
        data, length = (pagelith.Key(space, bytes(32), pool="opaque", component=name) for name in ("data", "length"))
        return _Names(model.fingerprint, data, length)

    def _keys(self, keys: Sequence[str]) -> list[pagelith.Key]:
        return self._current_names().data.on_pages(list(keys))

    def _check_registered(self, what: str, keys: Sequence[str], pieces: _Pieces) -> tuple[list[int], list[int]]:
        """An error code per key, and the indices of the keys whose memory is registered."""
        if len(pieces) != len(keys):
            raise ValueError(f"there must be one memory per key keys={len(keys)} memories={len(pieces)}")
        with self._lock:
            some = [at for at, parts in enumerate(pieces) if self._is_registered(parts)]
        if len(some) < len(keys):
            unknown = len(keys) - len(some)
            self._failures.call(what, _Refused(f"the memory of some objects is not registered objects={unknown} of={len(keys)}"))
        return [INVALID_PARAMS] * len(keys), some

    def _remember(self, key: str, length: int) -> None:
        with self._lock:
            self._lengths[key] = length
            while len(self._lengths) > _LENGTHS_MAX:
                del self._lengths[next(iter(self._lengths))]

    def _length_of(self, store: pagelith.Store, key: str) -> int:
        with self._lock:
            known = self._lengths.get(key)
        if known is not None and store.exists(self._keys([key]))[0]:
            return known
        value = bytearray(8)
        outcome = store.get([self._current_names().length.on_page(key)], [value])[0]
        return int.from_bytes(value, "little") if outcome else OBJECT_NOT_FOUND

    def _log_put_errors(self, outcomes: Sequence[pagelith.PutOutcome]) -> None:
        """Log why objects were not stored, unless the store is busy or full, which is expected."""
        self._failures.written([one for one in outcomes if not isinstance(one.error, pagelith.BusyError | pagelith.NoSpaceError)], "put")

    def _guarded(self, body: Callable[[pagelith.Store], _Code], failed: Callable[[int], _Code]) -> _Code:
        """Convert exceptions to error codes, as Mooncake's callers expect."""
        store = self._store
        if store is None:
            self._failures.call("call", _Refused("the store is not set up"))
            return failed(INVALID_PARAMS)
        try:
            return body(store)
        except ModelError as error:
            self._failures.call("call", error)
            return failed(TRANSFER_FAIL)
        except pagelith.PagelithError as error:
            self._failures.call("call", error)
            return failed(_PUT_ERRORS.get(type(error).__name__, INTERNAL))
        except (TypeError, ValueError, OverflowError, BufferError) as error:
            logger.error("pagelith: invalid argument: %s", error)
            return failed(INVALID_PARAMS)
        except Exception:
            logger.exception("pagelith: a call failed unexpectedly")
            return failed(INTERNAL)


def _failures(attach: str | None) -> Failures:
    return Failures(logger, attach, always=(pagelith.InvalidError,))


def _pieces(addresses: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> _Pieces:
    return [list(zip(some, lengths, strict=True)) for some, lengths in zip(addresses, sizes, strict=True)]


def _put_code(outcome: pagelith.PutOutcome) -> int:
    if outcome:
        return OK
    return NO_AVAILABLE_HANDLE if outcome.error is None else _PUT_ERRORS.get(type(outcome.error).__name__, INTERNAL)


def _get_code(outcome: pagelith.GetOutcome) -> int:
    """The number of bytes read, or an error code."""
    if outcome:
        return outcome.bytes
    if outcome.error is not None:
        return _GET_ERRORS.get(type(outcome.error).__name__, INTERNAL)
    return _MISSES.get(outcome.cause or "", TRANSFER_FAIL)


def path() -> str:
    """A directory that provides the module `mooncake.store` if it is on the module path."""
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "path")


def install() -> None:
    """Make this the module `mooncake.store` of this process. Call it before anything imports that
    module."""
    sys.path.insert(0, path())
    for name in [name for name in sys.modules if name == "mooncake" or name.startswith("mooncake.")]:
        del sys.modules[name]


if __name__ == "__main__":
    print(path())

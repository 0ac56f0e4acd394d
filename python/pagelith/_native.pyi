import os
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, TypeVar, final

from typing_extensions import Buffer

from .stats import Stats

__all__ = [
    "BusyError",
    "CloseReport",
    "ClosedError",
    "DamagedError",
    "DeniedError",
    "Device",
    "Event",
    "FlushReport",
    "ForkedError",
    "GetOutcome",
    "Group",
    "IncompatibleError",
    "InternalError",
    "InvalidError",
    "Key",
    "Namespace",
    "NoSpaceError",
    "OpenReport",
    "PagelithError",
    "PagesFound",
    "Pin",
    "PoolQuery",
    "PutOutcome",
    "Registration",
    "Request",
    "Store",
    "Submitted",
    "UnavailableError",
    "View",
    "__version__",
]
__version__: str

class _Tensor(Protocol):
    # A tensor with contiguous elements, in host memory or of a bound device.
    def __dlpack__(self) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class _CudaArray(Protocol):
    # An array of a bound device, with contiguous elements.
    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...

class _CudaStream(Protocol):
    def __cuda_stream__(self) -> tuple[int, int]: ...

class _TorchStream(Protocol):
    @property
    def cuda_stream(self) -> int: ...

class _NpuStream(Protocol):
    @property
    def npu_stream(self) -> int: ...

# Contiguous bytes: an object with a buffer, a tensor, or an address and a length in bytes; of a
# device a tensor, an array, or the device, an address and a length.
_Piece = Buffer | _Tensor | _CudaArray | tuple[int, int] | tuple[Device, int, int]
_Memory = _Piece | list[_Piece] | list[tuple[int, int]] | list[tuple[Device, int, int]]
# The stream of a device for whose work copies wait: its number, or an object that has one.
_Stream = int | _CudaStream | _TorchStream | _NpuStream
# The outcome of one object of a batch, or of one page.
_Outcome = TypeVar("_Outcome")
# The prefix hash of a page: 32 bytes, or a string, which is hashed.
_Page = bytes | str
# "retain" and "expected_back" require seconds, the others take none.
_Hint = Literal["session_ended", "demote", "retain", "expected_back", "low_priority", "high_priority"]

class PagelithError(Exception):
    """Base class of the errors of a store. A miss is not an error."""
class InvalidError(PagelithError):
    """The call or the configuration is invalid; a repetition fails too."""
class BusyError(PagelithError):
    """A limit is reached for now: retry later, or continue without the store."""
class NoSpaceError(PagelithError):
    """No space on the file system, or no room for another namespace."""
class UnavailableError(PagelithError):
    """A device, a file or a store process failed."""
class DamagedError(PagelithError):
    """A file of the store is damaged."""
class IncompatibleError(PagelithError):
    """A store of another format or another configuration."""
class ClosedError(PagelithError):
    """The store was closed."""
class ForkedError(ClosedError):
    """The store was opened in the process that this one was forked from."""
class DeniedError(PagelithError):
    """Another process has the store open, or access is denied."""
class InternalError(PagelithError):
    """A bug in Pagelith."""

@final
class Namespace:
    """The sharing boundary of pages: two namespaces that differ in any field never see each other's
    pages. An immutable value: equal ones are interchangeable, and it can be copied, pickled and
    sorted.

        pagelith.Namespace("my-model", revision="main", dtype="bf16", page_tokens=64)

    `page_tokens` is the number of tokens of a page, `layout` and `layout_version` name the order of
    its bytes, `layer_split` has the (first, end) layers of each pipeline stage, and `extra` further
    (name, value) pairs.
    """
    def __new__(
        cls,
        model: str,
        *,
        tenant: str = "",
        revision: str = "",
        dtype: str = "",
        page_tokens: int = 0,
        layout: str = "",
        layout_version: int = 0,
        layer_split: Sequence[tuple[int, int]] | None = None,
        extra: Sequence[tuple[str, str]] | None = None,
    ) -> Namespace: ...
    @property
    def id(self) -> bytes:
        """The fingerprint, 16 bytes; equal for equal fields in every process."""
    @staticmethod
    def of_id(id: bytes) -> Namespace:
        """The namespace with this fingerprint, as returned by `id`."""
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __lt__(self, other: Namespace, /) -> bool: ...
    def __le__(self, other: Namespace, /) -> bool: ...
    def __gt__(self, other: Namespace, /) -> bool: ...
    def __ge__(self, other: Namespace, /) -> bool: ...
    def __copy__(self) -> Namespace: ...
    def __deepcopy__(self, _copied: object, /) -> Namespace: ...

@final
class Key:
    """The name of an object: namespace, page, role (target or draft), pool, component and shard. An
    immutable value, as a namespace is; `str` returns its text.

        pagelith.Key(space, page_hash, pool="kv", component="k", shard="rank.tp1of4")

    `page` is the page's prefix hash: 32 bytes, or a string of any length, which is hashed. Raises
    InvalidError for a name that is too long or has other characters than A-Z a-z 0-9 _ - .
    """
    def __new__(
        cls,
        namespace: Namespace,
        page: _Page,
        *,
        pool: str = "kv",
        component: str = "kv",
        draft: bool = False,
        shard: str = "whole",
    ) -> Key: ...
    def on_page(self, page: _Page) -> Key:
        """The key of the same object for another page."""
    def on_pages(self, pages: Sequence[_Page]) -> list[Key]:
        """The keys of the same object for several pages."""
    @property
    def page(self) -> bytes:
        """The prefix hash of its page, 32 bytes."""
    @property
    def namespace(self) -> Namespace:
        """Its namespace."""
    @property
    def pool(self) -> str:
        """The kind of state, such as `kv`."""
    @property
    def component(self) -> str:
        """The part of the pool, such as `k`."""
    @property
    def draft(self) -> bool:
        """Whether it is of the draft model."""
    @property
    def shard(self) -> str:
        """`whole`, or the share of one rank."""
    @staticmethod
    def parse(text: str) -> Key:
        """The key with this text, as returned by `str`: `NAMESPACE/PAGE/[d:]POOL/COMPONENT/SHARD`, the
        first two in hexadecimal digits.
        """
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...
    def __lt__(self, other: Key, /) -> bool: ...
    def __le__(self, other: Key, /) -> bool: ...
    def __gt__(self, other: Key, /) -> bool: ...
    def __ge__(self, other: Key, /) -> bool: ...
    def __copy__(self) -> Key: ...
    def __deepcopy__(self, _copied: object, /) -> Key: ...

@final
class GetOutcome:
    """The outcome of a get. True if every byte is in the destination and verified. Otherwise it has
    the cause of the miss, or the error.
    """
    def __bool__(self) -> bool: ...
    @property
    def tier(self) -> Literal["dram", "ssd", "remote"] | None:
        """The tier of a hit: `dram`, `ssd` or `remote`."""
    @property
    def bytes(self) -> int:
        """Bytes delivered; 0 unless it is a hit."""
    @property
    def cause(self) -> Literal["absent", "damaged", "unreadable", "gone", "late", "slow"] | None:
        """Cause of a miss: `absent`, `damaged`, `unreadable`, `gone` (it left while it was read),
        `late` or `slow` (it can be computed sooner).
        """
    @property
    def error(self) -> PagelithError | None:
        """The error of an invalid request or a busy store: an exception instance that was not raised."""

@final
class PutOutcome:
    """The outcome of a put. True if the object is stored now, by this put or an earlier one."""
    def __bool__(self) -> bool: ...
    @property
    def state(self) -> Literal["stored", "present", "waiting", "refused", "error"]:
        """`stored`, `present` (an earlier put), `waiting` (for other objects of its group), `refused`
        (by policy or a limit) or `error`.
        """
    @property
    def error(self) -> PagelithError | None:
        """The error of an invalid request or a busy store: an exception instance that was not raised."""

@final
class Event:
    """A change of one object or one namespace."""
    @property
    def kind(self) -> Literal["stored", "removed", "cleared", "forgot"]:
        """`stored`, `removed`, `cleared` (all objects of a namespace were removed), or `forgot`
        (objects were lost from SSD whose keys are unknown).
        """
    @property
    def tier(self) -> Literal["dram", "ssd", "remote"] | None:
        """`dram` or `ssd`; `None` for `cleared`, which concerns both."""
    @property
    def key(self) -> Key | None:
        """The key of the object that was stored or removed."""
    @property
    def namespace(self) -> Namespace | None:
        """The namespace that was cleared, or that of the object."""
    @property
    def new(self) -> bool:
        """The object was stored, and was in no tier before."""
    @property
    def gone(self) -> bool:
        """The object was removed, and is in no tier any more."""

@final
class OpenReport:
    """Result of recovery when the store was opened."""
    @property
    def made(self) -> bool:
        """The store was created by this call."""
    # In seconds.
    @property
    def recovery(self) -> float:
        """Seconds that recovery took."""
    @property
    def objects(self) -> int:
        """Number of objects found."""
    @property
    def backend(self) -> str | None:
        """I/O backend, `uring` or `blocking`; `None` without an SSD tier."""
    @property
    def backend_reason(self) -> str:
        """The reason for that backend."""
    # Bytes by purpose; `total` is their sum.
    @property
    def memory(self) -> dict[str, int]:
        """Bytes of allocated memory, by purpose."""
    @property
    def segments(self) -> int:
        """Number of segments."""
    @property
    def segment_bytes(self) -> int:
        """Length of a segment in bytes."""
    @property
    def object_bytes_max(self) -> int:
        """Length in bytes of the largest object that the store accepts."""
    @property
    def from_checkpoint(self) -> bool:
        """Recovery started from a checkpoint."""
    @property
    def refused_checkpoints(self) -> int:
        """Checkpoints marked complete that failed verification."""
    @property
    def footers(self) -> int:
        """Segment footers read."""
    @property
    def scanned_segments(self) -> int:
        """Segments read record by record."""
    @property
    def torn_records(self) -> int:
        """Records torn by a crash."""
    @property
    def mended_blocks(self) -> int:
        """Manifest blocks repaired from the other copy."""

@final
class FlushReport:
    """The objects that became durable since the previous report, and those that did not."""
    @property
    def durable_objects(self) -> int:
        """Objects that became durable."""
    @property
    def durable_bytes(self) -> int:
        """Their bytes."""
    @property
    def refused_objects(self) -> int:
        """Objects that the SSD tier refused, by policy or a limit."""
    @property
    def lost_objects(self) -> int:
        """Objects that were put and cannot be made durable any more."""

@final
class CloseReport:
    """The report of a close: the fields of a flush report, and the objects that are not durable."""
    @property
    def durable_objects(self) -> int:
        """Objects that became durable."""
    @property
    def durable_bytes(self) -> int:
        """Their bytes."""
    @property
    def refused_objects(self) -> int:
        """Objects that the SSD tier refused, by policy or a limit."""
    @property
    def lost_objects(self) -> int:
        """Objects that were put and cannot be made durable any more."""
    @property
    def unsaved_objects(self) -> int:
        """Objects that are not durable."""
    @property
    def unsaved_bytes(self) -> int:
        """Their bytes."""
    @property
    def error(self) -> str | None:
        """Why; `None` if the close itself succeeded."""

@final
class PoolQuery:
    """One pool of a query, besides the anchor: its objects per page, as keys of any page, and the
    prefix lengths that it allows.
    """
    @staticmethod
    def all_pages(objects: Sequence[Key]) -> PoolQuery:
        """A length is allowed if all of its pages are stored: KV, draft KV, indexers."""
    @staticmethod
    def trailing_pages(objects: Sequence[Key], pages: int = 1) -> PoolQuery:
        """A length is allowed if its last `pages` pages are stored: 1 for a Mamba checkpoint, the
        window's length for a sliding window.
        """
    @staticmethod
    def block_groups(
        objects: Sequence[Key], block_pages: int, group_pages: int, pages: Sequence[_Page]
    ) -> PoolQuery:
        """Every length is allowed; the pool has pages of its own, in groups, one group per block of
        pages.
        """

@final
class PagesFound:
    """The longest restorable prefix, in pages."""
    @property
    def usable_pages(self) -> int:
        """The longest stop: a number of leading pages that every pool allows; 0 if there is none."""
    @property
    def anchor_pages(self) -> int:
        """Pages of the anchor before the first one that is absent."""
    @property
    def pool_pages(self) -> list[int]:
        """For each pool of the query, the longest length up to `anchor_pages` that it allows."""
    @property
    def stops(self) -> list[int]:
        """Every stop from 1 on, ascending."""

@final
class Request:
    """One request of an engine: all objects that its calls name count as equally recent."""

@final
class Registration:
    """A registration of memory. A context manager."""
    @property
    def used(self) -> bool:
        """Whether reads use the registration. False if the store is in another process, or has no SSD
        tier or no io_uring.
        """
    def release(self) -> None:
        """End the registration. A second call does nothing."""
    def __enter__(self) -> Registration: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

@final
class Device:
    """A device that is bound to a store. `(device, address, length)` names memory of it in a put or
    get, which must stay allocated until `late_copies` is 0.
    """
    @property
    def name(self) -> str:
        """`cuda:N`, or `ascend:N`."""
    @property
    def late_copies(self) -> int:
        """Number of lists of copies that calls gave up at their timeout, and that the device may still
        execute. Their memory is kept.
        """

@final
class Pin:
    """Protects objects from eviction and reclaim. A context manager."""
    @property
    def objects(self) -> int:
        """Number of objects that were stored, and so were pinned."""
    @property
    def held(self) -> bool:
        """Whether the objects are still pinned. Pins in a store process end with the connection they
        were made on.
        """
    def release(self) -> None:
        """Release the pin. A second call does nothing."""
    def __enter__(self) -> Pin: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

@final
class View:
    """Read-only bytes of an object in the store's memory. They stay valid and unchanged while this
    view, or memory taken from it, exists.
    """
    @property
    def address(self) -> int:
        """Address of the bytes, for a device copy: readable while the view exists, never writable."""
    @property
    def nbytes(self) -> int:
        """Length in bytes."""
    @property
    def memory(self) -> memoryview:
        """The bytes, as a read-only memoryview that keeps this view alive."""
    @property
    def held(self) -> bool:
        """Whether the bytes are still held. Those of a store process are released when the connection
        ends, so a reader checks this after reading.
        """

@final
class Group:
    """An open group: its objects become visible together when it is committed."""
    def put(
        self,
        keys: Sequence[Key],
        sources: Sequence[_Memory],
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
        wait: float | None = None,
    ) -> list[PutOutcome]:
        """Put some objects of the group. Their state is `waiting` until the group is committed."""
    def missing(self) -> list[Key]:
        """The keys of the objects that are still to be put."""
    def commit(
        self, *, request: Request | None = None, depth: int = 0, timeout: float | None = None, wait: float | None = None
    ) -> PutOutcome:
        """Make the group visible. The state is `waiting` if an object is missing."""
    def abort(self) -> None:
        """Drop the objects that were put into the group."""

@final
class Submitted(Generic[_Outcome]):
    """A submitted batch. It continues if this object is dropped."""
    def done(self) -> bool:
        """Whether the batch has ended."""
    def result(self, timeout: float | None = None) -> list[_Outcome]:
        """The outcome of each object, once the batch has ended. Raises `TimeoutError` after `timeout`
        seconds, or the exception of a signal handler; the batch then continues, and this may be
        called again.
        """
    def __await__(self) -> Generator[Any, None, list[_Outcome]]: ...

@final
class Store:
    """A store: embedded in this process with memory and, if configured, SSD; or that of a store
    process that this process is attached to. Any thread may call it, and other threads run during a
    call.

        with pagelith.Store({"dram": {"bytes": "1GiB"}}) as store:
            space = pagelith.Namespace("my-model", dtype="bf16", page_tokens=64)
            keys = [pagelith.Key(space, f"page {n}") for n in range(32)]
            assert all(store.put(keys, [bytes(65536) for _ in keys]))
            into = [bytearray(65536) for _ in keys]
            assert all(store.get(keys, into))

    Arguments that calls share:

    - `keys`: n keys. `sources` and `destinations`: n memories, one for each key. A memory is an
      object with a contiguous buffer, a tensor in host memory, an (address, length in bytes), or
      a list of those for an object in pieces. An object has 1 to `opened.object_bytes_max` bytes.
    - `request`: see `begin_request`. `depth`: pages before the first key in its prompt, which
      rank it when pages are evicted.
    - `timeout`: longest duration in seconds, 30 by default (`deadline_ms`).

    `Store(...)` takes a dictionary of settings, or a settings file (.toml, .json); variables
    PAGELITH_... override them. It raises InvalidError with all problems of the settings,
    DeniedError if another process has the store open, and IncompatibleError if it was created with
    other sizes.

    Results are in the order of `keys`. An error of one object is in its outcome. A call raises
    TypeError, BufferError or InvalidError for an argument that is wrong, ClosedError after `close`,
    ForkedError in a forked child, and UnavailableError if a device failed or a store process does
    not answer.
    """
    def __new__(
        cls,
        config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        *,
        subdirectory: str | os.PathLike[str] | None = None,
    ) -> Store: ...
    @property
    def opened(self) -> OpenReport | None:
        """The report of the open; `None` for an attached store."""
    @staticmethod
    def bytes_in(directory: str | os.PathLike[str]) -> int | None:
        """The capacity in bytes (`ssd.bytes`) of the store in a directory; `None` without a store."""
    @staticmethod
    def attach(
        address: str | os.PathLike[str],
        *,
        key: tuple[str, bytes | os.PathLike[str]] | None = None,
        may_be_down: bool = False,
        transport: str | None = None,
    ) -> Store:
        """Attach to a store process at `unix:PATH` (or a path), `tcp:HOST:PORT` or `rdma:HOST:PORT`,
        authenticated by `key` where it requires that: a name, and a secret or the path of a key
        file. `rdma:` is TCP with the transport "rdma": registered memory is moved by RDMA, and a
        store without it is an error; with the transport "auto" it is used where both ends have it.
        With `may_be_down` it need not be running yet: calls fail with UnavailableError until it is
        up.

        Raises UnavailableError if it does not answer, and DeniedError if it refuses the key.

            store = pagelith.Store.attach("unix:/run/pagelith/socket")
        """
    def share(self, fd: int, address: int, length: int) -> None:
        """Let the attached store process map `length` bytes at `address`, a shared mapping of the
        memfd `fd` from its first byte on: puts from there are copied once, and not sent. A memfd
        that allows seals (MFD_ALLOW_SEALING) is sealed against shrinking, so that any store can map
        it; `pagelith serve` maps other memory, too.
        """
    def register(self, memory: _Piece) -> Registration:
        """Register a buffer, tensor or (address, length) for repeated calls: reads from SSD save page
        lookups, and a store attached over RDMA reads and writes it directly. It must stay mapped
        unchanged until the registration is released, which no call that uses it may outlast.
        """
    def bind_device(self, device: str, *, staging_bytes: int | None = None) -> Device:
        """Bind a device that the program has initialised (`torch.cuda.init`), by its name, `cuda:N` or
        `npu:N`: puts and gets may then name memory of it, as (device, address, length), a tensor,
        or an object with `__cuda_array_interface__`. They begin after the work that `stream` has
        then, by default CUDA's default stream, and return when the device is done. Memory of an
        Ascend device requires `stream`. An attached store copies through `staging_bytes` of
        page-locked memory, 64 MiB by default, which all its devices share.
        """
    def begin_request(self) -> Request:
        """Begin a request, for the argument `request`: objects that its calls name count as equally
        recent. One request is one prompt.
        """
    def put(
        self,
        keys: Sequence[Key],
        sources: Sequence[_Memory],
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
        wait: float | None = None,
        stream: _Stream | None = None,
    ) -> list[PutOutcome]:
        """Put objects individually; returns n outcomes. A key that is stored keeps its bytes: its
        outcome is `present`. No thread may write to the memory until the call returns. A full store
        is waited for `wait` seconds, by default until `timeout`; then the outcome has a BusyError.

            for key, outcome in zip(keys, store.put(keys, pages)):
                if not outcome:
                    print(key, outcome.state, outcome.error)
        """
    def put_group(
        self,
        keys: Sequence[Key],
        sources: Sequence[_Memory],
        *,
        base: Key | None = None,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
        wait: float | None = None,
        stream: _Stream | None = None,
    ) -> PutOutcome:
        """Put the objects of one page as a group: visible together or not at all. Returns one outcome.
        With `base`, they are visible only while that object of their page is.

            store.put_group([kv, draft], [kv_bytes, draft_bytes])
        """
    def put_pages(
        self,
        keys: Sequence[Key],
        sources: Sequence[_Memory],
        *,
        base: Key | None = None,
        required: Sequence[Key] | None = None,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
        wait: float | None = None,
        stream: _Stream | None = None,
    ) -> list[PutOutcome]:
        """Put groups, one per page; the objects of a page are adjacent in `keys` and visible together
        or not at all. With `base`, a key of any page, they are visible only while that object of
        their page is. With `required`, keys of any page, they are parts of groups of those objects:
        a page becomes visible with its last part. Returns one outcome per page.

            keys = [key for page in pages for key in (kv.on_page(page), draft.on_page(page))]
            outcomes = store.put_pages(keys, memories)  # len(pages) outcomes
        """
    def begin_group(
        self,
        required: Sequence[Key],
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
    ) -> Group:
        """Begin a group of these objects of one page, which is put in several calls, or join it. It is
        dropped if it is not committed within `groups.deadline_ms`.

            group = store.begin_group([kv, draft])
            group.put([kv], [kv_bytes])
            group.put([draft], [draft_bytes])
            assert group.commit()
        """
    def get(
        self,
        keys: Sequence[Key],
        destinations: Sequence[_Memory],
        *,
        ranges: Sequence[tuple[int, int] | None] | None = None,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
        prefill_tokens_per_s: int | None = None,
        stream: _Stream | None = None,
    ) -> list[GetOutcome]:
        """Get objects, or byte ranges (from, to) of them, each into its memory, which must have
        exactly the length of the object or range. Returns n outcomes. The content of the memory is
        undefined unless it is a hit. No thread may read or write it until the call returns.
        `prefill_tokens_per_s` is how many tokens the engine recomputes in a second, by default the
        setting `read.prefill_tokens_per_s`: objects on SSD whose load would take longer than that
        are misses, if `read.page_tokens` says how many tokens a page has.

            for outcome in store.get(keys, memories, ranges=[(0, 4096)] * len(keys)):
                print(outcome.tier, outcome.bytes, outcome.cause, outcome.error)
        """
    def submit_get(
        self,
        keys: Sequence[Key],
        destinations: Sequence[_Memory],
        *,
        ranges: Sequence[tuple[int, int] | None] | None = None,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
        prefill_tokens_per_s: int | None = None,
        stream: _Stream | None = None,
    ) -> Submitted[GetOutcome]:
        """Submit a batch of gets to a thread of the store and return at once with its handle. The
        memory stays exported until the batch has ended, whether or not the handle is used; no
        thread may read or write it until then. `timeout` starts when a thread starts the batch. So
        does the wait for `stream`: its object is kept until the batch has ended; a plain number
        must stay valid until then.

            outcomes = await store.submit_get(keys, memories)
        """
    def submit_put(
        self,
        keys: Sequence[Key],
        sources: Sequence[_Memory],
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
        wait: float | None = None,
        stream: _Stream | None = None,
    ) -> Submitted[PutOutcome]:
        """Submit a batch of puts, as for `put`. No thread may write to its memory until it has ended.
        `stream` is as for `submit_get`.

            batch = store.submit_put(keys, pages)
            outcomes = batch.result(timeout=5)  # or: await batch
        """
    def submit_put_pages(
        self,
        keys: Sequence[Key],
        sources: Sequence[_Memory],
        *,
        base: Key | None = None,
        required: Sequence[Key] | None = None,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
        wait: float | None = None,
        stream: _Stream | None = None,
    ) -> Submitted[PutOutcome]:
        """Submit a batch of pages, as for `put_pages`. No thread may write to its memory until it has
        ended. `stream` is as for `submit_get`.
        """
    def exists(
        self,
        keys: Sequence[Key],
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
    ) -> list[bool]:
        """Whether each object is stored; n booleans. Peers are asked about the others."""
    def exists_prefix(
        self,
        keys: Sequence[Key],
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
    ) -> int:
        """The number of leading `keys` that are stored, 0 to n.

        hit_pages = store.exists_prefix([kv.on_page(page) for page in prompt])
        """
    def exists_groups(
        self,
        pages: Sequence[_Page],
        anchor: Sequence[Key],
        pools: Sequence[PoolQuery] | None = None,
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
    ) -> PagesFound:
        """The longest prefix of `pages` that can be restored from several pools. `anchor` has the
        objects of the first pool, as keys of any page; `pools` says for each further pool which
        prefix lengths it allows.

            kv, state = pagelith.Key(space, pages[0]), pagelith.Key(space, pages[0], pool="mamba")
            found = store.exists_groups(pages, [kv], [pagelith.PoolQuery.trailing_pages([state])])
            print(found.usable_pages)
        """
    def remove(self, keys: Sequence[Key], *, timeout: float | None = None) -> int:
        """Remove objects durably, with their groups. Returns how many were stored. Raises
        UnavailableError while a peer cannot be reached, and DeniedError without that right.
        """
    def clear(self, namespace: Namespace, *, timeout: float | None = None) -> int:
        """Make all objects of a namespace invisible for ever. Returns its new generation. Raises as
        `remove`.
        """
    def flush(self, *, timeout: float | None = None) -> FlushReport:
        """Make every object put so far durable: it survives `kill -9` and power loss. In a store
        process, those of all clients. Returns what became durable since the last report. Raises
        UnavailableError if the device fails, or once if the store process was restarted and may
        have lost puts of this client.
        """
    def pin(self, keys: Sequence[Key], *, timeout: float | None = None) -> Pin:
        """Protect objects from eviction and reclaim until the pin is released. Those that are not
        stored are left out. Raises BusyError if too much is pinned.

            with store.pin(keys) as pin:
                print(pin.objects)
        """
    def lease(self, keys: Sequence[Key], seconds: float, *, timeout: float | None = None) -> int:
        """Protect objects from eviction and reclaim for `seconds`. Returns how many are stored. Raises
        BusyError if too much is leased.
        """
    def view(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[View | None]:
        """Views of objects in DRAM, without a copy; `None` for others. An object stays while its view,
        or memory of it, exists; in a store process, until the last view of the call is dropped.
        Returns n views. A store process is viewed over its Unix socket only.

            for view in store.view(keys):
                if view is not None:
                    print(view.nbytes, bytes(view.memory[:16]))
        """
    def prefetch(
        self, keys: Sequence[Key], *, request: Request | None = None, depth: int = 0, timeout: float | None = None
    ) -> int:
        """A hint: objects on SSD that are not in DRAM are read into DRAM in the background; returns
        how many. Name whole groups. Reads not started within `timeout` seconds are skipped.
        """
    def hint(self, keys: Sequence[Key], hint: _Hint, seconds: float | None = None, *, timeout: float | None = None) -> int:
        """A hint about the future use of objects of one namespace, given from the head of their
        prompt; it changes what leaves first, never what a get returns. Returns how many objects
        follow it.

            store.hint(keys, "retain", 600)

        `"session_ended"`, `"demote"`, `"low_priority"` and `"high_priority"` take no `seconds`;
        `"retain"` and `"expected_back"` (within so many seconds) require them. `BusyError`: more
        would be retained than a client may lease. docs/policy.md has the effects.
        """
    def stats(self) -> Stats:
        """Counters and gauges by name, since the open; docs/operations.md describes each of them.
        Those that are counted by cause are dictionaries, those of namespaces dictionaries of rows.
        Raises DeniedError if the key has namespaces and lacks the right `operate`.

            print(store.stats()["hits_memory"], store.stats()["misses"].get("absent", 0))
        """
    def take_events(self, most: int = 65536, *, timeout: float | None = None) -> tuple[list[Event], int]:
        """The events since the last call: at most `most`, oldest first, and the number of earlier
        events dropped since they were not taken in time. Recorded only if the setting `events.max`,
        the number kept, is not 0. For a store process, events count from the first call, which
        returns none; a restart of the process counts as one dropped event.

            events, lost = store.take_events()
        """
    def close(self, *, timeout: float | None = None) -> CloseReport | None:
        """Flush, close and release everything, after calls in progress and submitted batches have
        ended. That takes at most `timeout` seconds more, or close_timeout_ms. Reports what is not
        durable; `None` if closed before, or for a store process, which keeps running.
        """
    def __enter__(self) -> Store: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

# Used by `__main__.py`.
def _program(args: Sequence[str]) -> int: ...

# Used by `_log.py`.
def _log_begin(level: int) -> None: ...
def _log_wake() -> int: ...
def _log_take() -> tuple[list[tuple[int, str, str | None, int, float, str, dict[str, Any]]], int]: ...
def _log_forked() -> None: ...

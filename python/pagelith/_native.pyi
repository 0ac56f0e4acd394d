import os
from collections.abc import Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, TypeVar, final

from typing_extensions import Buffer

__all__ = [
    "BusyError",
    "CloseReport",
    "ClosedError",
    "DamagedError",
    "DeniedError",
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
    # In host memory, its elements side by side.
    def __dlpack__(self) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

# Bytes side by side: what has a buffer, a tensor, or an address and a length in bytes.
_Piece = Buffer | _Tensor | tuple[int, int]
_Memory = _Piece | list[_Piece] | list[tuple[int, int]]
# What becomes of one object of a batch, or of one page.
_Outcome = TypeVar("_Outcome")
# A page's prefix hash: 32 bytes, or a string, which is hashed.
_Page = bytes | str

class PagelithError(Exception): ...
class InvalidError(PagelithError): ...
class BusyError(PagelithError): ...
class NoSpaceError(PagelithError): ...
class UnavailableError(PagelithError): ...
class DamagedError(PagelithError): ...
class IncompatibleError(PagelithError): ...
class ClosedError(PagelithError): ...
class ForkedError(ClosedError): ...
class DeniedError(PagelithError): ...
class InternalError(PagelithError): ...

@final
class Namespace:
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
    def id(self) -> bytes: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class Key:
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
    def on_page(self, page: _Page) -> Key: ...
    def on_pages(self, pages: Sequence[_Page]) -> list[Key]: ...
    @property
    def page(self) -> bytes: ...
    @property
    def namespace(self) -> Namespace: ...
    @property
    def pool(self) -> str: ...
    @property
    def component(self) -> str: ...
    @property
    def draft(self) -> bool: ...
    @property
    def shard(self) -> str: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __hash__(self) -> int: ...

@final
class GetOutcome:
    def __bool__(self) -> bool: ...
    @property
    def tier(self) -> Literal["dram", "ssd", "remote"] | None: ...
    @property
    def bytes(self) -> int: ...
    @property
    def cause(self) -> Literal["absent", "damaged", "unreadable", "gone", "late"] | None: ...
    @property
    def error(self) -> PagelithError | None: ...

@final
class PutOutcome:
    def __bool__(self) -> bool: ...
    @property
    def state(self) -> Literal["stored", "present", "waiting", "refused", "error"]: ...
    @property
    def error(self) -> PagelithError | None: ...

@final
class Event:
    @property
    def kind(self) -> Literal["stored", "removed", "cleared", "forgot"]: ...
    @property
    def tier(self) -> Literal["dram", "ssd", "remote"] | None: ...
    @property
    def key(self) -> Key | None: ...
    @property
    def namespace(self) -> Namespace | None: ...
    @property
    def new(self) -> bool: ...
    @property
    def gone(self) -> bool: ...

@final
class OpenReport:
    @property
    def made(self) -> bool: ...
    # Seconds.
    @property
    def recovery(self) -> float: ...
    @property
    def objects(self) -> int: ...
    @property
    def side(self) -> str | None: ...
    @property
    def rings(self) -> str | None: ...
    @property
    def side_reason(self) -> str: ...
    # Bytes, by what for; `total` is all of them.
    @property
    def memory(self) -> dict[str, int]: ...
    @property
    def segments(self) -> int: ...
    @property
    def segment_bytes(self) -> int: ...
    @property
    def object_bytes_max(self) -> int: ...
    @property
    def from_checkpoint(self) -> bool: ...
    @property
    def refused_checkpoints(self) -> int: ...
    @property
    def footers(self) -> int: ...
    @property
    def scanned_segments(self) -> int: ...
    @property
    def torn_records(self) -> int: ...
    @property
    def mended_blocks(self) -> int: ...

@final
class FlushReport:
    @property
    def durable_objects(self) -> int: ...
    @property
    def durable_bytes(self) -> int: ...
    @property
    def refused_objects(self) -> int: ...
    @property
    def lost_objects(self) -> int: ...

@final
class CloseReport:
    @property
    def durable_objects(self) -> int: ...
    @property
    def durable_bytes(self) -> int: ...
    @property
    def refused_objects(self) -> int: ...
    @property
    def lost_objects(self) -> int: ...
    @property
    def unsaved_objects(self) -> int: ...
    @property
    def unsaved_bytes(self) -> int: ...
    @property
    def error(self) -> str | None: ...

@final
class PoolQuery:
    @staticmethod
    def all_pages(objects: Sequence[Key]) -> PoolQuery: ...
    @staticmethod
    def trailing_pages(objects: Sequence[Key], pages: int = 1) -> PoolQuery: ...
    @staticmethod
    def block_groups(
        objects: Sequence[Key], block_pages: int, group_pages: int, pages: Sequence[_Page]
    ) -> PoolQuery: ...

@final
class PagesFound:
    @property
    def usable_pages(self) -> int: ...
    @property
    def anchor_pages(self) -> int: ...
    @property
    def pool_pages(self) -> list[int]: ...
    @property
    def stops(self) -> list[int]: ...

@final
class Request: ...

@final
class Registration:
    @property
    def used(self) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> Registration: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

@final
class Pin:
    @property
    def objects(self) -> int: ...
    @property
    def held(self) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> Pin: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

@final
class View:
    @property
    def address(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def memory(self) -> memoryview: ...
    @property
    def held(self) -> bool: ...

@final
class Group:
    def put(
        self,
        keys: Sequence[Key],
        sources: Sequence[_Memory],
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
        wait: float | None = None,
    ) -> list[PutOutcome]: ...
    def missing(self) -> list[Key]: ...
    def commit(
        self, *, request: Request | None = None, depth: int = 0, timeout: float | None = None, wait: float | None = None
    ) -> PutOutcome: ...
    def abort(self) -> None: ...

@final
class Submitted(Generic[_Outcome]):
    def done(self) -> bool: ...
    def result(self, timeout: float | None = None) -> list[_Outcome]: ...
    def __await__(self) -> Generator[Any, None, list[_Outcome]]: ...

@final
class Store:
    def __new__(
        cls, config: Mapping[str, Any] | str | os.PathLike[str] | None = None, *, subdirectory: str | None = None
    ) -> Store: ...
    @property
    def opened(self) -> OpenReport | None: ...
    @staticmethod
    def bytes_in(directory: str | os.PathLike[str]) -> int | None: ...
    @staticmethod
    def attach(address: str, *, key: tuple[str, bytes] | None = None, may_be_down: bool = False) -> Store: ...
    def share(self, fd: int, address: int, length: int) -> None: ...
    def register(self, memory: _Piece) -> Registration: ...
    def begin_request(self) -> Request: ...
    def put(
        self,
        keys: Sequence[Key],
        sources: Sequence[_Memory],
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
        wait: float | None = None,
    ) -> list[PutOutcome]: ...
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
    ) -> PutOutcome: ...
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
    ) -> list[PutOutcome]: ...
    def begin_group(
        self,
        required: Sequence[Key],
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
    ) -> Group: ...
    def get(
        self,
        keys: Sequence[Key],
        destinations: Sequence[_Memory],
        *,
        ranges: Sequence[tuple[int, int] | None] | None = None,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
    ) -> list[GetOutcome]: ...
    def submit_get(
        self,
        keys: Sequence[Key],
        destinations: Sequence[_Memory],
        *,
        ranges: Sequence[tuple[int, int] | None] | None = None,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
    ) -> Submitted[GetOutcome]: ...
    def submit_put(
        self,
        keys: Sequence[Key],
        sources: Sequence[_Memory],
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
        wait: float | None = None,
    ) -> Submitted[PutOutcome]: ...
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
    ) -> Submitted[PutOutcome]: ...
    def exists(
        self,
        keys: Sequence[Key],
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
    ) -> list[bool]: ...
    def exists_prefix(
        self,
        keys: Sequence[Key],
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
    ) -> int: ...
    def exists_groups(
        self,
        pages: Sequence[_Page],
        anchor: Sequence[Key],
        pools: Sequence[PoolQuery] | None = None,
        *,
        request: Request | None = None,
        depth: int = 0,
        timeout: float | None = None,
    ) -> PagesFound: ...
    def remove(self, keys: Sequence[Key], *, timeout: float | None = None) -> int: ...
    def clear(self, namespace: Namespace, *, timeout: float | None = None) -> int: ...
    def flush(self, *, timeout: float | None = None) -> FlushReport: ...
    def pin(self, keys: Sequence[Key], *, timeout: float | None = None) -> Pin: ...
    def lease(self, keys: Sequence[Key], seconds: float, *, timeout: float | None = None) -> int: ...
    def view(self, keys: Sequence[Key], *, timeout: float | None = None) -> list[View | None]: ...
    def prefetch(
        self, keys: Sequence[Key], *, request: Request | None = None, depth: int = 0, timeout: float | None = None
    ) -> int: ...
    def stats(self) -> dict[str, Any]: ...
    def take_events(self, most: int = 65536, *, timeout: float | None = None) -> tuple[list[Event], int]: ...
    def close(self, *, timeout: float | None = None) -> CloseReport | None: ...
    def __enter__(self) -> Store: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

# For `_log.py`.
def _log_begin(level: int) -> None: ...
def _log_wake() -> int: ...
def _log_take() -> tuple[list[tuple[int, str, str | None, int, float, str, dict[str, Any]]], int]: ...
def _log_forked() -> None: ...

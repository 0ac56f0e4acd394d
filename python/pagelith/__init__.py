"""A tiered page store for LLM KV caches: memory, and SSD in aligned segments, behind one key.

    with pagelith.Store({"ssd": {"dirs": ["/mnt/nvme/kv"], "bytes": "500GiB"}}) as store:
        space = pagelith.Namespace("my-model", dtype="bf16", page_tokens=64)
        key = pagelith.Key(space, page_hash)
        store.put([key], [page])
        if store.get([key], [page])[0]:
            ...

One call is one batch. Each of its objects has an outcome; a miss raises no exception. The GIL is
released while a call works. The memory of a call is an object with a buffer, a tensor, (address,
length), or a list of those.
"""

# Imported here, and not when the first store is opened: a fork meanwhile would see it half
# imported.
from . import _log  # noqa: F401
from ._native import (
    BusyError,
    ClosedError,
    CloseReport,
    DamagedError,
    DeniedError,
    Device,
    Event,
    FlushReport,
    ForkedError,
    GetOutcome,
    Group,
    IncompatibleError,
    InternalError,
    InvalidError,
    Key,
    Namespace,
    NoSpaceError,
    OpenReport,
    PagelithError,
    PagesFound,
    Pin,
    PoolQuery,
    PutOutcome,
    Registration,
    Request,
    Store,
    Submitted,
    UnavailableError,
    View,
    __version__,
)
from .stats import LimitStats, NamespaceStats, Stats

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
    "LimitStats",
    "Namespace",
    "NamespaceStats",
    "NoSpaceError",
    "OpenReport",
    "PagelithError",
    "PagesFound",
    "Pin",
    "PoolQuery",
    "PutOutcome",
    "Registration",
    "Request",
    "Stats",
    "Store",
    "Submitted",
    "UnavailableError",
    "View",
    "__version__",
]

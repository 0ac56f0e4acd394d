"""A tiered page store for LLM KV caches: memory, and SSD in aligned segments, behind one key.

    with pagelith.Store({"ssd": {"dirs": ["/mnt/nvme/kv"], "bytes": "500GiB"}}) as store:
        space = pagelith.Namespace("my-model", dtype="bf16", page_tokens=64)
        key = pagelith.Key(space, page_hash)
        store.put([key], [page])
        if store.get([key], [page])[0]:
            ...

One call is one batch; each object of it has an outcome of its own, and a miss raises nothing. The interpreter's lock is free
while a call works. The memory of a call is named by what has a buffer, by (address, length), or by lists of those.
"""

# Here, and not when the first store is opened: a fork meanwhile would find it half imported.
from . import _log  # noqa: F401
from ._native import (
    BusyError,
    ClosedError,
    CloseReport,
    DamagedError,
    DeniedError,
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

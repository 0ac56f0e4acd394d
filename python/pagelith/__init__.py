"""A tiered page store for LLM KV caches: memory, and SSD in aligned segments, behind one key.

    with pagelith.Store({"ssd": {"dirs": ["/mnt/nvme/kv"], "bytes": "500GiB"}}) as store:
        space = pagelith.Namespace("my-model", dtype="bf16", page_tokens=64)
        key = pagelith.Key(space, page_hash)
        store.put([key], [page])
        if store.get([key], [page])[0]:
            ...

Calls

- One call is one batch of any size. Each of its objects has an outcome, which is true for a hit or
  for an object that is stored; a miss raises no exception. An error of one object is in its
  outcome, an error of the call is raised. The GIL is released while a call works.
- A key keeps its first bytes. A put of a stored key returns `present` and does not compare bytes.
  To store others, use another key or `remove` it first. Lengths are exact: a get into memory of
  another length, or a repeated put of one, is an InvalidError in the outcome.
- Durable is what a `flush` covered: it survives kill -9 and power loss. Without an SSD tier `flush`
  does nothing.
- `timeout` bounds each call, except reads that the drive has already started directly into the
  caller's memory: a get returns only when the drive has completed them. Once reads are known to
  take longer than a call has left, they use the store's own memory, and the call returns in time
  with a miss (`late`). So a drive that becomes slow delays one call of each thread, counted as
  `late_direct`.
- Submitted batches: four of a store run at a time, in the order of submission. Cancelling a task
  that awaits one leaves it running.
- A store that is not closed is closed with its last reference, or when the interpreter exits,
  within `close_timeout_ms`; of an attached store only this client's link. Ctrl-C is handled when
  the call in progress has returned.
- An attached store that cannot be reached gives outcomes with an UnavailableError; calls without
  outcomes raise it. An open group ends with its client, unless another client began it too; if that
  client commits it, `commit` returns `present` here.
- `forgot` events: objects with unknown keys were lost, so call `exists` for those you expect.

Memory

- An object with a contiguous buffer (bytes, bytearray, memoryview, NumPy arrays, ctypes), a tensor
  in host memory that implements DLPack, an (address, length), or a list of those for an object in
  pieces. Lists are copied when the call begins.
- Until the call returns, no thread may write to the memory of a put, or access or resize that of a
  get (PyTorch's `resize_`, NumPy's `resize(refcheck=False)`). Destinations must not overlap.
- Destinations at multiples of 4096 with such lengths are read from SSD without a copy.
- An (address, length) is the caller's guarantee that the memory stays valid. Before any bytes are
  moved, the range is compared with the kernel's list of mappings (/proc/self/maps): not null,
  mapped, readable, and for a get or `register` writable. An address in the cached list costs 3 us;
  reading the list again takes 1 ms with 2,000 mappings and 30 ms with 60,000. Memory that was
  unmapped since is not detected, and using it ends the process (SIGSEGV).
- An invalid argument raises a TypeError, BufferError or InvalidError that names it, with its index
  in a list: `sources[3]`, or `sources[3][1]` in pieces.
- A host pool that is read into repeatedly is registered once, `with store.register(pool):`. The
  garbage collector does not see that a registration refers to its buffer.
- `pagelith.shared.share(store, [(address, length)])` shares those parts that are shared mappings of
  a memfd or of a file in /dev/shm with a store process, which then copies puts itself, and returns
  the number of mappings, at most 32; a new mapping at the same addresses replaces the previous one.
- All memory of a device in a call is of one device (`Store.bind_device`). If the device is done
  after the timeout, the outcome has an UnavailableError; the store keeps tensors and objects until
  it is done, and you keep addresses until `device.late_copies` is 0. A submitted batch keeps a
  stream object until it has ended; a number must stay valid until then. Parts of a group begun
  with `begin_group` must be in host memory.

Log and fork

- The store's log goes to the logger `pagelith`. A record has the event's `fields` (a dictionary)
  and its `target` (the module). Events of INFO and above are recorded, and lower levels if the logger's
  level included them when a store was last opened. Events caused by `Store()`, `attach`, `flush` or
  `close` are logged before the call returns, all others by the daemon thread `pagelith-log`. At
  most 8,192 events are queued; further ones are dropped and counted in one warning
  (`fields["dropped"]`).
- A store belongs to the process that opened it. In a child, calls raise ForkedError, dropping the
  store does nothing, and reading a memoryview of a view ends the child (SIGSEGV). Open stores after
  the fork, each with its own directory. A child of `os.fork`, including `multiprocessing`, releases
  the store's files, so that others can open the store once the parent has ended. Links of an
  attached client stay open in a child until it ends.
- `Store(settings, subdirectory="rank_0")` divides drives among ranks.
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

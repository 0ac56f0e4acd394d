"""The L2 adapter that LMCache's store and prefetch controllers call from their event loops: no
method here blocks on I/O.

A failure is reported as a miss or as a failed task. Exceptions are raised only for a wrong
configuration.
"""

import itertools
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface

import pagelith

from ..identity import Identity, admit
from ..shared import share
from .locks import Locks
from .names import Names, addresses
from .pins import Pins
from .settings import Settings
from .tasks import Tasks

logger = logging.getLogger(__name__)

# LMCache's server is not an engine process. Its keys contain the model's name; all other facts are
# unknown.
_UNKNOWN_MODEL = Identity(
    {"engine": "lmcache"},
    ("the model's configuration, its weights, their quantization, the type and scales of its KV cache, its maximum length, and the engine",),
)
# Most keys remembered as failed until they are stored again: 16 MB. Beyond that the oldest is
# looked up again.
_FAILED_MAX = 65536
# Most keys whose bytes are counted for LMCache: 100 MB. Beyond that the oldest is reported to it as
# deleted.
_COUNTED_MAX = 262144
# Most bytes of one put of several objects: each put waits for space separately.
_PUT_BYTES = 64 << 20


class PagelithL2Adapter(L2AdapterInterface):
    """Objects in an embedded store, or in a store process."""

    def __init__(self, params: Any, l1_memory_desc: Any = None) -> None:
        self.settings = Settings.read("\"adapter_params\" of --l2-adapter", params)
        admit(_UNKNOWN_MODEL, self.settings.revision, "\"adapter_params\" of --l2-adapter")
        # No capacity: the store evicts by itself, with better knowledge of the accesses.
        super().__init__(max_capacity_bytes=0)
        self._names = Names(self.settings)
        self._failures = self.settings.failures(logger)
        self._store = self.settings.open("lmcache")
        if self.settings.attach is not None and l1_memory_desc is not None:
            share(self._store, [(l1_memory_desc.ptr, l1_memory_desc.size)])
        self._locks = Locks(self.settings.lock_ms / 1000)
        self._pins: Pins | None = None
        if self.settings.attach is not None:
            self._pins = Pins(self._store, self.settings, self._locks.expire, self._failures)
        self._ids = itertools.count()
        self._lookup_tasks: Tasks[Any] = Tasks("lookup", 1, self._failures)
        self._loads: Tasks[Any] = Tasks("load", self.settings.read_threads, self._failures)
        self._stores: Tasks[Any] = Tasks("store", self.settings.write_threads, self._failures)
        self._lock = threading.Lock()
        self._failed: dict[pagelith.Key, None] = {}
        self._counted: dict[Any, int] = {}
        # The error of the last lookup, if it failed.
        self._lookup_error: str | None = None

    # Descriptors.

    def get_store_event_fd(self) -> int:
        return self._stores.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookup_tasks.fileno()

    def get_load_event_fd(self) -> int:
        return self._loads.fileno()

    # Stores.

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        task = next(self._ids)
        self._stores.submit(task, partial(self._store_objects, list(keys), list(objects)), lambda: L2StoreResult(False, 0))
        return task

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        return self._stores.take_all()

    def _store_objects(self, keys: list[Any], objects: list[Any]) -> Any:
        names = self._names.of_objects(keys, objects)
        with self._lock:
            failed = [name for name in names if name in self._failed]
        if failed:
            # An object that could not be read may still be stored: it is replaced.
            self._remove(failed)
        present = self._are_stored(names)
        written = 0
        for some in _put_batches([at for at, is_present in enumerate(present) if not is_present], objects):
            outcomes = self._put([names[at] for at in some], [objects[at] for at in some])
            for at, outcome in zip(some, outcomes, strict=True):
                present[at] = bool(outcome)
            stored = [at for at, outcome in zip(some, outcomes, strict=True) if outcome.state == "stored"]
            sizes = [objects[at].get_size() for at in stored]
            self._report_stored([keys[at] for at in stored], sizes)
            written += sum(sizes)
            if not any(outcomes) and not any(isinstance(outcome.error, pagelith.InvalidError) for outcome in outcomes):
                # The store is full and evicts nothing: the remaining puts would wait as long and be
                # refused. An invalid object says nothing about the remaining ones.
                break
        with self._lock:
            for name, is_present in zip(names, present, strict=True):
                if is_present:
                    self._failed.pop(name, None)
        return L2StoreResult(all(present), written)

    def _put(self, names: list[pagelith.Key], objects: list[Any]) -> list[Any]:
        _check_valid(objects)
        outcomes = self._store.put(names, addresses(objects), wait=self.settings.put_wait_ms / 1000)
        self._failures.written(outcomes, "store")
        try:
            _check_valid(objects)
        except ValueError:
            # LMCache may have reused the memory while the put read it.
            self._remove(names)
            raise
        return outcomes

    # Lookups.

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: Any) -> int:
        task = next(self._ids)
        self._lookup_tasks.submit(task, partial(self._look_up, list(keys), group_layout_descs), partial(Bitmap, len(keys)))
        return task

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._lookup_tasks.take(task_id)

    def _look_up(self, keys: list[Any], layouts: Any) -> Any:
        named = self._names.looked_for(keys, layouts)
        asked: list[int] = []
        names: list[pagelith.Key] = []
        with self._lock:
            for at, name in enumerate(named):
                if name is not None and name not in self._failed:
                    asked.append(at)
                    names.append(name)
        # Pinned before the lookup, so that a found object stays until it is loaded.
        began = time.monotonic()
        pin = self._store.pin(names) if self._pins is None else self._pins.take(names)
        present: list[int] = []
        try:
            present = [at for at, is_present in zip(asked, self._are_stored(names, time.monotonic() - began), strict=True) if is_present]
        finally:
            self._locks.lock([keys[at] for at in present], pin)
        bitmap = Bitmap(len(keys))
        for at in present:
            bitmap.set(at)
        if keys and not present:
            self._names.check(keys[0], layouts)
        found = set(present)
        self._report_deleted(key for at, key in enumerate(keys) if at not in found)
        return bitmap

    def _are_stored(self, names: list[pagelith.Key], waited: float = 0) -> list[bool]:
        """Whether each object is stored. `waited` seconds of the lookup's time have passed
        already."""
        try:
            present = self._store.exists(names, timeout=max(0, self.settings.look_timeout_ms / 1000 - waited))
        except pagelith.PagelithError as error:
            self._lookup_error = str(error)
            raise
        self._lookup_error = None
        return present

    def submit_unlock(self, keys: list[Any]) -> None:
        self._locks.unlock(keys)

    # Loads.

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        task = next(self._ids)
        self._loads.submit(task, partial(self._load, list(keys), list(objects)), partial(Bitmap, len(keys)))
        return task

    def query_load_result(self, task_id: int) -> Any:
        return self._loads.take(task_id)

    def _load(self, keys: list[Any], objects: list[Any]) -> Any:
        names = self._names.of_objects(keys, objects)
        bitmap = Bitmap(len(keys))
        loaded: list[int] = []
        try:
            _check_valid(objects)
            outcomes = self._store.get(names, addresses(objects), timeout=self.settings.get_timeout_ms / 1000)
            self._failures.read(names, outcomes, "load")
            loaded = [at for at, outcome in enumerate(outcomes) if outcome]
        finally:
            # Also when the call itself failed: LMCache would otherwise find the objects and load
            # them again and again.
            done = set(loaded)
            self._mark_failed(name for at, name in enumerate(names) if at not in done)
        for at in loaded:
            bitmap.set(at)
        if loaded:
            self._call_listener("on_l2_keys_accessed", self._notify_keys_accessed, [keys[at] for at in loaded])
        self._report_deleted(key for at, key in enumerate(keys) if at not in done)
        return bitmap

    def _mark_failed(self, names: Iterable[pagelith.Key]) -> None:
        """Mark objects as unreadable: they are not found again until they are stored."""
        with self._lock:
            self._failed.update(dict.fromkeys(names))
            while len(self._failed) > _FAILED_MAX:
                del self._failed[next(iter(self._failed))]

    # LMCache's accounting and eviction.

    def delete(self, keys: list[Any]) -> None:
        """Remove the objects that are not locked, under every layout seen in this process."""
        free = [key for key in keys if not self._locks.is_locked(key)]
        if self._remove([name for key in free for name in self._names.all_of(key)]):
            self._report_deleted(free)

    def _remove(self, names: list[pagelith.Key]) -> bool:
        try:
            self._store.remove(names)
        except pagelith.PagelithError as error:
            self._failures.call("removal", error)
            return False
        return True

    def _report_stored(self, keys: Sequence[Any], sizes: Sequence[int]) -> None:
        """Report each stored object to LMCache, once for as long as it is stored."""
        new: dict[Any, int] = {}
        with self._lock:
            for key, size in zip(keys, sizes, strict=True):
                if key not in self._counted:
                    new[key] = self._counted[key] = size
            over = list(itertools.islice(self._counted, max(0, len(self._counted) - _COUNTED_MAX)))
        if new:
            self._call_listener("on_l2_keys_stored", self._notify_keys_stored, list(new), list(new.values()))
        self._report_deleted(over)

    def _report_deleted(self, keys: Iterable[Any]) -> None:
        """Report counted objects that are no longer stored: the store evicts without notifying
        LMCache."""
        with self._lock:
            gone = {key: self._counted.pop(key) for key in keys if key in self._counted}
        if gone:
            self._call_listener("on_l2_keys_deleted", self._notify_keys_deleted, list(gone), list(gone.values()))

    def _call_listener(self, event: str, notify: Any, *arguments: Any) -> None:
        try:
            notify(*arguments)
        except Exception:
            # An exception of a listener must not fail the operation.
            logger.exception("pagelith: a listener of LMCache raised an exception in %s", event)

    def report_status(self) -> dict[str, Any]:
        status = {
            "type": type(self).__name__,
            "store": self.settings.attach or "in this process",
            "locked_key_count": self._locks.count(),
            "failed_key_count": len(self._failed),
            "open_tasks": {"store": self._stores.open(), "lookup": self._lookup_tasks.open(), "load": self._loads.open()},
        }
        if self._pins is not None:
            status["pins_taken"] = not self._pins.given_up()
            status["pins_to_be_released"] = self._pins.to_be_released()
        if self._lookup_error is not None:
            # Another call could block for its whole timeout.
            return {"is_healthy": False, **status, "error": self._lookup_error}
        try:
            stats = self._store.stats()
        except pagelith.PagelithError as error:
            return {"is_healthy": False, **status, "error": str(error)}
        # Without an SSD tier the state never changes.
        healthy = stats["ssd_state"] == "on" or not stats["ssd_state_changes"]
        return {"is_healthy": healthy, **status, "stats": stats}

    def close(self) -> None:
        """Finish the submitted tasks, then close the store."""
        for tasks in (self._lookup_tasks, self._loads, self._stores):
            tasks.drain()
        if self._pins is None:
            try:
                self._locks.close()
            finally:
                self._store.close()
        else:
            # Closing the link ends all pins in a store process, without a release of each.
            self._store.close()
            self._locks.close()
            self._pins.close()
        for tasks in (self._lookup_tasks, self._loads, self._stores):
            tasks.close()


def _put_batches(new: Sequence[int], objects: Sequence[Any]) -> Iterable[list[int]]:
    some: list[int] = []
    length = 0
    for at in new:
        size = objects[at].get_size()
        if some and length + size > _PUT_BYTES:
            yield some
            some, length = [], 0
        some.append(at)
        length += size
    if some:
        yield some


def _check_valid(objects: Iterable[Any]) -> None:
    """LMCache's locks expire after minutes: an object of a task that waited longer may have lost
    its memory."""
    if not all(memory.is_valid() for memory in objects):
        raise ValueError("LMCache took a memory object back before it was stored or loaded: its lock ended meanwhile")

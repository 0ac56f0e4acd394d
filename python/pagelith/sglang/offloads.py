"""Offloads: pages of device pools into the store.

The pools of which every page has an object form one group of the page, so that they are visible
together. Windows and states are attached to their page.
"""

import queue
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pagelith

from ..failures import Failures
from ..identity import ModelError
from ..missed import Missed
from .device_pools import DevicePool
from .pools import page_of
from .streams import DeviceStream

# Pages that are stored in one call, unless one offload has more.
_PAGES_MAX = 1024
# Errors that no offload is the cause of.
_OF_ALL = (pagelith.UnavailableError, ModelError)


class Offered(NamedTuple):
    """Pages of a pool: SGLang's hashes, and their slots on the device."""

    pool: DevicePool
    hashes: list[str]
    indices: Any
    # Every page has an object in this pool.
    each: bool


class Offload(NamedTuple):
    """Pages of all pools, of one node of the tree."""

    offered: list[Offered]
    # The pages are complete once these events are done; the first is for the slots.
    ready: list[Any]

    @property
    def pages(self) -> int:
        return max(len(one.hashes) for one in self.offered)


class Offloading:
    """Executes offloads on one thread, in order. Each one has a result, in that order.

    `templates` returns the key of a pool, of any page; it raises an error if no page may be stored
    now. `anchor` is the pool to whose objects windows and states are attached.
    """

    def __init__(
        self, store: pagelith.Store, stream: DeviceStream, failures: Failures, wait: float, anchor: DevicePool,
        templates: Callable[[], dict[str, pagelith.Key]], missed: Missed,
    ) -> None:  # fmt: skip
        self._missed = missed
        self._store, self._stream, self._failures, self._wait = store, stream, failures, wait
        self._anchor, self._templates = anchor, templates
        self.results: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def run(self, offloads: Sequence[Offload]) -> None:
        for result in self._results(offloads):
            self.results.put(result)

    def _results(self, offloads: Sequence[Offload]) -> list[bool]:
        try:
            return self._store_all(offloads)
        except Exception as error:
            if len(offloads) > 1 and not isinstance(error, _OF_ALL):
                # One of them may be the cause.
                return [result for one in offloads for result in self._results([one])]
            self._failures.call("offload", error)
            return [False] * len(offloads)

    def _store_all(self, offloads: Sequence[Offload]) -> list[bool]:
        how: dict[str, Any] = {}
        for offload in offloads:
            how = self._stream.after(offload.ready)
        # The memory of each page: pages of the same hash have the same bytes.
        groups: dict[str, dict[DevicePool, list[Any]]] = {}
        attached: dict[DevicePool, dict[str, list[Any]]] = {}
        for offload in offloads:
            for pool, hashes, indices, each in offload.offered:
                memory = pool.memory(pool.rows(indices, len(hashes)), self._stream.device)
                for one, of_page in zip(hashes, memory, strict=True):
                    if each:
                        groups.setdefault(one, {})[pool] = of_page
                    else:
                        attached.setdefault(pool, {})[one] = of_page
        stored = {(pool, one) for one in self._put(groups, how) for pool in groups[one]}
        for pool, pages in attached.items():
            with_page = {one: {pool: memory} for one, memory in pages.items() if (self._anchor, one) in stored}
            stored |= {(pool, one) for one in self._put(with_page, how, of=pool)}
        self._missed.stored([(pool.name, one) for pool, one in stored])
        return [all((part.pool, one) in stored for part in offload.offered for one in part.hashes) for offload in offloads]

    def _put(self, pages: dict[str, dict[DevicePool, list[Any]]], how: dict[str, Any], of: DevicePool | None = None) -> list[str]:
        """Store pages, with their objects in some pools, unless they are stored. Returns those that
        are stored then. `of`: the pool of objects that are attached to their page."""
        templates = self._templates()
        hashes = list(pages)
        present = self._store.exists(templates[(of or self._anchor).name].on_pages([page_of(one) for one in hashes])) if hashes else []
        stored = [one for one, is_present in zip(hashes, present, strict=True) if is_present]
        absent = [one for one, is_present in zip(hashes, present, strict=True) if not is_present]
        keys = [templates[pool.name].on_page(page_of(one)) for one in absent for pool in pages[one]]
        sources = [memory for one in absent for memory in pages[one].values()]
        base = None if of is None else templates[self._anchor.name]
        outcomes = self._store.put_pages(keys, sources, base=base, wait=self._wait, **how) if absent else []
        self._failures.written(outcomes, "offload")
        return stored + [one for one, outcome in zip(absent, outcomes, strict=True) if outcome]


def taken(offloads: "queue.Queue[Offload | None]", first: Offload) -> list[Offload]:
    """`first`, and those after it that wait already, up to the pages of one call."""
    all_, pages = [first], first.pages
    while pages < _PAGES_MAX and not offloads.empty() and offloads.queue[0] is not None:
        one = offloads.get_nowait()
        assert one is not None
        all_.append(one)
        pages += one.pages
    return all_

"""Events of a server's pages in the store: additions and removals by tier, under SGLang's page
hashes.

SGLang publishes events of its GPU and host memory, but asks no storage backend for any. So they are
returned by a call here, or published as SGLang publishes its own (`publisher.py`). One object
stands for a page, since a page is stored complete or not at all.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pagelith

from ..events import EVENTS_MAX, taken

# Most pages per lookup call of the store.
_PAGES_PER_LOOKUP = 1 << 16


@dataclass(frozen=True)
class PageEvent:
    """Pages that were added to a tier of the store, or removed from it."""

    removed: bool
    # "dram" or "ssd".
    tier: str
    # SGLang's page hashes, each 64 digits.
    pages: list[str]


class PagesTold:
    """Tracks the pages that a listener believes to be stored, for this rank.

    It begins at the start; pages stored before are reported when they are read. If the store cannot
    name all removals (events were dropped, objects with unknown keys were lost, it was restarted),
    all pages that were reported as stored are looked up. So a listener that applies the events is
    right in the end about whether a page is stored; its tier may be wrong until the page moves.
    """

    def __init__(self, store: pagelith.Store, anchor: Callable[[], pagelith.Key | None]) -> None:
        self._store, self._anchor = store, anchor
        self._lock = threading.Lock()
        self._anchor_key: pagelith.Key | None = None
        # The pages that a listener believes to be stored, by tier.
        self._believed: dict[str, set[bytes]] = {"dram": set(), "ssd": set()}
        self._events: list[tuple[bool, str, list[bytes]]] = []
        # Pages read since the last call that were not known to be stored, with the tier that they
        # were read from.
        self._read: dict[bytes, str] = {}
        # Whether all pages must be looked up, because the store could not name a removal.
        self._needs_lookup = False
        # Events count from here. This also fails if the store records none. A store process that is
        # down is asked again later.
        with contextlib.suppress(pagelith.UnavailableError):
            taken(store)

    def take(self) -> list[PageEvent]:
        """The events since the last call, in order."""
        with self._lock:
            self._drain()
            self._report_reads()
            return self._take_page_events()

    def end(self) -> list[PageEvent]:
        """The final events: all pages are removed, since the store becomes unreachable."""
        with self._lock:
            self._remove_all()
            return self._take_page_events()

    def _take_page_events(self) -> list[PageEvent]:
        events, self._events = self._events, []
        return [PageEvent(removed, tier, [page.hex() for page in pages]) for removed, tier, pages in events]

    def read(self, found: Iterable[tuple[bytes, str | None]]) -> None:
        """Record reads of pages from tiers. Pages of an earlier process are reported by the next
        call. Does not block."""
        for page, tier in found:
            if tier in self._believed and page not in self._believed[tier] and len(self._read) < EVENTS_MAX:
                self._read[page] = tier

    def _report_reads(self) -> None:
        read, self._read = self._read, {}
        pages = list(read)
        # A page removed since it was read is not found here, or its removal is reported after this.
        for page, present in zip(pages, self._are_stored(pages), strict=True):
            if present:
                self._add(False, read[page], page)

    def _drain(self) -> None:
        anchor = self._anchor()
        if anchor != self._anchor_key:
            # Another pool was registered: the pages belong to another configuration.
            self._remove_all()
            self._anchor_key = anchor
        events, complete = taken(self._store)
        # Reset only after the lookup below has succeeded.
        self._needs_lookup = self._needs_lookup or not complete
        for event in events:
            if event.kind == "cleared" and anchor is not None and event.namespace == anchor.namespace:
                self._remove_all()
            key = event.key
            if key is None or anchor is None or event.tier not in self._believed or key != anchor.on_page(key.page):
                continue
            self._add(event.kind == "removed", event.tier, key.page)
            if event.gone:
                # It may have been reported for a tier that it had left.
                self._remove_from_all_tiers(key.page)
        if self._needs_lookup:
            self._look_up_all()
            self._needs_lookup = False

    def _look_up_all(self) -> None:
        """Look up all pages believed to be stored, and report those that are not."""
        believed = list(set().union(*self._believed.values()))
        for page, present in zip(believed, self._are_stored(believed), strict=True):
            if not present:
                self._remove_from_all_tiers(page)

    def _are_stored(self, pages: list[bytes]) -> list[bool]:
        if self._anchor_key is None:
            return [False] * len(pages)
        starts = range(0, len(pages), _PAGES_PER_LOOKUP)
        return [stored for start in starts for stored in self._store.exists(self._anchor_key.on_pages(pages[start : start + _PAGES_PER_LOOKUP]))]

    def _remove_from_all_tiers(self, page: bytes) -> None:
        for tier in self._believed:
            self._add(True, tier, page)

    def _remove_all(self) -> None:
        for tier, present in self._believed.items():
            for page in list(present):
                self._add(True, tier, page)

    def _add(self, removed: bool, tier: str, page: bytes) -> None:
        present = self._believed[tier]
        if removed != (page in present):
            return
        (present.remove if removed else present.add)(page)
        if self._events and self._events[-1][:2] == (removed, tier):
            self._events[-1][2].append(page)
        else:
            self._events.append((removed, tier, [page]))

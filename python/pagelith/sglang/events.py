"""Which of a server's pages are in the store: what came and went, by tier, under SGLang's page hashes.

SGLang publishes events of its GPU and host memory; it asks no storage backend for any. Here they are handed out, or published as
SGLang publishes its own (`publisher.py`). A page is told of by one of its objects: it is whole, or not there.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pagelith

from ..events import EVENTS_MAX, taken

# Pages that the store is asked for in one call.
_ASKED = 1 << 16


@dataclass(frozen=True)
class PageEvent:
    """Pages that came into a tier of the store, or went from it."""

    removed: bool
    # "dram" or "ssd".
    tier: str
    # SGLang's page hashes, each 64 digits.
    pages: list[str]


class PagesTold:
    """What was told of this rank's pages.

    From the start on; what was there before is told of when it is read. Where the store cannot say what went (events were dropped, it
    lost objects that it cannot name, it was started again) it is asked for all that it was said to have. So what a listener adds and
    takes away is right in the end about whether a page is there; which tier it is in may then be wrong until it moves.
    """

    def __init__(self, store: pagelith.Store, anchor: Callable[[], pagelith.Key | None]) -> None:
        self._store, self._anchor = store, anchor
        self._lock = threading.Lock()
        self._at: pagelith.Key | None = None
        # By tier, what a listener believes to be there.
        self._there: dict[str, set[bytes]] = {"dram": set(), "ssd": set()}
        self._events: list[tuple[bool, str, list[bytes]]] = []
        # What was read since, from which tier, and was not known to be there.
        self._read: dict[bytes, str] = {}
        # Whether all has to be asked for, since something went that has no name.
        self._doubted = False
        # From here on; a store that keeps no events says so. One that is down, and may be, is asked the next time.
        with contextlib.suppress(pagelith.UnavailableError):
            taken(store)

    def take(self) -> list[PageEvent]:
        """The events since this was called last, in the order in which it happened."""
        with self._lock:
            self._drain()
            self._tell_read()
            return self._taken()

    def end(self) -> list[PageEvent]:
        """The last events: the store is out of reach from now on, and so is what it has."""
        with self._lock:
            self._forget()
            return self._taken()

    def _taken(self) -> list[PageEvent]:
        events, self._events = self._events, []
        return [PageEvent(removed, tier, [page.hex() for page in pages]) for removed, tier, pages in events]

    def read(self, found: Iterable[tuple[bytes, str | None]]) -> None:
        """These pages were read from these tiers. Those of an earlier process are told of the next time; this waits for nothing."""
        for page, tier in found:
            if tier in self._there and page not in self._there[tier] and len(self._read) < EVENTS_MAX:
                self._read[page] = tier

    def _tell_read(self) -> None:
        read, self._read = self._read, {}
        pages = list(read)
        # What went since it was read is not here, or is told of behind this.
        for page, there in zip(pages, self._here(pages), strict=True):
            if there:
                self._add(False, read[page], page)

    def _drain(self) -> None:
        anchor = self._anchor()
        if anchor != self._at:
            # Another pool was registered: what was there is not this configuration's.
            self._forget()
            self._at = anchor
        told, whole = taken(self._store)
        # Until the asking below came to its end.
        self._doubted = self._doubted or not whole
        for event in told:
            if event.kind == "cleared" and anchor is not None and event.namespace == anchor.namespace:
                self._forget()
            key = event.key
            if key is None or anchor is None or event.tier not in self._there or key != anchor.on_page(key.page):
                continue
            self._add(event.kind == "removed", event.tier, key.page)
            if event.gone:
                # A tier may have been named that it had left.
                self._gone(key.page)
        if self._doubted:
            self._ask()
            self._doubted = False

    def _ask(self) -> None:
        """Ask for all that is believed to be there, and tell of what is not."""
        believed = list(set().union(*self._there.values()))
        for page, there in zip(believed, self._here(believed), strict=True):
            if not there:
                self._gone(page)

    def _here(self, pages: list[bytes]) -> list[bool]:
        if self._at is None:
            return [False] * len(pages)
        starts = range(0, len(pages), _ASKED)
        return [here for start in starts for here in self._store.exists(self._at.on_pages(pages[start : start + _ASKED]))]

    def _gone(self, page: bytes) -> None:
        for tier in self._there:
            self._add(True, tier, page)

    def _forget(self) -> None:
        for tier, there in self._there.items():
            for page in list(there):
                self._add(True, tier, page)

    def _add(self, removed: bool, tier: str, page: bytes) -> None:
        there = self._there[tier]
        if removed != (page in there):
            return
        (there.remove if removed else there.add)(page)
        if self._events and self._events[-1][:2] == (removed, tier):
            self._events[-1][2].append(page)
        else:
            self._events.append((removed, tier, [page]))

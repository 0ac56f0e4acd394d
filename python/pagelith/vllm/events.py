"""vLLM's events of a tier, stored and removed chunks, for routers that send requests to where their
pages are."""

import logging
import threading
from collections.abc import Callable, Collection
from typing import Any

from .._native import Event, IncompatibleError, PagelithError, Store, UnavailableError
from ..events import EVENTS_MAX, taken
from ..failures import Failures

__all__ = ["EVENTS_MAX", "ChunkEvents"]

logger = logging.getLogger(__name__)


class ChunkEvents:
    """Events of chunks, in order.

    A store process provides additions and removals if it records events (its setting `events.max`).
    Otherwise only the chunks that this process stored are reported, and no removals.
    """

    def __init__(
        self,
        store: Store,
        name: Callable[[Event], Any],
        make: Callable[[list[Any], bool], Any],
        later: Callable[[Callable[[], None]], Any] | None,
        failures: Failures,
        cleared: Callable[[Event], list[Any]] | None = None,
    ) -> None:
        self._store, self._failures = store, failures
        # Whether the store records events, as far as is known.
        self.store_has_events = True
        # Returns the chunks that were removed with a namespace, where they are known.
        self._cleared = cleared
        # `name` returns the chunk of a store event, or None; `make` creates vLLM's event for stored
        # or removed chunks.
        self._name, self._make = name, make
        # For a store process: runs the call on a thread, since the scheduler does not block on
        # another process.
        self._later, self._polling = later, False
        self._events: list[tuple[bool, list[Any]]] = []
        self._lock = threading.Lock()
        try:
            # Events count from here.
            self._drain()
        except UnavailableError as error:
            # The store process is down, which is permitted: it is asked again with the next call.
            failures.call("request for events", error)

    def look(self, chunks: list[Any], exists: Callable[[], list[bool]]) -> list[bool]:
        """Which of these chunks are stored, before the missing ones are put. Stored ones may be of
        an earlier process, so they are reported."""
        with self._lock:
            present = exists()
            # A chunk removed since the lookup is not reported as stored afterwards.
            gone = self._drain() if self.store_has_events else set()
            self._add(False, [chunk for chunk, is_present in zip(chunks, present, strict=True) if is_present and chunk not in gone])
            return present

    def meet(self, chunks: Collection[Any], newly_stored: Callable[[Collection[Any]], list[Any]]) -> None:
        """Handle chunks that are stored, or were a moment ago. `newly_stored` returns those that are stored
        and were not reported yet."""
        with self._lock:
            found = newly_stored(chunks)
            gone = self._drain() if self.store_has_events else set()
            self._add(False, [chunk for chunk in found if chunk not in gone])

    def stored(self, chunks: list[Any]) -> None:
        """Handle chunks that were put and were not stored before. A store that records events
        reports them itself."""
        if not self.store_has_events:
            with self._lock:
                self._add(False, chunks)

    def take(self) -> list[Any]:
        """The events since the last call, as far as they are known without blocking."""
        events: list[tuple[bool, list[Any]]] = []
        # While a thread asks the store process, its events are returned by a later call.
        if self._lock.acquire(blocking=self._later is None):
            try:
                if self.store_has_events and self._later is None:
                    self._drain()
                events, self._events = self._events, []
            finally:
                self._lock.release()
        if self.store_has_events and self._later is not None and not self._polling:
            self._polling = True
            try:
                self._later(self._poll)
            except RuntimeError:
                # The executor was shut down.
                self._polling = False
        return [self._make(chunks, removed) for removed, chunks in events]

    def _poll(self) -> None:
        try:
            with self._lock:
                self._drain()
        except PagelithError as error:
            self._failures.call("request for events", error)
        finally:
            self._polling = False

    def _drain(self) -> Collection[Any]:
        """Read the store's events; returns the removed chunks."""
        gone: set[Any] = set()
        try:
            events, _ = taken(self._store)
        except IncompatibleError as error:
            self.store_has_events = False
            logger.warning("pagelith: removals of chunks are not reported: %s", error)
            return gone
        for event in events:
            removed = self._cleared(event) if event.kind == "cleared" and self._cleared is not None else []
            gone.update(removed)
            self._add(True, removed)
            chunk = self._name(event) if event.new or event.gone else None
            if chunk is not None:
                self._add(event.gone, [chunk])
                (gone.add if event.gone else gone.discard)(chunk)
        return gone

    def _add(self, removed: bool, chunks: list[Any]) -> None:
        if chunks and self._events and self._events[-1][0] == removed:
            self._events[-1][1].extend(chunks)
        elif chunks:
            self._events.append((removed, chunks))

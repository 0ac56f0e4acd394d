"""vLLM's events of a tier: which chunks came and went, for whoever routes requests to where their pages are."""

import logging
import threading
from collections.abc import Callable, Collection
from typing import Any

from .._native import Event, IncompatibleError, PagelithError, Store, UnavailableError
from ..events import EVENTS_MAX, taken
from ..failures import Failures

__all__ = ["EVENTS_MAX", "Told"]

logger = logging.getLogger(__name__)


class Told:
    """Events of chunks, in the order in which it happened.

    A store process tells what comes and goes if it keeps events (its setting `events.max`); if it does not, this tells what this
    process stored there, and no removal.
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
        self._store, self._tells, self._failures = store, True, failures
        # The chunks that went with a namespace, where they are known.
        self._cleared = cleared
        # The chunk that an event of the store is of, if it is of one; and an event of chunks, which were removed or stored.
        self._name, self._make = name, make
        # Of another process: asks it in a thread, since the scheduler does not wait for it.
        self._later, self._asked = later, False
        self._events: list[tuple[bool, list[Any]]] = []
        self._lock = threading.Lock()
        try:
            # From here on.
            self._drain()
        except UnavailableError as error:
            # A store process that is down, and may be: it is asked again the next time.
            failures.call("request for events", error)

    def look(self, chunks: list[Any], exists: Callable[[], list[bool]]) -> list[bool]:
        """Which of these chunks are here, before the others are put. Those that are may be of an earlier process, and are told of."""
        with self._lock:
            here = exists()
            # What went since it was asked is not told of behind that.
            gone = self._drain() if self._tells else set()
            self._add(False, [chunk for chunk, there in zip(chunks, here, strict=True) if there and chunk not in gone])
            return here

    def meet(self, chunks: Collection[Any], here: Callable[[Collection[Any]], list[Any]]) -> None:
        """Somebody says that these are here, or were a moment ago. `here` says which are, and nobody was told of yet."""
        with self._lock:
            found = here(chunks)
            gone = self._drain() if self._tells else set()
            self._add(False, [chunk for chunk in found if chunk not in gone])

    def stored(self, chunks: list[Any]) -> None:
        """These were put, and were not here: a store that tells says so itself."""
        if not self._tells:
            with self._lock:
                self._add(False, chunks)

    def take(self) -> list[Any]:
        """The events since it was asked last, as far as they are known without a wait."""
        events: list[tuple[bool, list[Any]]] = []
        # While a thread asks another process, what it is told comes the next time.
        if self._lock.acquire(blocking=self._later is None):
            try:
                if self._tells and self._later is None:
                    self._drain()
                events, self._events = self._events, []
            finally:
                self._lock.release()
        if self._tells and self._later is not None and not self._asked:
            self._asked = True
            try:
                self._later(self._ask)
            except RuntimeError:
                # It was shut down.
                self._asked = False
        return [self._make(chunks, removed) for removed, chunks in events]

    def _ask(self) -> None:
        try:
            with self._lock:
                self._drain()
        except PagelithError as error:
            self._failures.call("request for events", error)
        finally:
            self._asked = False

    def _drain(self) -> Collection[Any]:
        """Take in what the store tells; what it says is gone."""
        gone: set[Any] = set()
        try:
            told, _ = taken(self._store)
        except IncompatibleError as error:
            self._tells = False
            logger.warning("pagelith: removals of chunks are not reported: %s", error)
            return gone
        for event in told:
            went = self._cleared(event) if event.kind == "cleared" and self._cleared is not None else []
            gone.update(went)
            self._add(True, went)
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

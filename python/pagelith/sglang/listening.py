"""Events of a rank's pages, according to the settings: not recorded, returned by a call, or
published."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import pagelith

from ..events import EVENTS_MAX
from .events import PageEvent, PagesTold
from .settings import Settings

if TYPE_CHECKING:
    from .publisher import Publisher

logger = logging.getLogger(__name__)

_WHERE = "(--hicache-storage-backend-extra-config)"


class Listening:
    """If no events are configured, none are recorded, and a read costs one comparison."""

    def __init__(self, settings: Settings) -> None:
        self._config, self._failures = settings.kv_events_config, settings.failures(logger)
        self._enabled = settings.enable_kv_events
        self._tracker: PagesTold | None = None
        self._publisher: Publisher | None = None
        if self._config is not None:
            # Imported only if needed: without events, their location in SGLang is irrelevant.
            from .publisher import Publisher, publishes

            self._enabled = publishes(self._config)
            if self._enabled:
                # It refuses a configuration that it cannot publish, so it is created before the
                # store.
                self._publisher = Publisher(self._config, self._failures)

    @property
    def events_max(self) -> int:
        """Number of events that an embedded store must keep."""
        return EVENTS_MAX if self._enabled else 0

    def begin(self, store: pagelith.Store, anchor: Callable[[], pagelith.Key | None]) -> None:
        """Start to track the store's events."""
        if not self._enabled:
            return
        try:
            self._tracker = PagesTold(store, anchor)
        except pagelith.IncompatibleError as error:
            raise ValueError(
                f"the store records no events of pages: {error}. Set events.max of the store (PAGELITH_EVENTS__MAX={EVENTS_MAX} for"
                f" `pagelith serve`), or remove 'enable_kv_events' and 'kv_events_config' {_WHERE}"
            ) from error

    def publish(self, page_tokens: int) -> None:
        """Start publishing, if configured. Called when all pools are registered."""
        if self._publisher is not None and self._tracker is not None:
            self._publisher.start(self._tracker, page_tokens)

    def take(self) -> list[PageEvent]:
        if self._tracker is None or self._publisher is not None:
            state = "are published" if self._publisher else "are not recorded: set 'enable_kv_events'"
            raise ValueError(f"events of pages {state} {_WHERE}")
        return self._tracker.take()

    def read(self, found: Iterable[tuple[pagelith.Key, pagelith.GetOutcome]]) -> None:
        """Record reads of the objects that represent pages."""
        if self._tracker is not None:
            self._tracker.read((key.page, outcome.tier) for key, outcome in found if outcome)

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()

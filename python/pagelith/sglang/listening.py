"""Events of a rank's pages, as the settings have them: none, handed out, or published."""

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
    """Nothing is kept, and reads cost a comparison, where nobody listens."""

    def __init__(self, settings: Settings) -> None:
        self._config, self._failures = settings.kv_events_config, settings.failures(logger)
        self._on = settings.enable_kv_events
        self._told: PagesTold | None = None
        self._publisher: Publisher | None = None
        if self._config is not None:
            # Here, and not above: without events it does not matter where SGLang has what they need.
            from .publisher import Publisher, publishes

            self._on = publishes(self._config)
            if self._on:
                # It refuses what it cannot publish: before a store is made.
                self._publisher = Publisher(self._config, self._failures)

    @property
    def events_max(self) -> int:
        """Events that a store of this process has to keep."""
        return EVENTS_MAX if self._on else 0

    def begin(self, store: pagelith.Store, anchor: Callable[[], pagelith.Key | None]) -> None:
        """Listen to the store from here on."""
        if not self._on:
            return
        try:
            self._told = PagesTold(store, anchor)
        except pagelith.IncompatibleError as error:
            raise ValueError(
                f"pagelith has no events to tell of pages: {error}. Set events.max of the store (PAGELITH_EVENTS__MAX={EVENTS_MAX} for"
                f" `pagelith serve`), or leave 'enable_kv_events' and 'kv_events_config' out {_WHERE}"
            ) from error

    def publish(self, page_tokens: int) -> None:
        """All pools are known: what is told can be published, if it is to be."""
        if self._publisher is not None and self._told is not None:
            self._publisher.start(self._told, page_tokens)

    def take(self) -> list[PageEvent]:
        if self._told is None or self._publisher is not None:
            state = "are published" if self._publisher else "are not kept: set 'enable_kv_events'"
            raise ValueError(f"events of pages {state} {_WHERE}")
        return self._told.take()

    def read(self, found: Iterable[tuple[pagelith.Key, pagelith.GetOutcome]]) -> None:
        """What stands for these pages was read."""
        if self._told is not None:
            self._told.read((key.page, outcome.tier) for key, outcome in found if outcome)

    def close(self) -> None:
        if self._publisher is not None:
            self._publisher.close()

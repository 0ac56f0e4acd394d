"""What a store tells of what came and went, as the adapters take it."""

import logging

from ._native import Event, Store

logger = logging.getLogger(__name__)

# Events that a store of this process keeps until they are taken.
EVENTS_MAX = 1 << 18
# Events that one call of the store brings at the most.
_MOST = 1 << 16


def taken(store: Store) -> tuple[list[Event], bool]:
    """What came and went since this was asked last, in that order, and whether that is all of it: what was lost, or is gone from
    SSD without a name, is said in the log. Raises IncompatibleError where the store keeps no events."""
    told, whole = [], True
    while True:
        events, lost = store.take_events(_MOST)
        if lost:
            logger.warning("pagelith: %d events of the store were dropped before they were taken: routers may be wrong about it", lost)
        if any(event.kind == "forgot" for event in events):
            logger.warning("pagelith: what could not be read from SSD is gone, and is not told of by name: routers may be wrong about it")
        whole = whole and not lost and all(event.kind != "forgot" for event in events)
        told += events
        if len(events) < _MOST:
            return told, whole

"""A store's events, as the adapters read them."""

import logging

from ._native import Event, Store

logger = logging.getLogger(__name__)

# Events that a store in this process keeps until they are taken.
EVENTS_MAX = 1 << 18
# Most events that one call of the store returns.
_EVENTS_PER_CALL = 1 << 16


def taken(store: Store) -> tuple[list[Event], bool]:
    """The events since the last call, in order, and whether they are complete. Events that were
    dropped, and objects lost from SSD whose keys are unknown, are logged. Raises IncompatibleError
    if the store records no events."""
    all_events, complete = [], True
    while True:
        events, lost = store.take_events(_EVENTS_PER_CALL)
        if lost:
            logger.warning("pagelith: %d events of the store were dropped before they were read: routers may have wrong information", lost)
        if any(event.kind == "forgot" for event in events):
            logger.warning("pagelith: objects lost from SSD have no removal events, since their keys are unknown: routers may have wrong information")
        complete = complete and not lost and all(event.kind != "forgot" for event in events)
        all_events += events
        if len(events) < _EVENTS_PER_CALL:
            return all_events, complete

"""The embedded store that both roles of the connector share: vLLM creates one connector for the
scheduler and one for the worker."""

import threading

import pagelith

from ..settings import StoreSettings

_lock = threading.Lock()
# By the engine's identifier: the store, and its number of holders.
_open: dict[str, tuple[pagelith.Store, int]] = {}


class Opened:
    """One role's reference to the engine's embedded store, or its own link to a store process."""

    def __init__(self, settings: StoreSettings, engine: str, part: str, events_max: int = 0) -> None:
        self._engine = engine
        self._shared = settings.attach is None
        self._held = True
        with _lock:
            if not self._shared:
                self.store = settings.open(part, events_max)
                return
            store, holders = _open.get(engine) or (settings.open(part, events_max), 0)
            _open[engine] = (store, holders + 1)
            self.store = store

    def close(self) -> None:
        """Release the reference; the last holder closes the store. A second call does nothing."""
        with _lock:
            if not self._held:
                return
            self._held = False
            if self._shared:
                store, holders = _open.pop(self._engine)
                if holders > 1:
                    _open[self._engine] = (store, holders - 1)
                    return
        self.store.close()

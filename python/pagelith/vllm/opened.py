"""A store of this process under both of the connector's sides: vLLM makes one for the scheduler and one for the worker."""

import threading

import pagelith

from ..settings import StoreSettings

_lock = threading.Lock()
# By the engine's name: the store, and how many have it.
_open: dict[str, tuple[pagelith.Store, int]] = {}


class Opened:
    """One side's hold on the engine's store; of a store process, a link of its own."""

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
        """The last to close it closes the store; closing twice is nothing."""
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

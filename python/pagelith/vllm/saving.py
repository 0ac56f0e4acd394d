"""Saves: within the step, or on a thread concurrently with the computation, with the blocks
recorded that they still read."""

from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from ..failures import Failures
from ..threads import submit


class Saving:
    """The saves of one worker, run in order, one at a time."""

    def __init__(self, in_thread: bool, failures: Failures) -> None:
        self._failures = failures
        self._thread: Any = ThreadPoolExecutor(1, "pagelith-write") if in_thread else None
        self._pending: list[tuple[Future[None], frozenset[int]]] = []

    def run(self, body: Callable[[], None], blocks: Collection[int]) -> None:
        """Run a save, now or on the thread. Until it has ended it reads these blocks."""
        if self._thread is None:
            self._logged(body)
        else:
            self._pending = [one for one in self._pending if not one[0].done()]
            try:
                save = submit(self._thread, self._logged, body)
            except RuntimeError:
                # No thread could be started.
                self._logged(body)
                return
            if save is not None:
                self._pending.append((save, frozenset(blocks)))

    def leave(self, blocks: Collection[int]) -> None:
        """Wait until no save reads any of these blocks."""
        if not self._pending:
            return
        taken = frozenset(blocks)
        for save, reads in self._pending:
            if not reads.isdisjoint(taken):
                save.result()

    def end(self) -> None:
        """Wait until all saves have ended."""
        for save, _ in self._pending:
            save.result()
        self._pending = []

    def close(self) -> None:
        self.end()
        if self._thread is not None:
            self._thread.shutdown(wait=True)

    def _logged(self, body: Callable[[], None]) -> None:
        try:
            body()
        except Exception as error:
            self._failures.call("save", error)

"""Counts of events, and unexpected errors."""

import collections
import threading
import traceback

import pagelith

# Errors that any call may return.
EXPECTED = {
    pagelith.BusyError: "busy",
    pagelith.ClosedError: "closed",
    pagelith.UnavailableError: "unavailable",
}


class Tally:
    """Counts per thread, so that a signal handler may count too."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.stop = threading.Event()
        self._own = threading.local()
        self._all: list[collections.Counter[str]] = []

    def count(self, what: str, times: int = 1) -> None:
        counts = getattr(self._own, "counts", None)
        if counts is None:
            counts = self._own.counts = collections.Counter()
            self._all.append(counts)
        counts[what] += times

    def counts(self) -> dict[str, int]:
        total: collections.Counter[str] = collections.Counter()
        for counts in list(self._all):
            total.update(dict(counts))
        return dict(sorted(total.items()))

    def fail(self, what: str) -> None:
        self.failures.append(what)
        self.stop.set()

    def error(self, call: str, error: BaseException, spoiled: bool) -> None:
        """An error of a call, raised or in an outcome. `spoiled`: the memory was dropped before the
        call started."""
        word = EXPECTED.get(type(error))
        if word is None and spoiled and isinstance(error, pagelith.InvalidError | BufferError):
            word = "spoiled"
        if word is None:
            self.fail(f"{call}: {''.join(traceback.format_exception(error))}")
        else:
            self.count(f"error: {word}")

    def guarded(self, body, *given) -> None:
        """Run a thread's body: an exception ends the run."""
        try:
            body(*given)
        except BaseException as error:  # noqa: BLE001, whatever it is
            self.fail(f"a thread ended: {''.join(traceback.format_exception(error))}")

"""A store whose reads end as a test says, object by object: what adapters make of every combination."""

import ctypes
import itertools
from dataclasses import dataclass

import pagelith

# How a read of an object may end. What did not come leaves anything in its memory.
ENDS = ("hit", "absent", "damaged", "late", "error")


@dataclass(frozen=True)
class Outcome:
    """As the store's, of what has not come."""

    cause: str | None
    error: Exception | None = None
    tier: str | None = None
    bytes: int = 0

    def __bool__(self):
        return False

    @staticmethod
    def of(end):
        return Outcome(None, pagelith.BusyError("no staging memory in time")) if end == "error" else Outcome(end)


class Batch:
    """A batch that was handed over and has ended."""

    def __init__(self, outcomes):
        self._outcomes = outcomes

    def result(self, timeout=None):
        return self._outcomes

    def __await__(self):
        return self._outcomes
        yield


class Ending:
    """A store whose objects are read as they are, but for those in `ends`."""

    def __init__(self, store):
        self._store, self.ends = store, {}

    def __getattr__(self, name):
        return getattr(self._store, name)

    def get(self, keys, into, ranges=None, **how):
        keys, into = list(keys), list(into)
        ends = [self.ends.get(key, "hit") for key in keys]
        hits = [at for at, end in enumerate(ends) if end == "hit"]
        asked = {} if ranges is None else {"ranges": [ranges[at] for at in hits]}
        read = iter(self._store.get([keys[at] for at in hits], [into[at] for at in hits], **asked, **how))
        for at, end in enumerate(ends):
            if end != "hit":
                spoil(into[at])
        return [next(read) if end == "hit" else Outcome.of(end) for end in ends]

    def submit_get(self, keys, into, **how):
        return Batch(self.get(keys, into, **how))


def spoil(memory):
    for piece in memory if isinstance(memory, list) else [memory]:
        if isinstance(piece, tuple):
            ctypes.memset(piece[0], 0xEE, piece[1])
        else:
            view = memoryview(piece).cast("B")
            view[:] = b"\xee" * len(view)


def combinations(objects):
    """Every way in which the reads of so many objects may end together."""
    return itertools.product(ENDS, repeat=objects)


def whole(ends):
    return all(end == "hit" for end in ends)

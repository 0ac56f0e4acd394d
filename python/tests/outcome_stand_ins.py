"""A store whose reads and writes end as a test says, object by object: what adapters make of every combination."""

import ctypes
import itertools
from dataclasses import dataclass

import pagelith

# How a read of an object may end. What did not come leaves anything in its memory.
ENDS = ("hit", "absent", "damaged", "late", "error")
# How a write may: of what is there now, and of what is not.
STATES = ("stored", "present", "waiting", "refused", "error")


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


@dataclass(frozen=True)
class Written:
    """As the store's, of what a test says."""

    state: str

    @property
    def error(self):
        return pagelith.BusyError("no room in time") if self.state == "error" else None

    def __bool__(self):
        return is_there(self.state)


def is_there(state):
    return state in ("stored", "present")


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
    """A store whose objects are read as they are, but for those in `ends`; and none in `states` is stored: that is only said of it."""

    def __init__(self, store):
        self._store, self.ends, self.states = store, {}, {}

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

    def put(self, keys, sources, **how):
        return [self._written(key, lambda one=one: self._store.put([key], [one], **how)[0]) for key, one in zip(keys, sources, strict=True)]

    def put_pages(self, keys, sources, **how):
        pages = {}
        for key, one in zip(keys, sources, strict=True):
            pages.setdefault(key.page, ([], []))
            pages[key.page][0].append(key)
            pages[key.page][1].append(one)
        return [self._written(of[0], lambda of=of, memory=memory: self._store.put_pages(of, memory, **how)[0]) for of, memory in pages.values()]

    def _written(self, key, put):
        return Written(self.states[key]) if key in self.states else put()

    def submit_get(self, keys, into, **how):
        return Batch(self.get(keys, into, **how))


def spoil(memory):
    for piece in memory if isinstance(memory, list) else [memory]:
        if isinstance(piece, tuple):
            ctypes.memset(piece[0], 0xEE, piece[1])
        else:
            view = memoryview(piece).cast("B")
            view[:] = b"\xee" * len(view)


def combinations(objects, of=ENDS):
    """Every way in which the reads of so many objects may end together, or their writes."""
    return itertools.product(of, repeat=objects)


def whole(ends):
    return all(end == "hit" for end in ends)

"""A store whose reads and writes end as a test defines, per object: the adapters' behaviour for
every combination."""

import ctypes
import itertools
from dataclasses import dataclass

import pagelith

# The possible ends of a read of an object. After a failed read the memory has arbitrary content.
ENDS = ("hit", "absent", "damaged", "late", "error")
# The possible ends of a write: those with the object stored, and those without.
STATES = ("stored", "present", "waiting", "refused", "error")


@dataclass(frozen=True)
class Outcome:
    """The outcome of a failed read."""

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
class WriteOutcome:
    """An outcome of a write, as a test defines it."""

    state: str

    @property
    def error(self):
        return pagelith.BusyError("no room in time") if self.state == "error" else None

    def __bool__(self):
        return is_there(self.state)


def is_there(state):
    return state in ("stored", "present")


class Batch:
    """A submitted batch that has ended."""

    def __init__(self, outcomes):
        self._outcomes = outcomes

    def result(self, timeout=None):
        return self._outcomes

    def __await__(self):
        return self._outcomes
        yield


class ScriptedStore:
    """A store that reads objects as they are, except those in `ends`. Objects in `states` are not
    stored: only their outcome is returned."""

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
        return WriteOutcome(self.states[key]) if key in self.states else put()

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
    """All combinations of ends of `objects` reads, or writes."""
    return itertools.product(of, repeat=objects)


def whole(ends):
    return all(end == "hit" for end in ends)

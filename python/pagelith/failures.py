"""Log lines about calls that failed and about objects that could not be read.

A store process that is down fails every call: one line says so, with its address. The next one comes `EVERY_S` seconds later at the earliest, and has the
number of calls that failed since. Each other kind of failure has lines of its own, as rarely. Objects that the store had and could not read are named,
with the cause.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ._native import BusyError, NoSpaceError, PagelithError, UnavailableError
from .identity import ModelError

if TYPE_CHECKING:
    from . import GetOutcome, Key, PutOutcome

# Seconds from one line of a kind to the next.
EVERY_S = 30.0
# Objects of a cause that are named within that time; the others are counted.
NAMED_MAX = 16
# Misses that say nothing of the store: an object is evicted at any time.
_ORDINARY = ("absent", "gone")
# Kinds that are told apart.
_KINDS_MAX = 256
_VALUES = re.compile(r" \w+=")
# Unavailable errors by which a store process says nothing: others are its answers, such as that a checksum is wrong.
_DOWN = re.compile("link to the (store|peer)|did not answer in time|cannot attach to the store")
# Errors that pass by themselves, or with a store process that is started again.
_PASSING = (UnavailableError, BusyError, NoSpaceError)


class Failures:
    """The lines of one adapter about one store. Errors of the types in `always` are said each time: where callers see codes alone."""

    def __init__(
        self, log: logging.Logger, attach: str | None, now: Callable[[], float] = time.monotonic, always: tuple[type[BaseException], ...] = ()
    ) -> None:
        self._log, self._now, self._always = log, now, always
        self._store = attach or "in this process"
        self._lock = threading.Lock()
        # By kind of failure: when its next line may be, and how many failures there were since its last.
        self._kinds: dict[str, tuple[float, int]] = {}
        # By cause: until when names count, how many were said, and how many objects were not named.
        self._causes: dict[str, tuple[float, int, int]] = {}

    def call(self, what: str, error: BaseException) -> None:
        """A call failed as a whole. An error of neither the store nor the model is the adapter's fault, and is logged with its traceback."""
        failed = self._due(what, error)
        if failed:
            trace = None if isinstance(error, (PagelithError, ModelError)) else error
            self._log.log(_level(error), "pagelith: a %s failed: %s store=%s failed_calls=%d", what, error, self._store, failed, exc_info=trace)

    def written(self, outcomes: "Sequence[PutOutcome]", what: str = "write") -> None:
        """A put returned: some of it may have failed."""
        self._errors(what, outcomes)

    def read(self, keys: "Iterable[Key]", outcomes: "Sequence[GetOutcome]", what: str = "read", found: bool = False) -> None:
        """A get of these objects returned: some of it may have failed, or may not have come. Objects that were `found` before are named also if they have gone."""
        if all(outcomes):
            return
        self._errors(what, outcomes)
        missed: dict[str, list[Key]] = {}
        for key, outcome in zip(keys, outcomes, strict=True):
            if outcome.cause is not None and (found or outcome.cause not in _ORDINARY):
                missed.setdefault(outcome.cause, []).append(key)
        for cause, unread in missed.items():
            self._name(cause, unread, len(outcomes))

    def _errors(self, what: str, outcomes: "Sequence[GetOutcome | PutOutcome]") -> None:
        errors = [error for outcome in outcomes if (error := outcome.error) is not None]
        failed = self._due(what, errors[0]) if errors else 0
        if failed:
            said = (what, len(errors), len(outcomes), errors[0], self._store, failed)
            self._log.log(_level(errors[0]), "pagelith: a %s failed for %d of %d objects: %s store=%s failed_calls=%d", *said)

    def _name(self, cause: str, keys: "Sequence[Key]", of: int) -> None:
        now = self._now()
        with self._lock:
            until, said, unnamed = self._causes.get(cause, (now, 0, 0))
            if now >= until:
                until, said = now + EVERY_S, 0
            some = keys[: NAMED_MAX - said]
            unnamed += len(keys) - len(some)
            self._causes[cause] = (until, said + len(some), 0 if some else unnamed)
        if some:
            named = " ".join(map(str, some))
            self._log.warning(
                "pagelith: %d of %d objects could not be read, and are misses: cause=%s store=%s not_named=%d objects=%s",
                len(keys), of, cause, self._store, unnamed, named,
            )  # fmt: skip

    def _due(self, what: str, error: BaseException) -> int:
        """Of how many failures of this kind a line is due now; 0 if it is not."""
        if isinstance(error, self._always):
            return 1
        # A store process that is down is one failure, whatever it was asked; of the store's other errors the values behind the text are no part.
        text = _VALUES.split(str(error), 1)[0] if isinstance(error, PagelithError) else str(error)
        is_down = isinstance(error, UnavailableError) and _DOWN.search(text) is not None
        kind = "store" if is_down else f"{what} {type(error).__name__} {text}"
        now = self._now()
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= _KINDS_MAX:
                self._kinds = {known: one for known, one in self._kinds.items() if now < one[0]}
                kind = kind if len(self._kinds) < _KINDS_MAX else "other"
            again, since = self._kinds.get(kind, (now, 0))
            if now < again:
                self._kinds[kind] = (again, since + 1)
                return 0
            self._kinds[kind] = (now + EVERY_S, 0)
            return since + 1


def _level(error: BaseException) -> int:
    return logging.WARNING if isinstance(error, _PASSING) else logging.ERROR

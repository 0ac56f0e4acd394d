"""Log lines about failed calls and unreadable objects.

A store process that is down fails every call. One line reports it, with its address; the next line
follows after `EVERY_S` seconds at the earliest, with the number of calls that failed meanwhile.
Every other kind of failure has its own lines, limited in the same way. Objects that the store had
and could not read are named, with the cause.
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

# Seconds between two lines of the same kind.
EVERY_S = 30.0
# Objects named per cause within that time; further ones are counted.
NAMED_MAX = 16
# Causes of a miss that are normal: an object may be evicted at any time.
_ORDINARY = ("absent", "gone")
# Most kinds of failures that are limited separately.
_KINDS_MAX = 256
_VALUES = re.compile(r" \w+=")
# Unavailable errors that mean that the store process did not respond. Others are responses, such as
# a wrong checksum.
_DOWN = re.compile("link to the (store|peer)|did not answer in time|cannot attach to the store")
# Errors that end by themselves, or when the store process is restarted.
_PASSING = (UnavailableError, BusyError, NoSpaceError)


class Failures:
    """The log lines of one adapter about one store. Errors of the types in `always` are logged each
    time: for adapters whose callers see only error codes."""

    def __init__(
        self, log: logging.Logger, attach: str | None, now: Callable[[], float] = time.monotonic, always: tuple[type[BaseException], ...] = ()
    ) -> None:
        self._log, self._now, self._always = log, now, always
        self._store = attach or "in this process"
        self._lock = threading.Lock()
        # By kind of failure: earliest time of its next line, and number of failures since its last
        # line.
        self._kinds: dict[str, tuple[float, int]] = {}
        # By cause: end of the current period, objects named in it, and objects not named.
        self._causes: dict[str, tuple[float, int, int]] = {}

    def call(self, what: str, error: BaseException) -> None:
        """Log that a whole call failed. An error of neither the store nor the model is a bug of the
        adapter, and is logged with its traceback."""
        failed = self._due_count(what, error)
        if failed:
            trace = None if isinstance(error, (PagelithError, ModelError)) else error
            self._log.log(_level(error), "pagelith: a %s failed: %s store=%s failed_calls=%d", what, error, self._store, failed, exc_info=trace)

    def written(self, outcomes: "Sequence[PutOutcome]", what: str = "write") -> None:
        """Log the errors among the outcomes of a put."""
        self._log_errors(what, outcomes)

    def read(self, keys: "Iterable[Key]", outcomes: "Sequence[GetOutcome]", what: str = "read", found: bool = False) -> None:
        """Log the errors and the unreadable objects among the outcomes of a get. With `found`, the
        objects were found before, so those that are gone are named too."""
        if all(outcomes):
            return
        self._log_errors(what, outcomes)
        missed: dict[str, list[Key]] = {}
        for key, outcome in zip(keys, outcomes, strict=True):
            # A load that is slower than recomputing is no failure, although the object is present.
            cause = outcome.cause
            if cause is not None and cause != "slow" and (found or cause not in _ORDINARY):
                missed.setdefault(cause, []).append(key)
        for missed_by, unread in missed.items():
            self._log_unread(missed_by, unread, len(outcomes))

    def _log_errors(self, what: str, outcomes: "Sequence[GetOutcome | PutOutcome]") -> None:
        errors = [error for outcome in outcomes if (error := outcome.error) is not None]
        failed = self._due_count(what, errors[0]) if errors else 0
        if failed:
            said = (what, len(errors), len(outcomes), errors[0], self._store, failed)
            self._log.log(_level(errors[0]), "pagelith: a %s failed for %d of %d objects: %s store=%s failed_calls=%d", *said)

    def _log_unread(self, cause: str, keys: "Sequence[Key]", of: int) -> None:
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
                "pagelith: %d of %d objects could not be read and count as misses: cause=%s store=%s not_named=%d objects=%s",
                len(keys), of, cause, self._store, unnamed, named,
            )  # fmt: skip

    def _due_count(self, what: str, error: BaseException) -> int:
        """The number of failures of this kind to report now; 0 if no line is due yet."""
        if isinstance(error, self._always):
            return 1
        # A store process that is down is one kind, whatever the call. Other store errors are of one
        # kind if their texts agree up to the first value.
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

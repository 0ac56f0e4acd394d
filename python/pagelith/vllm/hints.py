"""Hints that a request carries about the future use of its pages.

vLLM passes two fields of a request on unread: `kv_transfer_params`, a dictionary, whose entry
"pagelith.hints" is a list of hints, and `kv_hints`, an envelope of actions, of which those of the
type "pagelith.hint" have a hint as their payload. A hint is {"hint": NAME}, or with "seconds". A
connector also sees the request's priority; vLLM schedules lower numbers first, and 0 is its
default.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pagelith

if TYPE_CHECKING:
    from ..failures import Failures

PARAMS = "pagelith.hints"
ACTION = "pagelith.hint"
# Hints of one request; further ones are ignored.
_MAX = 8
# Requests come from users: none keeps pages longer.
_SECONDS_MAX = 86_400

# The name of a hint, and its time.
Named = tuple[str, float | None]


def hints_of(request: Any, failures: "Failures") -> list[Named]:
    """The hints of a request, or of its context; invalid ones are logged and ignored."""
    params = getattr(request, "kv_transfer_params", None)
    given = params.get(PARAMS) if isinstance(params, Mapping) else None
    actions = getattr(getattr(request, "kv_hints", None), "actions", None)
    actions = actions if isinstance(actions, list | tuple) else ()
    asked = [getattr(one, "payload", None) for one in actions if getattr(one, "action_type", None) == ACTION]
    payloads = [*_listed(given, failures), *asked]
    hints = [hint for payload in payloads if (hint := _hint(payload, failures)) is not None]
    priority = getattr(request, "priority", 0)
    if isinstance(priority, int) and priority:
        hints.append(("low_priority" if priority > 0 else "high_priority", None))
    return hints[:_MAX]


def _listed(given: Any, failures: "Failures") -> Sequence[Any]:
    if given is None or isinstance(given, list):
        return given or ()
    failures.call("hint", pagelith.InvalidError(f"{PARAMS} must be a list, not {type(given).__name__}"))
    return ()


def _hint(payload: Any, failures: "Failures") -> Named | None:
    name = payload.get("hint") if isinstance(payload, Mapping) else None
    if not isinstance(name, str):
        failures.call("hint", pagelith.InvalidError('a hint must be {"hint": NAME}, or with "seconds"'))
        return None
    seconds = payload.get("seconds")
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if seconds is not None and not (is_number and 0 < seconds <= _SECONDS_MAX):
        failures.call("hint", pagelith.InvalidError(f'"seconds" of a hint must be a number above 0, at most {_SECONDS_MAX}'))
        return None
    return name, seconds


def give(store: pagelith.Store, hints: Iterable[Named], keys: Sequence[pagelith.Key], timeout: float | None, failures: "Failures") -> None:
    """Give these hints for the pages of a request, whose keys are in order from its first page.
    Those that fail are logged: hints come from users, and none may end the scheduler."""
    spaces: dict[pagelith.Namespace, list[pagelith.Key]] = {}
    for key in keys:
        spaces.setdefault(key.namespace, []).append(key)
    hint: Any = store.hint
    for name, seconds in hints:
        for of in spaces.values():
            try:
                hint(of, name, seconds, timeout=timeout)
            except Exception as error:
                failures.call("hint", error)
                if isinstance(error, pagelith.UnavailableError):
                    return  # The others would wait as long.


class RequestHints:
    """The hints of the requests in progress, with the keys that were seen for each."""

    def __init__(self, failures: "Failures") -> None:
        self._failures = failures
        self._hinted: dict[str, tuple[list[Named], dict[Any, None]]] = {}

    def begin(self, context: Any) -> None:
        """A request has begun."""
        hints = hints_of(context, self._failures)
        if hints:
            self._hinted[context.req_id] = (hints, {})

    def seen(self, context: Any, keys: Iterable[Any]) -> list[Named]:
        """These keys belong to a request. Returns its hints if it has ended, so that they are given
        for the keys alone."""
        if not self._hinted and not getattr(context, "kv_transfer_params", None) and not getattr(context, "kv_hints", None):
            return []
        hinted = self._hinted.get(context.req_id)
        if hinted is None:
            return hints_of(context, self._failures)
        hinted[1].update(dict.fromkeys(keys))
        return []

    def finished(self, context: Any) -> tuple[list[Named], list[Any]]:
        """A request has ended; returns its hints and keys."""
        hints, keys = self._hinted.pop(context.req_id, ([], {}))
        return hints, list(keys)

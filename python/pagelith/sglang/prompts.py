"""Which calls of a controller belong to one prompt.

A controller backs up or reads a long prompt in several calls, one after the other. The store evicts
the deepest pages of a request first, since a page is of no use without those before it. So the
calls of one prompt share a request, and each gives the depth of its first page.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pagelith

# Most pages of a prompt that are remembered. Later calls for its pages begin a new request.
_PAGES_MAX = 65536


@dataclass
class _Prompt:
    request: Any
    # Last page of the last call.
    end: str = ""
    # Pages before each page.
    depths: dict[str, int] = field(default_factory=dict)
    # Pages of each pool whose objects were put or read.
    moved: dict[str, set[str]] = field(default_factory=dict)


class Prompts:
    """The prompt of the last call. Calls of one kind follow each other on one thread."""

    def __init__(self, store: pagelith.Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._last: _Prompt | None = None

    def place(self, pool: str, keys: Sequence[str], extra_info: Any) -> tuple[Any, int]:
        """The request of a call, and the depth of its first page. The call is for a pool's objects
        of consecutive pages. It continues the last call's prompt in two cases: it begins right
        after the last page, as `hicache_storage_pass_prefix_keys` shows; or it begins with a page
        of that prompt whose object of this pool was not moved yet. A page that is moved again
        belongs to a new request, which counts as one more use."""
        prefix = getattr(extra_info, "prefix_keys", None) or ()
        with self._lock:
            last, at = self._last, None
            if last is not None and keys and len(last.depths) <= _PAGES_MAX:
                if prefix and prefix[-1] == last.end:
                    at = last.depths[last.end] + 1
                elif keys[0] not in last.moved.get(pool, ()):
                    at = last.depths.get(keys[0])
            if last is None or at is None:
                last, at = _Prompt(self._store.begin_request()), len(prefix)
                self._last = last
            for n, key in enumerate(keys, at):
                last.depths.setdefault(key, n)
            last.moved.setdefault(pool, set()).update(keys)
            last.end = keys[-1] if keys else last.end
            return last.request, at

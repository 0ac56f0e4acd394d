"""The store's requests of vLLM's requests in progress.

vLLM computes a long prompt in several steps, and the pages of each are stored after it. The store
evicts the deepest pages of a request first, since a page is of no use without those before it. So
all loads and saves of one of vLLM's requests share a request, and each gives the depth of its first
page.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pagelith

# Most requests that are remembered: as many as a store process remembers for each of its links.
# Further pages of one that was forgotten begin a new request.
_PROMPTS_MAX = 1024


@dataclass(eq=False)
class Prompt:
    """One request. `None` begins one with each call, as for answers, or if the store is closed,
    which every call says."""

    request: pagelith.Request | None
    # Whether a page was evicted before the objects that are attached to it were put. Those would
    # wait for it in memory; without it the later ones are of no use either.
    has_gap: bool = False
    # Pages of the calls so far.
    _pages: int = 0

    def append(self, pages: int) -> int:
        """The depth of the first of these pages, if calls for a prompt follow each other in its
        order."""
        self._pages += pages
        return self._pages - pages


class Prompts:
    """For use by one thread. A request that continues after a preemption is another one: it reads
    its pages again, which is one more use."""

    def __init__(self, store: pagelith.Store) -> None:
        self._store = store
        # By vLLM's identifier, last used last.
        self._prompts: dict[str, Prompt] = {}

    def of(self, name: str) -> Prompt:
        prompt = self._prompts.pop(name, None) or Prompt(self._begin())
        self._prompts[name] = prompt
        if len(self._prompts) > _PROMPTS_MAX:
            del self._prompts[next(iter(self._prompts))]
        return prompt

    def _begin(self) -> pagelith.Request | None:
        try:
            return self._store.begin_request()
        except pagelith.PagelithError:
            return None

    def end(self, names: Iterable[str]) -> None:
        """These requests have finished, or were aborted or preempted."""
        for name in names:
            self._prompts.pop(name, None)

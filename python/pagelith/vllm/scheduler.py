"""The connector in the scheduler: how much of a prompt is in the store, and which blocks workers load and store in a step."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pagelith

from .hashes import Missed, page_of
from .messages import Load, Named, Plan, Report, Step
from .names import key_of
from .opened import Opened
from .settings import ConnectorSettings

logger = logging.getLogger(__name__)


@dataclass
class _Tracked:
    """A request of the scheduler's: how many of its blocks were told to be stored, and where its load begins."""

    request: Any
    stored: int = 0


class Scheduler:
    """The scheduler's side. It moves no bytes: the store is asked what is there, and workers are told."""

    def __init__(self, settings: ConnectorSettings, opened: Opened, tokens: int, loads: bool) -> None:
        self._settings = settings
        self._opened = opened
        self._store = opened.store
        self._tokens = tokens
        self._loads = loads
        # Of each rank with bytes of its own, a key on no page.
        self._keys: list[pagelith.Key] = []
        self._missed = Missed()
        # Where the last look-up of a request began, until blocks are there for it.
        self._asked: dict[str, int] = {}
        self._tracked: dict[str, _Tracked] = {}
        self._plan = Plan()

    def named(self, workers: Iterable[Named]) -> None:
        """The workers say under which names they keep what they have: ranks that hold the same bytes say the same."""
        self._keys = list(dict.fromkeys(key_of(one) for one in workers))

    # What the scheduler asks.

    def matched(self, request: Any, computed: int) -> int:
        """Tokens behind the `computed` ones that are in the store. The last token is always left to be computed."""
        self._asked.pop(request.request_id, None)
        if not self._loads or computed % self._tokens or request.skip_reading_prefix_cache:
            return 0
        first = computed // self._tokens
        hashes = request.block_hashes[first : (request.num_tokens - 1) // self._tokens]
        count = next((at for at, one in enumerate(hashes) if one in self._missed), len(hashes))
        found = self._found(hashes[:count], first)
        if found:
            self._asked[request.request_id] = first
        return found * self._tokens

    def _found(self, hashes: Sequence[bytes], depth: int) -> int:
        if not hashes or not self._keys:
            return 0
        pages = [page_of(one) for one in hashes]
        # Block after block, and of each the slices of all ranks: a block is there when all of them are.
        of_ranks = [key.on_pages(pages) for key in self._keys]
        keys = [key for block in zip(*of_ranks, strict=True) for key in block]
        try:
            timeout = self._settings.exists_timeout_ms / 1000
            return self._store.exists_prefix(keys, depth=depth, timeout=timeout) // len(self._keys)
        except pagelith.PagelithError:
            logger.exception("pagelith: a look-up of %d blocks failed", len(hashes))
            return 0

    def allocated(self, request: Any, blocks: Sequence[int], external: int) -> None:
        """The request has these blocks, and `external` tokens of it are to be loaded into them."""
        name = request.request_id
        first = self._asked.pop(name, 0)
        self._tracked.setdefault(name, _Tracked(request)).request = request
        if external:
            part = slice(first, first + external // self._tokens)
            self._plan.loads.append(Load(name, first, list(blocks[part]), list(request.block_hashes[part])))

    def plan(self, output: Any) -> Plan:
        """What workers do in this step."""
        plan, self._plan = self._plan, Plan()
        for new in output.scheduled_new_reqs:
            plan.steps.append(self._step(output, new.req_id, True, new.block_ids, new.num_computed_tokens))
        cached = output.scheduled_cached_reqs
        for name, blocks, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            plan.steps.append(self._step(output, name, name in cached.resumed_req_ids, blocks, computed))
        plan.finished = sorted(output.finished_req_ids)
        return plan

    def _step(self, output: Any, name: str, begins: bool, blocks: Sequence[list[int]] | None, computed: int) -> Step:
        step = Step(name, begins, list(blocks[0]) if blocks else [], computed, output.num_scheduled_tokens[name])
        tracked = self._tracked.get(name)
        if tracked is not None:
            # Tokens that are only guessed are scheduled too; the block that they are in has no hash yet.
            whole = (computed + step.scheduled) // self._tokens
            # A request that was set back, because a load failed, computes blocks anew: those were not stored.
            step.first = min(tracked.stored, computed // self._tokens)
            step.hashes = list(tracked.request.block_hashes[step.first : whole])
            tracked.stored = step.first + len(step.hashes)
        return step

    def heard(self, report: Any) -> None:
        """What became of the last steps."""
        if isinstance(report, Report):
            self._missed.stored(report.stored - report.missed)
            self._missed.add(report.missed)

    def finished(self, request: Any) -> None:
        """Saves are done when their step ends, so its blocks are free."""
        self._asked.pop(request.request_id, None)
        self._tracked.pop(request.request_id, None)

    def clear(self) -> bool:
        """Make all that is under these names invisible, for every server that shares them; other names are not touched."""
        try:
            for space in dict.fromkeys(key.namespace for key in self._keys):
                self._store.clear(space)
        except pagelith.PagelithError:
            logger.exception("pagelith: its cache could not be reset")
            return False
        self._missed.clear()
        return True

    def close(self) -> None:
        self._opened.close()


def by_rank(metadata: Mapping[Any, Any]) -> list[Named]:
    return [metadata[rank] for rank in sorted(metadata) if isinstance(metadata[rank], Named)]

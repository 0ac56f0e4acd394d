"""The connector in the scheduler: how much of a prompt is stored, and which blocks the workers load
and store in a step."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pagelith

from ..missed import Missed
from .hashes import page_of
from .hints import give, hints_of
from .messages import Load, Named, Paged, Plan, Report, State, Step
from .names import keys_of
from .opened import Opened
from .pools import NULL, Pools
from .settings import ConnectorSettings

if TYPE_CHECKING:
    from .listener import Listener

logger = logging.getLogger(__name__)


@dataclass
class _Tracked:
    """A request in the scheduler, and the number of its pages that workers were directed to
    store."""

    request: Any
    stored: int = 0


class Scheduler:
    """The scheduler's role. It moves no bytes: it queries the store and directs the workers."""

    def __init__(
        self,
        settings: ConnectorSettings,
        opened: Opened,
        pools: Pools,
        loads: bool,
        make_listener: Callable[[Sequence[Sequence[pagelith.Key]]], "Listener"] | None = None,
    ) -> None:
        self._settings = settings
        self._opened = opened
        self._store = opened.store
        self._failures = settings.failures(logger)
        self._pools = pools
        self._loads = loads
        # By pool, the key templates of all distinct slices of a page.
        self._keys: list[list[pagelith.Key]] = []
        self._missed = Missed()
        # Per request, the first page of its last lookup, until its blocks are allocated.
        self._looked_up: dict[str, int] = {}
        self._tracked: dict[str, _Tracked] = {}
        self._plan = Plan()
        # Number of resets, and whether saves from before the last one may still be in progress.
        self._resets, self._resetting = 0, False
        # Creates the listener for events, once the key templates are known.
        self._make_listener = make_listener
        self.listener: Listener | None = None

    def named(self, workers: Iterable[Named]) -> None:
        """Receive the names of the workers' objects. Ranks that hold the same bytes report the same
        names."""
        ranks = [keys_of(one, self._pools) for one in workers]
        self._keys = [list(dict.fromkeys(key for keys in of for key in keys)) for of in zip(*ranks, strict=True)]
        if self._make_listener is not None and self._keys:
            self.listener = self._make_listener(self._keys)

    # Called by the scheduler.

    def matched(self, request: Any, computed: int) -> int:
        """Number of stored tokens after the first `computed`. The last token is always left to be
        computed."""
        self._looked_up.pop(request.request_id, None)
        tokens = self._pools.tokens
        if not self._loads or self._resetting or computed % tokens or request.skip_reading_prefix_cache:
            return 0
        first = computed // tokens
        pages = self._pools.names(request.block_hashes, first, (request.num_tokens - 1) // tokens)
        found = self._restorable_pages(pages, first)
        if found:
            self._looked_up[request.request_id] = first
            self._describe(request, first, pages[:found], [(n, page) for page in pages[:found] for n in range(len(self._keys))])
        return found * tokens

    def _restorable_pages(self, pages: Sequence[bytes], depth: int) -> int:
        """Number of these pages that can be restored: every pool has the objects that it needs to
        continue there."""
        whole = [n for n, pool in enumerate(self._pools.each) if pool.pages is None]
        known = next((at for at, one in enumerate(pages) if any((n, one) in self._missed for n in whole)), len(pages))
        pages = pages[:known]
        if not pages or not self._keys:
            return 0
        queries = [
            pagelith.PoolQuery.all_pages(keys) if pool.pages is None else pagelith.PoolQuery.trailing_pages(keys, pool.pages)
            for pool, keys in zip(self._pools.each, self._keys, strict=True)
        ]
        # The first pool that needs the whole prefix bounds the others.
        anchor, queries = (self._keys[0], queries[1:]) if whole else ([], queries)
        try:
            timeout = self._settings.exists_timeout_ms / 1000
            found = self._store.exists_groups([page_of(one) for one in pages], anchor, queries, depth=depth, timeout=timeout)
        except pagelith.PagelithError as error:
            self._failures.call("lookup", error)
            return 0
        return next((stop for stop in reversed(found.stops) if not self._missed_before(pages, stop)), 0)

    def _missed_before(self, pages: Sequence[bytes], stop: int) -> bool:
        """Whether an object that a window needs to continue at this stop could not be read."""
        return any(
            (n, one) in self._missed
            for n, pool in enumerate(self._pools.each)
            if pool.pages is not None
            for one in pages[max(0, stop - pool.pages) : stop]
        )

    def _describe(self, request: Any, first: int, pages: Sequence[bytes], met: Iterable[Paged] = ()) -> None:
        if self.listener is not None:
            self.listener.describe(request, first, pages)
            self.listener.met(met)

    def allocated(self, request: Any, tables: Sequence[Sequence[int]], external: int) -> None:
        """The request got these blocks, and `external` tokens of it are to be loaded into them."""
        name = request.request_id
        first = self._looked_up.pop(name, 0)
        self._tracked.setdefault(name, _Tracked(request)).request = request
        if self._settings.save_async:
            self._plan.taken += [block for table in tables for block in table]
        if external:
            end = first + external // self._pools.tokens
            pages = self._pools.names(request.block_hashes, first, end)
            self._plan.loads.append(Load(name, first, pages, self._pools.tables(tables, first, end)))

    def plan(self, output: Any) -> Plan:
        """The workers' plan for this step."""
        plan, self._plan = self._plan, Plan()
        for new in output.scheduled_new_reqs:
            plan.steps.append(self._step(output, new.req_id, True, new.block_ids, new.num_computed_tokens))
        cached = output.scheduled_cached_reqs
        for name, blocks, computed in zip(cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True):
            plan.steps.append(self._step(output, name, name in cached.resumed_req_ids, blocks, computed))
        if self._pools.states:
            plan.states = list(self._states(output.kv_connector_block_state.boundary_state_offloads))
        plan.ended = sorted({*output.finished_req_ids, *(output.preempted_req_ids or ())})
        plan.resets = self._resets
        return plan

    def _states(self, offered: Mapping[str, Iterable[tuple[int, int, int]]]) -> Iterator[State]:
        """The states that can be stored, of those that vLLM offers. Each is stable only at the end
        of this step. vLLM reports per request the group, the block, and the number of tokens before
        it. A state is complete with all groups of a pool."""
        tokens = self._pools.tokens
        for name, states in offered.items():
            blocks_at: dict[int, dict[int, int]] = {}
            for group, block, tokens_before in states:
                # A state within a page is used by vLLM's own cache only.
                if block != NULL and tokens_before and tokens_before % tokens == 0:
                    blocks_at.setdefault(tokens_before // tokens, {})[group] = block
            tracked = self._tracked.get(name)
            if tracked is None:
                continue
            for end, blocks in blocks_at.items():
                pages = self._pools.names(tracked.request.block_hashes, end - 1, end)
                for n, pool in enumerate(self._pools.each):
                    if pages and pool.state and blocks.keys() >= set(pool.groups):
                        yield State(name, end - 1, pages[0], n, tuple(blocks[group] for group in pool.groups))

    def _step(self, output: Any, name: str, begins: bool, blocks: Sequence[Sequence[int]] | None, computed: int) -> Step:
        step = Step(name, begins, [list(of) for of in blocks or ()], computed, output.num_scheduled_tokens[name])
        tracked, tokens = self._tracked.get(name), self._pools.tokens
        if tracked is not None:
            # Speculative tokens are scheduled too; the page that contains them has no name yet.
            whole = (computed + step.scheduled) // tokens
            step.prompt = tracked.request.num_prompt_tokens // tokens
            # A request that was set back after a failed load recomputes pages, which were not
            # stored.
            step.first = min(tracked.stored, computed // tokens)
            step.pages = self._pools.names(tracked.request.block_hashes, step.first, whole)
            tracked.stored = step.first + len(step.pages)
            if step.pages:
                # The tables of this step: blocks that a window has left may belong to another
                # request by now.
                tables = output.kv_connector_block_state.get_block_ids(name)
                step.tables = self._pools.tables(tables, step.first, tracked.stored, states=False)
                self._describe(tracked.request, step.first, step.pages)
        return step

    def heard(self, report: Any) -> None:
        """Receive the workers' reports of the previous steps."""
        if isinstance(report, Report):
            if self._resetting and report.resets == self._resets:
                # Objects that saves from before the reset put afterwards must not be found either.
                self._resetting = not self._clear()
            self._missed.stored(report.stored - report.missed)
            self._missed.add(report.missed)
            if self.listener is not None:
                self.listener.met(report.stored)

    def finished(self, request: Any) -> None:
        """The request has ended. Its saves end with their step, so its blocks are free."""
        self._looked_up.pop(request.request_id, None)
        self._tracked.pop(request.request_id, None)
        hints = hints_of(request, self._failures)
        if self._settings.save_async:
            # Saves of its last pages may follow, which would count as requests of an ended session.
            hints = [hint for hint in hints if hint[0] != "session_ended"]
        if hints:
            pages = [page_of(one) for one in self._pools.names(request.block_hashes, 0, request.num_tokens // self._pools.tokens)]
            columns = [key.on_pages(pages) for keys in self._keys for key in keys]
            keys = [key for page in zip(*columns, strict=True) for key in page]
            give(self._store, hints, keys, self._settings.exists_timeout_ms / 1000, self._failures)

    def clear(self) -> bool:
        """Make all objects in these namespaces invisible, for every server that shares them; other
        namespaces are unchanged."""
        # Nothing is found until no worker has a step or save in progress from before.
        self._resets, self._resetting = self._resets + 1, True
        return self._clear()

    def _clear(self) -> bool:
        try:
            for space in dict.fromkeys(key.namespace for keys in self._keys for key in keys):
                self._store.clear(space)
        except pagelith.PagelithError as error:
            self._failures.call("reset of the cache", error)
            return False
        self._missed.clear()
        return True

    def close(self) -> None:
        self._opened.close()


def by_rank(metadata: Mapping[Any, Any]) -> list[Named]:
    return [metadata[rank] for rank in sorted(metadata) if isinstance(metadata[rank], Named)]

"""vLLM's events of the connector: blocks added to the store and removed from it, by any process and
for any reason."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from vllm.distributed.kv_events import MEDIUM_STORAGE, BlockRemoved, BlockStored
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

import pagelith

from ..failures import Failures
from ..missed import forget
from .events import ChunkEvents
from .hashes import page_of
from .messages import Paged
from .pools import Pools

# Most pages whose state, and whose tokens, are remembered: about 64 MB each. A forgotten page is
# reported again when it is met.
_MAX = 1 << 18


class Listener:
    """Runs in the scheduler. A block is stored when all ranks' slices of it are: it is reported
    with the last slice stored, and with the first slice removed.

    A page is named like a block of the same length: by its last hash.
    """

    def __init__(
        self,
        store: pagelith.Store,
        pools: Pools,
        keys: Sequence[Sequence[pagelith.Key]],
        kinds: Sequence[tuple[str, int | None]],
        locality: str | None,
        later: Callable[[Callable[[], None]], Any] | None,
        failures: Failures,
    ) -> None:
        self._store, self._pools, self._keys, self._failures = store, pools, keys, failures
        # By group, its kind in vLLM, and its window.
        self._kinds, self._locality, self._later = kinds, locality, later
        self._spaces = {key.namespace for of in keys for key in of}
        # For each slice, its pool and its bit in the page's state.
        self._slices = {(key.pool, key.component, key.shard): (n, 1 << at) for n, of in enumerate(keys) for at, key in enumerate(of)}
        self._all_slices = [(1 << len(of)) - 1 for of in keys]
        # The slices of each page that are stored, as far as is known.
        self._stored_slices: dict[Paged, int] = {}
        # Details for a page's event: the page before it, its tokens, and the adapter.
        self._described: dict[bytes, tuple[bytes | None, list[int], int | None, str | None]] = {}
        # Pages whose names are hashed to form a store's page, by that.
        self._hashed: dict[bytes, bytes] = {}
        self._chunk_events = ChunkEvents(store, self._page_of_event, self._make_events, later, failures, self._cleared)

    # Called by the scheduler.

    def describe(self, request: Any, first: int, pages: Sequence[bytes]) -> None:
        """Record the details of the request's pages from its `first` page on."""
        tokens, lora = self._pools.tokens, getattr(request, "lora_request", None)
        before = self._pools.names(request.block_hashes, first - 1, first) if first else []
        parent = before[0] if before else None
        for at, page in enumerate(pages, first):
            if page not in self._described:
                page_tokens = list(request.all_token_ids[at * tokens : (at + 1) * tokens])
                self._described[page] = (parent, page_tokens, lora and lora.adapter_id, lora and lora.name)
            if len(page) != 32:
                self._hashed[self._keys[0][0].on_page(page_of(page)).page] = page
            parent = page
        forget(self._described, _MAX)
        forget(self._hashed, _MAX)

    def met(self, pages: Iterable[Paged]) -> None:
        """Handle pages that are stored, or were a moment ago."""
        unknown = [one for one in pages if self._stored_slices.get(one) != self._all_slices[one[0]]]
        if not unknown:
            return
        if self._later is None:
            self._check_stored(unknown)
            return
        try:
            self._later(lambda: self._check_stored(unknown))
        except RuntimeError:
            # The executor was shut down.
            pass

    def take(self) -> list[Any]:
        return [event for events in self._chunk_events.take() for event in events]

    # Called with the store's events and responses.

    def _check_stored(self, pages: Collection[Paged]) -> None:
        try:
            self._chunk_events.meet(pages, self._newly_stored)
        except pagelith.PagelithError as error:
            self._failures.call("lookup for events", error)

    def _newly_stored(self, pages: Collection[Paged]) -> list[Paged]:
        """The pages that are completely stored, and were not known to be; they are from here on."""
        unknown = [one for one in dict.fromkeys(pages) if self._stored_slices.get(one) != self._all_slices[one[0]]]
        keys = [key.on_page(page_of(page)) for pool, page in unknown for key in self._keys[pool]]
        answers = iter(self._store.exists(keys))
        # A list, so that every response is consumed and the next page's responses follow.
        present = [one for one in unknown if all([next(answers) for _ in self._keys[one[0]]])]
        self._stored_slices.update((one, self._all_slices[one[0]]) for one in present)
        forget(self._stored_slices, _MAX)
        return present

    def _page_of_event(self, event: pagelith.Event) -> Paged | None:
        """The page that became complete or incomplete with this slice."""
        key = event.key
        if key is None or key.namespace not in self._spaces:
            return None
        # Servers with other numbers of ranks store other slices in this namespace.
        pool, bit = self._slices.get((key.pool, key.component, key.shard), (0, 0))
        if bit == 0:
            return None
        page, whole = (pool, self._hashed.get(key.page, key.page)), self._all_slices[pool]
        was = self._stored_slices.pop(page, None)
        if event.gone:
            # The other slices of an unknown page may be stored or not, and an earlier process may
            # have reported it.
            now = 0 if was is None else was & ~bit
            is_reported = was is None or was == whole
            kept = now > 0 or (was is None and whole > 1)
        else:
            now = (was or 0) | bit
            is_reported, kept = now == whole != was, True
        if kept:
            self._stored_slices[page] = now
            forget(self._stored_slices, _MAX)
        return page if is_reported else None

    def _cleared(self, event: pagelith.Event) -> list[Paged]:
        """The known pages that were removed with the namespace."""
        if event.namespace not in self._spaces:
            return []
        gone = [page for page, present in self._stored_slices.items() if present == self._all_slices[page[0]]]
        self._stored_slices.clear()
        return gone

    def _make_events(self, pages: list[Paged], removed: bool) -> list[Any]:
        return self._removed_events(pages) if removed else [event for page in pages for event in self._stored_events(*page)]

    def _removed_events(self, pages: list[Paged]) -> list[Any]:
        names: dict[int, list[Any]] = {}
        for pool, page in pages:
            for group in self._pools.each[pool].groups:
                names.setdefault(group, []).append(maybe_convert_block_hash(page))
        return [BlockRemoved(block_hashes=of, medium=MEDIUM_STORAGE, group_idx=n, locality=self._locality) for n, of in names.items()]

    def _stored_events(self, pool: int, page: bytes) -> list[Any]:
        """One event per group. A page that no request of this process had is reported with its name
        alone, as vLLM's own offloading does."""
        parent, tokens, lora_id, lora_name = self._described.get(page, (None, [], None, None))
        return [
            BlockStored(
                block_hashes=[maybe_convert_block_hash(page)],
                parent_block_hash=None if parent is None else maybe_convert_block_hash(parent),
                token_ids=list(tokens),
                block_size=len(tokens),
                lora_id=lora_id,
                lora_name=lora_name,
                medium=MEDIUM_STORAGE,
                group_idx=group,
                kv_cache_spec_kind=self._kinds[group][0],
                kv_cache_spec_sliding_window=self._kinds[group][1],
                locality=self._locality,
            )
            for group in self._pools.each[pool].groups
        ]

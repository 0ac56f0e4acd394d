"""Publishes events of pages in the store as SGLang publishes its own: with its publisher, in its
format, at a separate endpoint."""

import json
import threading
import time
from collections.abc import Mapping
from typing import Any

from sglang.srt.disaggregation.kv_events import (
    BlockRemoved,
    BlockStored,
    EventPublisherFactory,
    KVEventBatch,
    StorageMedium,
    is_kv_publisher_rank,
    select_kv_publisher_dp_rank,
)
from sglang.srt.mem_cache.utils import hash_str_to_int64
from sglang.srt.runtime_context import get_parallel

from .. import PagelithError
from ..failures import Failures
from .events import PageEvent, PagesTold

# Interval between publications, in seconds.
_INTERVAL_S = 0.1
# SGLang itself uses neither medium: its host memory is CPU_PINNED.
_MEDIA = {"dram": StorageMedium.EXTERNAL, "ssd": StorageMedium.DISK}


def publishes(config: Mapping[str, Any]) -> bool:
    """Whether SGLang publishes events of this rank: one of the ranks with the same pages does."""
    return bool(is_kv_publisher_rank(json.dumps(dict(config))))


class Publisher:
    """Publishes the tracked events, on a thread of its own, between `start` and `close`."""

    def __init__(self, config: Mapping[str, Any], failures: Failures) -> None:
        self._failures = failures
        self._tracker: PagesTold | None = None
        self._page_tokens = 0
        parallel = get_parallel()
        rank = select_kv_publisher_dp_rank(parallel.attn_dp_size, parallel.attn_dp_rank, parallel.dp_rank)
        self._sink = EventPublisherFactory.create(json.dumps(dict(config)), rank)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pagelith-events", daemon=True)

    def start(self, tracker: PagesTold, page_tokens: int) -> None:
        self._tracker, self._page_tokens = tracker, page_tokens
        self._thread.start()

    def close(self) -> None:
        """Publish the remaining events, and the removal of all pages."""
        self._ended.set()
        if self._tracker is not None:
            self._thread.join()
            self._publish(self._tracker)
            self._send(self._tracker.end())
        self._sink.shutdown()

    def _run(self) -> None:
        assert self._tracker is not None
        while not self._ended.wait(_INTERVAL_S):
            self._publish(self._tracker)

    def _publish(self, tracker: PagesTold) -> None:
        try:
            events = tracker.take()
        except PagelithError as error:
            self._failures.call("request for events", error)
            return
        self._send(events)

    def _send(self, events: list[PageEvent]) -> None:
        if events:
            self._sink.publish(KVEventBatch(ts=time.time(), events=[self._event(event) for event in events]))

    def _event(self, event: PageEvent) -> Any:
        hashes = [hash_str_to_int64(page) for page in event.pages]
        if event.removed:
            return BlockRemoved(block_hashes=hashes, medium=_MEDIA[event.tier])
        # The store knows only a page's hash.
        return BlockStored(
            block_hashes=hashes,
            parent_block_hash=None,
            token_ids=[],
            block_size=self._page_tokens,
            lora_id=None,
            medium=_MEDIA[event.tier],
        )

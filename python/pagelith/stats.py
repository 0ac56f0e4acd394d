"""The types of `Store.stats()`. docs/operations.md describes each counter."""

from typing import TypedDict


class NamespaceStats(TypedDict):
    """Counters of one namespace."""

    dram_objects: int
    dram_bytes: int
    hits: int
    misses: int
    bytes_got: int
    puts_stored: int
    bytes_put: int
    bytes_to_ssd: int


class LimitStats(TypedDict):
    """What a namespace with limits uses, and what its limits have caused."""

    dram_bytes: int
    ssd_bytes: int
    puts_refused: int
    writes_refused: int
    evicted: int


class Stats(TypedDict):
    """Counters and gauges of a store. Those that are counted by cause are dictionaries."""

    objects: int
    dram_objects: int
    dram_bytes: int
    dram_peak_bytes: int
    index_bytes: int
    puts_stored: int
    puts_present: int
    puts_refused: int
    puts_busy: int
    bytes_put: int
    hits_memory: int
    hits_unverified: int
    hits_ssd: int
    hits_remote: int
    bytes_memory: int
    bytes_ssd: int
    bytes_remote: int
    remote_stored: int
    remote_skipped: int
    bytes_remote_put: int
    misses: dict[str, int]
    absent: dict[str, int]
    exists_found: int
    exists_absent: dict[str, int]
    namespaces: dict[str, NamespaceStats]
    limits: dict[str, LimitStats]
    damaged: int
    staged_bytes: int
    late_direct: int
    frames_evicted: int
    promoted: int
    prefetched: int
    prefetch_waiting: int
    bytes_to_device: int
    syncs: int
    bytes_reinserted: int
    ssd_refused: int
    ssd_refused_put_again: int
    hints_ended: int
    hints_ended_followed: int
    hints_ended_wrong: int
    hints_expected: int
    hints_expected_followed: int
    hints_expected_wrong: int
    segments_sealed: int
    segments_reclaimed: int
    checkpoints: int
    checkpoint_failures: int
    groups_dropped: int
    groups_waiting: int
    waiting_bytes: int
    namespaces_forgotten: int
    flush_errors: int
    read_errors: int
    scrubbed_objects: int
    scrubbed_bytes: int
    scrub_repaired: int
    ssd_state: str
    ssd_state_changes: int
    segments_suspect: int
    segments_quarantined: int
    unflushed_bytes: int
    objects_pinned: int
    objects_leased: int
    readers: int
    rdma_rails: int
    rdma_rails_up: int
    rdma_registered_bytes: int
    rdma_links: int
    rdma_links_without: dict[str, int]
    rdma_bytes_written: int
    rdma_bytes_read: int
    rdma_bytes_placed: int
    rdma_stream_bytes: dict[str, int]
    rdma_notices: int
    rdma_taken_down: int
    rdma_leaked: int

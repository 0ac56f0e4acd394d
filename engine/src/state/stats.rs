//! Counters. All count from open, unless marked "now".

use std::collections::BTreeMap;

use serde::Serialize;

use crate::api::outcome::{GetOutcome, MissCause};
use crate::rpc::remote_get::RemoteGet;
use crate::state::absence::AbsenceCounts;

/// Counted under the core's lock, except for the counts of gets
/// ([`crate::state::counters::StripedCounters`]).
#[derive(Clone, Debug, Default)]
pub(crate) struct Counters {
    pub puts_stored: u64,
    pub puts_present: u64,
    pub puts_refused: u64,
    pub puts_busy: u64,
    pub bytes_put: u64,
    pub hits_memory: u64,
    pub hits_unverified: u64,
    pub hits_ssd: u64,
    pub hits_remote: u64,
    pub bytes_memory: u64,
    pub bytes_ssd: u64,
    pub bytes_remote: u64,
    pub remote_stored: u64,
    pub remote_skipped: u64,
    pub bytes_remote_put: u64,
    pub misses: [u64; MissCause::ALL.len()],
    /// The misses `absent`, by why the object is absent.
    pub absent: AbsenceCounts,
    pub damaged: u64,
    pub staged_bytes: u64,
    pub late_direct: u64,
    pub frames_evicted: u64,
    pub promoted: u64,
    pub prefetched: u64,
    pub bytes_to_device: u64,
    pub syncs: u64,
    pub bytes_reinserted: u64,
    pub segments_sealed: u64,
    pub segments_reclaimed: u64,
    pub checkpoints: u64,
    pub checkpoint_failures: u64,
    pub groups_dropped: u64,
    pub namespaces_forgotten: u64,
    pub flush_errors: u64,
    pub read_errors: u64,
    pub scrubbed_objects: u64,
    pub scrubbed_bytes: u64,
    pub scrub_repaired: u64,
}

impl Counters {
    /// Count a miss.
    pub fn miss(&mut self, cause: MissCause) {
        if let Some(at) = MissCause::ALL.iter().position(|c| *c == cause) {
            self.misses[at] += 1;
        }
        self.damaged += u64::from(cause == MissCause::Damaged);
    }

    /// Count the hits at peers of a batch, and the misses that remain.
    pub fn add_remote(&mut self, batch: &RemoteGet) {
        let (hits, bytes) = batch.hits();
        self.hits_remote += hits;
        self.bytes_remote += bytes;
        for done in batch.done() {
            if let Ok(GetOutcome::Miss(cause)) = &done.outcome {
                self.miss(*cause);
            }
        }
    }
}

/// Counters and gauges of one namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct NamespaceStats {
    /// Objects in DRAM now.
    pub dram_objects: u64,
    /// Bytes of the arena in use for them now.
    pub dram_bytes: u64,
    /// Objects got, from any tier and from peers.
    pub hits: u64,
    /// Objects missed.
    pub misses: u64,
    /// Bytes got.
    pub bytes_got: u64,
    /// Objects stored.
    pub puts_stored: u64,
    /// Bytes stored, by the callers' lengths.
    pub bytes_put: u64,
    /// Bytes of objects written to SSD, without those that reclaim wrote again.
    pub bytes_to_ssd: u64,
}

/// What a namespace with limits uses, and what its limits have caused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LimitStats {
    /// Bytes of the arena in use for its objects now.
    pub dram_bytes: u64,
    /// Bytes of its records in the log now, if its bytes of the log are limited.
    pub ssd_bytes: u64,
    /// Objects whose put was refused.
    pub puts_refused: u64,
    /// Objects that were stored in DRAM and not written to SSD.
    pub writes_refused: u64,
    /// Objects that left DRAM, or left SSD, to make room for others of the namespace.
    pub evicted: u64,
}

/// Counters and gauges of a store.
#[derive(Clone, Debug, Default, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Objects in the index now.
    pub objects: u64,
    /// Objects in DRAM now.
    pub dram_objects: u64,
    /// Bytes of the arena in use now.
    pub dram_bytes: u64,
    /// Highest `dram_bytes` so far.
    pub dram_peak_bytes: u64,
    /// Memory of the index in bytes.
    pub index_bytes: u64,
    /// Objects stored.
    pub puts_stored: u64,
    /// Objects whose key was present already.
    pub puts_present: u64,
    /// Objects refused by policy.
    pub puts_refused: u64,
    /// Objects whose put returned `Busy`; tries of one object within a second of each other count
    /// once.
    pub puts_busy: u64,
    /// Bytes stored, by the callers' lengths.
    pub bytes_put: u64,
    /// Objects got from memory.
    pub hits_memory: u64,
    /// Of those, objects that were not verified (`dram.verify_ratio`).
    pub hits_unverified: u64,
    /// Objects got from SSD.
    pub hits_ssd: u64,
    /// Objects got from a peer.
    pub hits_remote: u64,
    /// Bytes got from memory.
    pub bytes_memory: u64,
    /// Bytes got from SSD.
    pub bytes_ssd: u64,
    /// Bytes got from peers.
    pub bytes_remote: u64,
    /// Objects that a peer stored.
    pub remote_stored: u64,
    /// Objects that were not offered to a peer, or not taken by it: they left DRAM first, or it did
    /// not answer.
    pub remote_skipped: u64,
    /// Bytes that peers stored.
    pub bytes_remote_put: u64,
    /// Misses, by cause.
    pub misses: BTreeMap<String, u64>,
    /// Those of the misses that are `absent`, by why the object is absent.
    pub absent: BTreeMap<String, u64>,
    /// Keys that `exists` found in this store.
    pub exists_found: u64,
    /// Keys that it did not find, by why the object is absent.
    pub exists_absent: BTreeMap<String, u64>,
    /// Counts of each counted namespace, by its identifier, and of all others (`others`); empty
    /// without `namespaces.counted`.
    pub namespaces: BTreeMap<String, NamespaceStats>,
    /// Use of each namespace with limits, by its identifier; empty without `namespaces.limits`.
    pub limits: BTreeMap<String, LimitStats>,
    /// Objects that failed verification.
    pub damaged: u64,
    /// Bytes that went through staging buffers.
    pub staged_bytes: u64,
    /// Reads into a caller's memory without a copy that completed after their deadline.
    pub late_direct: u64,
    /// Groups evicted from DRAM.
    pub frames_evicted: u64,
    /// Groups copied into DRAM from SSD, or from a peer.
    pub promoted: u64,
    /// Objects among those groups that were prefetched from SSD.
    pub prefetched: u64,
    /// Objects that wait to be prefetched, or are being read, now.
    pub prefetch_waiting: u64,
    /// Bytes written to the device: records, footers, manifest, checkpoints.
    pub bytes_to_device: u64,
    /// Syncs of data files.
    pub syncs: u64,
    /// Bytes of records that reclaim wrote again.
    pub bytes_reinserted: u64,
    /// Pages that admission kept off SSD, each as often as that was decided.
    pub ssd_refused: u64,
    /// Pages among them that were put again: misses that admission caused.
    pub ssd_refused_put_again: u64,
    /// Hints that a session has ended.
    pub hints_ended: u64,
    /// Hints among them that were followed.
    pub hints_ended_followed: u64,
    /// Of those that are measured, hints that turned out wrong: the session's last pages were
    /// requested again.
    pub hints_ended_wrong: u64,
    /// Hints that a session is expected back.
    pub hints_expected: u64,
    /// Of those, hints that were followed.
    pub hints_expected_followed: u64,
    /// Of those that are measured, hints whose session did not go on in time.
    pub hints_expected_wrong: u64,
    /// Segments sealed.
    pub segments_sealed: u64,
    /// Segments reclaimed.
    pub segments_reclaimed: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Checkpoints that failed; the older one stays valid.
    pub checkpoint_failures: u64,
    /// Incomplete groups that were dropped: at their deadline, at close, or by open because an
    /// object or the base was missing.
    pub groups_dropped: u64,
    /// Groups that wait for their other objects, or for their base, now.
    pub groups_waiting: u64,
    /// Arena bytes of those groups now.
    pub waiting_bytes: u64,
    /// Namespaces that the store cleared by itself, because no room was left for their tombstones.
    pub namespaces_forgotten: u64,
    /// Writes and syncs that failed.
    pub flush_errors: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Objects that scrubs verified.
    pub scrubbed_objects: u64,
    /// Bytes that scrubs read.
    pub scrubbed_bytes: u64,
    /// Objects that scrubs found lost on SSD and DRAM had too.
    pub scrub_repaired: u64,
    /// `on`, `read-only` or `off` now; `off` without an SSD tier too.
    pub ssd_state: String,
    /// How often that has changed.
    pub ssd_state_changes: u64,
    /// Segments with failed or damaged reads that are still read, now.
    pub segments_suspect: u64,
    /// Segments that are quarantined now: neither read nor reused, since too many of their reads
    /// failed.
    pub segments_quarantined: u64,
    /// Bytes acked that SSD does not have now: they wait to be written, or the tier takes nothing.
    pub unflushed_bytes: u64,
    /// Objects that are pinned now, by this process or for others.
    pub objects_pinned: u64,
    /// Objects that are leased now.
    pub objects_leased: u64,
    /// Guards of frames and segments that gets, links, views and writes have now, each as often as
    /// it is held.
    pub readers: u64,
    /// Ports that carry RDMA, now; 0 without it.
    pub rdma_rails: u64,
    /// Ports among them that are not suspended after failures, now.
    pub rdma_rails_up: u64,
    /// Bytes of memory registered for RDMA, once for each device, now.
    pub rdma_registered_bytes: u64,
    /// Links that had RDMA.
    pub rdma_links: u64,
    /// Links that could have had RDMA and had none, by cause.
    pub rdma_links_without: BTreeMap<String, u64>,
    /// Bytes that this process wrote to memory of clients.
    pub rdma_bytes_written: u64,
    /// Bytes that this process read from memory of clients.
    pub rdma_bytes_read: u64,
    /// Bytes that peers wrote to memory of this process.
    pub rdma_bytes_placed: u64,
    /// Bytes that travelled on the stream of a link with RDMA, by cause.
    pub rdma_stream_bytes: BTreeMap<String, u64>,
    /// Notices that were received.
    pub rdma_notices: u64,
    /// Queue pairs that were taken down to end a peer's access to memory.
    pub rdma_taken_down: u64,
    /// Queue pairs that a device did not release, or not in time; their memory is leaked.
    pub rdma_leaked: u64,
}

//! Collects the counters of a store.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use pagelith_layouts::ids::NamespaceId;

use crate::api::outcome::MissCause;
use crate::memory::namespaces::{KnownNamespaces, NamespaceCounts};
use crate::memory::tenants::{Tenant, Tenants};
use crate::state::absence::{Absence, AbsenceCounts};
use crate::state::shared::Shared;
use crate::state::stats::{LimitStats, NamespaceStats, Stats};

/// Frames whose readers are counted under one acquisition of the core lock.
const PIECE: usize = 4096;

/// The store's gauges and counters at this moment.
pub(crate) fn of(shared: &Shared) -> Stats {
    let prefetch_waiting = shared.prefetch.waiting();
    let rdma = shared.rdma.host.get();
    let rdma_counts = rdma.map(|host| host.counts()).unwrap_or_default();
    let now = shared.now();
    let admission = shared.admission.counts();
    let hints = shared.hints.counts(now);
    let readers = frame_readers(shared);
    let mut core = shared.lock();
    core.expire(now);
    let mut c = core.counters.clone();
    shared.reads.counters.add_to(&mut c);
    let health = core.ssd.as_ref().map(|s| &s.health);
    let misses = MissCause::ALL.iter().zip(c.misses);
    let (exists_found, exists_absent) = shared.reads.counters.exists();
    Stats {
        objects: core.index.objects(),
        dram_objects: core.dram.frames.objects(),
        dram_bytes: core.dram.space.in_use_bytes(),
        dram_peak_bytes: core.dram.space.peak_bytes(),
        index_bytes: core.index.memory_bytes(),
        puts_stored: c.puts_stored,
        puts_present: c.puts_present,
        puts_refused: c.puts_refused,
        puts_busy: c.puts_busy,
        bytes_put: c.bytes_put,
        hits_memory: c.hits_memory,
        hits_unverified: c.hits_unverified,
        hits_ssd: c.hits_ssd,
        hits_remote: c.hits_remote,
        bytes_remote: c.bytes_remote,
        remote_stored: c.remote_stored,
        remote_skipped: c.remote_skipped,
        bytes_remote_put: c.bytes_remote_put,
        bytes_memory: c.bytes_memory,
        bytes_ssd: c.bytes_ssd,
        misses: misses.filter(|(_, n)| *n > 0).map(|(cause, n)| (cause.to_string(), n)).collect(),
        absent: by_cause(&c.absent),
        namespaces: of_namespaces(&core.namespaces),
        limits: of_limits(&core.tenants),
        exists_found,
        exists_absent: by_cause(&exists_absent),
        damaged: c.damaged,
        staged_bytes: c.staged_bytes,
        late_direct: c.late_direct,
        frames_evicted: c.frames_evicted,
        promoted: c.promoted,
        prefetched: c.prefetched,
        prefetch_waiting,
        bytes_to_device: c.bytes_to_device,
        syncs: c.syncs,
        bytes_reinserted: c.bytes_reinserted,
        ssd_refused: admission.refused,
        ssd_refused_put_again: admission.refused_put_again,
        hints_ended: hints.ended.given,
        hints_ended_followed: hints.ended.followed,
        hints_ended_wrong: hints.ended.wrong,
        hints_expected: hints.expected.given,
        hints_expected_followed: hints.expected.followed,
        hints_expected_wrong: hints.expected.wrong,
        segments_sealed: c.segments_sealed,
        segments_reclaimed: c.segments_reclaimed,
        checkpoints: c.checkpoints,
        checkpoint_failures: c.checkpoint_failures,
        groups_dropped: c.groups_dropped,
        groups_waiting: core.pending_groups.len(),
        waiting_bytes: core.pending_groups.bytes(),
        namespaces_forgotten: c.namespaces_forgotten,
        flush_errors: c.flush_errors,
        read_errors: c.read_errors,
        scrubbed_objects: c.scrubbed_objects,
        scrubbed_bytes: c.scrubbed_bytes,
        scrub_repaired: c.scrub_repaired,
        ssd_state: health.map_or("off", |h| h.state().name()).into(),
        ssd_state_changes: health.map_or(0, |h| h.changes()),
        segments_suspect: health.map_or(0, |h| h.suspects() as u64),
        segments_quarantined: health.map_or(0, |h| h.quarantined() as u64),
        unflushed_bytes: core.unwritten().1,
        objects_pinned: core.pins.count().0 as u64,
        objects_leased: core.pins.count().1 as u64,
        readers: readers + core.ssd.as_ref().map_or(0, |s| s.guards.count()),
        rdma_rails: rdma.map_or(0, |host| host.rails().len() as u64),
        rdma_rails_up: rdma.map_or(0, |host| host.rails_up().count() as u64),
        rdma_registered_bytes: rdma.map_or(0, |host| host.registered_bytes()),
        rdma_links: rdma_counts.links,
        rdma_links_without: nonzero([
            ("host", u64::from(shared.rdma.is_missing)),
            ("peer", rdma_counts.no_rdma_peer),
            ("rails", rdma_counts.no_rdma_rails),
        ]),
        rdma_bytes_written: rdma_counts.bytes_written,
        rdma_bytes_read: rdma_counts.bytes_read,
        rdma_bytes_placed: rdma_counts.bytes_placed,
        rdma_stream_bytes: nonzero([
            ("unregistered", rdma_counts.stream_unregistered),
            ("small", rdma_counts.stream_small),
            ("scattered", rdma_counts.stream_scattered),
        ]),
        rdma_notices: rdma_counts.notices,
        rdma_taken_down: rdma_counts.taken_down,
        rdma_leaked: rdma_counts.leaked,
    }
}

/// Readers of all frames. Puts wait for the lock, so it is released in between.
fn frame_readers(shared: &Shared) -> u64 {
    let piece = |from| shared.lock().dram.frames.readers_of(from, PIECE);
    (0..).step_by(PIECE).map_while(piece).sum()
}

fn of_namespaces(namespaces: &KnownNamespaces) -> BTreeMap<String, NamespaceStats> {
    let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let stats = |counts: &NamespaceCounts| NamespaceStats {
        dram_objects: read(&counts.dram_objects),
        dram_bytes: read(&counts.dram_bytes),
        hits: read(&counts.hits),
        misses: read(&counts.misses),
        bytes_got: read(&counts.bytes_got),
        puts_stored: read(&counts.puts_stored),
        bytes_put: read(&counts.bytes_put),
        bytes_to_ssd: read(&counts.bytes_to_ssd),
    };
    let all = namespaces.all_counts().into_iter();
    let name = |id: Option<NamespaceId>| id.map_or("others".to_owned(), |id| id.to_string());
    all.map(|(id, counts)| (name(id), stats(counts))).collect()
}

fn of_limits(tenants: &Tenants) -> BTreeMap<String, LimitStats> {
    let stats = |tenant: &Tenant| LimitStats {
        dram_bytes: tenant.dram_bytes,
        ssd_bytes: if tenant.ssd_max().is_some() { tenant.ssd_bytes } else { 0 },
        puts_refused: tenant.puts_refused,
        writes_refused: tenant.writes_refused,
        evicted: tenant.evicted,
    };
    tenants.iter().map(|tenant| (tenant.namespace().to_string(), stats(tenant))).collect()
}

fn by_cause(counts: &AbsenceCounts) -> BTreeMap<String, u64> {
    let named = Absence::ALL.iter().zip(counts).filter(|(_, n)| **n > 0);
    named.map(|(cause, n)| (cause.name().to_owned(), *n)).collect()
}

fn nonzero<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    let above_zero = counts.into_iter().filter(|(_, count)| *count > 0);
    above_zero.map(|(name, count)| (name.to_owned(), count)).collect()
}

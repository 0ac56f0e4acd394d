//! State shared by the parts of the flusher: the store, its log, and the records in the log.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::clock::Mono;
use pagelith_io::disk::Op;
use pagelith_io::fault::{FaultKind, FaultOp, IoFault};
use pagelith_layouts::ids::{
    Generation, Incarnation, NamespaceId, SegmentId, SegmentOrder, Sequence,
};
use pagelith_layouts::record::RecordKind;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::ssd::append::NewRecord;
use pagelith_tiers::ssd::log::Log;
use pagelith_tiers::ssd::segments::SegmentState;
use pagelith_tiers::ssd::sync::SyncId;
use pagelith_tiers::ssd::volume::Volume;

use crate::background::generations::Generations;
use crate::background::log_op::LogOp;
use crate::background::pending_records::PendingRecords;
use crate::state::core::Core;
use crate::state::health::Health;
use crate::state::jobs::{Job, JobResult};
use crate::state::shared::Shared;

/// The job or part that a sync serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SyncPurpose {
    Flush(u64),
    Tombstones(u64),
    Reclaim,
    Checkpoint(u64),
}

/// Progress of the store's close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    No,
    /// The close job with this id was taken; all other work ends first.
    Draining(u64),
    /// The final checkpoint was begun, and may have ended.
    Checkpointing(u64),
    /// The job was answered, and the task ends.
    Done,
}

/// A record in the log.
struct AppendedRecord {
    segment: SegmentId,
    bytes: u64,
    /// `None` for tombstones.
    data: Option<(Sequence, NamespaceId, Generation)>,
}

/// Shared by the parts of the flusher.
pub(crate) struct LogContext {
    pub shared: Arc<Shared>,
    pub volume: Arc<Volume>,
    pub log: Log,
    pub pending_records: PendingRecords,
    pub generations: Generations,
    /// In the order of the requests; a request that is made again keeps its identifier, hence its
    /// place.
    pub syncs: BTreeMap<SyncId, SyncPurpose>,
    /// The appended records that the core has not accounted for.
    appended: Vec<AppendedRecord>,
    /// Order of the next segment to be prepared.
    pub next_order: SegmentOrder,
    pub closing: Closing,
    /// Why the tier last stopped.
    pub reason: String,
    /// The tier stopped, and the queued jobs have not failed yet.
    pub stopped: bool,
}

impl LogContext {
    pub fn new(
        shared: Arc<Shared>,
        volume: Arc<Volume>,
        log: Log,
        generations: Generations,
        next_order: SegmentOrder,
    ) -> LogContext {
        LogContext {
            shared,
            volume,
            log,
            pending_records: PendingRecords::default(),
            generations,
            syncs: BTreeMap::new(),
            appended: Vec::new(),
            next_order,
            closing: Closing::No,
            reason: String::new(),
            stopped: false,
        }
    }

    pub fn is_closing(&self) -> bool {
        self.closing != Closing::No
    }

    /// Whether the tier accepts no writes for now.
    pub fn is_read_only(&self) -> bool {
        !self.log.is_trusted() || self.shared.lock().ssd.as_ref().is_none_or(|s| !s.health.writes())
    }

    /// Whether untrusted entries remain to be dropped from the index.
    pub fn is_purging(&self) -> bool {
        self.shared.lock().ssd.as_ref().is_some_and(|s| !s.purges.is_empty())
    }

    /// Request a sync and remember its purpose.
    pub fn sync_for(&mut self, purpose: SyncPurpose) {
        let id = self.log.sync();
        self.syncs.insert(id, purpose);
    }

    /// Read `bytes` bytes at `at` in a segment; false if there is no memory, or no room in the
    /// queue.
    pub fn read(&mut self, op: LogOp, segment: SegmentId, at: u64, bytes: u64) -> bool {
        let (file, offset) = self.volume.file_offset(segment, at);
        AlignedBuf::new(bytes as usize).is_ok_and(|buf| {
            let read = Op::Read { file, offset, parts: vec![buf.into_part()] };
            self.log.submit(op.encode(), read).is_ok()
        })
    }

    /// Append a record. The caller must account for it ([`LogContext::note_appended`]) before it
    /// decides anything that depends on the segment's contents.
    pub fn append(&mut self, record: NewRecord) -> Result<(), NewRecord> {
        let facts = (record.sequence, record.namespace, record.generation);
        let data = (record.kind == RecordKind::Data).then_some(facts);
        let (bytes, id) = (record.record_bytes(), record.id);
        let (location, header) = self.log.append(record)?;
        if data.is_some() {
            self.shared.ssd.headers.insert_written(&location, &header);
        }
        self.appended.push(AppendedRecord { segment: location.identity.segment, bytes, data });
        if let Some(job) = self.pending_records.removal_of(id) {
            if mutant::on(Mutant::TombstoneBeforeSync) {
                self.shared.lock().jobs.complete(job, JobResult::Done);
            }
            self.sync_for(SyncPurpose::Tombstones(job));
        }
        Ok(())
    }

    /// Account in the core for the records appended since the last call.
    pub fn note_appended(&mut self, core: &mut Core) {
        let Core { ssd, tenants, visibility, .. } = core;
        let Some(ssd) = ssd.as_mut().filter(|_| !self.appended.is_empty()) else { return };
        let all = self.appended.iter().map(|record| record.bytes).sum();
        self.shared.admission.appended(all);
        for AppendedRecord { segment: id, bytes, data } in self.appended.drain(..) {
            ssd.ticks.append(bytes);
            let Some((sequence, namespace, generation)) = data else { continue };
            let segment = ssd.segments.get_mut(id);
            segment.min_sequence = segment.min_sequence.min(sequence);
            if visibility.generation(namespace) == generation {
                tenants.appended(namespace, (id, segment.order), bytes);
            }
        }
        self.shared.read_view.tick.store(core.now_tick(), Ordering::Relaxed);
    }

    /// Whether a frame's record exceeds what its namespace may use of the log, or would use some of
    /// it without effect: its base is not on SSD and will not be. A namespace that evicts its own
    /// objects has a segment more, since the oldest leave after the append.
    pub fn exceeds_limit(&mut self, record: &NewRecord) -> bool {
        let shared = self.shared.clone();
        if shared.config.namespace_limits().is_empty() || record.kind != RecordKind::Data {
            return false;
        }
        let mut core = shared.lock();
        self.note_appended(&mut core);
        let Some(tenant) = core.tenants.get_mut(record.namespace) else { return false };
        let spare = if tenant.evicts_own() { self.volume.geometry.segment_bytes } else { 0 };
        let Some(max) = tenant.ssd_max() else { return false };
        let exceeds = tenant.ssd_bytes + record.record_bytes() > max + spare;
        // Objects that a flush has reported as durable stay so.
        let exceeds = exceeds && !self.pending_records.is_replacement(&core, record.id);
        exceeds || self.pending_records.lacks_base(&core, record.id)
    }

    /// Whether the core has not accounted for a record yet.
    pub fn has_appended(&self) -> bool {
        !self.appended.is_empty()
    }

    /// Return the flushes with a sync in progress to the front of the queue.
    pub fn requeue_flushes(&mut self) {
        let mut core = self.shared.lock();
        let Some(ssd) = core.ssd.as_mut() else { return };
        let flush = |purpose: &SyncPurpose| match purpose {
            SyncPurpose::Flush(id) => Some(*id),
            SyncPurpose::Tombstones(_) | SyncPurpose::Reclaim | SyncPurpose::Checkpoint(_) => None,
        };
        for id in self.syncs.values().rev().filter_map(flush) {
            ssd.queue.push_front(Job::Flush { id });
        }
        self.syncs.retain(|_, purpose| flush(purpose).is_none());
    }

    /// A record was not written. A frame returns to the front of the queue, unless `give_up`.
    /// Returns true for a record of reclaim.
    pub fn write_failed(&mut self, id: u64, give_up: bool) -> bool {
        let (is_of_reclaim, removal) =
            self.pending_records.write_failed(&mut self.shared.lock(), id, give_up);
        if let Some(job) = removal {
            self.syncs.retain(|_, purpose| *purpose != SyncPurpose::Tombstones(job));
        }
        is_of_reclaim
    }

    /// Prepare the next free segment and return it; `None` if no segment is free.
    pub fn prepare_free(&mut self) -> Option<SegmentId> {
        let mut core = self.shared.lock();
        let ssd = core.ssd.as_mut()?;
        let id = ssd.segments.next_free()?;
        ssd.segments.set_state(id, SegmentState::Open);
        let incarnation = Incarnation(ssd.segments.get(id).incarnation.0 + 1);
        drop(core);
        self.log.prepare(id, incarnation, self.next_order);
        self.next_order.0 += 1;
        Some(id)
    }

    /// Free a segment that was prepared, completely or not, and never written to.
    pub fn free_segment(&mut self, segment: SegmentId) {
        let mut core = self.shared.lock();
        if let Some(ssd) = core.ssd.as_mut() {
            // Its order is the newest of the free segments, so another one is taken next.
            ssd.segments.set_state(segment, SegmentState::Free);
        }
    }

    /// Part of a segment could not be read, or is not intact.
    pub fn suspect(&mut self, segment: SegmentId) {
        let now = self.shared.now();
        let mut core = self.shared.lock();
        core.counters.read_errors += 1;
        core.suspect(segment, now);
    }

    pub fn sync_failed(&mut self, fault: &IoFault) {
        self.device_failed(fault, |health, now| match fault.kind {
            // Removed files do not indicate a faulty device.
            FaultKind::Gone => health.stop_writing(now),
            _ => health.sync_failed(now),
        });
    }

    /// Without a manifest write, no segment can be reused and no namespace cleared.
    pub fn manifest_failed(&mut self, fault: &IoFault) {
        if fault.op == FaultOp::Sync {
            return self.sync_failed(fault);
        }
        self.device_failed(fault, Health::stop_writing);
    }

    /// Count a failure of the device; `judge` returns true if it changes the tier's state.
    pub fn device_failed(
        &mut self,
        fault: &IoFault,
        judge: impl FnOnce(&mut Health, Mono) -> bool,
    ) {
        let now = self.shared.now();
        let mut core = self.shared.lock();
        core.counters.flush_errors += 1;
        let changed = core.ssd.as_mut().is_some_and(|s| judge(&mut s.health, now));
        drop(core);
        if changed {
            self.state_changed(&fault.to_string());
        }
    }

    /// Stop writing; true if the tier was on.
    pub fn stop_writing(&mut self, reason: &str) -> bool {
        let now = self.shared.now();
        let stopped = self.shared.lock().ssd.as_mut().is_some_and(|s| s.health.stop_writing(now));
        if stopped {
            self.state_changed(reason);
        }
        stopped
    }

    /// The tier accepts nothing until a probe succeeds.
    pub fn state_changed(&mut self, reason: &str) {
        let mut core = self.shared.lock();
        let Some(ssd) = core.ssd.as_mut() else { return };
        let state = ssd.health.state();
        if !ssd.health.reads() {
            ssd.purges.push_back(None);
            core.events.forgot();
        }
        drop(core);
        tracing::error!(
            reason,
            state = state.name(),
            "ssd tier stopped, it is tested until it works; check the drive, or raise ssd.bytes if \
             no segment is free"
        );
        reason.clone_into(&mut self.reason);
        self.stopped = true;
        self.shared.signals.progress.raise();
    }
}

//! The single writer of the log: appends to the open segment, seals full ones, keeps a spare
//! segment ready, and orders writes, syncs and manifest changes for crash safety.
//!
//! Invariants:
//! - Nothing is written to a segment before both copies of the manifest durably hold its new
//!   incarnation: otherwise, after a crash, records of the old incarnation further back would pass
//!   for current ones.
//! - A footer is written only after a sync that covers every record it lists: otherwise a crash
//!   leaves a valid table of invalid records, and open prefers it to older copies that are intact.
//! - Records are appended in the order of submission: a tombstone follows every record it hides.
//! - After a failed sync nothing is appended or sealed with a footer, and nothing written since the
//!   last successful sync is trusted. The sync is never retried; [`Log::resume_after_sync_fault`]
//!   starts again with other segments.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::disk::{Completion, FileId, Op, Queue};
use pagelith_io::fault::IoFault;
use pagelith_layouts::footer::FooterFacts;
use pagelith_layouts::ids::{Generation, Incarnation, NamespaceId, SegmentId, SegmentOrder};
use pagelith_layouts::manifest::Manifest;
use pagelith_layouts::segment::SegmentIdentity;

use super::append::{CoalescedWrite, NewRecord, OpenSegment, RecordLocation};
use super::manifest_writer::{Change, ManifestWriter};
use super::sync::{SyncId, SyncTracker};
use super::volume::Volume;

/// An event of the log, to be handled by its owner.
#[derive(Debug)]
pub enum LogEvent {
    /// These records are on the device and readable, but not durable yet.
    Written(Vec<(u64, RecordLocation)>),
    /// A write to this segment failed and these records were not written (none, if it was the
    /// footer). The owner may append them again. The segment is sealed early.
    WriteFailed(SegmentIdentity, Vec<u64>, IoFault),
    /// These records were never written because of a failure that has its own event, or the header
    /// of their segment was not written. The owner may append them again.
    Unwritten(Vec<u64>, IoFault),
    /// A sync failed, or files were missing after it: nothing is appended from now on.
    SyncFailed(IoFault),
    /// These records are durable.
    Durable(Vec<(u64, RecordLocation)>),
    /// A sync failed: these records, written since the last successful one, are not trusted.
    Untrusted(Vec<(u64, RecordLocation)>, IoFault),
    /// A request of [`Log::sync`] is complete.
    Synced {
        /// The request.
        id: SyncId,
        /// Whether everything it covers is durable.
        durable: bool,
    },
    /// A segment's incarnation is durable: this segment is opened next.
    Ready(SegmentId, Incarnation, SegmentOrder),
    /// A segment is full and closed.
    Sealed {
        /// The facts of its footer.
        facts: FooterFacts,
        /// Whether it has the footer; it has none if a write failed.
        has_footer: bool,
    },
    /// A namespace's generation is durable; after an error it may or may not be.
    Generation(NamespaceId, Generation, Result<(), IoFault>),
    /// The segment's new incarnation may or may not be durable; the segment is not opened.
    NotReady(SegmentId, IoFault),
    /// The manifest could not be written.
    ManifestFailed(IoFault),
    /// An operation of [`Log::submit`] completed.
    Other(u64, Completion),
}

/// Configuration of the log's writes.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    /// A coalesced write is submitted once it has this many bytes.
    pub write_bytes: u64,
    /// Most record writes in flight.
    pub write_depth: usize,
}

impl LogConfig {
    /// Required depth of the log's I/O queue.
    pub fn queue_depth(&self) -> usize {
        self.write_depth + OTHER_DEPTH
    }
}

pub(super) enum PendingOp {
    Records { segment: SegmentId, file: FileId, records: Vec<(u64, RecordLocation)>, header: bool },
    Footer { segment: SegmentId, file: FileId },
    Sync { file: FileId },
    Manifest,
    Other { tag: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SealStep {
    Writes,
    Sync(SyncId),
    Footer,
}

pub(super) struct Sealing {
    pub(super) segment: OpenSegment,
    pub(super) step: SealStep,
}

/// Most operations in flight other than record writes: footers, syncs, manifest writes, and those
/// of the owner.
const OTHER_DEPTH: usize = 24;
/// Most header buffers kept for reuse.
pub(super) const SPARE_BUFFERS: usize = 256;

/// The log's writer.
pub struct Log {
    pub(super) volume: Arc<Volume>,
    pub(super) queue: Box<dyn Queue>,
    pub(super) config: LogConfig,
    pub(super) parts_max: usize,
    pub(super) manifest: ManifestWriter,
    pub(super) open: Option<OpenSegment>,
    newest_written: Option<SegmentOrder>,
    pub(super) spare: Option<(SegmentIdentity, SegmentOrder)>,
    pub(super) preparing: bool,
    pub(super) sealing: Vec<Sealing>,
    pub(super) syncs: SyncTracker,
    pub(super) sync_fault: Option<IoFault>,
    /// Records written since the current sync round began.
    pub(super) unsynced: Vec<(u64, RecordLocation)>,
    /// Records that the current sync round covers.
    pub(super) in_sync_round: Vec<(u64, RecordLocation)>,
    pub(super) pending: HashMap<u64, PendingOp>,
    pub(super) token: u64,
    /// Number of record writes submitted to the device and not completed.
    pub(super) record_writes: usize,
    /// Pending record writes that are not submitted yet, in order, so that the device gets the next
    /// write as soon as one completes.
    queued: VecDeque<(u64, Op)>,
    /// Operations that the I/O queue had no room for, in order.
    parked: VecDeque<(u64, Op)>,
    /// Current limit for `record_writes`.
    write_depth: usize,
    pub(super) spare_buffers: Vec<AlignedBuf>,
    pub(super) bytes_written: u64,
    pub(super) sync_count: u64,
    /// Completions that were collected and not handled yet.
    pub(super) completions: Vec<Completion>,
    /// Number of completed operations.
    pub(super) ended: u64,
}

impl Log {
    /// The writer of a store whose segments are all sealed or free.
    pub fn new(volume: Arc<Volume>, manifest: Manifest, config: LogConfig) -> Result<Log, IoFault> {
        let queue = volume.disk.queue(config.queue_depth())?;
        let parts_max = volume.disk.facts().parts_max;
        Ok(Log {
            volume,
            queue,
            config,
            parts_max,
            manifest: ManifestWriter::new(manifest),
            open: None,
            newest_written: None,
            spare: None,
            preparing: false,
            sealing: Vec::new(),
            syncs: SyncTracker::default(),
            sync_fault: None,
            unsynced: Vec::new(),
            in_sync_round: Vec::new(),
            pending: HashMap::new(),
            token: 0,
            record_writes: 0,
            queued: VecDeque::new(),
            parked: VecDeque::new(),
            write_depth: config.write_depth,
            spare_buffers: Vec::new(),
            bytes_written: 0,
            sync_count: 0,
            completions: Vec::new(),
            ended: 0,
        })
    }

    /// Mark a copy of the manifest as outdated: the next change rewrites all of it.
    pub fn mark_manifest_copy_stale(&mut self, copy: usize) {
        self.manifest.suspect(copy);
    }

    /// Bytes submitted to the device by this writer, and number of syncs.
    pub fn written(&self) -> (u64, u64) {
        (self.bytes_written + self.manifest.bytes_written(), self.sync_count)
    }

    /// Whether nothing is coalesced, in flight or waiting.
    pub fn idle(&self) -> bool {
        let coalesced = self.open.as_ref().is_some_and(|o| o.coalesced().1 > 0 && !o.is_empty());
        !coalesced
            && self.pending.is_empty()
            && !self.syncs.busy()
            && !self.manifest.busy()
            && self.sealing.is_empty()
    }

    /// Number of completed operations. If it does not change while operations are in flight, the
    /// device is stalled.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Number of operations in flight, queued record writes included.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Limit the record writes in flight to `depth`, clamped to `1..=config.write_depth`.
    pub fn limit_writes(&mut self, depth: usize) {
        self.write_depth = depth.clamp(1, self.config.write_depth);
    }

    /// Whether another record write may be queued. At most `write_depth` writes wait in addition to
    /// those in flight.
    pub fn has_room(&self) -> bool {
        self.record_writes + self.queued.len() < 2 * self.write_depth && self.sync_fault.is_none()
    }

    /// Number of record bytes, at least 1, after which the coalesced write is submitted.
    pub fn write_threshold(&self) -> u64 {
        let coalesced = self.open.as_ref().map_or(0, |open| open.coalesced().0);
        self.config.write_bytes.saturating_sub(coalesced).max(1)
    }

    /// Whether the log accepts records: false after a failed sync.
    pub fn is_trusted(&self) -> bool {
        self.sync_fault.is_none()
    }

    /// The fault of the failed sync, if the log accepts no records.
    pub fn fault(&self) -> Option<&IoFault> {
        self.sync_fault.as_ref()
    }

    /// Whether a segment should be prepared with [`Log::prepare`].
    pub fn wants_segment(&self) -> bool {
        self.spare.is_none() && !self.preparing && self.is_trusted()
    }

    /// Order of the oldest segment that is not sealed, if any: a checkpoint must replay from it.
    pub fn oldest_unsealed(&self) -> Option<SegmentOrder> {
        let sealing = self.sealing.iter().map(|s| s.segment.order);
        let spare = self.spare.iter().map(|s| s.1);
        sealing.chain(self.open.iter().map(|o| o.order)).chain(spare).min()
    }

    /// Order of the open segment, if any.
    pub fn open_order(&self) -> Option<SegmentOrder> {
        self.open.as_ref().map(|open| open.order)
    }

    /// Order of the segment of the last appended record, even if that segment is sealed by now.
    pub fn newest_written(&self) -> Option<SegmentOrder> {
        self.newest_written
    }

    /// Whether this record fits the open segment.
    pub fn open_fits(&self, record: &NewRecord) -> bool {
        self.open.as_ref().is_some_and(|o| o.fits(record.record_bytes(), record.members.len()))
    }

    /// Whether there is a spare segment for a record that does not fit the open one.
    pub fn has_spare(&self) -> bool {
        self.spare.is_some()
    }

    /// The spare segment: its incarnation is durable and nothing was written to it.
    pub fn spare(&self) -> Option<(SegmentIdentity, SegmentOrder)> {
        self.spare
    }

    /// Return the spare segment to the owner.
    pub fn drop_spare(&mut self) -> Option<SegmentId> {
        self.spare.take().map(|(identity, _)| identity.segment)
    }

    /// Whether a segment is being prepared.
    pub fn is_preparing(&self) -> bool {
        self.preparing
    }

    /// Accept records again after a failed sync; false, without effect, while operations from
    /// before the failure are in flight. Untrusted records stay untrusted: their segment is sealed,
    /// and no later sync covers them.
    pub fn resume_after_sync_fault(&mut self) -> bool {
        let over = self.idle()
            && self.open.is_none()
            && self.unsynced.is_empty()
            && self.in_sync_round.is_empty();
        if self.sync_fault.is_some() && over {
            self.sync_fault = None;
        }
        self.sync_fault.is_none()
    }

    /// Whether segments are being sealed.
    pub fn is_sealing(&self) -> bool {
        !self.sealing.is_empty()
    }

    /// Raise a free segment's incarnation and keep it as spare; [`LogEvent::Ready`] follows.
    pub fn prepare(&mut self, segment: SegmentId, incarnation: Incarnation, order: SegmentOrder) {
        self.preparing = true;
        self.manifest.request(Change::Segment(segment, incarnation, order));
    }

    /// Raise a namespace's generation; [`LogEvent::Generation`] follows.
    pub fn raise_generation(&mut self, namespace: NamespaceId, generation: Generation) {
        self.manifest.request(Change::Generation(namespace, generation));
    }

    /// Request a sync that covers everything appended so far; [`LogEvent::Synced`] follows.
    pub fn sync(&mut self) -> SyncId {
        self.submit_coalesced();
        self.syncs.request(self.token)
    }

    /// Submit the owner's operation; [`LogEvent::Other`] follows. Returned if the queue is full.
    pub fn submit(&mut self, tag: u64, op: Op) -> Result<(), Op> {
        if self.queue.room() == 0 || !self.parked.is_empty() {
            return Err(op);
        }
        if let Op::Write { .. } = &op {
            self.bytes_written += op.bytes();
        }
        self.begin(op, PendingOp::Other { tag });
        Ok(())
    }

    /// Append a record; returns its location and its header without padding. The record is returned
    /// if no segment is ready for it, or if the log is not trusted.
    pub fn append(&mut self, record: NewRecord) -> Result<(RecordLocation, Vec<u8>), NewRecord> {
        if !self.is_trusted() {
            return Err(record);
        }
        let (bytes, members) = (record.record_bytes(), record.members.len());
        if !self.open.as_ref().is_some_and(|o| o.fits(bytes, members))
            && !self.next_segment(bytes, members)
        {
            return Err(record);
        }
        let spare = self.spare_buffers.pop();
        let parts = record.payload.len() + 1;
        if self.open.as_ref().is_some_and(|o| o.coalesced().1 + parts > self.parts_max) {
            self.submit_coalesced();
        }
        let Some(open) = self.open.as_mut() else { return Err(record) };
        let appended = open.append(record, spare)?;
        self.newest_written = Some(open.order);
        if open.coalesced().0 >= self.config.write_bytes {
            self.submit_coalesced();
        }
        Ok(appended)
    }

    /// Seal the open segment and open the spare one; false if there is none, or if it is too small.
    fn next_segment(&mut self, bytes: u64, members: usize) -> bool {
        let Some((identity, order)) = self.spare else { return false };
        let segment_bytes = self.volume.geometry.segment_bytes;
        let Ok(next) = OpenSegment::new(identity, order, segment_bytes) else { return false };
        if !next.fits(bytes, members) {
            return false;
        }
        self.seal_open();
        self.spare = None;
        self.open = Some(next);
        true
    }

    /// Begin to seal the open segment if it has records, or if all of its records failed.
    pub fn seal_open(&mut self) {
        self.submit_coalesced();
        if let Some(segment) = self.open.take() {
            if segment.is_empty() && !segment.failed {
                self.open = Some(segment);
                return;
            }
            self.sealing.push(Sealing { segment, step: SealStep::Writes });
        }
    }

    /// Queue the coalesced write, full or not, and submit queued writes up to `write_depth`.
    pub fn submit_coalesced(&mut self) {
        let Some(write) = self.open.as_mut().and_then(OpenSegment::take) else { return };
        let Some(open) = self.open.as_ref() else { return };
        let CoalescedWrite { offset, parts, records, .. } = write;
        let segment = open.segment();
        let (file, at) = self.volume.file_offset(segment, offset);
        let header = offset == 0;
        self.token += 1;
        self.pending.insert(self.token, PendingOp::Records { segment, file, records, header });
        // A sync that is requested from now on waits for this write.
        self.syncs.write_begun(self.token);
        self.queued.push_back((self.token, Op::Write { file, offset: at, parts }));
        self.submit_queued(usize::MAX);
    }

    /// Submit at most `most` queued writes, up to `write_depth` in flight; true if one was.
    pub(super) fn submit_queued(&mut self, most: usize) -> bool {
        let mut count = 0;
        while count < most
            && self.record_writes < self.write_depth
            && let Some((token, op)) = self.queued.pop_front()
        {
            self.record_writes += 1;
            self.bytes_written += op.bytes();
            self.submit_op(token, op);
            count += 1;
        }
        count > 0
    }

    /// Drop all queued writes; returns the identifiers of their records.
    pub fn drop_queued(&mut self) -> Vec<u64> {
        let mut ids = Vec::new();
        for (token, _) in std::mem::take(&mut self.queued) {
            self.syncs.write_dropped(token);
            let Some(PendingOp::Records { segment, records, .. }) = self.pending.remove(&token)
            else {
                continue;
            };
            if let Some(open) = self.unsealed(segment) {
                open.writes -= 1;
                open.drop_unwritten(&records);
            }
            ids.extend(records.into_iter().map(|(id, _)| id));
        }
        ids
    }

    /// The segment with this number, if it is open or being sealed.
    pub(super) fn unsealed(&mut self, segment: SegmentId) -> Option<&mut OpenSegment> {
        let mut all = self.open.iter_mut().chain(self.sealing.iter_mut().map(|s| &mut s.segment));
        all.find(|open| open.segment() == segment)
    }

    /// Handle a failed sync: drop queued and coalesced writes, and close the open segment without a
    /// footer.
    pub(super) fn record_sync_fault(&mut self, fault: IoFault, events: &mut Vec<LogEvent>) {
        if self.sync_fault.is_some() {
            return;
        }
        self.sync_fault = Some(fault.clone());
        // One event for all: the owner requeues these records in this order, before all others.
        let mut unwritten = self.drop_queued();
        if let Some(mut segment) = self.open.take() {
            segment.skip_footer = true;
            if let Some(CoalescedWrite { records, .. }) = segment.take() {
                segment.writes -= 1;
                segment.drop_unwritten(&records);
                unwritten.extend(records.into_iter().map(|(id, _)| id));
            }
            self.sealing.push(Sealing { segment, step: SealStep::Writes });
        }
        if !unwritten.is_empty() {
            events.push(LogEvent::Unwritten(unwritten, fault.clone()));
        }
        events.push(LogEvent::SyncFailed(fault));
    }

    pub(super) fn begin(&mut self, op: Op, pending: PendingOp) {
        self.token += 1;
        self.pending.insert(self.token, pending);
        self.submit_op(self.token, op);
    }

    /// Submit the operation, or park it: the owner's may fill the queue while the device hangs, and
    /// the caller must not wait for the device.
    fn submit_op(&mut self, token: u64, op: Op) {
        self.parked.push_back((token, op));
        self.submit_parked();
    }

    /// Submit parked operations while the queue has room.
    pub(super) fn submit_parked(&mut self) {
        while let Some((token, op)) = self.parked.pop_front() {
            if let Err(op) = self.queue.submit(token, op) {
                self.parked.push_front((token, op));
                return;
            }
        }
    }

    /// Collect completions; with `wait`, wait that long for one.
    pub(super) fn collect(&mut self, wait: Option<Duration>) {
        let before = self.completions.len();
        match wait {
            Some(timeout) => self.queue.wait(&mut self.completions, timeout),
            None => self.queue.poll(&mut self.completions),
        }
        let pending = &self.pending;
        let is_record =
            |c: &&Completion| matches!(pending.get(&c.token), Some(PendingOp::Records { .. }));
        self.record_writes -= self.completions[before..].iter().filter(is_record).count();
    }
}

#[cfg(test)]
mod tests;

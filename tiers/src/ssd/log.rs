//! The log's one writer: appends to the open segment, seals full ones, keeps a spare segment ready, and
//! makes writes, syncs and manifest changes happen in the order that crash safety needs.
//!
//! Invariants:
//! - Nothing is written to a segment before both copies of the manifest durably hold its new incarnation:
//!   otherwise, after a crash, records of the old incarnation further back would pass for current ones.
//! - A footer is written only after a sync that covers every record it lists: otherwise a crash leaves a
//!   valid table of invalid records, and open prefers it to older copies that are intact.
//! - Records are appended in the order they were given in: a tombstone lies behind all that it shadows.
//! - After a failed sync nothing is appended or sealed with a footer, and nothing that was written since the last
//!   good one is trusted. The sync is never tried again; [`Log::trust_again`] begins anew, with other segments.

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

use super::append::{Gather, OpenSegment, RecordPlace, Unit};
use super::manifest_writer::{Change, ManifestWriter};
use super::sync::{SyncId, Syncs};
use super::volume::Volume;

/// What happened; the owner of the log acts on it.
#[derive(Debug)]
pub enum Event {
    /// These records lie on the device and can be read; they are not durable yet.
    Written(Vec<(u64, RecordPlace)>),
    /// A write to this segment failed, and these were not written (none, if it was the footer); the owner may append
    /// them again. The segment is sealed early.
    WriteFailed(SegmentIdentity, Vec<u64>, IoFault),
    /// These were never written because of a failure that is told of by itself, or written for nothing: the head of
    /// their segment was not. The owner may append them again.
    Unwritten(Vec<u64>, IoFault),
    /// A sync failed, or files were not there after it: from now on nothing is appended.
    SyncFailed(IoFault),
    /// These are durable.
    Durable(Vec<(u64, RecordPlace)>),
    /// A sync failed: these were written since the last good one and are not to be trusted.
    Untrusted(Vec<(u64, RecordPlace)>, IoFault),
    /// A request of [`Log::sync`] is answered; true if everything it covers is durable.
    Synced(SyncId, bool),
    /// A segment's incarnation is durable: it will be opened next.
    Ready(SegmentId, Incarnation, SegmentOrder),
    /// A segment is full and closed; false if it has no footer because a write of it failed.
    Sealed(FooterFacts, bool),
    /// A namespace's generation is durable, or may not be.
    Generation(NamespaceId, Generation, Result<(), IoFault>),
    /// This segment's new incarnation may be durable or not: it is not opened.
    NotReady(SegmentId, IoFault),
    /// The manifest could not be written.
    ManifestFailed(IoFault),
    /// An operation of [`Log::submit`] ended.
    Other(u64, Completion),
}

/// How the log writes.
#[derive(Clone, Copy, Debug)]
pub struct LogConfig {
    /// A write is submitted once it has gathered this many bytes.
    pub write_bytes: u64,
    /// Record writes in flight.
    pub write_depth: usize,
}

impl LogConfig {
    /// Operations that the log's queue holds.
    pub fn queue_depth(&self) -> usize {
        self.write_depth + OTHER_DEPTH
    }
}

pub(super) enum Pending {
    Records { segment: SegmentId, file: FileId, units: Vec<(u64, RecordPlace)>, with_head: bool },
    Footer { segment: SegmentId, file: FileId },
    Sync { file: FileId },
    Manifest,
    Other { tag: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Writes,
    Sync(SyncId),
    Footer,
}

pub(super) struct Sealing {
    pub(super) segment: OpenSegment,
    pub(super) stage: Stage,
}

/// Operations beside record writes that may be in flight: footers, syncs, the manifest, and the owner's.
const OTHER_DEPTH: usize = 24;
/// Header buffers kept for the next records.
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
    pub(super) syncs: Syncs,
    pub(super) sync_fault: Option<IoFault>,
    /// Written since the last sync round began, and in the round under way.
    pub(super) unsynced: Vec<(u64, RecordPlace)>,
    pub(super) in_round: Vec<(u64, RecordPlace)>,
    pub(super) pending: HashMap<u64, Pending>,
    pub(super) token: u64,
    /// Record writes that the device has.
    pub(super) record_writes: usize,
    /// Record writes that are pending and that the device does not have yet, in order: there is something for it at once when
    /// it has ended others.
    made: VecDeque<(u64, Op)>,
    /// Most that the device may have at present.
    write_depth: usize,
    pub(super) spare_buffers: Vec<AlignedBuf>,
    pub(super) bytes_written: u64,
    pub(super) sync_count: u64,
    /// Completions that came while waiting for room.
    pub(super) early: Vec<Completion>,
    /// Operations that have ended.
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
            syncs: Syncs::default(),
            sync_fault: None,
            unsynced: Vec::new(),
            in_round: Vec::new(),
            pending: HashMap::new(),
            token: 0,
            record_writes: 0,
            made: VecDeque::new(),
            write_depth: config.write_depth,
            spare_buffers: Vec::new(),
            bytes_written: 0,
            sync_count: 0,
            early: Vec::new(),
            ended: 0,
        })
    }

    /// A copy of the manifest could not be brought up to date: it is written anew with the next change.
    pub fn suspect_manifest(&mut self, copy: usize) {
        self.manifest.suspect(copy);
    }

    /// Bytes handed to the device by this writer, and syncs.
    pub fn written(&self) -> (u64, u64) {
        (self.bytes_written + self.manifest.bytes_written(), self.sync_count)
    }

    /// Whether nothing is gathered, in flight or waiting.
    pub fn idle(&self) -> bool {
        let gathered = self.open.as_ref().is_some_and(|o| o.gathered().1 > 0 && !o.is_empty());
        !gathered
            && self.pending.is_empty()
            && !self.syncs.busy()
            && !self.manifest.busy()
            && self.sealing.is_empty()
    }

    /// Operations that have ended so far: while it stands still with some in flight, the device does nothing.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// Operations in flight, and writes that are made.
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Let the device have at most `depth` record writes from now on, at least one and at most as many as configured.
    pub fn limit_writes(&mut self, depth: usize) {
        self.write_depth = depth.clamp(1, self.config.write_depth);
    }

    /// Whether another record write may be made: beside those in flight as many wait for them as may be.
    pub fn has_room(&self) -> bool {
        self.record_writes + self.made.len() < 2 * self.write_depth && self.sync_fault.is_none()
    }

    /// Bytes of records, at least one, after which what is gathered is written.
    pub fn wanted_bytes(&self) -> u64 {
        let gathered = self.open.as_ref().map_or(0, |open| open.gathered().0);
        self.config.write_bytes.saturating_sub(gathered).max(1)
    }

    /// Whether the log takes records at all: false after a failed sync.
    pub fn is_trusted(&self) -> bool {
        self.sync_fault.is_none()
    }

    /// Why the log takes no records.
    pub fn fault(&self) -> Option<&IoFault> {
        self.sync_fault.as_ref()
    }

    /// Whether a segment should be prepared with [`Log::prepare`].
    pub fn wants_segment(&self) -> bool {
        self.spare.is_none() && !self.preparing && self.is_trusted()
    }

    /// The oldest segment that is not sealed, if there is one: what a checkpoint must replay from.
    pub fn oldest_unsealed(&self) -> Option<SegmentOrder> {
        let sealing = self.sealing.iter().map(|s| s.segment.order);
        let spare = self.spare.iter().map(|s| s.1);
        sealing.chain(self.open.iter().map(|o| o.order)).chain(spare).min()
    }

    /// When the segment was opened that records go to, if there is one.
    pub fn open_order(&self) -> Option<SegmentOrder> {
        self.open.as_ref().map(|open| open.order)
    }

    /// The segment that the last record went to, sealed by now or not.
    pub fn newest_written(&self) -> Option<SegmentOrder> {
        self.newest_written
    }

    /// Whether the open segment takes this unit.
    pub fn open_fits(&self, unit: &Unit) -> bool {
        self.open.as_ref().is_some_and(|o| o.fits(unit.record_bytes(), unit.members.len()))
    }

    /// Whether a unit that the open segment does not take could go into the spare one.
    pub fn has_spare(&self) -> bool {
        self.spare.is_some()
    }

    /// The segment that is kept ready: its incarnation is durable and nothing was written to it.
    pub fn spare(&self) -> Option<(SegmentIdentity, SegmentOrder)> {
        self.spare
    }

    /// Give the segment that is kept ready back to the owner.
    pub fn drop_spare(&mut self) -> Option<SegmentId> {
        self.spare.take().map(|(identity, _)| identity.segment)
    }

    /// Whether a segment is being prepared.
    pub fn is_preparing(&self) -> bool {
        self.preparing
    }

    /// Take records again after a failed sync; false, and nothing happens, while anything from before is under way.
    /// What was untrusted stays so: its segment is sealed, and no later sync is taken to cover it.
    pub fn trust_again(&mut self) -> bool {
        let over = self.idle() && self.open.is_none() && self.unsynced.is_empty() && self.in_round.is_empty();
        if self.sync_fault.is_some() && over {
            self.sync_fault = None;
        }
        self.sync_fault.is_none()
    }

    /// Whether segments are being sealed.
    pub fn is_sealing(&self) -> bool {
        !self.sealing.is_empty()
    }

    /// Raise a free segment's incarnation and keep it ready; [`Event::Ready`] follows.
    pub fn prepare(&mut self, segment: SegmentId, incarnation: Incarnation, order: SegmentOrder) {
        self.preparing = true;
        self.manifest.request(Change::Segment(segment, incarnation, order));
    }

    /// Raise a namespace's generation; [`Event::Generation`] follows.
    pub fn raise_generation(&mut self, namespace: NamespaceId, generation: Generation) {
        self.manifest.request(Change::Generation(namespace, generation));
    }

    /// Ask for a sync that covers everything appended so far; [`Event::Synced`] follows.
    pub fn sync(&mut self) -> SyncId {
        self.submit_gathered();
        self.syncs.request(self.token)
    }

    /// Submit an operation of the owner's; [`Event::Other`] follows. Handed back if there is no room.
    pub fn submit(&mut self, tag: u64, op: Op) -> Result<(), Op> {
        if self.queue.room() == 0 {
            return Err(op);
        }
        if let Op::Write { .. } = &op {
            self.bytes_written += op.bytes();
        }
        self.begin(op, Pending::Other { tag });
        Ok(())
    }

    /// Append a unit; where it comes to lie, and its header without padding. Handed back if no segment is ready for it, or the log is not
    /// trusted.
    pub fn append(&mut self, unit: Unit) -> Result<(RecordPlace, Vec<u8>), Unit> {
        if !self.is_trusted() {
            return Err(unit);
        }
        let (bytes, members) = (unit.record_bytes(), unit.members.len());
        if !self.open.as_ref().is_some_and(|o| o.fits(bytes, members)) && !self.next_segment(bytes, members) {
            return Err(unit);
        }
        let spare = self.spare_buffers.pop();
        let parts = unit.payload.len() + 1;
        if self.open.as_ref().is_some_and(|o| o.gathered().1 + parts > self.parts_max) {
            self.submit_gathered();
        }
        let Some(open) = self.open.as_mut() else { return Err(unit) };
        let appended = open.append(unit, spare)?;
        self.newest_written = Some(open.order);
        if open.gathered().0 >= self.config.write_bytes {
            self.submit_gathered();
        }
        Ok(appended)
    }

    /// Put the open segment away and open the spare one; false if there is none, or it is too small.
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

    /// Begin to seal the open segment, if there is one with records in it, or one in which all of them failed.
    pub fn seal_open(&mut self) {
        self.submit_gathered();
        if let Some(segment) = self.open.take() {
            if segment.is_empty() && !segment.failed {
                self.open = Some(segment);
                return;
            }
            self.sealing.push(Sealing { segment, stage: Stage::Writes });
        }
    }

    /// Make what has been gathered a write, full or not, and submit it if the device may have another.
    pub fn submit_gathered(&mut self) {
        let Some(gather) = self.open.as_mut().and_then(OpenSegment::take) else { return };
        let Some(open) = self.open.as_ref() else { return };
        let Gather { offset, parts, units, .. } = gather;
        let segment = open.segment();
        let (file, at) = self.volume.place(segment, offset);
        let with_head = offset == 0;
        self.token += 1;
        self.pending.insert(self.token, Pending::Records { segment, file, units, with_head });
        // A sync that is asked for now waits for it.
        self.syncs.write_begun(self.token);
        self.made.push_back((self.token, Op::Write { file, offset: at, parts }));
        self.launch(usize::MAX);
    }

    /// Submit at most so many of the writes that are made, as far as the device may have them; true if there was one.
    pub(super) fn launch(&mut self, most: usize) -> bool {
        let mut count = 0;
        while count < most
            && self.record_writes < self.write_depth
            && let Some((token, op)) = self.made.pop_front()
        {
            self.record_writes += 1;
            self.bytes_written += op.bytes();
            self.hand_over(token, op);
            count += 1;
        }
        count > 0
    }

    /// Writes that are made are not submitted any more: what was to be in them.
    pub fn drop_made(&mut self) -> Vec<u64> {
        let mut ids = Vec::new();
        for (token, _) in std::mem::take(&mut self.made) {
            self.syncs.write_dropped(token);
            let Some(Pending::Records { segment, units, .. }) = self.pending.remove(&token) else { continue };
            if let Some(open) = self.unsealed(segment) {
                open.writes -= 1;
                open.lost(&units);
            }
            ids.extend(units.into_iter().map(|(id, _)| id));
        }
        ids
    }

    /// A segment that is not sealed.
    pub(super) fn unsealed(&mut self, segment: SegmentId) -> Option<&mut OpenSegment> {
        let mut all = self.open.iter_mut().chain(self.sealing.iter_mut().map(|s| &mut s.segment));
        all.find(|open| open.segment() == segment)
    }

    /// A sync failed. What was only gathered is not written any more, and the open segment is put away.
    pub(super) fn distrust(&mut self, fault: IoFault, events: &mut Vec<Event>) {
        if self.sync_fault.is_some() {
            return;
        }
        self.sync_fault = Some(fault.clone());
        // In one event: the owner takes what it names back in that order, and in front of all else.
        let mut unwritten = self.drop_made();
        if let Some(mut segment) = self.open.take() {
            segment.footerless = true;
            if let Some(Gather { units, .. }) = segment.take() {
                segment.writes -= 1;
                segment.lost(&units);
                unwritten.extend(units.into_iter().map(|(id, _)| id));
            }
            self.sealing.push(Sealing { segment, stage: Stage::Writes });
        }
        if !unwritten.is_empty() {
            events.push(Event::Unwritten(unwritten, fault.clone()));
        }
        events.push(Event::SyncFailed(fault));
    }

    pub(super) fn begin(&mut self, op: Op, pending: Pending) {
        self.token += 1;
        self.pending.insert(self.token, pending);
        self.hand_over(self.token, op);
    }

    fn hand_over(&mut self, token: u64, mut op: Op) {
        // The queue was made deep enough for everything that the log submits by itself; the owner's
        // operations were checked for room. A full queue here still only means waiting a little.
        while let Err(back) = self.queue.submit(token, op) {
            op = back;
            self.take(Some(Duration::from_millis(100)));
        }
    }

    /// Take what the queue has ended, or wait that long for something.
    pub(super) fn take(&mut self, wait: Option<Duration>) {
        let before = self.early.len();
        match wait {
            Some(timeout) => self.queue.wait(&mut self.early, timeout),
            None => self.queue.poll(&mut self.early),
        }
        let pending = &self.pending;
        let is_record = |c: &&Completion| matches!(pending.get(&c.token), Some(Pending::Records { .. }));
        self.record_writes -= self.early[before..].iter().filter(is_record).count();
    }
}

#[cfg(test)]
mod tests;

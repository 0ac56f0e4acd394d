//! Takes a checkpoint of the index while the index is in use.
//!
//! The snapshot is fuzzy. It is correct for four reasons:
//! - Its log position is the oldest segment that was not sealed when it began (`replay_from`). All
//!   later changes are in segments that the next open replays.
//! - A data sync follows the copy of the last entry. An object that was reinserted from an older
//!   segment during the copy, and is left out because the replay finds it, is durable where the
//!   replay looks.
//! - Of a record whose entries left the index during the copy, one member may have been copied and
//!   another not. Such records are withdrawn at the end, with all their members.
//! - A durable object that a group replaced is left out too. The sync waits until such groups are
//!   written ([`crate::state::replaced_objects`]).

use std::collections::HashSet;

use pagelith_io::disk::Completion;
use pagelith_io::fault::IoFault;
use pagelith_layouts::checkpoint::{CheckpointEntry, SegmentMark};
use pagelith_layouts::ids::{SegmentId, SegmentOrder};
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::ssd::checkpoint::CheckpointWriter;

use crate::background::log_context::{Closing, LogContext, SyncPurpose};
use crate::background::log_op::LogOp;
use crate::background::pending_flushes::PendingFlushes;
use crate::memory::index::SlotContent;
use crate::memory::visibility::VisibilityFilter;

/// A checkpoint being taken.
struct Checkpoint {
    writer: CheckpointWriter,
    replay_from: SegmentOrder,
    cursor: u64,
    sync_requested: bool,
    /// All entries are copied. The sync is requested once the replacements of durable objects up to
    /// this serial are written.
    replacement: Option<u64>,
    clean: bool,
    serial: u64,
    /// Damage up to this segment is left out of it, and noted nowhere else.
    leaves_out: Option<SegmentOrder>,
}

impl Checkpoint {
    /// Whether entries that leave the index now are left out of the checkpoint.
    fn copies(&self) -> bool {
        !self.sync_requested && self.replacement.is_none()
    }

    /// Make durable what the replay will find.
    fn request_sync(&mut self, cx: &mut LogContext) {
        self.sync_requested = true;
        cx.sync_for(SyncPurpose::Checkpoint(self.serial));
    }

    /// The tag of its operations: a failed checkpoint may leave some in flight.
    fn op(&self) -> LogOp {
        LogOp::Checkpoint(self.serial as u32)
    }
}

/// Takes checkpoints, and holds the flushes that wait for one.
pub(crate) struct Checkpointer {
    current: Option<Checkpoint>,
    /// Serial number of the last checkpoint.
    serial: u64,
    /// Segments sealed since the last checkpoint began.
    sealed: u32,
    pub flushes: PendingFlushes,
}

impl Checkpointer {
    /// A checkpointer that continues after the checkpoint `serial`.
    pub fn new(serial: u64) -> Checkpointer {
        Checkpointer { current: None, serial, sealed: 0, flushes: PendingFlushes::default() }
    }

    pub fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    pub fn segment_sealed(&mut self) {
        self.sealed = self.sealed.saturating_add(1);
    }

    /// Begin a checkpoint unless one is under way.
    pub fn begin(&mut self, cx: &mut LogContext, clean: bool) {
        // With constant fingerprints the entries of a snapshot could not be distinguished.
        if self.current.is_some() || cx.shared.config.constant_fingerprint() {
            return;
        }
        let oldest = cx.log.oldest_unsealed().filter(|_| !mutant::on(Mutant::CheckpointTooLate));
        let replay_from = oldest.unwrap_or(cx.next_order);
        let serial = self.serial + 1;
        let mut core = cx.shared.lock();
        let Some(ssd) = core.ssd.as_mut() else { return };
        ssd.withdrawn_records = Some(HashSet::new());
        let marks: Vec<_> = ssd
            .segments
            .iter()
            .map(|(_, s)| SegmentMark {
                incarnation: s.incarnation.0,
                order: s.order.0,
                min_sequence: s.min_sequence.0,
                data_end: s.data_end,
            })
            .collect();
        let sequence = core.sequence;
        drop(core);
        let volume = &cx.volume;
        let file = volume.checkpoints[(serial % 2) as usize];
        let bytes = volume.geometry.checkpoint_bytes();
        match CheckpointWriter::begin(
            file,
            bytes,
            volume.store,
            serial,
            sequence,
            replay_from,
            &marks,
        ) {
            Ok(writer) => {
                self.serial = serial;
                self.sealed = 0;
                self.current = Some(Checkpoint {
                    writer,
                    replay_from,
                    cursor: 0,
                    sync_requested: false,
                    replacement: None,
                    clean,
                    serial,
                    leaves_out: None,
                });
            }
            Err(fault) => {
                self.failed(cx, &fault);
                self.checkpoint_ended(cx, serial, None);
            }
        }
    }

    /// Continue the checkpoint, or begin one if it is due; true if anything was done.
    pub fn step(&mut self, cx: &mut LogContext) -> bool {
        let every = cx.shared.config.checkpoint_segments();
        if self.current.is_none() {
            let many = every > 0 && !cx.is_closing() && self.sealed >= every;
            let due = many || self.flushes.want_checkpoint(&cx.log);
            if due && !cx.is_read_only() && generations_are_durable(cx) {
                self.begin(cx, false);
                // The last checkpoint of a store that closes is a clean one.
                if let (Some(_), Closing::Checkpointing(job)) = (&self.current, cx.closing) {
                    cx.closing = Closing::Draining(job);
                }
            }
            return due && self.current.is_some();
        }
        // Groups that replace durable objects are not written now, and the checkpoint would not
        // list these. If the tier is off, the index is being emptied, and it would list nothing.
        let writes = cx.shared.lock().ssd.as_ref().is_some_and(|s| s.health.writes());
        if !writes && self.forget_partial(cx) {
            return true;
        }
        let mut any = self.copy_entries(cx);
        while let Some(c) = self.current.as_mut() {
            let Some(op) = c.writer.next_op() else { break };
            if let Err(op) = cx.log.submit(c.op().encode(), op) {
                c.writer.put_back(op);
                break;
            }
            any = true;
        }
        any
    }

    fn copy_entries(&mut self, cx: &mut LogContext) -> bool {
        let shared = cx.shared.clone();
        let Some(c) = self.current.as_mut() else { return false };
        let mut core = shared.lock();
        if let Some(serial) = c.replacement.filter(|_| !c.sync_requested) {
            if core.has_replacement_up_to(serial) {
                return false;
            }
            drop(core);
            c.request_sync(cx);
            return true;
        }
        let homes = core.index.home_slots();
        if !c.writer.wants_entries() || c.sync_requested {
            return false;
        }
        let to = (c.cursor + core.index.walk_piece()).min(homes);
        let Some(ssd) = core.ssd.as_ref() else { return false };
        // The purge goes first: entries that it has not reached must not be copied.
        if !ssd.purges.is_empty() {
            return false;
        }
        let (mut entries, mut broken) = (Vec::new(), Vec::new());
        core.index.visit_homes(c.cursor, to, |visited| {
            // A link is written with its object.
            let SlotContent::Object(e) = visited else { return };
            let Some(location) = e.ssd else { return };
            // The replay finds the records at or after the log position.
            let before = ssd.segments.get(SegmentId(location.segment)).order < c.replay_from;
            if !before {
                return;
            }
            if core.is_hidden_at(location) {
                broken.push((location.segment, location.record_sector));
                return;
            }
            entries.push(CheckpointEntry {
                fingerprint: e.fingerprint.to_le_bytes(),
                segment: location.segment,
                record_sector: location.record_sector,
                payload_sector: location.payload_sector,
                length: e.length,
                tick: CheckpointEntry::tick(e.tick, e.attached),
            });
            let link = core.index.link(e.fingerprint).filter(|_| e.attached);
            entries.extend(link.map(|base| CheckpointEntry::links(e.fingerprint, base)));
        });
        // Entries hidden only now may have been visible when other members of their records were
        // copied.
        if let Some(left) = core.ssd.as_mut().and_then(|s| s.withdrawn_records.as_mut()) {
            left.extend(broken);
        }
        if to == homes {
            // Not later: the sync does not cover a move after this point, so the old location must
            // count.
            c.leaves_out = core.ssd.as_mut().and_then(|s| s.damage.take_before(c.replay_from));
            let left = core.ssd.as_mut().and_then(|s| s.withdrawn_records.take());
            let left = left.filter(|_| !mutant::on(Mutant::WithdrawalsLost));
            let mut left: Vec<_> = left.into_iter().flatten().collect();
            left.sort_unstable();
            entries
                .extend(left.into_iter().map(|(s, record)| CheckpointEntry::withdrawal(s, record)));
        }
        // The checkpoint does not list the objects that were replaced so far, and keeps the next
        // open from reading their segments. Those replaced after this are listed.
        let replacement = if to == homes { core.newest_replacement() } else { None };
        drop(core);
        c.cursor = to;
        if let Err(fault) = entries.into_iter().try_for_each(|entry| c.writer.push(entry)) {
            self.failed(cx, &fault);
        } else if to == homes {
            c.replacement = replacement;
            if replacement.is_none() {
                c.request_sync(cx);
            }
        }
        true
    }

    /// The data found after the log position during the copy is durable: complete the snapshot. The
    /// sync may belong to a failed checkpoint whose successor has not copied everything yet.
    pub fn sync_ended(&mut self, cx: &mut LogContext, serial: u64, ok: bool) {
        let next = cx.shared.lock().sequence;
        let Some(c) = self.current.as_mut().filter(|c| c.serial == serial) else { return };
        let learned = cx.shared.admission.learned();
        let finish = |c: &mut Checkpoint| c.writer.finish(next, c.clean, learned.as_ref());
        let finished = if ok { finish(c) } else { Ok(()) };
        match finished {
            Ok(()) if ok => {}
            Ok(()) => self.keep_older(cx),
            Err(fault) => self.failed(cx, &fault),
        }
    }

    /// An operation of a checkpoint ended.
    pub fn ended(&mut self, cx: &mut LogContext, op: LogOp, completion: Completion) {
        let Some(c) = self.current.as_mut().filter(|c| c.op() == op) else { return };
        match c.writer.ended(completion.result) {
            None => {}
            Some(Ok(())) => {
                let serial = c.serial;
                tracing::debug!(serial, "checkpoint");
                self.current = None;
                cx.shared.lock().counters.checkpoints += 1;
                self.checkpoint_ended(cx, serial, None);
            }
            Some(Err(fault)) => self.failed(cx, &fault),
        }
    }

    /// Give up a checkpoint whose sync is not requested, without counting a failure; true if there
    /// was one.
    fn forget_partial(&mut self, cx: &mut LogContext) -> bool {
        let partial = self.current.as_ref().is_some_and(|c| !c.sync_requested);
        if partial {
            self.keep_older(cx);
            if let Some(ssd) = cx.shared.lock().ssd.as_mut() {
                ssd.withdrawn_records = None;
            }
        }
        partial
    }

    /// The older checkpoint stays valid; open will replay more footers.
    fn failed(&mut self, cx: &mut LogContext, fault: &IoFault) {
        tracing::warn!(%fault, "checkpoint failed, the older one stays valid; check the drive");
        self.keep_older(cx);
        cx.shared.lock().counters.checkpoint_failures += 1;
    }

    /// Give up the checkpoint that is being written, if any. The next one reuses its file, and does
    /// not overwrite the older one.
    fn keep_older(&mut self, cx: &mut LogContext) {
        if let Some(c) = self.current.take() {
            self.serial += 1;
            self.checkpoint_ended(cx, c.serial, c.leaves_out);
        }
    }

    /// A checkpoint ended, written or not: continue the flushes that waited for it. `left_out` is
    /// the damage that it left out, if it was not written.
    fn checkpoint_ended(
        &mut self,
        cx: &mut LogContext,
        serial: u64,
        left_out: Option<SegmentOrder>,
    ) {
        if let (Some(order), Some(ssd)) = (left_out, cx.shared.lock().ssd.as_mut()) {
            ssd.damage.note(order);
        }
        self.flushes.take_ready(serial).for_each(|id| cx.sync_for(SyncPurpose::Flush(id)));
    }

    /// Make everything before this durable: at once, or after a checkpoint that leaves out the
    /// damage found.
    pub fn take_flush(&mut self, cx: &mut LogContext, id: u64) {
        match self.needed_for_damage(cx) {
            Some((damaged, serial)) => self.flushes.push(id, damaged, serial),
            None => cx.sync_for(SyncPurpose::Flush(id)),
        }
    }

    /// The segment up to which all must be sealed, and the first checkpoint that then leaves out
    /// all damage found so far; `None` without damage.
    fn needed_for_damage(&self, cx: &mut LogContext) -> Option<(SegmentOrder, u64)> {
        // No checkpoint is taken where all fingerprints are equal.
        if cx.shared.config.constant_fingerprint() {
            return None;
        }
        let damage = cx.shared.lock().ssd.as_mut().and_then(|ssd| {
            if std::mem::take(&mut ssd.damage.writing) {
                ssd.damage.note(cx.log.newest_written().unwrap_or(SegmentOrder(0)));
            }
            ssd.damage.newest
        });
        let under_way = self.current.as_ref();
        let Some(mut damaged) = damage else {
            let under_way = under_way.filter(|c| c.leaves_out.is_some())?;
            return Some((SegmentOrder(0), under_way.serial));
        };
        if let Some(c) = under_way.filter(|c| c.copies() && damaged < c.replay_from) {
            return Some((damaged, c.serial));
        }
        if cx.log.open_order().is_some_and(|open| open <= damaged) {
            cx.log.seal_open();
            if let Some(open) = cx.log.open_order() {
                // The open segment is empty, so it is not sealed, and holds no damage.
                damaged = damaged.min(SegmentOrder(open.0 - 1));
            }
        }
        Some((damaged, self.serial + 1))
    }
}

/// Whether the manifest has every generation. Until then only records hold a newer generation. The
/// next open does not read records that a checkpoint covers, so it would miss objects put in that
/// generation.
fn generations_are_durable(cx: &LogContext) -> bool {
    cx.generations.missing(&cx.shared.lock()).is_empty()
}

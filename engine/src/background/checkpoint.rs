//! Takes a checkpoint of the index while the index is in use.
//!
//! The snapshot is fuzzy. It is correct for three reasons:
//! - Its log position is the oldest segment that was not sealed when it began (`replay_from`). All
//!   later changes are in segments that the next open replays.
//! - A data sync follows the copy of the last entry. An object that was moved out of an older
//!   segment during the copy, and is left out because the replay finds it, is durable where the
//!   replay looks.
//! - Of a record whose entries left the index during the copy, one member may have been copied and
//!   another not. Such records are withdrawn at the end, with all their members.

use std::collections::HashSet;

use pagelith_io::fault::IoFault;
use pagelith_layouts::checkpoint::{CheckpointEntry, SegmentMark};
use pagelith_layouts::ids::{SegmentId, SegmentOrder};
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::ssd::checkpoint::CheckpointWriter;

use crate::background::flusher::{Flusher, SyncPurpose};
use crate::memory::index::Visited;
use crate::memory::visibility::VisibilityFilter;

/// A checkpoint being taken.
pub(crate) struct Checkpointing {
    writer: CheckpointWriter,
    pub replay_from: SegmentOrder,
    cursor: u64,
    sync_requested: bool,
    clean: bool,
    pub serial: u64,
    /// Damage up to this segment is left out of it, and noted nowhere else.
    pub leaves_out: Option<SegmentOrder>,
}

impl Checkpointing {
    /// Whether entries that leave the index now are left out of the checkpoint.
    pub fn copies(&self) -> bool {
        !self.sync_requested
    }
}

impl Flusher {
    /// Begin a checkpoint unless one is under way.
    pub(crate) fn begin_checkpoint(&mut self, clean: bool) {
        // With constant fingerprints the entries of a snapshot could not be distinguished.
        if self.checkpoint.is_some() || self.shared.config.constant_fingerprint() {
            return;
        }
        let Some(volume) = self.shared.volume.clone() else { return };
        let oldest = self.log.oldest_unsealed().filter(|_| !mutant::on(Mutant::CheckpointTooLate));
        let replay_from = oldest.unwrap_or(self.next_order);
        let serial = self.checkpoint_serial + 1;
        let mut core = self.shared.lock();
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
                self.checkpoint_serial = serial;
                self.sealed_since_checkpoint = 0;
                self.checkpoint = Some(Checkpointing {
                    writer,
                    replay_from,
                    cursor: 0,
                    sync_requested: false,
                    clean,
                    serial,
                    leaves_out: None,
                });
            }
            Err(fault) => {
                self.checkpoint_failed(&fault);
                self.checkpoint_over(serial, None);
            }
        }
    }

    /// Continue the checkpoint, or begin one if it is due; true if anything was done.
    pub(crate) fn step_checkpoint(&mut self) -> bool {
        let every = self.shared.config.checkpoint_segments();
        if self.checkpoint.is_none() {
            let many = every > 0 && self.closing.is_none() && self.sealed_since_checkpoint >= every;
            let due = many || self.flush_wants_checkpoint();
            if due && !self.is_read_only() && self.generations_are_durable() {
                self.begin_checkpoint(false);
            }
            return due && self.checkpoint.is_some();
        }
        // The index is being emptied: the checkpoint would list nothing, and keep the next open
        // from reading segments that hold objects.
        let off = self.shared.lock().ssd.as_ref().is_none_or(|s| !s.health.reads());
        if off && self.forget_checkpoint() {
            return true;
        }
        let mut any = self.copy_entries();
        while let Some(c) = self.checkpoint.as_mut() {
            let Some(op) = c.writer.next_op() else { break };
            // The tag is the checkpoint's serial number: a failed one may leave operations in
            // flight.
            if let Err(op) = self.log.submit(c.serial, op) {
                c.writer.put_back(op);
                break;
            }
            any = true;
        }
        any
    }

    /// Whether the manifest has every generation. Until then only records hold a newer generation.
    /// The next open does not read records that a checkpoint covers, so it would miss objects put
    /// in that generation.
    fn generations_are_durable(&self) -> bool {
        let core = self.shared.lock();
        core.visibility
            .generations()
            .iter()
            .all(|(ns, generation)| self.durable_generations.get(ns) == Some(generation))
    }

    fn copy_entries(&mut self) -> bool {
        let shared = self.shared.clone();
        let purging = self.purge.is_some();
        let Some(c) = self.checkpoint.as_mut() else { return false };
        let mut core = shared.lock();
        let homes = core.index.home_slots();
        if !c.writer.wants_entries() || c.sync_requested {
            return false;
        }
        // The purge goes first: entries that it has not reached must not be copied.
        if purging || core.ssd.as_ref().is_some_and(|ssd| !ssd.purges.is_empty()) {
            return false;
        }
        let Some(ssd) = core.ssd.as_ref() else { return false };
        let to = (c.cursor + core.index.walk_piece()).min(homes);
        let (mut entries, mut broken) = (Vec::new(), Vec::new());
        core.index.visit_homes(c.cursor, to, |visited| {
            // A link is written with its object.
            let Visited::Object(e) = visited else { return };
            let Some(place) = e.ssd else { return };
            // The replay finds what is at or after the log position.
            let before = ssd.segments.get(SegmentId(place.segment)).order < c.replay_from;
            if !before {
                return;
            }
            if core.is_hidden_at(place) {
                broken.push((place.segment, place.record_block));
                return;
            }
            entries.push(CheckpointEntry {
                fingerprint: e.fingerprint.to_le_bytes(),
                segment: place.segment,
                record_block: place.record_block,
                payload_delta: place.payload_delta,
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
            // Not later: the sync does not cover a move after this point, so the old place must
            // count.
            c.leaves_out = core.ssd.as_mut().and_then(|s| s.damage.take_before(c.replay_from));
            let left = core.ssd.as_mut().and_then(|s| s.withdrawn_records.take());
            let left = left.filter(|_| !mutant::on(Mutant::WithdrawalsLost));
            let mut left: Vec<_> = left.into_iter().flatten().collect();
            left.sort_unstable();
            entries
                .extend(left.into_iter().map(|(s, record)| CheckpointEntry::withdraws(s, record)));
        }
        drop(core);
        c.cursor = to;
        let mut failed = None;
        for entry in entries {
            if let Err(fault) = c.writer.push(entry) {
                failed = Some(fault);
                break;
            }
        }
        if let Some(fault) = failed {
            self.checkpoint_failed(&fault);
        } else if to == homes
            && let Some(c) = self.checkpoint.as_mut()
        {
            c.sync_requested = true;
            let serial = c.serial;
            self.sync_for(SyncPurpose::Checkpoint(serial));
        }
        true
    }

    /// The data found after the log position during the copy is durable: complete the snapshot. The
    /// sync may belong to a failed checkpoint whose successor has not copied everything yet.
    pub(crate) fn checkpoint_synced(&mut self, serial: u64, ok: bool) {
        let next = self.shared.lock().sequence;
        let Some(c) = self.checkpoint.as_mut().filter(|c| c.serial == serial) else { return };
        let finished = if ok { c.writer.finish(next, c.clean) } else { Ok(()) };
        match finished {
            Ok(()) if ok => {}
            Ok(()) => self.give_up_checkpoint(),
            Err(fault) => self.checkpoint_failed(&fault),
        }
    }

    /// An operation of the checkpoint ended.
    pub(crate) fn checkpoint_ended(&mut self, serial: u64, result: Result<(), IoFault>) {
        let Some(c) = self.checkpoint.as_mut().filter(|c| c.serial == serial) else { return };
        match c.writer.ended(result) {
            None => {}
            Some(Ok(())) => {
                tracing::debug!(serial = c.serial, "checkpoint");
                self.checkpoint = None;
                self.shared.lock().counters.checkpoints += 1;
                self.checkpoint_over(serial, None);
            }
            Some(Err(fault)) => self.checkpoint_failed(&fault),
        }
    }

    /// Give up a checkpoint that has not copied all entries, without counting a failure; true if
    /// there was one.
    fn forget_checkpoint(&mut self) -> bool {
        let partial = self.checkpoint.as_ref().is_some_and(Checkpointing::copies);
        if partial {
            self.give_up_checkpoint();
            self.checkpoint_serial += 1;
            if let Some(ssd) = self.shared.lock().ssd.as_mut() {
                ssd.withdrawn_records = None;
            }
        }
        partial
    }

    /// The older checkpoint stays valid; open will replay more footers.
    fn checkpoint_failed(&mut self, fault: &IoFault) {
        tracing::warn!(%fault, "checkpoint failed, the older one stays valid");
        if self.checkpoint.is_some() {
            self.give_up_checkpoint();
            // The next checkpoint reuses this file, and does not overwrite the older one.
            self.checkpoint_serial += 1;
        }
        self.shared.lock().counters.checkpoint_failures += 1;
    }

    fn give_up_checkpoint(&mut self) {
        if let Some(c) = self.checkpoint.take() {
            self.checkpoint_over(c.serial, c.leaves_out);
        }
    }
}

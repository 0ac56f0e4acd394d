//! The read path of a batch.
//!
//! 1. [`GetBatch::begin`]: one pass over the index makes a plan for each tier. The frames and
//!    segments found are entered, so that none is freed or reused before it is left.
//! 2. DRAM: the object is copied out block by block, and each copied block is verified, unless
//!    `dram.verify_ratio` exempts the hit.
//! 3. SSD: the planned reads are submitted as the queue and the staging budget allow, sub-batch by
//!    sub-batch. The header and every block are verified before the outcome is `Hit`.
//! 4. A failure affects the outcome of its object only; its index entry is dropped, so that the
//!    next `exists` does not find it.

#[cfg(test)]
mod damaged_arena_test;
mod deadline;
mod finish;
mod header;
mod part;
mod planning;
mod probe;
mod recompute;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use pagelith_io::buffer::Part;
use pagelith_io::clock::Mono;
use pagelith_io::disk::Completion;
use pagelith_io::hashed_copy::{Copier, CopyMode};
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;
use rustc_hash::FxHashMap;

pub(crate) use self::finish::Finished;
pub(crate) use self::header::{Header, HeaderBytes};
pub(crate) use self::part::GetPart;
pub(crate) use self::probe::ProbedObject;
use crate::api::outcome::{MissCause, Ticket};
use crate::api::request::Get;
use crate::read::disk_read;
use crate::read::disk_read::{Blocked, CompletedPiece, InFlightRead};
use crate::read::locate;
use crate::read::locate::{Located, LocatedMember};
use crate::read::page_depth::PageDepths;
use crate::read::plan::{HeaderLocation, Piece, PlannedRead};
use crate::read::promote;
use crate::read::recompute::Recompute;
use crate::read::slot::{GetWants, NextStep, ReadClaims, Settled, Slot, SsdObject};
use crate::state::group_info;
use crate::state::reserve::ArenaReservation;
use crate::state::session_io::{SessionIo, release_segment};

/// Failed reads of an object after which it is a miss.
const FAILED_READS_MAX: u32 = 2;

/// A batch of gets.
pub(crate) struct GetBatch {
    slots: Vec<Slot>,
    headers: Vec<Header>,
    waiting: VecDeque<PlannedRead>,
    in_flight: FxHashMap<u64, InFlightRead>,
    /// Objects without an outcome.
    unsettled: usize,
    /// Staged objects without an outcome, by sub-batch.
    stage_unsettled: Vec<usize>,
    current_stage: usize,
    deadline: Mono,
    late: bool,
    at: Recency,
    /// Peers are not asked; see [`GetPart`].
    local_only: bool,
    /// Loads that are slower than recomputing are to be misses.
    recompute: Recompute,
}

impl GetBatch {
    /// Locate the objects, copy those in DRAM, and plan the reads of those on SSD.
    pub fn begin(
        io: &mut SessionIo,
        gets: Vec<Get>,
        at: Recency,
        deadline: Mono,
        recompute: Recompute,
    ) -> GetBatch {
        let _span = tracing::debug_span!("get", objects = gets.len()).entered();
        let slots = gets.into_iter().map(Slot::new).collect();
        Self::begin_slots(io, slots, at, deadline, recompute)
    }

    /// Read these objects into arena memory that is reserved for them, and keep them there.
    pub fn prefetch(
        io: &mut SessionIo,
        objects: Vec<(ObjectKey, (ArenaReservation, Part))>,
        at: Recency,
        deadline: Mono,
    ) -> GetBatch {
        let slot = |(key, (reservation, part))| Slot::prefetch(key, reservation, part);
        let slots = objects.into_iter().map(slot).collect();
        Self::begin_slots(io, slots, at, deadline, Recompute::Never)
    }

    fn begin_slots(
        io: &mut SessionIo,
        mut slots: Vec<Slot>,
        at: Recency,
        deadline: Mono,
        recompute: Recompute,
    ) -> GetBatch {
        let mut depths = PageDepths::default();
        slots.iter_mut().for_each(|slot| slot.depth_offset = depths.depth_of(&slot.key));
        let unsettled = slots.len();
        let mut batch = GetBatch {
            slots,
            headers: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: FxHashMap::default(),
            unsettled,
            stage_unsettled: Vec::new(),
            current_stage: 1,
            deadline,
            late: false,
            at,
            local_only: false,
            recompute,
        };
        if let Err(error) = io.shared.check_open() {
            (0..unsettled).for_each(|i| batch.settle(io, i, Settled::Failed(error.clone())));
            return batch;
        }
        let all: Vec<usize> = (0..batch.slots.len()).collect();
        batch.locate(io, &all);
        batch
    }

    /// Locate these objects; copy those in DRAM, and plan the reads of those on SSD.
    fn locate(&mut self, io: &mut SessionIo, which: &[usize]) {
        let SessionIo { shared, sampler, wants_meta, .. } = io;
        let located = locate::locate(shared, &mut self.slots, which, self.at);
        let mut from_ssd = Vec::new();
        // Non-temporal stores are fenced once, after all copies and before any outcome is returned.
        let bytes = which.iter().map(|&i| self.slots[i].destination_bytes()).sum();
        let mut copier = Copier::new(CopyMode::of(bytes));
        for (i, found) in located {
            let settled = match found {
                Located::Ssd => {
                    from_ssd.push(i);
                    continue;
                }
                Located::Absent => Settled::Miss(MissCause::Absent),
                Located::Misfit(error) => Settled::Failed(error),
                Located::Memory(LocatedMember { entered, frame, member, want }) => {
                    let slot = &mut self.slots[i];
                    let verify = slot.is_probe() || sampler.next();
                    let mut settled =
                        slot.copy_out(shared, &entered, member, &want, verify, &mut copier);
                    match &mut settled {
                        Settled::Hit(hit) if *wants_meta => {
                            hit.meta = Some(Box::new(group_info::object_meta(&entered, member)));
                        }
                        Settled::Hit(_) | Settled::Failed(_) => {}
                        // The arena's bytes are damaged. The frame is dropped before another get
                        // finds it, in particular one that does not verify.
                        Settled::Miss(_) => shared.lock().drop_damaged(frame),
                    }
                    locate::leave_frame(shared, entered, frame);
                    settled
                }
            };
            // An object that is looked up has nothing to release.
            self.unsettled -= 1;
            self.slots[i].settle(settled);
        }
        if !self.settle_if_slow(io, &from_ssd) {
            self.plan(io, &from_ssd);
        }
    }

    /// Progress without waiting; true once every object has its outcome.
    pub fn advance(&mut self, io: &mut SessionIo, ticket: Ticket) -> bool {
        let now = io.shared.now();
        if now >= self.deadline {
            if !self.late {
                self.give_up(io);
            }
            self.settle_late(io);
        }
        self.submit(io, ticket);
        if !self.in_flight.is_empty() {
            io.shared.reads.note(now);
        }
        self.is_over()
    }

    /// Whether every object has its outcome and no read of the batch is in flight.
    pub fn is_over(&self) -> bool {
        self.unsettled == 0 && self.in_flight.is_empty()
    }

    /// Whether reads wait for room in the queue or for memory, and the deadline has not passed.
    pub fn has_waiting(&self, now: Mono) -> bool {
        !self.waiting.is_empty() && now < self.deadline
    }

    /// Submit the reads that can be submitted now.
    pub fn submit(&mut self, io: &mut SessionIo, ticket: Ticket) {
        while self.stage_unsettled.get(self.current_stage - 1) == Some(&0) {
            self.current_stage += 1;
        }
        let mut held_back = VecDeque::new();
        let mut staging_full = false;
        while let Some(read) = self.waiting.pop_front() {
            if self.is_obsolete(&read) {
                continue;
            }
            let direct = read.pieces.iter().any(Piece::is_direct);
            if direct && io.shared.reads.slow.may_outlast(self.deadline, io.shared.now()) {
                self.stage_instead(io, &read);
                continue;
            }
            let staged = read.pieces.iter().any(Piece::is_staged);
            if staged && (read.stage > self.current_stage || staging_full) {
                held_back.push_back(read);
                continue;
            }
            let slots = &mut self.slots;
            match disk_read::submit(io, ticket, read, |slot| slots[slot].take_parts()) {
                Ok((token, flight)) => {
                    for piece in &flight.read.pieces {
                        if let Piece::Staged { slot, .. } = piece {
                            slots[*slot].attempts.submitted = true;
                        }
                    }
                    // Each read enters its segment by itself. Before it completes, its objects may
                    // move on to another index entry of the same fingerprint, or get an outcome.
                    // At this point one of them is still in the segment.
                    if let Some(guards) = &io.shared.read_view.guards {
                        guards.enter_again(flight.read.segment);
                    }
                    self.in_flight.insert(token, flight);
                }
                Err((Blocked::Staging, read)) => {
                    staging_full = true;
                    held_back.push_back(read);
                }
                Err((Blocked::Scratch, read)) => held_back.push_back(read),
                Err((Blocked::Queue, read)) => {
                    held_back.push_back(read);
                    break;
                }
            }
        }
        held_back.append(&mut self.waiting);
        self.waiting = held_back;
    }

    /// Whether no object needs the read any more.
    fn is_obsolete(&self, read: &PlannedRead) -> bool {
        let wanted = |p: &Piece| match p {
            Piece::Header { header, .. } => self.headers[*header].users > 0,
            Piece::Direct { slot, round, .. } | Piece::Staged { slot, round, .. } => {
                self.slots[*slot].needs_round(*round)
            }
        };
        !read.pieces.iter().any(wanted)
    }

    /// Handle the completion of a read.
    pub fn completed(&mut self, io: &mut SessionIo, completion: Completion) {
        let Some(flight) = self.in_flight.remove(&completion.token) else { return };
        release_segment(&io.shared, flight.read.segment);
        self.recompute.read_ended(io.completed_at);
        io.shared.reads.slow.note(io.completed_at.since(flight.submitted_at), io.completed_at);
        if self.late {
            // After the deadline, only direct reads are still awaited.
            io.shared.reads.late.fetch_sub(1, Ordering::Relaxed);
        }
        let (pieces, result, read) = disk_read::complete(&mut io.scratch, flight, completion);
        let mut advanced: Vec<usize> = Vec::new();
        for piece in pieces {
            match piece {
                CompletedPiece::Direct { slot, round, parts } => {
                    self.slots[slot].return_parts(round, parts, result.is_ok());
                    advanced.push(slot);
                }
                CompletedPiece::Header { header, part } => {
                    match result.is_ok() && self.headers[header].users > 0 {
                        true => {
                            let read = HeaderBytes::Read { part, inserted: false };
                            self.headers[header].bytes = Some(read);
                        }
                        false => io.scratch.give_back(part),
                    }
                }
                CompletedPiece::Staged { slot, round, chunk, part } => {
                    // Chunks of an earlier plan are not used. A chunk that completes after the
                    // outcome must not occupy staging memory until the batch ends.
                    if !self.slots[slot].needs_round(round) {
                        continue;
                    }
                    if result.is_ok() {
                        self.slots[slot].add_staged(chunk, part);
                    }
                    advanced.push(slot);
                }
            }
        }
        advanced.sort_unstable();
        advanced.dedup();
        for piece in &read.pieces {
            if let Piece::Header { header, .. } = piece {
                self.add_header_users(*header, &mut advanced);
            }
        }
        if let Err(fault) = result {
            let key = advanced.first().map(|slot| self.slots[*slot].key);
            tracing::warn!(%fault, key = key.map(tracing::field::display), "ssd read failed");
            io.shared.lock().counters.read_errors += 1;
            self.retry(io, &advanced);
            return;
        }
        // Direct reads stay suspended while late reads into callers' memory are in flight: the next
        // such read may be as late. Stored only on a change, because all sessions read the flag.
        let is_suspended = io.shared.reads.direct_suspended.load(Ordering::Relaxed);
        if is_suspended && !self.late && io.shared.reads.late.load(Ordering::Relaxed) == 0 {
            io.shared.reads.direct_suspended.store(false, Ordering::Relaxed);
        }
        for slot in advanced {
            match self.slots[slot].reading() {
                Some(read) if read.retry_pending => self.retry(io, &[slot]),
                Some(_) => self.verify_slot(io, slot),
                None => {}
            }
        }
    }

    /// Add the objects that wait for this header and are not in `advanced`. There are none, unless
    /// a part of the record was read separately from the header.
    fn add_header_users(&self, header: usize, advanced: &mut Vec<usize>) {
        let needs = |i: &usize| self.slots[*i].reading().is_some_and(|read| read.header == header);
        if advanced.iter().filter(|i| needs(i)).count() < self.headers[header].users {
            advanced.extend((0..self.slots.len()).filter(needs));
            advanced.sort_unstable();
            advanced.dedup();
        }
    }

    /// Retry every object of a failed read once, separately; then it is a miss.
    fn retry(&mut self, io: &mut SessionIo, advanced: &[usize]) {
        for &i in advanced {
            if self.slots[i].is_done() {
                continue;
            }
            if self.slots[i].destination.is_none() || self.is_queued(i) {
                // Another read has its memory, or will take it; the retry follows that read.
                if let Some(read) = self.slots[i].reading_mut() {
                    read.retry_pending = true;
                }
                continue;
            }
            self.slots[i].attempts.failed += 1;
            if self.slots[i].attempts.failed >= FAILED_READS_MAX || self.late {
                let cause = if self.late { MissCause::Late } else { MissCause::Unreadable };
                self.settle(io, i, Settled::Miss(cause));
            } else {
                self.discard_read(io, i);
                self.plan(io, &[i]);
            }
        }
    }

    /// Whether a read that is not submitted yet will take the object's memory. Other objects need
    /// that read, so it cannot be dropped.
    fn is_queued(&self, i: usize) -> bool {
        let takes = |p: &Piece| match p {
            Piece::Direct { slot, .. } => *slot == i,
            Piece::Header { .. } | Piece::Staged { .. } => false,
        };
        self.waiting.iter().any(|f| f.pieces.iter().any(takes) && !self.is_obsolete(f))
    }

    /// Verify the pieces of an object that were read, and take the next step.
    fn verify_slot(&mut self, io: &mut SessionIo, i: usize) {
        let Some(header) = self.slots[i].reading().map(|read| read.header) else { return };
        let record = self.slots[i].keeps_in_arena() || promote::is_on(&io.shared);
        // A pass over all bytes of the object precedes the insertion into the header cache.
        self.headers[header].prepare_caching(&io.shared, self.slots[i].header_location());
        let wants = GetWants { meta: io.wants_meta, record };
        match self.slots[i].verify(&self.headers[header], wants) {
            NextStep::Wait => {}
            NextStep::ReadLongerHeader(bytes) => {
                let HeaderLocation { segment, record } = self.headers[header].location;
                self.headers[header].bytes = None;
                let pieces = [Piece::Header { header, bytes }].into();
                let requested = self.waiting.iter().any(|f| f.pieces == pieces)
                    || self.in_flight.values().any(|f| f.read.pieces == pieces);
                if !requested {
                    self.waiting.push_front(PlannedRead {
                        segment,
                        offset: record,
                        bytes,
                        parts: 1,
                        pieces,
                        stage: 0,
                    });
                }
            }
            NextStep::TryNextPlace => {
                if !self.is_queued(i) {
                    self.try_next_location(io, i);
                }
            }
            NextStep::Settle(Settled::Miss(MissCause::Damaged))
                if self.headers[header].was_cached() =>
            {
                if !self.is_queued(i) {
                    self.reread_header(io, i);
                }
            }
            NextStep::Settle(settled) => {
                if let Settled::Hit(_) = &settled {
                    self.headers[header].insert_into_cache(&io.shared);
                }
                self.settle(io, i, settled);
            }
        }
    }

    /// The object's record belongs to another key: look for another location.
    fn try_next_location(&mut self, io: &mut SessionIo, i: usize) {
        self.discard_read(io, i);
        let slot = &mut self.slots[i];
        if let Some(object) = slot.take_off_ssd() {
            slot.attempts.tried.push(object.ssd_location());
            release_segment(&io.shared, object.segment());
        }
        self.locate(io, &[i]);
    }

    /// The bytes do not match the cached header. Before the object counts as damaged, its whole
    /// record is read from the device.
    fn reread_header(&mut self, io: &mut SessionIo, i: usize) {
        if let Some(SsdObject { expected, .. }) = self.slots[i].on_ssd() {
            io.shared.ssd.headers.remove(expected.identity, expected.offset);
        }
        self.discard_read(io, i);
        self.plan(io, &[i]);
    }

    /// Discard an object's read plan, so that it can be planned anew.
    fn discard_read(&mut self, io: &mut SessionIo, i: usize) {
        if let Some(claims) = self.slots[i].discard_read() {
            self.release_claims(io, &claims);
        }
    }

    fn release_claims(&mut self, io: &mut SessionIo, claims: &ReadClaims) {
        if let Some(stage) = claims.stage {
            self.stage_unsettled[stage - 1] -= 1;
        }
        let header = &mut self.headers[claims.header];
        header.users -= 1;
        if header.users == 0 {
            header.bytes.take().into_iter().for_each(|bytes| bytes.release(&mut io.scratch));
        }
    }

    /// Set the outcome of an object, once, and release the resources of its earlier state.
    fn settle(&mut self, io: &mut SessionIo, i: usize, settled: Settled) {
        let slot = &self.slots[i];
        if slot.is_done() {
            debug_assert!(false, "an object has one outcome");
            return;
        }
        if let Settled::Miss(cause @ (MissCause::Damaged | MissCause::Unreadable)) = &settled
            && let Some(read) = slot.reading()
        {
            let (segment, offset) = (read.object.segment().0, read.object.expected.offset);
            tracing::warn!(
                key = %slot.key,
                %cause,
                segment,
                offset,
                "ssd object is lost; check the drive"
            );
            let bytes = self.headers[read.header].bytes.as_ref();
            let record = bytes.and_then(|bytes| bytes.record().ok());
            locate::drop_lost_record(&io.shared, slot, &read.object, record);
        }
        self.unsettled -= 1;
        let (segment, claims) = self.slots[i].settle(settled);
        segment.into_iter().for_each(|segment| release_segment(&io.shared, segment));
        claims.into_iter().for_each(|claims| self.release_claims(io, &claims));
    }
}

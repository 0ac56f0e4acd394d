//! The read path of a batch.
//!
//! 1. [`GetBatch::begin`]: one pass over the index makes a plan for each tier. The frames and
//!    segments found are entered, so that none is freed or reused before it is left.
//! 2. DRAM: the object is copied out block by block, and each copied block is verified.
//! 3. SSD: the planned reads are submitted as the queue and the staging budget allow, sub-batch by
//!    sub-batch. The header and every block are verified before the outcome is `Hit`.
//! 4. A failure affects the outcome of its object only; its index entry is dropped, so that the
//!    next `exists` does not find it.

#[cfg(test)]
mod damaged_arena_test;
mod finish;
mod give_up;
mod header;
mod internal;
mod stages;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use pagelith_io::clock::Mono;
use pagelith_io::disk::Completion;
use pagelith_io::hashed_copy::{Copier, StoreKind};
use pagelith_layouts::staging;
use pagelith_tiers::policy::Recency;
use rustc_hash::FxHashMap;

pub(crate) use self::finish::Finished;
pub(crate) use self::header::{Header, HeaderBytes};
pub(crate) use self::internal::Probed;
use crate::api::error::Result;
use crate::api::outcome::{GetOutcome, MissCause, Ticket};
use crate::api::page_depth::PageDepths;
use crate::api::request::Get;
use crate::read::fetch;
use crate::read::fetch::{Blocked, InFlightRead, ReadPiece};
use crate::read::locate;
use crate::read::locate::Located;
use crate::read::plan;
use crate::read::plan::{Fetch, HeaderPlace, Piece};
use crate::read::promote;
use crate::read::slot::{GetWants, Slot, SlotStep};
use crate::state::group_info;
use crate::state::session_io::{SessionIo, release_segment};

/// Attempts at an object whose read failed on the device.
const ATTEMPTS: u32 = 2;

/// A batch of gets.
pub(crate) struct GetBatch {
    slots: Vec<Slot>,
    headers: Vec<Header>,
    waiting: VecDeque<Fetch>,
    in_flight: FxHashMap<u64, InFlightRead>,
    /// Objects without an outcome.
    unsettled: usize,
    /// Staged objects without an outcome, by sub-batch.
    stage_unsettled: Vec<usize>,
    current_stage: usize,
    deadline: Mono,
    late: bool,
    at: Recency,
    /// A local miss is final: peers are not asked.
    local_only: bool,
}

impl GetBatch {
    /// Locate the objects, copy those in DRAM, and plan the reads of those on SSD.
    pub fn begin(io: &mut SessionIo, gets: Vec<Get>, at: Recency, deadline: Mono) -> GetBatch {
        let _span = tracing::debug_span!("get", objects = gets.len()).entered();
        Self::begin_slots(io, gets.into_iter().map(Slot::new).collect(), at, deadline)
    }

    /// The same batch, without requests to peers.
    pub fn local_only(self) -> GetBatch {
        GetBatch { local_only: true, ..self }
    }

    fn begin_slots(
        io: &mut SessionIo,
        mut slots: Vec<Slot>,
        at: Recency,
        deadline: Mono,
    ) -> GetBatch {
        let mut depths = PageDepths::default();
        slots.iter_mut().for_each(|slot| slot.depth_offset = depths.depth_of(&slot.get.key));
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
        };
        if let Err(error) = io.shared.check_open() {
            (0..unsettled).for_each(|i| batch.set_outcome(i, Err(error.clone())));
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
        let bytes = which.iter().map(|&i| self.slots[i].get.destination.len()).sum();
        let mut copier = Copier::new(StoreKind::of(bytes));
        for (slot, found) in located {
            match found {
                Located::Memory(entered, frame, member) => {
                    let verify = self.slots[slot].probe || sampler.next();
                    let outcome =
                        self.slots[slot].copy_out(shared, &entered, member, verify, &mut copier);
                    if *wants_meta {
                        self.slots[slot].meta =
                            Some(Box::new(group_info::object_meta(&entered, member)));
                    }
                    // The arena's bytes are damaged. The frame is dropped before another get finds
                    // it, in particular one that does not verify.
                    if outcome == Ok(GetOutcome::Miss(MissCause::Damaged)) {
                        shared.lock().drop_damaged(frame);
                    }
                    locate::leave_frame(shared, entered, frame);
                    self.set_outcome(slot, outcome);
                }
                Located::Ssd => from_ssd.push(slot),
                Located::Settled(outcome) => self.set_outcome(slot, outcome),
            }
        }
        self.plan(io, &from_ssd);
    }

    fn plan(&mut self, io: &SessionIo, which: &[usize]) {
        let Some(facts) = &io.facts else { return };
        let align = facts.memory_align.max(facts.offset_align);
        let budget = io.shared.config.staging_budget();
        let late = io.shared.reads.slow.may_outlast(self.deadline, io.shared.now());
        let stages = late || io.shared.reads.direct_suspended.load(Ordering::Relaxed);
        let mut targets = Vec::new();
        let mut staged = Vec::new();
        io.shared.ssd.headers.prefetch(which.iter().filter_map(|&i| self.slots[i].header_place()));
        for &i in which {
            let Some(mut target) = self.slots[i].target(i, align, facts.parts_max, stages) else {
                continue;
            };
            self.slots[i].direct = target.direct_parts.is_some();
            if target.direct_parts.is_none() {
                let stretch = target.chunks[0].clone();
                let cost = staging::cost(stretch.end - stretch.start);
                if cost > budget {
                    // Above the whole budget: streamed alone, in chunks.
                    target.chunks =
                        plan::split_chunks(stretch, io.shared.config.staging_chunk_bytes());
                }
                staged.push((targets.len(), cost));
            }
            self.slots[i].pieces_left = target.chunks.len();
            self.slots[i].cached_header = self.slots[i].find_cached_header(&io.shared);
            target.header_cached = self.slots[i].cached_header.is_some();
            targets.push(target);
        }
        self.assign_stages(&mut targets, &staged, budget);
        let (fetches, headers, header_of) =
            plan::plan(&targets, self.headers.len(), facts.parts_max);
        self.headers.extend(headers.into_iter().map(Header::new));
        for (target, number) in targets.iter().zip(header_of) {
            let (slot, header) = (&mut self.slots[target.slot], &mut self.headers[number]);
            header.users += 1;
            header.bytes =
                slot.cached_header.take().map(HeaderBytes::Cached).or(header.bytes.take());
            slot.header = Some(number);
        }
        self.waiting.extend(fetches);
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
        while let Some(fetch) = self.waiting.pop_front() {
            if self.is_obsolete(&fetch) {
                continue;
            }
            let direct = fetch.pieces.iter().any(Piece::is_direct);
            if direct && io.shared.reads.slow.may_outlast(self.deadline, io.shared.now()) {
                self.stage_instead(io, &fetch);
                continue;
            }
            let staged = fetch.pieces.iter().any(Piece::is_staged);
            if staged && (fetch.stage > self.current_stage || staging_full) {
                held_back.push_back(fetch);
                continue;
            }
            let slots = &mut self.slots;
            match fetch::submit(io, ticket, fetch, |slot| slots[slot].take_parts()) {
                Ok((token, flight)) => {
                    for piece in &flight.fetch.pieces {
                        if let Piece::Staged { slot, .. } = piece {
                            slots[*slot].submitted = true;
                        }
                    }
                    // Each read enters its segment by itself: before it completes, its objects may
                    // move to another candidate or get an outcome. At this point one of them is
                    // still in the segment.
                    if let Some(guards) = &io.shared.read_view.guards {
                        guards.enter_again(flight.fetch.segment);
                    }
                    self.in_flight.insert(token, flight);
                }
                Err((Blocked::Staging, fetch)) => {
                    staging_full = true;
                    held_back.push_back(fetch);
                }
                Err((Blocked::Scratch, fetch)) => held_back.push_back(fetch),
                Err((Blocked::Queue, fetch)) => {
                    held_back.push_back(fetch);
                    break;
                }
            }
        }
        held_back.append(&mut self.waiting);
        self.waiting = held_back;
    }

    /// Whether no object needs the fetch any more.
    fn is_obsolete(&self, fetch: &Fetch) -> bool {
        let wanted = |p: &Piece| match p {
            Piece::Header { header, .. } => self.headers[*header].users > 0,
            Piece::Direct { slot, round, .. } | Piece::Staged { slot, round, .. } => {
                let slot = &self.slots[*slot];
                slot.outcome.is_none() && slot.round == *round
            }
        };
        !fetch.pieces.iter().any(wanted)
    }

    /// Handle the completion of a read.
    pub fn completed(&mut self, io: &mut SessionIo, completion: Completion) {
        let Some(flight) = self.in_flight.remove(&completion.token) else { return };
        release_segment(&io.shared, flight.fetch.segment);
        io.shared.reads.slow.note(io.completed_at.since(flight.submitted_at), io.completed_at);
        if self.late {
            // After the deadline, only direct reads are still awaited.
            io.shared.reads.late.fetch_sub(1, Ordering::Relaxed);
        }
        let (pieces, result, fetch) = fetch::complete(&mut io.scratch, flight, completion);
        let mut touched: Vec<usize> = Vec::new();
        for piece in pieces {
            match piece {
                ReadPiece::Direct { slot, parts } => {
                    self.slots[slot].return_parts(parts);
                    touched.push(slot);
                }
                ReadPiece::Header { header, part } => {
                    match result.is_ok() && self.headers[header].users > 0 {
                        true => self.headers[header].bytes = Some(HeaderBytes::Read(part)),
                        false => io.scratch.give_back(part),
                    }
                }
                ReadPiece::Staged { slot, round, chunk, part } => {
                    // Chunks of an earlier attempt are not used. A chunk that completes after the
                    // outcome must not occupy staging memory until the batch ends.
                    if self.slots[slot].round != round || self.slots[slot].outcome.is_some() {
                        continue;
                    }
                    if result.is_ok() {
                        self.slots[slot].cold_mut().staged.push((chunk, part));
                    }
                    touched.push(slot);
                }
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for piece in &fetch.pieces {
            if let Piece::Header { header, .. } = piece {
                self.add_header_users(*header, &mut touched);
            }
        }
        if let Err(fault) = result {
            tracing::warn!(%fault, "ssd read failed");
            io.shared.lock().counters.read_errors += 1;
            self.retry(io, &touched);
            return;
        }
        // The device stays marked sick while late reads into callers' memory are in flight: the
        // next such read may be as late. Stored only on a change, because all sessions read the
        // flag.
        let sick = io.shared.reads.direct_suspended.load(Ordering::Relaxed);
        if sick && !self.late && io.shared.reads.late.load(Ordering::Relaxed) == 0 {
            io.shared.reads.direct_suspended.store(false, Ordering::Relaxed);
        }
        for piece in fetch.pieces {
            match piece {
                Piece::Direct { slot, .. } => self.slots[slot].pieces_left -= 1,
                Piece::Header { .. } | Piece::Staged { .. } => {}
            }
        }
        for slot in touched {
            if self.slots[slot].retry_pending {
                self.retry(io, &[slot]);
            } else {
                self.verify_slot(io, slot);
            }
        }
    }

    /// Add the objects that wait for this header and are not in `touched`. There are none, unless a
    /// part of the record was read separately from the header.
    fn add_header_users(&self, header: usize, touched: &mut Vec<usize>) {
        let needs = |i: &usize| self.slots[*i].header == Some(header);
        if touched.iter().filter(|i| needs(i)).count() < self.headers[header].users {
            touched.extend((0..self.slots.len()).filter(needs));
            touched.sort_unstable();
            touched.dedup();
        }
    }

    /// Retry every object of a failed read once, separately; then it is a miss.
    fn retry(&mut self, io: &mut SessionIo, touched: &[usize]) {
        for &slot in touched {
            if self.slots[slot].outcome.is_some() {
                continue;
            }
            if self.slots[slot].has_parts_in_read() || self.is_queued(slot) {
                // Another read has its memory, or will take it; the retry follows that read.
                self.slots[slot].retry_pending = true;
                continue;
            }
            self.slots[slot].retry_pending = false;
            self.slots[slot].attempts += 1;
            if self.slots[slot].attempts >= ATTEMPTS || self.late {
                let cause = if self.late { MissCause::Late } else { MissCause::Unreadable };
                self.settle(io, slot, Ok(GetOutcome::Miss(cause)));
            } else {
                self.leave_stage(slot);
                self.release_header(io, slot);
                self.slots[slot].reset_for_retry();
                self.plan(io, &[slot]);
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
        if self.slots[i].outcome.is_some() {
            return;
        }
        let Some(header) = self.slots[i].header else { return };
        let record = self.slots[i].keeps_in_arena() || promote::is_on(&io.shared);
        // A pass over all bytes of the object precedes the insertion into the header cache.
        self.headers[header].prepare_caching(&io.shared, self.slots[i].header_place());
        let step =
            self.slots[i].step(&self.headers[header], GetWants { meta: io.wants_meta, record });
        match step {
            SlotStep::Wait => {}
            SlotStep::LongerHeader(bytes) => {
                let HeaderPlace { segment, record } = self.headers[header].place;
                self.headers[header].bytes = None;
                let pieces = [Piece::Header { header, bytes }].into();
                let requested = self.waiting.iter().any(|f| f.pieces == pieces)
                    || self.in_flight.values().any(|f| f.fetch.pieces == pieces);
                if !requested {
                    self.waiting.push_front(Fetch {
                        segment,
                        offset: record,
                        bytes,
                        parts: 1,
                        pieces,
                        stage: 0,
                    });
                }
            }
            SlotStep::NextCandidate => {
                if self.is_queued(i) {
                    return;
                }
                self.leave_stage(i);
                self.release_header(io, i);
                locate::leave_segment(&io.shared, &mut self.slots[i]);
                self.slots[i].reset_for_retry();
                self.locate(io, &[i]);
            }
            SlotStep::Done(Ok(GetOutcome::Miss(MissCause::Damaged)))
                if self.headers[header].was_cached() =>
            {
                if !self.is_queued(i) {
                    self.reread_header(io, i);
                }
            }
            SlotStep::Done(outcome) => {
                if outcome.as_ref().is_ok_and(GetOutcome::is_hit) {
                    self.headers[header].cache(&io.shared);
                }
                self.settle(io, i, outcome);
            }
        }
    }

    /// The bytes do not match the cached header. Before the object counts as damaged, its whole
    /// record is read from the device.
    fn reread_header(&mut self, io: &mut SessionIo, i: usize) {
        if let Some(expected) = &self.slots[i].expected {
            io.shared.ssd.headers.remove(expected.identity, expected.offset);
        }
        self.leave_stage(i);
        self.release_header(io, i);
        self.slots[i].reset_for_retry();
        self.plan(io, &[i]);
    }

    fn release_header(&mut self, io: &mut SessionIo, i: usize) {
        if let Some(header) = self.slots[i].header.take().map(|h| &mut self.headers[h]) {
            header.users -= 1;
            if header.users == 0 {
                header.bytes.take().into_iter().for_each(|bytes| bytes.release(&mut io.scratch));
            }
        }
    }

    /// Set an object's outcome, once.
    fn set_outcome(&mut self, i: usize, outcome: Result<GetOutcome>) {
        let slot = &mut self.slots[i];
        if slot.outcome.is_none() {
            slot.outcome = Some(outcome);
            self.unsettled -= 1;
        }
    }

    fn settle(&mut self, io: &mut SessionIo, i: usize, outcome: Result<GetOutcome>) {
        self.leave_stage(i);
        let slot = &mut self.slots[i];
        slot.drop_staged();
        if let Ok(GetOutcome::Miss(cause @ (MissCause::Damaged | MissCause::Unreadable))) = &outcome
        {
            tracing::warn!(key = %slot.get.key, %cause, "ssd object is lost");
            let header = slot.header.and_then(|h| self.headers[h].bytes.as_ref());
            locate::drop_lost_record(
                &io.shared,
                slot,
                header.and_then(|bytes| bytes.record().ok()),
            );
        }
        locate::leave_segment(&io.shared, slot);
        self.set_outcome(i, outcome);
        self.release_header(io, i);
    }
}

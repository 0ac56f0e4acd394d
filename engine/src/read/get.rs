//! The read path of a batch.
//!
//! 1. [`GetBatch::begin`]: one pass over the index makes a plan per tier; what is found is held (frames and segments by those
//!    inside), so that nothing pulls the ground away.
//! 2. DRAM: copied out block by block, each block verified where it landed.
//! 3. SSD: the planned reads are submitted as the queue and the staging budget allow, sub-batch by
//!    sub-batch; headers are judged and every block is verified before the caller hears `Hit`.
//! 4. What fails is that object's outcome alone; its entry goes, so that the next `exists` says no.

mod finish;
#[cfg(test)]
mod flipped;
mod give_up;
mod header;
mod internal;
mod stages;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use pagelith_io::clock::Mono;
use pagelith_io::disk::Completion;
use pagelith_io::fused::{Copier, Stores};
use pagelith_layouts::staging;
use pagelith_tiers::policy::Recency;
use rustc_hash::FxHashMap;

pub(crate) use self::finish::Finished;
pub(crate) use self::header::{Header, HeaderBytes};
pub(crate) use self::internal::Probed;
use crate::api::error::Result;
use crate::api::outcome::{GetOutcome, MissCause, Proof, Ticket};
use crate::api::page_depth::PageSteps;
use crate::api::request::Get;
use crate::read::fetch;
use crate::read::fetch::{Flight, Held, Landed};
use crate::read::locate;
use crate::read::locate::Located;
use crate::read::plan;
use crate::read::plan::{Fetch, HeaderPlace, Piece};
use crate::read::promote;
use crate::read::slot::{Slot, Step, Wants};
use crate::store::session::{SessionIo, release_segment};

/// Tries of a read that the device failed.
const ATTEMPTS: u32 = 2;

/// A batch of gets.
pub(crate) struct GetBatch {
    slots: Vec<Slot>,
    headers: Vec<Header>,
    waiting: VecDeque<Fetch>,
    flights: FxHashMap<u64, Flight>,
    /// Objects without an outcome.
    open: usize,
    /// Staged objects of each sub-batch that are not done.
    stage_open: Vec<usize>,
    stage: usize,
    deadline: Mono,
    late: bool,
    at: Recency,
    /// What is not here is a miss, whatever peers have.
    own: bool,
}

impl GetBatch {
    /// Steps 1 and 2, and the plan of step 3.
    pub fn begin(io: &mut SessionIo, gets: Vec<Get>, at: Recency, deadline: Mono) -> GetBatch {
        let _span = tracing::debug_span!("get", objects = gets.len()).entered();
        Self::begin_slots(io, gets.into_iter().map(Slot::new).collect(), at, deadline)
    }

    /// The same, and peers are not asked.
    pub fn here_alone(self) -> GetBatch {
        GetBatch { own: true, ..self }
    }

    fn begin_slots(io: &mut SessionIo, mut slots: Vec<Slot>, at: Recency, deadline: Mono) -> GetBatch {
        let mut steps = PageSteps::default();
        slots.iter_mut().for_each(|slot| slot.step_back = steps.step(&slot.get.key));
        let open = slots.len();
        let mut batch = GetBatch {
            slots,
            headers: Vec::new(),
            waiting: VecDeque::new(),
            flights: FxHashMap::default(),
            open,
            stage_open: Vec::new(),
            stage: 1,
            deadline,
            late: false,
            at,
            own: false,
        };
        if let Err(error) = io.shared.check_open() {
            (0..open).for_each(|i| batch.end(i, Err(error.clone())));
            return batch;
        }
        let all: Vec<usize> = (0..batch.slots.len()).collect();
        batch.locate(io, &all);
        batch
    }

    /// Look these objects up and see to it that they are read.
    fn locate(&mut self, io: &mut SessionIo, which: &[usize]) {
        let SessionIo { shared, sampler, proofs, .. } = io;
        let located = locate::locate(shared, &mut self.slots, which, self.at);
        let mut from_ssd = Vec::new();
        // What it stores past the cache is waited for behind all of them, before anybody hears of one.
        let bytes = which.iter().map(|&i| self.slots[i].get.destination.len()).sum();
        let mut copier = Copier::new(Stores::of(bytes));
        for (slot, found) in located {
            match found {
                Located::Memory(entered, frame, member) => {
                    let verify = self.slots[slot].probe || sampler.next();
                    let outcome = self.slots[slot].copy_out(shared, &entered, member, verify, &mut copier);
                    if *proofs {
                        self.slots[slot].proof = Some(Box::new(Proof::of_frame(&entered, member)));
                    }
                    // What the arena holds is not what was put: the frame goes, with all that it says, before anybody else
                    // finds it, least of all who does not verify.
                    if outcome == Ok(GetOutcome::Miss(MissCause::Damaged)) {
                        shared.lock().drop_damaged(frame);
                    }
                    locate::leave(shared, entered, frame);
                    self.end(slot, outcome);
                }
                Located::Ssd => from_ssd.push(slot),
                Located::Settled(outcome) => self.end(slot, outcome),
            }
        }
        self.plan(io, &from_ssd);
    }

    fn plan(&mut self, io: &SessionIo, which: &[usize]) {
        let Some(facts) = &io.facts else { return };
        let align = facts.memory_align.max(facts.offset_align);
        let budget = io.shared.config.staging_budget();
        let late = io.shared.slow.may_outlast(self.deadline, io.shared.now());
        let stages = late || io.shared.sick.load(Ordering::Relaxed);
        let mut targets = Vec::new();
        let mut staged = Vec::new();
        io.shared.headers.prefetch(which.iter().filter_map(|&i| self.slots[i].header_place()));
        for &i in which {
            let Some(mut target) = self.slots[i].target(i, align, facts.parts_max, stages) else { continue };
            self.slots[i].direct = target.direct_parts.is_some();
            if target.direct_parts.is_none() {
                let stretch = target.chunks[0].clone();
                let cost = staging::cost(stretch.end - stretch.start);
                if cost > budget {
                    // Above the whole budget: it streams alone, in chunks.
                    target.chunks = plan::chunks(stretch, io.shared.config.staging_chunk_bytes());
                }
                staged.push((targets.len(), cost));
            }
            self.slots[i].pieces_left = target.chunks.len();
            self.slots[i].known = self.slots[i].known_header(&io.shared);
            target.known = self.slots[i].known.is_some();
            targets.push(target);
        }
        self.assign_stages(&mut targets, &staged, budget);
        let (fetches, headers, header_of) = plan::plan(&targets, self.headers.len(), facts.parts_max);
        self.headers.extend(headers.into_iter().map(Header::at));
        for (target, number) in targets.iter().zip(header_of) {
            let (slot, header) = (&mut self.slots[target.slot], &mut self.headers[number]);
            header.users += 1;
            header.bytes = slot.known.take().map(HeaderBytes::Known).or(header.bytes.take());
            slot.header = Some(number);
        }
        self.waiting.extend(fetches);
    }

    /// Go on as far as possible without waiting; true once every object has its outcome.
    pub fn advance(&mut self, io: &mut SessionIo, ticket: Ticket) -> bool {
        let now = io.shared.now();
        if now >= self.deadline {
            if !self.late {
                self.give_up(io);
            }
            self.settle_late(io);
        }
        self.submit(io, ticket);
        if !self.flights.is_empty() {
            io.shared.note_reads(now);
        }
        self.is_over()
    }

    /// Whether every object has its outcome, and no read of it is under way.
    pub fn is_over(&self) -> bool {
        self.open == 0 && self.flights.is_empty()
    }

    /// Whether reads of it wait for a place in the queue, or for memory, and are not late.
    pub fn has_waiting(&self, now: Mono) -> bool {
        !self.waiting.is_empty() && now < self.deadline
    }

    /// Submit what can be submitted now.
    pub fn submit(&mut self, io: &mut SessionIo, ticket: Ticket) {
        while self.stage_open.get(self.stage - 1) == Some(&0) {
            self.stage += 1;
        }
        let mut held_back = VecDeque::new();
        let mut staging_held = false;
        while let Some(fetch) = self.waiting.pop_front() {
            if self.is_moot(&fetch) {
                continue;
            }
            let direct = fetch.pieces.iter().any(Piece::is_direct);
            if direct && io.shared.slow.may_outlast(self.deadline, io.shared.now()) {
                self.stage_instead(io, &fetch);
                continue;
            }
            let staged = fetch.pieces.iter().any(Piece::is_staged);
            if staged && (fetch.stage > self.stage || staging_held) {
                held_back.push_back(fetch);
                continue;
            }
            let slots = &mut self.slots;
            match fetch::submit(io, ticket, fetch, |slot| slots[slot].take_parts()) {
                Ok((token, flight)) => {
                    for piece in &flight.fetch.pieces {
                        if let Piece::Staged { slot, .. } = piece {
                            slots[*slot].began = true;
                        }
                    }
                    // Each read holds its segment for itself: whoever it was for may have gone on to another candidate, or
                    // have an outcome, before it ends. Now one of them is inside still.
                    if let Some(guards) = &io.shared.read_view.guards {
                        guards.enter_again(flight.fetch.segment);
                    }
                    self.flights.insert(token, flight);
                }
                Err((Held::Staging, fetch)) => {
                    staging_held = true;
                    held_back.push_back(fetch);
                }
                Err((Held::Scratch, fetch)) => held_back.push_back(fetch),
                Err((Held::Queue, fetch)) => {
                    held_back.push_back(fetch);
                    break;
                }
            }
        }
        held_back.append(&mut self.waiting);
        self.waiting = held_back;
    }

    /// Whether nobody needs a fetch any more.
    fn is_moot(&self, fetch: &Fetch) -> bool {
        let wanted = |p: &Piece| match p {
            Piece::Header { header, .. } => self.headers[*header].users > 0,
            Piece::Direct { slot, round, .. } | Piece::Staged { slot, round, .. } => {
                let slot = &self.slots[*slot];
                slot.outcome.is_none() && slot.round == *round
            }
        };
        !fetch.pieces.iter().any(wanted)
    }

    /// A read came back.
    pub fn completed(&mut self, io: &mut SessionIo, completion: Completion) {
        let Some(flight) = self.flights.remove(&completion.token) else { return };
        release_segment(&io.shared, flight.fetch.segment);
        io.shared.slow.note(io.came.since(flight.began), io.came);
        if self.late {
            // All that is still waited for after the deadline is direct.
            io.shared.late_reads.fetch_sub(1, Ordering::Relaxed);
        }
        let (landed, result, fetch) = fetch::land(&mut io.scratch, flight, completion);
        let mut touched: Vec<usize> = Vec::new();
        for piece in landed {
            match piece {
                Landed::Direct { slot, parts } => {
                    self.slots[slot].give_parts(parts);
                    touched.push(slot);
                }
                Landed::Header { header, part } => match result.is_ok() && self.headers[header].users > 0 {
                    true => self.headers[header].bytes = Some(HeaderBytes::Read(part)),
                    false => io.scratch.give_back(part),
                },
                Landed::Staged { slot, round, chunk, part } => {
                    // What an earlier try asked for is of no use to this one; and what comes after the outcome
                    // must not hold staging memory until the batch is over.
                    if self.slots[slot].round != round || self.slots[slot].outcome.is_some() {
                        continue;
                    }
                    if result.is_ok() {
                        self.slots[slot].rare_mut().staged.push((chunk, part));
                    }
                    touched.push(slot);
                }
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for piece in &fetch.pieces {
            if let Piece::Header { header, .. } = piece {
                self.touch_users(*header, &mut touched);
            }
        }
        if let Err(fault) = result {
            tracing::warn!(%fault, "read failed");
            io.shared.lock().counters.read_errors += 1;
            self.retry(io, &touched);
            return;
        }
        // As long as the kernel has reads of callers who wait for their memory, another may be as late.
        // Written when there is something to write: all sessions look here.
        let sick = io.shared.sick.load(Ordering::Relaxed);
        if sick && !self.late && io.shared.late_reads.load(Ordering::Relaxed) == 0 {
            io.shared.sick.store(false, Ordering::Relaxed);
        }
        for piece in fetch.pieces {
            match piece {
                Piece::Direct { slot, .. } => self.slots[slot].pieces_left -= 1,
                Piece::Header { .. } | Piece::Staged { .. } => {}
            }
        }
        for slot in touched {
            if self.slots[slot].again {
                self.retry(io, &[slot]);
            } else {
                self.look(io, slot);
            }
        }
    }

    /// Add those that wait for this header and are not among the `touched`: nobody, unless some of its record was read
    /// apart from it.
    fn touch_users(&self, header: usize, touched: &mut Vec<usize>) {
        let needs = |i: &usize| self.slots[*i].header == Some(header);
        if touched.iter().filter(|i| needs(i)).count() < self.headers[header].users {
            touched.extend((0..self.slots.len()).filter(needs));
            touched.sort_unstable();
            touched.dedup();
        }
    }

    /// Everything in a failed read is read once more by itself, then it is a miss.
    fn retry(&mut self, io: &mut SessionIo, touched: &[usize]) {
        for &slot in touched {
            if self.slots[slot].outcome.is_some() {
                continue;
            }
            if self.slots[slot].is_away() || self.is_queued(slot) {
                // Its memory is in another read still, or will be; it is tried again once that is back.
                self.slots[slot].again = true;
                continue;
            }
            self.slots[slot].again = false;
            self.slots[slot].attempts += 1;
            if self.slots[slot].attempts >= ATTEMPTS || self.late {
                let cause = if self.late { MissCause::Late } else { MissCause::Unreadable };
                self.settle(io, slot, Ok(GetOutcome::Miss(cause)));
            } else {
                self.leave_stage(slot);
                self.leave_header(io, slot);
                self.slots[slot].begin_again();
                self.plan(io, &[slot]);
            }
        }
    }

    /// Whether a read that is yet to be submitted will take the object's memory: together with objects that
    /// want it, so that it cannot be dropped.
    fn is_queued(&self, i: usize) -> bool {
        let takes = |p: &Piece| match p {
            Piece::Direct { slot, .. } => *slot == i,
            Piece::Header { .. } | Piece::Staged { .. } => false,
        };
        self.waiting.iter().any(|f| f.pieces.iter().any(takes) && !self.is_moot(f))
    }

    /// Judge what is there of an object.
    fn look(&mut self, io: &mut SessionIo, i: usize) {
        if self.slots[i].outcome.is_some() {
            return;
        }
        let Some(header) = self.slots[i].header else { return };
        let record = self.slots[i].is_arriving() || promote::is_on(&io.shared);
        // What comes of it is kept behind a pass over all of its bytes.
        self.headers[header].expect(&io.shared, self.slots[i].header_place());
        let step = self.slots[i].step(&self.headers[header], Wants { proof: io.proofs, record });
        match step {
            Step::Wait => {}
            Step::LongerHeader(bytes) => {
                let HeaderPlace { segment, record } = self.headers[header].place;
                self.headers[header].bytes = None;
                let pieces = [Piece::Header { header, bytes }].into();
                let asked = self.waiting.iter().any(|f| f.pieces == pieces)
                    || self.flights.values().any(|f| f.fetch.pieces == pieces);
                if !asked {
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
            Step::NextCandidate => {
                if self.is_queued(i) {
                    return;
                }
                self.leave_stage(i);
                self.leave_header(io, i);
                locate::release(&io.shared, &mut self.slots[i]);
                self.slots[i].begin_again();
                self.locate(io, &[i]);
            }
            Step::Done(Ok(GetOutcome::Miss(MissCause::Damaged))) if self.headers[header].is_known() => {
                if !self.is_queued(i) {
                    self.read_header(io, i);
                }
            }
            Step::Done(outcome) => {
                if outcome.as_ref().is_ok_and(GetOutcome::is_hit) {
                    self.headers[header].note(&io.shared);
                }
                self.settle(io, i, outcome);
            }
        }
    }

    /// What came does not fit the header that was known: before the object counts as damaged, all of its record is read from
    /// the device.
    fn read_header(&mut self, io: &mut SessionIo, i: usize) {
        if let Some(expected) = &self.slots[i].expected {
            io.shared.headers.remove(expected.identity, expected.offset);
        }
        self.leave_stage(i);
        self.leave_header(io, i);
        self.slots[i].begin_again();
        self.plan(io, &[i]);
    }

    fn leave_header(&mut self, io: &mut SessionIo, i: usize) {
        if let Some(header) = self.slots[i].header.take().map(|h| &mut self.headers[h]) {
            header.users -= 1;
            if header.users == 0 {
                header.bytes.take().into_iter().for_each(|bytes| bytes.give_back(&mut io.scratch));
            }
        }
    }

    /// Set an object's outcome, once.
    fn end(&mut self, i: usize, outcome: Result<GetOutcome>) {
        let slot = &mut self.slots[i];
        if slot.outcome.is_none() {
            slot.outcome = Some(outcome);
            self.open -= 1;
        }
    }

    fn settle(&mut self, io: &mut SessionIo, i: usize, outcome: Result<GetOutcome>) {
        self.leave_stage(i);
        let slot = &mut self.slots[i];
        slot.drop_staged();
        if let Ok(GetOutcome::Miss(cause @ (MissCause::Damaged | MissCause::Unreadable))) = &outcome {
            tracing::warn!(key = %slot.get.key, %cause, "object on ssd is lost");
            let header = slot.header.and_then(|h| self.headers[h].bytes.as_ref());
            locate::forget(&io.shared, slot, header.and_then(|bytes| bytes.record().ok()));
        }
        locate::release(&io.shared, slot);
        self.end(i, outcome);
        self.leave_header(io, i);
    }
}

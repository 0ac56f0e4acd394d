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
use crate::read::item::{BatchItem, GetWants, ItemOutcome, NextStep, ReadClaims, SsdObject};
use crate::read::locate;
use crate::read::locate::{Located, LocatedMember};
use crate::read::page_depth::PageDepths;
use crate::read::plan::{HeaderLocation, Piece, PlannedRead};
use crate::read::promote;
use crate::read::recompute::Recompute;
use crate::state::group_info;
use crate::state::reserve::ArenaReservation;
use crate::state::session_io::{SessionIo, release_segment};

/// Failed reads of an object after which it is a miss.
const FAILED_READS_MAX: u32 = 2;

/// A batch of gets.
pub(crate) struct GetBatch {
    items: Vec<BatchItem>,
    headers: Vec<Header>,
    waiting: VecDeque<PlannedRead>,
    in_flight: FxHashMap<u64, InFlightRead>,
    /// Objects without an outcome.
    without_outcome: usize,
    /// Staged objects without an outcome, by sub-batch.
    sub_batch_left: Vec<usize>,
    current_sub_batch: usize,
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
        let items = gets.into_iter().map(BatchItem::new).collect();
        Self::begin_items(io, items, at, deadline, recompute)
    }

    /// Read these objects into arena memory that is reserved for them, and keep them there.
    pub fn prefetch(
        io: &mut SessionIo,
        objects: Vec<(ObjectKey, (ArenaReservation, Part))>,
        at: Recency,
        deadline: Mono,
    ) -> GetBatch {
        let item = |(key, (reservation, part))| BatchItem::prefetch(key, reservation, part);
        let items = objects.into_iter().map(item).collect();
        Self::begin_items(io, items, at, deadline, Recompute::Never)
    }

    fn begin_items(
        io: &mut SessionIo,
        mut items: Vec<BatchItem>,
        at: Recency,
        deadline: Mono,
        recompute: Recompute,
    ) -> GetBatch {
        let mut depths = PageDepths::default();
        items.iter_mut().for_each(|item| item.depth_offset = depths.depth_of(&item.key));
        let without_outcome = items.len();
        let mut batch = GetBatch {
            items,
            headers: Vec::new(),
            waiting: VecDeque::new(),
            in_flight: FxHashMap::default(),
            without_outcome,
            sub_batch_left: Vec::new(),
            current_sub_batch: 1,
            deadline,
            late: false,
            at,
            local_only: false,
            recompute,
        };
        if let Err(error) = io.shared.check_open() {
            (0..without_outcome)
                .for_each(|i| batch.set_outcome(io, i, ItemOutcome::Failed(error.clone())));
            return batch;
        }
        let all: Vec<usize> = (0..batch.items.len()).collect();
        batch.locate(io, &all);
        batch
    }

    /// Locate these objects; copy those in DRAM, and plan the reads of those on SSD.
    fn locate(&mut self, io: &mut SessionIo, which: &[usize]) {
        let SessionIo { shared, sampler, wants_meta, .. } = io;
        let located = locate::locate(shared, &mut self.items, which, self.at);
        let mut from_ssd = Vec::new();
        // Non-temporal stores are fenced once, after all copies and before any outcome is returned.
        let bytes = which.iter().map(|&i| self.items[i].destination_bytes()).sum();
        let mut copier = Copier::new(CopyMode::of(bytes));
        for (i, found) in located {
            let outcome = match found {
                Located::Ssd => {
                    from_ssd.push(i);
                    continue;
                }
                Located::Absent => ItemOutcome::Miss(MissCause::Absent),
                Located::InvalidRange(error) => ItemOutcome::Failed(error),
                Located::Memory(LocatedMember { entered, frame, member, want }) => {
                    let item = &mut self.items[i];
                    let verify = item.is_probe() || sampler.next();
                    let mut outcome =
                        item.copy_out(shared, &entered, member, &want, verify, &mut copier);
                    match &mut outcome {
                        ItemOutcome::Hit(hit) if *wants_meta => {
                            hit.meta = Some(Box::new(group_info::object_meta(&entered, member)));
                        }
                        ItemOutcome::Hit(_) | ItemOutcome::Failed(_) => {}
                        // The arena's bytes are damaged. The frame is dropped before another get
                        // finds it, in particular one that does not verify.
                        ItemOutcome::Miss(_) => shared.lock().drop_damaged(frame),
                    }
                    locate::leave_frame(shared, entered, frame);
                    outcome
                }
            };
            // An object that is looked up has nothing to release.
            self.without_outcome -= 1;
            self.items[i].set_outcome(outcome);
        }
        if !self.miss_if_slow(io, &from_ssd) {
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
            self.end_late(io);
        }
        match self.late {
            false => self.submit(io, ticket),
            // A header that was read may show that a longer one is needed.
            true => self.waiting.clear(),
        }
        if !self.in_flight.is_empty() {
            io.shared.reads.note(now);
        }
        self.is_over()
    }

    /// Whether every object has its outcome and no read of the batch is in flight.
    pub fn is_over(&self) -> bool {
        self.without_outcome == 0 && self.in_flight.is_empty()
    }

    /// Whether reads wait for room in the queue or for memory, and the deadline has not passed.
    pub fn has_waiting(&self, now: Mono) -> bool {
        !self.waiting.is_empty() && now < self.deadline
    }

    /// Submit the reads that can be submitted now.
    pub fn submit(&mut self, io: &mut SessionIo, ticket: Ticket) {
        while self.sub_batch_left.get(self.current_sub_batch - 1) == Some(&0) {
            self.current_sub_batch += 1;
        }
        let mut held_back = VecDeque::new();
        let mut staging_full = false;
        while let Some(read) = self.waiting.pop_front() {
            if self.is_obsolete(&read) {
                continue;
            }
            let direct = read.pieces.iter().any(Piece::is_direct);
            if direct && io.shared.reads.latency.may_outlast(self.deadline, io.shared.now()) {
                self.replan_through_staging(io, &read);
                continue;
            }
            let staged = read.pieces.iter().any(Piece::is_staged);
            if staged && (read.sub_batch > self.current_sub_batch || staging_full) {
                held_back.push_back(read);
                continue;
            }
            let items = &mut self.items;
            match disk_read::submit(io, ticket, read, |item| items[item].take_parts()) {
                Ok((token, flight)) => {
                    for piece in &flight.read.pieces {
                        if let Piece::Staged { item, .. } = piece {
                            items[*item].attempts.submitted = true;
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
            Piece::Direct { item, plan_number, .. } | Piece::Staged { item, plan_number, .. } => {
                self.items[*item].needs_plan(*plan_number)
            }
        };
        !read.pieces.iter().any(wanted)
    }

    /// Handle the completion of a read.
    pub fn completed(&mut self, io: &mut SessionIo, completion: Completion) {
        let Some(flight) = self.in_flight.remove(&completion.token) else { return };
        release_segment(&io.shared, flight.read.segment);
        self.recompute.read_ended(io.completed_at);
        io.shared.reads.latency.note(io.completed_at.since(flight.submitted_at), io.completed_at);
        if self.late {
            // After the deadline, only direct reads are still awaited, and none is submitted.
            io.shared.reads.late.fetch_sub(1, Ordering::Relaxed);
        }
        let (pieces, result, read) = disk_read::complete(&mut io.scratch, flight, completion);
        let mut advanced: Vec<usize> = Vec::new();
        for piece in pieces {
            match piece {
                CompletedPiece::Direct { item, plan_number, parts } => {
                    self.items[item].return_parts(plan_number, parts, result.is_ok());
                    advanced.push(item);
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
                CompletedPiece::Staged { item, plan_number, chunk, part } => {
                    // Chunks of an earlier plan are not used. A chunk that completes after the
                    // outcome must not occupy staging memory until the batch ends.
                    if !self.items[item].needs_plan(plan_number) {
                        continue;
                    }
                    if result.is_ok() {
                        self.items[item].add_staged(chunk, part);
                    }
                    advanced.push(item);
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
            let key = advanced.first().map(|item| self.items[*item].key);
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
        for item in advanced {
            match self.items[item].reading() {
                Some(read) if read.retry_pending => self.retry(io, &[item]),
                Some(_) => self.verify_item(io, item),
                None => {}
            }
        }
    }

    /// Add the objects that wait for this header and are not in `advanced`. There are none, unless
    /// a part of the record was read separately from the header.
    fn add_header_users(&self, header: usize, advanced: &mut Vec<usize>) {
        let needs = |i: &usize| self.items[*i].reading().is_some_and(|read| read.header == header);
        if advanced.iter().filter(|i| needs(i)).count() < self.headers[header].users {
            advanced.extend((0..self.items.len()).filter(needs));
            advanced.sort_unstable();
            advanced.dedup();
        }
    }

    /// Retry every object of a failed read once, separately; then it is a miss.
    fn retry(&mut self, io: &mut SessionIo, advanced: &[usize]) {
        for &i in advanced {
            if self.items[i].is_done() {
                continue;
            }
            if self.items[i].destination.is_none() || self.is_queued(i) {
                // Another read has its memory, or will take it; the retry follows that read.
                if let Some(read) = self.items[i].reading_mut() {
                    read.retry_pending = true;
                }
                continue;
            }
            self.items[i].attempts.failed += 1;
            if self.items[i].attempts.failed >= FAILED_READS_MAX || self.late {
                let cause = if self.late { MissCause::Late } else { MissCause::Unreadable };
                self.set_outcome(io, i, ItemOutcome::Miss(cause));
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
            Piece::Direct { item, .. } => *item == i,
            Piece::Header { .. } | Piece::Staged { .. } => false,
        };
        self.waiting.iter().any(|f| f.pieces.iter().any(takes) && !self.is_obsolete(f))
    }

    /// Verify the pieces of an object that were read, and take the next step.
    fn verify_item(&mut self, io: &mut SessionIo, i: usize) {
        let Some(header) = self.items[i].reading().map(|read| read.header) else { return };
        let record_contents = self.items[i].keeps_in_arena() || promote::is_on(&io.shared);
        // A pass over all bytes of the object precedes the insertion into the header cache.
        self.headers[header].prepare_caching(&io.shared, self.items[i].header_location());
        let wants = GetWants { meta: io.wants_meta, record_contents };
        match self.items[i].verify(&self.headers[header], wants) {
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
                        sub_batch: 0,
                    });
                }
            }
            NextStep::TryNextLocation => {
                if !self.is_queued(i) {
                    self.try_next_location(io, i);
                }
            }
            NextStep::Outcome(ItemOutcome::Miss(MissCause::Damaged))
                if self.headers[header].was_cached() =>
            {
                if !self.is_queued(i) {
                    self.reread_header(io, i);
                }
            }
            NextStep::Outcome(outcome) => {
                if let ItemOutcome::Hit(_) = &outcome {
                    self.headers[header].insert_into_cache(&io.shared);
                }
                self.set_outcome(io, i, outcome);
            }
        }
    }

    /// The object's record belongs to another key: look for another location.
    fn try_next_location(&mut self, io: &mut SessionIo, i: usize) {
        self.discard_read(io, i);
        let item = &mut self.items[i];
        if let Some(object) = item.take_off_ssd() {
            item.attempts.tried.push(object.ssd_location());
            release_segment(&io.shared, object.segment());
        }
        self.locate(io, &[i]);
    }

    /// The bytes do not match the cached header. Before the object counts as damaged, its whole
    /// record is read from the device.
    fn reread_header(&mut self, io: &mut SessionIo, i: usize) {
        if let Some(SsdObject { expected, .. }) = self.items[i].on_ssd() {
            io.shared.ssd.headers.remove(expected.identity, expected.offset);
        }
        self.discard_read(io, i);
        self.plan(io, &[i]);
    }

    /// Discard an object's read plan, so that it can be planned anew.
    fn discard_read(&mut self, io: &mut SessionIo, i: usize) {
        if let Some(claims) = self.items[i].discard_read() {
            self.release_claims(io, &claims);
        }
    }

    fn release_claims(&mut self, io: &mut SessionIo, claims: &ReadClaims) {
        if let Some(sub_batch) = claims.sub_batch {
            self.sub_batch_left[sub_batch - 1] -= 1;
        }
        let header = &mut self.headers[claims.header];
        header.users -= 1;
        if header.users == 0 {
            header.bytes.take().into_iter().for_each(|bytes| bytes.release(&mut io.scratch));
        }
    }

    /// Set the outcome of an object, once, and release the resources of its earlier state.
    fn set_outcome(&mut self, io: &mut SessionIo, i: usize, outcome: ItemOutcome) {
        let item = &self.items[i];
        if item.is_done() {
            debug_assert!(false, "an object has one outcome");
            return;
        }
        if let ItemOutcome::Miss(cause @ (MissCause::Damaged | MissCause::Unreadable)) = &outcome
            && let Some(read) = item.reading()
        {
            let (segment, offset) = (read.object.segment().0, read.object.expected.offset);
            tracing::warn!(
                key = %item.key,
                %cause,
                segment,
                offset,
                "ssd object is lost; check the drive"
            );
            let bytes = self.headers[read.header].bytes.as_ref();
            let record = bytes.and_then(|bytes| bytes.record().ok());
            locate::drop_lost_record(&io.shared, item, &read.object, record);
        }
        self.without_outcome -= 1;
        let (segment, claims) = self.items[i].set_outcome(outcome);
        segment.into_iter().for_each(|segment| release_segment(&io.shared, segment));
        claims.into_iter().for_each(|claims| self.release_claims(io, &claims));
    }
}

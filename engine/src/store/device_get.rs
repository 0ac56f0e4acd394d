//! Gets into memory of a device.
//!
//! 1. Objects in DRAM are copied out of the arena. A frame is held until the device is done.
//! 2. The others are got into staging memory as any get, verified, and copied from there. The
//!    copies of one half of the staging memory run while the other half is read.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use pagelith_io::buffer::Part;
use pagelith_io::device::{CallerStream, Copies, DeviceHandle, DeviceRange};
use pagelith_io::sync::Arc;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use crate::api::error::{Error, Result};
use crate::api::outcome::{CompletedBatch, CompletedGet, GetOutcome, MissCause, Tier};
use crate::api::request::{Destination, Get, Options, RequestEpoch};
use crate::memory::namespaces::NamespaceCounts;
use crate::read::view::{self, View};
use crate::state::session_io;
use crate::state::shared::Shared;
use crate::state::stats::Counters;
use crate::store::devices::{DeviceCall, StagedBytes, device_error, split, total};
use crate::store::session_pool::SessionPool;

/// Share of the arena that copies of one call may hold at a time.
const ARENA_SHARE: u64 = 8;

/// An object to be got into memory of a device.
#[derive(Clone, Debug)]
pub struct DeviceGet<'a> {
    /// Its key.
    pub key: ObjectKey,
    /// The byte range; `None` for all.
    pub range: Option<Range<u64>>,
    /// The destination, in pieces; their sum is the length of the object, or of the range. Nothing
    /// else uses it until the device is done.
    pub pieces: &'a [DeviceRange],
}

/// See [`crate::Store::get_to_device`].
pub(crate) fn get(
    pool: &SessionPool,
    device: &DeviceHandle,
    after: Option<&CallerStream>,
    gets: &[DeviceGet<'_>],
    options: Options,
) -> Vec<Result<GetOutcome>> {
    let shared = &pool.shared;
    if let Err(error) = shared.check_open() {
        return vec![Err(error); gets.len()];
    }
    let at = session_io::recency(shared, &options);
    let options = options.request(RequestEpoch(at.epoch));
    let deadline = shared.deadline(options.timeout);
    let call = DeviceCall { shared, device, after, deadline };
    let outcomes = gets.iter().map(|get| call.check(get.pieces).err().map(Err)).collect();
    let mut batch =
        DeviceBatch { pool, call, gets, options, at, outcomes, flights: VecDeque::new() };
    let mut next = 0;
    while next < gets.len() {
        next = batch.advance(next);
    }
    while batch.settle_oldest() {}
    let outcomes = batch.outcomes.into_iter();
    outcomes.map(|outcome| outcome.unwrap_or(Ok(GetOutcome::Miss(MissCause::Late)))).collect()
}

struct DeviceBatch<'a> {
    pool: &'a SessionPool,
    call: DeviceCall<'a>,
    gets: &'a [DeviceGet<'a>],
    options: Options,
    at: Recency,
    outcomes: Vec<Option<Result<GetOutcome>>>,
    /// Copies in flight, the oldest first.
    flights: VecDeque<Flight>,
}

/// Copies in flight, and the outcomes of their gets once the device is done.
struct Flight {
    copies: Copies,
    hits: Vec<(usize, GetOutcome)>,
    /// Bytes of held frames of the arena; 0 for copies out of staging memory.
    held: u64,
}

/// A get whose bytes are read into staging memory.
struct StagedGet {
    at: usize,
    get: Get,
    counted: Option<StagedBytes>,
}

impl DeviceBatch<'_> {
    /// Begin gets from index `from` on, as many as memory allows. Returns the index of the first
    /// that was not begun.
    fn advance(&mut self, from: usize) -> usize {
        // Copies that are late keep their memory, so no others follow them.
        if self.call.is_late() {
            return self.gets.len();
        }
        let held_max = self.call.shared.config.arena_bytes() / ARENA_SHARE;
        let mut held: u64 = self.flights.iter().map(|flight| flight.held).sum();
        let (mut views, mut reads) = (Vec::new(), Vec::new());
        let (mut view_bytes, mut read_bytes) = (0, 0);
        let mut next = from;
        while let Some(get) = self.gets.get(next) {
            if self.outcomes[next].is_some() {
                next += 1;
                continue;
            }
            if held >= held_max || read_bytes >= self.call.staging_max() / 2 {
                break;
            }
            match self.view(next) {
                Ok(Some(view)) => {
                    held += view.pinned_bytes();
                    view_bytes += view.pinned_bytes();
                    views.push((next, view));
                }
                Ok(None) => match self.stage(next, get) {
                    Ok(Some(read)) => {
                        read_bytes += total(get.pieces);
                        reads.push(read);
                    }
                    Ok(None) => break,
                    Err(error) => self.outcomes[next] = Some(Err(error)),
                },
                Err(error) => self.outcomes[next] = Some(Err(error)),
            }
            next += 1;
        }
        let is_stuck = next == from;
        if !views.is_empty() {
            self.copy_views(views, view_bytes);
        }
        if !reads.is_empty() {
            self.copy_reads(reads);
        }
        // Copies of other calls may have the memory.
        if is_stuck && !self.settle_oldest() && !self.call.wait_for_staging() {
            return self.gets.len();
        }
        next
    }

    /// The object's bytes in the arena, if it is there with the right length.
    fn view(&self, at: usize) -> Result<Option<View>> {
        let get = &self.gets[at];
        let wanted = total(get.pieces);
        let fits = |length: u64| match &get.range {
            None => length == wanted,
            Some(range) => {
                range.start < range.end && range.end <= length && range.end - range.start == wanted
            }
        };
        view::of_hit(self.call.shared, &get.key, self.recency(at), fits)
    }

    fn recency(&self, at: usize) -> Recency {
        Recency { depth: self.at.depth.saturating_add(at as u32), ..self.at }
    }

    /// A get into staging memory; `None` if all of it is in use.
    fn stage(&self, at: usize, get: &DeviceGet<'_>) -> Result<Option<StagedGet>> {
        let bytes = total(get.pieces);
        self.call.check_staging(bytes)?;
        // Without a destination the get reports what is wrong.
        let (parts, counted) = match bytes {
            0 => (Vec::new(), None),
            bytes => match self.call.stage(bytes as usize) {
                Some((part, counted)) => (vec![part], Some(counted)),
                None => return Ok(None),
            },
        };
        let destination = Destination(parts);
        let get = Get { key: get.key, range: get.range.clone(), destination };
        Ok(Some(StagedGet { at, get, counted }))
    }

    fn copy_views(&mut self, mut views: Vec<(usize, View)>, held: u64) {
        let all: Vec<usize> = views.iter().map(|(at, _)| *at).collect();
        let mut hits = Vec::with_capacity(views.len());
        let queued = self.call.begin().and_then(|mut copies| {
            for (at, view) in views.drain(..) {
                let get = &self.gets[at];
                let start = get.range.as_ref().map_or(0, |range| range.start as usize);
                let part = view.part().split(start).1;
                let bytes = total(get.pieces);
                hits.push((at, GetOutcome::Hit { tier: Tier::Memory, bytes }));
                // Parts are dropped before what is held.
                copies.hold(Box::new(view));
                queue(&mut copies, part, get.pieces)?;
            }
            Ok(copies)
        });
        self.launch(queued, &all, hits, held);
    }

    /// Read and verify, then queue the copies.
    fn copy_reads(&mut self, reads: Vec<StagedGet>) {
        let (mut slots, mut gets) = (Vec::new(), Vec::new());
        for StagedGet { at, get, counted } in reads {
            slots.push((at, counted));
            gets.push(get);
        }
        let all: Vec<usize> = slots.iter().map(|(at, _)| *at).collect();
        let done = match self.read(gets, all[0]) {
            Ok(done) => done,
            Err(error) => return self.fail(&all, &error),
        };
        let mut hits = Vec::new();
        let queued = self.call.begin().and_then(|mut copies| {
            for ((at, counted), done) in slots.into_iter().zip(done) {
                let CompletedGet { outcome, destination, .. } = done;
                match outcome {
                    Ok(hit @ GetOutcome::Hit { .. }) => {
                        hits.push((at, hit));
                        counted.into_iter().for_each(|counted| copies.hold(Box::new(counted)));
                        for part in destination.0 {
                            queue(&mut copies, part, self.gets[at].pieces)?;
                        }
                    }
                    other => self.outcomes[at] = Some(other),
                }
            }
            Ok(copies)
        });
        self.launch(queued, &all, hits, 0);
    }

    fn read(&self, gets: Vec<Get>, first: usize) -> Result<Vec<CompletedGet>> {
        let depth = self.recency(first).depth;
        let left = self.call.deadline.since(self.call.shared.now());
        let options = self.options.depth(depth).timeout(left);
        let done = self.pool.with_session(options.timeout, |session| {
            let ticket = session.begin_get(gets, options);
            loop {
                if let Some(done) = session.wait(ticket, Duration::from_secs(1)) {
                    break done;
                }
            }
        })?;
        match done {
            CompletedBatch::Get(done) => Ok(done),
            _ => Ok(Vec::new()),
        }
    }

    /// The copies of the gets `all` are queued, or one failed: then none of them is a hit.
    fn launch(
        &mut self,
        queued: Result<Copies>,
        all: &[usize],
        hits: Vec<(usize, GetOutcome)>,
        held: u64,
    ) {
        let submitted = queued.and_then(|mut copies| {
            copies.submit().map_err(|why| device_error(&why)).map(|()| copies)
        });
        match submitted {
            Ok(copies) => self.flights.push_back(Flight { copies, hits, held }),
            Err(error) => self.fail(all, &error),
        }
    }

    /// Gets without an outcome have this error.
    fn fail(&mut self, gets: &[usize], error: &Error) {
        for at in gets {
            self.outcomes[*at].get_or_insert_with(|| Err(error.clone()));
        }
    }

    /// Wait for the oldest copies in flight. False without any.
    fn settle_oldest(&mut self) -> bool {
        let Some(Flight { mut copies, hits, held }) = self.flights.pop_front() else {
            return false;
        };
        match self.call.wait(&mut copies) {
            Ok(()) => {
                if held > 0 {
                    count_arena_hits(self.call.shared, self.gets, &hits);
                }
                hits.into_iter().for_each(|(at, hit)| self.outcomes[at] = Some(Ok(hit)));
            }
            Err(error) => {
                let all: Vec<usize> = hits.iter().map(|(at, _)| *at).collect();
                self.fail(&all, &error);
            }
        }
        true
    }
}

/// Queue copies of a part to all pieces of a get.
fn queue(copies: &mut Copies, part: Part, pieces: &[DeviceRange]) -> Result<()> {
    for (piece, to) in split(part, pieces) {
        copies.to_device(piece, to).map_err(|why| device_error(&why))?;
    }
    Ok(())
}

/// Count hits that were copied out of the arena; a read into staging memory counts its own.
fn count_arena_hits(shared: &Arc<Shared>, gets: &[DeviceGet<'_>], hits: &[(usize, GetOutcome)]) {
    let mut counters = Counters::default();
    for (at, hit) in hits {
        let GetOutcome::Hit { bytes, .. } = hit else { continue };
        counters.hits_memory += 1;
        counters.bytes_memory += bytes;
        let counts = shared.read_view.namespaces.counts(gets[*at].key.namespace());
        counts.into_iter().for_each(|counts: &NamespaceCounts| counts.count_hit(*bytes));
    }
    shared.reads.counters.add(0, &counters);
}

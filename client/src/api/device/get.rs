//! Gets into memory of a device.
//!
//! 1. Objects in memory of this process are copied out of it, and held until the device is done.
//! 2. The others are got into staging memory as any get, verified, and copied from there. The
//!    copies of one half of the staging memory run while the other half is read.

use std::collections::VecDeque;

use pagelith_io::buffer::Part;
use pagelith_io::device::{CallerStream, Copies, DeviceHandle, DeviceRange};
use pagelith_layouts::key::ObjectKey;

use super::bound::{CountedBytes, device_error};
use super::call::DeviceCall;
use super::pieces::{DeviceGet, split, total};
use super::store::{DeviceStore, InPlace};
use crate::api::error::{Error, Result};
use crate::api::outcome::{CompletedGet, GetOutcome, MissCause, Tier};
use crate::api::request::{Destination, Get, Options};

/// Share of the arena that copies of one call may hold at a time.
const CALL_SHARE: u64 = 8;
/// Share that copies of all calls may hold, also those that are late.
const ALL_SHARE: u64 = 4;

/// Get objects into memory of a device.
pub fn get(
    store: &dyn DeviceStore,
    device: &DeviceHandle,
    after: Option<&CallerStream>,
    gets: &[DeviceGet<'_>],
    options: Options,
) -> Vec<Result<GetOutcome>> {
    let deadline = store.deadline(&options);
    let begun = store.begin(options).and_then(|options| {
        store.devices().check(device)?;
        store.staging().map(|staging| (options, staging.capacity() as u64 / 4))
    });
    let (options, round_bytes) = match begun {
        Ok(begun) => begun,
        Err(error) => return vec![Err(error); gets.len()],
    };
    store.devices().release_late();
    let call = DeviceCall { store, device, after, deadline };
    let outcomes = gets.iter().map(|get| call.check(get.pieces).err().map(Err)).collect();
    let flights = VecDeque::new();
    let mut batch = DeviceBatch { call, gets, options, round_bytes, outcomes, flights };
    let mut next = 0;
    while next < gets.len() {
        next = batch.advance(next);
    }
    while batch.settle_oldest() {}
    let outcomes = batch.outcomes.into_iter();
    outcomes.map(|outcome| outcome.unwrap_or(Ok(GetOutcome::Miss(MissCause::Late)))).collect()
}

struct DeviceBatch<'a> {
    call: DeviceCall<'a>,
    gets: &'a [DeviceGet<'a>],
    options: Options,
    /// Bytes that are staged together, unless one get has more.
    round_bytes: u64,
    outcomes: Vec<Option<Result<GetOutcome>>>,
    /// Copies in flight, the oldest first.
    flights: VecDeque<Flight>,
}

/// Copies in flight, and the outcomes of their gets once the device is done.
struct Flight {
    copies: Copies,
    hits: Vec<(usize, GetOutcome)>,
    /// Bytes that are held in place; 0 for copies out of staging memory.
    held: u64,
}

/// A get that is copied from where the store has its bytes.
struct HeldGet {
    at: usize,
    found: InPlace,
    counted: CountedBytes,
}

/// A get whose bytes are read into staging memory.
struct StagedGet {
    at: usize,
    get: Get,
    counted: Option<CountedBytes>,
}

/// The gets of one round.
#[derive(Default)]
struct Round {
    held: Vec<HeldGet>,
    held_bytes: u64,
    staged: Vec<StagedGet>,
    staged_bytes: u64,
}

impl DeviceBatch<'_> {
    /// Begin gets from index `from` on, as many as memory allows. Returns the index of the first
    /// that was not begun.
    fn advance(&mut self, from: usize) -> usize {
        // Copies that are late keep their memory, so no others follow them.
        if self.call.is_late() {
            return self.gets.len();
        }
        let mut round = Round::default();
        let mut next = from;
        while next < self.gets.len() {
            if self.outcomes[next].is_none() {
                match self.add(&mut round, next) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => self.outcomes[next] = Some(Err(error)),
                }
            }
            next += 1;
        }
        let Round { held, held_bytes, staged, .. } = round;
        if !held.is_empty() {
            self.copy_held(held, held_bytes);
        }
        if !staged.is_empty() {
            self.copy_staged(staged);
        }
        // Copies of other calls may have the memory.
        if next == from && !self.settle_oldest() && !self.call.wait_for_memory() {
            return self.gets.len();
        }
        next
    }

    /// Add a get to the round; false if it has no room now.
    fn add(&self, round: &mut Round, at: usize) -> Result<bool> {
        let get = &self.gets[at];
        let (wanted, arena) = (total(get.pieces), self.call.store.arena_bytes());
        let in_flight: u64 = self.flights.iter().map(|flight| flight.held).sum();
        let held = round.held_bytes + in_flight;
        if round.staged_bytes >= self.round_bytes || (held > 0 && held >= arena / CALL_SHARE) {
            return Ok(false);
        }
        let found = self.call.store.in_place(get, wanted, &self.options_at(at))?;
        if let Some(found) = found {
            let counts = &self.call.store.devices().held;
            if let Some(counted) = counts.count(found.bytes, arena / ALL_SHARE) {
                round.held_bytes += found.bytes;
                round.held.push(HeldGet { at, found, counted });
                return Ok(true);
            }
            // Other calls hold as much as they may: this hit is copied through staging memory, or
            // waits if that never has room for it.
            if held > 0 || self.check_staging(get, wanted).is_err() {
                return Ok(false);
            }
        }
        let Some(staged) = self.stage(at, wanted)? else { return Ok(false) };
        round.staged_bytes += wanted;
        round.staged.push(staged);
        Ok(true)
    }

    /// The options of the batch for its get `at` and those after it.
    fn options_at(&self, at: usize) -> Options {
        let depth = self.options.depth.saturating_add(at as u32);
        Options { depth, timeout: Some(self.call.left()), ..self.options }
    }

    /// An error if the bytes of a get never fit into staging memory.
    fn check_staging(&self, get: &DeviceGet<'_>, bytes: u64) -> Result<()> {
        let margin = get.range.as_ref().map_or(0, |_| self.call.store.range_margin());
        self.call.check_staging(bytes, margin)
    }

    /// A get into staging memory; `None` if all of it is in use.
    fn stage(&self, at: usize, bytes: u64) -> Result<Option<StagedGet>> {
        let get = &self.gets[at];
        self.check_staging(get, bytes)?;
        // An object without bytes or an invalid range: the get finds the error.
        let (parts, counted) = match bytes {
            0 => (Vec::new(), None),
            bytes => match self.call.stage(bytes as usize)? {
                Some((part, counted)) => (vec![part], Some(counted)),
                None => return Ok(None),
            },
        };
        let destination = Destination(parts);
        let get = Get { key: get.key, range: get.range.clone(), destination };
        Ok(Some(StagedGet { at, get, counted }))
    }

    fn copy_held(&mut self, round: Vec<HeldGet>, held: u64) {
        let all: Vec<usize> = round.iter().map(|held| held.at).collect();
        let mut hits = Vec::with_capacity(round.len());
        let queued = self.call.begin().and_then(|mut copies| {
            for HeldGet { at, found, counted } in round {
                let InPlace { part, owner, .. } = found;
                let bytes = part.len() as u64;
                hits.push((at, GetOutcome::Hit { tier: Tier::Memory, bytes }));
                // The copies drop their parts before these owners.
                copies.hold(Box::new((owner, counted)));
                queue(&mut copies, part, self.gets[at].pieces)?;
            }
            Ok(copies)
        });
        self.launch(queued, &all, hits, held);
    }

    /// Read and verify, then queue the copies.
    fn copy_staged(&mut self, round: Vec<StagedGet>) {
        let (mut slots, mut gets) = (Vec::new(), Vec::new());
        for StagedGet { at, get, counted } in round {
            slots.push((at, counted));
            gets.push(get);
        }
        let all: Vec<usize> = slots.iter().map(|(at, _)| *at).collect();
        let done = match self.call.store.get_owned(gets, self.options_at(all[0])) {
            Ok(done) => done,
            Err(error) => return self.fail(&all, &error),
        };
        let (mut hits, mut sources) = (Vec::new(), Vec::new());
        for ((at, counted), done) in slots.into_iter().zip(done) {
            let CompletedGet { outcome, destination, .. } = done;
            match outcome {
                Ok(hit @ GetOutcome::Hit { .. }) => {
                    hits.push((at, hit));
                    sources.push((at, counted, destination.0));
                }
                other => self.outcomes[at] = Some(other),
            }
        }
        if hits.is_empty() {
            return; // Misses need not wait for the caller's stream.
        }
        let queued = self.call.begin().and_then(|mut copies| {
            for (at, counted, parts) in sources {
                counted.into_iter().for_each(|counted| copies.hold(Box::new(counted)));
                for part in parts {
                    queue(&mut copies, part, self.gets[at].pieces)?;
                }
            }
            Ok(copies)
        });
        self.launch(queued, &all, hits, 0);
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
                    self.call.store.count_in_place(&self.counted(&hits));
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

    /// Key and bytes of each hit.
    fn counted(&self, hits: &[(usize, GetOutcome)]) -> Vec<(ObjectKey, u64)> {
        let bytes = |hit: &GetOutcome| match hit {
            GetOutcome::Hit { bytes, .. } => *bytes,
            GetOutcome::Miss(_) => 0,
        };
        hits.iter().map(|(at, hit)| (self.gets[*at].key, bytes(hit))).collect()
    }
}

/// Queue copies of a part to all pieces of a get.
fn queue(copies: &mut Copies, part: Part, pieces: &[DeviceRange]) -> Result<()> {
    for (piece, to) in split(part, pieces) {
        copies.to_device(piece, to).map_err(|why| device_error(&why))?;
    }
    Ok(())
}

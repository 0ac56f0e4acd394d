//! Memory that a client passes to a batch, and the checks of the batch's outcomes.

use std::ops::Range;

use std::sync::atomic::Ordering::Relaxed;

use pagelith::{CompletedGet, CompletedPut, ErrorKind, Get, GetOutcome, Put, PutGroup};

use super::client::SimClient;
use super::object_keys::{base, key};
use super::oracle::{content, length};
use super::store_handle::StoreHandle;
use crate::explore::memory::{MemoryShape, Target};

/// Objects being put, with version and memory.
pub struct PendingPut {
    objects: Vec<(usize, usize, Target)>,
    /// Number of links before the put.
    links: u64,
}

/// Ranges of objects being read, their memory, and the moment at which the get began.
pub struct PendingGet {
    wanted: Vec<(usize, Range<usize>, Target)>,
    since: u64,
}

impl SimClient {
    /// New versions of the objects of `groups`, to be put.
    pub(super) fn prepare_put(&mut self, groups: &[Vec<usize>]) -> (Vec<PutGroup>, PendingPut) {
        let (mut puts, mut lent) = (Vec::new(), Vec::new());
        for group in groups {
            let mut objects = Vec::new();
            for &object in group {
                let version = self.shared.oracle().put(self.handle.store(), object);
                let mut target = self.memory.target(
                    length(object),
                    MemoryShape::draw(&mut self.rng),
                    &mut self.rng,
                );
                target.fill(&content(object, version, 0..length(object)));
                objects.push(Put { key: key(object), source: target.source() });
                lent.push((object, version, target));
            }
            puts.push(PutGroup { objects, base: base(group[0]).map(key) });
        }
        (puts, PendingPut { objects: lent, links: self.handle.links() })
    }

    /// The put ended or was given up.
    pub(super) fn put_completed(&mut self, lent: PendingPut, done: Option<Vec<CompletedPut>>) {
        let outcomes: Vec<bool> = done.iter().flatten().map(|done| done.outcome.is_ok()).collect();
        let alone = |done: &CompletedPut| matches!(&done.outcome, Err(e) if e.kind == ErrorKind::Unavailable);
        self.store_unavailable = done.iter().flatten().any(alone);
        drop(done);
        // A put that was sent twice may still be in progress on the first link. A put by the store
        // itself ends with its outcome: the store notifies its peers of a removal after everything
        // that it offered them before.
        let (once, own) =
            (self.handle.links() == lent.links, matches!(self.handle, StoreHandle::Front(..)));
        let outcomes = outcomes.into_iter().chain(std::iter::repeat(false));
        for ((object, version, target), stored) in lent.objects.into_iter().zip(outcomes) {
            self.shared.oracle().put_ended(object, version, own || stored && once);
            let mut tally = self.shared.tally();
            tally.puts += 1;
            tally.stored += u64::from(stored);
            drop(tally);
            self.retire(target);
        }
    }

    /// Gets of some objects, or of ranges of them.
    pub(super) fn prepare_get(&mut self, some: Vec<usize>) -> (Vec<Get>, PendingGet) {
        let (mut gets, mut lent) = (Vec::new(), Vec::new());
        for object in some {
            let len = length(object);
            let range = self.rng.one_in(4).then(|| {
                let from = self.rng.below(len as u64 - 1);
                from..from + 1 + self.rng.below(len as u64 - from)
            });
            let range = range.map(|range| range.start..range.end.min(len as u64));
            let wanted: Range<usize> =
                range.clone().map_or(0..len, |r| r.start as usize..r.end as usize);
            let target =
                self.memory.target(wanted.len(), MemoryShape::draw(&mut self.rng), &mut self.rng);
            gets.push(Get { key: key(object), range, destination: target.destination() });
            lent.push((object, wanted, target));
        }
        let since = self.shared.oracle().moment();
        if let Some((object, ..)) = lent.last() {
            self.shared.asked_last.store(*object, Relaxed);
        }
        (gets, PendingGet { wanted: lent, since })
    }

    /// The get ended or was given up.
    pub(super) fn get_completed(&mut self, lent: PendingGet, done: Option<Vec<CompletedGet>>) {
        let outcomes =
            done.map(|done| done.into_iter().map(|done| done.outcome).collect::<Vec<_>>());
        let alone = |outcome: &pagelith::Result<GetOutcome>| matches!(outcome, Err(e) if e.kind == ErrorKind::Unavailable);
        self.store_unavailable = outcomes.iter().flatten().any(alone);
        let outcomes =
            outcomes.into_iter().flatten().map(Some).chain(std::iter::repeat_with(|| None));
        for ((object, wanted, target), outcome) in lent.wanted.into_iter().zip(outcomes) {
            let mut tally = self.shared.tally();
            tally.gets += 1;
            if let Some(Ok(GetOutcome::Hit { bytes, .. })) = outcome {
                tally.hits += 1;
                tally.bytes += bytes;
                let got: Vec<u8> =
                    target.pieces().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
                if let Some(wrong) = self.shared.oracle().read(
                    self.handle.store(),
                    object,
                    &wanted,
                    &got,
                    lent.since,
                ) {
                    tally.wrong += 1;
                    tally.add_finding(wrong);
                }
            }
            if !target.guards_hold() {
                tally.wrong += 1;
                tally.add_finding(format!("bytes outside destination changed object={object}"));
            }
            drop(tally);
            self.retire(target);
        }
    }
}

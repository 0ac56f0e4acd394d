//! Hits from SSD that a client reads itself, out of the files that were handed over to it: it is told where they lie.
//!
//! Invariant: a segment is not used for anything else from when a client is told of it until the client says that it has read, its
//! operation's time is up, or its link is gone. A client that reads later than that finds out by its checksums.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use pagelith_layouts::ids::OpId;
use pagelith_transport::link::Link;
use pagelith_transport::shown::FilePlace;
use rustc_hash::FxHashMap;

use super::{BLOCK, GetOp, Verdict, World};
use crate::config::Promote;
use crate::get::LiesOnSsd;
use crate::outcome::{Done, GetDone, GetOutcome, Proof, Ticket};
use crate::shared::Shared;

/// Objects of a get that are, or will be, left to the client.
#[derive(Default)]
pub(super) struct Placing {
    /// Whose places are asked for: by batch of the session, objects.
    pub asked: FxHashMap<Ticket, Vec<usize>>,
    /// Of which the client was not told yet, for want of room on the link.
    untold: VecDeque<(usize, LiesOnSsd)>,
}

impl Placing {
    /// Whether nothing is under way.
    pub fn is_over(&self) -> bool {
        self.asked.is_empty() && self.untold.is_empty()
    }

    /// The time is up: the client is told nothing more.
    pub fn give_up(&mut self) {
        self.untold.clear();
    }
}

/// Whether hits from SSD are left to the client now: where it was handed files, and nothing read from there is to be kept in DRAM. While
/// the device is late all are read into staging, which alone can be left to a late read.
pub(super) fn lends(shared: &Shared, link: &dyn Link) -> bool {
    let keeps = shared.config.promote() != Promote::Never && shared.config.dram_bytes() > 0;
    link.lends() && !keeps && !shared.sick.load(Relaxed)
}

impl GetOp {
    /// Ask where these lie, and tell the client of those of which that is known at once.
    pub(super) fn place(&mut self, world: &mut World, link: &mut dyn Link, id: OpId, places: Vec<usize>) {
        let Some(first) = places.first() else { return };
        let options = self.options(world, *first);
        let wanted = places.iter().map(|at| &self.wanted[*at]);
        let wanted = wanted.map(|w| (w.key, (!w.whole).then(|| w.stretch.clone())));
        let ticket = world.session.submit_places(wanted, options);
        match world.session.wait(ticket, Duration::ZERO) {
            Some(Done::Get(done)) => self.placed(places, done),
            _ => {
                self.placing.asked.insert(ticket, places);
                world.batches.insert(ticket, id);
            }
        }
        self.lend(world, link, id);
    }

    /// It is known where these lie, or that they are not on SSD.
    pub(super) fn placed(&mut self, places: Vec<usize>, done: Vec<GetDone>) {
        for (at, done) in places.into_iter().zip(done) {
            let wanted = &mut self.wanted[at];
            let Proof { checksums, with, lies } = done.proof.map(|proof| *proof).unwrap_or_default();
            let verdict = match (done.outcome, lies) {
                (Ok(GetOutcome::Hit { .. }), _) if wanted.whole && done.length != wanted.stretch.end => {
                    Some(Verdict::Failed(wanted.other_length(done.length)))
                }
                (Ok(GetOutcome::Hit { tier, .. }), Some(lies)) => {
                    let blocks = wanted.stretch.start / BLOCK..wanted.stretch.end.div_ceil(BLOCK);
                    let sums = checksums.get(blocks.start as usize..blocks.end as usize);
                    wanted.sums = sums.unwrap_or_default().into();
                    (wanted.tier, wanted.with) = (tier, with);
                    self.placing.untold.push_back((at, lies));
                    continue;
                }
                // Found in DRAM, or wanted in part of a block: the store reads it.
                (Ok(GetOutcome::Hit { .. }), _) => None,
                (Ok(GetOutcome::Miss(_)), _) if self.has_peers => None,
                (Ok(GetOutcome::Miss(cause)), _) => Some(Verdict::Miss(cause)),
                (Err(error), _) => Some(Verdict::Failed(error)),
            };
            match verdict {
                Some(verdict) => wanted.verdict = Some(verdict),
                None => {
                    wanted.reads = false;
                    self.next.push_back(at);
                    if self.next.len() == 1 {
                        self.begin_next();
                    }
                }
            }
        }
    }

    /// Tell the client where objects lie.
    pub(super) fn lend(&mut self, world: &mut World, link: &mut dyn Link, id: OpId) {
        while let Some((at, lies)) = self.placing.untold.pop_front() {
            let wanted = &mut self.wanted[at];
            let length = wanted.stretch.end - wanted.stretch.start;
            let place = FilePlace { file: lies.file, at: lies.at, length };
            let token = world.lent.token();
            if !link.lend(id, at as u32, token, place) {
                self.placing.untold.push_front((at, lies));
                return;
            }
            wanted.left = 0;
            world.pushed.sent(id);
            world.lent.lend(token, lies);
            let shared = world.shared();
            shared.note_reads(shared.now());
        }
    }
}

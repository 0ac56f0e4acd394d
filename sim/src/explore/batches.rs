//! Batches in flight, and their sessions.

use std::time::Duration;

use pagelith::Ticket;
use pagelith_io::clock::{Clock, Mono};

use super::batch::{Batch, BatchWork};
use super::objects::{ObjectId, page_of};
use super::report::FindingKind;
use super::run::Run;

/// Most batches in flight on a session.
const FLIGHTS_MAX: usize = 3;
/// Simulated time after which a batch counts as hanging, in addition to its deadline and to the
/// time that a stuck device operation takes.
const HANG_AFTER: Duration = Duration::from_secs(60);

impl Run<'_> {
    /// A session with room for another batch.
    pub(super) fn some_session(&mut self) -> Option<usize> {
        let count = self.sessions.len() as u64;
        if count == 0 {
            return None;
        }
        let session = self.rng.below(count) as usize;
        let of = |f: &Batch| f.session == session;
        while self.flights.iter().filter(|f| of(f)).count() >= FLIGHTS_MAX {
            let oldest = self.flights.iter().position(of)?;
            self.wait_for(oldest);
        }
        Some(session)
    }

    /// The operation reads these objects, or may.
    pub(super) fn note_pages(&mut self, oids: impl IntoIterator<Item = ObjectId>) {
        if let Some(pages) = &mut self.noted_pages {
            pages.extend(oids.into_iter().map(page_of));
        }
    }

    pub(super) fn track_batch(
        &mut self,
        session: usize,
        ticket: Ticket,
        start: u32,
        begun: Mono,
        work: BatchWork,
    ) {
        match &work {
            BatchWork::Get { gets, .. } => {
                self.note_pages(gets.iter().map(|g| g.oid).collect::<Vec<_>>())
            }
            BatchWork::Put(puts) => {
                self.note_pages(puts.iter().flat_map(|p| p.members.clone()).collect::<Vec<_>>())
            }
        }
        let may_be_late = !self.flights.is_empty();
        self.flights.iter_mut().for_each(|f| f.may_be_late = true);
        self.flights.push(Batch { session, ticket, start, begun, may_be_late, work });
        if self.rng.one_in(2) {
            let last = self.flights.len() - 1;
            self.wait_for(last);
        }
    }

    /// Waits for a batch in flight.
    pub(super) fn wait_for(&mut self, at: usize) {
        self.mark_unpolled_batches();
        let flight = self.flights.remove(at);
        let begun = self.world.clock.now();
        let limit = self.plan.setup.deadline() + self.plan.faults.stuck_for() + HANG_AFTER;
        let mut done = None;
        while let Some(session) = self.sessions.get_mut(flight.session) {
            done = session.wait(flight.ticket, Duration::from_secs(1));
            if done.is_some() || self.world.clock.now().since(begun) > limit {
                break;
            }
        }
        self.take_strikes();
        match done {
            Some(done) => self.complete_batch(flight, done),
            None => self.report(
                FindingKind::Hang,
                format!("batch does not complete ticket={:?}", flight.ticket),
            ),
        }
    }

    /// A batch that was not polled for half of its time, because other calls used it, may be late.
    fn mark_unpolled_batches(&mut self) {
        let (now, half) = (self.world.clock.now(), self.plan.setup.deadline() / 2);
        self.flights.iter_mut().for_each(|f| f.may_be_late |= now.since(f.begun) > half);
    }

    pub(super) fn poll(&mut self) {
        let count = self.sessions.len() as u64;
        if count == 0 {
            return;
        }
        self.mark_unpolled_batches();
        let at = self.rng.below(count) as usize;
        while let Some((ticket, done)) = self.sessions[at].poll() {
            self.take_strikes();
            let flight = self.flights.iter().position(|f| f.session == at && f.ticket == ticket);
            match flight {
                Some(flight) => {
                    let flight = self.flights.remove(flight);
                    self.complete_batch(flight, done);
                }
                None => {
                    return self.report(
                        FindingKind::Error,
                        format!("completion of unknown batch ticket={ticket:?}"),
                    );
                }
            }
        }
    }

    pub(super) fn drain(&mut self) {
        while !self.flights.is_empty() {
            self.wait_for(0);
        }
    }

    pub(super) fn new_session(&mut self) {
        if self.sessions.is_empty() {
            return;
        }
        let at = self.rng.below(self.sessions.len() as u64) as usize;
        // Its batches in flight end without an outcome: their puts may have happened.
        let (own, others) =
            std::mem::take(&mut self.flights).into_iter().partition(|f| f.session == at);
        self.flights = others;
        drop(self.sessions.swap_remove(at));
        let moved = self.sessions.len();
        self.flights.iter_mut().filter(|f| f.session == moved).for_each(|f| f.session = at);
        self.drop_outcomes(own);
        self.take_strikes();
        self.add_session();
    }

    pub(super) fn drop_outcomes(&mut self, flights: Vec<Batch>) {
        for flight in flights {
            if let BatchWork::Put(puts) = flight.work {
                for put in puts {
                    put.members.iter().for_each(|oid| self.oracle.put_unknown(*oid, put.no));
                }
            }
        }
    }

    pub(super) fn add_session(&mut self) {
        let Some(store) = self.store.clone() else { return };
        match store.session() {
            Ok(session) => self.sessions.push(session),
            Err(error) => self.check_error("session", &error),
        }
    }
}

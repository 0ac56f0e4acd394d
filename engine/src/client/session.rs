//! One thread's batches: several are in flight, so that the store works at the next while this side copies, and
//! checksums the next while the store does.

use std::collections::VecDeque;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_mutants::{self as mutant, Mutant};

use super::batch::{Puts, begin_get};
use super::{Attached, STEP, STORE};
use crate::api::outcome::{Done, Ticket};
use crate::api::request::{Get, Options, PutGroup};
use crate::rpc::connections::Desk;
use crate::rpc::remote_get::{Heard, RemoteGet};

/// One thread's way to the store of an [`Attached`], as [`crate::Session`] is to a store of this process: it submits batches,
/// several at a time, and collects them as they are done, in any order. It has a link to itself until it is dropped. What is on its way
/// goes on while one of its methods runs, and not in between. Not shared between threads: make one a thread.
///
/// A batch is what a call of [`Attached::get`] or [`Attached::put`] is: as long in all as its [`Options`] say, asked once more if the link
/// ended under it, and told `Busy` at once where a put finds no room. The store takes up what it is asked in any order: who gets what it
/// puts waits for the put.
///
/// What is to be [shared](Attached::share) is shared before this is made: a link has what there was when it was made.
///
/// Dropping it gives up what is under way, as what has no time left: the store is told, and the drop returns when neither the link nor a read of
/// the kernel's has any of the callers' memory. Memory lent by [`crate::Destination::borrowed`] or [`crate::Source::borrowed`] is the
/// caller's again then, guard or not. A store that is shown what is put may look at it a moment longer, through its own mapping, and
/// stores of that only what has the checksums that were sent. Of a put that was given up some may have been stored.
pub struct Session<'a> {
    attached: &'a Attached,
    desk: Desk,
    /// How often memory had been shared when the desk was taken.
    shares: u64,
    batches: Vec<UnderWay>,
    finished: VecDeque<(Ticket, Done)>,
    last_ticket: u64,
}

struct UnderWay {
    ticket: Ticket,
    batch: Batch,
}

enum Batch {
    Get(Box<RemoteGet>),
    Put(Box<Puts>),
}

impl Attached {
    /// A thread's way to keep several batches in flight. Its link is one that a call before it made, or is made when the first
    /// batch is submitted.
    pub fn session(&self) -> Session<'_> {
        let (mut desk, shares) = self.desk();
        // What nobody waited for.
        desk.take_all();
        Session {
            attached: self,
            desk,
            shares,
            batches: Vec::new(),
            finished: VecDeque::new(),
            last_ticket: 0,
        }
    }
}

impl Session<'_> {
    /// Submit objects to be got, as [`Attached::get`]. Asks, and never waits: what comes is copied while [`Session::poll`] or a wait runs.
    pub fn submit_get(&mut self, gets: Vec<Get>, options: Options) -> Ticket {
        let manner = self.attached.manner(&options);
        let get = begin_get(&mut self.desk, gets, manner);
        self.submit(Batch::Get(Box::new(get)))
    }

    /// Submit groups to be put, as [`Attached::put`]. Their bytes are checksummed now, in this thread, and go to the store from then on.
    pub fn submit_put(&mut self, groups: Vec<PutGroup>, options: Options) -> Ticket {
        let manner = self.attached.manner(&options);
        let puts = Puts::begin(&mut self.desk, groups, &[], manner);
        self.submit(Batch::Put(Box::new(puts)))
    }

    /// The store is asked before anything that came is looked at: it begins meanwhile.
    fn submit(&mut self, batch: Batch) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.batches.push(UnderWay { ticket, batch });
        self.advance(self.batches.len() - 1, self.attached.clock.now());
        self.desk.send_on();
        ticket
    }

    /// Do what can be done without waiting; a finished batch, if there is one.
    pub fn poll(&mut self) -> Option<(Ticket, Done)> {
        self.drive();
        self.finished.pop_front()
    }

    /// Wait for a batch, at most `timeout`. `None` if it is not done by then (it goes on, ask again), or if
    /// it was handed out already.
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Option<Done> {
        self.wait_for(Some(ticket), timeout).map(|(_, done)| done)
    }

    /// Wait for whichever batch is done first, at most `timeout`. `None` if none is by then, or none is under way.
    pub fn wait_any(&mut self, timeout: Duration) -> Option<(Ticket, Done)> {
        self.wait_for(None, timeout)
    }

    fn wait_for(&mut self, wanted: Option<Ticket>, timeout: Duration) -> Option<(Ticket, Done)> {
        let is_it = |ticket: Ticket| wanted.is_none_or(|wanted| wanted == ticket);
        let deadline = self.attached.clock.now().after(timeout);
        loop {
            if let Some(at) = self.finished.iter().position(|(ticket, _)| is_it(*ticket)) {
                return self.finished.remove(at);
            }
            if !self.batches.iter().any(|one| is_it(one.ticket)) {
                return None;
            }
            self.drive();
            if self.finished.iter().any(|(ticket, _)| is_it(*ticket)) {
                continue;
            }
            let now = self.attached.clock.now();
            let left = deadline.since(now);
            if left.is_zero() {
                return None;
            }
            self.attached.look();
            self.desk.wait(now, left.min(STEP));
        }
    }

    /// Let every batch go on as far as it goes now. What has been answered is handed on before more is taken in.
    fn drive(&mut self) {
        let now = self.attached.clock.now();
        if !self.desk.has_replies() {
            self.desk.poll(now);
        }
        self.advance(0, now);
    }

    /// Let batches from the one at `at` on go on, and collect those that are done.
    fn advance(&mut self, mut at: usize, now: Mono) {
        // All that the link took with it when it ended is one failure, of however many batches.
        let mut heard = Heard::default();
        while let Some(UnderWay { batch, .. }) = self.batches.get_mut(at) {
            let desk = &mut self.desk;
            let over = match batch {
                Batch::Get(get) => get.advance_heard(desk, now, &mut heard),
                Batch::Put(puts) => {
                    let over = puts.advance(desk, now, &mut heard);
                    self.attached.acked().note(puts.acked());
                    over
                }
            };
            if !over {
                at += 1;
                continue;
            }
            let UnderWay { ticket, batch } = self.batches.remove(at);
            let done = match batch {
                Batch::Get(get) => Done::Get(get.finish()),
                Batch::Put(puts) => Done::Put(puts.finish()),
            };
            self.finished.push_back((ticket, done));
        }
        heard.tell(&self.desk, now);
    }
}

impl Drop for Session<'_> {
    /// Waits for the memory that the link has, however long it takes.
    fn drop(&mut self) {
        let none = Desk::patient(self.attached.remote.clone());
        let mut desk = std::mem::replace(&mut self.desk, none);
        let clock = &*self.attached.clock;
        desk.give_up(STORE, clock.now());
        while desk.is_asked(STORE) && !mutant::on(Mutant::SessionGoesAtOnce) {
            desk.wait(clock.now(), STEP);
        }
        desk.take_all();
        self.attached.give_back(desk, self.shares);
    }
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("batches", &self.batches.len()).finish_non_exhaustive()
    }
}

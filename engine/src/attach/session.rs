//! One thread's batches: several are in flight, so that the store works at the next while this side copies, and
//! checksums the next while the store does. Puts that the store copies by itself go over two links by turns: it copies two at once.

use std::collections::VecDeque;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::mutant::{self, Mutant};

use super::batch::{Gets, Puts};
use super::{Attached, STEP, STORE};
use crate::batch::{Get, Options, PutGroup};
use crate::outcome::{Done, Ticket};
use crate::remote::batch::Heard;
use crate::remote::desk::Desk;

/// How long to wait for one link while something is on its way over the other.
const TURN: Duration = Duration::from_millis(1);

/// One thread's way to the store of an [`Attached`], as [`crate::Session`] is to a store of this process: it submits batches,
/// several at a time, and collects them as they are done, in any order. It has a link to itself until it is dropped, a second one once it has several puts
/// in flight out of memory that the store is shown, and what is on its way goes on while one of its methods runs, and not in between. Not shared between
/// threads: make one a thread.
///
/// A batch is what a call of [`Attached::get`] or [`Attached::put`] is: as long in all as its [`Options`] say, asked once more if the link
/// ended under it, and told `Busy` at once where a put finds no room. The store takes up what it is asked in any order: who gets what it
/// puts waits for the put.
///
/// What is to be [shared](Attached::share) is shared before this is made: a link has what there was when it was made.
///
/// Dropping it gives up what is under way, as what has no time left: the store is told, and the drop returns when no link and no read of
/// the kernel's has any of the callers' memory. Memory lent by [`crate::Destination::borrowed`] or [`crate::Source::borrowed`] is the
/// caller's again then, guard or not. A store that is shown what is put may look at it a moment longer, through its own mapping, and
/// stores of that only what it copied before the drop, or what has the checksums that were sent. Of a put that was given up some may have been stored.
pub struct Session<'a> {
    attached: &'a Attached,
    first: Way,
    second: Second,
    batches: Vec<UnderWay>,
    finished: VecDeque<(Ticket, Done)>,
    last_ticket: u64,
}

/// A link.
struct Way {
    desk: Desk,
    /// How often memory had been shared when it was taken.
    shares: u64,
}

/// The other link.
enum Second {
    /// Nobody wanted it yet.
    Unwanted,
    /// Batches go by it from when it has stood on, and make it again if it ended.
    Wanted { way: Way, has_stood: bool },
    /// It could not be made, and is not tried again.
    Refused,
}

struct UnderWay {
    ticket: Ticket,
    /// It goes by the second link.
    second: bool,
    batch: Batch,
}

enum Batch {
    Get(Box<Gets>),
    Put(Box<Puts>),
}

impl Attached {
    /// A thread's way to keep several batches in flight. Its link is one that a call before it made, or is made when the first
    /// batch is submitted.
    pub fn session(&self) -> Session<'_> {
        Session {
            attached: self,
            first: self.way(),
            second: Second::Unwanted,
            batches: Vec::new(),
            finished: VecDeque::new(),
            last_ticket: 0,
        }
    }

    fn way(&self) -> Way {
        let (mut desk, shares) = self.desk();
        // What nobody waited for.
        desk.take_all();
        Way { desk, shares }
    }
}

impl Session<'_> {
    /// Submit objects to be got, as [`Attached::get`]. Asks, and never waits: what comes is copied while [`Session::poll`] or a wait runs.
    pub fn submit_get(&mut self, gets: Vec<Get>, options: Options) -> Ticket {
        let manner = self.attached.manner(&options);
        let gets = Gets::begin(&mut self.first.desk, gets, manner);
        self.submit(false, Batch::Get(Box::new(gets)))
    }

    /// Submit groups to be put, as [`Attached::put`]. Their bytes are checksummed now, in this thread, where the store does not take
    /// this process's word for them, and go to the store from then on.
    pub fn submit_put(&mut self, groups: Vec<PutGroup>, options: Options) -> Ticket {
        let manner = self.attached.manner(&options);
        let second = self.goes_second(&groups);
        let puts = Puts::begin(self.desk(second), groups, &[], manner);
        self.submit(second, Batch::Put(Box::new(puts)))
    }

    /// The store is asked before anything that came is looked at: it begins meanwhile.
    fn submit(&mut self, second: bool, batch: Batch) -> Ticket {
        self.last_ticket += 1;
        let ticket = Ticket(self.last_ticket);
        self.batches.push(UnderWay { ticket, second, batch });
        self.advance(self.batches.len() - 1, self.attached.clock.now());
        self.desk(second).send_on();
        ticket
    }

    fn desk(&mut self, second: bool) -> &mut Desk {
        match &mut self.second {
            Second::Wanted { way, .. } if second => &mut way.desk,
            _ => &mut self.first.desk,
        }
    }

    /// Whether groups are put by the second link: the first has more puts, and the store copies these out of memory that it is shown, and needs
    /// nothing of this side meanwhile.
    fn goes_second(&mut self, groups: &[PutGroup]) -> bool {
        let puts = |second: bool| {
            let is_one = |one: &&UnderWay| one.second == second && matches!(one.batch, Batch::Put(_));
            self.batches.iter().filter(is_one).count()
        };
        puts(false) > puts(true) && self.is_shown(groups) && self.has_second()
    }

    /// Whether the store is shown the first object: all of them, mostly.
    pub(super) fn is_shown(&self, groups: &[PutGroup]) -> bool {
        let caller = self.first.desk.lines.stands(STORE);
        let first = groups.first().and_then(|group| group.objects.first());
        caller.zip(first).is_some_and(|(caller, put)| caller.shows(&put.source.parts))
    }

    /// Whether the second link stands. It is begun if there is none.
    fn has_second(&mut self) -> bool {
        let now = self.attached.clock.now();
        if matches!(self.second, Second::Unwanted) {
            let mut way = self.attached.way();
            way.desk.lines.standing(STORE, now);
            self.second = Second::Wanted { way, has_stood: false };
        }
        let Second::Wanted { way, has_stood } = &mut self.second else { return false };
        let stands = way.desk.lines.stands(STORE).is_some();
        *has_stood |= stands;
        match stands || way.desk.is_busy() {
            true => {}
            false if *has_stood => drop(way.desk.lines.standing(STORE, now)),
            false => self.second = Second::Refused,
        }
        stands
    }

    /// Wait for the second link, at most `timeout`; whether it stands.
    pub(super) fn await_second(&mut self, timeout: Duration) -> bool {
        let deadline = self.attached.clock.now().after(timeout);
        loop {
            if self.has_second() {
                return true;
            }
            let now = self.attached.clock.now();
            let Second::Wanted { way, .. } = &mut self.second else { return false };
            if deadline.since(now).is_zero() {
                return false;
            }
            way.desk.wait(now, deadline.since(now).min(STEP));
        }
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
            if self.finished.iter().any(|(ticket, _)| is_it(*ticket)) || self.has_direct() {
                continue;
            }
            let now = self.attached.clock.now();
            let left = deadline.since(now);
            if left.is_zero() {
                return None;
            }
            self.attached.look();
            // The one that was asked first is done first, mostly.
            let second = self.batches.iter().find(|one| is_it(one.ticket)).is_some_and(|one| one.second);
            let step = if self.is_busy(!second) { TURN } else { STEP };
            self.desk(second).wait(now, left.min(step));
        }
    }

    /// Whether something is to be copied, for which nothing is waited.
    fn has_direct(&self) -> bool {
        self.batches.iter().any(|one| matches!(&one.batch, Batch::Get(gets) if gets.has_direct()))
    }

    /// Whether something is on its way over a link.
    fn is_busy(&self, second: bool) -> bool {
        match (&self.second, second) {
            (_, false) => self.first.desk.is_busy(),
            (Second::Wanted { way, .. }, true) => way.desk.is_busy(),
            (Second::Unwanted | Second::Refused, true) => false,
        }
    }

    /// Let every batch go on as far as it goes now. What has been answered is handed on before more is taken in.
    fn drive(&mut self) {
        let now = self.attached.clock.now();
        let second = match &mut self.second {
            Second::Wanted { way, .. } => Some(way),
            Second::Unwanted | Second::Refused => None,
        };
        for way in second.into_iter().chain([&mut self.first]) {
            if !way.desk.has_replies() {
                way.desk.poll(now);
            }
        }
        self.advance(0, now);
    }

    /// Let batches from the one at `at` on go on, and collect those that are done.
    fn advance(&mut self, mut at: usize, now: Mono) {
        // All that the links took with them when they ended is one failure, of however many batches.
        let mut heard = Heard::default();
        // One is copied at a time: it is handed out before the next is.
        let mut has_copied = false;
        while let Some(UnderWay { second, batch, .. }) = self.batches.get_mut(at) {
            let desk = match &mut self.second {
                Second::Wanted { way, .. } if *second => &mut way.desk,
                _ => &mut self.first.desk,
            };
            let over = match batch {
                Batch::Get(gets) if has_copied && gets.is_to_copy() => false,
                Batch::Get(gets) => {
                    has_copied |= gets.is_to_copy();
                    gets.advance(desk, now, &mut heard)
                }
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
            let UnderWay { ticket, batch, .. } = self.batches.remove(at);
            let done = match batch {
                Batch::Get(gets) => Done::Get(gets.finish()),
                Batch::Put(puts) => Done::Put(puts.finish()),
            };
            self.finished.push_back((ticket, done));
        }
        heard.tell(&self.first.desk, now);
    }
}

impl Drop for Session<'_> {
    /// Waits for the memory that the links have, however long it takes.
    fn drop(&mut self) {
        let second = match std::mem::replace(&mut self.second, Second::Refused) {
            // What is still being made is no use to the next call.
            Second::Wanted { way, .. } => {
                Some(way).filter(|way| way.desk.lines.stands(STORE).is_some() || way.desk.is_asked(STORE))
            }
            Second::Unwanted | Second::Refused => None,
        };
        let none = Way { desk: Desk::patient(self.attached.remote.clone()), shares: self.first.shares };
        let first = std::mem::replace(&mut self.first, none);
        let clock = &*self.attached.clock;
        let mut ways: Vec<Way> = second.into_iter().chain([first]).collect();
        ways.iter_mut().for_each(|way| way.desk.give_up(STORE, clock.now()));
        for Way { mut desk, shares } in ways {
            while desk.is_asked(STORE) && !mutant::on(Mutant::SessionGoesAtOnce) {
                desk.wait(clock.now(), STEP);
            }
            desk.take_all();
            self.attached.give_back(desk, shares);
        }
    }
}

impl std::fmt::Debug for Session<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("batches", &self.batches.len()).finish_non_exhaustive()
    }
}

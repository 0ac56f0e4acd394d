//! Connections whose peers are not known yet: who has a place among them, and who gives one up.
//!
//! Invariants:
//! - There are at most `most`, and of one source at most half as many.
//! - A new one always gets a place: of one of its source, where that has its share; else of one of the source that has most. Of these the oldest
//!   that has not greeted gives its place up, and only where all have greeted the oldest. So connections that say nothing keep out nobody and
//!   end no handshake that has begun, and one source ends none of another that has less.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::wire::greeting::{Reason, Refusal};

use super::SocketPending;
use super::aside::{Aside, End};
use super::listener::Arrival;
use super::source::Source;
use crate::closed::Closed;
use crate::limits::Limits;
use crate::pending::Progress;

/// Who goes on with a handshake.
pub(super) enum Shaking {
    /// The thread that accepts.
    Here(Box<SocketPending>),
    /// One of its own.
    Aside(Aside),
}

struct Newcomer {
    source: Source,
    peer: String,
    shaking: Shaking,
}

impl Newcomer {
    fn is_greeted(&self) -> bool {
        match &self.shaking {
            Shaking::Here(pending) => pending.is_greeted(),
            Shaking::Aside(aside) => aside.is_greeted(),
        }
    }
}

/// Connections in their handshakes, in the order in which they came.
pub(super) struct Unknown {
    newcomers: Vec<Newcomer>,
    limits: Limits,
    versions: (u16, u16),
}

impl Unknown {
    pub fn new(limits: Limits, versions: (u16, u16)) -> Unknown {
        Unknown { newcomers: Vec::new(), limits, versions }
    }

    /// Bytes that are held for each of them.
    pub fn held_bytes(&self) -> Vec<usize> {
        let held = |newcomer: &Newcomer| match &newcomer.shaking {
            Shaking::Here(pending) => pending.held_bytes(),
            Shaking::Aside(aside) => aside.held_bytes(),
        };
        self.newcomers.iter().map(held).collect()
    }

    /// How many of them have greeted.
    pub fn greeted(&self) -> usize {
        self.newcomers.iter().filter(|newcomer| newcomer.is_greeted()).count()
    }

    /// One more.
    pub fn add(&mut self, source: Source, peer: String, shaking: Shaking) {
        self.newcomers.push(Newcomer { source, peer, shaking });
    }

    /// Make room for one of `source`.
    pub fn make_room(&mut self, source: Source, arrivals: &mut Vec<Arrival>) {
        let Some(gives) = self.gives(source) else { return };
        // Each time one has gone, or one more is known to have greeted.
        while let Some(at) = self.first_to_go(gives) {
            let had_greeted = self.newcomers[at].is_greeted();
            let Newcomer { source, peer, shaking } = self.newcomers.remove(at);
            let end = match shaking {
                Shaking::Here(pending) => match pending.poll() {
                    // Its greeting was here, and not read yet.
                    Progress::Waiting(pending) if pending.is_greeted() && !had_greeted => {
                        let shaking = Shaking::Here(Box::new(pending));
                        self.newcomers.insert(at, Newcomer { source, peer, shaking });
                        continue;
                    }
                    Progress::Waiting(pending) => match pending.refuse(self.busy()) {
                        Progress::Over(why) => Some(Err(why)),
                        Progress::Ready(_) | Progress::Waiting(_) => None,
                    },
                    Progress::Ready(link) => Some(Ok(link)),
                    Progress::Over(why) => Some(Err(why)),
                },
                Shaking::Aside(aside) => aside.dismiss(self.busy()).or_else(|| Some(Err(self.busy()))),
            };
            arrivals.extend(end.map(|end| arrival(peer, end)));
            return;
        }
    }

    /// The source of which one gives up its place to a new one of `source`, if one has to.
    fn gives(&self, source: Source) -> Option<Source> {
        let of = |source| self.newcomers.iter().filter(|other| other.source == source).count();
        let share = self.limits.unknown_max.div_ceil(2);
        if of(source) >= share {
            return Some(source);
        }
        if self.newcomers.len() < self.limits.unknown_max {
            return None;
        }
        // Of several that have as many, the one that came first.
        let most = self.newcomers.iter().rev().max_by_key(|other| of(other.source));
        Some(most.map_or(source, |other| other.source))
    }

    /// Which of a source gives up its place: the oldest that has not greeted, or the oldest.
    fn first_to_go(&self, source: Source) -> Option<usize> {
        let first = |is_one: &dyn Fn(&Newcomer) -> bool| {
            self.newcomers.iter().position(|other| other.source == source && is_one(other))
        };
        first(&|newcomer| !newcomer.is_greeted()).or_else(|| first(&|_| true))
    }

    fn busy(&self) -> Closed {
        let text = format!(
            "too many connections that are not known yet, this one made room: try again most={}",
            self.limits.unknown_max
        );
        Closed::Refused(Refusal { reason: Reason::Busy, versions: self.versions, missing: 0, text })
    }

    /// Go on with all of them, as far as it goes now.
    pub fn poll(&mut self, now: Mono, arrivals: &mut Vec<Arrival>) {
        for Newcomer { source, peer, shaking } in std::mem::take(&mut self.newcomers) {
            let end = match shaking {
                Shaking::Here(pending) => match pending.poll() {
                    Progress::Waiting(pending) => {
                        self.add(source, peer, Shaking::Here(Box::new(pending)));
                        continue;
                    }
                    Progress::Ready(link) => Ok(link),
                    Progress::Over(why) => Err(why),
                },
                Shaking::Aside(aside) => match self.end_of(aside, now) {
                    Ok(end) => end,
                    Err(aside) => {
                        self.add(source, peer, Shaking::Aside(aside));
                        continue;
                    }
                },
            };
            arrivals.push(arrival(peer, end));
        }
    }

    /// How it ended, if it has, or has taken too long: its thread, which ends it then, may be kept from that.
    fn end_of(&self, aside: Aside, now: Mono) -> Result<End, Aside> {
        if let Some(end) = aside.end() {
            return Ok(end);
        }
        if !self.left(&aside, now).is_zero() {
            return Err(aside);
        }
        let limit_ms = u64::try_from(self.limits.handshake.as_millis()).unwrap_or(u64::MAX);
        let late = Closed::Late { limit_ms };
        Ok(aside.dismiss(late.clone()).unwrap_or(Err(late)))
    }

    fn left(&self, aside: &Aside, now: Mono) -> Duration {
        self.limits.handshake.saturating_sub(now.since(aside.begun()))
    }

    /// How long until one of them has taken too long.
    pub fn due(&self, now: Mono) -> Option<Duration> {
        let due = |newcomer: &Newcomer| match &newcomer.shaking {
            Shaking::Here(pending) => pending.due(),
            Shaking::Aside(aside) => self.left(aside, now),
        };
        self.newcomers.iter().map(due).min()
    }

    /// What to wait for, and whether bytes wait to be written to it.
    pub fn sockets(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        self.newcomers.iter().filter_map(|newcomer| match &newcomer.shaking {
            Shaking::Here(pending) => Some((pending.stream().as_fd(), pending.wants_write())),
            Shaking::Aside(_) => None,
        })
    }
}

impl Drop for Unknown {
    fn drop(&mut self) {
        for newcomer in self.newcomers.drain(..) {
            if let Shaking::Aside(aside) = newcomer.shaking {
                drop(aside.dismiss(Closed::Here));
            }
        }
    }
}

fn arrival(peer: String, end: End) -> Arrival {
    match end {
        Ok(link) => Arrival::Link(link),
        Err(why) => Arrival::Refused { peer, why },
    }
}

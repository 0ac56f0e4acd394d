//! Connections whose peers are not known yet: who has a place among them, and who gives one up.
//!
//! Invariants:
//! - There are at most `most`, and of one source at most half as many.
//! - A new one always gets a place: that of the oldest of its source, where that has its share; else of the source that has most. So whoever opens
//!   connections and says nothing keeps out nobody, and one source no other.

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

    /// One more.
    pub fn add(&mut self, source: Source, peer: String, shaking: Shaking) {
        self.newcomers.push(Newcomer { source, peer, shaking });
    }

    /// Make room for one of `source`.
    pub fn make_room(&mut self, source: Source, arrivals: &mut Vec<Arrival>) {
        let of = |source| self.newcomers.iter().filter(|other| other.source == source).count();
        let share = self.limits.unknown_max.div_ceil(2);
        let gives = if of(source) >= share {
            source
        } else if self.newcomers.len() >= self.limits.unknown_max {
            // Of several that have as many, the one that came first.
            let most = self.newcomers.iter().rev().max_by_key(|other| of(other.source));
            most.map_or(source, |other| other.source)
        } else {
            return;
        };
        let Some(oldest) = self.newcomers.iter().position(|other| other.source == gives) else { return };
        let Newcomer { peer, shaking, .. } = self.newcomers.remove(oldest);
        let end = match shaking {
            Shaking::Here(pending) => match pending.poll() {
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
    }

    fn busy(&self) -> Closed {
        let text = format!(
            "too many connections that are not known yet, the oldest made room: try again most={}",
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

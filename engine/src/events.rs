//! What is told of objects that come and go: for routers, and for the events of the engines that use a store.
//!
//! Invariants:
//! - Events are noted under the core's lock, with the change that they tell of, and so in the order of the changes.
//! - What is not told by its key is told by [`Event::Forgot`]: who notes each event, and asks again where it says so, knows what is here.
//! - Each has a number, from 0 on. The last ones are kept, as many as were asked for, whoever was told of them: several may listen, each from where it was.

use std::collections::VecDeque;

use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;

use crate::outcome::Tier;

/// Most events that are copied under one lock.
pub(crate) const PIECE: usize = 1024;

/// What happened to an object. Of an object that is attached to a base it says where the object lies; it is found only together
/// with its base.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// It is in this tier now: put there, promoted, or written to SSD. It was not before.
    Stored {
        /// Which: `Memory` or `Ssd`.
        tier: Tier,
        /// The object.
        key: ObjectKey,
        /// It was in no tier of this store before.
        new: bool,
    },
    /// It is in this tier no more.
    Removed {
        /// Which: `Memory` or `Ssd`.
        tier: Tier,
        /// The object.
        key: ObjectKey,
        /// It is in no tier of this store any more.
        gone: bool,
    },
    /// Everything of this namespace is gone from every tier.
    Cleared {
        /// The namespace.
        namespace: NamespaceId,
    },
    /// Objects are gone from this tier whose keys the store does not know, since what names them could not be read or is not
    /// trusted: a segment, a record, or all of the tier. What is said to be there may be asked for again.
    Forgot {
        /// Which: `Ssd`.
        tier: Tier,
    },
}

impl Event {
    /// The namespace that it is about; `None` of what has no name.
    pub fn namespace(&self) -> Option<NamespaceId> {
        match self {
            Event::Stored { key, .. } | Event::Removed { key, .. } => Some(key.namespace()),
            Event::Cleared { namespace } => Some(*namespace),
            Event::Forgot { .. } => None,
        }
    }
}

/// What happened since it was asked last, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// In the order in which it happened.
    pub events: Vec<Event>,
    /// Events before or between these that were dropped, because nobody took them in time: what is here has to be asked
    /// for.
    pub lost: u64,
}

/// The last events, and where the one listener in this process is.
#[derive(Default)]
pub(crate) struct EventLog {
    max: usize,
    kept: VecDeque<Event>,
    /// The number of the next.
    next: u64,
    /// The first that [`EventLog::take`] has not brought.
    taken: u64,
    /// Nobody was told of this one yet, or of one behind it.
    untold: u64,
}

/// Events from a number on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Since {
    pub events: Vec<Event>,
    /// From where on to ask next.
    pub next: u64,
    /// How many were dropped before the first.
    pub lost: u64,
}

impl EventLog {
    /// Of which so many are kept; with 0 none is noted.
    pub fn new(max: usize) -> EventLog {
        EventLog { max, ..EventLog::default() }
    }

    /// Note what happened.
    pub fn note(&mut self, event: impl FnOnce() -> Event) {
        if !self.is_on() {
            return;
        }
        if self.kept.len() == self.max {
            self.kept.pop_front();
        }
        self.kept.push_back(event());
        self.next += 1;
    }

    /// An object is in a tier now.
    pub fn stored(&mut self, tier: Tier, key: &ObjectKey, new: bool) {
        self.note(|| Event::Stored { tier, key: *key, new });
    }

    /// An object is in a tier no more.
    pub fn removed(&mut self, tier: Tier, key: &ObjectKey, gone: bool) {
        self.note(|| Event::Removed { tier, key: *key, gone });
    }

    /// Objects are gone from SSD that cannot be named. Said once, until something else is or somebody was told.
    pub fn forgot(&mut self) {
        let forgot = Event::Forgot { tier: Tier::Ssd };
        if self.untold == self.next || self.kept.back() != Some(&forgot) {
            self.note(|| forgot);
        }
    }

    /// Whether any are kept.
    pub fn is_on(&self) -> bool {
        self.max > 0
    }

    /// As [`EventLog::since`], by numbers from 1 on: 0 is for what happens from now on. `None` if none are kept.
    pub fn since_number(&mut self, number: u64, most: usize) -> Option<Since> {
        let from = number.checked_sub(1).unwrap_or(self.next);
        self.is_on().then(|| self.since(from, most)).map(|since| Since { next: since.next + 1, ..since })
    }

    /// Those from number `from` on, `most` at most.
    pub fn since(&mut self, from: u64, most: usize) -> Since {
        let first = self.next - self.kept.len() as u64;
        // Of a number that was never given out nothing is known.
        let from = from.min(self.next);
        let lost = first.saturating_sub(from);
        let skip = (from + lost - first) as usize;
        let events: Vec<Event> = self.kept.range(skip..).take(most).cloned().collect();
        let next = from + lost + events.len() as u64;
        self.untold = self.untold.max(next);
        Since { events, next, lost }
    }

    /// The oldest that this did not bring yet, `most` at most.
    pub fn take(&mut self, most: usize) -> Events {
        let Since { events, next, lost } = self.since(self.taken, most);
        self.taken = next;
        Events { events, lost }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cleared(n: u8) -> Event {
        Event::Cleared { namespace: NamespaceId([n; 16]) }
    }

    #[test]
    fn the_oldest_make_room_and_are_counted_once() {
        let mut log = EventLog::new(3);
        (0..5).for_each(|n| log.note(|| cleared(n)));
        assert_eq!(log.take(2), Events { events: vec![cleared(2), cleared(3)], lost: 2 });
        log.note(|| cleared(5));
        assert_eq!(log.take(9), Events { events: vec![cleared(4), cleared(5)], lost: 0 });
        assert_eq!(log.take(9), Events::default());
    }

    #[test]
    fn none_is_noted_unless_asked_for() {
        let mut log = EventLog::new(0);
        log.note(|| panic!("nobody asked"));
        log.forgot();
        assert_eq!(log.take(9), Events::default());
        assert_eq!(log.since_number(0, 9), None);
    }

    #[test]
    fn several_listen_each_from_where_it_was() {
        let mut log = EventLog::new(3);
        (0..2).for_each(|n| log.note(|| cleared(n)));
        let here = log.since_number(0, 9).expect("it is on");
        assert_eq!((here.events.len(), here.next, here.lost), (0, 3, 0));
        (2..4).for_each(|n| log.note(|| cleared(n)));
        let first = log.since_number(here.next, 1).expect("it is on");
        assert_eq!((first.events, first.next, first.lost), (vec![cleared(2)], 4, 0));
        assert_eq!(log.take(9), Events { events: (1..4).map(cleared).collect(), lost: 1 });
        let then = log.since_number(first.next, 9).expect("it is on");
        assert_eq!((then.events, then.next, then.lost), (vec![cleared(3)], 5, 0));
        // Numbers of another process, or made up.
        let odd = log.since(u64::MAX, 9);
        assert_eq!((odd.events.len(), odd.next, odd.lost), (0, 4, 0));
    }

    #[test]
    fn what_is_forgotten_is_said_again_once_somebody_was_told() {
        let mut log = EventLog::new(9);
        let forgot = Event::Forgot { tier: Tier::Ssd };
        log.forgot();
        assert_eq!(log.since(0, 9).events.len(), 1);
        log.forgot();
        assert_eq!(log.take(9).events, [forgot.clone(), forgot]);
    }

    #[test]
    fn what_is_forgotten_is_said_once_until_something_else_is() {
        let mut log = EventLog::new(9);
        let forgot = Event::Forgot { tier: Tier::Ssd };
        log.forgot();
        log.forgot();
        log.note(|| cleared(1));
        log.forgot();
        assert_eq!(log.take(9).events, [forgot.clone(), cleared(1), forgot]);
    }
}

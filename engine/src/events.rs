//! What is told of objects that come and go: for routers, and for the events of the engines that use a store.
//!
//! Invariants:
//! - Events are noted under the core's lock, with the change that they tell of, and so in the order of the changes.
//! - What is not told by its key is told by [`Event::Forgot`]: who notes each event, and asks again where it says so, knows what is here.
//! - No more wait than were asked for: the oldest make room, and are counted.

use std::collections::VecDeque;

use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;

use crate::outcome::Tier;

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

/// What happened since it was asked last, the oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// In the order in which it happened.
    pub events: Vec<Event>,
    /// Events before these that were dropped, because nobody took them in time: what is here has to be asked for.
    pub lost: u64,
}

/// Events that nobody took yet.
#[derive(Default)]
pub(crate) struct EventLog {
    max: usize,
    waiting: VecDeque<Event>,
    lost: u64,
}

impl EventLog {
    /// Of which so many are kept; with 0 none is noted.
    pub fn new(max: usize) -> EventLog {
        EventLog { max, ..EventLog::default() }
    }

    /// Note what happened.
    pub fn note(&mut self, event: impl FnOnce() -> Event) {
        if self.max == 0 {
            return;
        }
        if self.waiting.len() == self.max {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(event());
    }

    /// An object is in a tier now.
    pub fn stored(&mut self, tier: Tier, key: &ObjectKey, new: bool) {
        self.note(|| Event::Stored { tier, key: *key, new });
    }

    /// An object is in a tier no more.
    pub fn removed(&mut self, tier: Tier, key: &ObjectKey, gone: bool) {
        self.note(|| Event::Removed { tier, key: *key, gone });
    }

    /// Objects are gone from SSD that cannot be named. Said once, until something else is.
    pub fn forgot(&mut self) {
        let forgot = Event::Forgot { tier: Tier::Ssd };
        if self.waiting.back() != Some(&forgot) {
            self.note(|| forgot);
        }
    }

    /// The oldest, `most` at most.
    pub fn take(&mut self, most: usize) -> Events {
        let most = most.min(self.waiting.len());
        Events { events: self.waiting.drain(..most).collect(), lost: std::mem::take(&mut self.lost) }
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

//! The log of the last events of a store.
//!
//! Invariants:
//! - Events are recorded under the core's lock, together with the change that they describe, hence
//!   in the order of the changes.
//! - A change that is not reported by key is reported by [`Event::Forgot`]. A listener that applies
//!   every event, and repeats its lookups after `Forgot`, knows the store's contents.
//! - Events are numbered from 0. The last `max` are kept, whether they were read or not: several
//!   listeners may read, each from its own position.

use std::collections::VecDeque;

use pagelith_layouts::key::ObjectKey;

use crate::api::events::{Event, EventBatch, Events};
use crate::api::outcome::Tier;

/// Most events that are copied under one acquisition of the lock.
pub(crate) const PIECE: usize = 1024;

/// The last events, and the position of the listener in this process.
#[derive(Default)]
pub(crate) struct EventLog {
    max: usize,
    recent: VecDeque<Event>,
    /// Number of the next event.
    next: u64,
    /// Number of the first event that [`EventLog::take`] has not returned.
    taken: u64,
    /// Number of the first event that no listener has read.
    unread_from: u64,
}

impl EventLog {
    /// A log that keeps `max` events; with 0 it records none.
    pub fn new(max: usize) -> EventLog {
        EventLog { max, ..EventLog::default() }
    }

    /// Record an event.
    pub fn note(&mut self, event: impl FnOnce() -> Event) {
        if !self.is_on() {
            return;
        }
        if self.recent.len() == self.max {
            self.recent.pop_front();
        }
        self.recent.push_back(event());
        self.next += 1;
    }

    /// An object was added to a tier.
    pub fn stored(&mut self, tier: Tier, key: &ObjectKey, new: bool) {
        self.note(|| Event::Stored { tier, key: *key, new });
    }

    /// An object left a tier.
    pub fn removed(&mut self, tier: Tier, key: &ObjectKey, gone: bool) {
        self.note(|| Event::Removed { tier, key: *key, gone });
    }

    /// Objects left SSD that cannot be named. Recorded once, until another event is recorded or a
    /// listener reads it.
    pub fn forgot(&mut self) {
        let forgot = Event::Forgot { tier: Tier::Ssd };
        if self.unread_from == self.next || self.recent.back() != Some(&forgot) {
            self.note(|| forgot);
        }
    }

    /// Whether events are recorded.
    pub fn is_on(&self) -> bool {
        self.max > 0
    }

    /// As [`EventLog::since`], with numbers from 1: 0 stands for the next event. `None` if no
    /// events are recorded.
    pub fn since_number(&mut self, number: u64, most: usize) -> Option<EventBatch> {
        let from = number.checked_sub(1).unwrap_or(self.next);
        self.is_on()
            .then(|| self.since(from, most))
            .map(|since| EventBatch { next: since.next + 1, ..since })
    }

    /// At most `most` events from number `from`.
    pub fn since(&mut self, from: u64, most: usize) -> EventBatch {
        let first = self.next - self.recent.len() as u64;
        // A number that was never given out counts as the next one.
        let from = from.min(self.next);
        let lost = first.saturating_sub(from);
        let skip = (from + lost - first) as usize;
        let events: Vec<Event> = self.recent.range(skip..).take(most).cloned().collect();
        let next = from + lost + events.len() as u64;
        self.unread_from = self.unread_from.max(next);
        EventBatch { events, next, lost }
    }

    /// At most `most` events that this has not returned yet, oldest first.
    pub fn take(&mut self, most: usize) -> Events {
        let EventBatch { events, next, lost } = self.since(self.taken, most);
        self.taken = next;
        Events { events, lost }
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::NamespaceId;

    use super::*;

    fn cleared(n: u8) -> Event {
        Event::Cleared { namespace: NamespaceId([n; 16]) }
    }

    #[test]
    fn oldest_events_are_dropped_and_counted_once() {
        let mut log = EventLog::new(3);
        (0..5).for_each(|n| log.note(|| cleared(n)));
        assert_eq!(log.take(2), Events { events: vec![cleared(2), cleared(3)], lost: 2 });
        log.note(|| cleared(5));
        assert_eq!(log.take(9), Events { events: vec![cleared(4), cleared(5)], lost: 0 });
        assert_eq!(log.take(9), Events::default());
    }

    #[test]
    fn no_event_is_recorded_without_events_max() {
        let mut log = EventLog::new(0);
        log.note(|| panic!("events are off"));
        log.forgot();
        assert_eq!(log.take(9), Events::default());
        assert_eq!(log.since_number(0, 9), None);
    }

    #[test]
    fn listeners_read_from_their_own_positions() {
        let mut log = EventLog::new(3);
        (0..2).for_each(|n| log.note(|| cleared(n)));
        let here = log.since_number(0, 9).expect("events are on");
        assert_eq!((here.events.len(), here.next, here.lost), (0, 3, 0));
        (2..4).for_each(|n| log.note(|| cleared(n)));
        let first = log.since_number(here.next, 1).expect("events are on");
        assert_eq!((first.events, first.next, first.lost), (vec![cleared(2)], 4, 0));
        assert_eq!(log.take(9), Events { events: (1..4).map(cleared).collect(), lost: 1 });
        let then = log.since_number(first.next, 9).expect("events are on");
        assert_eq!((then.events, then.next, then.lost), (vec![cleared(3)], 5, 0));
        // Numbers from another process, or invented.
        let odd = log.since(u64::MAX, 9);
        assert_eq!((odd.events.len(), odd.next, odd.lost), (0, 4, 0));
    }

    #[test]
    fn forgot_is_recorded_again_after_a_read() {
        let mut log = EventLog::new(9);
        let forgot = Event::Forgot { tier: Tier::Ssd };
        log.forgot();
        assert_eq!(log.since(0, 9).events.len(), 1);
        log.forgot();
        assert_eq!(log.take(9).events, [forgot.clone(), forgot]);
    }

    #[test]
    fn forgot_is_recorded_once_until_another_event() {
        let mut log = EventLog::new(9);
        let forgot = Event::Forgot { tier: Tier::Ssd };
        log.forgot();
        log.forgot();
        log.note(|| cleared(1));
        log.forgot();
        assert_eq!(log.take(9).events, [forgot.clone(), cleared(1), forgot]);
    }
}

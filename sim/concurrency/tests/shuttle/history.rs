//! The calls made to a store and their times, and thus the allowed answers: a value that was put
//! and not removed since, or a miss.

use std::sync::Mutex;

/// An act on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    Put(u64),
    Remove,
}

#[derive(Clone, Debug)]
struct Event {
    key: u64,
    act: Change,
    from: u64,
    /// `None` while it is in progress.
    to: Option<u64>,
    /// It had no effect: refused, or another put was first.
    void: bool,
}

#[derive(Default)]
struct Log {
    now: u64,
    events: Vec<Event>,
}

/// Shared by the threads of one schedule. Its lock is std's: no schedule switches threads inside.
#[derive(Default)]
pub struct History(Mutex<Log>);

/// An act in progress.
pub struct Begun(usize);

impl History {
    pub fn now(&self) -> u64 {
        let mut log = self.0.lock().expect("history");
        log.now += 1;
        log.now
    }

    fn begin(&self, key: u64, act: Change) -> Begun {
        let from = self.now();
        let mut log = self.0.lock().expect("history");
        log.events.push(Event { key, act, from, to: None, void: false });
        Begun(log.events.len() - 1)
    }

    pub fn begin_put(&self, key: u64, value: u64) -> Begun {
        self.begin(key, Change::Put(value))
    }

    pub fn begin_remove(&self, key: u64) -> Begun {
        self.begin(key, Change::Remove)
    }

    pub fn end(&self, begun: Begun, took_effect: bool) {
        let now = self.now();
        let mut log = self.0.lock().expect("history");
        let event = &mut log.events[begun.0];
        (event.to, event.void) = (Some(now), !took_effect);
    }

    /// Checks a get that began at `from`, ended now, and found this value.
    pub fn judge(&self, key: u64, from: u64, found: u64) {
        let log = self.0.lock().expect("history");
        let mine: Vec<&Event> = log.events.iter().filter(|e| e.key == key && !e.void).collect();
        let removed_since = |put: &Event| {
            mine.iter().any(|r| {
                r.act == Change::Remove
                    && put.to.is_some_and(|t| t < r.from)
                    && r.to.is_some_and(|t| t < from)
            })
        };
        let fair = mine.iter().any(|p| p.act == Change::Put(found) && !removed_since(p));
        assert!(
            fair,
            "get found a value never put or removed key={key} value={found} from={from} {mine:?}"
        );
    }

    /// Every value that took effect for a key.
    pub fn stored(&self, key: u64) -> Vec<u64> {
        let log = self.0.lock().expect("history");
        let of = |e: &Event| match e.act {
            Change::Put(value) if e.key == key && !e.void => Some(value),
            Change::Put(_) | Change::Remove => None,
        };
        log.events.iter().filter_map(of).collect()
    }
}

//! The history of one key.

/// The number of a put; the members of a group share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Put(pub u64);

/// The allowed results of a get of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// These puts.
    pub puts: Vec<Put>,
    /// Or a miss.
    pub miss: bool,
}

/// Puts after which an object is still in the newest part of the log.
const NEWEST_PUTS: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// May be present or not.
    Maybe,
    /// Acked by the running process.
    Stored,
    /// Acked, and covered by a flush.
    Flushed,
}

/// A put of the key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    pub put: Put,
    pub state: State,
    /// It never comes back.
    pub gone: bool,
}

/// All puts of the key.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub items: Vec<Item>,
    /// The first `doubt` puts may have been taken by a remove or a clear.
    pub doubt: usize,
    /// A remove or clear began in this process and may not be durable yet.
    pub pending: bool,
    pub pinned: bool,
    /// Puts stored since its own. An object put long ago may have left the SSD and be in memory
    /// only, where a pin keeps it, but not across a crash.
    pub since: u32,
}

impl History {
    /// The latest put that is present for certain, unless it was taken or evicted.
    fn certain(&self) -> Option<usize> {
        self.items.iter().rposition(|i| i.state != State::Maybe && !i.gone)
    }

    pub fn certain_put(&self) -> Option<Put> {
        self.certain().map(|at| self.items[at].put)
    }

    pub fn begin(&mut self, put: Put) {
        self.items.push(Item { put, state: State::Maybe, gone: false });
    }

    /// A put was acked: none of the older ones was present.
    pub fn store(&mut self, put: Put) {
        let Some(at) = self.items.iter().position(|i| i.put == put) else { return };
        self.items[..at].iter_mut().for_each(|i| i.state = State::Maybe);
        self.items[at].state = State::Stored;
    }

    pub fn begin_removal(&mut self) {
        self.doubt = self.items.len();
        self.pending = true;
    }

    pub fn end_removal(&mut self) {
        self.take(self.items.len());
        self.pending = false;
    }

    /// The first `all` puts never come back.
    pub fn take(&mut self, all: usize) {
        self.items[..all].iter_mut().for_each(|i| i.gone = true);
    }

    pub fn pin(&mut self) {
        self.pinned |= self.since <= NEWEST_PUTS;
    }

    pub fn died(&mut self) {
        self.pending = false;
        for item in &mut self.items {
            if item.state == State::Stored {
                item.state = State::Maybe;
            }
        }
    }

    pub fn allowed(&self, evicts: bool) -> Allowed {
        let certain = self.certain();
        let possible = self.items[certain.unwrap_or(0)..].iter().filter(|i| !i.gone);
        let doubtful = certain.is_none_or(|at| self.doubt > at);
        Allowed {
            puts: possible.map(|i| i.put).collect(),
            miss: doubtful || (evicts && !self.pinned),
        }
    }
}

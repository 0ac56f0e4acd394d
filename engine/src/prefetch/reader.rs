//! The task that reads ahead.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::runtime::{Step, Task};
use rustc_hash::FxHashMap;

use super::Hint;
use crate::error::Result;
use crate::outcome::Ticket;
use crate::put::placed::{self, SetAside};
use crate::session::Session;
use crate::shared::Shared;

/// Objects and bytes of one batch: enough to keep a device busy, and no more than others would wait for.
const BATCH_OBJECTS: usize = 64;
const BATCH_BYTES: u64 = 8 << 20;
/// Batches under way at a time.
const BATCHES: usize = 2;
/// Longest wait for the device, and for memory that others have.
const WAIT: Duration = Duration::from_millis(5);
/// Longest sleep with nothing to do.
const IDLE: Duration = Duration::from_secs(1);

/// The task.
pub(super) struct Reader {
    shared: Arc<Shared>,
    session: Session,
    under_way: FxHashMap<Ticket, Vec<Hint>>,
}

impl Reader {
    pub fn new(shared: Arc<Shared>) -> Result<Reader> {
        let session = Session::new(shared.clone())?;
        Ok(Reader { shared, session, under_way: FxHashMap::default() })
    }

    /// The next objects to be read together: of one request, each of use still.
    fn next(&self) -> Vec<Hint> {
        let now = self.shared.now();
        let mut queue = self.shared.prefetch.queue();
        let (mut hints, mut bytes) = (Vec::<Hint>::new(), 0);
        while let Some(hint) = queue.hints.pop_front() {
            if hint.deadline <= now {
                queue.forget(&hint);
                continue;
            }
            let other = hints.first().is_some_and(|first| first.at.epoch != hint.at.epoch);
            if other || hints.len() == BATCH_OBJECTS || (bytes > 0 && bytes + hint.length > BATCH_BYTES) {
                queue.hints.push_front(hint);
                break;
            }
            bytes += hint.length;
            hints.push(hint);
        }
        hints
    }

    /// Begin to read what there is memory for; false if others have it.
    fn begin(&mut self) -> bool {
        while self.under_way.len() < BATCHES {
            let hints = self.next();
            let Some(first) = hints.first().copied() else { return true };
            let lengths: Vec<u64> = hints.iter().map(|hint| hint.length).collect();
            match placed::set_aside(&self.shared, &lengths) {
                SetAside::Now(memory) => {
                    let objects = hints.iter().map(|hint| hint.key).zip(memory).collect();
                    let ticket = self.session.begin_ahead(objects, first.at, first.deadline);
                    self.under_way.insert(ticket, hints);
                }
                SetAside::Later => {
                    let mut queue = self.shared.prefetch.queue();
                    hints.into_iter().rev().for_each(|hint| queue.hints.push_front(hint));
                    return false;
                }
                // Whoever is in DRAM is in use: nothing of it goes for a hint.
                SetAside::Full => self.forget(&hints),
            }
        }
        true
    }

    fn forget(&self, hints: &[Hint]) {
        let mut queue = self.shared.prefetch.queue();
        hints.iter().for_each(|hint| queue.forget(hint));
    }
}

impl Task for Reader {
    fn step(&mut self) -> Step {
        // What is under way ends with the session.
        if self.shared.check_open().is_err() {
            return Step::Done;
        }
        let room = self.begin();
        if let Some((ticket, done)) = self.session.poll() {
            // What was not kept is the arena's again before nobody waits for it any more.
            drop(done);
            if let Some(hints) = self.under_way.remove(&ticket) {
                self.forget(&hints);
            }
            return Step::Again;
        }
        if self.session.is_busy() {
            self.session.pause(WAIT);
            return Step::Again;
        }
        match self.under_way.is_empty() && room {
            true => Step::Idle(IDLE),
            false => Step::Idle(WAIT),
        }
    }
}

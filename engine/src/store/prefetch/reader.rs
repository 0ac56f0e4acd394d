//! The task that reads objects into DRAM for hints.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::runtime::{Step, Task};
use rustc_hash::FxHashMap;

use crate::api::error::Result;
use crate::api::outcome::Ticket;
use crate::state::prefetch::PrefetchHint;
use crate::state::reserve;
use crate::state::reserve::ReserveResult;
use crate::state::shared::Shared;
use crate::store::session::Session;

/// Objects and bytes of one batch: enough to keep a device busy, and few enough not to delay other
/// reads.
const BATCH_OBJECTS: usize = 64;
const BATCH_BYTES: u64 = 8 << 20;
/// Most batches in flight.
const BATCHES_MAX: usize = 2;
/// Longest wait for the device, or for memory of the arena.
const WAIT: Duration = Duration::from_millis(5);
/// Longest sleep without work.
const IDLE: Duration = Duration::from_secs(1);

/// The task.
pub(crate) struct PrefetchTask {
    shared: Arc<Shared>,
    session: Session,
    in_flight: FxHashMap<Ticket, Vec<PrefetchHint>>,
}

impl PrefetchTask {
    pub fn new(shared: Arc<Shared>) -> Result<PrefetchTask> {
        let session = Session::new(shared.clone())?;
        Ok(PrefetchTask { shared, session, in_flight: FxHashMap::default() })
    }

    /// The hints of the next batch: all of one request, none expired.
    fn next(&self) -> Vec<PrefetchHint> {
        let now = self.shared.now();
        let mut queue = self.shared.prefetch.queue();
        let (mut hints, mut bytes) = (Vec::<PrefetchHint>::new(), 0);
        while let Some(hint) = queue.hints.pop_front() {
            if hint.deadline <= now {
                queue.finish(&hint);
                continue;
            }
            let other_request =
                hints.first().is_some_and(|first| first.at.request != hint.at.request);
            if other_request
                || hints.len() == BATCH_OBJECTS
                || (bytes > 0 && bytes + hint.length > BATCH_BYTES)
            {
                queue.hints.push_front(hint);
                break;
            }
            bytes += hint.length;
            hints.push(hint);
        }
        hints
    }

    /// Submit batches for which memory is free; false if none is free now.
    fn begin(&mut self) -> bool {
        while self.in_flight.len() < BATCHES_MAX {
            let hints = self.next();
            let Some(first) = hints.first().copied() else { return true };
            let lengths: Vec<u64> = hints.iter().map(|hint| hint.length).collect();
            match reserve::reserve_all(&self.shared, &lengths) {
                ReserveResult::Reserved(memory) => {
                    let objects = hints.iter().map(|hint| hint.key).zip(memory).collect();
                    let ticket = self.session.begin_prefetch(objects, first.at, first.deadline);
                    self.in_flight.insert(ticket, hints);
                }
                ReserveResult::OverLimit => {
                    let mut queue = self.shared.prefetch.queue();
                    hints.into_iter().rev().for_each(|hint| queue.hints.push_front(hint));
                    return false;
                }
                // The frames in DRAM are in use: a hint evicts none of them.
                ReserveResult::ArenaFull => self.finish(&hints),
            }
        }
        true
    }

    fn finish(&self, hints: &[PrefetchHint]) {
        let mut queue = self.shared.prefetch.queue();
        hints.iter().for_each(|hint| queue.finish(hint));
    }
}

impl Task for PrefetchTask {
    fn step(&mut self) -> Step {
        // Batches in flight end with the session.
        if self.shared.check_open().is_err() {
            return Step::Done;
        }
        let room = self.begin();
        if let Some((ticket, done)) = self.session.poll() {
            // Return unused memory to the arena before the hints stop counting as pending.
            drop(done);
            if let Some(hints) = self.in_flight.remove(&ticket) {
                self.finish(&hints);
            }
            return Step::Again;
        }
        if self.session.is_busy() {
            self.session.pause(WAIT);
            return Step::Again;
        }
        match self.in_flight.is_empty() && room {
            true => Step::Idle(IDLE),
            false => Step::Idle(WAIT),
        }
    }
}

//! From one ring to the next: when another thread than its own comes to a ring that is one thread's, and when a ring breaks whose
//! entries the kernel takes by itself.
//!
//! Such a ring cannot be waited for: the completions of the one are posted in its thread alone, and of the other nobody can say
//! which entries will still be taken. So it is closed. The kernel then begins nothing more, and ends what it began; when all of that has ended
//! it lets go of the ring's registered files, the writer of a pipe among them, whose reader hangs up. Before that no operation is
//! touched. After it nobody knows which of them have happened, and they are begun once more on the next ring: reads
//! fill the same parts, writes bring the same bytes to the same place, and nobody was told of either.

use std::mem;
use std::time::Duration;

use rustix::io::Errno;

use super::{UringQueue, broken_fault, ring};
use crate::check::refused;
use crate::here;

impl UringQueue {
    /// See to it that the ring, if there is one, may be entered by this thread.
    pub(super) fn come(&mut self) {
        if self.maker.binds() {
            let here = here::thread();
            if self.home != here {
                self.home = here;
                self.leave();
            }
        }
        if self.ring.is_none() {
            self.settle(Duration::ZERO);
        }
    }

    /// Let go of the ring. What has not completed waits for the next.
    pub(super) fn leave(&mut self) {
        // What is posted has happened, and is seen from any thread.
        let mut ready = mem::take(&mut self.ready);
        self.reap(&mut ready);
        self.ready = ready;
        let Some(ring) = self.ring.take() else { return };
        let end = ring.leave();
        self.pending.clear();
        self.more = 0;
        self.fixed.left();
        self.waiting = self.slots.held();
        self.leaving = end.filter(|_| !self.waiting.is_empty());
    }

    /// Go on with the next ring, if the kernel is done with the one before it at the latest after `timeout`.
    pub(super) fn settle(&mut self, timeout: Duration) {
        if self.leaving.as_ref().is_some_and(|end| !ring::is_over(end, timeout)) {
            return;
        }
        self.leaving = None;
        if let Some(e) = self.broken.or(self.closing.then_some(Errno::CANCELED)) {
            for id in mem::take(&mut self.waiting) {
                self.hand_back(id, e);
            }
            return;
        }
        match self.maker.ring(self.entries) {
            Ok(ring) => *self.ring = Some(ring),
            Err(fault) => {
                tracing::debug!(%fault, "no ring to go on with, helper threads do what waits");
                for id in mem::take(&mut self.waiting) {
                    if let Some(held) = self.slots.take(id) {
                        self.aside.push(held.token, held.op, held.file.shared());
                    }
                }
                return;
            }
        }
        for id in mem::take(&mut self.waiting) {
            if let Some(held) = self.slots.get_mut(id) {
                held.again();
            }
            if !self.push(id) {
                // A ring as large as the one before it has room for all that it had.
                self.hand_back(id, Errno::BUSY);
            }
        }
    }

    pub(super) fn hand_back(&mut self, id: u64, e: Errno) {
        if let Some(held) = self.slots.take(id) {
            let fault = broken_fault(&held.file.path, e);
            self.ready.push(refused(held.token, held.op, fault));
        }
    }
}

//! A batch whose time is up, or that nobody will finish.

use std::sync::atomic::Ordering;

use super::GetBatch;
use crate::api::error::Error;
use crate::api::outcome::{GetOutcome, MissCause};
use crate::read::fetch::InFlightRead;
use crate::read::locate;
use crate::read::plan::Piece;
use crate::store::session::{SessionIo, release_segment};

impl GetBatch {
    /// The time is up: what is not under way is late; what is staged is left to the kernel; what goes straight
    /// into the caller's memory must be waited for, and says that the device is sick.
    pub(crate) fn give_up(&mut self, io: &mut SessionIo) {
        self.late = true;
        let direct = |f: &InFlightRead| f.fetch.pieces.iter().any(Piece::is_direct);
        let mut flying: Vec<u64> = self.in_flight.keys().copied().collect();
        flying.sort_unstable();
        for token in flying {
            let Some(flight) = self.in_flight.get(&token) else { continue };
            if direct(flight) {
                io.shared.sick.store(true, Ordering::Relaxed);
                io.shared.late_reads.fetch_add(1, Ordering::Relaxed);
                io.shared.lock().counters.late_direct += 1;
            } else if let Some(flight) = self.in_flight.remove(&token) {
                // It keeps its segment from being reused until the kernel is done with it.
                io.orphans.insert(token, (flight.fetch.segment, flight.submitted_at));
            }
        }
    }

    /// What is still without an outcome after the deadline, and whose memory is here. Asked for again each
    /// time: of what comes back late, the header may be one that was given up.
    pub(crate) fn settle_late(&mut self, io: &mut SessionIo) {
        for i in 0..self.slots.len() {
            if self.slots[i].outcome.is_none() && !self.slots[i].has_parts_in_read() {
                let busy = self.slots[i].stage > 0 && !self.slots[i].submitted;
                let outcome = if busy {
                    Err(Error::busy(format!("no staging memory in time key={}", self.slots[i].get.key)))
                } else {
                    Ok(GetOutcome::Miss(MissCause::Late))
                };
                self.settle(io, i, outcome);
            }
        }
    }

    /// Let go of what is held for a batch that nobody will finish.
    pub fn abandon(&mut self, io: &SessionIo) {
        if self.late {
            io.shared.late_reads.fetch_sub(self.in_flight.len() as u64, Ordering::Relaxed);
        }
        self.in_flight.drain().for_each(|(_, flight)| release_segment(&io.shared, flight.fetch.segment));
        self.slots.iter_mut().for_each(|slot| locate::leave_segment(&io.shared, slot));
    }
}

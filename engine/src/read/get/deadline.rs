//! A batch after its deadline, and a batch of a dropped session.

use std::sync::atomic::Ordering;

use pagelith_io::buffer::Part;

use super::GetBatch;
use crate::api::error::Error;
use crate::api::outcome::MissCause;
use crate::read::disk_read::InFlightRead;
use crate::read::item::ItemOutcome;
use crate::read::locate;
use crate::read::plan::Piece;
use crate::state::session_io::{SessionIo, release_segment};

impl GetBatch {
    /// The deadline has passed. Reads that were not submitted are late. Staged reads are abandoned
    /// to the kernel with their memory. Direct reads must be awaited, because the kernel may still
    /// write into the caller's memory; they suspend direct reads.
    pub(crate) fn give_up(&mut self, io: &mut SessionIo) {
        self.late = true;
        let direct = |f: &InFlightRead| f.read.pieces.iter().any(Piece::is_direct);
        let mut tokens: Vec<u64> = self.in_flight.keys().copied().collect();
        tokens.sort_unstable();
        for token in tokens {
            let Some(flight) = self.in_flight.get(&token) else { continue };
            if direct(flight) {
                io.shared.reads.direct_suspended.store(true, Ordering::Relaxed);
                io.shared.reads.late.fetch_add(1, Ordering::Relaxed);
                io.shared.lock().counters.late_direct += 1;
            } else if let Some(flight) = self.in_flight.remove(&token) {
                // The segment cannot be reused until the kernel has completed the read.
                io.orphans.insert(token, (flight.read.segment, flight.submitted_at));
            }
        }
    }

    /// Set the outcome of every object that has none after the deadline and whose memory is not in
    /// a read. Called repeatedly: the header that a late read brings may have been given up.
    pub(crate) fn end_late(&mut self, io: &mut SessionIo) {
        for i in 0..self.items.len() {
            let item = &self.items[i];
            if item.is_done() || item.destination.is_none() {
                continue;
            }
            let staged = item.reading().is_some_and(|read| read.claims().sub_batch.is_some());
            let outcome = if staged && !item.attempts.submitted {
                let remedy = "align the destination to 4096 bytes, or raise staging.bytes";
                let bytes: usize = item.destination.iter().flat_map(|d| &d.0).map(Part::len).sum();
                let detail =
                    format!("no staging memory in time; {remedy} key={} bytes={bytes}", item.key);
                ItemOutcome::Failed(Error::busy(detail))
            } else {
                ItemOutcome::Miss(MissCause::Late)
            };
            self.set_outcome(io, i, outcome);
        }
    }

    /// Release the segments of a batch that will not be finished.
    pub fn abandon(&mut self, io: &SessionIo) {
        if self.late {
            io.shared.reads.late.fetch_sub(self.in_flight.len() as u64, Ordering::Relaxed);
        }
        self.in_flight
            .drain()
            .for_each(|(_, flight)| release_segment(&io.shared, flight.read.segment));
        self.items.iter_mut().for_each(|item| locate::leave_segment(&io.shared, item));
    }
}

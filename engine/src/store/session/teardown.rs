//! The drop of a session with reads in flight.

use pagelith_io::clock::Mono;

use super::{Batch, Session, WAIT_STEP, release_segment};
use crate::api::outcome::Ticket;

impl Session {
    /// Limit the wait for reads in flight when the session is dropped. Reads that the device still
    /// has after `deadline` keep their memory, the ring and the files.
    pub(crate) fn set_drop_deadline(&mut self, deadline: Mono) {
        self.drop_deadline = Some(deadline);
    }
}

impl Drop for Session {
    /// Waits for reads in flight, since they write to the caller's memory. The drop of the queue
    /// limits the wait.
    fn drop(&mut self) {
        let deadline = self.drop_deadline.unwrap_or_else(|| self.io.shared.deadline(None));
        let tickets: Vec<Ticket> = self.batches.iter().map(|(t, _)| *t).collect();
        for ticket in tickets {
            while self.io.shared.now() < deadline {
                if self.wait(ticket, WAIT_STEP).is_some()
                    || self.io.queue.as_ref().is_none_or(|q| q.in_flight() == 0)
                {
                    break;
                }
            }
        }
        // The drop of the queue waits for the remaining reads. If the kernel still has reads after
        // that, their memory stays allocated and unused; they must not keep segments from being
        // reclaimed.
        let mut queue = self.io.queue.take();
        if let (Some(queue), Some(deadline)) = (&mut queue, self.drop_deadline) {
            queue.set_drop_timeout(deadline.since(self.io.shared.now()));
        }
        drop(queue);
        self.completions.clear();
        for (_, batch) in &mut self.batches {
            match batch {
                Batch::Get(b) => b.abandon(&self.io),
                Batch::Put(b) => b.abandon(&self.io),
                Batch::Remote(..) | Batch::Exists(_) => {}
            }
        }
        self.io
            .orphans
            .drain()
            .for_each(|(_, (segment, _))| release_segment(&self.io.shared, segment));
    }
}

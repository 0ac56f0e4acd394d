//! Batches of cancelled operations that still run.

use crate::api::outcome::Ticket;

/// The batches of each cancelled operation, which end at their deadline at the latest, and the
/// bytes that count for it until then. Their results belong to no operation: the client may use the
/// number again.
#[derive(Default)]
pub(super) struct CancelledBatches(Vec<(Vec<Ticket>, u64)>);

impl CancelledBatches {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// An operation with these batches, at least one, was cancelled.
    pub fn add(&mut self, tickets: Vec<Ticket>, bytes: u64) {
        self.0.push((tickets, bytes));
    }

    /// A batch ended; returns the operation's bytes if it was the last of a cancelled one.
    pub fn end(&mut self, ticket: Ticket) -> u64 {
        let of_ticket = |(tickets, _): &(Vec<Ticket>, _)| tickets.contains(&ticket);
        let Some(at) = self.0.iter().position(of_ticket) else { return 0 };
        let (tickets, bytes) = &mut self.0[at];
        tickets.retain(|other| *other != ticket);
        if !tickets.is_empty() {
            return 0;
        }
        let bytes = *bytes;
        self.0.swap_remove(at);
        bytes
    }
}

//! Several batches of a client at once: each keeps the promises of a single call, also when its
//! session is dropped while it is in progress.

use std::time::Duration;

use pagelith::{CompletedBatch, Ticket};

use super::batch_memory::{PendingGet, PendingPut};
use super::client::SimClient;
use super::store_handle::{FOREVER, StoreHandle};

/// A batch in progress.
enum BatchMemory {
    Put(PendingPut),
    Get(PendingGet),
}

impl SimClient {
    /// Two to five batches over one link, completed in any order. Now and then the session is
    /// dropped with batches in progress.
    pub(super) fn run_batches(&mut self) {
        let StoreHandle::Attached(client, ..) = &self.handle else { return };
        let client = client.clone();
        let mut session = client.session();
        let mut in_progress: Vec<(Ticket, BatchMemory)> = Vec::new();
        for _ in 0..2 + self.rng.below(4) {
            let options = self.options();
            let some = self.objects(4);
            let own = if self.rng.one_in(2) { self.puts(some.clone()) } else { Vec::new() };
            in_progress.push(if own.is_empty() {
                let (gets, memory) = self.prepare_get(some);
                (session.submit_get(gets, options), BatchMemory::Get(memory))
            } else {
                let groups = self.groups(own);
                let (puts, memory) = self.prepare_put(&groups);
                (session.submit_put(puts, options), BatchMemory::Put(memory))
            });
            self.shared.tally().operations += 1;
            if self.rng.one_in(3)
                && let Some((ticket, done)) = session.poll()
            {
                self.complete(&mut in_progress, ticket, done);
            }
        }
        let given_up = self.rng.one_in(4);
        while !given_up && !in_progress.is_empty() {
            let Some((ticket, done)) = session.wait_any(FOREVER) else {
                self.shared.tally().panics += 1;
                self.shared.tally().add_finding("batch does not complete".into());
                break;
            };
            self.complete(&mut in_progress, ticket, done);
        }
        // From here on no link owns the callers' memory.
        let begun = self.shared.begin();
        drop(session);
        self.shared.end_call(begun, Duration::ZERO, "drop of a session");
        for (_, memory) in in_progress {
            match memory {
                BatchMemory::Put(memory) => self.put_completed(memory, None),
                BatchMemory::Get(memory) => self.get_completed(memory, None),
            }
        }
    }

    fn complete(
        &mut self,
        in_progress: &mut Vec<(Ticket, BatchMemory)>,
        ticket: Ticket,
        done: CompletedBatch,
    ) {
        let Some(at) = in_progress.iter().position(|(known, _)| *known == ticket) else {
            self.shared.tally().panics += 1;
            return self.shared.tally().add_finding("batch completed twice".into());
        };
        match (in_progress.swap_remove(at).1, done) {
            (BatchMemory::Put(memory), CompletedBatch::Put(done)) => {
                self.put_completed(memory, Some(done))
            }
            (BatchMemory::Get(memory), CompletedBatch::Get(done)) => {
                self.get_completed(memory, Some(done))
            }
            _ => {
                self.shared.tally().panics += 1;
                self.shared
                    .tally()
                    .add_finding("batch completed with wrong kind of outcome".into());
            }
        }
    }
}

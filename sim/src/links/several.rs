//! Several batches of a client at once: each keeps the promises of a single call, also when its
//! session is dropped while it is in progress.

use pagelith::{Done, Ticket};

use super::client::{Client, FOREVER, Face};
use super::lent::{Getting, Putting};

/// A batch in progress.
enum Lent {
    Put(Putting),
    Get(Getting),
}

impl Client {
    /// Two to five batches over one link, completed in any order. Now and then the session is
    /// dropped with batches in progress.
    pub(super) fn several(&mut self) {
        let Face::Attached(client, ..) = &self.face else { return };
        let client = client.clone();
        let mut session = client.session();
        let mut under_way: Vec<(Ticket, Lent)> = Vec::new();
        for _ in 0..2 + self.rng.below(4) {
            let options = self.options();
            let some = self.objects(4);
            let own = if self.rng.one_in(2) { self.puts(some.clone()) } else { Vec::new() };
            under_way.push(if own.is_empty() {
                let (gets, lent) = self.lend_get(some);
                (session.submit_get(gets, options), Lent::Get(lent))
            } else {
                let groups = self.groups(own);
                let (puts, lent) = self.lend_put(&groups);
                (session.submit_put(puts, options), Lent::Put(lent))
            });
            self.shared.tally().operations += 1;
            if self.rng.one_in(3)
                && let Some((ticket, done)) = session.poll()
            {
                self.over(&mut under_way, ticket, done);
            }
        }
        let given_up = self.rng.one_in(4);
        while !given_up && !under_way.is_empty() {
            let Some((ticket, done)) = session.wait_any(FOREVER) else {
                self.shared.tally().panics += 1;
                self.shared.tally().found("a batch of several is never done".into());
                break;
            };
            self.over(&mut under_way, ticket, done);
        }
        // From here on no link owns the callers' memory.
        drop(session);
        for (_, lent) in under_way {
            match lent {
                Lent::Put(lent) => self.put_over(lent, None),
                Lent::Get(lent) => self.got(lent, None),
            }
        }
    }

    fn over(&mut self, under_way: &mut Vec<(Ticket, Lent)>, ticket: Ticket, done: Done) {
        let Some(at) = under_way.iter().position(|(known, _)| *known == ticket) else {
            self.shared.tally().panics += 1;
            return self.shared.tally().found("a batch is done twice".into());
        };
        match (under_way.swap_remove(at).1, done) {
            (Lent::Put(lent), Done::Put(done)) => self.put_over(lent, Some(done)),
            (Lent::Get(lent), Done::Get(done)) => self.got(lent, Some(done)),
            _ => {
                self.shared.tally().panics += 1;
                self.shared.tally().found("a batch has the outcome of another".into());
            }
        }
    }
}

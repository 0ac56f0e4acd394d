//! What gets count, each session where few others do: a line that all threads wrote would be what they wait for.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::api::outcome::MissCause;
use crate::api::stats::Counters;

/// How many there are; more sessions than that share some.
const TALLIES: usize = 32;

/// What some of the sessions have counted. Two lines of 64 bytes are fetched together.
#[derive(Default)]
#[repr(align(128))]
struct Tally {
    hits_memory: AtomicU64,
    hits_unverified: AtomicU64,
    hits_ssd: AtomicU64,
    bytes_memory: AtomicU64,
    bytes_ssd: AtomicU64,
    staged_bytes: AtomicU64,
    damaged: AtomicU64,
    misses: [AtomicU64; MissCause::ALL.len()],
}

/// All of them.
#[derive(Default)]
pub(crate) struct StripedCounters {
    tallies: [Tally; TALLIES],
    sessions: AtomicU64,
}

impl StripedCounters {
    /// Which tally a new session has.
    pub fn join(&self) -> usize {
        (self.sessions.fetch_add(1, Relaxed) % TALLIES as u64) as usize
    }

    /// Add what a batch of gets counted to a tally.
    pub fn add(&self, tally: usize, batch: &Counters) {
        let tally = &self.tallies[tally];
        tally.pairs(batch).filter(|(_, n)| *n > 0).for_each(|(sum, n)| {
            sum.fetch_add(n, Relaxed);
        });
    }

    /// Add what all of them have to the `counters`.
    pub fn add_to(&self, counters: &mut Counters) {
        for tally in &self.tallies {
            let read = |sum: &AtomicU64| sum.load(Relaxed);
            counters.hits_memory += read(&tally.hits_memory);
            counters.hits_unverified += read(&tally.hits_unverified);
            counters.hits_ssd += read(&tally.hits_ssd);
            counters.bytes_memory += read(&tally.bytes_memory);
            counters.bytes_ssd += read(&tally.bytes_ssd);
            counters.staged_bytes += read(&tally.staged_bytes);
            counters.damaged += read(&tally.damaged);
            counters.misses.iter_mut().zip(&tally.misses).for_each(|(sum, n)| *sum += read(n));
        }
    }
}

impl Tally {
    fn pairs<'a>(&'a self, batch: &'a Counters) -> impl Iterator<Item = (&'a AtomicU64, u64)> {
        let named = [
            (&self.hits_memory, batch.hits_memory),
            (&self.hits_unverified, batch.hits_unverified),
            (&self.hits_ssd, batch.hits_ssd),
            (&self.bytes_memory, batch.bytes_memory),
            (&self.bytes_ssd, batch.bytes_ssd),
            (&self.staged_bytes, batch.staged_bytes),
            (&self.damaged, batch.damaged),
        ];
        named.into_iter().chain(self.misses.iter().zip(batch.misses))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_any_session_adds_is_in_the_sum() {
        let tallies = StripedCounters::default();
        for _ in 0..2 * TALLIES {
            let mut batch = Counters { hits_memory: 2, bytes_ssd: 3, ..Counters::default() };
            batch.miss(MissCause::Damaged);
            tallies.add(tallies.join(), &batch);
        }
        let mut sum = Counters { bytes_ssd: 1, ..Counters::default() };
        tallies.add_to(&mut sum);
        let n = 2 * TALLIES as u64;
        assert_eq!((sum.hits_memory, sum.bytes_ssd, sum.damaged), (2 * n, 3 * n + 1, n));
        assert_eq!(sum.misses.iter().sum::<u64>(), n);
    }
}

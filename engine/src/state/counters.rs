//! Counters of gets, striped over sessions, so that threads do not contend for one cache line.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use crate::api::outcome::MissCause;
use crate::state::absence::{Absence, AbsenceCounts};
use crate::state::stats::Counters;

/// Number of stripes. If there are more sessions, some share a stripe.
const STRIPES: usize = 32;

/// Counters of some of the sessions. Aligned to two cache lines of 64 bytes, which are fetched
/// together.
#[derive(Default)]
#[repr(align(128))]
struct CounterStripe {
    hits_memory: AtomicU64,
    hits_unverified: AtomicU64,
    hits_ssd: AtomicU64,
    bytes_memory: AtomicU64,
    bytes_ssd: AtomicU64,
    staged_bytes: AtomicU64,
    damaged: AtomicU64,
    misses: [AtomicU64; MissCause::ALL.len()],
    absent: [AtomicU64; Absence::ALL.len()],
    exists_found: AtomicU64,
    exists_absent: [AtomicU64; Absence::ALL.len()],
}

/// The counters of all sessions.
#[derive(Default)]
pub(crate) struct StripedCounters {
    stripes: [CounterStripe; STRIPES],
    sessions: AtomicU64,
}

impl StripedCounters {
    /// The stripe of a new session.
    pub fn assign_stripe(&self) -> usize {
        (self.sessions.fetch_add(1, Relaxed) % STRIPES as u64) as usize
    }

    /// Add the counts of a batch of gets to a stripe.
    pub fn add(&self, stripe: usize, batch: &Counters) {
        let stripe = &self.stripes[stripe];
        stripe.pairs(batch).filter(|(_, n)| *n > 0).for_each(|(sum, n)| {
            sum.fetch_add(n, Relaxed);
        });
    }

    /// Add the keys that one call of `exists` found, and those that it did not.
    pub fn add_exists(&self, request: u64, found: u64, absent: &AbsenceCounts) {
        // A call has no session; calls that follow each other use different stripes.
        let stripe = &self.stripes[(request % STRIPES as u64) as usize];
        stripe.exists_found.fetch_add(found, Relaxed);
        for (sum, n) in stripe.exists_absent.iter().zip(absent).filter(|(_, n)| **n > 0) {
            sum.fetch_add(*n, Relaxed);
        }
    }

    /// Keys that `exists` found, and those that it did not.
    pub fn exists(&self) -> (u64, AbsenceCounts) {
        let (mut found, mut absent) = (0, AbsenceCounts::default());
        for stripe in &self.stripes {
            found += stripe.exists_found.load(Relaxed);
            let counts = stripe.exists_absent.iter();
            absent.iter_mut().zip(counts).for_each(|(sum, n)| *sum += n.load(Relaxed));
        }
        (found, absent)
    }

    /// Add the sums over all stripes to `counters`.
    pub fn add_to(&self, counters: &mut Counters) {
        for stripe in &self.stripes {
            let read = |sum: &AtomicU64| sum.load(Relaxed);
            counters.hits_memory += read(&stripe.hits_memory);
            counters.hits_unverified += read(&stripe.hits_unverified);
            counters.hits_ssd += read(&stripe.hits_ssd);
            counters.bytes_memory += read(&stripe.bytes_memory);
            counters.bytes_ssd += read(&stripe.bytes_ssd);
            counters.staged_bytes += read(&stripe.staged_bytes);
            counters.damaged += read(&stripe.damaged);
            counters.misses.iter_mut().zip(&stripe.misses).for_each(|(sum, n)| *sum += read(n));
            counters.absent.iter_mut().zip(&stripe.absent).for_each(|(sum, n)| *sum += read(n));
        }
    }
}

impl CounterStripe {
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
        named
            .into_iter()
            .chain(self.misses.iter().zip(batch.misses))
            .chain(self.absent.iter().zip(batch.absent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_sessions_are_summed() {
        let counters_of_gets = StripedCounters::default();
        for _ in 0..2 * STRIPES {
            let mut batch = Counters { hits_memory: 2, bytes_ssd: 3, ..Counters::default() };
            batch.miss(MissCause::Damaged);
            counters_of_gets.add(counters_of_gets.assign_stripe(), &batch);
        }
        let mut sum = Counters { bytes_ssd: 1, ..Counters::default() };
        counters_of_gets.add_to(&mut sum);
        let n = 2 * STRIPES as u64;
        assert_eq!((sum.hits_memory, sum.bytes_ssd, sum.damaged), (2 * n, 3 * n + 1, n));
        assert_eq!(sum.misses.iter().sum::<u64>(), n);
    }
}

//! How long loads from SSD took lately, to compare them with recomputing
//! (`read.prefill_tokens_per_s`).

use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::sync::{Mutex, PoisonError};

/// The share of the earlier sums that is kept with each batch.
const KEPT: f64 = 7.0 / 8.0;
/// An estimate is not used if no batch was loaded for this long: otherwise a slow moment would keep
/// all later gets from being loaded, and so from being measured.
const USED_FOR: Duration = Duration::from_secs(5);

/// Bytes and time of recent batches, of all sessions. Its lock is a leaf.
#[derive(Default)]
pub(crate) struct LoadRate(Mutex<Sums>);

#[derive(Clone, Copy, Default)]
struct Sums {
    bytes: f64,
    seconds: f64,
    /// When the last batch ended.
    at: Mono,
}

impl LoadRate {
    /// A batch loaded so many bytes, its requests to the device included.
    pub fn note(&self, bytes: u64, took: Duration, now: Mono) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        sums.bytes = sums.bytes * KEPT + bytes as f64;
        sums.seconds = sums.seconds * KEPT + took.as_secs_f64();
        sums.at = now;
    }

    /// The time in seconds that a load of so many bytes will take; `None` if that is not known.
    pub fn seconds(&self, bytes: u64, now: Mono) -> Option<f64> {
        let sums = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = sums.bytes > 0.0 && now.since(sums.at) < USED_FOR;
        is_known.then(|| bytes as f64 * sums.seconds / sums.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimate_follows_recent_batches_and_is_dropped_when_it_is_old() {
        let (rate, at) = (LoadRate::default(), |s| Mono::default().after(Duration::from_secs(s)));
        assert_eq!(rate.seconds(1000, at(0)), None);
        rate.note(1000, Duration::from_secs(1), at(1));
        assert_eq!(rate.seconds(500, at(1)), Some(0.5));
        (0..50).for_each(|_| rate.note(1000, Duration::from_secs(3), at(2)));
        assert!(rate.seconds(1000, at(6)).is_some_and(|s| (2.9..=3.0).contains(&s)));
        assert_eq!(rate.seconds(1000, at(7)), None);
    }
}

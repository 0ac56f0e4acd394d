//! A latency histogram in constant memory. Each bucket is 1/64 of its power of two wide, so a
//! percentile is at most 1.6 % above the true one. The maximum is exact.

use std::time::Duration;

const SUB_BITS: u32 = 6;
const BUCKETS: usize = (65 - SUB_BITS as usize) << SUB_BITS;

/// A histogram of durations.
#[derive(Clone, Debug)]
pub(crate) struct Latencies {
    counts: Vec<u64>,
    total: u64,
    max: Duration,
}

impl Latencies {
    pub(crate) fn new() -> Latencies {
        Latencies { counts: vec![0; BUCKETS], total: 0, max: Duration::ZERO }
    }

    pub(crate) fn add(&mut self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counts[bucket(nanos)] += 1;
        self.total += 1;
        self.max = self.max.max(took);
    }

    /// Add all durations of `other`.
    pub(crate) fn join(&mut self, other: &Latencies) {
        self.counts.iter_mut().zip(&other.counts).for_each(|(all, more)| *all += more);
        self.total += other.total;
        self.max = self.max.max(other.max);
    }

    /// The smallest duration that at least `share` of all do not exceed; zero if there are none.
    pub(crate) fn percentile(&self, share: f64) -> Duration {
        let wanted = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (at, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(upper_end(at)).min(self.max);
            }
        }
        self.max
    }

    pub(crate) fn max(&self) -> Duration {
        self.max
    }
}

fn bucket(nanos: u64) -> usize {
    let power = nanos.max(1).ilog2();
    if power < SUB_BITS {
        return nanos as usize;
    }
    let shift = power - SUB_BITS;
    (((shift + 1) as usize) << SUB_BITS) + ((nanos >> shift) as usize & ((1 << SUB_BITS) - 1))
}

/// The largest value of a bucket.
fn upper_end(bucket: usize) -> u64 {
    let (row, column) = (bucket >> SUB_BITS, (bucket & ((1 << SUB_BITS) - 1)) as u64);
    if row == 0 {
        return column;
    }
    let shift = row as u32 - 1;
    let first = ((1 << SUB_BITS) + column) << shift;
    first + ((1 << shift) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_of_each_value_ends_within_a_64th_above_it() {
        let powers = (0..64).map(|p| 1_u64 << p).flat_map(|v| [v - 1, v, v + 1, v | (v / 3)]);
        for value in powers.chain([u64::MAX]) {
            let end = upper_end(bucket(value));
            assert!(end >= value && end - value <= value / 64, "value={value} end={end}");
            assert!(end == u64::MAX || bucket(end + 1) == bucket(value) + 1, "value={value}");
        }
    }

    #[test]
    fn percentiles_of_a_known_set_are_within_the_error() {
        let mut latencies = Latencies::new();
        assert_eq!(latencies.percentile(0.5), Duration::ZERO);
        for micros in 1..=1000 {
            latencies.add(Duration::from_micros(micros));
        }
        for (share, micros) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = latencies.percentile(share).as_nanos() as f64 / 1000.0;
            assert!(found >= micros && found <= micros * 1.016, "share={share} found={found}");
        }
        assert_eq!(latencies.max(), Duration::from_millis(1));
        let mut others = Latencies::new();
        others.add(Duration::from_micros(5000));
        others.join(&latencies);
        assert_eq!(
            (others.max(), others.percentile(0.5)),
            (Duration::from_millis(5), latencies.percentile(0.501))
        );
    }
}

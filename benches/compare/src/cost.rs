//! The cost of a phase of a round.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A phase in progress.
pub(crate) struct Cost {
    begun: Instant,
    cpu: Duration,
    batches: Vec<Duration>,
}

/// A finished phase.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Phase {
    /// GB (10^9 bytes) of objects per second.
    pub(crate) gb_per_s: f64,
    /// CPU seconds of the whole process, user and system, per 10^9 bytes of objects.
    pub(crate) cpu_s_per_gb: f64,
    /// Median time of a batch.
    pub(crate) p50_us: f64,
    /// 99th percentile of the time of a batch.
    pub(crate) p99_us: f64,
}

impl Cost {
    /// Begins a phase.
    pub(crate) fn begin() -> Cost {
        Cost { begun: Instant::now(), cpu: process_cpu(), batches: Vec::new() }
    }

    /// Records the time of a batch.
    pub(crate) fn batch(&mut self, took: Duration) {
        self.batches.push(took);
    }

    /// Ends the phase, in which `bytes` of objects were moved.
    pub(crate) fn end(mut self, bytes: u64) -> Phase {
        let (time, cpu) = (self.begun.elapsed(), process_cpu() - self.cpu);
        self.batches.sort_unstable();
        let gb = bytes as f64 / 1e9;
        Phase {
            gb_per_s: gb / time.as_secs_f64(),
            cpu_s_per_gb: cpu.as_secs_f64() / gb,
            p50_us: percentile(&self.batches, 0.5),
            p99_us: percentile(&self.batches, 0.99),
        }
    }
}

/// The time in microseconds that `share` of all did not exceed.
fn percentile(sorted: &[Duration], share: f64) -> f64 {
    let at = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(at.max(1) - 1).map_or(0.0, |took| took.as_secs_f64() * 1e6)
}

/// CPU time of all threads of the process, including kernel threads of its ring.
fn process_cpu() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec.try_into().unwrap_or(0), now.tv_nsec.try_into().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_few_and_none() {
        let took: Vec<Duration> = (1..=100).map(Duration::from_micros).collect();
        assert_eq!(percentile(&took, 0.5).round(), 50.0);
        assert_eq!(percentile(&took, 0.99).round(), 99.0);
        assert_eq!(percentile(&took[..1], 0.99).round(), 1.0);
        assert_eq!(percentile(&[], 0.5), 0.0);
    }
}

//! Detects a device that completes nothing. Only time between regular observations counts: after a
//! clock jump, or while the process was not scheduled, the device could not be observed.

use std::time::Duration;

use pagelith_io::clock::Mono;

/// Most time that one interval between observations adds: twice the flusher's longest sleep.
const INTERVAL_MAX: Duration = Duration::from_millis(100);

/// Watches operations in flight.
#[derive(Debug)]
pub(crate) struct StallDetector {
    ended: u64,
    observed_at: Mono,
    idle: Duration,
}

impl StallDetector {
    /// A detector that starts at `now`.
    pub fn new(now: Mono) -> StallDetector {
        StallDetector { ended: 0, observed_at: now, idle: Duration::ZERO }
    }

    /// Record an observation: operations completed so far, and operations in flight. Returns for
    /// how long none completed.
    pub fn observe(&mut self, ended: u64, in_flight: usize, now: Mono) -> Duration {
        let passed = now.since(self.observed_at).min(INTERVAL_MAX);
        let moved = ended != self.ended || in_flight == 0;
        self.idle = if moved { Duration::ZERO } else { self.idle + passed };
        (self.ended, self.observed_at) = (ended, now);
        self.idle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Mono {
        Mono::default().after(Duration::from_millis(ms))
    }

    #[test]
    fn no_completion_counts_as_stall_until_one_completes() {
        let mut stall = StallDetector::new(at(0));
        let last = (1..=100).map(|i| stall.observe(0, 1, at(i * 50))).last();
        assert_eq!(last, Some(Duration::from_secs(5)));
        assert_eq!(stall.observe(1, 1, at(5050)), Duration::ZERO);
        assert_eq!(stall.observe(1, 0, at(5100)), Duration::ZERO, "nothing is in flight");
        assert_eq!(stall.observe(1, 1, at(5110)), Duration::from_millis(10));
    }

    #[test]
    fn clock_jump_adds_at_most_one_interval() {
        let mut stall = StallDetector::new(at(0));
        stall.observe(0, 1, at(10));
        assert_eq!(stall.observe(0, 1, at(3_600_000)), Duration::from_millis(110));
    }
}

//! The health of a rail: after several failures in a short time it rests for a while.

use std::collections::VecDeque;
use std::time::Duration;

use pagelith_io::clock::Mono;

/// Failures that make a rail rest.
pub const FAILURES_MAX: usize = 3;
/// The time in which they happen.
pub const FAILURES_WITHIN: Duration = Duration::from_secs(10);
/// The first rest.
pub const REST_MIN: Duration = Duration::from_secs(30);
/// The longest rest. A rail that did not fail for as long begins with the first rest again.
pub const REST_MAX: Duration = Duration::from_secs(300);

/// Failures and rests of a rail.
#[derive(Debug, Default)]
pub struct RailHealth {
    /// The latest failures, at most [`FAILURES_MAX`].
    failures: VecDeque<Mono>,
    rest: Option<Rest>,
}

#[derive(Clone, Copy, Debug)]
struct Rest {
    until: Mono,
    length: Duration,
}

impl RailHealth {
    /// Whether the rail may be used.
    pub fn is_up(&self, now: Mono) -> bool {
        self.rest.is_none_or(|rest| now >= rest.until)
    }

    /// Note a failure. Returns the length of the rest that it begins, if it begins one. Failures
    /// during a rest are those of links from before it, and count for nothing.
    pub fn note_failure(&mut self, now: Mono) -> Option<Duration> {
        if !self.is_up(now) {
            return None;
        }
        self.failures.push_back(now);
        self.failures.retain(|failure| now.since(*failure) <= FAILURES_WITHIN);
        if self.failures.len() < FAILURES_MAX {
            return None;
        }
        self.failures.clear();
        let length = match self.rest {
            Some(last) if now.since(last.until) < REST_MAX => (last.length * 2).min(REST_MAX),
            _ => REST_MIN,
        };
        self.rest = Some(Rest { until: now.after(length), length });
        Some(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono::default().after(Duration::from_secs(seconds))
    }

    /// Three failures at once; the rest that they begin, in seconds.
    fn fail(health: &mut RailHealth, now: u64) -> Option<u64> {
        let rests: Vec<_> = (0..3).map(|_| health.note_failure(at(now))).collect();
        assert_eq!(rests[..2], [None; 2]);
        rests[2].map(|rest| rest.as_secs())
    }

    #[test]
    fn third_failure_in_10_s_begins_a_rest_of_30_s() {
        let mut health = RailHealth::default();
        let failures = [100, 105, 111].map(|now| health.note_failure(at(now)));
        assert_eq!(failures, [None; 3], "the first is too old");
        assert!(health.is_up(at(111)));
        assert_eq!(health.note_failure(at(115)), Some(REST_MIN));
        assert!(!health.is_up(at(115)) && !health.is_up(at(144)));
        assert!(health.is_up(at(145)));
    }

    #[test]
    fn rests_double_up_to_300_s_and_begin_anew_after_300_good_seconds() {
        let (mut health, mut now) = (RailHealth::default(), 0);
        for expected in [30, 60, 120, 240, 300, 300] {
            assert_eq!(fail(&mut health, now), Some(expected));
            now += expected;
        }
        now += 299;
        assert_eq!(fail(&mut health, now), Some(300));
        assert_eq!(fail(&mut health, now + 300 + 300), Some(30));
    }

    #[test]
    fn failures_during_a_rest_count_for_nothing() {
        let mut health = RailHealth::default();
        assert_eq!(fail(&mut health, 0), Some(30));
        assert_eq!(fail(&mut health, 29), None);
        assert_eq!(health.note_failure(at(30)), None);
        assert_eq!(health.note_failure(at(31)), None);
        assert_eq!(health.note_failure(at(32)), Some(Duration::from_secs(60)));
    }
}

//! Tracks recent SSD read latency. A read that may outlast its deadline goes through a staging
//! buffer, so that the caller need not wait for memory that the kernel still owns.

use std::sync::atomic::Ordering;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::sync::AtomicU64;

/// Time after which the estimate halves, unless a longer read was seen.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// Polls at most this far apart, as a waiting session makes them, tell when a completion arrived.
const POLLS_APART: Duration = Duration::from_millis(40);

/// The longest recent read of all sessions: a maximum that decays. The two fields are stored
/// separately; at worst one estimate is briefly wrong.
#[derive(Default)]
pub(crate) struct ReadLatency {
    longest: AtomicU64,
    /// When it ended.
    at: AtomicU64,
}

impl ReadLatency {
    /// Record that a read took `took`.
    pub fn note(&self, took: Duration, now: Mono) {
        if took > self.recent(now) {
            self.at.store(now.0, Ordering::Relaxed);
            self.longest
                .store(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// The longest recent read; zero before the first.
    pub fn recent(&self, now: Mono) -> Duration {
        let age = now.since(Mono(self.at.load(Ordering::Relaxed)));
        let halvings = u32::try_from(age.as_nanos() / HALF_LIFE.as_nanos()).unwrap_or(u32::MAX);
        Duration::from_nanos(
            self.longest.load(Ordering::Relaxed).checked_shr(halvings).unwrap_or(0),
        )
    }

    /// Whether a read with this deadline may take longer. A read whose deadline has passed is not
    /// submitted at all, hence false.
    pub fn may_outlast(&self, deadline: Mono, now: Mono) -> bool {
        now < deadline && deadline.since(now) < self.recent(now)
    }
}

/// When a session last polled for completions.
#[derive(Default)]
pub(crate) struct PollTimes(Mono);

impl PollTimes {
    /// Record a poll that begins, or that returned completions. Returns the time from which the
    /// device's completions had been available: `now` for a regular poll, else the previous poll,
    /// since the session did other work in between.
    pub fn record(&mut self, now: Mono) -> Mono {
        let before = std::mem::replace(&mut self.0, now);
        if now.since(before) <= POLLS_APART { now } else { before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn at(n: u64) -> Mono {
        Mono::default().after(ms(n))
    }

    #[test]
    fn longest_read_halves_over_time() {
        let latency = ReadLatency::default();
        assert!(!latency.may_outlast(at(1), at(0)), "nothing was read yet");
        latency.note(ms(800), at(1000));
        latency.note(ms(10), at(1001));
        assert_eq!(latency.recent(at(1001)), ms(800));
        assert_eq!(latency.recent(at(11_001)), ms(400));
        latency.note(ms(500), at(11_001));
        assert_eq!(latency.recent(at(11_001)), ms(500));
        assert_eq!(latency.recent(at(3_600_000)), ms(0));
    }

    #[test]
    fn read_may_outlast_deadline_nearer_than_longest_read() {
        let latency = ReadLatency::default();
        latency.note(ms(100), at(1000));
        assert!(latency.may_outlast(at(1099), at(1000)));
        assert!(!latency.may_outlast(at(1100), at(1000)));
        assert!(!latency.may_outlast(at(1000), at(1000)), "deadline passed");
    }

    #[test]
    fn time_between_distant_polls_is_not_counted() {
        let mut poll_times = PollTimes::default();
        poll_times.record(at(1000));
        assert_eq!(poll_times.record(at(1020)), at(1020));
        assert_eq!(poll_times.record(at(9000)), at(1020), "the session did other work");
    }
}

//! How long reads from the SSD tier took lately: a read whose time may be over before is staged, so that its caller is not kept
//! waiting for memory that the kernel has.

use std::sync::atomic::Ordering;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::sync::AtomicU64;

/// After so long without a longer read the estimate is half of what it was.
const HALF_LIFE: Duration = Duration::from_secs(10);
/// Looks this far apart or less, as those of a waiting session are, say when a completion came.
const LOOKS_APART: Duration = Duration::from_millis(40);

/// The longest read of late, of all sessions: a maximum that decays. The two numbers are written apart; at worst one estimate is
/// wrong for a moment.
#[derive(Default)]
pub(crate) struct SlowReads {
    longest: AtomicU64,
    /// When it ended.
    at: AtomicU64,
}

impl SlowReads {
    /// A read took so long.
    pub fn note(&self, took: Duration, now: Mono) {
        if took > self.recent(now) {
            self.at.store(now.0, Ordering::Relaxed);
            self.longest.store(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    /// The longest of late; zero before the first.
    pub fn recent(&self, now: Mono) -> Duration {
        let age = now.since(Mono(self.at.load(Ordering::Relaxed)));
        let halvings = u32::try_from(age.as_nanos() / HALF_LIFE.as_nanos()).unwrap_or(u32::MAX);
        Duration::from_nanos(self.longest.load(Ordering::Relaxed).checked_shr(halvings).unwrap_or(0))
    }

    /// Whether a read that has until `deadline` may take longer. What is late already is not read at all.
    pub fn may_outlast(&self, deadline: Mono, now: Mono) -> bool {
        now < deadline && deadline.since(now) < self.recent(now)
    }
}

/// When a session looked for completions last.
#[derive(Default)]
pub(crate) struct Looks(Mono);

impl Looks {
    /// A look begins, or ends with completions: since when these have been there, as far as the device is to blame. Between two looks that
    /// are far apart the session did something else.
    pub fn look(&mut self, now: Mono) -> Mono {
        let before = std::mem::replace(&mut self.0, now);
        if now.since(before) <= LOOKS_APART { now } else { before }
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
    fn longest_read_counts_until_it_is_long_ago() {
        let slow = SlowReads::default();
        assert!(!slow.may_outlast(at(1), at(0)), "nothing was read yet");
        slow.note(ms(800), at(1000));
        slow.note(ms(10), at(1001));
        assert_eq!(slow.recent(at(1001)), ms(800));
        assert_eq!(slow.recent(at(11_001)), ms(400));
        slow.note(ms(500), at(11_001));
        assert_eq!(slow.recent(at(11_001)), ms(500));
        assert_eq!(slow.recent(at(3_600_000)), ms(0));
    }

    #[test]
    fn a_read_outlasts_a_deadline_that_is_nearer_than_the_longest_read() {
        let slow = SlowReads::default();
        slow.note(ms(100), at(1000));
        assert!(slow.may_outlast(at(1099), at(1000)));
        assert!(!slow.may_outlast(at(1100), at(1000)));
        assert!(!slow.may_outlast(at(1000), at(1000)), "it is late");
    }

    #[test]
    fn time_between_looks_far_apart_is_not_the_devices() {
        let mut looks = Looks::default();
        looks.look(at(1000));
        assert_eq!(looks.look(at(1020)), at(1020));
        assert_eq!(looks.look(at(9000)), at(1020), "the session did something else");
    }
}

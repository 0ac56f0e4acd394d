//! Whether a peer is worth asking: after several failures in a row it is left alone for a while, then tried once.

use std::time::Duration;

use pagelith_io::clock::Mono;

/// Failures in a row after which a peer is left alone.
const FAILURES_MAX: u32 = 3;
/// How long at first, and at most: each trial that fails doubles it.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// How often a peer that nobody stands in for is looked for while it is left alone.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What is known of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Breaker {
    failures: u32,
    until: Option<Mono>,
    looked: Option<Mono>,
}

impl Breaker {
    /// Whether to ask the peer now.
    pub fn may_ask(&self, now: Mono) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// Whether to look if it is there again, though it is left alone. Nobody is to wait for that; of all who ask, one is told so a
    /// second.
    pub fn may_look(&mut self, now: Mono) -> bool {
        let due = self.looked.is_none_or(|looked| now.since(looked) >= LOOK_EVERY);
        self.looked = if due { Some(now) } else { self.looked };
        due
    }

    /// It answered.
    pub fn answered(&mut self) {
        *self = Breaker::default();
    }

    /// It did not.
    pub fn failed(&mut self, now: Mono) {
        self.failures = self.failures.saturating_add(1);
        if let Some(over) = self.failures.checked_sub(FAILURES_MAX) {
            let pause = PAUSE.saturating_mul(1u32.checked_shl(over).unwrap_or(u32::MAX)).min(PAUSE_MAX);
            self.until = Some(now.after(pause));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_all_who_ask_looks_each_second() {
        let at = |ms| Mono::default().after(Duration::from_millis(ms));
        let mut breaker = Breaker::default();
        (0..100).for_each(|_| breaker.failed(at(0)));
        let looks = (0..5000).filter(|ms| breaker.may_look(at(*ms))).collect::<Vec<_>>();
        assert_eq!(looks, [0, 1000, 2000, 3000, 4000]);
        assert!(!breaker.may_ask(at(29_999)), "looking is not asking");
    }

    #[test]
    fn it_opens_at_the_third_failure_and_each_trial_that_fails_doubles_the_pause() {
        let at = |ms| Mono::default().after(Duration::from_millis(ms));
        let mut breaker = Breaker::default();
        breaker.failed(at(0));
        breaker.failed(at(0));
        assert!(breaker.may_ask(at(0)));
        breaker.failed(at(0));
        assert!(!breaker.may_ask(at(999)) && breaker.may_ask(at(1000)));
        breaker.failed(at(1000));
        assert!(!breaker.may_ask(at(2999)) && breaker.may_ask(at(3000)));
        (0..100).for_each(|_| breaker.failed(at(3000)));
        assert!(!breaker.may_ask(at(32_999)) && breaker.may_ask(at(33_000)));
        breaker.answered();
        assert!(breaker.may_ask(at(0)));
        breaker.failed(at(0));
        assert!(breaker.may_ask(at(0)), "one failure after an answer is one failure");
    }
}

//! A circuit breaker for requests to a peer: it opens after several consecutive failures, and
//! closes after a successful trial. After the pause of an open breaker one trial at a time is
//! admitted, so that not all threads wait for a peer that is still down.

use std::time::Duration;

use pagelith_io::clock::Mono;

/// Consecutive failures after which the breaker opens.
const FAILURES_MAX: u32 = 3;
/// First pause; each failed trial doubles it.
const PAUSE: Duration = Duration::from_secs(1);
/// Longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Time after which a trial without a result ends. It exceeds that of a handshake
/// (`LinkLimits::handshake`).
const TRIAL_MAX: Duration = Duration::from_secs(6);
/// Interval of background probes of an open breaker, for a peer that no other peer replaces.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// Identifies a trial of a breaker. The default is that of no trial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trial(u64);

/// The state of the breaker of one peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Breaker {
    failures: u32,
    until: Option<Mono>,
    last_probe: Option<Mono>,
    /// The trial in progress, and when it ends without a result.
    trial: Option<(Trial, Mono)>,
    /// Number of trials so far.
    trials: u64,
}

impl Breaker {
    /// Whether a request may be sent to the peer now. After the pause of an open breaker, this
    /// begins a trial, unless one is in progress, and allows only requests of that trial. The
    /// caller keeps its trial in `own`.
    pub fn allows_request(&mut self, now: Mono, own: &mut Trial) -> bool {
        let Some(until) = self.until else { return true };
        if now < until {
            return false;
        }
        if self.trial.is_none_or(|(_, end)| now >= end) {
            self.trials += 1;
            *own = Trial(self.trials);
            self.trial = Some((*own, now.after(TRIAL_MAX)));
        }
        self.trial.is_some_and(|(trial, _)| trial == *own)
    }

    /// End a trial without a result, so that another may begin.
    pub fn end_trial(&mut self, own: Trial) {
        self.trial.take_if(|(trial, _)| *trial == own);
    }

    /// Whether the caller should probe the peer although the breaker is open. True for one caller
    /// per second; no request waits for the probe.
    pub fn allows_probe(&mut self, now: Mono) -> bool {
        let due = self.last_probe.is_none_or(|last| now.since(last) >= PROBE_INTERVAL);
        self.last_probe = if due { Some(now) } else { self.last_probe };
        due
    }

    /// Note a reply of the peer: the breaker closes.
    pub fn record_success(&mut self) {
        // Numbers of trials are not used again.
        *self = Breaker { trials: self.trials, ..Breaker::default() };
    }

    /// Note a failure; from the third consecutive one on, the breaker opens for a pause.
    pub fn record_failure(&mut self, now: Mono) {
        self.failures = self.failures.saturating_add(1);
        self.trial = None;
        if let Some(over) = self.failures.checked_sub(FAILURES_MAX) {
            let pause =
                PAUSE.saturating_mul(1u32.checked_shl(over).unwrap_or(u32::MAX)).min(PAUSE_MAX);
            self.until = Some(now.after(pause));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_caller_per_second_probes_open_breaker() {
        let at = |ms| Mono::default().after(Duration::from_millis(ms));
        let (mut breaker, mut own) = (Breaker::default(), Trial::default());
        (0..100).for_each(|_| breaker.record_failure(at(0)));
        let looks = (0..5000).filter(|ms| breaker.allows_probe(at(*ms))).collect::<Vec<_>>();
        assert_eq!(looks, [0, 1000, 2000, 3000, 4000]);
        assert!(!breaker.allows_request(at(29_999), &mut own), "probes do not close the breaker");
    }

    #[test]
    fn breaker_opens_at_third_failure_and_failed_trials_double_pause() {
        let at = |ms| Mono::default().after(Duration::from_millis(ms));
        let (mut breaker, mut own) = (Breaker::default(), Trial::default());
        breaker.record_failure(at(0));
        breaker.record_failure(at(0));
        assert!(breaker.allows_request(at(0), &mut own));
        breaker.record_failure(at(0));
        assert!(
            !breaker.allows_request(at(999), &mut own)
                && breaker.allows_request(at(1000), &mut own)
        );
        breaker.record_failure(at(1000));
        assert!(
            !breaker.allows_request(at(2999), &mut own)
                && breaker.allows_request(at(3000), &mut own)
        );
        (0..100).for_each(|_| breaker.record_failure(at(3000)));
        assert!(
            !breaker.allows_request(at(32_999), &mut own)
                && breaker.allows_request(at(33_000), &mut own)
        );
        breaker.record_success();
        assert!(breaker.allows_request(at(0), &mut own));
        breaker.record_failure(at(0));
        assert!(breaker.allows_request(at(0), &mut own), "a reply resets the count of failures");
    }
}

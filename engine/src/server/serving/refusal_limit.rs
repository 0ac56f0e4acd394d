//! Rate limit for log lines that unauthenticated clients can cause: a maximum per second, and the
//! number of suppressed lines.

use std::time::Duration;

use pagelith_io::clock::Mono;

/// Maximum lines per second.
const LINES_MAX: u32 = 10;
const SECOND: Duration = Duration::from_secs(1);

/// The lines of the current second.
#[derive(Debug, Default)]
pub struct RefusalLimit {
    since: Option<Mono>,
    logged: u32,
    suppressed: u64,
    /// A failed accept was logged in this second: that has one line per second.
    accept_failed: bool,
}

/// The lines to log for one refusal.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct LogDecision {
    /// Whether the refusal gets its own line.
    pub line: bool,
    /// Suppressed lines of the previous second.
    pub suppressed: u64,
}

impl RefusalLimit {
    /// Count a refusal of a peer, or with `of_accept` a failed accept.
    pub fn refused(&mut self, now: Mono, of_accept: bool) -> LogDecision {
        let mut decision = self.roll_over(now);
        let fits = match of_accept {
            true => !std::mem::replace(&mut self.accept_failed, true),
            false => self.logged < LINES_MAX,
        };
        decision.line = fits;
        match (fits, of_accept) {
            (true, false) => self.logged += 1,
            (true, true) => {}
            (false, _) => self.suppressed += 1,
        }
        decision
    }

    /// Start a new second if the current one has passed; returns its suppressed lines.
    pub fn roll_over(&mut self, now: Mono) -> LogDecision {
        let since = *self.since.get_or_insert(now);
        if now.since(since) < SECOND {
            return LogDecision::default();
        }
        let suppressed = self.suppressed;
        *self = RefusalLimit { since: Some(now), ..RefusalLimit::default() };
        LogDecision { line: false, suppressed }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_beyond_the_limit_per_second_are_counted() {
        let mut limit = RefusalLimit::default();
        let at = |ms: u64| Mono(5_000_000_000 + ms * 1_000_000);
        let lines = |limit: &mut RefusalLimit, ms| {
            (0..100).filter(|_| limit.refused(at(ms), false).line).count()
        };
        assert_eq!((lines(&mut limit, 0), lines(&mut limit, 999)), (10, 0));
        assert_eq!(limit.roll_over(at(999)), LogDecision::default());
        assert_eq!(limit.roll_over(at(1000)), LogDecision { line: false, suppressed: 190 });
        assert_eq!(limit.roll_over(at(3000)), LogDecision::default(), "no line was suppressed");
        assert_eq!(lines(&mut limit, 3000), 10);
        assert_eq!(limit.refused(at(4000), false), LogDecision { line: true, suppressed: 90 });
    }

    #[test]
    fn failed_accept_is_logged_once_a_second() {
        let mut limit = RefusalLimit::default();
        let mut logged = 0;
        for ms in (0..3000).step_by(200) {
            (0..50).for_each(|_| _ = limit.refused(Mono(ms * 1_000_000), false));
            logged += u32::from(limit.refused(Mono(ms * 1_000_000), true).line);
        }
        assert_eq!(logged, 3);
    }
}

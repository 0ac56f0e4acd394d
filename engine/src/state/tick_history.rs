//! Which tick of recency it was at earlier times. Ticks count bytes of the log, and limits of
//! namespaces count days.

use std::collections::VecDeque;
use std::time::Duration;

use pagelith_io::clock::Mono;

/// Samples within the longest time that may be requested.
const SAMPLES: u32 = 64;

/// Ticks since the open.
#[derive(Debug)]
pub(crate) struct TickHistory {
    /// Time and tick, both ascending.
    samples: VecDeque<(Mono, u64)>,
    longest: Duration,
}

impl TickHistory {
    /// For questions about times up to `longest` ago; nothing is kept if it is zero.
    pub fn new(longest: Duration) -> TickHistory {
        TickHistory { samples: VecDeque::new(), longest }
    }

    /// It is this tick now.
    pub fn note(&mut self, now: Mono, tick: u64) {
        let is_due = |(last, _): &(Mono, u64)| now.since(*last) >= self.longest / SAMPLES;
        if self.longest.is_zero() || !self.samples.back().is_none_or(is_due) {
            return;
        }
        self.samples.push_back((now, tick));
        while self.samples.get(1).is_some_and(|(at, _)| now.since(*at) >= self.longest) {
            self.samples.pop_front();
        }
    }

    /// A tick that was reached by `ago` before now: what has an earlier tick was not requested
    /// since. `None` if the store was not open then.
    pub fn tick_before(&self, now: Mono, ago: Duration) -> Option<u64> {
        let is_before = |(at, _): &&(Mono, u64)| now.since(*at) >= ago;
        self.samples.iter().rev().find(is_before).map(|(_, tick)| *tick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn tick_before_a_time_is_never_later_than_that_time() {
        let mut history = TickHistory::new(2 * DAY);
        let start = Mono::default();
        let at = |hours: u32| start.after(DAY / 24 * hours);
        for hour in 0..480 {
            history.note(at(hour), u64::from(hour) * 10);
            for days in 1..=2 {
                let then = hour.checked_sub(days * 24).map(|hour| u64::from(hour) * 10);
                let found = history.tick_before(at(hour), DAY * days);
                assert_eq!(found.is_some(), then.is_some(), "hour={hour} days={days}");
                let (found, then) = (found.unwrap_or(0), then.unwrap_or(0));
                assert!(found <= then && found + 10 >= then, "{found} of {then} hour={hour}");
            }
        }
        assert!(history.samples.len() <= SAMPLES as usize + 2, "{}", history.samples.len());
        let mut unused = TickHistory::new(Duration::ZERO);
        unused.note(start, 7);
        assert_eq!(unused.tick_before(at(9), Duration::ZERO), None);
    }
}

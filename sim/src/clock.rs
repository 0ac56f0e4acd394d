//! A clock that advances only when a test calls it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};

/// Simulated monotonic time, from 0 ns. Clones share the time.
#[derive(Clone, Debug, Default)]
pub struct SimClock(Arc<AtomicU64>);

impl SimClock {
    /// A clock at 0 ns.
    pub fn new() -> SimClock {
        SimClock::default()
    }

    /// Advances by `d`; saturates at `u64::MAX` ns.
    pub fn advance(&self, d: Duration) {
        self.advance_to(self.now().after(d));
    }

    /// Advances to `to`; does nothing if `to` is in the past.
    pub fn advance_to(&self, to: Mono) {
        self.0.fetch_max(to.0, Ordering::SeqCst);
    }

    /// Sets the time.
    ///
    /// # Panics
    /// If `to` is earlier than now: a monotonic clock never goes back, so the test is wrong.
    pub fn set(&self, to: Mono) {
        let now = self.now();
        assert!(to >= now, "monotonic clock was set back now_ns={} to_ns={}", now.0, to.0);
        self.advance_to(to);
    }
}

impl Clock for SimClock {
    fn now(&self) -> Mono {
        Mono(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_clones_share_time_and_never_go_back() {
        let clock = SimClock::new();
        let other = clock.clone();
        clock.advance(Duration::from_micros(3));
        assert_eq!(other.now(), Mono(3_000));
        other.advance_to(Mono(10));
        assert_eq!(clock.now(), Mono(3_000));
        other.set(Mono(5_000));
        assert_eq!(clock.now(), Mono(5_000));
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Mono(u64::MAX));
    }

    #[test]
    #[should_panic(expected = "set back")]
    fn clock_set_to_past_panics() {
        let clock = SimClock::new();
        clock.set(Mono(2));
        clock.set(Mono(1));
    }
}

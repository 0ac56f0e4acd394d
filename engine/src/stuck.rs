//! For how long a device has ended nothing. Only time in which somebody looked counts: when the clock jumps, or the
//! process was not run, the device had no chance to show what it did.

use std::time::Duration;

use pagelith_io::clock::Mono;

/// The most that counts between two looks: the flusher's longest sleep, twice.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// Watches operations in flight.
#[derive(Debug)]
pub(crate) struct Stuck {
    ended: u64,
    looked: Mono,
    idle: Duration,
}

impl Stuck {
    /// From now on.
    pub fn new(now: Mono) -> Stuck {
        Stuck { ended: 0, looked: now, idle: Duration::ZERO }
    }

    /// A look: how many operations have ended so far, and how many are in flight. Returns for how long none ended.
    pub fn look(&mut self, ended: u64, in_flight: usize, now: Mono) -> Duration {
        let passed = now.since(self.looked).min(LOOK_MAX);
        let moved = ended != self.ended || in_flight == 0;
        self.idle = if moved { Duration::ZERO } else { self.idle + passed };
        (self.ended, self.looked) = (ended, now);
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
    fn what_ends_nothing_is_stuck_and_one_end_begins_anew() {
        let mut stuck = Stuck::new(at(0));
        let last = (1..=100).map(|i| stuck.look(0, 1, at(i * 50))).last();
        assert_eq!(last, Some(Duration::from_secs(5)));
        assert_eq!(stuck.look(1, 1, at(5050)), Duration::ZERO);
        assert_eq!(stuck.look(1, 0, at(5100)), Duration::ZERO, "nothing is in flight");
        assert_eq!(stuck.look(1, 1, at(5110)), Duration::from_millis(10));
    }

    #[test]
    fn a_clock_that_jumps_an_hour_makes_no_device_stuck() {
        let mut stuck = Stuck::new(at(0));
        stuck.look(0, 1, at(10));
        assert_eq!(stuck.look(0, 1, at(3_600_000)), Duration::from_millis(110));
    }
}

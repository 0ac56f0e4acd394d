//! How long it pays to look before sleeping: long as long as something comes meanwhile, else now and then.

use std::time::Duration;

/// Most waits between two that are tried with long looks although the last one was in vain.
const PAUSE_MAX: u32 = 64;

pub(super) struct Patience {
    short: Duration,
    long: Duration,
    /// Short waits between two long ones.
    pause: u32,
    /// How many of them are left.
    left: u32,
}

impl Patience {
    /// Looks of two lengths.
    pub fn new(short: Duration, long: Duration) -> Patience {
        Patience { short, long, pause: 0, left: 0 }
    }

    /// How long to look this time.
    pub fn looks(&mut self) -> Duration {
        if self.left == 0 {
            return self.long;
        }
        self.left -= 1;
        self.short
    }

    /// So long it was looked, and something came or not.
    pub fn learn(&mut self, looked: Duration, came: bool) {
        if looked <= self.short {
            return;
        }
        self.pause = if came { 0 } else { (2 * self.pause).clamp(1, PAUSE_MAX) };
        self.left = self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_micros(20);
    const LONG: Duration = Duration::from_micros(200);

    #[test]
    fn who_looked_long_in_vain_does_so_ever_more_seldom() {
        let mut patience = Patience::new(SHORT, LONG);
        let mut waits_between = Vec::new();
        for _ in 0..9 {
            let mut short = 0;
            while patience.looks() == SHORT {
                patience.learn(SHORT, false);
                short += 1;
            }
            patience.learn(LONG, false);
            waits_between.push(short);
        }
        assert_eq!(waits_between, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
    }

    #[test]
    fn who_looked_long_and_found_something_does_so_again() {
        let mut patience = Patience { pause: 32, left: 1, ..Patience::new(SHORT, LONG) };
        assert_eq!(patience.looks(), SHORT);
        patience.learn(SHORT / 2, true);
        assert_eq!(patience.looks(), LONG, "what comes at once says nothing of long waits");
        patience.learn(SHORT + Duration::from_micros(1), true);
        assert_eq!((patience.looks(), patience.pause), (LONG, 0));
    }
}

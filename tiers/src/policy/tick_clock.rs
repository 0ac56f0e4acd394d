//! The clock of recency, which counts bytes and not time.

/// Recency ticks per lap of the log. The tick counter of the index wraps after 2^20 ticks, 256
/// laps.
const TICKS_PER_LAP: u64 = 4096;

/// Age of an object that should leave first, in ticks. With 16 laps it lowers the mean of its
/// segment like many others, so that reclaim takes segments with several of them; with one or two
/// laps it hardly matters (figures in `benches/results/policy.md`).
pub const TICKS_OF_LEAVING: u64 = 16 * TICKS_PER_LAP;

/// The clock of recency: it advances with the bytes appended to the log.
#[derive(Clone, Copy, Debug)]
pub struct TickClock {
    first: u64,
    /// Appended bytes per tick.
    tick_bytes: u64,
    /// Bytes appended since the store was opened.
    appended_bytes: u64,
}

impl TickClock {
    /// A clock that starts at tick `first`, for a log of `capacity` bytes.
    pub fn new(first: u64, capacity: u64) -> TickClock {
        let tick_bytes = (capacity / TICKS_PER_LAP).max(1);
        TickClock { first, tick_bytes, appended_bytes: 0 }
    }

    /// Count bytes appended to the log.
    pub fn append(&mut self, bytes: u64) {
        self.appended_bytes += bytes;
    }

    /// The current tick.
    pub fn now(&self) -> u64 {
        self.first + self.appended_bytes / self.tick_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lap_of_the_log_is_4096_ticks() {
        let mut clock = TickClock::new(7, 4096 * 100);
        clock.append(99);
        assert_eq!(clock.now(), 7);
        clock.append(1);
        assert_eq!(clock.now(), 8);
        clock.append(4096 * 100);
        assert_eq!(clock.now(), 8 + 4096);
        let mut small = TickClock::new(0, 10);
        small.append(3);
        assert_eq!(small.now(), 3, "a tick is at least a byte");
    }
}

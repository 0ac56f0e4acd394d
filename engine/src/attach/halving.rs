//! Whether a put is quicker in two halves: measured on the puts themselves.

use std::time::Duration;

/// Puts of so many bytes are always put in two: what a second thread of the store's takes to begin is little beside them.
const SURE_BYTES: u64 = 8 << 20;
/// Every so many puts are put the way that is the slower one, as far as is known: what else is done on the machine changes.
const TRY_EVERY: u32 = 32;

/// What the two ways took lately. Where memory is quick, and where few cores are free, a second thread begins too late to be of use.
#[derive(Debug, Default)]
pub(super) struct Halving {
    /// Nanoseconds a MiB, as a whole and in two.
    pace: [Option<u64>; 2],
    since: u32,
}

impl Halving {
    /// Whether to put so many bytes in two.
    pub fn pays(&mut self, bytes: u64) -> bool {
        if bytes >= SURE_BYTES {
            return true;
        }
        let [Some(whole), Some(halves)] = self.pace else { return self.pace[1].is_none() };
        self.since += 1;
        let is_try = self.since >= TRY_EVERY;
        if is_try {
            self.since = 0;
        }
        (halves <= whole) != is_try
    }

    /// A put took so long, in two or as a whole.
    pub fn took(&mut self, in_two: bool, bytes: u64, time: Duration) {
        if bytes >= SURE_BYTES || bytes == 0 {
            return;
        }
        let now =
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1 << 10) / (bytes >> 10).max(1);
        let pace = &mut self.pace[usize::from(in_two)];
        // What is quicker is what it takes; one that took longer was disturbed, mostly.
        *pace = Some(match *pace {
            Some(before) if now >= before => (7 * before + now.min(2 * before)) / 8,
            Some(before) => before.midpoint(now),
            None => now,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 2 << 20;

    /// Puts that take so many microseconds as a whole and in two; how many of the last hundred were put in two.
    fn in_two(halving: &mut Halving, whole: u64, halves: u64) -> usize {
        let put = |_| {
            let in_two = halving.pays(BYTES);
            halving.took(in_two, BYTES, Duration::from_micros(if in_two { halves } else { whole }));
            in_two
        };
        (0..300).map(put).collect::<Vec<_>>()[200..].iter().filter(|in_two| **in_two).count()
    }

    #[test]
    fn the_way_that_is_quicker_is_taken_but_for_a_try_now_and_then() {
        let mut halving = Halving::default();
        assert!(in_two(&mut halving, 150, 180) <= 4);
        assert!(in_two(&mut halving, 300, 200) >= 96, "the machine is another one now");
        assert!(in_two(&mut halving, 150, 180) <= 4);
        assert!(halving.pays(SURE_BYTES), "of so much the half is always quicker");
    }

    #[test]
    fn one_put_that_was_disturbed_changes_nothing() {
        let mut halving = Halving::default();
        assert!(in_two(&mut halving, 150, 120) >= 96);
        halving.took(true, BYTES, Duration::from_secs(5));
        assert!(halving.pays(BYTES));
    }
}

//! Whether a put is quicker in two halves: measured on the puts themselves.

use std::time::Duration;

/// Puts of so many bytes are always put in two: what a second thread of the store's takes to begin is little beside them.
const SURE_BYTES: u64 = 8 << 20;
/// After so many puts one is put the way that is the slower one, as far as is known: what else is done on the machine changes. As long as it
/// stays the slower one twice as many lie before the next such, up to the second number: a second thread that is woken looks for
/// more, on a core that may be somebody's, for longer than such a put takes.
const TRY_AFTER: [u32; 2] = [32, 128];

/// What the two ways took lately. Where memory is quick, and where few cores are free, a second thread begins too late to be of use.
#[derive(Debug, Default)]
pub(super) struct Halving {
    /// Nanoseconds a MiB, as a whole and in two.
    pace: [Option<u64>; 2],
    /// Puts before the next try, from the last one on, and how many of them are left.
    pause: u32,
    left: u32,
    /// In two, the last time that it was known.
    in_two: bool,
}

impl Halving {
    /// Whether to put so many bytes in two.
    pub fn pays(&mut self, bytes: u64) -> bool {
        if bytes >= SURE_BYTES {
            return true;
        }
        let [Some(whole), Some(halves)] = self.pace else { return self.pace[1].is_none() };
        let in_two = halves <= whole;
        if std::mem::replace(&mut self.in_two, in_two) != in_two || self.pause == 0 {
            (self.pause, self.left) = (TRY_AFTER[0], TRY_AFTER[0]);
        }
        let is_try = self.left == 0;
        if is_try {
            self.pause = (2 * self.pause).min(TRY_AFTER[1]);
            self.left = self.pause;
        } else {
            self.left -= 1;
        }
        in_two != is_try
    }

    /// A put took so long, in two or as a whole.
    pub fn took(&mut self, in_two: bool, bytes: u64, time: Duration) {
        if bytes >= SURE_BYTES || bytes == 0 {
            return;
        }
        let now =
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1 << 10) / (bytes >> 10).max(1);
        // What was quicker for once is tried again at once: its mean follows if it is so each time.
        if in_two != self.in_two && self.pace[usize::from(!in_two)].is_some_and(|other| now < other) {
            (self.pause, self.left) = (TRY_AFTER[0], 0);
        }
        // The mean, and not what it takes at best: two threads that are seldom there together are quick now and then. One that took very
        // long was disturbed. What is seldom tried was another time's.
        let weight = if in_two == self.in_two { 8 } else { 2 };
        let pace = &mut self.pace[usize::from(in_two)];
        *pace = Some(match *pace {
            Some(before) => ((weight - 1) * before + now.min(2 * before)) / weight,
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
    fn what_stays_slower_is_tried_ever_more_seldom_and_when_it_is_quicker_taken() {
        let mut halving = Halving::default();
        let mut tries = Vec::new();
        for at in 0..4000 {
            let in_two = halving.pays(BYTES);
            halving.took(in_two, BYTES, Duration::from_micros(if in_two { 180 } else { 150 }));
            tries.extend(in_two.then_some(at));
        }
        let between: Vec<i32> = tries.windows(2).map(|two| two[1] - two[0]).collect();
        assert_eq!(between[1..6], [65, 129, 129, 129, 129], "{tries:?}");
        let quicker = |_| {
            let in_two = halving.pays(BYTES);
            halving.took(in_two, BYTES, Duration::from_micros(if in_two { 20 } else { 150 }));
            in_two
        };
        assert!((0..5000).map(quicker).filter(|in_two| *in_two).count() > 2000);
    }

    #[test]
    fn a_way_that_is_quick_now_and_then_is_not_the_quicker_one() {
        let mut halving = Halving::default();
        let mut in_two = 0;
        for at in 0..3000 {
            let halves = if at % 3 == 0 { 100 } else { 230 };
            let now = halving.pays(BYTES);
            halving.took(now, BYTES, Duration::from_micros(if now { halves } else { 170 }));
            in_two += u32::from(now);
        }
        assert!(in_two < 300, "{in_two}");
    }

    #[test]
    fn one_put_that_was_disturbed_changes_nothing() {
        let mut halving = Halving::default();
        assert!(in_two(&mut halving, 150, 120) >= 96);
        halving.took(true, BYTES, Duration::from_secs(5));
        assert!(halving.pays(BYTES));
    }
}

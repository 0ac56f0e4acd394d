//! Whether a put is quicker in two halves: measured on the puts themselves.

use std::time::Duration;

/// Puts of so many bytes are always put in two: what a second thread of the store's takes to begin is little beside them.
const SURE_BYTES: u64 = 8 << 20;
/// After so many puts the way that is the slower one, as far as is known, is tried: what else is done on the machine changes. As long as it
/// stays the slower one twice as many lie before the next try, up to the second number: a second thread that is woken looks for
/// more, on a core that may be somebody's, for longer than such a put takes.
const TRY_AFTER: [u32; 2] = [32, 128];
/// How many puts a try is, as a whole and in two, and how many of them count, the last: the first in two wakes a thread of the store's, and the
/// sides of its link have yet to learn whether they share a core.
const TRIED: [u32; 2] = [1, 4];
const COUNTED: u32 = 3;
/// Of the way that is taken, so many puts are in its mean, mostly.
const MEAN_OF: u64 = 8;

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
    /// In two, what is tried, and how many puts of that are left.
    trial: (bool, u32),
}

/// How to put something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way {
    pub in_two: bool,
    /// Of a try, which of its puts it is, from the last one on; `None` for what is no try.
    trial: Option<u32>,
}

impl Halving {
    /// How to put so many bytes.
    pub fn way(&mut self, bytes: u64) -> Way {
        if bytes >= SURE_BYTES {
            return Way { in_two: true, trial: None };
        }
        if self.trial.1 == 0 {
            let [Some(whole), Some(halves)] = self.pace else { return self.begin(self.pace[1].is_none()) };
            let in_two = halves <= whole;
            if std::mem::replace(&mut self.in_two, in_two) != in_two || self.pause == 0 {
                (self.pause, self.left) = (TRY_AFTER[0], TRY_AFTER[0]);
            }
            if self.left > 0 {
                self.left -= 1;
                return Way { in_two, trial: None };
            }
            self.pause = (2 * self.pause).min(TRY_AFTER[1]);
            self.left = self.pause;
            return self.begin(!in_two);
        }
        self.trial.1 -= 1;
        Way { in_two: self.trial.0, trial: Some(self.trial.1) }
    }

    fn begin(&mut self, in_two: bool) -> Way {
        let left = TRIED[usize::from(in_two)] - 1;
        self.trial = (in_two, left);
        Way { in_two, trial: Some(left) }
    }

    /// A put took so long.
    pub fn took(&mut self, way: Way, bytes: u64, time: Duration) {
        let counts = way.trial.is_none_or(|left| left < COUNTED);
        if bytes >= SURE_BYTES || bytes == 0 || !counts {
            return;
        }
        let now =
            u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).saturating_mul(1 << 10) / (bytes >> 10).max(1);
        // The mean, and not what it takes at best: two threads that are seldom there together are quick now and then. One that took very
        // long was disturbed. What a way took before a try was another time's.
        let of = match way.trial {
            Some(left) => u64::from(TRIED[usize::from(way.in_two)].min(COUNTED) - left),
            None => MEAN_OF,
        };
        let pace = &mut self.pace[usize::from(way.in_two)];
        *pace = Some(match *pace {
            Some(before) => ((of - 1) * before + now.min(2 * before)) / of,
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
            let way = halving.way(BYTES);
            halving.took(way, BYTES, Duration::from_micros(if way.in_two { halves } else { whole }));
            way.in_two
        };
        (0..300).map(put).collect::<Vec<_>>()[200..].iter().filter(|in_two| **in_two).count()
    }

    #[test]
    fn the_way_that_is_quicker_is_taken_but_for_a_try_now_and_then() {
        let mut halving = Halving::default();
        assert!(in_two(&mut halving, 150, 180) <= 4);
        assert!(in_two(&mut halving, 300, 200) >= 96, "the machine is another one now");
        assert!(in_two(&mut halving, 150, 180) <= 4);
        assert!(halving.way(SURE_BYTES).in_two, "of so much the half is always quicker");
    }

    #[test]
    fn what_stays_slower_is_tried_ever_more_seldom_and_when_it_is_quicker_taken() {
        let mut halving = Halving::default();
        let mut tries = Vec::new();
        for at in 0..4000 {
            let Way { in_two, trial } = halving.way(BYTES);
            halving.took(Way { in_two, trial }, BYTES, Duration::from_micros(if in_two { 180 } else { 150 }));
            tries.extend(in_two.then_some(at));
        }
        let (tries, more) = tries.as_chunks::<{ TRIED[1] as usize }>();
        assert!(more.is_empty() && tries.iter().all(|tried| tried[3] - tried[0] == 3), "{tries:?}");
        let between: Vec<i32> = tries.windows(2).map(|two| two[1][0] - two[0][3]).collect();
        assert_eq!(between[1..6], [65, 129, 129, 129, 129], "{tries:?}");
        let quicker = |_| {
            let way = halving.way(BYTES);
            halving.took(way, BYTES, Duration::from_micros(if way.in_two { 20 } else { 150 }));
            way.in_two
        };
        assert!((0..5000).map(quicker).filter(|in_two| *in_two).count() > 2000);
    }

    #[test]
    fn a_way_that_is_quick_now_and_then_is_not_the_quicker_one() {
        let mut halving = Halving::default();
        let mut in_two = 0;
        for at in 0..3000 {
            let halves = if at % 3 == 0 { 100 } else { 230 };
            let way = halving.way(BYTES);
            halving.took(way, BYTES, Duration::from_micros(if way.in_two { halves } else { 170 }));
            in_two += u32::from(way.in_two);
        }
        assert!(in_two < 300, "{in_two}");
    }

    #[test]
    fn one_put_that_was_disturbed_changes_nothing() {
        let mut halving = Halving::default();
        assert!(in_two(&mut halving, 150, 120) >= 96);
        halving.took(Way { in_two: true, trial: None }, BYTES, Duration::from_secs(5));
        assert!(halving.way(BYTES).in_two);
    }

    /// Two threads of which one sleeps: the first puts in two are slow.
    #[test]
    fn what_the_first_of_a_try_take_says_nothing() {
        let mut halving = Halving::default();
        let (mut asleep, mut in_two) = (1, 0);
        for _ in 0..1000 {
            let way = halving.way(BYTES);
            let halves = if asleep > 0 { 400 } else { 130 };
            asleep = if way.in_two { asleep - i32::from(asleep > 0) } else { 1 };
            halving.took(way, BYTES, Duration::from_micros(if way.in_two { halves } else { 170 }));
            in_two += u32::from(way.in_two);
        }
        assert!(in_two > 900, "{in_two}");
    }
}

//! Expectations that objects will be requested again by a given time, and how many of them were
//! wrong.
//!
//! Each source of expectations is a row. An expectation is decided once one of its objects is
//! requested (right) or its time has passed (wrong). A row is trusted while few of the last
//! [`WINDOW`] that were decided are wrong. Expectations are measured whether or not they are
//! followed, so a row that is not trusted can regain trust.

use std::collections::{BTreeSet, HashMap, VecDeque};

use pagelith_io::clock::Mono;

use super::predictions::{WATCHED_OBJECTS, WINDOW, is_trusted};

/// Expectations of all rows that are not decided, and those of one row. Beyond it further ones are
/// not followed, so that no caller is trusted for what is never measured.
const UNDECIDED_MAX: usize = 16_384;
const ROW_UNDECIDED_MAX: usize = UNDECIDED_MAX / 4;

#[derive(Clone, Copy, Debug)]
struct Expectation {
    row: usize,
    until: Mono,
    objects: [Option<u64>; WATCHED_OBJECTS],
}

#[derive(Debug, Default)]
struct Row {
    /// Of those decided last, whether each was wrong.
    decided: VecDeque<bool>,
    wrong: usize,
    undecided: usize,
}

impl Row {
    fn decide(&mut self, is_wrong: bool) {
        self.undecided -= 1;
        if self.decided.len() == WINDOW {
            self.wrong -= usize::from(self.decided.pop_front() == Some(true));
        }
        self.decided.push_back(is_wrong);
        self.wrong += usize::from(is_wrong);
    }
}

/// Expectations of several rows. Memory is at most some 10 MB in all.
#[derive(Debug)]
pub struct Expectations {
    rows: Vec<Row>,
    undecided: HashMap<u64, Expectation>,
    /// Number of the expectation that watches an object.
    watched: HashMap<u64, u64>,
    /// By the time at which they are wrong.
    due: BTreeSet<(Mono, u64)>,
    next: u64,
    wrong: u64,
    trust: f64,
}

impl Expectations {
    /// No expectations of `rows` rows. A row is trusted while at least the share `trust` of its
    /// expectations is right.
    pub fn new(rows: usize, trust: f64) -> Expectations {
        Expectations {
            rows: (0..rows).map(|_| Row::default()).collect(),
            undecided: HashMap::new(),
            watched: HashMap::new(),
            due: BTreeSet::new(),
            next: 0,
            wrong: 0,
            trust,
        }
    }

    /// A row expects that one of these objects, of which the last ones are watched, is requested
    /// before `until`. Returns whether it is followed. Objects that are watched already keep their
    /// earlier time. Objects are given by hashes that scatter.
    pub fn expect(&mut self, row: usize, objects: &[u64], until: Mono, now: Mono) -> bool {
        self.decide_due(now);
        let Some(last) = objects.last() else { return false };
        if !self.watched.contains_key(last) {
            let Some(row_of) = self.rows.get_mut(row) else { return false };
            if self.undecided.len() >= UNDECIDED_MAX || row_of.undecided >= ROW_UNDECIDED_MAX {
                return false;
            }
            row_of.undecided += 1;
            let number = self.next;
            self.next += 1;
            let mut last = objects.iter().rev().copied();
            let objects = [(); WATCHED_OBJECTS].map(|()| last.next());
            self.undecided.insert(number, Expectation { row, until, objects });
            self.due.insert((until, number));
            objects.into_iter().flatten().for_each(|object| {
                self.watched.entry(object).or_insert(number);
            });
        }
        self.trusts(row)
    }

    /// All watched objects.
    pub fn watched(&self) -> impl Iterator<Item = u64> {
        self.watched.keys().copied()
    }

    /// Whether requests of this object decide something.
    pub fn watches(&self, object: u64) -> bool {
        self.watched.contains_key(&object)
    }

    /// An object is requested.
    pub fn request(&mut self, object: u64, now: Mono) {
        self.decide_due(now);
        if let Some(number) = self.watched.get(&object).copied() {
            self.decide(number, false);
        }
    }

    /// Those whose time has passed are wrong.
    pub fn decide_due(&mut self, now: Mono) {
        while let Some((until, number)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
            self.due.remove(&(until, number));
            self.decide(number, true);
        }
    }

    fn decide(&mut self, number: u64, is_wrong: bool) {
        let Some(expectation) = self.undecided.remove(&number) else { return };
        self.due.remove(&(expectation.until, number));
        for object in expectation.objects.into_iter().flatten() {
            if self.watched.get(&object) == Some(&number) {
                self.watched.remove(&object);
            }
        }
        self.wrong += u64::from(is_wrong);
        if let Some(row) = self.rows.get_mut(expectation.row) {
            row.decide(is_wrong);
        }
    }

    /// How many were wrong.
    pub fn wrong(&self) -> u64 {
        self.wrong
    }

    fn trusts(&self, row: usize) -> bool {
        self.rows.get(row).is_some_and(|row| is_trusted(row.wrong, row.decided.len(), self.trust))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Mono = Mono(1000);

    /// One row that expects `count` objects from `from` on by 1 ns later, of which each `wrong`-th
    /// is not requested.
    fn expect(of: &mut Expectations, from: u64, count: u64, wrong: u64) -> bool {
        let mut is_followed = false;
        for n in from..from + count {
            let now = Mono(n * 10);
            is_followed = of.expect(0, &[n], Mono(n * 10 + 1), now);
            if n % wrong != 0 {
                of.request(n, now);
            }
        }
        is_followed
    }

    #[test]
    fn row_is_followed_until_many_expectations_are_wrong_and_again_once_they_are_old() {
        let mut of = Expectations::new(1, 0.95);
        assert!(expect(&mut of, 1, 2000, 25), "4 % are wrong");
        assert!(!expect(&mut of, 10_000, 1000, 5), "20 % are wrong");
        assert!(expect(&mut of, 20_001, 2000, u64::MAX));
        assert!(of.undecided.len() <= 1 && of.watched.len() <= 1 && of.due.len() <= 1);
    }

    #[test]
    fn request_is_in_time_before_the_end_only() {
        for (at, wrong) in [(Mono(1099), 0), (Mono(1100), 1)] {
            let mut of = Expectations::new(1, 0.95);
            let objects: Vec<u64> = (0..=WATCHED_OBJECTS as u64).collect();
            assert!(of.expect(0, &objects, Mono(1100), NOW));
            assert!(of.watches(1) && !of.watches(0), "the last ones");
            of.request(2, at);
            assert!(!objects.iter().any(|object| of.watches(*object)));
            assert_eq!(of.wrong(), wrong, "{at:?}");
        }
    }

    #[test]
    fn expectation_that_is_repeated_keeps_its_time() {
        let mut of = Expectations::new(1, 0.95);
        assert!(of.expect(0, &[1], Mono(1100), NOW) && of.expect(0, &[1], Mono(9000), NOW));
        of.decide_due(Mono(1100));
        assert_eq!(of.wrong(), 1);
    }

    #[test]
    fn expectations_beyond_the_bound_are_not_followed() {
        let mut of = Expectations::new(5, 0.95);
        let (far, most) = (Mono(u64::MAX), ROW_UNDECIDED_MAX as u64);
        for row in 0..4 {
            let from = row * most;
            let row = row as usize;
            assert!((from..from + most).all(|n| of.expect(row, &[n], far, NOW)));
            assert!(!of.expect(row, &[u64::MAX], far, NOW) && of.expect(row, &[from], far, NOW));
        }
        assert!(!of.expect(4, &[u64::MAX], far, NOW), "all rows");
        of.request(0, NOW);
        assert!(of.expect(4, &[u64::MAX], far, NOW), "one is decided");
        assert!(!of.expect(5, &[u64::MAX - 1], far, NOW), "there is no such row");
    }
}

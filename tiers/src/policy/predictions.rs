//! Predictions that pages will not be requested again, and how many of them were wrong.
//!
//! Each source of predictions is a row. A row has the last [`WINDOW`] of its predictions; one is
//! wrong once a watched object of it is requested. A row is trusted while few of these are wrong.
//! Predictions are measured whether or not they are followed, so a row that is not trusted can
//! regain trust.

use std::collections::{HashMap, VecDeque};

/// Predictions of a row that are measured at a time.
pub(super) const WINDOW: usize = 1024;
/// Wrong predictions are compared with at least as many predictions, so that one wrong prediction
/// of a few does not end trust.
const PREDICTIONS_MIN: usize = 32;
/// Pages of a prediction that is assumed for sampling: a prompt has some.
const PAGES_ASSUMED: u64 = 16;
/// Pages of a prompt that a caller of [`Predictions::predict`] should have watched.
pub const WATCHED_PAGES: usize = 2;
/// Objects of a prediction that are watched: some of each of these pages.
pub const WATCHED_OBJECTS: usize = 8;

#[derive(Clone, Debug)]
struct Prediction {
    objects: Vec<u64>,
    is_wrong: bool,
}

#[derive(Debug, Default)]
struct Row {
    window: VecDeque<Prediction>,
    /// Number of the first prediction of the window.
    first: u64,
    wrong: usize,
}

/// Predictions of several rows. Memory is at most some 400 KB for each row.
#[derive(Debug)]
pub struct Predictions {
    rows: Vec<Row>,
    /// Row and number of the prediction that watches an object.
    watched: HashMap<u64, (usize, u64)>,
    trust: f64,
    /// One of so many predictions is measured.
    sample: u64,
}

impl Predictions {
    /// No predictions of `rows` rows. A row is trusted while at least the share `trust` of its
    /// predictions is right. In a store of many `pages`, only a sample is measured, so that the
    /// window is as long as pages stay.
    pub fn new(rows: usize, trust: f64, pages: u64) -> Predictions {
        let sample = (pages / (WINDOW as u64 * PAGES_ASSUMED)).max(1);
        let rows = (0..rows).map(|_| Row::default()).collect();
        Predictions { rows, watched: HashMap::new(), trust, sample }
    }

    /// A row predicts that these objects will not be requested. The last [`WATCHED_OBJECTS`] are
    /// watched. Returns whether the row is trusted. Objects are given by hashes that scatter.
    pub fn predict(&mut self, row: usize, objects: &[u64]) -> bool {
        let Some(last) = objects.last() else { return false };
        let is_sampled = (last.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) % self.sample == 0;
        if is_sampled && !self.watched.contains_key(last) {
            self.watch(row, objects);
        }
        self.trusts(row)
    }

    fn watch(&mut self, row: usize, objects: &[u64]) {
        let Some(Row { window, first, wrong }) = self.rows.get_mut(row) else { return };
        if window.len() == WINDOW
            && let Some(oldest) = window.pop_front()
        {
            for object in &oldest.objects {
                if self.watched.get(object) == Some(&(row, *first)) {
                    self.watched.remove(object);
                }
            }
            *wrong -= usize::from(oldest.is_wrong);
            *first += 1;
        }
        let number = *first + window.len() as u64;
        let objects = objects[objects.len().saturating_sub(WATCHED_OBJECTS)..].to_vec();
        objects.iter().for_each(|object| _ = self.watched.insert(*object, (row, number)));
        window.push_back(Prediction { objects, is_wrong: false });
    }

    /// Whether an object is watched.
    pub fn watches(&self, object: u64) -> bool {
        self.watched.contains_key(&object)
    }

    /// All watched objects.
    pub fn watched(&self) -> impl Iterator<Item = u64> {
        self.watched.keys().copied()
    }

    /// An object is requested. Returns whether a prediction was right until now.
    pub fn request(&mut self, object: u64) -> bool {
        let Some((row, number)) = self.watched.get(&object).copied() else { return false };
        let Some(row) = self.rows.get_mut(row) else { return false };
        let at = number.saturating_sub(row.first) as usize;
        let Some(prediction) = row.window.get_mut(at).filter(|p| !p.is_wrong) else { return false };
        prediction.is_wrong = true;
        row.wrong += 1;
        true
    }

    /// Whether the predictions of a row are followed.
    pub fn trusts(&self, row: usize) -> bool {
        self.rows.get(row).is_some_and(|row| is_trusted(row.wrong, row.window.len(), self.trust))
    }

    /// Whether nothing was predicted.
    pub fn is_empty(&self) -> bool {
        self.watched.is_empty()
    }
}

/// Whether at most the share `1 - trust` of the measured predictions is wrong.
pub(super) fn is_trusted(wrong: usize, measured: usize, trust: f64) -> bool {
    wrong as f64 <= (1.0 - trust) * measured.max(PREDICTIONS_MIN) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hash that scatters.
    fn hash(n: u64) -> u64 {
        n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ n << 32
    }

    /// Predict for `count` pages, of which each `wrong`-th is requested.
    fn predict(predictions: &mut Predictions, row: usize, from: u64, count: u64, wrong: u64) {
        for n in from..from + count {
            predictions.predict(row, &[hash(n)]);
            if n % wrong == 0 {
                predictions.request(hash(n));
            }
        }
    }

    #[test]
    fn row_is_trusted_until_many_predictions_are_wrong() {
        let mut predictions = Predictions::new(2, 0.95, 1000);
        predict(&mut predictions, 0, 1, 2000, 25);
        assert!(predictions.trusts(0), "4 % are wrong");
        predict(&mut predictions, 1, 10_000, 2000, 5);
        assert!(!predictions.trusts(1) && predictions.trusts(0), "20 % of row 1 are wrong");
        assert!(!predictions.trusts(2), "there is no such row");
    }

    #[test]
    fn row_regains_trust_once_its_wrong_predictions_are_old() {
        let mut predictions = Predictions::new(1, 0.95, 1000);
        predict(&mut predictions, 0, 1, 500, 2);
        assert!(!predictions.trusts(0));
        predict(&mut predictions, 0, 10_001, 1024, u64::MAX);
        assert!(predictions.trusts(0));
        assert_eq!(predictions.watched.len(), WINDOW, "older pages are not watched");
    }

    #[test]
    fn one_wrong_prediction_of_a_few_does_not_end_trust() {
        let mut predictions = Predictions::new(1, 0.95, 1000);
        predictions.predict(0, &[hash(1)]);
        assert!(predictions.request(hash(1)));
        assert!(!predictions.request(hash(1)), "counted once");
        assert!(predictions.trusts(0));
    }

    #[test]
    fn last_objects_of_a_prediction_are_watched() {
        let mut predictions = Predictions::new(1, 0.95, 1000);
        let last = WATCHED_OBJECTS as u64;
        predictions.predict(0, &Vec::from_iter((0..=last).map(hash)));
        assert!(!predictions.request(hash(0)) && !predictions.watches(hash(0)));
        assert_eq!(predictions.watched().count(), WATCHED_OBJECTS);
        assert!(predictions.request(hash(1)));
        assert!(!predictions.request(hash(last)), "the prediction is wrong already");
    }

    #[test]
    fn large_store_measures_a_sample() {
        let mut predictions = Predictions::new(1, 0.95, 64 * WINDOW as u64 * PAGES_ASSUMED);
        (0..6400).for_each(|n| _ = predictions.predict(0, &[hash(n)]));
        let measured = predictions.rows[0].window.len();
        assert!((50..200).contains(&measured), "{measured}");
    }
}

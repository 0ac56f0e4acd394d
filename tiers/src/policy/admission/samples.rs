//! Touches of a sample of the pages, from which hazards are learned: of the pages of a class that
//! were not touched for some time, the share that is touched soon after.
//!
//! A page is in the sample if its hash is a multiple of the rate, a power of two. The rate doubles
//! whenever the sample has too many touches, so that its memory is bounded.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use pagelith_layouts::learned::{self, LearnedCounts};

use super::bands::{BANDS, STARTS, band_of};
use super::class::{CLASSES, PageClass};
use super::policy_key::PolicyKey;

const _: () = assert!(CLASSES == learned::CLASSES && BANDS == learned::BANDS);

/// Most touches in the sample.
const TOUCHES_MAX: usize = 1 << 16;

/// A touch of a page of the sample.
#[derive(Clone, Copy, Debug)]
struct Touch {
    page: PolicyKey,
    at: u64,
    class: PageClass,
    /// It was touched again since.
    again: bool,
}

/// Keys are hashes already. The map is never iterated, so its order does not matter.
#[derive(Default)]
struct PolicyKeyHasher(u64);

impl Hasher for PolicyKeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, page: u64) {
        self.0 = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Counts by class and band of age.
pub(super) type Table = [[f64; BANDS]; CLASSES];

/// The sample and its counts.
pub(super) struct Samples {
    /// Touches in their order, the first of which has number `first`.
    touches: VecDeque<Touch>,
    first: u64,
    /// Number of the last touch of each page.
    last: HashMap<u64, u64, BuildHasherDefault<PolicyKeyHasher>>,
    /// For each band, the number of the first touch that is too young for it.
    cursors: [u64; BANDS],
    rate: u64,
    /// Touches since the last [`Samples::decay`].
    fresh: usize,
    /// Touches that ended in a band with another touch, and touches that reached the band.
    pub(super) hits: Box<Table>,
    pub(super) exposures: Box<Table>,
}

impl Samples {
    pub(super) fn new() -> Samples {
        Samples {
            touches: VecDeque::new(),
            first: 0,
            last: HashMap::default(),
            cursors: [0; BANDS],
            rate: 1,
            fresh: 0,
            hits: Box::new([[0.0; BANDS]; CLASSES]),
            exposures: Box::new([[0.0; BANDS]; CLASSES]),
        }
    }

    /// The counts, and the rate of the sample that they are of.
    pub(super) fn counts(&self) -> (Box<LearnedCounts>, u64) {
        let mut counts = Box::new([[[0.0; 2]; BANDS]; CLASSES]);
        let tables = self.hits.iter().flatten().zip(self.exposures.iter().flatten());
        for (to, (hits, exposures)) in counts.iter_mut().flatten().zip(tables) {
            *to = [*hits as f32, *exposures as f32];
        }
        (counts, self.rate)
    }

    /// Continue from counts of another run of the store, with a new sample.
    pub(super) fn restore(counts: &LearnedCounts, rate: u64) -> Samples {
        let mut samples = Samples { rate, ..Samples::new() };
        let tables = samples.hits.iter_mut().flatten().zip(samples.exposures.iter_mut().flatten());
        for ([hits, exposures], to) in counts.iter().flatten().zip(tables) {
            (*to.0, *to.1) = (f64::from(*hits), f64::from(*exposures));
        }
        samples
    }

    /// Whether a page is in the sample.
    fn contains(&self, page: PolicyKey) -> bool {
        // Bits that choose neither bucket nor tag of the history.
        (page.0 >> 16) & (self.rate - 1) == 0
    }

    /// Note a touch of a page, which is of `class` from now on.
    pub(super) fn touch(&mut self, page: PolicyKey, class: PageClass, now: u64) {
        if !self.contains(page) {
            return;
        }
        let number = self.first + self.touches.len() as u64;
        let before = self.last.insert(page.0, number);
        let before = before.and_then(|before| before.checked_sub(self.first));
        if let Some(touch) = before.and_then(|at| self.touches.get_mut(at as usize)) {
            touch.again = true;
            let band = band_of((now - touch.at) as u32);
            self.hits[touch.class.number()][band] += 1.0;
        }
        self.fresh += 1;
        self.touches.push_back(Touch { page, at: now, class, again: false });
        self.exposures[class.number()][0] += 1.0;
        if self.touches.len() > TOUCHES_MAX {
            self.thin_out();
        }
    }

    /// Count the touches that have reached their next band, and drop those beyond the last one.
    pub(super) fn advance(&mut self, now: u64) {
        for (band, (cursor, start)) in self.cursors.iter_mut().zip(STARTS).enumerate().skip(1) {
            *cursor = (*cursor).max(self.first);
            while let Some(touch) = self.touches.get((*cursor - self.first) as usize)
                && now - touch.at >= u64::from(start)
            {
                self.exposures[touch.class.number()][band] += f64::from(u8::from(!touch.again));
                *cursor += 1;
            }
        }
        while let Some(touch) = self.touches.front()
            && now - touch.at >= u64::from(STARTS[BANDS])
        {
            if !touch.again {
                self.last.remove(&touch.page.0);
            }
            self.touches.pop_front();
            self.first += 1;
        }
    }

    /// Halve the sample. The touches that stay get new numbers, and the cursors follow them.
    fn thin_out(&mut self) {
        self.rate *= 2;
        let mut kept = VecDeque::new();
        let mut cursors = self.cursors;
        for (number, touch) in (self.first..).zip(std::mem::take(&mut self.touches)) {
            if self.contains(touch.page) {
                if !touch.again {
                    self.last.insert(touch.page.0, self.first + kept.len() as u64);
                }
                kept.push_back(touch);
                continue;
            }
            self.last.remove(&touch.page.0);
            for (new, cursor) in cursors.iter_mut().zip(self.cursors) {
                *new -= u64::from(number < cursor);
            }
        }
        (self.touches, self.cursors) = (kept, cursors);
    }

    /// Number of touches since the last [`Samples::decay`].
    pub(super) fn fresh(&self) -> usize {
        self.fresh
    }

    /// Forget a share of all counts.
    pub(super) fn decay(&mut self, factor: f64) {
        self.fresh = 0;
        let counts = self.hits.iter_mut().chain(self.exposures.iter_mut()).flatten();
        counts.for_each(|count| *count *= factor);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(n: u64) -> PolicyKey {
        PolicyKey(n.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn class(number: u32) -> PageClass {
        PageClass::from_number(number)
    }

    #[test]
    fn touch_is_exposed_in_each_band_until_it_is_touched_again() {
        let mut samples = Samples::new();
        samples.touch(page(1), class(5), 0);
        samples.touch(page(2), class(6), 0);
        for now in 1..10 {
            samples.advance(now);
        }
        samples.touch(page(1), class(7), 9);
        for now in 10..4000 {
            samples.advance(now);
        }
        // Bands begin at 0, 1, 2, 3, 4, 6, 8 and 11 steps.
        assert_eq!(samples.exposures[5][..8], [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]);
        assert_eq!(samples.hits[5].iter().sum::<f64>(), 1.0);
        assert_eq!(samples.hits[5][6], 1.0);
        for class in [6, 7] {
            assert_eq!(samples.exposures[class], [1.0; BANDS], "class={class}");
            assert_eq!(samples.hits[class].iter().sum::<f64>(), 0.0, "class={class}");
        }
        assert!(samples.touches.is_empty() && samples.last.is_empty(), "older than all bands");
    }

    #[test]
    fn sample_is_bounded_and_keeps_its_ratios() {
        let mut samples = Samples::new();
        // Each page is touched twice, 10 steps apart.
        let per_step = 2000;
        for now in 0..200_u64 {
            samples.advance(now);
            for n in 0..per_step {
                samples.touch(page(now * per_step + n), class(1), now);
                if now >= 10 {
                    samples.touch(page((now - 10) * per_step + n), class(2), now);
                }
            }
            assert!(samples.touches.len() <= TOUCHES_MAX);
            assert!(samples.last.len() <= samples.touches.len());
        }
        assert!(samples.rate > 1);
        let band = band_of(10);
        let reached = samples.exposures[1][band];
        let ratio = samples.hits[1][band] / reached;
        assert!((0.9..1.1).contains(&ratio), "ratio={ratio}");
        samples.decay(0.5);
        assert_eq!(samples.exposures[1][band], reached * 0.5);
    }
}

//! What was learned about the classes: how often their pages are requested again, and how many hits
//! they bring for the time that they occupy a place.

use super::bands::{BANDS, STARTS};
use super::class::{CLASSES, LEVEL_MAX, PageClass};
use super::samples::{Samples, Table};

/// Exposures that a coarser estimate counts for.
const PRIOR: f64 = 64.0;
/// Hazard of a band before anything was learned. It makes the first decisions those of
/// write-through.
const HAZARD_FIRST: f64 = 0.05;

/// The learned tables.
pub(super) struct Worth {
    /// Expected hits per step of residence, by class and band of age: the most that any later end
    /// of the residence gives.
    worth: Box<Table>,
    /// Share of pages requested again within the horizon.
    reuse: [f64; CLASSES],
}

impl Worth {
    /// Before anything was learned.
    pub(super) fn new() -> Worth {
        Worth { worth: Box::new([[0.0; BANDS]; CLASSES]), reuse: [1.0; CLASSES] }
    }

    /// Learn from a sample. `horizon` is the age, in steps, up to which a page is reused. A class
    /// with few exposures is taken to be like all classes with as many touches, and those like all.
    pub(super) fn learn(&mut self, samples: &Samples, horizon: f64) {
        let all = hazards(samples, |_| true, &[HAZARD_FIRST; BANDS]);
        for touches in 0..=LEVEL_MAX {
            let is_member = |class: usize| class_of(class).touches() == touches;
            let by_touches = hazards(samples, is_member, &all);
            for class in (0..CLASSES).filter(|class| is_member(*class)) {
                let hazards = hazards(samples, |other| other == class, &by_touches);
                self.worth[class] = worth(&hazards);
                self.reuse[class] = reuse(&hazards, horizon);
            }
        }
    }

    /// Share of the pages of a class that is requested again within the horizon.
    pub(super) fn reuse(&self, class: PageClass) -> f64 {
        self.reuse[class.number()]
    }

    /// Expected hits per step of residence of a page of a class in a band of age.
    pub(super) fn worth(&self, class: PageClass, band: usize) -> f64 {
        self.worth[class.number()][band]
    }
}

fn class_of(number: usize) -> PageClass {
    PageClass::from_number(number as u32)
}

/// By band of age, the share of the touches of the classes in `is_member` that reached the band and
/// ended in it with another touch.
fn hazards(
    samples: &Samples,
    is_member: impl Fn(usize) -> bool,
    coarser: &[f64; BANDS],
) -> [f64; BANDS] {
    let sum = |table: &Table, band: usize| -> f64 {
        (0..CLASSES).filter(|class| is_member(*class)).map(|class| table[class][band]).sum()
    };
    std::array::from_fn(|band| {
        let hits = sum(&samples.hits, band) + PRIOR * coarser[band];
        (hits / (sum(&samples.exposures, band) + PRIOR)).min(1.0)
    })
}

/// Expected hits per step of residence from each band on.
fn worth(hazards: &[f64; BANDS]) -> [f64; BANDS] {
    let mut worth = [0.0; BANDS];
    for (from, best) in worth.iter_mut().enumerate() {
        let (mut alive, mut hits, mut residence) = (1.0, 0.0, 0.0);
        for band in from..BANDS {
            let width = f64::from(STARTS[band + 1] - STARTS[band]);
            hits += alive * hazards[band];
            residence += alive * width * (1.0 - hazards[band] / 2.0);
            alive *= 1.0 - hazards[band];
            *best = f64::max(*best, hits / residence);
        }
    }
    worth
}

/// Share of pages that are touched again within the horizon.
fn reuse(hazards: &[f64; BANDS], horizon: f64) -> f64 {
    let within = (0..BANDS).filter(|band| f64::from(STARTS[*band]) < horizon);
    1.0 - within.map(|band| 1.0 - hazards[band]).product::<f64>()
}

#[cfg(test)]
mod tests {
    use super::super::policy_key::PolicyKey;
    use super::*;

    /// A class of pages that return after 10 steps, and one of pages that never do.
    fn learned() -> (Worth, PageClass, PageClass) {
        let (back, gone) = (PageClass::first(0, 1), PageClass::first(9, 0));
        let mut samples = Samples::new();
        let page = |n: u64| PolicyKey(n.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for now in 0..3000_u64 {
            samples.advance(now);
            samples.touch(page(2 * now), back, now);
            samples.touch(page(2 * now + 1), gone, now);
            if now >= 10 {
                samples.touch(page(2 * (now - 10)), PageClass::first(0, 1).again(10, 0), now);
            }
        }
        let mut worth = Worth::new();
        worth.learn(&samples, 1024.0);
        (worth, back, gone)
    }

    #[test]
    fn pages_that_return_are_worth_more_than_pages_that_do_not() {
        let (worth, back, gone) = learned();
        assert!(worth.reuse(back) > 0.9, "{}", worth.reuse(back));
        assert!(worth.reuse(gone) < 0.1, "{}", worth.reuse(gone));
        assert!(worth.worth(back, 0) > 10.0 * worth.worth(gone, 0));
        // A page that did not return when its class does is worth little.
        assert!(worth.worth(back, BANDS - 8) < worth.worth(back, 0) / 5.0);
    }

    #[test]
    fn nothing_learned_means_reuse_of_all() {
        let mut worth = Worth::new();
        let class = PageClass::first(3, 0);
        assert_eq!(worth.reuse(class), 1.0);
        worth.learn(&Samples::new(), 1024.0);
        assert!(worth.reuse(class) > 0.5, "{}", worth.reuse(class));
    }
}

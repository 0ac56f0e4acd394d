//! An ordered set of frames, grouped by request. The pages of a request mostly arrive together,
//! each before or after all that are present, and leave one by one from the front.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::frame::{FrameId, Recency};

/// Most places in one run. A request may have any number of places in any order, and an insertion
/// or removal in the middle moves up to half of a run.
const RUN_MAX: usize = if cfg!(test) { 4 } else { 512 };

/// Position of a frame in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OrderKey {
    pub(super) at: Recency,
    pub(super) frame: FrameId,
}

impl OrderKey {
    /// The smallest possible place of the same request.
    fn request_start(self) -> OrderKey {
        OrderKey { at: Recency { depth: u32::MAX, ..self.at }, frame: FrameId(0) }
    }
}

/// An ordered set of places. An insertion or removal at either end of a request's places costs one
/// tree lookup; in the middle it also moves places, at most [`RUN_MAX`].
#[derive(Debug, Default)]
pub(super) struct OrderedFrames {
    /// Runs of places of one request each. A run's key is at most its first place, and above all
    /// places of the runs before it.
    pages: BTreeMap<OrderKey, RequestRun>,
    len: usize,
}

/// A run of at least one place of a request. A run of one place allocates no memory of its own.
#[derive(Debug)]
struct RequestRun {
    first: OrderKey,
    rest: VecDeque<OrderKey>,
}

impl RequestRun {
    /// Insert a place; returns false if it is present already.
    fn insert(&mut self, place: OrderKey) -> bool {
        if place < self.first {
            self.rest.push_front(std::mem::replace(&mut self.first, place));
            return true;
        }
        if place == self.first {
            return false;
        }
        if self.rest.back().is_none_or(|last| *last < place) {
            self.rest.push_back(place);
            return true;
        }
        let at = self.rest.binary_search(&place).err();
        at.into_iter().for_each(|at| self.rest.insert(at, place));
        at.is_some()
    }

    /// The next place after `place`, which need not be in the run.
    fn after(&self, place: &OrderKey) -> Option<OrderKey> {
        if *place < self.first {
            return Some(self.first);
        }
        self.rest.get(self.rest.partition_point(|other| other <= place)).copied()
    }
}

impl OrderedFrames {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The run in which `place` is or would be, if its request has one, with the run's key.
    fn run_of(&mut self, place: &OrderKey) -> Option<(OrderKey, &mut RequestRun)> {
        let (from, pages) = self.pages.range_mut(..=*place).next_back()?;
        (from.at.epoch == place.at.epoch).then_some((*from, pages))
    }

    /// Insert a place unless it is present.
    pub(super) fn insert(&mut self, place: OrderKey) {
        let Some((_, pages)) = self.run_of(&place) else {
            let run = RequestRun { first: place, rest: VecDeque::new() };
            self.pages.insert(place.request_start(), run);
            self.len += 1;
            return;
        };
        if !pages.insert(place) {
            return;
        }
        if pages.rest.len() > RUN_MAX {
            let mut rest = pages.rest.split_off(RUN_MAX / 2);
            let first = rest.pop_front();
            first.map(|first| self.pages.insert(first, RequestRun { first, rest }));
        }
        self.len += 1;
    }

    /// Remove a place if it is present.
    pub(super) fn remove(&mut self, place: &OrderKey) {
        let Some((from, pages)) = self.run_of(place) else { return };
        if pages.first == *place {
            match pages.rest.pop_front() {
                Some(next) => pages.first = next,
                None => _ = self.pages.remove(&from),
            }
        } else {
            let Ok(at) = pages.rest.binary_search(place) else { return };
            pages.rest.remove(at);
        }
        self.len -= 1;
    }

    /// The next place after `place`, or the first of all with `None`.
    pub(super) fn after(&self, place: Option<OrderKey>) -> Option<OrderKey> {
        let Some(place) = place else { return self.pages.values().next().map(|pages| pages.first) };
        let in_run =
            self.pages.range(..=place).next_back().and_then(|(_, pages)| pages.after(&place));
        let next_run = || self.pages.range((Bound::Excluded(place), Bound::Unbounded)).next();
        in_run.or_else(|| next_run().map(|(_, pages)| pages.first))
    }

    /// All of them, in order.
    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = OrderKey> {
        self.pages
            .values()
            .flat_map(|pages| std::iter::once(pages.first).chain(pages.rest.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Bound;

    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = OrderKey> {
        (0u64..5, 0u32..8, 0u32..4).prop_map(|(epoch, depth, frame)| OrderKey {
            at: Recency { epoch, depth },
            frame: FrameId(frame),
        })
    }

    proptest! {
        #[test]
        fn places_equal_sorted_set(steps in prop::collection::vec((prop::bool::weighted(0.6), place()), 1..200)) {
            let (mut places, mut model) = (OrderedFrames::default(), BTreeSet::new());
            for (insert, place) in steps {
                match insert {
                    true => {
                        places.insert(place);
                        model.insert(place);
                    }
                    false => {
                        places.remove(&place);
                        model.remove(&place);
                    }
                }
                prop_assert_eq!(places.len(), model.len());
                prop_assert!(places.iter().eq(model.iter().copied()));
                prop_assert_eq!(places.after(None), model.first().copied());
                let next = model.range((Bound::Excluded(place), Bound::Unbounded)).next();
                prop_assert_eq!(places.after(Some(place)), next.copied());
            }
        }
    }
}

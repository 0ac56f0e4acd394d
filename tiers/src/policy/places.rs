//! Where frames stand, in order, kept by request: the pages of one mostly come together, each before or behind all of those
//! that are there, and leave from the front one after the other.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::{FrameId, Recency};

/// Most places that lie side by side: a request may have any number, in any order, and each that comes or goes in the middle moves up to
/// half of them.
const MOST: usize = if cfg!(test) { 4 } else { 512 };

/// Where a frame stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) at: Recency,
    pub(super) frame: FrameId,
}

impl Place {
    /// Before all others of its request.
    fn first_of_its_request(self) -> Place {
        Place { at: Recency { depth: u32::MAX, ..self.at }, frame: FrameId(0) }
    }
}

/// A set of places in their order. To come or go at either end of a request's takes a look at one tree; in the middle, some
/// moves besides, bounded by [`MOST`].
#[derive(Debug, Default)]
pub(super) struct Places {
    /// Places of one request each, by one that none of them is before, and behind all of the pages in front.
    pages: BTreeMap<Place, Pages>,
    len: usize,
}

/// Places of a request, at least one. A request of one page has no memory of its own.
#[derive(Debug)]
struct Pages {
    first: Place,
    rest: VecDeque<Place>,
}

impl Pages {
    /// Whether it was not there.
    fn insert(&mut self, place: Place) -> bool {
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

    /// The place behind this one, which need not be there itself.
    fn after(&self, place: &Place) -> Option<Place> {
        if *place < self.first {
            return Some(self.first);
        }
        self.rest.get(self.rest.partition_point(|other| other <= place)).copied()
    }
}

impl Places {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where a place is, if it is there.
    fn of(&mut self, place: &Place) -> Option<(Place, &mut Pages)> {
        let (from, pages) = self.pages.range_mut(..=*place).next_back()?;
        (from.at.epoch == place.at.epoch).then_some((*from, pages))
    }

    /// Add a place, unless it is there.
    pub(super) fn insert(&mut self, place: Place) {
        let Some((_, pages)) = self.of(&place) else {
            let alone = Pages { first: place, rest: VecDeque::new() };
            self.pages.insert(place.first_of_its_request(), alone);
            self.len += 1;
            return;
        };
        if !pages.insert(place) {
            return;
        }
        if pages.rest.len() > MOST {
            let mut rest = pages.rest.split_off(MOST / 2);
            let first = rest.pop_front();
            first.map(|first| self.pages.insert(first, Pages { first, rest }));
        }
        self.len += 1;
    }

    /// Take a place out, if it is there.
    pub(super) fn remove(&mut self, place: &Place) {
        let Some((from, pages)) = self.of(place) else { return };
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

    /// The first place behind this one, or of all.
    pub(super) fn after(&self, place: Option<Place>) -> Option<Place> {
        let Some(place) = place else { return self.pages.values().next().map(|pages| pages.first) };
        let here = self.pages.range(..=place).next_back().and_then(|(_, pages)| pages.after(&place));
        let behind = || self.pages.range((Bound::Excluded(place), Bound::Unbounded)).next();
        here.or_else(|| behind().map(|(_, pages)| pages.first))
    }

    /// All of them, in order.
    #[cfg(test)]
    fn iter(&self) -> impl Iterator<Item = Place> {
        self.pages.values().flat_map(|pages| std::iter::once(pages.first).chain(pages.rest.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::ops::Bound;

    use proptest::prelude::*;

    use super::*;

    fn place() -> impl Strategy<Value = Place> {
        (0u64..5, 0u32..8, 0u32..4)
            .prop_map(|(epoch, depth, frame)| Place { at: Recency { epoch, depth }, frame: FrameId(frame) })
    }

    proptest! {
        #[test]
        fn are_a_sorted_set(steps in prop::collection::vec((prop::bool::weighted(0.6), place()), 1..200)) {
            let (mut places, mut model) = (Places::default(), BTreeSet::new());
            for (comes, place) in steps {
                match comes {
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
                let behind = model.range((Bound::Excluded(place), Bound::Unbounded)).next();
                prop_assert_eq!(places.after(Some(place)), behind.copied());
            }
        }
    }
}

//! An ordered set of frames, grouped by request. The pages of a request mostly arrive together,
//! each before or after all that are present, and leave one by one from the front.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use super::frame::{FrameId, Recency};

/// Most keys in one run. A request may have any number of keys in any order, and an insertion
/// or removal in the middle moves up to half of a run.
const RUN_MAX: usize = if cfg!(test) { 4 } else { 512 };

/// Position of a frame in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OrderKey {
    pub(super) at: Recency,
    pub(super) frame: FrameId,
}

impl OrderKey {
    /// The smallest possible key of the same request.
    fn request_start(self) -> OrderKey {
        OrderKey { at: Recency { depth: u32::MAX, ..self.at }, frame: FrameId(0) }
    }
}

/// An ordered set of keys. An insertion or removal at either end of a request's keys costs one
/// tree lookup; in the middle it also moves keys, at most [`RUN_MAX`].
#[derive(Debug, Default)]
pub(super) struct OrderedFrames {
    /// Runs of keys of one request each. A run's key is at most its first key, and above all
    /// keys of the runs before it.
    pages: BTreeMap<OrderKey, RequestRun>,
    len: usize,
}

/// A run of at least one key of a request. A run of one key allocates no memory of its own.
#[derive(Debug)]
struct RequestRun {
    first: OrderKey,
    rest: VecDeque<OrderKey>,
}

impl RequestRun {
    /// Insert a key; returns false if it is present already.
    fn insert(&mut self, key: OrderKey) -> bool {
        if key < self.first {
            self.rest.push_front(std::mem::replace(&mut self.first, key));
            return true;
        }
        if key == self.first {
            return false;
        }
        if self.rest.back().is_none_or(|last| *last < key) {
            self.rest.push_back(key);
            return true;
        }
        let at = self.rest.binary_search(&key).err();
        at.into_iter().for_each(|at| self.rest.insert(at, key));
        at.is_some()
    }

    /// The next key after `key`, which need not be in the run.
    fn after(&self, key: &OrderKey) -> Option<OrderKey> {
        if *key < self.first {
            return Some(self.first);
        }
        self.rest.get(self.rest.partition_point(|other| other <= key)).copied()
    }
}

impl OrderedFrames {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The run in which `key` is or would be, if its request has one, with the run's key.
    fn run_of(&mut self, key: &OrderKey) -> Option<(OrderKey, &mut RequestRun)> {
        let (from, pages) = self.pages.range_mut(..=*key).next_back()?;
        (from.at.request == key.at.request).then_some((*from, pages))
    }

    /// Insert a key unless it is present.
    pub(super) fn insert(&mut self, key: OrderKey) {
        let Some((_, pages)) = self.run_of(&key) else {
            let run = RequestRun { first: key, rest: VecDeque::new() };
            self.pages.insert(key.request_start(), run);
            self.len += 1;
            return;
        };
        if !pages.insert(key) {
            return;
        }
        if pages.rest.len() > RUN_MAX {
            let mut rest = pages.rest.split_off(RUN_MAX / 2);
            let first = rest.pop_front();
            first.map(|first| self.pages.insert(first, RequestRun { first, rest }));
        }
        self.len += 1;
    }

    /// Remove a key if it is present.
    pub(super) fn remove(&mut self, key: &OrderKey) {
        let Some((from, pages)) = self.run_of(key) else { return };
        if pages.first == *key {
            match pages.rest.pop_front() {
                Some(next) => pages.first = next,
                None => _ = self.pages.remove(&from),
            }
        } else {
            let Ok(at) = pages.rest.binary_search(key) else { return };
            pages.rest.remove(at);
        }
        self.len -= 1;
    }

    /// The next key after `key`, or the first of all with `None`.
    pub(super) fn after(&self, key: Option<OrderKey>) -> Option<OrderKey> {
        let Some(key) = key else { return self.pages.values().next().map(|pages| pages.first) };
        let in_run = self.pages.range(..=key).next_back().and_then(|(_, pages)| pages.after(&key));
        let next_run = || self.pages.range((Bound::Excluded(key), Bound::Unbounded)).next();
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

    fn key() -> impl Strategy<Value = OrderKey> {
        (0u64..5, 0u32..8, 0u32..4).prop_map(|(request, depth, frame)| OrderKey {
            at: Recency { request, depth },
            frame: FrameId(frame),
        })
    }

    proptest! {
        #[test]
        fn keys_equal_sorted_set(steps in prop::collection::vec((prop::bool::weighted(0.6), key()), 1..200)) {
            let (mut keys, mut model) = (OrderedFrames::default(), BTreeSet::new());
            for (insert, key) in steps {
                match insert {
                    true => {
                        keys.insert(key);
                        model.insert(key);
                    }
                    false => {
                        keys.remove(&key);
                        model.remove(&key);
                    }
                }
                prop_assert_eq!(keys.len(), model.len());
                prop_assert!(keys.iter().eq(model.iter().copied()));
                prop_assert_eq!(keys.after(None), model.first().copied());
                let next = model.range((Bound::Excluded(key), Bound::Unbounded)).next();
                prop_assert_eq!(keys.after(Some(key)), next.copied());
            }
        }
    }
}

//! The results that gets and lookups may have, whatever links and servers do meanwhile.
//!
//! A put whose call ended without an outcome, or that was sent over more than one link, may take
//! effect later: abandoned requests are still in transit. It is settled when no part of it can be
//! in transit any more. A reader may see any version except one that was settled before a removal
//! began that was acked before the read began.
//!
//! Stores that share peers, but do not know each other, answer each for itself: a store does not
//! bring back an object that it put and then removed. It may get another store's put of the same
//! key, or one that a peer is about to offer. Stores that are all each other's peers answer
//! together: after any of them acked a removal, none returns a version that any of them put before.

use std::ops::Range;

/// Objects of a run; object `n` is in namespace `n % NAMESPACES` and has length `length(n)`.
pub const OBJECTS: usize = 384;
/// Namespaces of a run.
pub const NAMESPACES: usize = 2;

/// One content of an object.
#[derive(Clone, Debug)]
struct Version {
    /// The store that put it.
    by: usize,
    ended: Option<u64>,
    /// The moment from which it cannot take effect any more; `None` while it can.
    settled: Option<u64>,
}

/// An acked removal or clear.
#[derive(Clone, Copy, Debug)]
struct Removal {
    by: usize,
    begun: u64,
    acked: u64,
}

#[derive(Clone, Debug, Default)]
struct Object {
    versions: Vec<Version>,
    gone: Vec<Removal>,
}

/// The puts and removals so far.
#[derive(Debug, Default)]
pub struct Oracle {
    now: u64,
    objects: Vec<Object>,
    /// Each removal counts for all stores.
    together: bool,
}

/// The length of an object in bytes.
pub fn length(object: usize) -> usize {
    [700, 4096, 40_000, 17_000, 33_000, 90, 9_000, 66_000][object / NAMESPACES % 8]
}

fn word(object: usize, version: usize, at: u64) -> u64 {
    let z = (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ ((object as u64) << 40 | (version as u64 + 1));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^ (z >> 27)
}

/// Bytes of a version of an object.
pub fn content(object: usize, version: usize, range: Range<usize>) -> Vec<u8> {
    let words = range.start / 8..range.end.div_ceil(8);
    let skip = range.start - words.start * 8;
    let bytes = words.flat_map(|at| word(object, version, at as u64).to_ne_bytes());
    bytes.skip(skip).take(range.len()).collect()
}

impl Oracle {
    /// An oracle without any put.
    pub fn new() -> Oracle {
        Oracle { now: 0, objects: vec![Object::default(); OBJECTS], together: false }
    }

    /// From now on all stores know each other and answer together.
    pub fn answer_together(&mut self) {
        self.together = true;
    }

    /// A new moment; all moments differ.
    pub fn moment(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Begins a put by the store `by`; returns its version.
    pub fn put(&mut self, by: usize, object: usize) -> usize {
        let versions = &mut self.objects[object].versions;
        versions.push(Version { by, ended: None, settled: None });
        versions.len() - 1
    }

    /// Ends its call; `settled` if no part of it can be in transit.
    pub fn put_ended(&mut self, object: usize, version: usize, settled: bool) {
        let now = self.moment();
        let version = &mut self.objects[object].versions[version];
        (version.ended, version.settled) = (Some(now), settled.then_some(now));
    }

    /// No part of the calls that ended before `moment` is in transit.
    pub fn settle(&mut self, moment: u64) {
        let now = self.moment();
        for version in self.objects.iter_mut().flat_map(|object| &mut object.versions) {
            if version.ended.is_some_and(|ended| ended < moment) {
                version.settled.get_or_insert(now);
            }
        }
    }

    /// Records that the store `by` acked a removal that began at `begun`.
    pub fn removed(&mut self, by: usize, object: usize, begun: u64) {
        let acked = self.moment();
        self.objects[object].gone.push(Removal { by, begun, acked });
    }

    fn may_be_seen(&self, by: usize, object: usize, version: &Version, since: u64) -> bool {
        let answers = |gone: &Removal| self.together || gone.by == by && version.by == by;
        let over = |gone: &Removal| {
            answers(gone) && version.settled.is_some_and(|at| at < gone.begun) && gone.acked < since
        };
        !self.objects[object].gone.iter().any(over)
    }

    /// The error, if any, of a read through the store `by` that began at `since` and returned these
    /// bytes.
    pub fn read(
        &self,
        by: usize,
        object: usize,
        range: &Range<usize>,
        bytes: &[u8],
        since: u64,
    ) -> Option<String> {
        let versions = &self.objects[object].versions;
        let found = (0..versions.len()).rev().find(|no| {
            let head = range.start..range.end.min(range.start + 16);
            bytes.starts_with(&content(object, *no, head))
                && bytes == content(object, *no, range.clone())
        });
        let Some(no) = found else {
            let head = &bytes[..bytes.len().min(16)];
            return Some(format!("bytes of no put object={object} {range:?} head={head:02x?}"));
        };
        let version = &versions[no];
        let seen = self.may_be_seen(by, object, version, since);
        (!seen).then(|| {
            format!("removed bytes returned object={object} version={no} {version:?} since={since}")
        })
    }

    /// The error, if any, of a lookup that began at `since` and found the object.
    pub fn exists(&self, by: usize, object: usize, since: u64) -> Option<String> {
        let versions = &self.objects[object].versions;
        let seen = versions.iter().any(|version| self.may_be_seen(by, object, version, since));
        (!seen).then(|| format!("exists though never put or removed object={object} since={since}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removed_version_is_forbidden_but_late_put_is_allowed() {
        let mut oracle = Oracle::new();
        assert!(oracle.exists(0, 3, 0).is_some());
        let (settled, late) = (oracle.put(0, 3), oracle.put(0, 3));
        oracle.put_ended(3, settled, true);
        oracle.put_ended(3, late, false);
        let begun = oracle.moment();
        oracle.removed(0, 3, begun);
        let since = oracle.moment();
        let read =
            |oracle: &Oracle, no| oracle.read(0, 3, &(5..500), &content(3, no, 5..500), since + 10);
        assert!(read(&oracle, settled).is_some_and(|wrong| wrong.contains("removed")));
        assert_eq!(read(&oracle, late), None);
        assert!(read(&oracle, 7).is_some_and(|wrong| wrong.contains("no put")));
        assert_eq!(
            oracle.read(0, 3, &(0..9), &content(3, settled, 0..9), begun),
            None,
            "it began before"
        );
        let all = oracle.moment();
        oracle.settle(all);
        let begun = oracle.moment();
        oracle.removed(0, 3, begun);
        let since = oracle.moment();
        assert!(oracle.exists(0, 3, since).is_some());
    }

    #[test]
    fn removal_counts_per_store_or_for_all_peers() {
        let mut oracle = Oracle::new();
        let (own, others) = (oracle.put(0, 3), oracle.put(1, 3));
        [own, others].into_iter().for_each(|version| oracle.put_ended(3, version, true));
        let begun = oracle.moment();
        oracle.removed(0, 3, begun);
        let since = oracle.moment();
        let read = |by, no| oracle.read(by, 3, &(0..9), &content(3, no, 0..9), since + 1);
        assert!(read(0, own).is_some());
        assert_eq!((read(0, others), read(1, own), read(1, others)), (None, None, None));
        // A late put through one of the peers may still arrive; removed versions stay removed.
        oracle.answer_together();
        let late = oracle.put(1, 3);
        oracle.put_ended(3, late, false);
        let read = |by, no| oracle.read(by, 3, &(0..9), &content(3, no, 0..9), since + 1);
        assert!(
            [(0, own), (0, others), (1, own), (1, others)]
                .iter()
                .all(|(by, no)| read(*by, *no).is_some())
        );
        assert_eq!((read(0, late), read(1, late)), (None, None));
    }

    #[test]
    fn range_content_is_part_of_whole() {
        let all = content(9, 4, 0..1000);
        assert_eq!(content(9, 4, 13..777), all[13..777]);
        assert_ne!(content(9, 5, 0..1000), all);
    }
}

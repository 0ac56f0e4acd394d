//! What gets and look-ups may say, whatever links and servers do meanwhile.
//!
//! A put whose call ended without a word, or that was asked for over more than one link, may take effect later: requests
//! that were given up are still on their way somewhere. It is settled when nothing of it can be under way any more. Who reads
//! may be told of any version, but not of one that was settled before a removal began that was acked before the read began.
//!
//! Of stores that share peers, and do not know each other, each answers for itself alone: what it put and then removed it does not bring
//! back. What another put of the same key, or is about to offer, it may have again. Stores that are all each other's peers answer together:
//! what any of them removed none has that any of them put before.

use std::ops::Range;

/// Objects of a run; object `n` is in namespace `n % NAMESPACES` and has `n`'s length.
pub const OBJECTS: usize = 384;
/// Namespaces of a run.
pub const NAMESPACES: usize = 2;

/// One content of an object.
#[derive(Clone, Debug)]
struct Version {
    /// The store that put it.
    by: usize,
    ended: Option<u64>,
    /// Since when it can take effect no more; `None` while it can.
    settled: Option<u64>,
}

/// A removal or clear that was acked.
#[derive(Clone, Copy, Debug)]
struct Gone {
    by: usize,
    begun: u64,
    acked: u64,
}

#[derive(Clone, Debug, Default)]
struct Object {
    versions: Vec<Version>,
    gone: Vec<Gone>,
}

/// What was said so far.
#[derive(Debug, Default)]
pub struct Oracle {
    now: u64,
    objects: Vec<Object>,
    /// All stores answer for all of them.
    together: bool,
}

/// The length of an object in bytes.
pub fn length(object: usize) -> usize {
    [700, 4096, 40_000, 17_000, 33_000, 90, 9_000, 66_000][object / NAMESPACES % 8]
}

fn word(object: usize, version: usize, at: u64) -> u64 {
    let z = (at + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ ((object as u64) << 40 | (version as u64 + 1));
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z ^ (z >> 27)
}

/// Bytes of a version of an object.
pub fn content(object: usize, version: usize, stretch: Range<usize>) -> Vec<u8> {
    let words = stretch.start / 8..stretch.end.div_ceil(8);
    let skip = stretch.start - words.start * 8;
    let bytes = words.flat_map(|at| word(object, version, at as u64).to_ne_bytes());
    bytes.skip(skip).take(stretch.len()).collect()
}

impl Oracle {
    /// Nothing was put.
    pub fn new() -> Oracle {
        Oracle { now: 0, objects: vec![Object::default(); OBJECTS], together: false }
    }

    /// All stores know each other, and answer for all of them.
    pub fn together(&mut self) {
        self.together = true;
    }

    /// This moment; no two are the same.
    pub fn moment(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// A put begins, of the store `by`: its version.
    pub fn put(&mut self, by: usize, object: usize) -> usize {
        let versions = &mut self.objects[object].versions;
        versions.push(Version { by, ended: None, settled: None });
        versions.len() - 1
    }

    /// Its call ended; whether nothing of it can be under way.
    pub fn put_ended(&mut self, object: usize, version: usize, settled: bool) {
        let now = self.moment();
        let version = &mut self.objects[object].versions[version];
        (version.ended, version.settled) = (Some(now), settled.then_some(now));
    }

    /// Nothing is under way of calls that ended before `moment`.
    pub fn settle(&mut self, moment: u64) {
        let now = self.moment();
        for version in self.objects.iter_mut().flat_map(|object| &mut object.versions) {
            if version.ended.is_some_and(|ended| ended < moment) {
                version.settled.get_or_insert(now);
            }
        }
    }

    /// A removal that began at `begun` was acked by the store `by`.
    pub fn gone(&mut self, by: usize, object: usize, begun: u64) {
        let acked = self.moment();
        self.objects[object].gone.push(Gone { by, begun, acked });
    }

    fn may_be_seen(&self, by: usize, object: usize, version: &Version, since: u64) -> bool {
        let answers = |gone: &Gone| self.together || gone.by == by && version.by == by;
        let over = |gone: &Gone| {
            answers(gone) && version.settled.is_some_and(|at| at < gone.begun) && gone.acked < since
        };
        !self.objects[object].gone.iter().any(over)
    }

    /// What is wrong about these bytes of an object, which a read by way of the store `by` that began at `since` brought.
    pub fn read(
        &self,
        by: usize,
        object: usize,
        stretch: &Range<usize>,
        bytes: &[u8],
        since: u64,
    ) -> Option<String> {
        let versions = &self.objects[object].versions;
        let found = (0..versions.len()).rev().find(|no| {
            let head = stretch.start..stretch.end.min(stretch.start + 16);
            bytes.starts_with(&content(object, *no, head)) && bytes == content(object, *no, stretch.clone())
        });
        let Some(no) = found else {
            let head = &bytes[..bytes.len().min(16)];
            return Some(format!("bytes that nobody put object={object} {stretch:?} head={head:02x?}"));
        };
        let version = &versions[no];
        let seen = self.may_be_seen(by, object, version, since);
        (!seen).then(|| {
            format!("bytes that were removed object={object} version={no} {version:?} since={since}")
        })
    }

    /// What is wrong about an object's being there, as a look-up says that began at `since`.
    pub fn exists(&self, by: usize, object: usize, since: u64) -> Option<String> {
        let versions = &self.objects[object].versions;
        let seen = versions.iter().any(|version| self.may_be_seen(by, object, version, since));
        (!seen).then(|| format!("it exists, and was never put or is gone object={object} since={since}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_removed_may_not_be_read_and_what_may_come_late_may() {
        let mut oracle = Oracle::new();
        assert!(oracle.exists(0, 3, 0).is_some());
        let (settled, late) = (oracle.put(0, 3), oracle.put(0, 3));
        oracle.put_ended(3, settled, true);
        oracle.put_ended(3, late, false);
        let begun = oracle.moment();
        oracle.gone(0, 3, begun);
        let since = oracle.moment();
        let read = |oracle: &Oracle, no| oracle.read(0, 3, &(5..500), &content(3, no, 5..500), since + 10);
        assert!(read(&oracle, settled).is_some_and(|wrong| wrong.contains("removed")));
        assert_eq!(read(&oracle, late), None);
        assert!(read(&oracle, 7).is_some_and(|wrong| wrong.contains("nobody")));
        assert_eq!(oracle.read(0, 3, &(0..9), &content(3, settled, 0..9), begun), None, "it began before");
        let all = oracle.moment();
        oracle.settle(all);
        let begun = oracle.moment();
        oracle.gone(0, 3, begun);
        let since = oracle.moment();
        assert!(oracle.exists(0, 3, since).is_some());
    }

    #[test]
    fn a_store_answers_for_itself_and_those_that_know_each_other_for_all() {
        let mut oracle = Oracle::new();
        let (own, others) = (oracle.put(0, 3), oracle.put(1, 3));
        [own, others].into_iter().for_each(|version| oracle.put_ended(3, version, true));
        let begun = oracle.moment();
        oracle.gone(0, 3, begun);
        let since = oracle.moment();
        let read = |by, no| oracle.read(by, 3, &(0..9), &content(3, no, 0..9), since + 1);
        assert!(read(0, own).is_some());
        assert_eq!((read(0, others), read(1, own), read(1, others)), (None, None, None));
        // What each other's peers put may come late still, and what they removed stays gone.
        oracle.together();
        let late = oracle.put(1, 3);
        oracle.put_ended(3, late, false);
        let read = |by, no| oracle.read(by, 3, &(0..9), &content(3, no, 0..9), since + 1);
        assert!(
            [(0, own), (0, others), (1, own), (1, others)].iter().all(|(by, no)| read(*by, *no).is_some())
        );
        assert_eq!((read(0, late), read(1, late)), (None, None));
    }

    #[test]
    fn a_stretch_is_part_of_the_whole() {
        let all = content(9, 4, 0..1000);
        assert_eq!(content(9, 4, 13..777), all[13..777]);
        assert_ne!(content(9, 5, 0..1000), all);
    }
}

//! Remembers why objects left the store, or were not taken, in 4 bytes each.
//!
//! A set-associative table of buckets of one cache line, newest entry first; the oldest entry
//! leaves a full bucket. An entry has 28 bits of the object's fingerprint. So an object that is not
//! in the table is taken for one of a full bucket's 16 others in one of 16.8 million lookups,
//! which counts a miss under a wrong cause and has no other effect.
//!
//! The holder of the core lock writes, and any thread reads without it. A reader that meets a
//! writer may not find an entry: it then sees an object that is forgotten.
//!
//! ```text
//! tag 28, never 0 | cause 4, never 0
//! ```

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::atomic_array::AtomicArray;
use pagelith_io::prefetch;

/// Words of a bucket; each has two entries, the newer one in its lower half.
const BUCKET_WORDS: usize = 8;
const BUCKET_BYTES: usize = BUCKET_WORDS * size_of::<u64>();
const CAUSE_BITS: u32 = 4;
/// The highest cause that an entry can hold.
const CAUSE_MAX: u32 = (1 << CAUSE_BITS) - 1;

/// Why an object is absent that left the store or was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Departure {
    /// `dram.policy` evicted it, and no other tier had it.
    EvictedMemory = 1,
    /// Reclaim dropped it, and DRAM did not have it.
    EvictedSsd,
    /// Admission kept it off SSD, and it left DRAM.
    Refused,
    /// Its last put was `Busy` or `Refused`.
    NotTaken,
    /// Its group was not complete at its deadline.
    Incomplete,
    /// It was removed.
    Removed,
    /// It failed verification, or its reads failed.
    Damaged,
    /// The SSD tier or its segment is not read any more, or its write failed.
    Lost,
}

impl Departure {
    const ALL: [Departure; 8] = [
        Departure::EvictedMemory,
        Departure::EvictedSsd,
        Departure::Refused,
        Departure::NotTaken,
        Departure::Incomplete,
        Departure::Removed,
        Departure::Damaged,
        Departure::Lost,
    ];

    fn from_number(number: u32) -> Option<Departure> {
        Departure::ALL.get((number as usize).checked_sub(1)?).copied()
    }
}

const _: () = assert!(Departure::ALL.len() as u32 <= CAUSE_MAX);

/// Reads the table, from any thread.
#[derive(Clone)]
pub(crate) struct DepartedReader(Arc<AtomicArray>);

/// The table. Its owner alone writes.
pub(crate) struct DepartedObjects(DepartedReader);

impl DepartedObjects {
    /// An empty table of `bytes` bytes, in whole buckets, at least one. Fails if the system has no
    /// memory.
    pub fn new(bytes: u64) -> std::io::Result<DepartedObjects> {
        let words = (bytes as usize / BUCKET_BYTES).max(1) * BUCKET_WORDS;
        Ok(DepartedObjects(DepartedReader(Arc::new(AtomicArray::new(words)?))))
    }

    pub fn reader(&self) -> DepartedReader {
        self.0.clone()
    }

    /// Why the object left, if it is known.
    pub fn find(&self, fingerprint: u128) -> Option<Departure> {
        self.0.find(fingerprint)
    }

    /// Make its memory resident now.
    pub fn prefault(&self) -> std::io::Result<()> {
        self.0.0.prefault()
    }

    /// Prefetch the memory that [`DepartedObjects::note`] changes.
    pub fn prefetch(&self, fingerprint: u128) {
        if let Some(word) = self.0.bucket(fingerprint).first() {
            prefetch::line_to_write(word);
        }
    }

    /// Note that an object left, as the newest entry of its bucket.
    pub fn note(&mut self, fingerprint: u128, departure: Departure) {
        let bucket = self.0.bucket(fingerprint);
        let tag = tag_of(fingerprint);
        let mut carried = tag << CAUSE_BITS | departure as u32;
        // From the newest entry on, each moves back by one, up to an older one of this object.
        for word in bucket {
            let before = word.load(Relaxed);
            let [newer, older] = [before as u32, (before >> 32) as u32];
            if newer >> CAUSE_BITS == tag {
                word.store(u64::from(carried) | u64::from(older) << 32, Relaxed);
                return;
            }
            word.store(u64::from(carried) | u64::from(newer) << 32, Relaxed);
            carried = older;
            if older >> CAUSE_BITS == tag || older == 0 {
                return;
            }
        }
    }
}

impl DepartedReader {
    fn bucket(&self, fingerprint: u128) -> &[std::sync::atomic::AtomicU64] {
        // Other bits than the tag's and than those that order the index.
        let buckets = self.0.len() / BUCKET_WORDS;
        let at = (((fingerprint as u64 >> 32) * buckets as u64) >> 32) as usize * BUCKET_WORDS;
        &self.0[at..at + BUCKET_WORDS]
    }

    /// Begin to load the entries for an object.
    pub fn prefetch(&self, fingerprint: u128) {
        if let Some(word) = self.bucket(fingerprint).first() {
            prefetch::line(word);
        }
    }

    /// Why the object left, if it is known.
    pub fn find(&self, fingerprint: u128) -> Option<Departure> {
        let tag = tag_of(fingerprint);
        let entries = self.bucket(fingerprint).iter().flat_map(|word| {
            let word = word.load(Relaxed);
            [word as u32, (word >> 32) as u32]
        });
        let mut same = entries.filter(|entry| entry >> CAUSE_BITS == tag);
        Departure::from_number(same.next()? & CAUSE_MAX)
    }
}

fn tag_of(fingerprint: u128) -> u32 {
    (fingerprint as u32 >> CAUSE_BITS).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fingerprint that scatters.
    fn fingerprint(n: u64) -> u128 {
        let scattered = n.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        u128::from(scattered ^ scattered >> 29)
    }

    #[test]
    fn last_departure_of_an_object_is_known() {
        let mut departed = DepartedObjects::new(40_000).expect("memory");
        let reader = departed.reader();
        for n in 0..5000 {
            departed.note(fingerprint(n), Departure::EvictedMemory);
            departed.note(fingerprint(n), Departure::ALL[n as usize % 8]);
        }
        let known = |n| reader.find(fingerprint(n)) == Some(Departure::ALL[n as usize % 8]);
        let count = (0..5000).filter(|n| known(*n)).count();
        assert!(count > 4950, "count={count}");
        assert_eq!((5000..10_000).filter_map(|n| reader.find(fingerprint(n))).count(), 0);
    }

    #[test]
    fn oldest_departures_are_forgotten_first() {
        let mut departed = DepartedObjects::new(16_384).expect("memory");
        let reader = departed.reader();
        (0..40_960).for_each(|n| departed.note(fingerprint(n), Departure::EvictedSsd));
        let known = |range: std::ops::Range<u64>| {
            range.filter(|n| reader.find(fingerprint(*n)).is_some()).count()
        };
        let young = known(40_960 - 2048..40_960);
        assert!(young > 1990, "young={young}");
        assert_eq!(known(0..20_480), 0);
    }

    #[test]
    fn one_bucket_keeps_the_newest_of_each_object() {
        let mut departed = DepartedObjects::new(1).expect("memory");
        let reader = departed.reader();
        let object = |n: u128| n << 4;
        (1..=20).for_each(|n| departed.note(object(n), Departure::EvictedMemory));
        departed.note(object(10), Departure::Removed);
        let known: Vec<u128> = (1..=20).filter(|n| reader.find(object(*n)).is_some()).collect();
        assert_eq!(known, (5..=20).collect::<Vec<_>>());
        assert_eq!(reader.find(object(10)), Some(Departure::Removed));
        (21..=35).for_each(|n| departed.note(object(n), Departure::Lost));
        assert_eq!(reader.find(object(10)), Some(Departure::Removed), "it was the newest");
        departed.note(object(36), Departure::Lost);
        assert_eq!(reader.find(object(10)), None);
    }

    #[test]
    fn memory_is_that_of_the_plan() {
        for (planned, bytes) in [(0, 64), (64, 64), (1 << 20, 1 << 20)] {
            let departed = DepartedObjects::new(planned).expect("memory");
            assert_eq!(departed.0.0.len() * size_of::<u64>(), bytes, "planned={planned}");
        }
    }
}

//! Headers of records on SSD that are known: written by this process, or read and found good. A get of a record whose header is
//! known reads its payload alone, in one part.
//!
//! A header is known by its place in an incarnation of a segment, at which nothing else is ever written, so none has to be taken out
//! when a segment is reclaimed: nobody asks for it again, and the next ones are written over it. What a header vouches for is
//! proven by its checksums as ever. What the device has in its place is not looked at while it is known: scrub does that, and who
//! finds bytes that do not fit a known header reads the device's own before the object counts as damaged.
//!
//! Each shard is a ring that headers are appended to, the oldest under the newest's feet, and a table that says where each began.
//! Invariant: an entry's bytes are in the ring, untouched, as long as the ring's head is no further from their start than the ring
//! is long; so a table may keep entries of what is gone.

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::prefetch;
use pagelith_io::sync::{Mutex, MutexGuard, PoisonError};
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::record::Record;
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_tiers::ssd::append::RecordPlace;

/// Most shards, so that threads seldom meet at one's lock.
const SHARDS_MAX: u64 = 16;
/// Bytes of the smallest shard: some hundred headers.
const SHARD_BYTES_MIN: u64 = 64 << 10;
/// Entries that are looked at for one place.
const WAYS: usize = 4;
/// A shard's table is this part of it: an entry of 32 bytes for 256 bytes, fewer than any header has.
const TABLE_PART: u64 = 8;
/// Bytes of the entries that are looked at together.
const LINE_BYTES: u64 = (WAYS * size_of::<Entry>()) as u64;
/// Bytes of a line of the CPU's cache.
const LINE: usize = 64;
/// Headers longer than this part of a ring are not kept.
const LONG_PART: u64 = 16;

/// Segment and 4096-byte block of a record, its incarnation, where its header began, counting every byte that the shard's ring ever
/// took, and its length; of no length: none.
type Entry = [u64; 4];

/// What names a record: an entry's first two words.
fn named(identity: SegmentIdentity, block: u32) -> [u64; 2] {
    [u64::from(identity.segment.0) << 32 | u64::from(block), identity.incarnation.0]
}

fn is(entry: &Entry, name: [u64; 2]) -> bool {
    entry[..2] == name
}

struct Shard {
    /// `WAYS` entries for each hash, of little-endian words. Mapped, as the ring is: memory that no header came to is not
    /// taken, and all of it goes back with the store.
    table: AlignedBuf,
    ring: AlignedBuf,
    head: u64,
}

impl Shard {
    /// The bytes of the entries that a hash leads to.
    fn line(&mut self, hash: u64) -> &mut [u8] {
        let lines = self.table.len() as u64 / LINE_BYTES;
        let at = ((hash >> 32) % lines * LINE_BYTES) as usize;
        &mut self.table[at..at + LINE_BYTES as usize]
    }

    fn ways(&mut self, hash: u64) -> [Entry; WAYS] {
        let mut words = self.line(hash).chunks_exact(8).map(|word| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            u64::from_le_bytes(bytes)
        });
        std::array::from_fn(|_| std::array::from_fn(|_| words.next().unwrap_or(0)))
    }

    fn set(&mut self, hash: u64, way: usize, entry: Entry) {
        let words = self.line(hash).chunks_exact_mut(8).skip(way * entry.len());
        words.zip(entry).for_each(|(bytes, word)| bytes.copy_from_slice(&word.to_le_bytes()));
    }

    fn find(&mut self, name: [u64; 2], hash: u64) -> Option<&[u8]> {
        let (head, len) = (self.head, self.ring.len() as u64);
        let [.., begin, bytes] = *self.ways(hash).iter().find(|e| e[3] > 0 && is(e, name))?;
        let at = (begin % len) as usize;
        (head - begin <= len).then(|| &self.ring[at..at + bytes as usize])
    }

    fn keep(&mut self, name: [u64; 2], hash: u64, header: &[u8]) {
        let (len, bytes) = (self.ring.len() as u64, header.len() as u64);
        // A long one would push out many, and spares its reader least.
        if bytes > len / LONG_PART {
            return;
        }
        let lap_ends = self.head - self.head % len + len;
        let begin = if self.head + bytes > lap_ends { lap_ends } else { self.head };
        let at = (begin % len) as usize;
        self.ring[at..at + header.len()].copy_from_slice(header);
        self.head = begin + bytes;
        let ways = self.ways(hash);
        let same = ways.iter().position(|e| is(e, name));
        let oldest = || (0..WAYS).min_by_key(|&i| (ways[i][3] > 0, ways[i][2]));
        let way = same.or_else(oldest).unwrap_or(0);
        self.set(hash, way, [name[0], name[1], begin, bytes]);
    }

    fn forget(&mut self, name: [u64; 2], hash: u64) {
        if let Some(way) = self.ways(hash).iter().position(|e| is(e, name)) {
            self.set(hash, way, [0; 4]);
        }
    }
}

/// The headers that are known, as many as there is memory for.
pub(crate) struct Headers(Box<[Mutex<Shard>]>);

impl Headers {
    /// None yet, of at most so many bytes; 0: there never are any. Fails if the system has no memory.
    pub fn new(bytes: u64) -> std::io::Result<Headers> {
        let shards = (bytes / SHARD_BYTES_MIN).min(SHARDS_MAX);
        let bytes = bytes.checked_div(shards).unwrap_or(0);
        let table = bytes / TABLE_PART / LINE_BYTES * LINE_BYTES;
        let memory = |bytes: u64| AlignedBuf::sparse(shards as usize, bytes as usize);
        let memory = memory(table)?.into_iter().zip(memory(bytes - table)?);
        let shard = |(table, ring)| Mutex::new(Shard { table, ring, head: 0 });
        Ok(Headers(memory.map(shard).collect()))
    }

    /// The header at a place, without its padding ([`Record::of_trimmed`]).
    pub fn get(&self, identity: SegmentIdentity, offset: u64) -> Option<Box<[u8]>> {
        let (mut shard, name, hash) = self.shard(identity, offset)?;
        shard.find(name, hash).map(Box::from)
    }

    /// Start bringing what is known of these places into the cache, a step for all of them at a time: they will be asked for.
    pub fn bring(&self, places: impl Iterator<Item = (SegmentIdentity, u64)> + Clone) {
        for (mut shard, _, hash) in
            places.clone().filter_map(|(identity, offset)| self.shard(identity, offset))
        {
            shard.line(hash).chunks(LINE).for_each(|line| prefetch::line(&line[0]));
        }
        for (mut shard, name, hash) in places.filter_map(|(identity, offset)| self.shard(identity, offset)) {
            let header = shard.find(name, hash).unwrap_or_default();
            header.chunks(LINE).for_each(|line| prefetch::line(&line[0]));
        }
    }

    /// This was written there, or is about to be: nobody is led there before it is.
    pub fn written(&self, place: &RecordPlace, trimmed: &[u8]) {
        self.keep(place.identity, place.offset, trimmed);
    }

    /// This was read and is what is wanted there.
    pub fn read(&self, record: &Record<'_>) {
        let facts = record.facts();
        self.keep(facts.identity, facts.offset, record.trimmed());
    }

    /// What is known of this place led to nothing.
    pub fn forget(&self, identity: SegmentIdentity, offset: u64) {
        if let Some((mut shard, name, hash)) = self.shard(identity, offset) {
            shard.forget(name, hash);
        }
    }

    fn keep(&self, identity: SegmentIdentity, offset: u64, trimmed: &[u8]) {
        if let Some((mut shard, name, hash)) = self.shard(identity, offset) {
            shard.keep(name, hash, trimmed);
        }
    }

    /// The shard of a place, the place's name there, and a hash of it.
    fn shard(
        &self,
        identity: SegmentIdentity,
        offset: u64,
    ) -> Option<(MutexGuard<'_, Shard>, [u64; 2], u64)> {
        let name = named(identity, u32::try_from(offset / ALIGN).ok()?);
        // Fibonacci hashing: for places in a row the upper bits are as good as random.
        let hash = (name[0] ^ name[1].rotate_left(48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let shard = self.0.get(((hash >> 16) % self.0.len().max(1) as u64) as usize)?;
        Some((shard.lock().unwrap_or_else(PoisonError::into_inner), name, hash))
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::{Incarnation, SegmentId, StoreId};
    use proptest::prelude::*;

    use super::*;

    fn at(segment: u32, incarnation: u64) -> SegmentIdentity {
        let (segment, incarnation) = (SegmentId(segment), Incarnation(incarnation));
        SegmentIdentity { store: StoreId([7; 16]), segment, incarnation }
    }

    fn bytes_of(segment: u32, incarnation: u64, block: u64, len: usize) -> Vec<u8> {
        (0..len as u64).map(|i| (i * 31 + block * 7 + incarnation * 3 + u64::from(segment)) as u8).collect()
    }

    proptest! {
        /// Whatever is said of a place is what was last kept for it, and what was kept last of all is known.
        #[test]
        fn what_is_known_is_what_was_kept(
            bytes in 0u64..1 << 20,
            steps in prop::collection::vec((0u32..4, 1u64..3, 1u64..64, 352usize..3000, 0u8..8), 1..400),
        ) {
            let headers = Headers::new(bytes).expect("memory");
            let mut kept = std::collections::BTreeMap::new();
            for (segment, incarnation, block, len, what) in steps {
                let (identity, offset) = (at(segment, incarnation), block * ALIGN);
                headers.bring([(identity, offset)].into_iter());
                let known = headers.get(identity, offset);
                let expected = kept.get(&(segment, incarnation, block));
                prop_assert!(known.is_none() || known.as_deref() == expected.map(Vec::as_slice));
                if what == 0 {
                    headers.forget(identity, offset);
                    kept.remove(&(segment, incarnation, block));
                    prop_assert_eq!(headers.get(identity, offset), None);
                    continue;
                }
                let header = bytes_of(segment, incarnation, block, len);
                headers.keep(identity, offset, &header);
                let known = headers.get(identity, offset);
                prop_assert_eq!(known.as_deref(), (bytes >= SHARD_BYTES_MIN).then_some(&header[..]));
                kept.insert((segment, incarnation, block), header);
            }
        }
    }

    /// Of headers in the order of a log, the newest are known: nearly as many as fit.
    #[test]
    fn the_newest_of_a_log_are_known() {
        const LEN: usize = 384;
        let headers = Headers::new(4 << 20).expect("memory");
        let place = |i: u64| (at((i / 1000) as u32, 1), (1 + i % 1000 * 17) * ALIGN);
        let fit = (4 << 20) * 7 / 8 / LEN as u64;
        for i in 0..3 * fit {
            let (identity, offset) = place(i);
            headers.keep(identity, offset, &bytes_of(0, 1, i, LEN));
        }
        let known = |i: &u64| {
            let (identity, offset) = place(*i);
            headers.get(identity, offset).is_some_and(|known| *known == bytes_of(0, 1, *i, LEN))
        };
        let newest = (3 * fit - fit * 8 / 10..3 * fit).filter(known).count() as u64;
        assert!(newest > fit * 7 / 10, "known={newest} of={}", fit * 8 / 10);
        assert_eq!((0..fit).filter(known).count(), 0, "older than all that fits");
    }
}

//! Headers of records on SSD that are known: written by this process, or read and found good. A get of a record whose header is
//! known reads its payload alone, in one part.
//!
//! A header is known by its place in an incarnation of a segment, at which nothing else is ever written, so none has to be taken out
//! when a segment is reclaimed: nobody asks for it again, and the next ones are written over it. What a header vouches for is
//! proven by its checksums as ever. What the device has in its place is not looked at while it is known: scrub does that, and who
//! finds bytes that do not fit a known header reads the device's own before the object counts as damaged.
//!
//! Each shard is a ring that headers are appended to, the oldest under the newest's feet, and a table that says where each began.
//! A ring lies in pieces, and a header in one of them.
//! Invariants:
//! - An entry's bytes are in the ring, untouched, as long as the ring's head is no further from their start than the ring is long; so a
//!   table may keep entries of what is gone.
//! - An entry says where a header may be; whose it is, that header says itself.
//!
//! Both are in huge pages, where there are many of them: in small ones a store just opened spends half of what it takes to keep a
//! header on the faults of pages that none came to before, and a look misses the TLB twice. The first pieces of all rings lie side by
//! side, and so do the second ones: memory is taken as headers come, whatever shard they come to.

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
/// A shard's table is this part of it: an entry of 8 bytes for 256 bytes, fewer than any header has.
const TABLE_PART: u64 = 32;
/// Bytes of a line of the CPU's cache: a header begins with one, and entries are looked at by one.
const LINE: usize = 64;
/// Entries of one.
const WAYS: usize = LINE / size_of::<u64>();
/// Headers longer than this part of a ring, or than a piece of it, are not kept.
const LONG_PART: u64 = 16;
/// Bytes of a huge page, or fewer.
const HUGE_PAGE: u64 = 2 << 20;
/// Bytes of the longest piece of a ring: those of all shards fill a huge page.
const PIECE_BYTES_MAX: u64 = HUGE_PAGE / SHARDS_MAX;
/// Bytes that are asked for of a header before it is looked at, and of where it will be kept: those of one object of 64 KiB have so many.
const EXPECTED_BYTES: usize = 384;

/// Upper 24 bits: of the hash of a place. The others: where the header began, counting every line that the shard's ring ever
/// took, and one; 0: nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry(u64);

impl Entry {
    const LINE_BITS: u32 = 40;
    /// Lines that a ring takes before it begins anew.
    const LINES_MAX: u64 = (1 << Entry::LINE_BITS) - 1;

    fn new(hash: u64, begin: u64) -> Entry {
        Entry(hash >> Entry::LINE_BITS << Entry::LINE_BITS | (begin + 1))
    }

    /// Where a header began, if it may be one of a place with this hash.
    fn begin(self, hash: u64) -> Option<u64> {
        (self.0 ^ hash < 1 << Entry::LINE_BITS).then(|| self.age().checked_sub(1))?
    }

    /// More for what came later; 0 for nothing.
    fn age(self) -> u64 {
        self.0 & Entry::LINES_MAX
    }
}

/// A record's place, and a hash of it.
#[derive(Clone, Copy)]
struct Name {
    identity: SegmentIdentity,
    offset: u64,
    hash: u64,
}

impl Name {
    fn new(identity: SegmentIdentity, offset: u64) -> Name {
        let place = (u64::from(identity.segment.0) << 32) ^ (offset / ALIGN);
        // Fibonacci hashing: for places in a row the upper bits are as good as random.
        let hash = (place ^ identity.incarnation.0.rotate_left(48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Name { identity, offset, hash }
    }
}

struct Shard {
    /// `WAYS` entries for each hash, little-endian. Mapped, as the ring is: memory that no header came to is not taken, and all of
    /// it goes back with the store. Not read before the first header came.
    table: AlignedBuf,
    /// Pieces of one length, one behind the other.
    ring: Vec<AlignedBuf>,
    /// Lines that it took.
    head: u64,
}

impl Shard {
    /// Lines of a piece.
    fn piece_lines(&self) -> u64 {
        self.ring.first().map_or(0, |piece| (piece.len() / LINE) as u64)
    }

    fn ring_lines(&self) -> u64 {
        self.ring.len() as u64 * self.piece_lines()
    }

    /// The piece that the line counted as `begin` is in, and where in it.
    fn place(&self, begin: u64) -> (usize, usize) {
        let lines = self.piece_lines();
        ((begin / lines) as usize % self.ring.len(), (begin % lines) as usize * LINE)
    }

    /// Where the entries are that a hash leads to.
    fn at(&self, hash: u64) -> usize {
        ((hash >> 32) % (self.table.len() / LINE) as u64) as usize * LINE
    }

    fn ways(&self, hash: u64) -> [Entry; WAYS] {
        let (words, _) = self.table[self.at(hash)..].as_chunks::<8>();
        std::array::from_fn(|way| Entry(u64::from_le_bytes(words[way])))
    }

    fn set(&mut self, hash: u64, way: usize, entry: Entry) {
        let at = self.at(hash) + way * size_of::<Entry>();
        self.table[at..at + size_of::<Entry>()].copy_from_slice(&entry.0.to_le_bytes());
    }

    /// The header of this name, and which of its ways leads there.
    fn find(&self, name: Name) -> Option<(usize, Record<'_>)> {
        if self.head == 0 {
            return None;
        }
        let is_it = |(way, entry): (usize, Entry)| {
            let begin = entry.begin(name.hash)?;
            let (piece, at) = self.place(begin);
            let kept = self.head - begin <= self.ring_lines();
            let record = Record::of_trimmed(&self.ring[piece][at..]).filter(|_| kept)?;
            record.expect(name.identity, name.offset).ok().map(|()| (way, record))
        };
        self.ways(name.hash).into_iter().enumerate().find_map(is_it)
    }

    fn keep(&mut self, name: Name, header: &[u8]) {
        let (piece, lines) = (self.piece_lines(), header.len().div_ceil(LINE) as u64);
        // A long one would push out many, and spares its reader least.
        if lines > (self.ring_lines() / LONG_PART).min(piece) {
            return;
        }
        if self.head + piece + lines >= Entry::LINES_MAX {
            self.table.fill(0);
            self.head = 0;
        }
        if self.head == 0 {
            self.begin();
        }
        let ways = self.ways(name.hash);
        let same = self.find(name).map(|(way, _)| way);
        let piece_ends = self.head - self.head % piece + piece;
        let begin = if self.head + lines > piece_ends { piece_ends } else { self.head };
        let (piece, at) = self.place(begin);
        self.ring[piece][at..at + header.len()].copy_from_slice(header);
        self.head = begin + lines;
        let oldest = || (0..WAYS).min_by_key(|&way| ways[way].age());
        let way = same.or_else(oldest).unwrap_or(0);
        self.set(name.hash, way, Entry::new(name.hash, begin));
    }

    /// Write to each huge page of the table: one that is read first is a page of zeros that all share, for which some systems
    /// (Linux before 6.13) give small ones when it is written to.
    fn begin(&mut self) {
        self.table.chunks_mut(HUGE_PAGE as usize).for_each(|page| page[0] = 0);
        self.table.last_mut().into_iter().for_each(|byte| *byte = 0);
    }

    /// Start bringing into the cache what a header that is kept next is written to.
    fn expect(&self, hash: u64) {
        if self.head > 0 {
            prefetch::line_to_write(&self.table[self.at(hash)]);
            let (piece, at) = self.place(self.head);
            let next = self.ring[piece][at..].iter().step_by(LINE).take(EXPECTED_BYTES / LINE);
            next.for_each(prefetch::line_to_write);
        }
    }

    fn forget(&mut self, name: Name) {
        if let Some((way, _)) = self.find(name) {
            self.set(name.hash, way, Entry(0));
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
        let table = bytes / TABLE_PART / LINE as u64 * LINE as u64;
        let pieces = (bytes - table).div_ceil(PIECE_BYTES_MAX);
        let piece = (bytes - table).checked_div(pieces).unwrap_or(0) / ALIGN * ALIGN;
        let times = |count: u64, bytes: u64| std::iter::repeat_n(bytes as usize, count as usize);
        let lengths: Vec<usize> = times(shards, table).chain(times(shards * pieces, piece)).collect();
        let memory = AlignedBuf::several(&lengths)?;
        memory.iter().take(1).for_each(AlignedBuf::keep_from_children);
        let mut memory = memory.into_iter();
        let shard = |table| Shard { table, ring: Vec::new(), head: 0 };
        let mut all: Vec<Shard> = memory.by_ref().take(shards as usize).map(shard).collect();
        for (at, piece) in memory.enumerate() {
            all[at % shards as usize].ring.push(piece);
        }
        Ok(Headers(all.into_iter().map(Mutex::new).collect()))
    }

    /// Give all of them their memory now. Where a virtual machine's host has to bring it, a huge page can take some
    /// milliseconds, which else the flusher or a get waits for that keeps a header there first.
    pub fn prefault(&self) -> std::io::Result<()> {
        self.0.iter().try_for_each(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            std::iter::once(&shard.table).chain(&shard.ring).try_for_each(AlignedBuf::prefault)
        })
    }

    /// The header at a place, without its padding ([`Record::of_trimmed`]).
    pub fn get(&self, identity: SegmentIdentity, offset: u64) -> Option<Box<[u8]>> {
        let (shard, name) = self.shard(identity, offset)?;
        shard.find(name).map(|(_, record)| Box::from(record.trimmed()))
    }

    /// Start bringing what is known of these places into the cache, a step for all of them at a time: they will be asked for.
    pub fn bring(&self, places: impl Iterator<Item = (SegmentIdentity, u64)> + Clone) {
        let shards = |(identity, offset)| self.shard(identity, offset).filter(|(shard, _)| shard.head > 0);
        for (shard, name) in places.clone().filter_map(shards) {
            prefetch::line(&shard.table[shard.at(name.hash)]);
        }
        for (shard, name) in places.filter_map(shards) {
            for begin in shard.ways(name.hash).into_iter().filter_map(|entry| entry.begin(name.hash)) {
                let (piece, at) = shard.place(begin);
                prefetch::front(&shard.ring[piece][at..], EXPECTED_BYTES);
            }
        }
    }

    /// A header of this place will be kept soon, if it is what is wanted there: start bringing what that takes.
    pub fn expect(&self, identity: SegmentIdentity, offset: u64) {
        if let Some((shard, name)) = self.shard(identity, offset) {
            shard.expect(name.hash);
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
        if let Some((mut shard, name)) = self.shard(identity, offset) {
            shard.forget(name);
        }
    }

    fn keep(&self, identity: SegmentIdentity, offset: u64, trimmed: &[u8]) {
        if let Some((mut shard, name)) = self.shard(identity, offset) {
            shard.keep(name, trimmed);
        }
    }

    /// The shard of a place, and the place's name there.
    fn shard(&self, identity: SegmentIdentity, offset: u64) -> Option<(MutexGuard<'_, Shard>, Name)> {
        let name = Name::new(identity, offset);
        let shard = self.0.get(((name.hash >> 16) % self.0.len().max(1) as u64) as usize)?;
        Some((shard.lock().unwrap_or_else(PoisonError::into_inner), name))
    }
}

#[cfg(test)]
mod tests;

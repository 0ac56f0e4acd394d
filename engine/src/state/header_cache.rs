//! Cache of record headers on SSD that this process wrote, or read and verified. A get of a record
//! whose header is cached reads only the payload, in one part.
//!
//! The key of a header is its location in an incarnation of a segment. Nothing else is ever written
//! at that location, so reclaim of a segment need not remove its headers: they are never requested
//! again, and later headers overwrite them. Payload is verified with the checksums of a cached
//! header as with those of one that was read. While a header is cached, gets do not read the
//! device's copy. Scrub does, and a get whose payload does not match the cached header reads the
//! device's header before the object counts as damaged.
//!
//! Each shard is a ring to which headers are appended, overwriting the oldest, and a table with the
//! positions where headers begin. A ring consists of pieces, and a header is stored within one
//! piece.
//!
//! Invariants:
//! - The bytes of an entry are intact in the ring while `head - begin <= ring_lines()`. So the
//!   table may keep entries whose headers were overwritten.
//! - An entry only names a position where its header may be. The header there contains its own
//!   location, which is compared.
//!
//! Table and rings use huge pages if they are large. With small pages, a newly opened store spends
//! half the time of an insert on page faults, and a lookup misses the TLB twice. The first pieces
//! of all rings are adjacent, as are the second ones, so memory is used in proportion to the number
//! of headers, whichever shards they belong to.

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::prefetch;
use pagelith_io::sync::{Mutex, MutexGuard, PoisonError};
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::record::Record;
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_tiers::ssd::append::RecordLocation;

/// Most shards. So many that threads seldom contend for a shard's lock.
const SHARDS_MAX: u64 = 16;
/// Bytes of the smallest shard, which holds some hundred headers.
const SHARD_BYTES_MIN: u64 = 64 << 10;
/// The table takes 1/`TABLE_FRACTION` of a shard: an entry of 8 bytes per 256 bytes. Every header
/// is longer than that.
const TABLE_FRACTION: u64 = 32;
/// Bytes of a CPU cache line. A header begins at a line, and a lookup reads one line of entries.
const LINE: usize = 64;
/// Entries in a line.
const WAYS: usize = LINE / size_of::<u64>();
/// Headers longer than 1/`HEADER_FRACTION` of a ring, or than a piece, are not cached.
const HEADER_FRACTION: u64 = 16;
/// Bytes of a huge page. Some systems have larger ones.
const HUGE_PAGE: u64 = 2 << 20;
/// Bytes of the longest piece of a ring: one piece of each shard fills a huge page.
const PIECE_BYTES_MAX: u64 = HUGE_PAGE / SHARDS_MAX;
/// Bytes to prefetch of a header before it is read, and of its location before an insert: the
/// header of one object of 64 KiB has this length.
const TYPICAL_BYTES: usize = 384;

/// Upper 24 bits: those of the key's hash. Lower 40 bits: 1 + the line where the header begins,
/// counted over all lines ever appended to the shard's ring; 0 for an empty entry.
#[derive(Clone, Copy, PartialEq, Eq)]
struct TableEntry(u64);

impl TableEntry {
    const LINE_BITS: u32 = 40;
    /// Lines that are appended to a ring before its shard is reset.
    const LINES_MAX: u64 = (1 << TableEntry::LINE_BITS) - 1;

    fn new(hash: u64, begin: u64) -> TableEntry {
        TableEntry(hash >> TableEntry::LINE_BITS << TableEntry::LINE_BITS | (begin + 1))
    }

    /// The line where the header begins, if the entry's hash bits match.
    fn begin(self, hash: u64) -> Option<u64> {
        (self.0 ^ hash < 1 << TableEntry::LINE_BITS).then(|| self.age().checked_sub(1))?
    }

    /// Larger for later headers; 0 for an empty entry.
    fn age(self) -> u64 {
        self.0 & TableEntry::LINES_MAX
    }
}

/// A record's location, and its hash.
#[derive(Clone, Copy)]
struct HeaderKey {
    identity: SegmentIdentity,
    offset: u64,
    hash: u64,
}

impl HeaderKey {
    fn new(identity: SegmentIdentity, offset: u64) -> HeaderKey {
        let location = (u64::from(identity.segment.0) << 32) ^ (offset / ALIGN);
        // Fibonacci hashing: the upper bits are well spread for consecutive locations.
        let hash =
            (location ^ identity.incarnation.0.rotate_left(48)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        HeaderKey { identity, offset, hash }
    }
}

struct CacheShard {
    /// `WAYS` entries for each hash, little-endian. Mapped like the ring: pages without a header
    /// are not allocated, and all are unmapped with the store. Not read before the first insert.
    table: AlignedBuf,
    /// Pieces of equal length, used in order.
    ring: Vec<AlignedBuf>,
    /// Lines appended so far.
    head: u64,
}

impl CacheShard {
    /// Lines in a piece.
    fn piece_lines(&self) -> u64 {
        self.ring.first().map_or(0, |piece| (piece.len() / LINE) as u64)
    }

    fn ring_lines(&self) -> u64 {
        self.ring.len() as u64 * self.piece_lines()
    }

    /// The piece of line number `begin`, and the byte offset in the piece.
    fn piece_at(&self, begin: u64) -> (usize, usize) {
        let lines = self.piece_lines();
        ((begin / lines) as usize % self.ring.len(), (begin % lines) as usize * LINE)
    }

    /// Byte offset in the table of the entries for a hash.
    fn at(&self, hash: u64) -> usize {
        ((hash >> 32) % (self.table.len() / LINE) as u64) as usize * LINE
    }

    fn ways(&self, hash: u64) -> [TableEntry; WAYS] {
        let (words, _) = self.table[self.at(hash)..].as_chunks::<8>();
        std::array::from_fn(|way| TableEntry(u64::from_le_bytes(words[way])))
    }

    fn set(&mut self, hash: u64, way: usize, entry: TableEntry) {
        let at = self.at(hash) + way * size_of::<TableEntry>();
        self.table[at..at + size_of::<TableEntry>()].copy_from_slice(&entry.0.to_le_bytes());
    }

    /// The header with this key, and its way in the table.
    fn find(&self, key: HeaderKey) -> Option<(usize, Record<'_>)> {
        if self.head == 0 {
            return None;
        }
        let matches = |(way, entry): (usize, TableEntry)| {
            let begin = entry.begin(key.hash)?;
            let (piece, at) = self.piece_at(begin);
            let is_in_ring = self.head - begin <= self.ring_lines();
            let record = Record::of_trimmed(&self.ring[piece][at..]).filter(|_| is_in_ring)?;
            record.expect(key.identity, key.offset).ok().map(|()| (way, record))
        };
        self.ways(key.hash).into_iter().enumerate().find_map(matches)
    }

    fn insert(&mut self, key: HeaderKey, header: &[u8]) {
        let (piece, lines) = (self.piece_lines(), header.len().div_ceil(LINE) as u64);
        // A long header would displace many others, and saves its reader the least.
        if lines > (self.ring_lines() / HEADER_FRACTION).min(piece) {
            return;
        }
        if self.head + piece + lines >= TableEntry::LINES_MAX {
            self.table.fill(0);
            self.head = 0;
        }
        if self.head == 0 {
            self.prefault_table();
        }
        let ways = self.ways(key.hash);
        let same = self.find(key).map(|(way, _)| way);
        let piece_end = self.head - self.head % piece + piece;
        let begin = if self.head + lines > piece_end { piece_end } else { self.head };
        let (piece, at) = self.piece_at(begin);
        self.ring[piece][at..at + header.len()].copy_from_slice(header);
        self.head = begin + lines;
        let oldest = || (0..WAYS).min_by_key(|&way| ways[way].age());
        let way = same.or_else(oldest).unwrap_or(0);
        self.set(key.hash, way, TableEntry::new(key.hash, begin));
    }

    /// Write to each huge page of the table. A page that is read first maps the shared zero page,
    /// and some systems (Linux before 6.13) replace that by small pages on the first write.
    fn prefault_table(&mut self) {
        self.table.chunks_mut(HUGE_PAGE as usize).for_each(|page| page[0] = 0);
        self.table.last_mut().into_iter().for_each(|byte| *byte = 0);
    }

    /// Prefetch the table line and the ring lines that the next insert writes.
    fn prefetch_insert(&self, hash: u64) {
        if self.head > 0 {
            prefetch::line_to_write(&self.table[self.at(hash)]);
            let (piece, at) = self.piece_at(self.head);
            let next = self.ring[piece][at..].iter().step_by(LINE).take(TYPICAL_BYTES / LINE);
            next.for_each(prefetch::line_to_write);
        }
    }

    fn remove(&mut self, key: HeaderKey) {
        if let Some((way, _)) = self.find(key) {
            self.set(key.hash, way, TableEntry(0));
        }
    }
}

/// The header cache, bounded by its memory.
pub(crate) struct HeaderCache(Box<[Mutex<CacheShard>]>);

impl HeaderCache {
    /// An empty cache of at most `bytes` bytes; with 0 it stays empty. Fails if the system has no
    /// memory.
    pub fn new(bytes: u64) -> std::io::Result<HeaderCache> {
        let shards = (bytes / SHARD_BYTES_MIN).min(SHARDS_MAX);
        let bytes = bytes.checked_div(shards).unwrap_or(0);
        let table = bytes / TABLE_FRACTION / LINE as u64 * LINE as u64;
        let pieces = (bytes - table).div_ceil(PIECE_BYTES_MAX);
        let piece = (bytes - table).checked_div(pieces).unwrap_or(0) / ALIGN * ALIGN;
        let times = |count: u64, bytes: u64| std::iter::repeat_n(bytes as usize, count as usize);
        let lengths: Vec<usize> =
            times(shards, table).chain(times(shards * pieces, piece)).collect();
        let memory = AlignedBuf::with_lengths(&lengths)?;
        memory.iter().take(1).for_each(AlignedBuf::exclude_from_fork);
        let mut memory = memory.into_iter();
        let shard = |table| CacheShard { table, ring: Vec::new(), head: 0 };
        let mut all: Vec<CacheShard> = memory.by_ref().take(shards as usize).map(shard).collect();
        for (at, piece) in memory.enumerate() {
            all[at % shards as usize].ring.push(piece);
        }
        Ok(HeaderCache(all.into_iter().map(Mutex::new).collect()))
    }

    /// Fault in all memory now. If a virtual machine's host must allocate it, a huge page can take
    /// some milliseconds, during which the flusher or a get with the first insert there would wait.
    pub fn prefault(&self) -> std::io::Result<()> {
        self.0.iter().try_for_each(|shard| {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            std::iter::once(&shard.table).chain(&shard.ring).try_for_each(AlignedBuf::prefault)
        })
    }

    /// The cached header of a location, without its padding ([`Record::of_trimmed`]).
    pub fn get(&self, identity: SegmentIdentity, offset: u64) -> Option<Box<[u8]>> {
        let (shard, key) = self.shard(identity, offset)?;
        shard.find(key).map(|(_, record)| Box::from(record.trimmed()))
    }

    /// Prefetch the headers of these locations into the CPU cache before lookups: first all table
    /// lines, then all headers.
    pub fn prefetch(&self, locations: impl Iterator<Item = (SegmentIdentity, u64)> + Clone) {
        let shards =
            |(identity, offset)| self.shard(identity, offset).filter(|(shard, _)| shard.head > 0);
        for (shard, key) in locations.clone().filter_map(shards) {
            prefetch::line(&shard.table[shard.at(key.hash)]);
        }
        for (shard, key) in locations.filter_map(shards) {
            for begin in shard.ways(key.hash).into_iter().filter_map(|entry| entry.begin(key.hash))
            {
                let (piece, at) = shard.piece_at(begin);
                prefetch::front(&shard.ring[piece][at..], TYPICAL_BYTES);
            }
        }
    }

    /// Prefetch the memory for an insert of this location's header, which is being read.
    pub fn prefetch_insert(&self, identity: SegmentIdentity, offset: u64) {
        if let Some((shard, key)) = self.shard(identity, offset) {
            shard.prefetch_insert(key.hash);
        }
    }

    /// Insert a header that was written, or is about to be. Its objects are not found in the index
    /// before the write is complete.
    pub fn insert_written(&self, location: &RecordLocation, trimmed: &[u8]) {
        self.insert(location.identity, location.offset, trimmed);
    }

    /// Insert a header that was read and verified.
    pub fn insert_read(&self, record: &Record<'_>) {
        let facts = record.facts();
        self.insert(facts.identity, facts.offset, record.trimmed());
    }

    /// Remove the header of a location, because the payload did not match it.
    pub fn remove(&self, identity: SegmentIdentity, offset: u64) {
        if let Some((mut shard, key)) = self.shard(identity, offset) {
            shard.remove(key);
        }
    }

    fn insert(&self, identity: SegmentIdentity, offset: u64, trimmed: &[u8]) {
        if let Some((mut shard, key)) = self.shard(identity, offset) {
            shard.insert(key, trimmed);
        }
    }

    /// The locked shard of a location, and the location's key.
    fn shard(
        &self,
        identity: SegmentIdentity,
        offset: u64,
    ) -> Option<(MutexGuard<'_, CacheShard>, HeaderKey)> {
        let key = HeaderKey::new(identity, offset);
        let shard = self.0.get(((key.hash >> 16) % self.0.len().max(1) as u64) as usize)?;
        Some((shard.lock().unwrap_or_else(PoisonError::into_inner), key))
    }
}

#[cfg(test)]
mod tests;

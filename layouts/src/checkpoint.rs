//! The checkpoint: a snapshot of the index that shortens the next open. A store opens without it,
//! since footers hold the same facts.
//!
//! Invariants:
//! - The snapshot is fuzzy. It has every entry that was in the index from its begin to its end;
//!   every later change is in a segment with `order >= replay_from`, and open replays those
//!   segments.
//! - Open drops an entry if the incarnation of its segment has changed since.
//! - Chunks are written and synced before the header that names them.
//!
//! File: one header block, then chunks of 64 KiB with the segment marks and the entries. Each chunk
//! has its own header and checksum.

use crate::align::{ALIGN, align_up};
use crate::checksum::{Checksum, checksum_around};
use crate::error::FormatError;
use crate::format::{VERSION, is_zero, read, structure};
use crate::ids::{SegmentOrder, Sequence, StoreId};

structure! {
    /// First block of a checkpoint file.
    pub struct CheckpointHead = 128 {
        /// `PLCHKPNT`.
        magic: [u8; 8],
        /// XXH3-128 of the block.
        checksum: Checksum,
        /// Format version.
        version: u16,
        /// 1 if the store was closed after this checkpoint and nothing was written since.
        clean: u8,
        /// Zero.
        reserved: u8,
        /// Number of segment marks.
        segment_count: u32,
        /// Store.
        store: StoreId,
        /// Number of this checkpoint.
        serial: u64,
        /// First sequence that was not yet assigned when the snapshot began.
        sequence: u64,
        /// Segments of this order or later must be replayed.
        replay_from: u64,
        /// Number of entries.
        entry_count: u64,
        /// Number of chunks.
        chunk_count: u64,
        /// First sequence that was not yet assigned when the snapshot ended.
        next_sequence: u64,
        /// Zero.
        tail: [u8; 32],
    }
}

structure! {
    /// Start of a chunk of 65536 bytes.
    pub struct ChunkHead = 64 {
        /// `PLCHUNK1`.
        magic: [u8; 8],
        /// XXH3-128 of the chunk.
        checksum: Checksum,
        /// 1 segment marks, 2 entries.
        kind: u32,
        /// Number of items in the chunk, at most 2046.
        count: u32,
        /// Store.
        store: StoreId,
        /// Number of the checkpoint.
        serial: u64,
        /// Number of this chunk.
        index: u64,
    }
}

structure! {
    /// State of a segment when the snapshot began; mark `i` is segment `i`.
    pub struct SegmentMark = 32 {
        /// Incarnation; 0 if it was never used.
        pub incarnation: u64,
        /// Order in which that incarnation was opened.
        pub order: u64,
        /// Smallest sequence of an object in the segment, without tombstones; all ones if there is
        /// none.
        pub min_sequence: u64,
        /// End of the last record in bytes; 0 if nothing was appended to this incarnation, so that
        /// the segment is free. The length of a segment if it could not be read.
        pub data_end: u64,
    }
}

structure! {
    /// An object on SSD that was in the index, or a link, or a withdrawal.
    pub struct CheckpointEntry = 32 {
        /// Keyed fingerprint, little-endian.
        pub fingerprint: [u8; 16],
        /// Segment. All ones mark a link, which names the base group that the object is attached
        /// to.
        pub segment: u32,
        /// Offset of the record in the segment, in sectors; 0 in a link.
        pub record_sector: u16,
        /// Offset of the payload in the record, in sectors; 0 in a link.
        pub payload_sector: u16,
        /// Length; 0 withdraws every entry of the record. In a link, the lower half of the name of
        /// the base group.
        pub length: u32,
        /// Bits 0 to 19: recency, in ticks of the store's logical clock. Bit 31: the object is
        /// attached to a base group. In a link, the upper half of the name of the base group.
        pub tick: u32,
    }
}

impl CheckpointEntry {
    /// A withdrawal of every entry of the record at `record_sector` of `segment`. Objects left that
    /// record while the snapshot was copied, so that the snapshot may lack members of its group.
    pub fn withdrawal(segment: u32, record_sector: u16) -> CheckpointEntry {
        CheckpointEntry { segment, record_sector, ..bytemuck::Zeroable::zeroed() }
    }

    /// Whether this is a withdrawal and not an entry.
    pub fn is_withdrawal(&self) -> bool {
        self.length == 0 && self.segment != LINK
    }

    /// A link: the object with this fingerprint is attached to the base group with this name.
    pub fn links(fingerprint: u128, base: u64) -> CheckpointEntry {
        let (length, tick) = (base as u32, (base >> 32) as u32);
        let fingerprint = fingerprint.to_le_bytes();
        CheckpointEntry { fingerprint, segment: LINK, length, tick, ..bytemuck::Zeroable::zeroed() }
    }

    /// The name of the base group, if this is a link.
    pub fn link(&self) -> Option<u64> {
        (self.segment == LINK).then_some(u64::from(self.tick) << 32 | u64::from(self.length))
    }

    /// Encode the field `tick`: recency, and whether the object is attached to a base group.
    pub fn tick(tick: u32, attached: bool) -> u32 {
        tick & TICK_MASK | u32::from(attached) << 31
    }

    /// Recency in ticks.
    pub fn ticks(&self) -> u32 {
        self.tick & TICK_MASK
    }

    /// Whether the object is attached to a base group.
    pub fn is_attached(&self) -> bool {
        self.tick >> 31 == 1
    }
}

/// Segment number that marks a link; no segment has it.
const LINK: u32 = u32::MAX;
const TICK_MASK: u32 = (1 << 20) - 1;

const WHAT: &str = "checkpoint";
const MAGIC: [u8; 8] = *b"PLCHKPNT";
const CHUNK_MAGIC: [u8; 8] = *b"PLCHUNK1";
/// Length of a chunk in bytes.
pub const CHUNK_BYTES: usize = 64 * 1024;
/// Most items of a chunk.
pub const CHUNK_ITEMS: usize = (CHUNK_BYTES - ChunkHead::BYTES) / CheckpointEntry::BYTES;

/// Content of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ChunkKind {
    /// Segment marks.
    Segments = 1,
    /// Index entries.
    Entries = 2,
}

/// The fields of a checkpoint's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointFacts {
    /// The store.
    pub store: StoreId,
    /// Number of this checkpoint.
    pub serial: u64,
    /// First sequence not yet assigned when the snapshot began.
    pub sequence: Sequence,
    /// First sequence not yet assigned when the snapshot ended.
    pub next_sequence: Sequence,
    /// Segments of this order or later must be replayed.
    pub replay_from: SegmentOrder,
    /// Number of segment marks.
    pub segment_count: u32,
    /// Number of entries.
    pub entry_count: u64,
    /// Number of chunks.
    pub chunk_count: u64,
    /// Whether the store was closed after this checkpoint and nothing was written since.
    pub clean: bool,
}

/// Length in bytes of a file with `segments` marks and `entries` entries. Only the last chunk of
/// each kind may be partly empty.
pub const fn file_bytes(segments: u64, entries: u64) -> u64 {
    align_up(chunk_offset(chunks_for(segments, entries)))
}

/// The smallest number of chunks that holds `segments` marks and `entries` entries.
pub const fn chunks_for(segments: u64, entries: u64) -> u64 {
    segments.div_ceil(CHUNK_ITEMS as u64) + entries.div_ceil(CHUNK_ITEMS as u64)
}

/// Byte offset of a chunk in the file. Saturates, since `index` may come from a file.
pub const fn chunk_offset(index: u64) -> u64 {
    index.saturating_mul(CHUNK_BYTES as u64).saturating_add(ALIGN)
}

/// Encode the header block.
pub fn encode_head(facts: &CheckpointFacts) -> [u8; ALIGN as usize] {
    let mut block = [0; ALIGN as usize];
    let head = CheckpointHead {
        magic: MAGIC,
        checksum: [0; 16],
        version: VERSION,
        clean: facts.clean.into(),
        reserved: 0,
        segment_count: facts.segment_count,
        store: facts.store,
        serial: facts.serial,
        sequence: facts.sequence.0,
        replay_from: facts.replay_from.0,
        entry_count: facts.entry_count,
        chunk_count: facts.chunk_count,
        next_sequence: facts.next_sequence.0,
        tail: [0; 32],
    };
    block[..CheckpointHead::BYTES].copy_from_slice(bytemuck::bytes_of(&head));
    if let Some(sum) = checksum_around(&block, 8) {
        block[8..24].copy_from_slice(&sum);
    }
    block
}

/// Read the header block of a checkpoint of `store`.
pub fn decode_head(block: &[u8], store: StoreId) -> Result<CheckpointFacts, FormatError> {
    let short = FormatError::Short { structure: WHAT, need: ALIGN, have: block.len() as u64 };
    let block = block.get(..ALIGN as usize).ok_or_else(|| short.clone())?;
    let head: CheckpointHead = read(block).ok_or(short)?;
    if head.magic == [0; 8] {
        return Err(FormatError::Empty { structure: WHAT });
    }
    if head.magic != MAGIC {
        return Err(FormatError::Magic { structure: WHAT });
    }
    if checksum_around(block, 8) != Some(head.checksum) {
        return Err(FormatError::Checksum { structure: WHAT });
    }
    if head.version != VERSION {
        return Err(FormatError::Version { structure: WHAT, found: head.version, known: VERSION });
    }
    FormatError::same(WHAT, "store", head.store, store)?;
    if head.clean > 1 {
        return Err(FormatError::field(WHAT, "clean", head.clean));
    }
    let facts = CheckpointFacts {
        store,
        serial: head.serial,
        sequence: Sequence(head.sequence),
        next_sequence: Sequence(head.next_sequence),
        replay_from: SegmentOrder(head.replay_from),
        segment_count: head.segment_count,
        entry_count: head.entry_count,
        chunk_count: head.chunk_count,
        clean: head.clean == 1,
    };
    // Equality with the re-encoded header implies that every reserved byte is zero.
    if encode_head(&facts) != block {
        return Err(FormatError::field(WHAT, "reserved", "not zero"));
    }
    // The writer of the next checkpoint increments these; that must not overflow.
    for (field, value) in [("serial", head.serial), ("next_sequence", head.next_sequence)] {
        if value == u64::MAX {
            return Err(FormatError::field(WHAT, field, value));
        }
    }
    if chunks_for(facts.segment_count.into(), facts.entry_count) > facts.chunk_count {
        return Err(FormatError::field(WHAT, "chunk_count", facts.chunk_count));
    }
    Ok(facts)
}

/// Encode a chunk into `out`. False if `out` is not [`CHUNK_BYTES`] long, or if `items` are not the
/// raw bytes of at most [`CHUNK_ITEMS`] items of 32 bytes.
pub fn encode_chunk(
    out: &mut [u8],
    kind: ChunkKind,
    store: StoreId,
    serial: u64,
    index: u64,
    items: &[u8],
) -> bool {
    let room = CHUNK_ITEMS * CheckpointEntry::BYTES;
    if out.len() != CHUNK_BYTES
        || items.len() > room
        || !items.len().is_multiple_of(CheckpointEntry::BYTES)
    {
        return false;
    }
    out.fill(0);
    let count = (items.len() / CheckpointEntry::BYTES) as u32;
    let head = ChunkHead {
        magic: CHUNK_MAGIC,
        checksum: [0; 16],
        kind: kind as u32,
        count,
        store,
        serial,
        index,
    };
    out[..ChunkHead::BYTES].copy_from_slice(bytemuck::bytes_of(&head));
    out[ChunkHead::BYTES..ChunkHead::BYTES + items.len()].copy_from_slice(items);
    checksum_around(out, 8).map(|sum| out[8..24].copy_from_slice(&sum)).is_some()
}

/// Read a chunk of `facts`' checkpoint: its kind and the raw bytes of its items.
pub fn decode_chunk<'a>(
    bytes: &'a [u8],
    facts: &CheckpointFacts,
    index: u64,
) -> Result<(ChunkKind, &'a [u8]), FormatError> {
    const WHAT: &str = "checkpoint chunk";
    let short =
        FormatError::Short { structure: WHAT, need: CHUNK_BYTES as u64, have: bytes.len() as u64 };
    let bytes = bytes.get(..CHUNK_BYTES).ok_or_else(|| short.clone())?;
    let head: ChunkHead = read(bytes).ok_or(short)?;
    if head.magic != CHUNK_MAGIC {
        return Err(FormatError::Magic { structure: WHAT });
    }
    if checksum_around(bytes, 8) != Some(head.checksum) {
        return Err(FormatError::Checksum { structure: WHAT });
    }
    FormatError::same(WHAT, "store", head.store, facts.store)?;
    FormatError::same(WHAT, "serial", head.serial, facts.serial)?;
    FormatError::same(WHAT, "index", head.index, index)?;
    let kind = match head.kind {
        1 => ChunkKind::Segments,
        2 => ChunkKind::Entries,
        other => return Err(FormatError::field(WHAT, "kind", other)),
    };
    let used = head.count as usize * CheckpointEntry::BYTES;
    let (items, rest) = bytes[ChunkHead::BYTES..]
        .split_at_checked(used)
        .ok_or_else(|| FormatError::field(WHAT, "count", head.count))?;
    if !is_zero(rest) {
        return Err(FormatError::field(WHAT, "reserved", "not zero"));
    }
    Ok((kind, items))
}

/// The serial of the checkpoint that a chunk belongs to; `None` if it is not an intact chunk of
/// `store`.
pub fn chunk_serial(bytes: &[u8], store: StoreId) -> Option<u64> {
    let bytes = bytes.get(..CHUNK_BYTES)?;
    let head: ChunkHead = read(bytes)?;
    let whole = head.magic == CHUNK_MAGIC && checksum_around(bytes, 8) == Some(head.checksum);
    // The next checkpoint's serial is computed from it; that must not overflow.
    (whole && head.store == store && head.serial < u64::MAX).then_some(head.serial)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: StoreId = StoreId([7; 16]);

    fn facts() -> CheckpointFacts {
        CheckpointFacts {
            store: STORE,
            serial: 5,
            sequence: Sequence(100),
            next_sequence: Sequence(120),
            replay_from: SegmentOrder(9),
            segment_count: 4,
            entry_count: 3000,
            chunk_count: 3,
            clean: true,
        }
    }

    fn chunk(items: &[u8]) -> Vec<u8> {
        let mut out = vec![0xff; CHUNK_BYTES];
        assert!(encode_chunk(&mut out, ChunkKind::Entries, STORE, 5, 2, items));
        out
    }

    fn reseal(bytes: &mut [u8]) {
        let sum = checksum_around(bytes, 8).expect("a hole inside");
        bytes[8..24].copy_from_slice(&sum);
    }

    #[test]
    fn file_length_counts_full_and_partly_empty_chunks() {
        assert_eq!(CHUNK_ITEMS, 2046);
        assert_eq!(file_bytes(0, 0), 4096);
        assert_eq!(file_bytes(1, 0), 4096 + 65_536);
        assert_eq!(file_bytes(2046, 2047), 4096 + 3 * 65_536);
        assert_eq!(chunk_offset(2), 4096 + 2 * 65_536);
        assert_eq!(
            chunk_offset(u64::MAX),
            u64::MAX,
            "a chunk number read from a file cannot overflow"
        );
    }

    #[test]
    fn header_round_trips_and_invalid_field_is_named() {
        let block = encode_head(&facts());
        assert_eq!(decode_head(&block, STORE), Ok(facts()));
        let refused = |at: usize, value: u8| {
            let mut block = block;
            block[at] = value;
            reseal(&mut block);
            decode_head(&block, STORE).expect_err("a changed head").to_string()
        };
        let at = |name: &str| {
            CheckpointHead::STRUCTURE
                .fields
                .iter()
                .find(|f| f.name == name)
                .expect("a field")
                .offset
        };
        assert_eq!(
            refused(at("version"), 2),
            "checkpoint has a newer format version=2 newest_known=1"
        );
        assert!(refused(at("store"), 1).contains("does not match field=store"));
        assert!(refused(at("clean"), 2).contains("field=clean"));
        assert!(refused(at("chunk_count"), 2).contains("field=chunk_count"));
        for reserved in [at("reserved"), at("tail") + 31, CheckpointHead::BYTES, 4095] {
            assert!(refused(reserved, 1).contains("field=reserved"));
        }
    }

    #[test]
    fn chunk_round_trips() {
        for count in [0, 1, CHUNK_ITEMS] {
            let items: Vec<u8> = (0..count * 32).map(|i| (i % 251) as u8).collect();
            assert_eq!(
                decode_chunk(&chunk(&items), &facts(), 2),
                Ok((ChunkKind::Entries, &items[..]))
            );
        }
    }

    #[test]
    fn chunk_serial_names_its_checkpoint() {
        let mut good = chunk(&[3; 64]);
        assert_eq!(chunk_serial(&good, STORE), Some(5));
        assert_eq!(chunk_serial(&good, StoreId([8; 16])), None);
        assert_eq!(chunk_serial(&good[1..], STORE), None);
        good[CHUNK_BYTES - 1] ^= 1;
        assert_eq!(chunk_serial(&good, STORE), None);
    }

    #[test]
    fn chunk_of_wrong_length_is_not_encoded() {
        let mut out = vec![0; CHUNK_BYTES];
        for (bytes, items) in
            [(CHUNK_BYTES - 1, 0), (CHUNK_BYTES, 33), (CHUNK_BYTES, (CHUNK_ITEMS + 1) * 32)]
        {
            let written =
                encode_chunk(&mut out[..bytes], ChunkKind::Segments, STORE, 5, 2, &vec![1; items]);
            assert!(!written, "bytes={bytes} items={items}");
        }
    }

    #[test]
    fn chunk_of_other_checkpoint_or_index_is_refused() {
        let good = chunk(&[3; 64]);
        let named = |facts: CheckpointFacts, index| {
            decode_chunk(&good, &facts, index).unwrap_err().to_string()
        };
        assert!(named(CheckpointFacts { serial: 4, ..facts() }, 2).contains("field=serial"));
        assert!(
            named(CheckpointFacts { store: StoreId([8; 16]), ..facts() }, 2)
                .contains("field=store")
        );
        assert!(named(facts(), 1).contains("field=index"));
        let forged = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            reseal(&mut bytes);
            decode_chunk(&bytes, &facts(), 2).unwrap_err().to_string()
        };
        assert!(forged(24, 3).contains("field=kind"));
        assert!(forged(29, 0x10).contains("field=count"), "more than the chunk holds");
        assert!(forged(28, 1).contains("field=reserved"), "an item beyond the count");
        assert!(forged(CHUNK_BYTES - 1, 1).contains("field=reserved"));
        assert_eq!(
            decode_chunk(&good[1..], &facts(), 2),
            Err(FormatError::Short { structure: "checkpoint chunk", need: 65_536, have: 65_535 })
        );
    }
}

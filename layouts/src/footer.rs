//! The footer of a sealed segment: a table of its record headers at the end of the segment, so that
//! opening a store reads footers instead of whole segments.
//!
//! Invariants:
//! - A footer is written only after a sync that covers the records it lists.
//! - Entries are in log order and the members of a record are adjacent, so a reader need not
//!   collect groups.

use crate::align::{ALIGN, align_up, is_aligned};
use crate::checksum::{Checksum, checksum_around};
use crate::error::FormatError;
use crate::format::{VERSION, is_valid_counter, is_zero, read, structure};
use crate::ids::{Incarnation, SegmentOrder, Sequence, StoreId};
use crate::key::ObjectKey;
use crate::record::{GroupKind, MEMBERS_MAX, OBJECT_BYTES_MAX, Record, RecordKind, record_bytes};
use crate::segment::SegmentIdentity;

structure! {
    /// One member of one record, in log order.
    pub struct FooterEntry = 192 {
        /// Whole key.
        pub key: ObjectKey,
        /// Sequence of its put or remove.
        pub sequence: u64,
        /// Generation of its namespace at that time.
        pub generation: u64,
        /// Sequence of the group's put or remove.
        pub group: u64,
        /// Base group of an attached record.
        pub base_group: u64,
        /// Length; 0 in a tombstone.
        pub length: u64,
        /// Offset of the record in the segment, in sectors.
        pub record_sector: u32,
        /// Offset of the payload in the record, in sectors; 0 in a tombstone.
        pub payload_sector: u32,
        /// Length of the record in sectors.
        pub record_sectors: u32,
        /// Number of members of the record.
        pub member_count: u32,
        /// Record kind: 1 data, 2 tombstone.
        pub kind: u8,
        /// Group kind, as in the record.
        pub group_kind: u8,
        /// Zero.
        pub reserved: u16,
        /// Chain depth.
        pub depth: u32,
    }
}

structure! {
    /// Last 128 bytes of a sealed segment. The entries begin `footer_bytes` before the end of the
    /// segment; the bytes between them and this tail are zero.
    pub struct FooterTail = 128 {
        /// `PLFOOTER`.
        magic: [u8; 8],
        /// XXH3-128 of the whole footer.
        checksum: Checksum,
        /// Format version.
        version: u16,
        /// Zero.
        reserved: u16,
        /// Number of entries.
        entry_count: u32,
        /// Store.
        store: StoreId,
        /// Length of the footer, a multiple of 4096.
        footer_bytes: u64,
        /// Segment number.
        segment: u32,
        /// Zero.
        reserved2: u32,
        /// Incarnation.
        incarnation: u64,
        /// Number of incarnations opened in the store so far.
        order: u64,
        /// Smallest sequence of an object in the segment, without tombstones; all ones if there is
        /// none.
        min_sequence: u64,
        /// Largest sequence in the segment, tombstones included; 0 if it has no record.
        max_sequence: u64,
        /// End of the last record, from the start of the segment.
        data_end: u64,
        /// Zero.
        tail: [u8; 24],
    }
}

const WHAT: &str = "footer";
const MAGIC: [u8; 8] = *b"PLFOOTER";

/// Length in bytes of a footer with `entries` entries.
pub const fn footer_bytes(entries: u64) -> u64 {
    align_up(entries * FooterEntry::BYTES as u64 + FooterTail::BYTES as u64)
}

/// The largest data record in bytes that fits a segment of `segment_bytes`, together with the
/// segment's header and a footer of `members` entries.
pub const fn record_bytes_max(segment_bytes: u64, members: u64) -> u64 {
    segment_bytes.saturating_sub(ALIGN).saturating_sub(footer_bytes(members))
}

/// The largest object in bytes that fits an otherwise empty segment, 0 if none fits; `block_bytes`
/// must not be 0.
pub fn object_bytes_max(segment_bytes: u64, block_bytes: u32) -> u64 {
    let room = record_bytes_max(segment_bytes, 1);
    // The header grows with the object; one or two steps reach the fixed point.
    let mut length = room.saturating_sub(ALIGN);
    while length > 0 && record_bytes([length], block_bytes) > room {
        length = length.saturating_sub(ALIGN);
    }
    length.min(OBJECT_BYTES_MAX)
}

/// The fields of a footer other than its entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FooterFacts {
    /// Store, segment and incarnation.
    pub identity: SegmentIdentity,
    /// Position of the segment in the log.
    pub order: SegmentOrder,
    /// Smallest sequence of a data record in the segment, `u64::MAX` without one. Tombstones do not
    /// count: the value decides which tombstones of other segments may still shadow a record of
    /// this one.
    pub min_sequence: Sequence,
    /// Largest sequence in the segment, tombstones included; 0 if it has no record.
    pub max_sequence: Sequence,
    /// End of the last record in bytes.
    pub data_end: u64,
}

/// The footer entries of a record.
pub fn entries_of<'a>(record: &'a Record<'_>) -> impl Iterator<Item = FooterEntry> + 'a {
    let facts = record.facts();
    let blocks = |bytes: u64| (bytes / ALIGN) as u32;
    record.members().map(move |m| FooterEntry {
        key: m.key,
        sequence: facts.sequence.0,
        generation: facts.generation.0,
        group: facts.group.0,
        base_group: facts.base_group.0,
        length: m.length,
        record_sector: blocks(facts.offset),
        payload_sector: blocks(m.payload_offset),
        record_sectors: blocks(record.record_bytes()),
        member_count: record.member_count() as u32,
        kind: facts.kind as u8,
        group_kind: facts.group_kind as u8,
        reserved: 0,
        depth: facts.depth,
    })
}

/// Encode a footer: `footer_bytes(entries.len())` bytes, to be written at the end of the segment.
/// Entries must be in log order with the members of a record adjacent; a reader refuses any other
/// order.
pub fn encode(facts: &FooterFacts, entries: &[FooterEntry]) -> Vec<u8> {
    debug_assert_eq!(
        check_entries(facts, entries),
        Ok(()),
        "the footer's own reader would refuse it"
    );
    let length = footer_bytes(entries.len() as u64);
    let mut bytes = vec![0; length as usize];
    let raw: &[u8] = bytemuck::cast_slice(entries);
    bytes[..raw.len()].copy_from_slice(raw);
    let tail = FooterTail {
        magic: MAGIC,
        checksum: [0; 16],
        version: VERSION,
        reserved: 0,
        entry_count: entries.len() as u32,
        store: facts.identity.store,
        footer_bytes: length,
        segment: facts.identity.segment.0,
        reserved2: 0,
        incarnation: facts.identity.incarnation.0,
        order: facts.order.0,
        min_sequence: facts.min_sequence.0,
        max_sequence: facts.max_sequence.0,
        data_end: facts.data_end,
        tail: [0; 24],
    };
    let at = bytes.len() - FooterTail::BYTES;
    bytes[at..].copy_from_slice(bytemuck::bytes_of(&tail));
    if let Some(sum) = checksum_around(&bytes, at + 8) {
        bytes[at + 8..at + 24].copy_from_slice(&sum);
    }
    bytes
}

/// The length in bytes that the footer at the end of `last_block` claims, if it ends like one: the
/// number of bytes to read for [`decode`].
pub fn claimed_bytes(last_block: &[u8], segment_bytes: u64) -> Option<u64> {
    let at = last_block.len().checked_sub(FooterTail::BYTES)?;
    let tail: FooterTail = read(&last_block[at..])?;
    let plausible = is_aligned(tail.footer_bytes)
        && tail.footer_bytes >= ALIGN
        && tail.footer_bytes < segment_bytes
        && footer_bytes(tail.entry_count.into()) == tail.footer_bytes;
    (tail.magic == MAGIC && plausible).then_some(tail.footer_bytes)
}

/// Read a footer from exactly its bytes and check that it belongs to `identity`. Memory is
/// allocated only for entries that are present in `bytes`, never by a count alone.
pub fn decode(
    bytes: &[u8],
    identity: SegmentIdentity,
    segment_bytes: u64,
) -> Result<(FooterFacts, Vec<FooterEntry>), FormatError> {
    let at = bytes.len().checked_sub(FooterTail::BYTES);
    let short = FormatError::Short { structure: WHAT, need: ALIGN, have: bytes.len() as u64 };
    let tail: FooterTail = at.and_then(|at| read(&bytes[at..])).ok_or_else(|| short.clone())?;
    if tail.magic != MAGIC {
        let empty = tail.magic == [0; 8];
        return Err(if empty {
            FormatError::Empty { structure: WHAT }
        } else {
            FormatError::Magic { structure: WHAT }
        });
    }
    let claimed = claimed_bytes(bytes, segment_bytes)
        .filter(|claimed| *claimed == bytes.len() as u64)
        .ok_or_else(|| FormatError::field(WHAT, "footer_bytes", tail.footer_bytes))?;
    if checksum_around(bytes, bytes.len() - FooterTail::BYTES + 8) != Some(tail.checksum) {
        return Err(FormatError::Checksum { structure: WHAT });
    }
    if tail.version != VERSION {
        return Err(FormatError::Version { structure: WHAT, found: tail.version, known: VERSION });
    }
    FormatError::same(WHAT, "store", tail.store, identity.store)?;
    FormatError::same(WHAT, "segment", tail.segment, identity.segment.0)?;
    FormatError::same(WHAT, "incarnation", Incarnation(tail.incarnation), identity.incarnation)?;
    let entries: Vec<FooterEntry> = bytes
        .chunks_exact(FooterEntry::BYTES)
        .take(tail.entry_count as usize)
        .map(bytemuck::pod_read_unaligned)
        .collect();
    let facts = FooterFacts {
        identity,
        order: SegmentOrder(tail.order),
        min_sequence: Sequence(tail.min_sequence),
        max_sequence: Sequence(tail.max_sequence),
        data_end: tail.data_end,
    };
    if facts.data_end > segment_bytes - claimed {
        return Err(FormatError::field(WHAT, "data_end", facts.data_end));
    }
    let padding = bytes.get(entries.len() * FooterEntry::BYTES..bytes.len() - FooterTail::BYTES);
    let reserved =
        [u64::from(tail.reserved), u64::from(tail.reserved2)] == [0; 2] && is_zero(&tail.tail);
    if !reserved || !padding.is_some_and(is_zero) {
        return Err(FormatError::field(WHAT, "reserved", "not zero"));
    }
    check_entries(&facts, &entries)?;
    Ok((facts, entries))
}

/// Check each entry, and that the entries form complete records that do not overlap.
fn check_entries(facts: &FooterFacts, entries: &[FooterEntry]) -> Result<(), FormatError> {
    if facts.data_end < ALIGN || !is_aligned(facts.data_end) {
        return Err(FormatError::field(WHAT, "data_end", facts.data_end));
    }
    if facts.max_sequence.0 == u64::MAX || facts.order.0 == u64::MAX {
        return Err(FormatError::field(WHAT, "max_sequence", facts.max_sequence));
    }
    let mut end = ALIGN;
    for record in entries.chunk_by(|a, b| a.record_sector == b.record_sector) {
        let first = &record[0];
        let begin = u64::from(first.record_sector) * ALIGN;
        let wrong = |field| Err(FormatError::field(WHAT, field, first.key));
        if begin < end {
            return wrong("record_sector");
        }
        end = begin + u64::from(first.record_sectors) * ALIGN;
        if end > facts.data_end {
            return wrong("record_sectors");
        }
        let single =
            first.group_kind == GroupKind::Single as u8 && first.kind == RecordKind::Data as u8;
        let most = if single { 1 } else { MEMBERS_MAX };
        if record.len() > most || first.member_count as usize != record.len() {
            return wrong("member_count");
        }
        for e in record {
            check_entry(e)?;
            if shared(e) != shared(first) || e.key.namespace() != first.key.namespace() {
                return Err(FormatError::field(WHAT, "entry", e.key));
            }
            let data = e.kind == RecordKind::Data as u8;
            if e.sequence > facts.max_sequence.0 || (data && e.sequence < facts.min_sequence.0) {
                return Err(FormatError::field(WHAT, "sequence", e.sequence));
            }
        }
    }
    Ok(())
}

/// The fields that all members of a record share.
fn shared(e: &FooterEntry) -> ([u64; 4], [u32; 3], [u8; 2]) {
    let times = [e.sequence, e.generation, e.group, e.base_group];
    (times, [e.record_sectors, e.member_count, e.depth], [e.kind, e.group_kind])
}

fn check_entry(e: &FooterEntry) -> Result<(), FormatError> {
    e.key.check()?;
    let payload_begin = u64::from(e.payload_sector) * ALIGN;
    let kind_ok = if e.kind == RecordKind::Data as u8 {
        (GroupKind::Single as u8..=GroupKind::Attached as u8).contains(&e.group_kind)
            && (1..=OBJECT_BYTES_MAX).contains(&e.length)
            && e.payload_sector >= 1
            && payload_begin + align_up(e.length) <= u64::from(e.record_sectors) * ALIGN
    } else {
        e.kind == RecordKind::Tombstones as u8
            && e.group_kind == GroupKind::Single as u8
            && (e.length, e.payload_sector) == (0, 0)
            && e.record_sectors >= 1
    };
    let base_ok = e.base_group == 0 || e.group_kind == GroupKind::Attached as u8;
    if !kind_ok
        || !base_ok
        || e.reserved != 0
        || !is_valid_counter(e.sequence)
        || !is_valid_counter(e.generation)
    {
        return Err(FormatError::field(WHAT, "entry", e.key));
    }
    Ok(())
}

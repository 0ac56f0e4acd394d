//! Records: a self-naming header in 4096-byte blocks, directly before its payload. One header names all
//! members of a group, so that a group is one contiguous run, one read, one unit of reclaim, and whole or
//! not there.
//!
//! A header proves that the bytes behind it are *this* key's, put under *this* generation, written to *this*
//! place of *this* incarnation of *this* segment of *this* store; FAULTS.md section 4 has the measurement
//! that says why nothing less will do.

mod check;
mod encode;

use crate::align::{ALIGN, is_aligned};
use crate::checksum::{Checksum, checksum_around};
use crate::error::FormatError;
use crate::format::{VERSION, read, structure};
use crate::ids::{Generation, GroupId, Incarnation, NamespaceId, SegmentId, Sequence, StoreId};
use crate::key::ObjectKey;
use crate::segment::SegmentIdentity;

pub use encode::{MemberSpec, encode, encode_into, header_bytes, record_bytes, spec_bytes};

structure! {
    /// Start of a record. Behind it come `member_count` members, `block_count` checksums of 16 bytes, and
    /// zeros up to `header_bytes`; then the payloads, each padded with zeros to a multiple of 4096.
    pub struct RecordHead = 192 {
        /// `PLRECORD`.
        magic: [u8; 8],
        /// XXH3-128 of `header_bytes` with this field zero.
        checksum: Checksum,
        /// Format version.
        version: u16,
        /// 1 data, 2 tombstones.
        kind: u8,
        /// 1 a single object (always so in tombstones), 2 the base group of a page, 3 objects attached to a
        /// base group.
        group_kind: u8,
        /// Length of the header in bytes, a multiple of 4096.
        header_bytes: u32,
        /// Store.
        store: StoreId,
        /// Namespace of every member.
        namespace: NamespaceId,
        /// Generation of the namespace that the members were put under, at least 1.
        generation: u64,
        /// Segment number.
        segment: u32,
        /// Number of members, 1 to 1024.
        member_count: u32,
        /// Incarnation of the segment, at least 1.
        incarnation: u64,
        /// Byte offset of this header in the segment, a multiple of 4096, at least 4096.
        offset: u64,
        /// When the members were put, or removed; at least 1.
        sequence: u64,
        /// Group name; for a single object its sequence.
        group: u64,
        /// Length of header and padded payloads in bytes.
        record_bytes: u64,
        /// Block size of the payload checksums in bytes, a multiple of 4096, at most 1048576.
        block_bytes: u32,
        /// Number of payload checksums.
        block_count: u32,
        /// Name of the base group that an attached record belongs to: the upper 8 bytes of a member's keyed
        /// fingerprint; else zero.
        base_group: u64,
        /// Chain depth of the page, as far as the writer was told; else zero.
        depth: u32,
        /// Bit 0: re-appended by reclaim. Other bits are zero.
        flags: u32,
        /// Zero.
        reserved: [u8; 48],
    }
}

structure! {
    /// One object of a record.
    pub struct Member = 160 {
        /// Whole key.
        pub key: ObjectKey,
        /// Length in bytes, without padding; 0 in a tombstone.
        pub length: u64,
        /// Where its payload begins, in bytes from the start of the record; 0 in a tombstone.
        pub payload_offset: u64,
        /// Its first payload checksum.
        pub first_block: u32,
        /// Number of its payload checksums.
        pub block_count: u32,
        /// Zero.
        reserved: u64,
    }
}

const WHAT: &str = "record header";
const MAGIC: [u8; 8] = *b"PLRECORD";
const CHECKSUM_AT: usize = 8;
const FLAG_MOVED: u32 = 1;

/// Longest object in bytes.
pub const OBJECT_BYTES_MAX: u64 = 128 << 20;
/// Most members of a record.
pub const MEMBERS_MAX: usize = 1024;
/// Longest header in bytes that a reader accepts: 1024 members, and 200 MiB in blocks of 4096.
pub const HEADER_BYTES_MAX: u64 = 1 << 20;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Objects and their bytes.
    Data = 1,
    /// Keys that were removed; no payload.
    Tombstones = 2,
}

/// How a record's members belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GroupKind {
    /// One object by itself.
    Single = 1,
    /// The base group of a page: visible together or not at all.
    Base = 2,
    /// Attached to a base group and visible only with it.
    Attached = 3,
}

/// What a header says beside its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFacts {
    /// Where it lies.
    pub identity: SegmentIdentity,
    /// Byte offset in the segment.
    pub offset: u64,
    /// Data or tombstones.
    pub kind: RecordKind,
    /// How members belong together.
    pub group_kind: GroupKind,
    /// Namespace of all members.
    pub namespace: NamespaceId,
    /// Its generation when the members were put.
    pub generation: Generation,
    /// When they were put or removed.
    pub sequence: Sequence,
    /// Group name.
    pub group: GroupId,
    /// Base group of an attached record.
    pub base_group: GroupId,
    /// Block size of the payload checksums in bytes.
    pub block_bytes: u32,
    /// Chain depth.
    pub depth: u32,
    /// Re-appended by reclaim.
    pub moved: bool,
}

/// A whole, self-consistent header. What it names must still be compared with where it was found
/// ([`Record::expect`]) and its payload verified block by block.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    head: RecordHead,
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// The length in bytes that the header at the start of `block` claims, if `block` begins like one: how
    /// much to read before [`Record::decode`] can judge it. Not to be trusted for anything else.
    pub fn claimed_header_bytes(block: &[u8]) -> Option<u64> {
        let head: RecordHead = read(block)?;
        let bytes = u64::from(head.header_bytes);
        let plausible = is_aligned(bytes) && (ALIGN..=HEADER_BYTES_MAX).contains(&bytes);
        (head.magic == MAGIC && plausible).then_some(bytes)
    }

    /// Read a header from the start of `bytes` (more may follow). Never panics, allocates nothing.
    pub fn decode(bytes: &'a [u8]) -> Result<Record<'a>, FormatError> {
        let short = |need| FormatError::Short { structure: WHAT, need, have: bytes.len() as u64 };
        let head: RecordHead = read(bytes).ok_or_else(|| short(ALIGN))?;
        if head.magic == [0; 8] {
            return Err(FormatError::Empty { structure: WHAT });
        }
        if head.magic != MAGIC {
            return Err(FormatError::Magic { structure: WHAT });
        }
        let claimed = Self::claimed_header_bytes(bytes)
            .ok_or_else(|| FormatError::field(WHAT, "header_bytes", head.header_bytes))?;
        let bytes = bytes.get(..claimed as usize).ok_or_else(|| short(claimed))?;
        if checksum_around(bytes, CHECKSUM_AT) != Some(head.checksum) {
            return Err(FormatError::Checksum { structure: WHAT });
        }
        if head.version != VERSION {
            return Err(FormatError::Version { structure: WHAT, found: head.version, known: VERSION });
        }
        let record = Record { head, bytes };
        check::check(&record)?;
        Ok(record)
    }

    /// All of the header that is not padding. What [`Record::decode`] found good can be kept so, in a tenth of the memory,
    /// and looked at again by [`Record::of_trimmed`].
    pub fn trimmed(&self) -> &'a [u8] {
        &self.bytes[..Self::end(&self.head).min(self.bytes.len())]
    }

    /// A header of what [`Record::trimmed`] gave, which is not checked again; `None` if it is shorter than it says. Only for bytes that
    /// stayed in memory meanwhile.
    pub fn of_trimmed(bytes: &'a [u8]) -> Option<Record<'a>> {
        let head: RecordHead = read(bytes)?;
        let bytes = bytes.get(..Self::end(&head))?;
        Some(Record { head, bytes })
    }

    /// Where padding begins.
    fn end(head: &RecordHead) -> usize {
        RecordHead::BYTES + head.member_count as usize * Member::BYTES + head.block_count as usize * 16
    }

    /// The store that the header at the start of `block` claims to belong to: a test that costs nothing, for
    /// refusing foreign bytes before anything else is read for their sake.
    pub fn claimed_store(block: &[u8]) -> Option<StoreId> {
        read::<RecordHead>(block).map(|head| head.store)
    }

    /// Check that the header names the place it was found at.
    pub fn expect(&self, identity: SegmentIdentity, offset: u64) -> Result<(), FormatError> {
        let h = &self.head;
        FormatError::same(WHAT, "store", h.store, identity.store)?;
        FormatError::same(WHAT, "segment", h.segment, identity.segment.0)?;
        FormatError::same(WHAT, "incarnation", h.incarnation, identity.incarnation.0)?;
        FormatError::same(WHAT, "offset", h.offset, offset)
    }

    /// What the header says beside its members.
    pub fn facts(&self) -> RecordFacts {
        let h = &self.head;
        RecordFacts {
            identity: SegmentIdentity {
                store: h.store,
                segment: SegmentId(h.segment),
                incarnation: Incarnation(h.incarnation),
            },
            offset: h.offset,
            kind: if h.kind == 2 { RecordKind::Tombstones } else { RecordKind::Data },
            group_kind: match h.group_kind {
                2 => GroupKind::Base,
                3 => GroupKind::Attached,
                _ => GroupKind::Single,
            },
            namespace: h.namespace,
            generation: Generation(h.generation),
            sequence: Sequence(h.sequence),
            group: GroupId(h.group),
            base_group: GroupId(h.base_group),
            block_bytes: h.block_bytes,
            depth: h.depth,
            moved: h.flags & FLAG_MOVED != 0,
        }
    }

    /// Length of the header in bytes.
    pub fn header_bytes(&self) -> u64 {
        self.head.header_bytes.into()
    }

    /// Length of header and padded payloads in bytes.
    pub fn record_bytes(&self) -> u64 {
        self.head.record_bytes
    }

    /// Number of members.
    pub fn member_count(&self) -> usize {
        self.head.member_count as usize
    }

    /// Member `i`.
    pub fn member(&self, i: usize) -> Option<Member> {
        if i >= self.member_count() {
            return None;
        }
        read(self.bytes.get(RecordHead::BYTES + i * Member::BYTES..)?)
    }

    /// All members, in payload order.
    pub fn members(&self) -> impl Iterator<Item = Member> + '_ {
        (0..self.member_count()).filter_map(|i| self.member(i))
    }

    /// The member with this key, compared whole.
    pub fn find(&self, key: &ObjectKey) -> Option<Member> {
        self.members().find(|m| m.key == *key)
    }

    /// The block checksums of a member of this record.
    pub fn checksums(&self, member: &Member) -> impl ExactSizeIterator<Item = Checksum> + '_ {
        let at = RecordHead::BYTES + self.member_count() * Member::BYTES + member.first_block as usize * 16;
        let bytes = self.bytes.get(at..at + member.block_count as usize * 16).unwrap_or_default();
        bytes.chunks_exact(16).map(|c| {
            let mut sum = [0; 16];
            sum.copy_from_slice(c);
            sum
        })
    }
}

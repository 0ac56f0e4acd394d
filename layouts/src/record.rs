//! Records: a self-naming header of whole sectors, directly before its payload. One header names
//! all members of a group, so that a group is one contiguous run, one read and one unit of reclaim,
//! and is either complete or absent.
//!
//! A header proves that the bytes after it belong to *this* key, were put under *this* generation
//! and written to *this* offset of *this* incarnation of *this* segment of *this* store.
//! `docs/faults.md` shows why each is needed: row 3 of its matrix (misdirected write or read), and
//! its planted bugs `KeyUnchecked`, `GenerationUnchecked` and `IncarnationUnchecked`.

mod decode;
mod encode;

use crate::align::{ALIGN, align_up, is_aligned};
use crate::checksum::{Checksum, block_count};
use crate::error::FormatError;
use crate::format::{read, structure};
use crate::ids::{Generation, GroupId, Incarnation, NamespaceId, SegmentId, Sequence, StoreId};
use crate::key::ObjectKey;
use crate::segment::SegmentIdentity;

pub use encode::{MemberSpec, encode, encode_into, spec_bytes};

structure! {
    /// Start of a record. `member_count` members, `block_count` checksums of 16 bytes, and zeros up
    /// to `header_bytes` follow; then the payloads, each padded with zeros to a multiple of 4096.
    pub struct RecordHead = 192 {
        /// `PLRECORD`.
        magic: [u8; 8],
        /// XXH3-128 of `header_bytes`.
        checksum: Checksum,
        /// Format version.
        version: u16,
        /// 1 data, 2 tombstones.
        kind: u8,
        /// 1 a single object (always so in tombstones), 2 the base group of a page, 3 objects
        /// attached to a base group.
        group_kind: u8,
        /// Length of the header, a multiple of 4096.
        header_bytes: u32,
        /// Store.
        store: StoreId,
        /// Namespace of every member.
        namespace: NamespaceId,
        /// Generation of the namespace at the put.
        generation: u64,
        /// Segment number.
        segment: u32,
        /// Number of members, 1 to 1024.
        member_count: u32,
        /// Incarnation of the segment.
        incarnation: u64,
        /// Offset of this header in the segment, a multiple of 4096, at least 4096.
        offset: u64,
        /// Sequence of the members' put or remove.
        sequence: u64,
        /// Sequence of the group's put or remove.
        group: u64,
        /// Length of header and padded payloads.
        record_bytes: u64,
        /// Block size of the payload checksums, a multiple of 4096, at most 1048576.
        block_bytes: u32,
        /// Number of payload checksums.
        block_count: u32,
        /// In an attached record, the name of its base group: the upper 8 bytes of the keyed
        /// fingerprint of one of that group's members.
        base_group: u64,
        /// Chain depth of the page if the writer knew it.
        depth: u32,
        /// Bit 0: reinserted by reclaim.
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
        /// Length, without padding; 0 in a tombstone.
        pub length: u64,
        /// Offset of its payload, from the start of the record; 0 in a tombstone.
        pub payload_offset: u64,
        /// Number of its first payload checksum in the record.
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
const FLAG_REINSERTED: u32 = 1;

/// Longest object in bytes.
pub const OBJECT_BYTES_MAX: u64 = 128 << 20;
/// Most members of a record.
pub const MEMBERS_MAX: usize = 1024;
/// Longest header in bytes that a reader accepts: 1024 members, and 200 MiB in blocks of 4096.
pub const HEADER_BYTES_MAX: u64 = 1 << 20;

/// Length in bytes of a header with `members` members and `blocks` checksums.
pub const fn header_bytes(members: u64, blocks: u64) -> u64 {
    align_up(RecordHead::BYTES as u64 + members * Member::BYTES as u64 + blocks * 16)
}

/// Length in bytes of a data record for objects of these lengths; `block_bytes` must not be 0.
pub fn record_bytes(lengths: impl IntoIterator<Item = u64>, block_bytes: u32) -> u64 {
    let (mut members, mut blocks, mut payload) = (0, 0, 0);
    for length in lengths {
        members += 1;
        blocks += block_count(length, block_bytes);
        payload += align_up(length);
    }
    header_bytes(members, blocks) + payload
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    /// Objects and their bytes.
    Data = 1,
    /// Removed keys; no payload.
    Tombstones = 2,
}

/// Kind of group that a record's members form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum GroupKind {
    /// One object, without a group.
    Single = 1,
    /// The base group of a page: its members become visible together.
    Base = 2,
    /// Objects attached to a base group, visible only while it is.
    Attached = 3,
}

/// The fields of a header other than its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordFacts {
    /// Store, segment and incarnation.
    pub identity: SegmentIdentity,
    /// Byte offset in the segment.
    pub offset: u64,
    /// Data or tombstones.
    pub kind: RecordKind,
    /// Kind of group.
    pub group_kind: GroupKind,
    /// Namespace of all members.
    pub namespace: NamespaceId,
    /// Generation of the namespace when the members were put.
    pub generation: Generation,
    /// Sequence of the put or remove.
    pub sequence: Sequence,
    /// Identifier of the group: the sequence of its put or remove.
    pub group: GroupId,
    /// In an attached record, the name of its base group, which is a hash and no identifier; else
    /// zero.
    pub base_group: GroupId,
    /// Block size of the payload checksums in bytes.
    pub block_bytes: u32,
    /// Chain depth.
    pub depth: u32,
    /// Whether reclaim reinserted the record.
    pub reinserted: bool,
}

/// An intact, self-consistent header. The caller must still compare its identity with the place it
/// was read from ([`Record::expect`]) and verify its payload block by block.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    head: RecordHead,
    bytes: &'a [u8],
}

impl<'a> Record<'a> {
    /// The length in bytes that the header at the start of `block` claims, if `block` begins like
    /// one: the number of bytes to read for [`Record::decode`]. Not to be trusted for anything
    /// else.
    pub fn claimed_header_bytes(block: &[u8]) -> Option<u64> {
        let head: RecordHead = read(block)?;
        let bytes = u64::from(head.header_bytes);
        let plausible = is_aligned(bytes) && (ALIGN..=HEADER_BYTES_MAX).contains(&bytes);
        (head.magic == MAGIC && plausible).then_some(bytes)
    }

    /// The header without its padding. A header that [`Record::decode`] accepted can be kept in
    /// this form, in a tenth of the memory, and read again with [`Record::of_trimmed`].
    pub fn trimmed(&self) -> &'a [u8] {
        &self.bytes[..Self::end(&self.head).min(self.bytes.len())]
    }

    /// The header whose [`Record::trimmed`] form is `bytes`; `None` if `bytes` is shorter than its
    /// counts imply. It is not checked again, so `bytes` must have stayed in memory since.
    pub fn of_trimmed(bytes: &'a [u8]) -> Option<Record<'a>> {
        let head: RecordHead = read(bytes)?;
        let bytes = bytes.get(..Self::end(&head))?;
        Some(Record { head, bytes })
    }

    /// Length in bytes of the header without padding.
    fn end(head: &RecordHead) -> usize {
        RecordHead::BYTES
            + head.member_count as usize * Member::BYTES
            + head.block_count as usize * 16
    }

    /// The store that the header at the start of `block` names: a cheap test that refuses bytes of
    /// another store before more is read for them.
    pub fn claimed_store(block: &[u8]) -> Option<StoreId> {
        read::<RecordHead>(block).map(|head| head.store)
    }

    /// Check that the header names the place it was read from.
    pub fn expect(&self, identity: SegmentIdentity, offset: u64) -> Result<(), FormatError> {
        let h = &self.head;
        FormatError::same(WHAT, "store", h.store, identity.store)?;
        FormatError::same(WHAT, "segment", h.segment, identity.segment.0)?;
        FormatError::same(WHAT, "incarnation", h.incarnation, identity.incarnation.0)?;
        FormatError::same(WHAT, "offset", h.offset, offset)
    }

    /// The fields of the header other than its members.
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
            reinserted: h.flags & FLAG_REINSERTED != 0,
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

    /// The member with this key; whole keys are compared.
    pub fn find(&self, key: &ObjectKey) -> Option<Member> {
        self.members().find(|m| m.key == *key)
    }

    /// The block checksums of a member of this record.
    pub fn checksums(&self, member: &Member) -> impl ExactSizeIterator<Item = Checksum> + '_ {
        let at = RecordHead::BYTES
            + self.member_count() * Member::BYTES
            + member.first_block as usize * 16;
        let bytes = self.bytes.get(at..at + member.block_count as usize * 16).unwrap_or_default();
        bytes.chunks_exact(16).map(|c| {
            let mut sum = [0; 16];
            sum.copy_from_slice(c);
            sum
        })
    }
}

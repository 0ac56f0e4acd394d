//! Encoding of a record's header.

use super::{
    CHECKSUM_AT, FLAG_REINSERTED, HEADER_BYTES_MAX, MAGIC, MEMBERS_MAX, Member, Record,
    RecordFacts, RecordHead, RecordKind, header_bytes,
};
use crate::align::align_up;
use crate::checksum::{Checksum, checksum_around};
use crate::format::{VERSION, clear};
use crate::key::ObjectKey;

/// A member to encode: key, length in bytes, and the checksum of each block.
#[derive(Clone, Copy, Debug)]
pub struct MemberSpec<'a> {
    /// Whole key.
    pub key: ObjectKey,
    /// Length in bytes; 0 in a tombstone.
    pub length: u64,
    /// Block checksums, empty in a tombstone.
    pub checksums: &'a [Checksum],
}

/// Encode a record's header. `None` if the members break a rule of the format (counts, lengths,
/// another namespace); callers check these rules when they accept the members.
pub fn encode(facts: &RecordFacts, members: &[MemberSpec<'_>]) -> Option<Vec<u8>> {
    let mut bytes = vec![0; spec_bytes(members)?];
    encode_into(facts, members, &mut bytes)?;
    Some(bytes)
}

/// Length in bytes of the header for `members`; `None` if the format does not allow a header of
/// that length.
pub fn spec_bytes(members: &[MemberSpec<'_>]) -> Option<usize> {
    let blocks: u64 = members.iter().map(|m| m.checksums.len() as u64).sum();
    let header = header_bytes(members.len() as u64, blocks);
    let allowed = members.len() <= MEMBERS_MAX && header <= HEADER_BYTES_MAX;
    usize::try_from(header).ok().filter(|_| allowed)
}

/// As [`encode`], into `bytes`, whose previous content does not matter. Returns the record as
/// decoded from `bytes`; `None` also if `bytes` is not [`spec_bytes`] long.
pub fn encode_into<'a>(
    facts: &RecordFacts,
    members: &[MemberSpec<'_>],
    bytes: &'a mut [u8],
) -> Option<Record<'a>> {
    if spec_bytes(members) != Some(bytes.len()) {
        return None;
    }
    let header = bytes.len() as u64;
    clear(bytes);
    let (mut at, mut payload_offset, mut first_block) = (RecordHead::BYTES, header, 0u32);
    let sums_at = at + members.len() * Member::BYTES;
    for spec in members {
        let count = u32::try_from(spec.checksums.len()).ok()?;
        let data = facts.kind == RecordKind::Data;
        let member = Member {
            key: spec.key,
            length: spec.length,
            payload_offset: if data { payload_offset } else { 0 },
            first_block: if data { first_block } else { 0 },
            block_count: count,
            reserved: 0,
        };
        bytes[at..at + Member::BYTES].copy_from_slice(bytemuck::bytes_of(&member));
        let sums = bytemuck::cast_slice(spec.checksums);
        let from = sums_at + first_block as usize * 16;
        bytes[from..from + sums.len()].copy_from_slice(sums);
        at += Member::BYTES;
        payload_offset = payload_offset.checked_add(align_up(spec.length))?;
        first_block = first_block.checked_add(count)?;
    }
    let head = head(facts, members.len(), first_block, header, payload_offset)?;
    bytes[..RecordHead::BYTES].copy_from_slice(bytemuck::bytes_of(&head));
    let sum = checksum_around(bytes, CHECKSUM_AT)?;
    bytes[CHECKSUM_AT..CHECKSUM_AT + 16].copy_from_slice(&sum);
    // A header that the decoder refuses must never be written to disk.
    Record::decode(bytes).ok()
}

fn head(
    facts: &RecordFacts,
    members: usize,
    blocks: u32,
    header: u64,
    record: u64,
) -> Option<RecordHead> {
    Some(RecordHead {
        magic: MAGIC,
        checksum: [0; 16],
        version: VERSION,
        kind: facts.kind as u8,
        group_kind: facts.group_kind as u8,
        header_bytes: u32::try_from(header).ok()?,
        store: facts.identity.store,
        namespace: facts.namespace,
        generation: facts.generation.0,
        segment: facts.identity.segment.0,
        member_count: u32::try_from(members).ok()?,
        incarnation: facts.identity.incarnation.0,
        offset: facts.offset,
        sequence: facts.sequence.0,
        group: facts.group.0,
        record_bytes: record,
        block_bytes: facts.block_bytes,
        block_count: blocks,
        base_group: facts.base_group.0,
        depth: facts.depth,
        flags: if facts.reinserted { FLAG_REINSERTED } else { 0 },
        reserved: [0; 48],
    })
}

//! Decoding of a record's header, and the rules for one whose checksum matches.
//!
//! A header that breaks a rule was written by a defect or an attacker, and neither it nor its
//! payload is used.

use super::{
    CHECKSUM_AT, FLAG_REINSERTED, GroupKind, MAGIC, MEMBERS_MAX, OBJECT_BYTES_MAX, Record,
    RecordHead, RecordKind, WHAT, header_bytes,
};
use crate::align::{ALIGN, align_up, is_aligned};
use crate::checksum::{block_count, checksum_around, is_valid_block_bytes};
use crate::error::FormatError;
use crate::format::{VERSION, is_valid_counter, is_zero, read};

impl<'a> Record<'a> {
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
            return Err(FormatError::Version {
                structure: WHAT,
                found: head.version,
                known: VERSION,
            });
        }
        let record = Record { head, bytes };
        check(&record)?;
        Ok(record)
    }
}

fn check(record: &Record<'_>) -> Result<(), FormatError> {
    check_head(&record.head)?;
    check_members(record)?;
    match record.bytes.get(Record::end(&record.head)..) {
        Some(padding) if is_zero(padding) => Ok(()),
        _ => Err(FormatError::field(WHAT, "padding", "not zero")),
    }
}

fn check_head(h: &RecordHead) -> Result<(), FormatError> {
    let wrong = |field, value: u64| Err(FormatError::field(WHAT, field, value));
    let members = u64::from(h.member_count);
    let data = h.kind == RecordKind::Data as u8;
    if !data && h.kind != RecordKind::Tombstones as u8 {
        return wrong("kind", h.kind.into());
    }
    let group_ok = match h.group_kind {
        1 => members == 1 || !data,
        2 | 3 => data,
        _ => false,
    };
    if !group_ok {
        return wrong("group_kind", h.group_kind.into());
    }
    if h.base_group != 0 && h.group_kind != GroupKind::Attached as u8 {
        return wrong("base_group", h.base_group);
    }
    if members == 0 || members > MEMBERS_MAX as u64 {
        return wrong("member_count", members);
    }
    if !is_valid_block_bytes(h.block_bytes) {
        return wrong("block_bytes", h.block_bytes.into());
    }
    if header_bytes(members, h.block_count.into()) != u64::from(h.header_bytes) {
        return wrong("block_count", h.block_count.into());
    }
    if !is_aligned(h.offset) || h.offset < ALIGN {
        return wrong("offset", h.offset);
    }
    // All three start at 1, so that zero marks a field that was never set; incrementing them must
    // not overflow.
    for (field, value) in
        [("generation", h.generation), ("incarnation", h.incarnation), ("sequence", h.sequence)]
    {
        if !is_valid_counter(value) {
            return wrong(field, value);
        }
    }
    if h.flags & !FLAG_REINSERTED != 0 {
        return wrong("flags", h.flags.into());
    }
    if !is_zero(&h.reserved) {
        return Err(FormatError::field(WHAT, "reserved", "not zero"));
    }
    Ok(())
}

fn check_members(record: &Record<'_>) -> Result<(), FormatError> {
    let h = &record.head;
    let wrong = |field, value: u64| Err(FormatError::field(WHAT, field, value));
    let (mut payload, mut block) = (u64::from(h.header_bytes), 0u32);
    for m in record.members() {
        m.key.check()?;
        if m.key.namespace() != h.namespace || m.reserved != 0 {
            return Err(FormatError::field(WHAT, "member", m.key));
        }
        if h.kind == RecordKind::Tombstones as u8 {
            if (m.length, m.payload_offset, m.first_block, m.block_count) != (0, 0, 0, 0) {
                return wrong("length", m.length);
            }
            continue;
        }
        if m.length == 0 || m.length > OBJECT_BYTES_MAX {
            return wrong("length", m.length);
        }
        if m.payload_offset != payload {
            return wrong("payload_offset", m.payload_offset);
        }
        if m.first_block != block
            || u64::from(m.block_count) != block_count(m.length, h.block_bytes)
        {
            return wrong("first_block", m.first_block.into());
        }
        payload += align_up(m.length);
        // Cannot overflow: at most 1024 members of at most 128 MiB in blocks of at least 4096
        // bytes.
        block += m.block_count;
    }
    if h.block_count != block {
        return wrong("block_count", h.block_count.into());
    }
    if h.record_bytes != payload {
        return wrong("record_bytes", h.record_bytes);
    }
    Ok(())
}

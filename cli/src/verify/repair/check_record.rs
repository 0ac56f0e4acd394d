//! Check of a record that an intact footer lists. It is read only at the offset in the footer, so
//! that no payload of a client can be taken for a record.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::checksum;
use pagelith_layouts::footer::{self, FooterEntry};
use pagelith_layouts::record::{Record, RecordKind};
use pagelith_layouts::segment::SegmentIdentity;

/// Reads from a byte offset of the segment; false if the device cannot.
pub(super) type ReadAt<'a> = dyn FnMut(u64, &mut [u8]) -> bool + 'a;

/// State of a listed record.
pub(super) enum RecordState {
    Intact,
    /// Damaged or unreadable; the footer has its keys.
    Damaged,
    /// An intact header that differs from the footer.
    Different,
}

/// Check the record of these footer entries.
pub(super) fn check_record(
    read: &mut ReadAt<'_>,
    identity: SegmentIdentity,
    entries: &[FooterEntry],
) -> RecordState {
    let first = &entries[0];
    let (offset, bytes) =
        (u64::from(first.record_sector) * ALIGN, u64::from(first.record_sectors) * ALIGN);
    let mut header = vec![0; ALIGN as usize];
    if !read(offset, &mut header) {
        return RecordState::Damaged;
    }
    let Some(claimed) = Record::claimed_header_bytes(&header).filter(|claimed| *claimed <= bytes)
    else {
        return RecordState::Damaged;
    };
    header.resize(claimed as usize, 0);
    if !read(offset, &mut header) {
        return RecordState::Damaged;
    }
    let Ok(record) = Record::decode(&header) else { return RecordState::Damaged };
    if record.expect(identity, offset).is_err() {
        // A misdirected write: the record of this offset is lost.
        return RecordState::Damaged;
    }
    if !footer::entries_of(&record).eq(entries.iter().copied()) {
        let half_replaced = is_replacement(&record, entries) || is_replaced(&record, entries);
        return if half_replaced { RecordState::Damaged } else { RecordState::Different };
    }
    let mut block = Vec::new();
    for member in record.members() {
        let (mut at, mut left) = (offset + member.payload_offset, member.length);
        for sum in record.checksums(&member) {
            block.resize(left.min(record.facts().block_bytes.into()) as usize, 0);
            if !read(at, &mut block) || checksum(&block) != sum {
                return RecordState::Damaged;
            }
            (at, left) = (at + block.len() as u64, left - block.len() as u64);
        }
    }
    RecordState::Intact
}

/// Whether a record is the replacement of a damaged one, by a repair that ended before it wrote the
/// footer.
fn is_replacement(record: &Record<'_>, entries: &[FooterEntry]) -> bool {
    let facts = record.facts();
    facts.kind == RecordKind::Tombstones
        && entries
            .iter()
            .all(|e| e.sequence == facts.sequence.0 + 1 && e.kind == RecordKind::Data as u8)
        && has_keys(record, entries)
}

/// Whether a record is a damaged one that the footer already replaces, by a repair that ended
/// before it wrote the replacement.
fn is_replaced(record: &Record<'_>, entries: &[FooterEntry]) -> bool {
    let facts = record.facts();
    facts.kind == RecordKind::Data
        && entries
            .iter()
            .all(|e| e.sequence + 1 == facts.sequence.0 && e.kind == RecordKind::Tombstones as u8)
        && has_keys(record, entries)
}

fn has_keys(record: &Record<'_>, entries: &[FooterEntry]) -> bool {
    record.members().map(|m| m.key).eq(entries.iter().map(|e| e.key))
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::checksum::BLOCK_BYTES;
    use pagelith_layouts::ids::{
        Generation, GroupId, Incarnation, NamespaceId, PrefixHash, SegmentId, Sequence, StoreId,
    };
    use pagelith_layouts::key::{ObjectKey, Role};
    use pagelith_layouts::record::{self, GroupKind, MemberSpec, RecordFacts};
    use pagelith_layouts::shard::Shard;

    use super::*;

    /// A footer names the keys of a record, so a sector that the device cannot read loses only that
    /// record.
    #[test]
    fn unreadable_sector_of_a_record_is_damage() {
        let (store, segment, incarnation) = (StoreId([1; 16]), SegmentId(0), Incarnation(1));
        let identity = SegmentIdentity { store, segment, incarnation };
        let namespace = NamespaceId([2; 16]);
        let facts = RecordFacts {
            identity,
            offset: ALIGN,
            kind: RecordKind::Data,
            group_kind: GroupKind::Single,
            namespace,
            generation: Generation::FIRST,
            sequence: Sequence(1),
            group: GroupId(1),
            base_group: GroupId(0),
            block_bytes: BLOCK_BYTES,
            depth: 0,
            reinserted: false,
        };
        let payload = [3; 5000];
        let key =
            ObjectKey::new(namespace, PrefixHash([4; 32]), Role::Target, "kv", "k", Shard::Whole)
                .unwrap();
        let sums = [checksum(&payload)];
        let member = MemberSpec { key, length: payload.len() as u64, checksums: &sums };
        let mut bytes = vec![0; ALIGN as usize];
        bytes.extend(record::encode(&facts, &[member]).unwrap());
        bytes.extend(payload);
        bytes.resize(4 * ALIGN as usize, 0);
        let entries: Vec<_> =
            footer::entries_of(&Record::decode(&bytes[ALIGN as usize..]).unwrap()).collect();
        let state_without = |bad: u64| {
            let mut read = |at: u64, buf: &mut [u8]| {
                buf.copy_from_slice(&bytes[at as usize..][..buf.len()]);
                !(at..at + buf.len() as u64).contains(&bad)
            };
            check_record(&mut read, identity, &entries)
        };
        assert!(matches!(state_without(u64::MAX), RecordState::Intact));
        for bad in [ALIGN, 2 * ALIGN, 2 * ALIGN + 4999] {
            assert!(matches!(state_without(bad), RecordState::Damaged), "bad={bad}");
        }
    }
}

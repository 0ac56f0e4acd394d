//! Footers: encoded footers decode, and only complete records in log order are accepted.

mod common;

use common::*;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checksum::{BLOCK_BYTES, BLOCK_BYTES_MAX};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::footer::*;
use pagelith_layouts::ids::*;
use pagelith_layouts::key::Role;
use pagelith_layouts::record::{
    GroupKind, OBJECT_BYTES_MAX, Record, RecordFacts, RecordKind, record_bytes,
};
use pagelith_layouts::segment::SEGMENT_BYTES_MAX;

const SEGMENT: u64 = 64 * ALIGN;
const DATA_END: u64 = 10 * ALIGN;

/// The entries of a group of three, one object and two tombstones.
fn entries() -> Vec<FooterEntry> {
    let (group, objects) = group_of_three(ALIGN);
    let single = facts(identity(1, 2), 6 * ALIGN);
    let single_object = Object { key: key(2, Role::Target, "kv", "k"), bytes: bytes(4, 5000) };
    let gone = RecordFacts { kind: RecordKind::Tombstones, ..facts(identity(1, 2), 9 * ALIGN) };
    let gone_keys =
        [3, 4].map(|page| Object { key: key(page, Role::Target, "kv", "k"), bytes: vec![] });
    [record(&group, &objects), record(&single, &[single_object]), record(&gone, &gone_keys)]
        .iter()
        .flat_map(|image| {
            let record = Record::decode(image).expect("what was written");
            entries_of(&record).collect::<Vec<_>>()
        })
        .collect()
}

fn footer_facts() -> FooterFacts {
    FooterFacts {
        identity: identity(1, 2),
        order: SegmentOrder(7),
        min_sequence: Sequence(1000 + ALIGN),
        max_sequence: Sequence(1000 + 9 * ALIGN),
        data_end: DATA_END,
    }
}

/// A footer with changed entries and a valid checksum, as a defective writer would produce it.
fn changed(change: impl FnOnce(&mut Vec<FooterEntry>)) -> Vec<u8> {
    let mut bytes = encode(&footer_facts(), &entries());
    let mut entries = entries();
    change(&mut entries);
    let raw: Vec<u8> = entries.iter().flat_map(|e| bytemuck::bytes_of(e).to_vec()).collect();
    let tail = bytes.len() - FooterTail::BYTES;
    bytes[..tail].fill(0);
    forge(&mut bytes, tail + 8, 0, &raw);
    let count = (entries.len() as u32).to_le_bytes();
    forge(&mut bytes, tail + 8, tail + at(&FooterTail::STRUCTURE, "entry_count"), &count);
    bytes
}

#[test]
fn footer_round_trips() {
    let bytes = encode(&footer_facts(), &entries());
    assert_eq!(bytes.len() as u64, footer_bytes(6));
    let last_block = &bytes[bytes.len() - ALIGN as usize..];
    assert_eq!(claimed_bytes(last_block, SEGMENT), Some(bytes.len() as u64));
    assert_eq!(decode(&bytes, identity(1, 2), SEGMENT), Ok((footer_facts(), entries())));
}

#[test]
fn footer_entry_has_fields_of_record() {
    let e = entries();
    let of = |e: &FooterEntry| {
        (e.record_sector, e.payload_sector, e.record_sectors, e.member_count, e.length)
    };
    assert_eq!(
        e.iter().map(of).collect::<Vec<_>>(),
        [
            (1, 1, 4, 3, 4000),
            (1, 2, 4, 3, 4096),
            (1, 3, 4, 3, 100),
            (6, 1, 3, 1, 5000),
            (9, 0, 1, 2, 0),
            (9, 0, 1, 2, 0),
        ]
    );
    assert_eq!(
        (e[0].group_kind, e[0].depth, e[0].kind),
        (GroupKind::Base as u8, 3, RecordKind::Data as u8)
    );
    assert_eq!(
        (e[4].group_kind, e[4].kind),
        (GroupKind::Single as u8, RecordKind::Tombstones as u8)
    );
}

#[test]
fn footer_without_entries_round_trips() {
    let facts = FooterFacts {
        min_sequence: Sequence(u64::MAX),
        max_sequence: Sequence(0),
        data_end: ALIGN,
        ..footer_facts()
    };
    let bytes = encode(&facts, &[]);
    assert_eq!(decode(&bytes, identity(1, 2), SEGMENT), Ok((facts, vec![])));
}

/// Tombstones shadow but are never shadowed: `min_sequence` is that of an object.
#[test]
fn tombstones_do_not_lower_min_sequence() {
    let facts = FooterFacts { min_sequence: Sequence(u64::MAX), ..footer_facts() };
    let tombstones = &entries()[4..];
    let bytes = encode(&facts, tombstones);
    assert_eq!(decode(&bytes, identity(1, 2), SEGMENT), Ok((facts, tombstones.to_vec())));
}

#[test]
fn footer_of_other_segment_is_refused_by_field() {
    let bytes = encode(&footer_facts(), &entries());
    let foreign =
        pagelith_layouts::segment::SegmentIdentity { store: StoreId([9; 16]), ..identity(1, 2) };
    for (place, field) in
        [(foreign, "store"), (identity(2, 2), "segment"), (identity(1, 1), "incarnation")]
    {
        let error = decode(&bytes, place, SEGMENT).expect_err("another place").to_string();
        assert!(error.contains(&format!("does not match field={field} ")), "{error}");
    }
}

#[test]
fn footer_of_wrong_length_is_refused() {
    let bytes = encode(&footer_facts(), &entries());
    for len in [0, 1, 127, 128, bytes.len() - 1] {
        assert!(decode(&bytes[bytes.len() - len..], identity(1, 2), SEGMENT).is_err(), "len={len}");
    }
    let mut longer = vec![0; ALIGN as usize];
    longer.extend_from_slice(&bytes);
    assert!(decode(&longer, identity(1, 2), SEGMENT).is_err());
    // A segment that is too short for it.
    assert_eq!(claimed_bytes(&bytes, bytes.len() as u64), None);
    assert!(decode(&bytes, identity(1, 2), bytes.len() as u64).is_err());
    assert_eq!(
        decode(&[0; 4096], identity(1, 2), SEGMENT),
        Err(FormatError::Empty { structure: "footer" })
    );
}

#[test]
fn invalid_footer_tail_is_refused_by_field() {
    let good = encode(&footer_facts(), &entries());
    let tail = good.len() - FooterTail::BYTES;
    let end = 6 * FooterEntry::BYTES;
    let u64s = |v: u64| v.to_le_bytes().to_vec();
    for (offset, value, said) in [
        (tail + at(&FooterTail::STRUCTURE, "version"), vec![2], "version=2 newest_known=1"),
        (tail + at(&FooterTail::STRUCTURE, "reserved"), vec![1], "field=reserved"),
        (tail + at(&FooterTail::STRUCTURE, "reserved2"), vec![1], "field=reserved"),
        (tail + at(&FooterTail::STRUCTURE, "tail") + 23, vec![1], "field=reserved"),
        (end, vec![1], "field=reserved"),
        (tail - 1, vec![1], "field=reserved"),
        (tail + at(&FooterTail::STRUCTURE, "entry_count"), vec![5], "field=reserved"),
        (tail + at(&FooterTail::STRUCTURE, "entry_count"), vec![0xff; 4], "field=footer_bytes"),
        (tail + at(&FooterTail::STRUCTURE, "footer_bytes"), u64s(u64::MAX), "field=footer_bytes"),
        (tail + at(&FooterTail::STRUCTURE, "data_end"), u64s(SEGMENT), "field=data_end"),
        (tail + at(&FooterTail::STRUCTURE, "data_end"), u64s(u64::MAX), "field=data_end"),
        (tail + at(&FooterTail::STRUCTURE, "data_end"), u64s(DATA_END + 1), "field=data_end"),
        (
            tail + at(&FooterTail::STRUCTURE, "data_end"),
            u64s(DATA_END - ALIGN),
            "field=record_sectors",
        ),
        (tail + at(&FooterTail::STRUCTURE, "min_sequence"), u64s(1001 + ALIGN), "field=sequence"),
        (tail + at(&FooterTail::STRUCTURE, "max_sequence"), u64s(u64::MAX), "field=max_sequence"),
        (tail + at(&FooterTail::STRUCTURE, "order"), u64s(u64::MAX), "field=max_sequence"),
        (
            tail + at(&FooterTail::STRUCTURE, "max_sequence"),
            u64s(999 + 9 * ALIGN),
            "field=sequence",
        ),
    ] {
        let mut bytes = good.clone();
        forge(&mut bytes, tail + 8, offset, &value);
        let error = decode(&bytes, identity(1, 2), SEGMENT).expect_err("a broken rule").to_string();
        assert!(error.contains(said), "offset={offset} value={value:?}: {error}");
    }
}

/// Changes to a footer by a defective writer, and the error of the reader.
type Change = (fn(&mut Vec<FooterEntry>), &'static str);

#[test]
fn incomplete_or_unordered_footer_entries_are_refused() {
    let cases: &[Change] = &[
        (|e| e.swap(0, 3), "field=record_sector"),
        (|e| e.rotate_left(3), "field=record_sector"),
        (|e| _ = e.remove(1), "field=member_count"),
        (|e| _ = e.remove(5), "field=member_count"),
        (|e| e[3].member_count = 2, "field=member_count"),
        (|e| e[..3].iter_mut().for_each(|e| e.record_sectors = 6), "field=record_sector"),
        (|e| e[1].record_sectors = 3, "field=entry"),
        (|e| e[1].sequence += 1, "field=entry"),
        (|e| e[1].generation += 1, "field=entry"),
        (|e| e[5].record_sectors = u32::MAX, "field=entry"),
        (|e| e[3].record_sector = 0, "field=record_sector"),
        (|e| e[3].record_sectors = u32::MAX, "field=record_sectors"),
        (|e| e[3].kind = 0, "field=entry"),
        (|e| e[3].kind = 3, "field=entry"),
        (|e| e[3].group_kind = 0, "field=entry"),
        (|e| e[3].group_kind = 4, "field=entry"),
        (|e| e[3].base_group = 1, "field=entry"),
        (|e| e[3].length = 0, "field=entry"),
        (|e| e[3].length = 8193, "field=entry"),
        (|e| e[3].length = u64::MAX, "field=entry"),
        (|e| e[3].payload_sector = 0, "field=entry"),
        (|e| e[3].payload_sector = u32::MAX, "field=entry"),
        (|e| e[3].reserved = 1, "field=entry"),
        (|e| e[3].sequence = 0, "field=entry"),
        (|e| e[3].generation = 0, "field=entry"),
        (|e| e[4].length = 1, "field=entry"),
        (|e| e[4].payload_sector = 1, "field=entry"),
        (|e| e[3].key = bytemuck::Zeroable::zeroed(), "field=role"),
    ];
    assert_eq!(decode(&changed(|_| {}), identity(1, 2), SEGMENT), Ok((footer_facts(), entries())));
    for (i, (change, said)) in cases.iter().enumerate() {
        let error = decode(&changed(change), identity(1, 2), SEGMENT)
            .expect_err("a broken rule")
            .to_string();
        assert!(error.contains(said), "case={i}: {error}");
    }
}

#[test]
fn largest_object_fits_segment_and_larger_one_does_not() {
    for block_bytes in [4096, BLOCK_BYTES, BLOCK_BYTES_MAX] {
        for segment in [1 << 20, 3 << 20, 64 << 20, SEGMENT_BYTES_MAX] {
            let most = object_bytes_max(segment, block_bytes);
            let need = |length| ALIGN + record_bytes([length], block_bytes) + footer_bytes(1);
            assert!(
                most > 0 && need(most) <= segment,
                "segment={segment} block_bytes={block_bytes}"
            );
            assert!(
                most == OBJECT_BYTES_MAX || need(most + 1) > segment,
                "segment={segment} most={most}"
            );
        }
    }
    assert_eq!([0, 1, 8192, 12_288, 16_383].map(|s| object_bytes_max(s, BLOCK_BYTES)), [0; 5]);
    assert_eq!(object_bytes_max(16_384, BLOCK_BYTES), 4096);
}

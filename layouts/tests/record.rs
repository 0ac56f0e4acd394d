//! Record headers: encoded headers decode, and headers that break a rule are refused by name.

mod common;

use common::*;
use pagelith_layouts::checksum::{BLOCK_BYTES, BLOCK_BYTES_MAX};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::ids::*;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::record::*;

const SUM: usize = 8;

#[test]
fn group_record_round_trips() {
    let (facts, objects) = group_of_three(4096);
    let facts = RecordFacts { reinserted: true, generation: Generation(7), ..facts };
    let image = record(&facts, &objects);
    let r = Record::decode(&image).expect("what was written");
    assert_eq!(r.facts(), facts);
    assert_eq!(
        (r.header_bytes(), r.record_bytes(), r.member_count()),
        (4096, image.len() as u64, 3)
    );
    assert_eq!(
        record_bytes(objects.iter().map(|o| o.bytes.len() as u64), BLOCK_BYTES),
        r.record_bytes()
    );
    for (i, o) in objects.iter().enumerate() {
        let m = r.member(i).expect("a member");
        assert_eq!(r.find(&o.key), Some(m));
        let from = m.payload_offset as usize;
        assert_eq!(image[from..from + m.length as usize], o.bytes);
        assert_eq!(r.checksums(&m).collect::<Vec<_>>(), checksums(&o.bytes, BLOCK_BYTES));
    }
    assert_eq!(r.member(3), None);
    assert_eq!(r.find(&key(2, Role::Target, "kv", "k")), None);
}

#[test]
fn object_of_several_blocks_has_one_checksum_per_block() {
    let objects = [Object { key: key(1, Role::Target, "kv", "k"), bytes: bytes(9, 100_000) }];
    let image = record(&facts(identity(1, 2), 4096), &objects);
    let r = Record::decode(&image).expect("what was written");
    let m = r.member(0).expect("a member");
    assert_eq!((m.block_count, image.len()), (4, 4096 + 102_400));
    assert_eq!(r.checksums(&m).collect::<Vec<_>>(), checksums(&objects[0].bytes, BLOCK_BYTES));
}

#[test]
fn tombstones_have_keys_and_no_payload() {
    let facts = RecordFacts { kind: RecordKind::Tombstones, ..facts(identity(1, 2), 8192) };
    let gone = |page| Object { key: key(page, Role::Target, "kv", "k"), bytes: vec![] };
    let image = record(&facts, &[gone(1), gone(2)]);
    let r = Record::decode(&image).expect("what was written");
    assert_eq!((r.facts(), r.record_bytes(), image.len()), (facts, 4096, 4096));
    assert_eq!(
        r.members().map(|m| (m.key, m.length)).collect::<Vec<_>>(),
        [(gone(1).key, 0), (gone(2).key, 0)]
    );
    assert_eq!(r.checksums(&r.member(1).expect("a member")).len(), 0);
}

#[test]
fn record_header_of_other_place_is_refused_by_field() {
    let (facts, objects) = group_of_three(4096);
    let image = record(&facts, &objects);
    let r = Record::decode(&image).expect("what was written");
    assert_eq!(r.expect(identity(1, 2), 4096), Ok(()));
    let foreign =
        pagelith_layouts::segment::SegmentIdentity { store: StoreId([9; 16]), ..identity(1, 2) };
    for (place, offset, field) in [
        (foreign, 4096, "store"),
        (identity(2, 2), 4096, "segment"),
        (identity(1, 1), 4096, "incarnation"),
        (identity(1, 3), 4096, "incarnation"),
        (identity(1, 2), 8192, "offset"),
    ] {
        let error = r.expect(place, offset).expect_err("another place").to_string();
        assert!(error.contains(&format!("does not match field={field} ")), "{error}");
    }
}

#[test]
fn truncated_record_header_is_refused_at_every_length() {
    let (facts, objects) = group_of_three(4096);
    let header = try_header(&facts, &objects).expect("within the rules");
    for len in 0..header.len() {
        let error = Record::decode(&header[..len]).expect_err("cut short");
        let need = 4096;
        assert_eq!(
            error,
            FormatError::Short { structure: "record header", need, have: len as u64 }
        );
    }
}

#[test]
fn zeros_and_wrong_magic_are_distinct_errors() {
    assert_eq!(
        Record::decode(&[0; 4096]).unwrap_err(),
        FormatError::Empty { structure: "record header" }
    );
    assert_eq!(
        Record::decode(&[1; 4096]).unwrap_err(),
        FormatError::Magic { structure: "record header" }
    );
}

/// Breaks, one at a time, every rule for a header with a valid checksum.
#[test]
fn invalid_record_header_is_refused_by_field() {
    let (facts, objects) = group_of_three(4096);
    let good = try_header(&facts, &objects).expect("within the rules");
    let head = |field| at(&RecordHead::STRUCTURE, field);
    let member =
        |i: usize, field| RecordHead::BYTES + i * Member::BYTES + at(&Member::STRUCTURE, field);
    let u32s = |v: u32| v.to_le_bytes().to_vec();
    let u64s = |v: u64| v.to_le_bytes().to_vec();
    let cases = [
        (head("kind"), vec![0], "kind"),
        (head("kind"), vec![3], "kind"),
        (head("group_kind"), vec![0], "group_kind"),
        (head("group_kind"), vec![1], "group_kind"),
        (head("group_kind"), vec![4], "group_kind"),
        (head("header_bytes"), u32s(0), "header_bytes"),
        (head("header_bytes"), u32s(4097), "header_bytes"),
        (head("header_bytes"), u32s(u32::MAX - 4095), "header_bytes"),
        (head("namespace"), vec![0x12], "member"),
        (head("generation"), u64s(0), "generation"),
        (head("member_count"), u32s(0), "member_count"),
        (head("member_count"), u32s(1025), "member_count"),
        (head("member_count"), u32s(2), "block_count"),
        (head("incarnation"), u64s(0), "incarnation"),
        (head("offset"), u64s(0), "offset"),
        (head("offset"), u64s(4097), "offset"),
        (head("sequence"), u64s(0), "sequence"),
        (head("sequence"), u64s(u64::MAX), "sequence"),
        (head("record_bytes"), u64s(4096 * 5), "record_bytes"),
        (head("block_bytes"), u32s(0), "block_bytes"),
        (head("block_bytes"), u32s(512), "block_bytes"),
        (head("block_bytes"), u32s(BLOCK_BYTES_MAX * 2), "block_bytes"),
        (head("block_count"), u32s(2), "block_count"),
        (head("block_count"), u32s(4), "block_count"),
        (head("block_count"), u32s(u32::MAX), "block_count"),
        (head("base_group"), u64s(1), "base_group"),
        (head("flags"), u32s(2), "flags"),
        (head("reserved") + 47, vec![1], "reserved"),
        (member(0, "key") + at(&ObjectKey::STRUCTURE, "role"), vec![0], "role"),
        (member(1, "length"), u64s(0), "length"),
        (member(1, "length"), u64s(OBJECT_BYTES_MAX + 1), "length"),
        (member(1, "length"), u64s(u64::MAX), "length"),
        (member(1, "length"), u64s(4097), "payload_offset"),
        (member(1, "length"), u64s(40_000), "first_block"),
        (member(2, "payload_offset"), u64s(4096), "payload_offset"),
        (member(1, "first_block"), u32s(0), "first_block"),
        (member(1, "block_count"), u32s(2), "first_block"),
        (member(2, "reserved"), u64s(1), "member"),
        (RecordHead::BYTES + 3 * Member::BYTES + 3 * 16, vec![1], "padding"),
        (4095, vec![1], "padding"),
    ];
    for (offset, value, field) in cases {
        let mut bytes = good.clone();
        forge(&mut bytes, SUM, offset, &value);
        let error = Record::decode(&bytes).expect_err("a broken rule").to_string();
        assert!(
            error.contains(&format!("field={field} ")),
            "offset={offset} value={value:?}: {error}"
        );
    }
}

#[test]
fn tombstones_with_data_fields_are_refused() {
    let facts = RecordFacts { kind: RecordKind::Tombstones, ..facts(identity(1, 2), 4096) };
    let gone = [Object { key: key(1, Role::Target, "kv", "k"), bytes: vec![] }];
    let good = try_header(&facts, &gone).expect("within the rules");
    for (offset, field) in [
        (at(&RecordHead::STRUCTURE, "group_kind"), "group_kind"),
        (RecordHead::BYTES + at(&Member::STRUCTURE, "length"), "length"),
        (RecordHead::BYTES + at(&Member::STRUCTURE, "payload_offset"), "length"),
        (RecordHead::BYTES + at(&Member::STRUCTURE, "block_count"), "length"),
    ] {
        let mut bytes = good.clone();
        forge(&mut bytes, SUM, offset, &[2]);
        let error = Record::decode(&bytes).expect_err("a broken rule").to_string();
        assert!(error.contains(&format!("field={field} ")), "{error}");
    }
}

#[test]
fn newer_record_version_is_refused_by_name() {
    let (facts, objects) = group_of_three(4096);
    let mut header = try_header(&facts, &objects).expect("within the rules");
    forge(&mut header, SUM, at(&RecordHead::STRUCTURE, "version"), &[2, 0]);
    let newer = FormatError::Version { structure: "record header", found: 2, known: 1 };
    assert_eq!(Record::decode(&header).unwrap_err(), newer);
}

#[test]
fn record_that_breaks_format_rule_is_not_encoded() {
    let (good, objects) = group_of_three(4096);
    assert!(try_header(&good, &objects).is_some());
    let none = |facts: RecordFacts, objects: &[Object]| try_header(&facts, objects).is_none();
    assert!(none(good, &[]));
    assert!(none(RecordFacts { group_kind: GroupKind::Single, ..good }, &objects));
    assert!(none(RecordFacts { namespace: NamespaceId([0; 16]), ..good }, &objects));
    assert!(none(RecordFacts { block_bytes: 5000, ..good }, &objects));
    assert!(none(RecordFacts { offset: 100, ..good }, &objects));
    assert!(none(RecordFacts { kind: RecordKind::Tombstones, ..good }, &objects));
    assert!(none(RecordFacts { base_group: GroupId(4), ..good }, &objects));
    let empty = Object { key: objects[0].key, bytes: vec![] };
    assert!(none(facts(identity(1, 2), 4096), std::slice::from_ref(&empty)));
    assert!(try_header(&good, &vec![objects[2].clone(); MEMBERS_MAX]).is_some());
    assert!(none(good, &vec![objects[2].clone(); MEMBERS_MAX + 1]));
}

/// Lengths that only a defective caller can pass: `None` instead of an overflow.
#[test]
fn record_with_overflowing_length_is_not_encoded() {
    let (facts, objects) = group_of_three(4096);
    let sums = checksums(&objects[2].bytes, BLOCK_BYTES);
    for length in [u64::MAX, u64::MAX - 4096, OBJECT_BYTES_MAX + 1, 40_000, 0] {
        let spec = MemberSpec { key: objects[2].key, length, checksums: &sums };
        assert_eq!(encode(&facts, &[spec; 3]), None, "length={length}");
    }
}

/// Buffers are reused: no byte of the old content may remain in the new header.
#[test]
fn record_header_encoded_into_used_buffer_is_identical() {
    let (facts, objects) = group_of_three(4096);
    let sums: Vec<_> = objects.iter().map(|o| checksums(&o.bytes, BLOCK_BYTES)).collect();
    let spec = |(i, o): (usize, &Object)| MemberSpec {
        key: o.key,
        length: o.bytes.len() as u64,
        checksums: &sums[i],
    };
    let specs: Vec<_> = objects.iter().enumerate().map(spec).collect();
    let mut used = vec![0xa5; spec_bytes(&specs).expect("allowed")];
    let written = encode_into(&facts, &specs, &mut used).expect("no rule is broken");
    assert_eq!((written.facts(), written.member_count()), (facts, 3));
    assert_eq!(Some(&used), encode(&facts, &specs).as_ref());
    for length in [0, used.len() - 1, used.len() + 1] {
        assert!(encode_into(&facts, &specs, &mut vec![0; length]).is_none(), "length={length}");
    }
}

#[test]
fn record_header_length_at_block_boundaries_is_exact() {
    // 192 + 160 + 16 n fills a block at n = 234.
    assert_eq!([(1, 1), (1, 234), (1, 235)].map(|(m, b)| header_bytes(m, b)), [4096, 4096, 8192]);
    let longest = record_bytes([OBJECT_BYTES_MAX], 4096) - OBJECT_BYTES_MAX;
    assert!(
        longest <= HEADER_BYTES_MAX,
        "the longest object has a header that readers accept: {longest}"
    );
}

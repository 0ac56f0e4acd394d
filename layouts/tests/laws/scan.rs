//! A scan finds exactly the intact records, with any bytes between them.

use std::convert::Infallible;

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::key::Role;
use pagelith_layouts::record::*;
use pagelith_layouts::scan::{SCRATCH_BYTES, ScanItem, scan};
use proptest::prelude::*;
use proptest::sample::Index;

use super::common::{Object, bytes, checksums, facts, identity, key, record};
use super::config;

/// The next part of a segment.
#[derive(Clone, Debug)]
enum Item {
    /// An intact record with objects of these lengths.
    Intact(Vec<usize>),
    /// A record with a flipped payload bit.
    TornPayload(Vec<usize>, Index),
    /// A record with a flipped header bit.
    TornHeader(Vec<usize>, Index),
    /// A record of an earlier incarnation of the segment.
    Earlier(Vec<usize>),
    /// A record with another offset in its header.
    Misdirected(Vec<usize>),
    /// Tombstones.
    Tombstones(u8),
    /// Blocks of random bytes, some of which begin like a header.
    Noise(u64, usize, bool),
    /// Blocks never written.
    Nothing(usize),
}

fn item() -> impl Strategy<Value = Item> {
    let lengths =
        || prop::collection::vec(prop_oneof![1..9000usize, Just(4096), 60_000..90_000usize], 1..4);
    prop_oneof![
        4 => lengths().prop_map(Item::Intact),
        2 => (lengths(), any::<Index>()).prop_map(|(l, i)| Item::TornPayload(l, i)),
        2 => (lengths(), any::<Index>()).prop_map(|(l, i)| Item::TornHeader(l, i)),
        1 => lengths().prop_map(Item::Earlier),
        1 => lengths().prop_map(Item::Misdirected),
        1 => (1..4u8).prop_map(Item::Tombstones),
        1 => (any::<u64>(), 1..4usize, any::<bool>()).prop_map(|(s, n, h)| Item::Noise(s, n, h)),
        1 => (1..4usize).prop_map(Item::Nothing),
    ]
}

fn objects(seed: u64, lengths: &[usize]) -> Vec<Object> {
    let object = |(i, length): (usize, &usize)| Object {
        key: key(i as u8, Role::Target, "kv", "k"),
        bytes: bytes(seed + i as u64, *length),
    };
    lengths.iter().enumerate().map(object).collect()
}

/// A base group (of one or more) at `offset`.
fn group(offset: u64, incarnation: u64, lengths: &[usize]) -> (RecordFacts, Vec<u8>) {
    let facts = RecordFacts {
        group_kind: GroupKind::Base,
        block_bytes: 8192,
        ..facts(identity(1, incarnation), offset)
    };
    (facts, record(&facts, &objects(offset, lengths)))
}

/// A record that a scan must find: (offset, whether its payload is intact).
type Expected = Vec<(u64, bool)>;

fn append(image: &mut Vec<u8>, expected: &mut Expected, item: &Item) {
    let offset = image.len() as u64;
    match item {
        Item::Intact(lengths) => {
            image.extend(group(offset, 2, lengths).1);
            expected.push((offset, true));
        }
        Item::TornPayload(lengths, at) => {
            let (_, mut bytes) = group(offset, 2, lengths);
            let r = Record::decode(&bytes).expect("what was written");
            let member = r.member(at.index(lengths.len())).expect("a member");
            bytes[member.payload_offset as usize + at.index(member.length as usize)] ^= 4;
            image.extend(bytes);
            expected.push((offset, false));
        }
        Item::TornHeader(lengths, at) => {
            let (_, mut bytes) = group(offset, 2, lengths);
            bytes[at.index(4096)] ^= 4;
            image.extend(bytes);
        }
        Item::Earlier(lengths) => image.extend(group(offset, 1, lengths).1),
        Item::Misdirected(lengths) => image.extend(group(offset + ALIGN, 2, lengths).1),
        Item::Tombstones(count) => {
            let facts =
                RecordFacts { kind: RecordKind::Tombstones, ..facts(identity(1, 2), offset) };
            image.extend(record(&facts, &objects(offset, &vec![0; usize::from(*count)])));
            expected.push((offset, true));
        }
        Item::Noise(seed, blocks, like_a_header) => {
            let mut noise = bytes(*seed, blocks * ALIGN as usize);
            if *like_a_header {
                let (_, header) = group(offset, 2, &[100]);
                noise[..200].copy_from_slice(&header[..200]);
            }
            image.extend(noise);
        }
        Item::Nothing(blocks) => image.resize(image.len() + blocks * ALIGN as usize, 0),
    }
}

proptest! {
    #![proptest_config(config(96))]

    #[test]
    fn scan_of_random_segment_finds_exactly_intact_records(items in prop::collection::vec(item(), 0..12)) {
        let mut image = vec![0; ALIGN as usize];
        let mut expected = Expected::new();
        items.iter().for_each(|item| append(&mut image, &mut expected, item));
        let mut read = |offset: u64, out: &mut [u8]| {
            out.copy_from_slice(&image[offset as usize..][..out.len()]);
            Ok::<(), Infallible>(())
        };
        let mut found = Vec::new();
        let mut report = |f: ScanItem<'_>| {
            if let ScanItem::Record { record, payload } = f {
                let at = record.facts().offset as usize;
                for m in record.members().filter(|_| payload.is_ok()) {
                    let from = at + m.payload_offset as usize;
                    let sums = checksums(&image[from..from + m.length as usize], 8192);
                    assert_eq!(record.checksums(&m).collect::<Vec<_>>(), sums, "what was reported whole is");
                }
                found.push((at as u64, payload.is_ok()));
            }
        };
        scan(identity(1, 2), image.len() as u64, &mut vec![0; SCRATCH_BYTES], &mut read, &mut report)
            .expect("reads never fail");
        prop_assert_eq!(found, expected);
    }
}

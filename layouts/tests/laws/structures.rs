//! Records, headers, footers and checkpoints: `decode(encode(x)) == x`.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint::*;
use pagelith_layouts::error::FormatError;
use pagelith_layouts::footer::{self, FooterFacts};
use pagelith_layouts::ids::*;
use pagelith_layouts::record::*;
use pagelith_layouts::segment::{
    SegmentIdentity, decode_head as decode_segment_head, encode_head as encode_segment_head,
};
use proptest::prelude::*;

use super::common::{NAMESPACE, Object, bytes, checksums, record};
use super::{config, key_in};

fn identity() -> impl Strategy<Value = SegmentIdentity> {
    (any::<[u8; 16]>(), any::<u32>(), 1..u64::MAX).prop_map(|(store, segment, incarnation)| {
        SegmentIdentity {
            store: StoreId(store),
            segment: SegmentId(segment),
            incarnation: Incarnation(incarnation),
        }
    })
}

/// Consistent facts and objects, at any place of any segment.
fn record_at(
    identity: SegmentIdentity,
    offset: u64,
) -> impl Strategy<Value = (RecordFacts, Vec<Object>)> {
    let length = prop_oneof![1..5000usize, Just(4096), Just(8192), 30_000..70_000usize];
    let objects = prop::collection::vec((key_in(Just(NAMESPACE)), length), 1..=64);
    let numbers = (1..u64::MAX, 1..u64::MAX, any::<u64>(), any::<u64>(), any::<u32>());
    (
        objects,
        numbers,
        1..=3u8,
        any::<bool>(),
        any::<bool>(),
        prop_oneof![Just(4096u32), Just(8192), Just(32_768)],
    )
        .prop_map(
            move |(
                objects,
                (generation, sequence, group, base, depth),
                group_kind,
                tombstones,
                reinserted,
                block,
            )| {
                let group_kind = match group_kind {
                    _ if tombstones => GroupKind::Single,
                    1 if objects.len() == 1 => GroupKind::Single,
                    1 | 2 => GroupKind::Base,
                    _ => GroupKind::Attached,
                };
                let facts = RecordFacts {
                    identity,
                    offset,
                    kind: if tombstones { RecordKind::Tombstones } else { RecordKind::Data },
                    group_kind,
                    namespace: NAMESPACE,
                    generation: Generation(generation),
                    sequence: Sequence(sequence),
                    group: GroupId(group),
                    base_group: GroupId(if group_kind == GroupKind::Attached { base } else { 0 }),
                    block_bytes: block,
                    depth,
                    reinserted,
                };
                let length = |n| if tombstones { 0 } else { n };
                let objects = objects.into_iter().enumerate();
                (
                    facts,
                    objects
                        .map(|(i, (key, n))| Object { key, bytes: bytes(i as u64, length(n)) })
                        .collect(),
                )
            },
        )
}

fn any_record() -> impl Strategy<Value = (RecordFacts, Vec<Object>)> {
    (identity(), 1..u64::from(u16::MAX))
        .prop_flat_map(|(identity, block)| record_at(identity, block * ALIGN))
}

proptest! {
    #![proptest_config(config(96))]

    #[test]
    fn random_record_round_trips((facts, objects) in any_record()) {
        let image = record(&facts, &objects);
        let r = Record::decode(&image).expect("what was written");
        prop_assert_eq!(r.facts(), facts);
        prop_assert_eq!(r.expect(facts.identity, facts.offset), Ok(()));
        prop_assert_eq!(r.record_bytes(), image.len() as u64);
        prop_assert_eq!(r.member_count(), objects.len());
        prop_assert_eq!(Record::claimed_header_bytes(&image), Some(r.header_bytes()));
        if facts.kind == RecordKind::Data {
            let lengths = objects.iter().map(|o| o.bytes.len() as u64);
            prop_assert_eq!(record_bytes(lengths, facts.block_bytes), image.len() as u64);
        }
        for (member, object) in r.members().zip(&objects) {
            prop_assert_eq!(member.key, object.key);
            let from = member.payload_offset as usize;
            prop_assert_eq!(&image[from..][..member.length as usize], &object.bytes[..]);
            let sums: Vec<_> = r.checksums(&member).collect();
            prop_assert_eq!(sums, checksums(&object.bytes, facts.block_bytes));
        }
        // Decoding and encoding again gives the same header.
        let sums: Vec<Vec<_>> = r.members().map(|m| r.checksums(&m).collect()).collect();
        let spec = |(m, checksums): (Member, _)| MemberSpec { key: m.key, length: m.length, checksums };
        let specs: Vec<_> = r.members().zip(sums.iter().map(Vec::as_slice)).map(spec).collect();
        let again = encode(&r.facts(), &specs);
        prop_assert_eq!(again.as_deref(), image.get(..r.header_bytes() as usize));
    }

    #[test]
    fn footer_of_random_records_round_trips(
        records in identity().prop_flat_map(|id| prop::collection::vec(record_at(id, ALIGN), 0..8)),
        order in 0..u64::MAX,
        gap in 0..3u64,
    ) {
        let mut end = ALIGN;
        let mut entries = Vec::new();
        let mut sequences = Vec::new();
        let mut identity = super::common::identity(1, 1);
        for (facts, objects) in &records {
            let facts = RecordFacts { offset: end, ..*facts };
            let image = record(&facts, objects);
            entries.extend(footer::entries_of(&Record::decode(&image).expect("what was written")));
            end += image.len() as u64 + gap * ALIGN;
            sequences.push(facts.sequence.0);
            identity = facts.identity;
        }
        let facts = FooterFacts {
            identity,
            order: SegmentOrder(order),
            min_sequence: Sequence(sequences.iter().copied().min().unwrap_or(u64::MAX)),
            max_sequence: Sequence(sequences.iter().copied().max().unwrap_or(0)),
            data_end: end,
        };
        let written = footer::encode(&facts, &entries);
        let segment_bytes = end + written.len() as u64;
        prop_assert_eq!(written.len() as u64, footer::footer_bytes(entries.len() as u64));
        prop_assert_eq!(footer::claimed_bytes(&written, segment_bytes), Some(written.len() as u64));
        prop_assert_eq!(footer::decode(&written, identity, segment_bytes), Ok((facts, entries)));
        // A segment one block shorter is too short for its records.
        prop_assert!(footer::decode(&written, identity, segment_bytes - ALIGN).is_err());
    }

    #[test]
    fn random_segment_header_round_trips(identity in identity(), order in any::<u64>(), segment_bytes in any::<u64>()) {
        let block = encode_segment_head(identity, SegmentOrder(order), segment_bytes);
        let read = decode_segment_head(&block, identity.store, identity.segment);
        prop_assert_eq!(read, Ok((identity.incarnation, SegmentOrder(order), segment_bytes)));
    }

    #[test]
    fn random_checkpoint_header_round_trips(
        store in any::<[u8; 16]>(),
        numbers in prop::array::uniform4(0..u64::MAX),
        segment_count in any::<u32>(),
        entry_count in any::<u64>(),
        spare in any::<u64>(),
        clean in any::<bool>(),
    ) {
        let least = chunks_for(segment_count.into(), entry_count);
        let facts = CheckpointFacts {
            store: StoreId(store),
            serial: numbers[0],
            sequence: Sequence(numbers[1]),
            next_sequence: Sequence(numbers[2]),
            replay_from: SegmentOrder(numbers[3]),
            segment_count,
            entry_count,
            chunk_count: least.saturating_add(spare),
            clean,
        };
        prop_assert_eq!(decode_head(&encode_head(&facts), facts.store), Ok(facts));
        if least > 0 {
            let few = encode_head(&CheckpointFacts { chunk_count: least - 1, ..facts });
            prop_assert!(decode_head(&few, facts.store).is_err(), "chunks that cannot hold the entries");
        }
    }

    #[test]
    fn random_chunk_round_trips(
        store in any::<[u8; 16]>(),
        serial in any::<u64>(),
        index in any::<u64>(),
        count in 0..=CHUNK_ITEMS,
        seed in any::<u64>(),
        segments in any::<bool>(),
    ) {
        let kind = if segments { ChunkKind::Segments } else { ChunkKind::Entries };
        let items = bytes(seed, count * 32);
        let mut chunk = bytes(seed ^ 1, CHUNK_BYTES);
        prop_assert!(encode_chunk(&mut chunk, kind, StoreId(store), serial, index, &items));
        let facts = CheckpointFacts {
            store: StoreId(store),
            serial,
            sequence: Sequence(1),
            next_sequence: Sequence(1),
            replay_from: SegmentOrder(1),
            segment_count: 0,
            entry_count: 0,
            chunk_count: 1,
            clean: false,
        };
        prop_assert_eq!(decode_chunk(&chunk, &facts, index), Ok((kind, &items[..])));
        let elsewhere = decode_chunk(&chunk, &facts, index.wrapping_add(1)).map(|_| ());
        prop_assert!(elsewhere.is_err_and(|e| e.to_string().contains("field=index")));
        let another = decode_chunk(&chunk, &CheckpointFacts { serial: serial.wrapping_add(1), ..facts }, index);
        let refused = another.map(|_| ()).expect_err("another checkpoint's");
        let is_identity = |e: &FormatError| e.to_string().contains("does not match field=serial");
        prop_assert!(is_identity(&refused), "{}", refused);
    }

    #[test]
    fn checkpoint_entry_is_object_link_or_withdrawal(
        fingerprint in any::<u128>(),
        base in any::<u64>(),
        place in (0..u32::MAX, any::<u16>(), any::<u16>()),
        length in 1..=u32::MAX,
        tick in 0..1u32 << 20,
        attached in any::<bool>(),
    ) {
        let (segment, record_sector, payload_sector) = place;
        let object = CheckpointEntry {
            fingerprint: fingerprint.to_le_bytes(),
            segment,
            record_sector,
            payload_sector,
            length,
            tick: CheckpointEntry::tick(tick, attached),
        };
        prop_assert_eq!((object.ticks(), object.is_attached()), (tick, attached));
        prop_assert_eq!((object.link(), object.is_withdrawal()), (None, false));
        let link = CheckpointEntry::links(fingerprint, base);
        prop_assert_eq!((link.link(), link.is_withdrawal()), (Some(base), false));
        prop_assert_eq!(link.fingerprint, object.fingerprint);
        let gone = CheckpointEntry::withdrawal(segment, record_sector);
        prop_assert_eq!((gone.link(), gone.is_withdrawal()), (None, true));
        prop_assert_eq!((gone.segment, gone.record_sector), (segment, record_sector));
    }
}

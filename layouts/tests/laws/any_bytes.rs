//! Decoding of any bytes: no panic, and no length beyond the bytes is used. Random bytes never pass
//! a checksum, so most cases are sealed: random edits with a recomputed checksum.

use std::convert::Infallible;

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint::{self, CHUNK_BYTES, CheckpointFacts, ChunkKind};
use pagelith_layouts::checksum::checksum_around;
use pagelith_layouts::footer::{self, FooterFacts};
use pagelith_layouts::ids::*;
use pagelith_layouts::learned::{self, Learned};
use pagelith_layouts::manifest;
use pagelith_layouts::record::Record;
use pagelith_layouts::scan::{SCRATCH_BYTES, scan};
use pagelith_layouts::segment;
use proptest::prelude::*;
use proptest::sample::Index;

use super::common::{STORE, bytes, group_of_three, identity, record};
use super::config;
use super::manifest::small;

/// Edits of a structure: offset (mostly near the front, where the fields are) and value.
fn edits() -> impl Strategy<Value = Vec<(Index, bool, u8)>> {
    let value = prop_oneof![Just(0u8), Just(1), Just(2), Just(0x7f), Just(0xff), any::<u8>()];
    prop::collection::vec((any::<Index>(), prop::bool::weighted(0.8), value), 0..6)
}

/// Apply `edits` to `fields` (or anywhere) and recompute the checksum.
fn sealed(
    mut bytes: Vec<u8>,
    sum_at: usize,
    fields: std::ops::Range<usize>,
    edits: &[(Index, bool, u8)],
) -> Vec<u8> {
    for (at, in_fields, value) in edits {
        let at =
            if *in_fields { fields.start + at.index(fields.len()) } else { at.index(bytes.len()) };
        bytes[at] = *value;
    }
    let sum = checksum_around(&bytes, sum_at).expect("a hole inside");
    bytes[sum_at..sum_at + 16].copy_from_slice(&sum);
    bytes
}

/// Call every accessor of a decoded value: none may panic.
fn read_record(bytes: &[u8]) -> bool {
    let Ok(r) = Record::decode(bytes) else { return false };
    let sums: usize = r.members().map(|m| r.checksums(&m).len()).sum();
    let entries = footer::entries_of(&r).count();
    assert_eq!(entries, r.member_count());
    assert_eq!(r.member(r.member_count()), None);
    sums <= bytes.len() / 16 && r.header_bytes() <= bytes.len() as u64
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn random_bytes_are_refused(seed in any::<u64>(), length in 0..9000usize) {
        let b = bytes(seed, length);
        prop_assert!(!read_record(&b));
        prop_assert!(segment::decode_head(&b, STORE, SegmentId(1)).is_err());
        prop_assert!(footer::decode(&b, identity(1, 2), 1 << 20).is_err());
        prop_assert_eq!(footer::claimed_bytes(&b, 1 << 20), None);
        prop_assert!(manifest::decode([&b, &b]).is_err());
        prop_assert!(checkpoint::decode_head(&b, STORE).is_err());
    }

    #[test]
    fn sealed_random_record_header_never_panics(edits in edits(), cut in any::<Index>()) {
        let (facts, objects) = group_of_three(4096);
        let mut b = record(&facts, &objects);
        b.truncate(4096);
        let b = sealed(b, 8, 24..192 + 3 * 160 + 48, &edits);
        read_record(&b);
        read_record(&b[..cut.index(b.len())]);
        // Also as part of a segment long enough for the claimed lengths.
        let mut image = vec![0; ALIGN as usize];
        image.extend_from_slice(&b);
        image.resize(6 * ALIGN as usize, 7);
        let mut read = |offset: u64, out: &mut [u8]| {
            out.copy_from_slice(&image[offset as usize..][..out.len()]);
            Ok::<(), Infallible>(())
        };
        let end = image.len() as u64;
        scan(identity(1, 2), end, &mut vec![0; SCRATCH_BYTES], &mut read, &mut |_| {}).expect("reads never fail");
    }

    #[test]
    fn sealed_random_footer_never_panics(edits in edits(), segment_blocks in 0..20u64) {
        let (facts, objects) = group_of_three(4096);
        let image = record(&facts, &objects);
        let entries: Vec<_> = footer::entries_of(&Record::decode(&image).expect("what was written")).collect();
        let footer_facts = FooterFacts {
            identity: identity(1, 2),
            order: SegmentOrder(1),
            min_sequence: facts.sequence,
            max_sequence: facts.sequence,
            data_end: 5 * ALIGN,
        };
        let b = footer::encode(&footer_facts, &entries);
        let tail = b.len() - footer::FooterTail::BYTES;
        let fields = if edits.len() % 2 == 0 { tail + 24..b.len() } else { 128..3 * 192 };
        let b = sealed(b, tail + 8, fields, &edits);
        let decoded = footer::decode(&b, identity(1, 2), segment_blocks * ALIGN);
        if let Ok((facts, entries)) = decoded {
            prop_assert_eq!(footer::encode(&facts, &entries), b, "what is read is written the same");
        }
    }

    #[test]
    fn sealed_random_manifest_never_panics(block in 0..3usize, edits in edits(), both in any::<bool>()) {
        let good = small().copy();
        let mut bad = good.clone();
        let range = block * 4096..(block + 1) * 4096;
        let body = sealed(good[range.clone()].to_vec(), 8, 24..64 + 80, &edits);
        bad[range].copy_from_slice(&body);
        let copies = if both { [&bad[..], &bad[..]] } else { [&good[..], &bad[..]] };
        if let Ok((m, damage)) = manifest::decode(copies) {
            let copy = m.copy();
            // The superblock may imply fewer blocks than the bytes hold.
            let holds = |c: &[u8]| c.starts_with(&copy);
            prop_assert!(holds(&good) || holds(&bad), "a manifest that neither copy holds");
            prop_assert!(copies.iter().filter(|c| !holds(c)).count() <= damage.len());
        }
    }

    #[test]
    fn sealed_random_learned_state_never_panics(edits in edits()) {
        let counts = Box::new([[[1.0; 2]; learned::BANDS]; learned::CLASSES]);
        let learned = Learned { lap_units: 9.0, victim_worth: None, sample_rate: 1, counts };
        let bytes = sealed(learned::encode(&learned, STORE, 1), 8, 24..300, &edits);
        if let Ok(learned) = learned::decode(&bytes, STORE, 1) {
            prop_assert_eq!(learned::encode(&learned, STORE, 1), bytes);
        }
    }

    #[test]
    fn sealed_random_checkpoint_never_panics(edits in edits(), chunk_edits in edits()) {
        let facts = CheckpointFacts {
            store: STORE,
            serial: 1,
            sequence: Sequence(1),
            next_sequence: Sequence(2),
            replay_from: SegmentOrder(1),
            segment_count: 2,
            entry_count: 2,
            chunk_count: 2,
            clean: true,
        };
        let head = sealed(checkpoint::encode_head(&facts).to_vec(), 8, 24..128, &edits);
        if let Ok(facts) = checkpoint::decode_head(&head, STORE) {
            prop_assert_eq!(&checkpoint::encode_head(&facts)[..], &head[..]);
            checkpoint::chunk_offset(facts.chunk_count);
            checkpoint::file_bytes(facts.segment_count.into(), facts.entry_count);
        }
        let mut chunk = vec![0; CHUNK_BYTES];
        prop_assert!(checkpoint::encode_chunk(&mut chunk, ChunkKind::Entries, STORE, 1, 0, &[9; 64]));
        let chunk = sealed(chunk, 8, 24..64, &chunk_edits);
        if let Ok((kind, items)) = checkpoint::decode_chunk(&chunk, &facts, 0) {
            let mut again = vec![0; CHUNK_BYTES];
            prop_assert!(checkpoint::encode_chunk(&mut again, kind, STORE, 1, 0, items));
            prop_assert_eq!(again, chunk);
        }
    }
}

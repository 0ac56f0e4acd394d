//! Golden files: the bytes of a small store in format version 1, in `golden/v1/`. The reader must
//! read them as long as it supports that version, and the current encoder must write exactly these
//! bytes.
//!
//! `TEST_PAGELITH_BLESS=1 cargo test -p pagelith-layouts --test golden todays_encoder` rewrites
//! them. It must run alone, since the other tests read them. Do this only while no released version
//! wrote the old bytes: after a release, a change of bytes is a new format version with a folder of
//! its own.

#![expect(
    clippy::disallowed_methods,
    reason = "a test reads its golden files itself; nothing here ships"
)]

mod common;

#[path = "golden/build.rs"]
mod build;

use std::convert::Infallible;
use std::path::PathBuf;

use build::*;
use common::*;
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint::{self, CHUNK_BYTES, CheckpointEntry, ChunkKind, SegmentMark};
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum, fingerprint};
use pagelith_layouts::error::FormatError;
use pagelith_layouts::footer;
use pagelith_layouts::ids::*;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::learned::{self, LEARNED_BYTES};
use pagelith_layouts::manifest;
use pagelith_layouts::record::*;
use pagelith_layouts::scan::{SCRATCH_BYTES, ScanItem, scan};
use pagelith_layouts::segment::decode_head;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1").join(name)
}

/// The stored bytes of a golden file.
fn golden(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|e| panic!("golden file {name} must be there: {e}"))
}

#[test]
fn todays_encoder_writes_exactly_these_bytes() {
    let bless = std::env::var_os("TEST_PAGELITH_BLESS").is_some_and(|v| v == "1");
    for (name, bytes) in files() {
        if bless {
            std::fs::write(path(name), &bytes).expect("the golden folder can be written");
        }
        let kept = golden(name);
        let differs = kept.iter().zip(&bytes).position(|(a, b)| a != b);
        assert!(
            kept == bytes,
            "{name} differs: kept={} written={} first={differs:?}",
            kept.len(),
            bytes.len()
        );
    }
}

#[test]
fn every_golden_file_is_checked() {
    let mut kept: Vec<_> = std::fs::read_dir(path(""))
        .expect("the golden folder")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"))
        .collect();
    let mut known: Vec<_> = files().iter().map(|(name, _)| (*name).to_string()).collect();
    kept.sort();
    known.sort();
    assert_eq!(kept, known);
    let total: usize = kept.iter().map(|name| golden(name).len()).sum();
    assert!(total < 200 << 10, "golden files stay small: {total}");
}

/// Check a member against its object: place, length, block checksums and the payload itself.
fn check_member(image: &[u8], r: &Record<'_>, m: &Member, o: &Object) {
    assert_eq!((m.key, m.length), (o.key, o.bytes.len() as u64));
    let from = (r.facts().offset + m.payload_offset) as usize;
    assert!(image[from..from + o.bytes.len()] == o.bytes, "payload of {}", o.key);
    let sums: Vec<_> = o.bytes.chunks(BLOCK_BYTES as usize).map(checksum).collect();
    assert_eq!(r.checksums(m).collect::<Vec<_>>(), sums);
}

#[test]
fn golden_segment_header_is_read() {
    let head = decode_head(&golden("segment.bin"), STORE, SegmentId(SEGMENT));
    assert_eq!(head, Ok((Incarnation(2), SegmentOrder(3), SEGMENT_BYTES)));
}

#[test]
fn golden_group_is_read_in_every_field() {
    let image = golden("segment.bin");
    let r = Record::decode(&image[GROUP_AT as usize..]).expect("a record");
    let (_, objects) = group();
    assert_eq!(r.expect(identity(SEGMENT, 2), GROUP_AT), Ok(()));
    assert_eq!(
        r.facts(),
        RecordFacts {
            identity: identity(SEGMENT, 2),
            offset: 4096,
            kind: RecordKind::Data,
            group_kind: GroupKind::Base,
            namespace: NAMESPACE,
            generation: Generation(2),
            sequence: Sequence(41),
            group: GroupId(41),
            base_group: GroupId(0),
            block_bytes: 32_768,
            depth: 3,
            reinserted: false,
        }
    );
    assert_eq!((r.header_bytes(), r.record_bytes(), r.member_count()), (4096, 4 * 4096, 3));
    let places: Vec<_> =
        r.members().map(|m| (m.payload_offset, m.first_block, m.block_count)).collect();
    assert_eq!(places, [(4096, 0, 1), (8192, 1, 1), (12_288, 2, 1)]);
    for (m, o) in r.members().zip(&objects) {
        check_member(&image, &r, &m, o);
    }
    let draft = r.member(2).expect("a third member");
    assert_eq!(
        (draft.key.role(), draft.key.pool(), draft.key.component()),
        (Role::Draft, "kv", "k")
    );
}

#[test]
fn golden_object_of_several_blocks_is_read() {
    let image = golden("segment.bin");
    let r = Record::decode(&image[OBJECT_AT as usize..]).expect("a record");
    let (facts, objects) = object();
    assert_eq!((r.facts(), r.facts().reinserted, r.facts().depth), (facts, true, 9));
    let m = r.member(0).expect("a member");
    assert_eq!(
        (m.length, m.first_block, m.block_count, r.record_bytes()),
        (100_000, 0, 4, 26 * 4096)
    );
    check_member(&image, &r, &m, &objects[0]);
}

#[test]
fn golden_tombstones_are_read() {
    let image = golden("segment.bin");
    let r = Record::decode(&image[TOMBSTONES_AT as usize..]).expect("a record");
    let (facts, objects) = tombstones();
    assert_eq!((r.facts(), r.record_bytes(), r.member_count()), (facts, 4096, 2));
    for (m, o) in r.members().zip(&objects) {
        assert_eq!(
            (m.key, m.length, m.payload_offset, m.first_block, m.block_count),
            (o.key, 0, 0, 0, 0)
        );
    }
}

#[test]
fn golden_records_of_old_incarnation_are_intact_and_refused() {
    let image = golden("segment.bin");
    for at in LEFT_AT {
        let r = Record::decode(&image[at as usize..]).expect("an intact record");
        assert_eq!(r.expect(identity(SEGMENT, 1), at), Ok(()));
        let refused = r.expect(identity(SEGMENT, 2), at).expect_err("of an earlier incarnation");
        assert_eq!(
            refused.to_string(),
            "identity of record header does not match field=incarnation found=1 expected=2"
        );
    }
    let mut whole = Vec::new();
    let mut junk = Vec::new();
    let mut read = |offset: u64, out: &mut [u8]| {
        out.copy_from_slice(&image[offset as usize..][..out.len()]);
        Ok::<(), Infallible>(())
    };
    let mut found = |f: ScanItem<'_>| match f {
        ScanItem::Record { record, payload } => {
            assert_eq!(payload, Ok(()));
            whole.push(record.facts().offset);
        }
        ScanItem::Unrecognized { offset, .. } => junk.push(offset),
    };
    let end = SEGMENT_BYTES - footer::footer_bytes(6);
    scan(identity(SEGMENT, 2), end, &mut vec![0; SCRATCH_BYTES], &mut read, &mut found)
        .expect("reads never fail");
    assert_eq!((whole, junk), (vec![GROUP_AT, OBJECT_AT, TOMBSTONES_AT], LEFT_AT.to_vec()));
}

#[test]
fn golden_footer_matches_records() {
    let image = golden("segment.bin");
    let claimed = footer::claimed_bytes(&image[image.len() - ALIGN as usize..], SEGMENT_BYTES);
    assert_eq!(claimed, Some(ALIGN));
    let bytes = &image[image.len() - ALIGN as usize..];
    let (facts, entries) =
        footer::decode(bytes, identity(SEGMENT, 2), SEGMENT_BYTES).expect("a footer");
    assert_eq!(facts, footer_facts());
    let scanned: Vec<_> = [GROUP_AT, OBJECT_AT, TOMBSTONES_AT]
        .iter()
        .flat_map(|at| {
            let r = Record::decode(&image[*at as usize..]).expect("a record");
            footer::entries_of(&r).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(entries, scanned);
    let e = &entries[3];
    assert_eq!(
        (e.sequence, e.generation, e.group, e.base_group, e.length),
        (17, 2, 17, 0, 100_000)
    );
    assert_eq!(
        (e.record_sector, e.payload_sector, e.record_sectors, e.member_count),
        (5, 1, 26, 1)
    );
    assert_eq!((e.kind, e.group_kind, e.depth), (1, 1, 9));
}

#[test]
fn golden_manifest_is_read_from_either_copy() {
    let [first, second] = ["manifest.0.bin", "manifest.1.bin"].map(golden);
    for copies in [[&first[..], &second], [&first, &[]], [&[], &second]] {
        let (m, _) = manifest::decode(copies).expect("a whole copy");
        assert_eq!((m.store(), m.superblock()), (STORE, &superblock()));
        assert_eq!(m.segment(SegmentId(0)), Some((Incarnation(1), SegmentOrder(2))));
        assert_eq!(m.segment(SegmentId(SEGMENT)), Some((Incarnation(2), SegmentOrder(3))));
        assert_eq!(m.generations().collect::<Vec<_>>(), [(NAMESPACE, Generation(2))]);
    }
    assert_eq!(manifest::decode([&first, &second]).expect("two copies").1, vec![]);
}

#[test]
fn golden_store_of_next_version_is_refused_by_name() {
    let newer = golden("superblock_newer.bin");
    let good = golden("manifest.0.bin");
    for copies in [[&newer[..], &newer], [&good, &newer], [&newer, &good]] {
        let refused = manifest::decode(copies).expect_err("a newer format").error;
        assert_eq!(
            refused,
            FormatError::Version { structure: "manifest block", found: 2, known: 1 }
        );
        assert_eq!(
            refused.to_string(),
            "manifest block has a newer format version=2 newest_known=1"
        );
    }
}

#[test]
fn golden_checkpoint_is_read() {
    let kept = golden("checkpoint.bin");
    let facts = checkpoint::decode_head(&kept, STORE).expect("a head");
    assert_eq!(facts, checkpoint_facts());
    let chunk = |index: usize| {
        let mut chunk = kept[ALIGN as usize + index * CHUNK_KEPT..][..CHUNK_KEPT].to_vec();
        chunk.resize(CHUNK_BYTES, 0);
        chunk
    };
    let (first, second) = (chunk(0), chunk(1));
    let (kind, items) = checkpoint::decode_chunk(&first, &facts, 0).expect("a chunk");
    let read: Vec<SegmentMark> = items.chunks_exact(32).map(bytemuck::pod_read_unaligned).collect();
    assert_eq!((kind, &read[..]), (ChunkKind::Segments, &marks()[..]));
    let (kind, items) = checkpoint::decode_chunk(&second, &facts, 1).expect("a chunk");
    let read: Vec<CheckpointEntry> =
        items.chunks_exact(32).map(bytemuck::pod_read_unaligned).collect();
    assert_eq!((kind, &read[..]), (ChunkKind::Entries, &checkpoint_entries()[..]));
    let withdrawals: Vec<bool> = read.iter().map(CheckpointEntry::is_withdrawal).collect();
    assert_eq!(withdrawals, [false, false, true]);
}

#[test]
fn golden_learned_state_is_read() {
    let mut kept = golden("learned.bin");
    kept.resize(LEARNED_BYTES, 0);
    assert_eq!(learned::decode(&kept, STORE, checkpoint_facts().serial), Ok(learned()));
}

#[test]
fn golden_attached_record_is_read() {
    let bytes = golden("attached_record.bin");
    let record = Record::decode(&bytes).expect("a record");
    assert_eq!((record.facts(), record.member_count()), (attached().0, 2));
    assert_eq!(record.facts().base_group.0, base_group());
    let read: Vec<CheckpointEntry> = golden("attached_entries.bin")
        .chunks_exact(CheckpointEntry::BYTES)
        .map(bytemuck::pod_read_unaligned)
        .collect();
    assert_eq!(read, attached_entries());
    let [object, link] = [read[0], read[1]];
    assert_eq!((object.link(), object.is_attached(), object.ticks()), (None, true, 9));
    assert_eq!((link.link(), link.is_withdrawal()), (Some(base_group()), false));
    assert_eq!(link.fingerprint, object.fingerprint);
}

/// The key fingerprint of index and checkpoint is part of the format too.
#[test]
fn golden_fingerprint_is_stable() {
    let key: ObjectKey = keys()[0];
    let secret = superblock().fingerprint_key;
    assert_eq!(format!("{:032x}", fingerprint(&secret, &key, GENERATION)), FINGERPRINT);
}
const FINGERPRINT: &str = "50b7be865fc2480a9292067f1513b6ed";

#[test]
fn golden_key_texts_are_parsed_and_printed() {
    let text = String::from_utf8(golden("keys.txt")).expect("text");
    let read: Vec<ObjectKey> = text.lines().map(|line| line.parse().expect("a key")).collect();
    assert_eq!(read, keys());
    assert!(
        text.lines().any(
            |line| line.ends_with("/d:sliding-window.1_K/v/rank.pp1of2.cp0of4.dcp65534of65535")
        )
    );
}

//! Builds the store of the golden files with the current encoder. It has no inputs: the bytes are
//! always the same.

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::checkpoint::{
    self, CHUNK_BYTES, CheckpointEntry, CheckpointFacts, ChunkKind, SegmentMark,
};
use pagelith_layouts::checksum::{BLOCK_BYTES, fingerprint};
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts};
use pagelith_layouts::ids::*;
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::learned::{self, Learned};
use pagelith_layouts::manifest::{BlockHead, Manifest, Superblock};
use pagelith_layouts::record::*;
use pagelith_layouts::segment::encode_head;
use pagelith_layouts::shard::{Shard, Slice};

use super::common::*;

/// Length of the golden segment: just enough for its records.
pub(crate) const SEGMENT_BYTES: u64 = 36 * ALIGN;
/// The segment of the image, in its second incarnation.
pub(crate) const SEGMENT: u32 = 1;
/// The namespace's generation, once raised.
pub(crate) const GENERATION: Generation = Generation(2);

/// Offsets of the records of incarnation 2, and the end of the last one.
pub(crate) const GROUP_AT: u64 = ALIGN;
pub(crate) const OBJECT_AT: u64 = 5 * ALIGN;
pub(crate) const TOMBSTONES_AT: u64 = 31 * ALIGN;
pub(crate) const DATA_END: u64 = 32 * ALIGN;
/// Offsets of leftover records of incarnation 1.
pub(crate) const LEFT_AT: [u64; 2] = [32 * ALIGN, 34 * ALIGN];

/// A golden file: its name and its bytes.
pub(crate) type File = (&'static str, Vec<u8>);

/// All golden files, as written by the current encoder.
pub(crate) fn files() -> Vec<File> {
    let manifest = manifest();
    vec![
        ("segment.bin", segment()),
        ("manifest.0.bin", manifest.copy()),
        ("manifest.1.bin", manifest.copy()),
        ("checkpoint.bin", checkpoint()),
        ("learned.bin", learned_bytes()),
        ("attached_record.bin", record(&attached().0, &attached().1)),
        ("attached_entries.bin", bytemuck::cast_slice::<_, u8>(&attached_entries()).to_vec()),
        ("superblock_newer.bin", superblock_newer(&manifest)),
        ("keys.txt", keys().iter().flat_map(|k| format!("{k}\n").into_bytes()).collect()),
    ]
}

/// The base group: the target's `k` and `v` and the draft's `k`.
pub(crate) fn group() -> (RecordFacts, Vec<Object>) {
    let (facts, objects) = group_of_three(GROUP_AT);
    (
        RecordFacts { generation: GENERATION, sequence: Sequence(41), group: GroupId(41), ..facts },
        objects,
    )
}

/// An object of four blocks that reclaim reinserted.
pub(crate) fn object() -> (RecordFacts, Vec<Object>) {
    let facts = RecordFacts {
        generation: GENERATION,
        sequence: Sequence(17),
        group: GroupId(17),
        depth: 9,
        reinserted: true,
        ..facts(identity(SEGMENT, 2), OBJECT_AT)
    };
    (
        facts,
        vec![Object { key: key(2, Role::Target, "mamba", "temporal"), bytes: bytes(20, 100_000) }],
    )
}

/// The name of the base group that [`attached`] belongs to, by its target's `v`.
pub(crate) fn base_group() -> u64 {
    let key = group().1[1].key;
    (fingerprint(&superblock().fingerprint_key, &key, GENERATION) >> 64) as u64
}

/// A checkpoint of the group's page, attached to it.
pub(crate) fn attached() -> (RecordFacts, Vec<Object>) {
    let facts = RecordFacts {
        generation: GENERATION,
        sequence: Sequence(43),
        group: GroupId(43),
        group_kind: GroupKind::Attached,
        base_group: GroupId(base_group()),
        ..facts(identity(SEGMENT, 2), DATA_END)
    };
    let object =
        |part, len| Object { key: key(1, Role::Target, "mamba", part), bytes: bytes(50, len) };
    (facts, vec![object("temporal", 5000), object("conv_0", 70)])
}

/// The checkpoint entries of the first of those: its location, and its link to the base group.
pub(crate) fn attached_entries() -> [CheckpointEntry; 2] {
    let secret = superblock().fingerprint_key;
    let fingerprint = fingerprint(&secret, &attached().1[0].key, GENERATION);
    let object = CheckpointEntry {
        fingerprint: fingerprint.to_le_bytes(),
        segment: SEGMENT,
        record_sector: (DATA_END / ALIGN) as u16,
        payload_sector: 1,
        length: 5000,
        tick: CheckpointEntry::tick(9, true),
    };
    [object, CheckpointEntry::links(fingerprint, base_group())]
}

/// Two keys removed.
pub(crate) fn tombstones() -> (RecordFacts, Vec<Object>) {
    let facts = RecordFacts {
        kind: RecordKind::Tombstones,
        generation: GENERATION,
        sequence: Sequence(42),
        group: GroupId(42),
        ..facts(identity(SEGMENT, 2), TOMBSTONES_AT)
    };
    let gone = |role| Object { key: key(3, role, "kv", "k"), bytes: vec![] };
    (facts, vec![gone(Role::Target), gone(Role::Draft)])
}

/// Leftover records of incarnation 1: an object and a tombstone, valid except for their
/// incarnation.
fn left_behind() -> [(RecordFacts, Vec<Object>); 2] {
    let earlier = |i: usize| RecordFacts {
        sequence: Sequence(11 + i as u64),
        group: GroupId(11 + i as u64),
        ..facts(identity(SEGMENT, 1), LEFT_AT[i])
    };
    let object = Object { key: key(4, Role::Target, "kv", "k"), bytes: bytes(40, 3000) };
    let gone = Object { key: key(5, Role::Target, "kv", "k"), bytes: vec![] };
    [
        (earlier(0), vec![object]),
        (RecordFacts { kind: RecordKind::Tombstones, ..earlier(1) }, vec![gone]),
    ]
}

/// The facts of the footer.
pub(crate) fn footer_facts() -> FooterFacts {
    FooterFacts {
        identity: identity(SEGMENT, 2),
        order: SegmentOrder(3),
        min_sequence: Sequence(17),
        max_sequence: Sequence(42),
        data_end: DATA_END,
    }
}

/// The segment sealed in its second incarnation: header, three records, leftover records of the
/// first one, footer.
fn segment() -> Vec<u8> {
    let mut image = vec![0; SEGMENT_BYTES as usize];
    let mut put =
        |at: u64, bytes: &[u8]| image[at as usize..][..bytes.len()].copy_from_slice(bytes);
    for (facts, objects) in &left_behind() {
        put(facts.offset, &record(facts, objects));
    }
    put(0, &encode_head(identity(SEGMENT, 2), SegmentOrder(3), SEGMENT_BYTES));
    let mut entries: Vec<FooterEntry> = Vec::new();
    for (facts, objects) in &[group(), object(), tombstones()] {
        let bytes = record(facts, objects);
        put(facts.offset, &bytes);
        entries.extend(footer::entries_of(&Record::decode(&bytes).expect("what was written")));
    }
    let footer = footer::encode(&footer_facts(), &entries);
    put(SEGMENT_BYTES - footer.len() as u64, &footer);
    image
}

/// The parameters of the store.
pub(crate) fn superblock() -> Superblock {
    Superblock {
        segment_bytes: SEGMENT_BYTES,
        capacity_bytes: 1 << 20,
        checkpoint_bytes: checkpoint::file_bytes(2, 100),
        objects_max: 100,
        segment_count: 2,
        dir_count: 1,
        block_bytes: BLOCK_BYTES,
        namespaces_max: 16,
        fingerprint_key: std::array::from_fn(|i| (i as u8).wrapping_mul(73)),
        reserved: [0; 80],
    }
}

fn manifest() -> Manifest {
    let mut m = Manifest::new(STORE, superblock());
    m.set_segment(SegmentId(SEGMENT), Incarnation(1), SegmentOrder(1)).expect("a segment");
    m.set_segment(SegmentId(0), Incarnation(1), SegmentOrder(2)).expect("a segment");
    m.set_generation(NAMESPACE, GENERATION).expect("room");
    m.set_segment(SegmentId(SEGMENT), Incarnation(2), SegmentOrder(3)).expect("a segment");
    m
}

/// The first block of a store of the next format version, with a valid checksum.
fn superblock_newer(manifest: &Manifest) -> Vec<u8> {
    let mut block = manifest.block(0).to_vec();
    forge(&mut block, 8, at(&BlockHead::STRUCTURE, "version"), &[2, 0]);
    block
}

/// The facts of the checkpoint.
pub(crate) fn checkpoint_facts() -> CheckpointFacts {
    CheckpointFacts {
        store: STORE,
        serial: 6,
        sequence: Sequence(43),
        next_sequence: Sequence(45),
        replay_from: SegmentOrder(2),
        segment_count: 2,
        entry_count: 3,
        chunk_count: 2,
        clean: true,
    }
}

/// The marks of both segments.
pub(crate) fn marks() -> [SegmentMark; 2] {
    [
        SegmentMark { incarnation: 1, order: 2, min_sequence: u64::MAX, data_end: ALIGN },
        SegmentMark { incarnation: 2, order: 3, min_sequence: 17, data_end: DATA_END },
    ]
}

/// Two of the segment's objects, and the withdrawal of the second's record.
pub(crate) fn checkpoint_entries() -> [CheckpointEntry; 3] {
    let secret = superblock().fingerprint_key;
    let entry = |key: &ObjectKey, at: u64, payload_sector, length, tick| CheckpointEntry {
        fingerprint: fingerprint(&secret, key, GENERATION).to_le_bytes(),
        segment: SEGMENT,
        record_sector: (at / ALIGN) as u16,
        payload_sector,
        length,
        tick,
    };
    [
        entry(&group().1[1].key, GROUP_AT, 2, 4096, 7),
        entry(&object().1[0].key, OBJECT_AT, 1, 100_000, 8),
        CheckpointEntry::withdrawal(SEGMENT, (OBJECT_AT / ALIGN) as u16),
    ]
}

/// Bytes of each chunk in the golden file; the rest of the chunk is zero.
pub(crate) const CHUNK_KEPT: usize = 512;

/// Header block and two chunks, truncated to their first [`CHUNK_KEPT`] bytes.
fn checkpoint() -> Vec<u8> {
    let facts = checkpoint_facts();
    let mut out = checkpoint::encode_head(&facts).to_vec();
    let parts = [
        (ChunkKind::Segments, bytemuck::cast_slice::<_, u8>(&marks()).to_vec()),
        (ChunkKind::Entries, bytemuck::cast_slice::<_, u8>(&checkpoint_entries()).to_vec()),
    ];
    for (index, (kind, items)) in parts.iter().enumerate() {
        let mut chunk = vec![0; CHUNK_BYTES];
        assert!(checkpoint::encode_chunk(
            &mut chunk,
            *kind,
            STORE,
            facts.serial,
            index as u64,
            items
        ));
        assert!(chunk[CHUNK_KEPT..].iter().all(|b| *b == 0), "nothing is cut off");
        out.extend_from_slice(&chunk[..CHUNK_KEPT]);
    }
    out
}

/// What admission had learned at the checkpoint.
pub(crate) fn learned() -> Learned {
    let mut counts = Box::new([[[0.0; 2]; learned::BANDS]; learned::CLASSES]);
    counts[0][0] = [2.5, 40.0];
    counts[1][22] = [0.0, 7.25];
    Learned { lap_units: 640.5, victim_worth: Some(0.0625), sample_rate: 8, counts }
}

/// The same, truncated to its first [`CHUNK_KEPT`] bytes.
fn learned_bytes() -> Vec<u8> {
    let mut out = learned::encode(&learned(), STORE, checkpoint_facts().serial);
    assert!(out[CHUNK_KEPT..].iter().all(|b| *b == 0), "nothing is cut off");
    out.truncate(CHUNK_KEPT);
    out
}

/// Keys with every form of text.
pub(crate) fn keys() -> Vec<ObjectKey> {
    let slice = |rank, of| Slice::new(rank, of).expect("rank below of");
    let shards = [
        Shard::Whole,
        Shard::tensor_parallel(0, 1).expect("rank below of"),
        Shard::tensor_parallel(3, 8).expect("rank below of"),
        Shard::Rank {
            tp: Slice::ALL,
            pp: slice(1, 2),
            cp: slice(0, 4),
            dcp: slice(65_534, 65_535),
        },
        Shard::Heads { group: slice(2, 8), layer_from: 0, layer_to: 61 },
    ];
    let of = |(i, shard): (usize, Shard), role, pool: &str, component: &str| {
        let hash = PrefixHash(std::array::from_fn(|b| (b * 8 + i) as u8));
        ObjectKey::new(NAMESPACE, hash, role, pool, component, shard).expect("valid names")
    };
    let target = shards.into_iter().enumerate().map(|s| of(s, Role::Target, "kv", "k"));
    let draft =
        shards.into_iter().enumerate().map(|s| of(s, Role::Draft, "sliding-window.1_K", "v"));
    target.chain(draft).collect()
}

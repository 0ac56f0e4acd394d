//! A small store in an exact state, written with `layouts` only.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pagelith_layouts::align::{ALIGN, align_up};
use pagelith_layouts::checkpoint::{self, CheckpointFacts};
use pagelith_layouts::checksum::{self, BLOCK_BYTES};
use pagelith_layouts::footer::{self, FooterEntry, FooterFacts};
use pagelith_layouts::ids::{
    Generation, GroupId, Incarnation, NamespaceId, PrefixHash, SegmentId, SegmentOrder, Sequence,
    StoreId,
};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::manifest::{Manifest, Superblock};
use pagelith_layouts::names;
use pagelith_layouts::record::{self, GroupKind, MemberSpec, Record, RecordFacts, RecordKind};
use pagelith_layouts::segment::{self, SegmentIdentity};
use pagelith_layouts::shard::Shard;

pub const SEGMENT_BYTES: u64 = 512 << 10;
pub const SEGMENTS: u32 = 4;
pub const STORE: StoreId = StoreId([7; 16]);
const NAMESPACE: NamespaceId = NamespaceId([3; 16]);
const OBJECTS_MAX: u64 = 1000;
const NAMESPACES_MAX: u32 = 16;
/// Lengths of a record's two members: one of two blocks, one with a partial block.
pub const LENGTHS: [u64; 2] = [40_000, 5_000];

/// The store under construction.
pub struct Fixture {
    pub dirs: Vec<PathBuf>,
    pub manifest: Manifest,
    sequence: u64,
}

impl Fixture {
    /// An empty store in these directories.
    pub fn new(dirs: &[&Path]) -> Fixture {
        Fixture::with_segments(dirs, SEGMENTS)
    }

    /// As [`Fixture::new`], with this number of segments.
    pub fn with_segments(dirs: &[&Path], count: u32) -> Fixture {
        let superblock = Superblock {
            segment_bytes: SEGMENT_BYTES,
            capacity_bytes: 8 << 20,
            checkpoint_bytes: checkpoint::file_bytes(count.into(), OBJECTS_MAX),
            objects_max: OBJECTS_MAX,
            segment_count: count,
            dir_count: dirs.len() as u32,
            block_bytes: BLOCK_BYTES,
            namespaces_max: NAMESPACES_MAX,
            fingerprint_key: [9; 192],
            reserved: [0; 80],
        };
        let dirs: Vec<PathBuf> = dirs.iter().map(|d| d.to_path_buf()).collect();
        for (i, dir) in dirs.iter().enumerate() {
            std::fs::create_dir_all(dir).unwrap();
            let segments = (count as usize - i).div_ceil(dirs.len()) as u64;
            let file = File::create(dir.join(names::SEGMENTS)).unwrap();
            file.set_len(segments * SEGMENT_BYTES).unwrap();
        }
        for name in names::CHECKPOINTS {
            File::create(dirs[0].join(name)).unwrap().set_len(superblock.checkpoint_bytes).unwrap();
        }
        std::fs::write(dirs[0].join(names::LOCK), vec![0; ALIGN as usize]).unwrap();
        let fixture = Fixture { dirs, manifest: Manifest::new(STORE, superblock), sequence: 1 };
        fixture.write_manifest();
        fixture
    }

    pub fn manifest_path(&self, copy: usize) -> PathBuf {
        let dir = if copy == 0 { &self.dirs[0] } else { &self.dirs[self.dirs.len() - 1] };
        dir.join(names::MANIFESTS[copy])
    }

    /// Write both copies of the current manifest.
    pub fn write_manifest(&self) {
        for copy in 0..2 {
            std::fs::write(self.manifest_path(copy), self.manifest.copy()).unwrap();
        }
    }

    /// The segments file of a segment, and its offset in that.
    pub fn location(&self, id: u32) -> (PathBuf, u64) {
        let (dir, at) =
            names::segment_location(SegmentId(id), self.dirs.len() as u32, SEGMENT_BYTES);
        (self.dirs[dir].join(names::SEGMENTS), at)
    }

    pub fn write(&self, id: u32, offset: u64, bytes: &[u8]) {
        let (path, at) = self.location(id);
        File::options().write(true).open(path).unwrap().write_all_at(bytes, at + offset).unwrap();
    }

    /// The content of a segment.
    pub fn segment_bytes(&self, id: u32) -> Vec<u8> {
        let (path, at) = self.location(id);
        let mut bytes = vec![0; SEGMENT_BYTES as usize];
        File::open(path).unwrap().read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    /// Flip one bit of a segment.
    pub fn flip(&self, id: u32, offset: u64) {
        let (path, at) = self.location(id);
        flip(&path, at + offset);
    }

    /// Record a segment's next incarnation in the manifest, without a write to the segment.
    pub fn announce(&mut self, id: u32, incarnation: u64, order: u64) {
        self.manifest
            .set_segment(SegmentId(id), Incarnation(incarnation), SegmentOrder(order))
            .unwrap();
        self.write_manifest();
    }

    /// Write a segment: its incarnation, head, `records` groups of two objects, and a footer if
    /// `sealed`. Returns the offset of each record, and the end of the last.
    pub fn segment(
        &mut self,
        id: u32,
        incarnation: u64,
        order: u64,
        records: u32,
        sealed: bool,
    ) -> Vec<u64> {
        self.announce(id, incarnation, order);
        let (incarnation, order) = (Incarnation(incarnation), SegmentOrder(order));
        let identity = SegmentIdentity { store: STORE, segment: SegmentId(id), incarnation };
        self.write(id, 0, &segment::encode_head(identity, order, SEGMENT_BYTES));
        let mut entries: Vec<FooterEntry> = Vec::new();
        let mut offsets = vec![ALIGN];
        for _ in 0..records {
            let offset = offsets[offsets.len() - 1];
            let bytes = self.record(identity, offset);
            self.write(id, offset, &bytes);
            entries.extend(footer::entries_of(&Record::decode(&bytes).unwrap()));
            offsets.push(offset + bytes.len() as u64);
        }
        if sealed {
            let facts = FooterFacts {
                identity,
                order,
                min_sequence: Sequence(entries.first().map_or(u64::MAX, |e| e.sequence)),
                max_sequence: Sequence(entries.last().map_or(0, |e| e.sequence)),
                data_end: offsets[offsets.len() - 1],
            };
            let footer = footer::encode(&facts, &entries);
            self.write(id, SEGMENT_BYTES - footer.len() as u64, &footer);
        }
        offsets
    }

    /// Write a sealed segment that contains only the removal of one object.
    pub fn removal(&mut self, id: u32, order: u64) {
        self.announce(id, 1, order);
        let identity =
            SegmentIdentity { store: STORE, segment: SegmentId(id), incarnation: Incarnation(1) };
        let order = SegmentOrder(order);
        self.write(id, 0, &segment::encode_head(identity, order, SEGMENT_BYTES));
        let sequence = Sequence(self.sequence);
        self.sequence += 1;
        let facts = RecordFacts {
            identity,
            offset: ALIGN,
            kind: RecordKind::Tombstones,
            group_kind: GroupKind::Single,
            namespace: NAMESPACE,
            generation: Generation::FIRST,
            sequence,
            group: GroupId(sequence.0),
            base_group: GroupId(0),
            block_bytes: BLOCK_BYTES,
            depth: 0,
            reinserted: false,
        };
        let key =
            ObjectKey::new(NAMESPACE, PrefixHash([1; 32]), Role::Target, "kv", "k", Shard::Whole)
                .unwrap();
        let bytes =
            record::encode(&facts, &[MemberSpec { key, length: 0, checksums: &[] }]).unwrap();
        self.write(id, ALIGN, &bytes);
        let entries: Vec<_> = footer::entries_of(&Record::decode(&bytes).unwrap()).collect();
        let data_end = ALIGN + bytes.len() as u64;
        let min_sequence = Sequence(u64::MAX);
        let facts = FooterFacts { identity, order, min_sequence, max_sequence: sequence, data_end };
        let footer = footer::encode(&facts, &entries);
        self.write(id, SEGMENT_BYTES - footer.len() as u64, &footer);
    }

    /// A group of two objects, header and payload.
    fn record(&mut self, identity: SegmentIdentity, offset: u64) -> Vec<u8> {
        let sequence = self.sequence;
        self.sequence += 1;
        let hash = PrefixHash([sequence as u8; 32]);
        let key = |c| ObjectKey::new(NAMESPACE, hash, Role::Target, "kv", c, Shard::Whole).unwrap();
        let payload =
            |length: u64| -> Vec<u8> { (0..length).map(|i| (i + sequence) as u8).collect() };
        let payloads = LENGTHS.map(payload);
        let sums = payloads.each_ref().map(|p| -> Vec<_> {
            p.chunks(BLOCK_BYTES as usize).map(checksum::checksum).collect()
        });
        let facts = RecordFacts {
            identity,
            offset,
            kind: RecordKind::Data,
            group_kind: GroupKind::Base,
            namespace: NAMESPACE,
            generation: Generation::FIRST,
            sequence: Sequence(sequence),
            group: GroupId(sequence),
            base_group: GroupId(0),
            block_bytes: BLOCK_BYTES,
            depth: 0,
            reinserted: false,
        };
        let members = [0, 1].map(|i| MemberSpec {
            key: key(["k", "v"][i]),
            length: LENGTHS[i],
            checksums: &sums[i],
        });
        let mut bytes = record::encode(&facts, &members).unwrap();
        for p in payloads {
            bytes.extend(&p);
            bytes.resize(align_up(bytes.len() as u64) as usize, 0);
        }
        bytes
    }

    /// Write a checkpoint without entries that replays from `replay_from`.
    pub fn checkpoint(&self, which: usize, serial: u64, replay_from: u64) {
        let facts = CheckpointFacts {
            store: STORE,
            serial,
            sequence: Sequence(self.sequence),
            next_sequence: Sequence(self.sequence),
            replay_from: SegmentOrder(replay_from),
            segment_count: 0,
            entry_count: 0,
            chunk_count: 0,
            clean: true,
        };
        let path = self.dirs[0].join(names::CHECKPOINTS[which]);
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&checkpoint::encode_head(&facts), 0).unwrap();
    }
}

/// Flip the lowest bit of a byte of a file.
pub fn flip(path: &Path, offset: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

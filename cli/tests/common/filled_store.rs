//! A store filled by the engine with groups over several segments, some of them removed; and the
//! invariants that hold after any damage.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use pagelith::layouts::align::ALIGN;
use pagelith::layouts::ids::{NamespaceId, PrefixHash, SegmentId};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::manifest::{self, Manifest};
use pagelith::layouts::names;
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::record::{Record, RecordKind};
use pagelith::layouts::shard::Shard;
use pagelith::{Config, GetOutcome, GetSlice, MachineLimits, Options, PutSlice, Size, Store};

pub const SEGMENT_BYTES: u64 = 1 << 20;
/// Number of pages put; each page has a group of two objects.
pub const PAGES: u64 = 60;
pub const LENGTHS: [usize; 2] = [60_000, 5_000];
pub const CAPACITY_BYTES: u64 = 16 << 20;
pub const NAMESPACES_MAX: u32 = 8;

pub fn namespace(name: &str) -> NamespaceId {
    Namespace { model: name.into(), ..Namespace::default() }.id()
}

pub fn key(model: &str, page: u64, part: usize) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&page.to_le_bytes());
    ObjectKey::new(
        namespace(model),
        PrefixHash(hash),
        Role::Target,
        "kv",
        ["k", "v"][part],
        Shard::Whole,
    )
    .unwrap()
}

/// Content of the `round`-th put of an object.
pub fn bytes(page: u64, part: usize, round: u64) -> Vec<u8> {
    let seed = page * 977 + part as u64 * 31 + round * 7919;
    (0..LENGTHS[part] as u64).map(|i| (i * 7 + i / 256 + seed) as u8).collect()
}

/// A record on disk.
#[derive(Clone, Debug)]
pub struct RecordLocation {
    pub segment: SegmentId,
    pub offset: u64,
    pub kind: RecordKind,
    pub keys: Vec<ObjectKey>,
    pub bytes: u64,
}

/// The store.
pub struct FilledStore {
    pub dirs: Vec<PathBuf>,
    /// Pages that were removed.
    pub removed: Vec<u64>,
    _home: tempfile::TempDir,
}

impl FilledStore {
    /// Put all pages, remove every tenth, clear another namespace, flush; then close, or drop
    /// everything.
    pub fn new(dirs: usize, close: bool) -> FilledStore {
        let home = tempfile::tempdir().unwrap();
        let dirs = (0..dirs).map(|i| home.path().join(format!("d{i}"))).collect();
        let mut filled = FilledStore { dirs, removed: Vec::new(), _home: home };
        let store = filled.open();
        put(&store, "other", 1, 0);
        store.clear(namespace("other"), Options::default()).unwrap();
        for page in 0..PAGES {
            put(&store, "m", page, 0);
            if page % 10 == 9 {
                // Older pages, whose segments are sealed by then.
                let old = page / 2;
                store.remove(&[key("m", old, 0)], Options::default()).unwrap();
                filled.removed.push(old);
            }
            if page % 20 == 19 {
                flush(&store);
            }
        }
        flush(&store);
        if close {
            _ = store.close().unwrap()
        } else {
            store.abandon()
        }
        filled
    }

    /// A copy in other directories.
    pub fn copy(&self) -> FilledStore {
        let home = tempfile::tempdir().unwrap();
        let dirs: Vec<_> =
            (0..self.dirs.len()).map(|i| home.path().join(format!("d{i}"))).collect();
        for (from, to) in self.dirs.iter().zip(&dirs) {
            std::fs::create_dir(to).unwrap();
            for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
        FilledStore { dirs, removed: self.removed.clone(), _home: home }
    }

    pub fn config(&self) -> Config {
        let mut config = Config::default();
        config.namespaces_max = NAMESPACES_MAX;
        config.dram.bytes = Size::mib(2);
        config.ssd.bytes = Size::mib((CAPACITY_BYTES >> 20) as u32);
        config.ssd.dirs.clone_from(&self.dirs);
        config.ssd.segment_bytes = Some(Size::mib((SEGMENT_BYTES >> 20) as u32));
        config.ssd.checkpoint_segments = 0;
        config.index.max_objects = Some(1000);
        config
    }

    pub fn open(&self) -> Store {
        self.try_open().unwrap()
    }

    pub fn try_open(&self) -> pagelith::Result<Store> {
        let facts = MachineLimits::new(8 << 30, "test".into());
        Store::open(self.config().validate(&facts).unwrap())
    }

    /// Open the store and read everything. Asserts correct bytes, no removed or cleared object, and
    /// whole groups. Returns the missing pages.
    #[track_caller]
    pub fn missing(&self) -> Vec<u64> {
        self.missing_of(&self.removed)
    }

    /// As [`FilledStore::missing`], for a store from which these pages were removed.
    #[track_caller]
    pub fn missing_of(&self, removed: &[u64]) -> Vec<u64> {
        let store = self.open();
        assert!(
            !is_present(&store, &key("other", 1, 0), &bytes(1, 0, 0)),
            "a cleared object returned"
        );
        store.close().unwrap();
        self.missing_without_clears(removed)
    }

    /// As [`FilledStore::missing_of`], for a store that has lost its manifest. Only the manifest
    /// records clears, so cleared objects may return if they had been written.
    #[track_caller]
    pub fn missing_without_clears(&self, removed: &[u64]) -> Vec<u64> {
        let store = self.open();
        let mut missing = Vec::new();
        for page in 0..PAGES {
            let present =
                [0, 1].map(|part| is_present(&store, &key("m", page, part), &bytes(page, part, 0)));
            assert_eq!(present[0], present[1], "a part of a group page={page}");
            assert!(
                !present[0] || !removed.contains(&page),
                "a removed object returned page={page}"
            );
            if !present[0] && !removed.contains(&page) {
                missing.push(page);
            }
        }
        // The store accepts a new object.
        put(&store, "new", 1, 1);
        assert!(is_present(&store, &key("new", 1, 0), &bytes(1, 0, 1)));
        store.close().unwrap();
        missing
    }

    pub fn manifest(&self) -> Manifest {
        let copies = [0, 1].map(|copy| std::fs::read(self.manifest_path(copy)).unwrap());
        manifest::decode([&copies[0], &copies[1]]).unwrap().0
    }

    pub fn manifest_path(&self, copy: usize) -> PathBuf {
        let dir = if copy == 0 { self.dirs.first() } else { self.dirs.last() };
        dir.unwrap().join(names::MANIFESTS[copy])
    }

    pub fn checkpoint_path(&self, which: usize) -> PathBuf {
        self.dirs[0].join(names::CHECKPOINTS[which])
    }

    /// The file of a segment, and its offset in that.
    pub fn location(&self, id: SegmentId) -> (PathBuf, u64) {
        let (dir, at) = names::segment_location(id, self.dirs.len() as u32, SEGMENT_BYTES);
        (self.dirs[dir].join(names::SEGMENTS), at)
    }

    /// Used segments in log order.
    pub fn segments(&self) -> Vec<SegmentId> {
        let manifest = self.manifest();
        let ids = (0..manifest.superblock().segment_count).map(SegmentId);
        let mut used: Vec<_> = ids.filter(|id| !self.records(*id).is_empty()).collect();
        used.sort_by_key(|id| manifest.segment(*id).unwrap().1);
        used
    }

    /// Records of a segment's current incarnation, without those of the cleared namespace.
    pub fn records(&self, id: SegmentId) -> Vec<RecordLocation> {
        let manifest = self.manifest();
        let segment = self.segment_content(id);
        let mut found = Vec::new();
        let mut offset = ALIGN;
        while offset < SEGMENT_BYTES {
            let record = Record::decode(&segment[offset as usize..]);
            let Some(record) = record.ok().filter(|r| r.facts().identity.store == manifest.store())
            else {
                offset += ALIGN;
                continue;
            };
            let keys: Vec<ObjectKey> = record.members().map(|m| m.key).collect();
            let bytes = record.record_bytes();
            // Not deterministic: an object that is cleared at once is written only if the flusher
            // is fast.
            if keys.first().is_none_or(|key| key.namespace() != namespace("other")) {
                found.push(RecordLocation {
                    segment: id,
                    offset,
                    kind: record.facts().kind,
                    keys,
                    bytes,
                });
            }
            offset += bytes;
        }
        found
    }

    /// The content of a segment.
    pub fn segment_content(&self, id: SegmentId) -> Vec<u8> {
        let (path, at) = self.location(id);
        let mut segment = vec![0; SEGMENT_BYTES as usize];
        File::open(path).unwrap().read_exact_at(&mut segment, at).unwrap();
        segment
    }

    /// Overwrite bytes of a segment.
    pub fn write(&self, id: SegmentId, offset: u64, bytes: &[u8]) {
        let (path, at) = self.location(id);
        File::options().write(true).open(path).unwrap().write_all_at(bytes, at + offset).unwrap();
    }

    /// Flip a bit of a segment.
    pub fn flip(&self, id: SegmentId, offset: u64) {
        let (path, at) = self.location(id);
        super::fixture::flip(&path, at + offset);
    }
}

/// The pages of these keys.
pub fn pages(keys: &[ObjectKey]) -> Vec<u64> {
    let mut pages: Vec<u64> =
        keys.iter().map(|k| u64::from_le_bytes(*k.hash().0.first_chunk().unwrap())).collect();
    pages.dedup();
    pages
}

pub fn put(store: &Store, model: &str, page: u64, round: u64) {
    let objects = [0, 1].map(|part| bytes(page, part, round));
    let pieces = objects.each_ref().map(|b| [b.as_slice()]);
    let group = [0, 1].map(|part| PutSlice { key: key(model, page, part), pieces: &pieces[part] });
    store.put_groups(&[&group], Options::default()).remove(0).unwrap();
}

pub fn flush(store: &Store) {
    store.flush(Options::default()).unwrap();
}

/// Whether an object is present. Asserts that it has the content `expected`.
#[track_caller]
pub fn is_present(store: &Store, key: &ObjectKey, expected: &[u8]) -> bool {
    let mut to = vec![0; expected.len()];
    let get = GetSlice { key: *key, range: None, pieces: &mut [&mut to] };
    match store.get_batch(&mut [get], Options::default()).remove(0).unwrap() {
        GetOutcome::Hit { .. } => {
            assert!(to == expected, "wrong bytes key={key}");
            true
        }
        GetOutcome::Miss(_) => false,
    }
}

/// Zero a part of a file.
pub fn zero(path: &Path, offset: u64, len: usize) {
    File::options().write(true).open(path).unwrap().write_all_at(&vec![0; len], offset).unwrap();
}

//! Small stores that contain every structure, ready to be damaged: their contents, the places of
//! these, and the checks of the reopened store.

use std::collections::{BTreeMap, BTreeSet};

use pagelith::config::Promote;
use pagelith::layouts::align::ALIGN;
use pagelith::layouts::key::ObjectKey;
use pagelith::layouts::record::{GroupKind, Member, Record, RecordHead, RecordKind};
use pagelith::{AlignedBuf, Config, MachineLimits, Size, Store, ValidConfig};
use pagelith_sim::disk::{CrashMode, DiskSnapshot, SimDisk};
use pagelith_sim::env::SimWorld;

use super::expected::{ExpectedObjects, Observed, SECOND, sibling};

/// Length of a segment in bytes.
pub const SEGMENT: u64 = 1 << 20;
/// A page that no scene has.
const NEW_PAGE: u32 = 999;

/// The state that the process that wrote the store left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scene {
    /// One open segment, without a footer.
    Open,
    /// Sealed segments with footers and no checkpoint.
    Sealed,
    /// Closed: a checkpoint covers all segments. There is an older one in the other file.
    Closed,
}

/// A store of a scene.
pub struct BuiltStore {
    pub disk: DiskSnapshot,
    pub ledger: ExpectedObjects,
    pub scratch: AlignedBuf,
    pub records: Vec<LoggedRecord>,
}

/// A record of the log.
#[derive(Clone, Debug)]
pub struct LoggedRecord {
    /// Byte offset in the file of segments.
    pub at: u64,
    pub header_bytes: u64,
    /// Bytes of the header that are not padding.
    pub used_bytes: u64,
    /// Header and payloads.
    pub bytes: u64,
    /// Offset of each member's payload in the segments file, and its length.
    pub payloads: Vec<(u64, u64)>,
    pub kind: RecordKind,
    pub group: GroupKind,
    pub keys: Vec<ObjectKey>,
    /// Its objects, and objects attached to them, that cannot be read without it.
    pub needed_by: BTreeSet<ObjectKey>,
}

/// The configuration of every scene.
pub fn config() -> ValidConfig {
    // Many structures are damaged at once, to check each by itself.
    config_of(12, 1_000_000)
}

/// The same with an SSD tier of `ssd_mib` MiB, in which `quarantine_after` failures quarantine a
/// segment.
pub fn config_of(ssd_mib: u32, quarantine_after: u32) -> ValidConfig {
    let mut c = Config::default();
    c.deadline_ms = 2_000;
    c.namespaces_max = 8;
    c.dram.bytes = Size::ZERO;
    c.dram.promote = Promote::Never;
    c.ssd.bytes = Size::mib(ssd_mib);
    c.ssd.dirs = vec!["sim0".into()];
    c.ssd.segment_bytes = Some(Size::mib(1));
    c.ssd.write_bytes = Size::kib(256);
    c.ssd.write_depth = 4;
    c.ssd.checkpoint_segments = 0;
    c.ssd.quarantine_after = quarantine_after;
    c.staging.bytes = Size::mib(1);
    c.staging.chunk_bytes = Size::kib(64);
    c.index.max_objects = Some(256);
    let facts = MachineLimits::new(1 << 40, "test".into());
    c.validate(&facts).expect("a valid configuration")
}

pub fn open(world: &SimWorld) -> Store {
    Store::open_in(config(), world.env()).expect("a store on a device that is well")
}

/// The puts, removes and clears of one process.
fn life(ledger: &mut ExpectedObjects, store: &Store, life: u32) {
    let page = |i: u32| life * 20 + i;
    for i in 0..8 {
        ledger.put(store, page(i), None, &["x"]);
    }
    for i in 8..12 {
        ledger.put(store, page(i), None, &["k", "v"]);
    }
    for i in [8, 9] {
        ledger.put(store, page(i), Some("k"), &["m", "n"]);
    }
    ledger.put(store, SECOND + page(0), None, &["k", "v"]);
    ledger.put(store, SECOND + page(1), None, &["x"]);
    ledger.put(store, page(12), None, &["x"]);
    ledger.put(store, page(13), None, &["k", "v"]);
    ledger.put(store, page(14), None, &["x"]);
    ledger.flush(store);
    // One object removed, a group removed, one replaced by other bytes, and one of an earlier life
    // removed.
    ledger.remove(store, page(12), "x");
    ledger.remove(store, page(13), "k");
    ledger.remove(store, page(14), "x");
    ledger.put(store, page(14), None, &["x"]);
    if life > 0 {
        ledger.remove(store, page(7) - 20, "x");
    }
    if life < 2 {
        ledger.clear(store, SECOND);
        ledger.put(store, SECOND + page(1), None, &["x"]);
    }
    ledger.flush(store);
}

impl Scene {
    /// Makes the store.
    pub fn make(self) -> BuiltStore {
        self.build(0)
    }

    /// Makes it with other bytes in every object, and otherwise identical.
    pub fn twin(self) -> BuiltStore {
        self.build(1 << 16)
    }

    fn build(self, salt: usize) -> BuiltStore {
        let world = SimWorld::new(7);
        let mut ledger = ExpectedObjects { salt, ..ExpectedObjects::default() };
        let lives = if self == Scene::Open { 1 } else { 4 };
        for n in 0..lives {
            let store = open(&world);
            life(&mut ledger, &store, n);
            match self {
                Scene::Closed => _ = store.close().expect("a device that is well"),
                Scene::Open | Scene::Sealed => drop(store),
            }
            ledger.died();
            // Only objects covered by a flush remain.
            world.crash(CrashMode::DropAll);
        }
        if self == Scene::Sealed {
            // The last segment gets its footer from the process that recovers it.
            drop(open(&world));
            world.crash(CrashMode::KeepAll);
        }
        assert_eq!(ledger.errors, Vec::<String>::new());
        assert!(ledger.things.values().all(|t| t.must || t.allowed.is_empty()), "all is known");
        let scratch = AlignedBuf::new(1 << 17).expect("memory");
        let mut made =
            BuiltStore { disk: world.disk.snapshot(), ledger, scratch, records: Vec::new() };
        made.records = made.find_records(&world.disk);
        let seen = made.reopen(|_| ());
        assert!(
            seen.look.lost.is_empty() && seen.look.returned.is_empty() && seen.is_whole(),
            "{seen:?}"
        );
        made
    }
}

/// The observations of a store opened on damaged files.
#[derive(Debug, Default)]
pub struct Seen {
    pub look: Observed,
    /// The error of a failed open.
    pub refused: Option<String>,
    pub footers: u32,
    pub scanned: u32,
    pub mended: u32,
    pub from_checkpoint: bool,
    pub refused_checkpoints: u32,
}

impl Seen {
    /// Nothing was wrong.
    pub fn is_whole(&self) -> bool {
        self.look.wrong.is_empty() && self.refused.is_none()
    }
}

impl BuiltStore {
    /// Segments that hold records.
    pub fn segments(&self) -> BTreeSet<u64> {
        self.records.iter().map(|r| r.at / SEGMENT).collect()
    }

    fn find_records(&self, disk: &SimDisk) -> Vec<LoggedRecord> {
        let len = disk.peek(0, "segments", 0, 0).map(|_| config().ssd_bytes() / SEGMENT * SEGMENT);
        let mut records = Vec::new();
        // Nothing wraps in a scene: every block that decodes as a record is one.
        for at in (0..len.expect("the file")).step_by(ALIGN as usize) {
            let Some(head) = disk.peek(0, "segments", at, ALIGN as usize) else { break };
            let Ok(record) = Record::decode(&head) else { continue };
            let facts = record.facts();
            let blocks: usize = record.members().map(|m| record.checksums(&m).len()).sum();
            records.push(LoggedRecord {
                at,
                header_bytes: record.header_bytes(),
                used_bytes: (RecordHead::BYTES
                    + record.member_count() * Member::BYTES
                    + blocks * 16) as u64,
                payloads: record.members().map(|m| (at + m.payload_offset, m.length)).collect(),
                bytes: record.record_bytes(),
                kind: facts.kind,
                group: facts.group_kind,
                keys: record.members().map(|m| m.key).collect(),
                needed_by: BTreeSet::new(),
            });
        }
        let mut last = BTreeMap::new();
        for (i, record) in records.iter().enumerate().filter(|(_, r)| r.kind == RecordKind::Data) {
            record.keys.iter().for_each(|key| _ = last.insert(*key, i));
        }
        for (key, i) in &last {
            if !self.ledger.things[key].must {
                continue;
            }
            records[*i].needed_by.insert(*key);
            if records[*i].group == GroupKind::Attached {
                records[last[&sibling(key, "k")]].needed_by.insert(*key);
            }
        }
        records
    }

    /// A copy of the disk, for inspection.
    pub fn on_disk(&self) -> SimDisk {
        let world = SimWorld::new(8);
        world.disk.restore(&self.disk);
        world.disk.clone()
    }

    /// Damages a copy of the disk, opens the store, reads everything, and checks that it accepts
    /// new objects.
    pub fn reopen(&mut self, damage: impl FnOnce(&SimDisk)) -> Seen {
        let world = SimWorld::new(8);
        world.disk.restore(&self.disk);
        damage(&world.disk);
        let store = match Store::open_in(config(), world.env()) {
            Ok(store) => store,
            Err(error) => return Seen { refused: Some(error.to_string()), ..Seen::default() },
        };
        let mut look = self.ledger.observe(&store, &mut self.scratch);
        let mut new = ExpectedObjects::default();
        new.put(&store, NEW_PAGE, None, &["k", "v"]);
        new.flush(&store);
        let again = new.observe(&store, &mut self.scratch);
        if !new.errors.is_empty() || !again.lost.is_empty() || !again.wrong.is_empty() {
            look.wrong.push(format!("it does not take new things {:?} {again:?}", new.errors));
        }
        let report = store.opened();
        let seen = Seen {
            look,
            refused: None,
            footers: report.footers,
            scanned: report.scanned_segments,
            mended: report.mended_blocks,
            from_checkpoint: report.from_checkpoint,
            refused_checkpoints: report.refused_checkpoints,
        };
        drop(store);
        world.crash(CrashMode::KeepAll);
        seen
    }
}

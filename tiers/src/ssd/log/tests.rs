//! The log on a device that completes record writes and syncs only when the test requests it, and
//! all other operations immediately.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pagelith_io::disk::{Disk, DiskFacts, IoBackend};
use pagelith_io::fault::{FaultKind, FaultOp};
use pagelith_layouts::checksum::{BLOCK_BYTES, checksum};
use pagelith_layouts::client_names::opaque_key;
use pagelith_layouts::ids::{GroupId, Sequence, StoreId};
use pagelith_layouts::record::{GroupKind, RecordKind};

use super::*;
use crate::ssd::append::RecordMember;
use crate::ssd::volume::VolumeGeometry;

const SEGMENTS: FileId = FileId(9);
const NAMESPACE: NamespaceId = NamespaceId([7; 16]);
/// Length of an object and its header. Each write has one record.
const RECORD: u64 = 8192;
const DEPTH: usize = 2;

#[derive(Default)]
struct State {
    /// Submitted and not completed operations, in order.
    held: Vec<(u64, Op)>,
    /// Number of operations to complete next.
    ends: usize,
    /// Whether they fail.
    fails: bool,
    /// Most operations in flight, if limited.
    depth: Option<usize>,
}

#[derive(Clone, Default)]
struct Device(Arc<Mutex<State>>);

impl Device {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Offsets of the record writes in flight.
    fn writes(&self) -> Vec<u64> {
        let offset = |(_, op): &(u64, Op)| match op {
            Op::Write { offset, .. } => Some(*offset),
            Op::Read { .. } | Op::Sync { .. } => None,
        };
        self.state().held.iter().filter_map(offset).collect()
    }

    fn syncs(&self) -> usize {
        self.state().held.iter().filter(|(_, op)| matches!(op, Op::Sync { .. })).count()
    }
}

impl Queue for Device {
    fn room(&self) -> usize {
        let state = self.state();
        state.depth.map_or(usize::MAX, |depth| depth - state.held.len())
    }

    fn in_flight(&self) -> usize {
        self.state().held.len()
    }

    fn submit(&mut self, token: u64, op: Op) -> Result<(), Op> {
        if self.room() == 0 {
            return Err(op);
        }
        self.state().held.push((token, op));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        let mut state = self.state();
        let State { held, ends, fails, .. } = &mut *state;
        let of_segments = |op: &Op| match op {
            Op::Read { file, .. } | Op::Write { file, .. } | Op::Sync { file } => *file == SEGMENTS,
        };
        let over = held.extract_if(.., |(_, op)| {
            let over = !of_segments(op) || *ends > 0;
            *ends -= usize::from(over && of_segments(op));
            over
        });
        for (token, op) in over {
            let fault =
                IoFault::found(FaultKind::Device, FaultOp::Write, "segments", 0, "as planted");
            let result = if *fails && of_segments(&op) { Err(fault) } else { Ok(()) };
            done.push(Completion { token, result, op });
        }
    }

    fn wait(&mut self, done: &mut Vec<Completion>, _timeout: Duration) {
        self.poll(done);
    }
}

impl Disk for Device {
    fn facts(&self) -> DiskFacts {
        DiskFacts {
            backend: IoBackend::Blocking,
            direct: true,
            memory_align: 4096,
            offset_align: 4096,
            parts_max: 64,
            reason: String::new(),
        }
    }

    fn dirs(&self) -> usize {
        1
    }

    fn dir_name(&self, _dir: usize) -> String {
        String::new()
    }

    fn list(&self, _dir: usize) -> Result<Vec<(String, u64)>, IoFault> {
        Ok(Vec::new())
    }

    fn create(&self, _dir: usize, name: &str, _len: u64) -> Result<FileId, IoFault> {
        Err(IoFault::found(FaultKind::Unsupported, FaultOp::Open, name, 0, "not here"))
    }

    fn open(&self, _dir: usize, name: &str) -> Result<(FileId, u64), IoFault> {
        Err(IoFault::found(FaultKind::Unsupported, FaultOp::Open, name, 0, "not here"))
    }

    fn remove(&self, _dir: usize, _name: &str) -> Result<(), IoFault> {
        Ok(())
    }

    fn check_names(&self) -> Result<(), IoFault> {
        Ok(())
    }

    fn queue(&self, _depth: usize) -> Result<Box<dyn Queue>, IoFault> {
        Ok(Box::new(self.clone()))
    }
}

struct Rig {
    device: Device,
    log: Log,
}

impl Rig {
    fn new() -> Rig {
        let device = Device::default();
        let geometry = VolumeGeometry::fit(64 << 20, 1 << 20, 1, 1000, 100).expect("it fits");
        let store = StoreId([1; 16]);
        let volume = Volume {
            disk: Arc::new(device.clone()),
            geometry,
            store,
            manifests: [FileId(1), FileId(2)],
            checkpoints: [FileId(3), FileId(4)],
            segments: vec![SEGMENTS],
        };
        let manifest = Manifest::new(store, geometry.superblock([2; 192]));
        let config = LogConfig { write_bytes: RECORD, write_depth: DEPTH };
        let mut rig =
            Rig { log: Log::new(Arc::new(volume), manifest, config).expect("a queue"), device };
        rig.prepare(0);
        rig
    }

    fn prepare(&mut self, segment: u32) {
        let order = SegmentOrder(1 + u64::from(segment));
        self.log.prepare(SegmentId(segment), Incarnation(1), order);
        for _ in 0..10 {
            self.pump();
        }
        assert!(self.log.has_spare());
    }

    fn pump(&mut self) -> Vec<LogEvent> {
        let mut events = Vec::new();
        self.log.pump(None, &mut events);
        events
    }

    /// Append objects while the log has room; returns their number.
    fn fill(&mut self, from: u64) -> u64 {
        let mut id = from;
        while self.log.has_room() {
            self.append(id);
            id += 1;
        }
        id - from
    }

    fn append(&mut self, id: u64) {
        let mut payload = AlignedBuf::new(4096).expect("memory");
        payload.fill(id as u8);
        let member = RecordMember {
            key: opaque_key(NAMESPACE, &id.to_le_bytes()),
            length: 4096,
            checksums: payload.chunks(BLOCK_BYTES as usize).map(checksum).collect(),
        };
        let record = NewRecord {
            id,
            kind: RecordKind::Data,
            group_kind: GroupKind::Single,
            namespace: NAMESPACE,
            generation: Generation::FIRST,
            sequence: Sequence(id),
            group: GroupId(id),
            base_group: GroupId(0),
            depth: 0,
            reinserted: false,
            members: vec![member],
            payload: vec![payload.into_part()],
        };
        self.log.append(record).expect("a segment is open");
    }

    /// Complete `count` operations and pump the log for each of them; returns its events.
    fn end(&mut self, count: usize, succeed: bool) -> Vec<LogEvent> {
        (self.device.state().ends, self.device.state().fails) = (count, !succeed);
        (0..count.max(1) + 2).flat_map(|_| self.pump()).collect()
    }
}

fn written(events: &[LogEvent]) -> Vec<u64> {
    let ids = |event: &LogEvent| match event {
        LogEvent::Written(records) => records.iter().map(|(id, _)| *id).collect(),
        _ => Vec::new(),
    };
    events.iter().flat_map(ids).collect()
}

#[test]
fn queued_and_submitted_writes_are_each_limited_to_depth() {
    let mut rig = Rig::new();
    assert_eq!(rig.fill(1), 2 * DEPTH as u64);
    rig.pump();
    let first = rig.device.writes();
    assert_eq!(first.len(), DEPTH);
    assert_eq!(rig.log.in_flight(), 2 * DEPTH);

    // One pump reports one record write, but submits as many queued writes as have completed.
    (rig.device.state().ends, rig.device.state().fails) = (DEPTH, false);
    let events = rig.pump();
    assert_eq!(written(&events), [1], "one at a time: {events:?}");
    let then = rig.device.writes();
    assert_eq!(then.len(), DEPTH);
    assert!(first.iter().max() < then.iter().min(), "in order: {first:?} {then:?}");

    // A lower limit takes effect as writes complete.
    assert!(rig.fill(10) > 0);
    rig.log.limit_writes(1);
    assert_eq!(rig.fill(20), 0);
    rig.end(1, true);
    assert_eq!(rig.device.writes().len(), 1);
    rig.end(1, true);
    assert_eq!(rig.device.writes().len(), 1);
    rig.log.limit_writes(DEPTH);
    rig.end(0, true);
    assert_eq!(rig.device.writes().len(), DEPTH);
}

#[test]
fn sync_covers_queued_writes() {
    let mut rig = Rig::new();
    let count = rig.fill(1);
    let asked = rig.log.sync();
    let mut all = rig.end(DEPTH, true);
    assert_eq!(
        (rig.device.writes().len(), rig.device.syncs()),
        (DEPTH, 0),
        "a sync now would cover half of them"
    );
    all.extend(rig.end(DEPTH, true));
    assert_eq!((rig.device.writes().len(), rig.device.syncs()), (0, 1));
    assert_eq!(written(&all), (1..=count).collect::<Vec<_>>());

    let durable = |event: &LogEvent| match event {
        LogEvent::Durable(records) => records.len(),
        _ => 0,
    };
    assert_eq!(all.iter().map(durable).sum::<usize>(), 0);
    let events = rig.end(1, true);
    assert_eq!(events.iter().map(durable).sum::<usize>() as u64, count, "{events:?}");
    assert!(
        events
            .iter()
            .any(|event| matches!(event, LogEvent::Synced { id, durable: true } if *id == asked))
    );
    assert!(rig.log.idle());
}

#[test]
fn queued_writes_are_dropped_after_failed_sync() {
    let mut rig = Rig::new();
    rig.fill(1);
    rig.log.sync();
    rig.end(DEPTH, true);
    rig.end(DEPTH, true);
    assert_eq!(rig.device.syncs(), 1);
    // After the sync began: two writes in flight and two queued. The sync fails; the writes in
    // flight succeed.
    let before = rig.log.written().0;
    let later = rig.fill(10);
    assert_eq!(later, 2 * DEPTH as u64);
    rig.pump();
    assert_eq!(rig.device.writes().len(), DEPTH);
    // And one record whose write is not submitted.
    rig.log.config.write_bytes = 2 * RECORD;
    rig.append(14);
    let events = rig.end(1, false);
    let unwritten = |event: &LogEvent| match event {
        LogEvent::Unwritten(ids, _) => ids.clone(),
        _ => Vec::new(),
    };
    let ids: Vec<Vec<u64>> = events.iter().map(unwritten).filter(|ids| !ids.is_empty()).collect();
    assert_eq!(ids, [vec![12, 13, 14]], "in order, in one event: {events:?}");
    let submitted = rig.log.written().0 - before;
    assert_eq!(submitted, DEPTH as u64 * RECORD, "dropped writes are not counted");
    assert_eq!(rig.device.writes().len(), DEPTH);
    let events = rig.end(DEPTH, true);
    assert!(rig.device.writes().is_empty(), "nothing is written after the failed sync");
    assert!(
        events.iter().any(|event| matches!(event, LogEvent::Sealed { has_footer: false, .. })),
        "{events:?}"
    );

    // Dropped writes do not delay a later sync.
    assert!(rig.log.resume_after_sync_fault());
    rig.prepare(1);
    rig.fill(20);
    rig.log.sync();
    rig.end(DEPTH, true);
    rig.end(DEPTH, true);
    let events = rig.end(1, true);
    assert!(
        events.iter().any(|event| matches!(event, LogEvent::Synced { durable: true, .. })),
        "{events:?}"
    );
}

#[test]
fn newest_written_survives_sealing_of_its_segment() {
    let mut rig = Rig::new();
    assert_eq!(rig.log.newest_written(), None);
    rig.append(1);
    rig.log.seal_open();
    for _ in 0..10 {
        assert_eq!(rig.log.newest_written(), Some(SegmentOrder(1)));
        rig.end(1, true);
    }
    assert_eq!(
        (rig.log.oldest_unsealed(), rig.log.newest_written()),
        (None, Some(SegmentOrder(1)))
    );
    // The spare segment has no record yet.
    rig.prepare(1);
    assert_eq!(rig.log.newest_written(), Some(SegmentOrder(1)));
    rig.append(2);
    assert_eq!(rig.log.newest_written(), Some(SegmentOrder(2)));
}

#[test]
fn operations_beyond_depth_of_hung_device_wait_without_their_caller() {
    let mut rig = Rig::new();
    rig.device.state().depth = Some(DEPTH);
    for tag in 0..DEPTH as u64 {
        rig.log.submit(tag, Op::Sync { file: SEGMENTS }).expect("room");
    }

    // The owner's operations fill the queue and do not complete. All calls return.
    rig.append(1);
    rig.pump();
    assert!(rig.log.submit(9, Op::Sync { file: SEGMENTS }).is_err());
    assert!(rig.device.writes().is_empty());
    assert_eq!(rig.log.in_flight(), DEPTH + 1);

    // The first completion makes room for the record, not for another operation of the owner.
    (rig.device.state().ends, rig.device.state().fails) = (1, false);
    rig.pump();
    assert_eq!(rig.device.writes().len(), 1);
    assert!(rig.log.submit(9, Op::Sync { file: SEGMENTS }).is_err());
    assert_eq!(written(&rig.end(DEPTH, true)), [1]);
    assert!(rig.log.idle());
}

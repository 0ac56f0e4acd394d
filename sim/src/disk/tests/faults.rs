//! Planned faults.

use pagelith_io::disk::{Disk, Op};
use pagelith_io::fault::{FaultKind, FaultOp};

use super::{Fixture, read, write};
use crate::disk::{CrashMode, FaultPlan};

fn fail(op: FaultOp, nth: u64, kind: FaultKind) -> FaultPlan {
    FaultPlan::Fail { op, nth, kind }
}

#[test]
fn planned_failure_strikes_nth_operation_once() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.disk.inject(fail(FaultOp::Read, 2, FaultKind::Device));
    b.disk.inject(fail(FaultOp::Read, 4, FaultKind::Short));
    b.write(0, 1, 1);
    let verdicts: Vec<_> = (0..5).map(|_| b.run(read(file, 0, 1))).collect();
    assert_eq!(verdicts, [Ok(()), Err(FaultKind::Device), Ok(()), Err(FaultKind::Short), Ok(())]);
}

#[test]
fn failed_read_fills_first_half() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.write(0, 1, 1);
    b.disk.inject(fail(FaultOp::Read, 1, FaultKind::Short));
    b.submit(1, read(file, 0, 1));
    let done = b.finish().pop().expect("one completion");
    assert_eq!(
        done.result.map_err(|f| (f.kind, f.offset, f.path)),
        Err((FaultKind::Short, 0, "sim0/f".into()))
    );
    let parts = done.op.into_parts();
    assert_eq!((parts[0].bytes()[2047], parts[0].bytes()[2048]), (1, 0xEE));
}

#[test]
fn failed_write_leaves_old_and_new_sectors() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.write(0, 4, 1);
    b.disk.inject(fail(FaultOp::Write, 1, FaultKind::NoSpace));
    assert_eq!(b.run(write(file, 0, 4, 2)), Err(FaultKind::NoSpace));
    let bytes = b.disk.peek(0, "f", 0, 4 * 4096).expect("four blocks");
    let new = bytes.chunks(512).filter(|s| s.iter().all(|b| *b == 2)).count();
    let old = bytes.chunks(512).filter(|s| s.iter().all(|b| *b == 1)).count();
    assert!(new + old == 32 && new > 4 && old > 4, "new={new} old={old}");
}

#[test]
fn sync_after_failed_sync_does_not_cover_its_data() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.write(0, 1, 1);
    b.disk.inject(fail(FaultOp::Sync, 1, FaultKind::Device));
    assert_eq!(b.run(Op::Sync { file }), Err(FaultKind::Device));
    b.write(1, 1, 2);
    b.sync();
    assert_eq!(b.block(0), 1, "reads still see it");
    b.disk.crash(CrashMode::DropAll, 1);
    assert_eq!([b.block(0), b.block(1)], [0, 2]);
}

#[test]
fn sector_of_failed_sync_never_replaces_synced_one() {
    for seed in 0..100 {
        let mut b = Fixture::new(seed);
        let file = b.file;
        b.write(0, 2, 1);
        b.disk.inject(fail(FaultOp::Sync, 1, FaultKind::Device));
        assert_eq!(b.run(Op::Sync { file }), Err(FaultKind::Device));
        b.write(0, 1, 2);
        b.sync();
        b.disk.crash(CrashMode::Random, seed);
        assert_eq!(b.block(0), 2, "seed={seed}");
    }
}

#[test]
fn damage_at_rest_changes_live_and_durable_bytes() {
    let mut b = Fixture::new(1);
    b.write(0, 1, 1);
    b.sync();
    b.write(0, 1, 3);
    let name = || "f".to_string();
    b.disk.inject(FaultPlan::FlipBit { dir: 0, name: name(), offset: 9, bit: 7 });
    b.disk.inject(FaultPlan::Overwrite { dir: 0, name: name(), offset: 4094, bytes: vec![7; 4] });
    let bytes = |at| b.disk.peek(0, "f", at, 4).expect("four bytes");
    assert_eq!(
        (bytes(8), bytes(4092), bytes(4096)),
        (vec![3, 0x83, 3, 3], vec![3, 3, 7, 7], vec![7, 7, 0, 0])
    );
    let fork = b.disk.snapshot();
    b.disk.crash(CrashMode::DropAll, 1);
    assert_eq!((bytes(8), bytes(4092)), (vec![1, 0x81, 1, 1], vec![1, 1, 7, 7]));
    // The unsynced copy is damaged too: a sync does not heal it.
    b.disk.restore(&fork);
    let mut b = b.reopen();
    b.sync();
    b.disk.crash(CrashMode::DropAll, 1);
    assert_eq!(b.disk.peek(0, "f", 8, 2), Some(vec![3, 0x83]));
}

#[test]
#[should_panic(expected = "missing file file=sim0/g")]
fn damage_to_absent_file_panics() {
    Fixture::new(1).disk.inject(FaultPlan::FlipBit {
        dir: 0,
        name: "g".to_string(),
        offset: 0,
        bit: 0,
    });
}

#[test]
fn create_on_full_disk_fails_and_leaves_nothing() {
    let b = Fixture::new(1);
    let before = b.disk.ops_done();
    b.disk.inject(FaultPlan::Capacity { bytes: 20 * 4096 });
    assert_eq!(b.process.create(0, "g", 5 * 4096).map_err(|f| f.kind), Err(FaultKind::NoSpace));
    assert_eq!((b.disk.names(0), b.disk.ops_done()), (vec!["f".to_string()], before));
    b.process.create(0, "h", 4 * 4096).expect("exactly the room that is left");
    b.process.remove(0, "f").expect("own file");
    b.process.create(0, "g", 5 * 4096).expect("room again");
}

#[test]
fn control_operations_fail_when_planned() {
    let b = Fixture::new(1);
    b.disk.inject(fail(FaultOp::Create, 1, FaultKind::Exhausted));
    b.disk.inject(fail(FaultOp::List, 1, FaultKind::Device));
    b.disk.inject(fail(FaultOp::Queue, 1, FaultKind::Unsupported));
    assert_eq!(b.process.create(0, "g", 4096).map_err(|f| f.kind), Err(FaultKind::Exhausted));
    assert_eq!(b.process.list(0).map_err(|f| f.kind), Err(FaultKind::Device));
    assert_eq!(b.process.queue(1).err().map(|f| f.kind), Some(FaultKind::Unsupported));
    assert_eq!(b.process.list(0), Ok(vec![("f".to_string(), 16 * 4096)]));
}

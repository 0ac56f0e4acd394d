//! Data covered by a sync, and what each kind of crash leaves.

use pagelith_io::disk::{Disk, Op};
use pagelith_io::fault::FaultOp;

use super::{Fixture, LONG, drain, write};
use crate::disk::CrashMode;

const POWER_CUTS: [CrashMode; 2] = [CrashMode::DropAll, CrashMode::Random];

#[test]
fn synced_bytes_survive_every_crash_mode() {
    for seed in 0..100 {
        for mode in [CrashMode::KeepAll, CrashMode::DropAll, CrashMode::Random] {
            let mut b = Fixture::new(seed);
            b.write(0, 4, 1);
            b.write(2, 4, 2);
            b.sync();
            assert_eq!(b.disk.unsynced_sectors(), 0);
            b.disk.crash(mode, seed);
            assert_eq!(
                [0, 1, 2, 3, 4, 5, 6].map(|n| b.block(n)),
                [1, 1, 2, 2, 2, 2, 0],
                "{mode:?} seed={seed}"
            );
        }
    }
}

#[test]
fn unsynced_bytes_survive_kill_9_but_not_power_cut() {
    let mut b = Fixture::new(1);
    b.write(0, 1, 1);
    b.disk.crash(CrashMode::KeepAll, 1);
    assert_eq!(b.block(0), 1);
    b.disk.crash(CrashMode::DropAll, 1);
    assert_eq!(b.block(0), 0, "kill -9 made an unsynced write durable");
}

#[test]
fn next_process_sync_covers_writes_of_killed_process() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.write(0, 1, 1);
    // Executed, but its completion never reached the process.
    b.disk.hold(FaultOp::Write, None);
    b.submit(1, write(file, 1, 1, 2));
    b.queue.wait(&mut Vec::new(), LONG);
    b.disk.crash(CrashMode::KeepAll, 1);
    let mut b = b.reopen();
    b.sync();
    b.disk.crash(CrashMode::DropAll, 1);
    assert_eq!([b.block(0), b.block(1)], [1, 2]);
}

#[test]
fn write_not_returned_before_sync_is_not_covered() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.write(0, 1, 1);
    // In flight when the sync is submitted, and executed before it.
    b.submit(1, write(file, 1, 1, 2));
    b.submit(2, Op::Sync { file });
    let tokens: Vec<u64> = b.finish().iter().map(|c| c.token).collect();
    assert_eq!(tokens, [1, 2], "delivered in the order of submission");
    b.disk.crash(CrashMode::DropAll, 1);
    assert_eq!([b.block(0), b.block(1)], [1, 0]);
}

#[test]
fn held_completion_is_not_covered_until_returned() {
    let mut b = Fixture::new(1);
    let file = b.file;
    let mut syncs = b.process.queue(4).expect("a live process");
    b.disk.hold(FaultOp::Write, Some("f"));
    b.submit(1, write(file, 0, 1, 1));
    let mut done = Vec::new();
    b.queue.wait(&mut done, LONG);
    assert_eq!((done.len(), b.disk.held(), b.block(0)), (0, 1, 1), "executed, and kept back");
    syncs.submit(2, Op::Sync { file }).expect("room");
    drain(syncs.as_mut());
    let early = b.disk.snapshot();
    b.disk.release();
    assert_eq!(b.finish().len(), 1);
    syncs.submit(3, Op::Sync { file }).expect("room");
    drain(syncs.as_mut());
    // A sync on another queue of the disk covers it, once its completion was returned.
    b.disk.crash(CrashMode::DropAll, 1);
    assert_eq!(b.block(0), 1);
    b.disk.restore(&early);
    b.disk.crash(CrashMode::DropAll, 1);
    assert_eq!(b.block(0), 0);
    // After a restore its writer is dead, and the next process's sync covers it.
    b.disk.restore(&early);
    let mut b = b.reopen();
    b.sync();
    b.disk.crash(CrashMode::DropAll, 1);
    assert_eq!(b.block(0), 1);
}

#[test]
fn sync_covers_only_its_own_file() {
    let mut b = Fixture::new(1);
    let other = b.process.create(0, "g", 4096).expect("room on the disk");
    b.write(0, 1, 1);
    b.run(Op::Sync { file: other }).expect("a sync");
    b.disk.crash(CrashMode::DropAll, 1);
    assert_eq!(b.block(0), 0);
}

#[test]
fn create_and_remove_are_durable_on_return() {
    for mode in POWER_CUTS {
        let b = Fixture::new(1);
        b.process.create(0, "g", 8192).expect("room on the disk");
        b.process.remove(0, "f").expect("own file");
        b.disk.crash(mode, 1);
        let after = b.disk.connect();
        assert_eq!(after.list(0), Ok(vec![("g".to_string(), 8192)]));
        assert_eq!(b.disk.peek(0, "g", 0, 8192), Some(vec![0; 8192]));
    }
}

#[test]
fn random_power_cut_decides_per_sector() {
    let (mut kept, mut lost, mut garbage, mut torn) = (0, 0, 0, 0);
    for seed in 0..200 {
        let mut b = Fixture::new(seed);
        b.write(0, 4, 1);
        b.sync();
        b.write(1, 2, 2);
        b.disk.crash(CrashMode::Random, seed);
        assert_eq!([b.block(0), b.block(3)], [1, 1], "synced neighbours changed seed={seed}");
        let bytes = b.disk.peek(0, "f", 4096, 8192).expect("two blocks");
        let sectors: Vec<&[u8]> = bytes.chunks(512).collect();
        let count = |byte: u8| sectors.iter().filter(|s| s.iter().all(|b| *b == byte)).count();
        let (new, old) = (count(2), count(1));
        kept += usize::from(new == 16);
        lost += usize::from(old == 16);
        garbage += 16 - new - old;
        torn += usize::from(new > 0 && old > 0);
    }
    assert!(kept > 20 && lost > 20 && torn > 20, "kept={kept} lost={lost} torn={torn}");
    assert!(garbage > 20 && garbage < 200, "garbage={garbage}");
}

#[test]
fn random_power_cut_ignores_order_of_unsynced_writes() {
    let (mut first_only, mut second_only) = (0, 0);
    for seed in 0..100 {
        let mut b = Fixture::new(seed);
        b.write(0, 1, 1);
        b.write(1, 1, 2);
        b.disk.crash(CrashMode::Random, seed);
        let first = |n: u64| b.disk.peek(0, "f", n * 4096, 1).expect("a byte")[0];
        first_only += u32::from(first(0) == 1 && first(1) == 0);
        second_only += u32::from(first(0) == 0 && first(1) == 2);
    }
    assert!(first_only > 5 && second_only > 5, "first_only={first_only} second_only={second_only}");
}

#[test]
fn earlier_unsynced_write_never_replaces_later_durable_one() {
    for seed in 0..100 {
        let mut b = Fixture::new(seed);
        let file = b.file;
        // A write whose completion is never returned: its queue is dropped with it in flight.
        let mut lost = b.process.queue(1).expect("a live process");
        lost.submit(1, write(file, 0, 2, 1)).expect("room");
        drop(lost);
        b.write(0, 1, 2);
        b.sync();
        b.disk.crash(CrashMode::Random, seed);
        assert_eq!(b.block(0), 2, "seed={seed}");
    }
}

#[test]
fn dropped_queue_operations_execute_by_chance() {
    let mut happened = 0;
    for seed in 0..50 {
        let b = Fixture::new(seed);
        let mut queue = b.process.queue(1).expect("a live process");
        queue.submit(1, write(b.file, 0, 1, 1)).expect("room");
        drop(queue);
        happened += u32::from(b.block(0));
    }
    assert!(happened > 10 && happened < 40, "happened={happened}");
}

#[test]
fn writes_in_flight_at_kill_execute_by_chance() {
    let mut happened = 0;
    for seed in 0..50 {
        let mut b = Fixture::new(seed);
        let op = write(b.file, 0, 1, 1);
        b.submit(1, op);
        b.disk.crash(CrashMode::KeepAll, seed);
        happened += u32::from(b.block(0));
        assert!(b.finish().iter().all(|c| c.result.is_err()), "a dead process's write was acked");
    }
    assert!(happened > 10 && happened < 40, "happened={happened}");
}

#[test]
fn snapshot_restores_durable_and_unsynced_state() {
    let mut b = Fixture::new(1);
    b.write(0, 1, 1);
    b.sync();
    b.write(1, 1, 2);
    let fork = b.disk.snapshot();
    b.write(0, 1, 9);
    b.sync();
    b.disk.restore(&fork);
    assert_eq!([b.block(0), b.block(1)], [1, 2]);
    assert_eq!(b.disk.ops_done(), 4, "the counter is part of the copy");
    b.disk.crash(CrashMode::DropAll, 1);
    assert_eq!([b.block(0), b.block(1)], [1, 0]);
    // Also on another disk.
    let other = Fixture::new(2);
    other.disk.restore(&fork);
    assert_eq!([other.block(0), other.block(1)], [1, 2]);
    let mut other = other.reopen();
    other.sync();
    other.disk.crash(CrashMode::DropAll, 1);
    assert_eq!([other.block(0), other.block(1)], [1, 2]);
}

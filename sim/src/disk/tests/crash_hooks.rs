//! Ignored syncs, and copies of the disk after every change.

use super::*;
use crate::disk::CrashMode;

#[test]
fn ignored_sync_is_not_durable_until_next_sync() {
    for (ignored, left) in [(1, 0), (2, 7)] {
        let mut b = Fixture::new(1);
        b.disk.ignore_syncs(move |file, n| file == "sim0/f" && n == ignored);
        b.write(0, 1, 7);
        b.sync();
        b.disk.crash(CrashMode::DropAll, 0);
        assert_eq!(b.block(0), left, "ignored={ignored}");
    }
    let mut b = Fixture::new(1);
    b.disk.ignore_syncs(|_, n| n == 1);
    b.write(0, 1, 7);
    b.sync();
    b.sync();
    b.disk.crash(CrashMode::DropAll, 0);
    assert_eq!(b.block(0), 7, "the honest sync covers what the lie did not");
}

#[test]
fn ignored_syncs_end_with_crash() {
    let b = Fixture::new(1);
    b.disk.ignore_syncs(|_, _| true);
    b.disk.crash(CrashMode::KeepAll, 0);
    let mut b = b.reopen();
    b.write(0, 1, 7);
    b.sync();
    b.disk.crash(CrashMode::DropAll, 0);
    assert_eq!(b.block(0), 7);
}

#[test]
fn kept_point_equals_disk_after_stop() {
    let run = |stop: Option<u64>, keep: bool| {
        let clock = SimClock::new();
        let disk = SimDisk::new(clock, 1, 3);
        if keep {
            disk.keep_points();
        }
        if let Some(n) = stop {
            disk.stop_after(n);
        }
        let process = disk.connect();
        if let Ok(file) = process.create(0, "f", 16 * 4096) {
            let mut queue = process.queue(4).ok();
            for op in [
                write(file, 0, 2, 1),
                Op::Sync { file },
                write(file, 1, 2, 2),
                write(file, 0, 1, 3),
            ] {
                let Some(queue) = queue.as_mut() else { break };
                queue.submit(0, op).expect("room in the queue");
                drain(queue.as_mut());
            }
        }
        disk
    };
    let recorded = run(None, true);
    let points = recorded.take_points();
    assert_eq!(points.len() as u64, recorded.ops_done() + 1);
    assert!(recorded.take_points().is_empty(), "taken once");
    for (n, point) in points.iter().enumerate() {
        let stopped = run(Some(n as u64), false);
        recorded.restore(point);
        for mode in [CrashMode::DropAll, CrashMode::KeepAll, CrashMode::Random] {
            let fallen = |disk: &SimDisk| {
                let cut = disk.snapshot();
                disk.crash(mode, 5);
                let seen = disk.peek(0, "f", 0, 4 * 4096);
                disk.restore(&cut);
                seen
            };
            assert!(fallen(&recorded) == fallen(&stopped), "n={n} mode={mode:?}");
        }
    }
}

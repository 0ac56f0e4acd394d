//! Change counts, stop points, completion order, time, and determinism by seed.

use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::disk::{Disk, Op};
use pagelith_io::fault::{FaultKind, FaultOp};

use super::{Fixture, LONG, read, write};
use crate::disk::{CrashMode, FaultPlan, LoggedOp};

/// Create, write, sync, write, remove: every kind of change.
fn plan(b: &mut Fixture) -> Vec<bool> {
    let file = b.file;
    vec![
        b.process.create(0, "g", 4096).is_ok(),
        b.run(write(file, 0, 1, 1)).is_ok(),
        b.run(read(file, 0, 1)).is_ok(),
        b.run(Op::Sync { file }).is_ok(),
        b.run(write(file, 1, 1, 2)).is_ok(),
        b.process.remove(0, "g").is_ok(),
    ]
}

#[test]
fn stop_after_works_for_every_number_of_changes() {
    let mut whole = Fixture::new(1);
    let start = whole.disk.ops_done();
    assert_eq!(plan(&mut whole), [true; 6]);
    let total = whole.disk.ops_done() - start;
    assert_eq!(total, 5, "reads do not count");
    // State after n changes: names, and the first two blocks after kill -9 and after a power cut.
    let names = [1, 2, 2, 2, 2, 1];
    let kept = [[0, 0], [0, 0], [1, 0], [1, 0], [1, 2], [1, 2]];
    let durable = [[0, 0], [0, 0], [0, 0], [1, 0], [1, 0], [1, 0]];
    for n in 0..=total {
        let mut b = Fixture::new(1);
        b.disk.stop_after(n);
        let done = plan(&mut b);
        let changes =
            [done[0], done[1], done[3], done[4], done[5]].iter().filter(|ok| **ok).count() as u64;
        assert_eq!((changes, b.disk.ops_done() - start, b.disk.stopped()), (n, n, true));
        let i = n as usize;
        assert_eq!(b.disk.names(0).len(), names[i], "n={n}");
        assert_eq!([b.block(0), b.block(1)], kept[i], "n={n}");
        b.disk.crash(CrashMode::DropAll, 1);
        assert_eq!([b.block(0), b.block(1)], durable[i], "n={n}");
        // The machine runs again after the crash.
        b.reopen().write(5, 1, 1);
    }
}

#[test]
fn stop_takes_effect_between_operations_of_batch() {
    let mut b = Fixture::new(1);
    let file = b.file;
    (0..4).for_each(|n| b.submit(n, write(file, n, 1, 1)));
    b.disk.stop_after(2);
    let verdicts: Vec<_> = b.finish().into_iter().map(|c| c.result.map_err(|f| f.kind)).collect();
    assert_eq!(verdicts, [Ok(()), Ok(()), Err(FaultKind::Device), Err(FaultKind::Device)]);
    assert_eq!([0, 1, 2, 3].map(|n| b.block(n)), [1, 1, 0, 0]);
    assert_eq!(b.process.list(0).map_err(|f| f.kind), Err(FaultKind::Device));
    // A crash does not execute operations that were in flight at the stop point either.
    b.submit(9, write(file, 3, 1, 1));
    b.disk.crash(CrashMode::KeepAll, 7);
    assert_eq!(b.block(3), 0);
}

#[test]
fn log_lists_executed_operations() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.write(2, 1, 1);
    b.disk.inject(FaultPlan::Fail { op: FaultOp::Sync, nth: 1, kind: FaultKind::Device });
    assert_eq!(b.run(Op::Sync { file }), Err(FaultKind::Device));
    assert_eq!(b.run(read(file, 2, 1)), Ok(()));
    let entry = |n, kind, offset, len, fault| LoggedOp {
        n,
        kind,
        file: "sim0/f".into(),
        offset,
        len,
        fault,
        struck: None,
    };
    let expected = [
        entry(1, FaultOp::Create, 0, 16 * 4096, None),
        entry(2, FaultOp::Write, 8192, 4096, None),
        entry(3, FaultOp::Sync, 0, 0, Some(FaultKind::Device)),
        entry(3, FaultOp::Read, 8192, 4096, None),
    ];
    assert_eq!(b.disk.log(), expected);
    assert_eq!(
        b.disk.log_tail(2),
        "n=3 sync file=sim0/f offset=0 len=0 fault=Device\nn=3 read file=sim0/f offset=8192 len=4096\n"
    );
}

#[test]
fn wait_advances_time_to_completion_latency() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.disk.set_latency(Duration::from_millis(5));
    let mut done = Vec::new();
    b.submit(1, read(file, 0, 1));
    b.queue.wait(&mut done, Duration::from_millis(2));
    assert_eq!((done.len(), b.clock.now()), (0, Mono(2_000_000)));
    b.queue.wait(&mut done, Duration::from_millis(10));
    assert_eq!(
        (done.len(), b.clock.now()),
        (1, Mono(5_000_000)),
        "the wait ends with the operation"
    );
    b.queue.wait(&mut done, LONG);
    assert_eq!(b.clock.now(), Mono(5_000_000), "nothing in flight, nothing to wait for");
    // A loop that only polls ends too.
    b.disk.set_latency(Duration::from_micros(50));
    b.submit(2, read(file, 0, 1));
    let polls = (1..1000).find(|_| {
        b.queue.poll(&mut done);
        done.len() == 2
    });
    assert_eq!(polls, Some(50));
}

#[test]
fn hold_keeps_matching_completions_until_release() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.disk.hold(FaultOp::Write, Some("f"));
    b.disk.hold(FaultOp::Sync, Some("another"));
    b.submit(1, write(file, 0, 1, 1));
    b.submit(2, read(file, 1, 1));
    b.submit(3, Op::Sync { file });
    let mut done = Vec::new();
    b.queue.wait(&mut done, LONG);
    b.queue.wait(&mut done, LONG);
    let tokens =
        |done: &[pagelith_io::disk::Completion]| done.iter().map(|c| c.token).collect::<Vec<_>>();
    assert_eq!((tokens(&done), b.disk.held(), b.queue.in_flight()), (vec![2, 3], 1, 1));
    b.disk.release();
    b.queue.poll(&mut done);
    assert_eq!((tokens(&done), b.queue.in_flight()), (vec![2, 3, 1], 0));
}

#[test]
fn shuffled_operations_complete_out_of_order() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.disk.shuffle(1);
    let submitted: Vec<u64> = (0..12).collect();
    let tokens =
        |done: Vec<pagelith_io::disk::Completion>| done.iter().map(|c| c.token).collect::<Vec<_>>();
    submitted.iter().for_each(|n| b.submit(*n, read(file, *n, 1)));
    assert_ne!(tokens(b.finish()), submitted, "each has a latency of its own");
    submitted.iter().for_each(|n| b.submit(*n, read(file, *n, 1)));
    b.clock.advance(LONG);
    let mut done = Vec::new();
    b.queue.poll(&mut done);
    let mut order = tokens(done);
    assert_ne!(order, submitted, "due together");
    order.sort_unstable();
    assert_eq!(order, submitted);
}

/// The log and completion order of a run with every random choice enabled.
fn run_of(seed: u64) -> (Vec<LoggedOp>, Vec<u64>, Vec<u8>, Mono) {
    let mut b = Fixture::new(seed);
    let file = b.file;
    b.disk.shuffle(seed);
    (0..12).for_each(|n| b.submit(n, write(file, n, 1, n as u8 + 1)));
    b.submit(12, Op::Sync { file });
    let order = b.finish().iter().map(|c| c.token).collect();
    b.sync();
    b.disk.inject(FaultPlan::Fail { op: FaultOp::Write, nth: 1, kind: FaultKind::Device });
    assert_eq!(b.run(write(file, 0, 2, 99)), Err(FaultKind::Device));
    (0..8).for_each(|n| b.submit(n, write(file, n, 1, 50)));
    b.disk.crash(CrashMode::Random, seed);
    (b.disk.log(), order, b.disk.peek(0, "f", 0, 16 * 4096).expect("the file"), b.clock.now())
}

#[test]
fn disk_same_seed_gives_same_run() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let (first, second) = (run_of(seed), run_of(seed));
        assert!(first == second, "two runs of one seed differ seed={seed}");
        let mut sorted = first.1.clone();
        sorted.sort_unstable();
        assert_eq!(
            sorted,
            (0..=12).collect::<Vec<u64>>(),
            "each operation completes once seed={seed}"
        );
        orders.insert(first.1);
    }
    assert_eq!(orders.len(), 20, "every seed has an order of its own");
}

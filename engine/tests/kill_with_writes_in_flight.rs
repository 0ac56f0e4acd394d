//! A process is killed while its writes are in flight to a slow device. Another open waits until
//! they have completed, so that none reaches an open store.
//!
//! The slow device is a loop device with ext4 and a cgroup v1 write limit; without root or these,
//! the test is skipped.
#![allow(
    clippy::disallowed_methods,
    reason = "tests start processes, look at files and measure time"
)]
#![allow(clippy::print_stdout, reason = "a skip is printed, and how long opening took")]

#[allow(dead_code, reason = "other tests use the rest")]
mod killed;
#[allow(dead_code, reason = "other tests use the rest")]
mod loop_device;

use std::path::Path;
use std::time::Instant;

use killed::model::Model;
use killed::workload::Plan;
use killed::{ChildProcess, LogEntry};
use loop_device::{LoopFs, Throttle};

/// Write bandwidth of the device, bytes per second.
const SLOW: u64 = 1 << 20;
/// Most kills under io_uring: a process that dies in a sync ends only after its writes, so that a
/// kill may find none in flight.
const ROUNDS: u64 = 12;

#[test]
fn child() {
    killed::workload::child();
}

#[test]
fn write_left_by_a_killed_process_never_reaches_an_open_store() {
    let slow =
        LoopFs::new(96).and_then(|fs| Throttle::new(&fs, SLOW).map(|throttle| (throttle, fs)));
    let (throttle, fs) = match slow {
        Ok(slow) => slow,
        Err(why) => return println!("skipped: no slow loop device: {why}"),
    };
    for round in 1.. {
        match round_of("uring", round, &throttle, &fs) {
            Some(false) => assert!(round < ROUNDS, "no write was in flight at {round} kills"),
            _ => break,
        }
    }
    round_of("blocking", ROUNDS + 1, &throttle, &fs);
}

/// One life, its kill, and the next open; returns whether that had to wait for writes, or `None` if
/// this machine has no io_uring.
fn round_of(io: &'static str, seed: u64, throttle: &Throttle, fs: &LoopFs) -> Option<bool> {
    let dir = fs.path().join("store");
    let plan = Plan { seed, ..plan(&dir, io) };
    // Created and opened at full speed, so that only records are slow. This also shows whether
    // io_uring is available.
    match plan.open() {
        Ok(store) => drop(store.close().expect("close")),
        Err(e) if io == "uring" && e.message.contains("io_uring is configured") => {
            println!("skipped: no io_uring here: {e}");
            return None;
        }
        Err(e) => panic!("open: {e}"),
    }
    let mut model = Model::default();
    kill_while_it_writes(&plan, throttle, &mut model);
    let (locked, began) = (is_locked(&dir), Instant::now());
    let store = plan.open().expect("opened once the writes have completed");
    println!("{io}: locked={locked} opened in {:?}", began.elapsed());
    nothing_changes_by_itself(&dir, throttle, fs);
    model.check(&store);
    store.abandon();
    std::fs::remove_dir_all(&dir).unwrap();
    Some(locked)
}

fn plan(dir: &Path, io: &'static str) -> Plan {
    Plan {
        dir: dir.to_owned(),
        ssd_mib: 48,
        write_kib: 512,
        write_depth: 2,
        seed: 0,
        pages: 3000,
        budget: u64::MAX,
        io,
        reinsert: false,
        only_put: true,
        aim: None,
    }
}

/// Let a child in the slow group put until the arena holds far more than the device can have
/// written.
fn kill_while_it_writes(plan: &Plan, throttle: &Throttle, model: &mut Model) {
    let program = std::env::current_exe().unwrap();
    let mut victim = ChildProcess::start(plan, Some(throttle.command(&program)));
    let mut stored = 0;
    while stored < 450 {
        let word = victim.read_entry().expect("a child that lives");
        if let LogEntry::Stored(..) = word {
            stored += 1;
        }
        model.apply(word);
    }
    victim.kill();
    while let Some(word) = victim.read_entry() {
        model.apply(word);
    }
}

/// Whether a write of the dead process still holds the store's locks.
fn is_locked(dir: &Path) -> bool {
    let file = std::fs::File::open(dir.join("segments")).expect("a store");
    matches!(file.try_lock(), Err(std::fs::TryLockError::WouldBlock))
}

/// Writes submitted by the dead process are drained from the slow group; either they reached the
/// file before the store was opened, or they change it now. The open store itself, without
/// requests, writes no segment.
fn nothing_changes_by_itself(dir: &Path, throttle: &Throttle, fs: &LoopFs) {
    let before = segments(dir);
    throttle.drain(fs);
    let after = segments(dir);
    let differs = before.iter().zip(&after).position(|(a, b)| a != b);
    assert_eq!(differs, None, "a write of the dead process landed in an open store at this offset");
}

fn segments(dir: &Path) -> Vec<u8> {
    let bytes = std::fs::read(dir.join("segments")).unwrap();
    assert!(bytes.len() > 1 << 20);
    bytes
}

//! A queue moves between threads, with operations in flight.

use std::sync::mpsc::channel;
use std::thread;

use proptest::prelude::*;
use tempfile::TempDir;

use super::fixed_test::{FILE, buffer, byte};
use super::tests::{LONG, queue_over_bytes};
use super::*;
use crate::disk::FileId;

const UNIT: usize = 4096;

/// A queue over a file with O_DIRECT, so that reads stay in flight for as long as the device takes.
fn queue_over_pattern(dir: &TempDir, depth: usize) -> Option<(UringQueue, FileId)> {
    let path = dir.path().join("pattern");
    std::fs::write(&path, (0..FILE).map(byte).collect::<Vec<u8>>()).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    if let Err(e) = crate::create::set_direct(&file.try_clone().unwrap().into(), true) {
        eprintln!("skipped: no O_DIRECT: {e}");
        return None;
    }
    queue_over_bytes(file.into(), FILE as u64, depth)
}

/// Submit reads of one unit each, without waiting.
fn submit_reads(queue: &mut UringQueue, file: FileId, tokens: std::ops::Range<u64>) {
    for token in tokens {
        let (offset, parts) = (token * UNIT as u64, vec![buffer(UNIT).into_part()]);
        queue.submit(token, Op::Read { file, offset, parts }).unwrap();
    }
    queue.submit_pending();
}

impl UringQueue {
    /// Submit the pending entries, without reaping completions.
    fn submit_pending(&mut self) {
        self.enter(0, Duration::ZERO);
    }
}

/// Wait for all reads in flight: each of these tokens once, with its bytes.
fn drain(queue: &mut UringQueue, tokens: std::ops::Range<u64>) {
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        let before = done.len();
        queue.wait(&mut done, LONG);
        assert!(done.len() > before, "nothing in {LONG:?}");
    }
    let mut seen: Vec<u64> = done.iter().map(|done| done.token).collect();
    seen.sort_unstable();
    assert_eq!(seen, tokens.collect::<Vec<_>>());
    for done in done {
        done.result.unwrap();
        let at = done.token as usize * UNIT;
        let parts = done.op.into_parts();
        assert!(parts[0].bytes().iter().enumerate().all(|(i, b)| *b == byte(at + i)), "at={at}");
    }
    assert_eq!((queue.strays, queue.extra_entries, queue.fixed.live), (0, 0, 0));
}

/// Run `body` in another thread while this one waits.
fn in_other_thread<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(body).join().unwrap())
}

/// The submitting thread is alive and does not enter the ring again.
#[test]
fn reads_in_flight_move_with_queue_to_another_thread() {
    let dir = TempDir::new().unwrap();
    let Some((mut queue, file)) = queue_over_pattern(&dir, 16) else { return };
    for round in 0..8 {
        submit_reads(&mut queue, file, 0..8);
        if round % 2 == 0 {
            submit_reads(&mut queue, file, 8..16);
            in_other_thread(|| drain(&mut queue, 0..16));
        } else {
            // Half of them are submitted by a thread that has ended since.
            in_other_thread(|| submit_reads(&mut queue, file, 8..16));
            drain(&mut queue, 0..16);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Any of several live threads submits, polls or waits next: each operation completes once,
    /// with its bytes.
    #[test]
    fn any_thread_continues_queue_of_another(
        steps in prop::collection::vec((0usize..3, 0u8..3), 1..40),
    ) {
        let dir = TempDir::new().unwrap();
        let Some((queue, file)) = queue_over_pattern(&dir, 8) else { return Ok(()) };
        thread::scope(|scope| {
            let (back, backs) = channel();
            let workers: Vec<_> = (0..3).map(|_| {
                let (order, orders) = channel::<(UringQueue, u8, u64)>();
                let back = back.clone();
                scope.spawn(move || {
                    for (mut queue, action, next) in orders {
                        let mut done = Vec::new();
                        match action {
                            0 => {
                                let (offset, parts) = (next * UNIT as u64, vec![buffer(UNIT).into_part()]);
                                let taken = queue.submit(next, Op::Read { file, offset, parts }).is_ok();
                                back.send((queue, u64::from(taken), done)).unwrap();
                                continue;
                            }
                            1 => queue.poll(&mut done),
                            _ => queue.wait(&mut done, LONG),
                        }
                        back.send((queue, 0, done)).unwrap();
                    }
                });
                order
            }).collect();
            let (mut queue, mut next, mut ended) = (queue, 0u64, Vec::new());
            for (worker, action) in steps {
                workers[worker].send((queue, action, next)).unwrap();
                let (back, taken, done) = backs.recv().unwrap();
                (queue, next) = (back, next + taken);
                ended.extend(done);
            }
            while queue.in_flight() > 0 {
                queue.wait(&mut ended, LONG);
            }
            let mut tokens: Vec<u64> = ended.iter().map(|done| done.token).collect();
            tokens.sort_unstable();
            assert_eq!(tokens, (0..next).collect::<Vec<_>>());
            for done in ended {
                done.result.unwrap();
                let at = done.token as usize * UNIT;
                assert!(done.op.into_parts()[0].bytes().iter().enumerate().all(|(i, b)| *b == byte(at + i)));
            }
        });
    }
}

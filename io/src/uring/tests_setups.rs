//! What is different about rings of one thread, and about those whose entries a thread of the kernel's takes.

use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::mpsc::channel;
use std::thread;

use proptest::prelude::*;
use tempfile::TempDir;

use super::tests::{DEFERRED, LONG, PLAIN, SQPOLL, guarded, queue_over, queue_over_bytes, read as read_of};
use super::tests_fixed::{FILE, buffer, byte, read, register};
use super::*;
use crate::disk::FileId;
use crate::fault::FaultKind;
use crate::rings::RingSetup;

const UNIT: usize = 4096;

/// A queue over a file by O_DIRECT, so that reads are under way for as long as a device takes.
fn queue_over_pattern(dir: &TempDir, depth: usize, setup: RingSetup) -> Option<(UringQueue, FileId)> {
    let path = dir.path().join("pattern");
    std::fs::write(&path, (0..FILE).map(byte).collect::<Vec<u8>>()).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    file.sync_all().unwrap();
    if let Err(e) = crate::create::set_direct(&file.try_clone().unwrap().into(), true) {
        eprintln!("skipped: no O_DIRECT here: {e}");
        return None;
    }
    queue_over_bytes(file.into(), FILE as u64, depth, setup)
}

/// Reads of one unit each, begun and not waited for.
fn begin(queue: &mut UringQueue, file: FileId, tokens: std::ops::Range<u64>) {
    for token in tokens {
        let (offset, parts) = (token * UNIT as u64, vec![buffer(UNIT).into_part()]);
        queue.submit(token, Op::Read { file, offset, parts }).unwrap();
    }
    queue.poll_nothing();
}

impl UringQueue {
    /// Hand what is pending to the kernel, and take nothing back.
    fn poll_nothing(&mut self) {
        self.enter(0, Duration::ZERO);
    }
}

/// Wait for all that is under way: each of these tokens once, with its bytes.
fn end(queue: &mut UringQueue, tokens: std::ops::Range<u64>) {
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
    assert_eq!((queue.strays, queue.more, queue.fixed.live), (0, 0, 0));
}

/// Run `body` in another thread while this one stays where it is.
fn elsewhere<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(body).join().unwrap())
}

/// The thread that began them lives, and enters its ring no more.
#[test]
fn reads_under_way_go_with_their_queue_to_another_thread() {
    let dir = TempDir::new().unwrap();
    for setup in [PLAIN, DEFERRED, SQPOLL] {
        let Some((mut queue, file)) = queue_over_pattern(&dir, 16, setup) else { continue };
        for round in 0..8 {
            begin(&mut queue, file, 0..16);
            if round % 2 == 0 {
                elsewhere(|| end(&mut queue, 0..16));
            } else {
                // There and back.
                elsewhere(|| queue.come());
                end(&mut queue, 0..16);
            }
        }
    }
}

#[test]
fn a_ring_of_another_thread_is_left_even_if_nobody_noticed() {
    let dir = TempDir::new().unwrap();
    let Some((mut queue, file)) = queue_over_pattern(&dir, 4, DEFERRED) else { return };
    begin(&mut queue, file, 0..3);
    elsewhere(|| {
        queue.home = here::thread();
        end(&mut queue, 0..3);
    });
    // One that nothing is under way on.
    queue.come();
    elsewhere(|| {
        queue.home = here::thread();
        begin(&mut queue, file, 0..4);
        end(&mut queue, 0..4);
    });
}

#[test]
fn memory_is_registered_with_the_next_ring_too() {
    let dir = TempDir::new().unwrap();
    let Some((mut queue, file)) = queue_over_pattern(&dir, 4, DEFERRED) else { return };
    let pool = buffer(8 * UNIT);
    let _pool = register(&queue, &pool);
    let parts = read(&mut queue, file, UNIT, vec![pool.into_part()]);
    let parts = elsewhere(|| read(&mut queue, file, 2 * UNIT, parts));
    assert_eq!(queue.fixed.made, 2);
    // By the place that it has in the ring that is left.
    queue.submit(7, Op::Read { file, offset: 0, parts }).unwrap();
    queue.poll_nothing();
    elsewhere(|| {
        let mut done = Vec::new();
        queue.wait(&mut done, LONG);
        done.remove(0).result.unwrap();
    });
    assert_eq!(queue.fixed.live, 0);
}

/// What has not happened when its ring is left happens on the next; nobody is told that it did not.
#[test]
fn a_read_that_the_kernel_gave_up_with_its_ring_is_begun_again() {
    let (reader, mut writer) = std::io::pipe().unwrap();
    let Some((mut queue, file)) = queue_over(reader.into(), 4, DEFERRED) else { return };
    let (part, guard) = guarded();
    queue.submit(1, Op::Read { file, offset: 0, parts: vec![part] }).unwrap();
    queue.poll(&mut Vec::new());
    let mut done = Vec::new();
    elsewhere(|| {
        queue.wait(&mut done, Duration::ZERO);
        queue.wait(&mut done, Duration::from_millis(1));
        assert_eq!((done.len(), queue.in_flight(), Arc::strong_count(&guard)), (0, 1, 2));
        writer.write_all(&[7; 4096]).unwrap();
        queue.wait(&mut done, LONG);
    });
    done.remove(0).result.unwrap();
    assert_eq!((guard[0], guard[4095], queue.strays), (7, 7, 0));
}

#[test]
fn a_queue_dropped_by_another_thread_gives_back_what_its_ring_is_done_with() {
    let (reader, _writer) = std::io::pipe().unwrap();
    let Some((mut queue, file)) = queue_over(reader.into(), 4, DEFERRED) else { return };
    let (part, guard) = guarded();
    queue.submit(1, Op::Read { file, offset: 0, parts: vec![part] }).unwrap();
    queue.poll(&mut Vec::new());
    elsewhere(move || drop(queue));
    assert_eq!(Arc::strong_count(&guard), 1, "memory is leaked though nobody has it any more");
}

#[test]
fn until_a_ring_is_over_nothing_of_it_is_handed_back_or_begun_again() {
    let dir = TempDir::new().unwrap();
    let Some((mut queue, file)) = queue_over_pattern(&dir, 8, DEFERRED) else { return };
    begin(&mut queue, file, 0..4);
    // A second writer: as long as it is there the ring looks as if it were not over.
    let (end_of_it, second) = std::io::pipe().unwrap();
    elsewhere(|| {
        queue.leave();
        queue.home = here::thread();
        let reaped = queue.ready.len();
        let real = queue.leaving.replace(end_of_it.into());
        begin(&mut queue, file, 4..6);
        let mut done = Vec::new();
        queue.wait(&mut done, Duration::ZERO);
        assert_eq!((done.len(), queue.in_flight()), (reaped, 6 - reaped));
        queue.wait(&mut done, Duration::from_millis(1));
        assert_eq!((done.len(), queue.ring.is_none()), (reaped, true));
        // Whatever the pipe in its place says, the ring itself has to be over for the memory's sake.
        assert!(real.is_none_or(|real| ring::is_over(&real, LONG)));
        drop(second);
        queue.ready.extend(done);
        end(&mut queue, 0..6);
    });
}

/// The kernel's thread sleeps when it has had nothing to do, and sees entries only once it is woken.
#[test]
fn the_kernels_thread_is_woken() {
    let dir = TempDir::new().unwrap();
    let Some((mut queue, file)) = queue_over_pattern(&dir, 4, SQPOLL) else { return };
    for _ in 0..3 {
        let began = Instant::now();
        while !queue.ring.as_mut().unwrap().uring.submission().need_wakeup() {
            assert!(began.elapsed() < LONG, "it never sleeps");
            thread::yield_now();
        }
        begin(&mut queue, file, 0..4);
        end(&mut queue, 0..4);
    }
}

#[test]
fn rings_of_one_disk_share_the_kernels_thread() {
    let maker = match Maker::new(SQPOLL) {
        Ok(maker) => maker,
        Err(fault) => return eprintln!("skipped: {fault}"),
    };
    let thread_of = |ring: &Ring| {
        let (path, began) = (format!("/proc/self/fdinfo/{}", ring.uring.as_raw_fd()), Instant::now());
        loop {
            let info = std::fs::read_to_string(&path).unwrap();
            let said = info.lines().find_map(|line| line.strip_prefix("SqThread:")).unwrap().trim();
            // While the ring is locked, and the maker's own before the thread has begun.
            let own = rustix::thread::gettid().as_raw_nonzero().to_string();
            if said != "-1" && said != own {
                return said.to_owned();
            }
            assert!(began.elapsed() < LONG, "{info}");
        }
    };
    let rings: Vec<Ring> = (0..3).map(|_| maker.ring(4).unwrap()).collect();
    assert!(rings.iter().all(|ring| thread_of(ring) == thread_of(&rings[0])));
}

/// Who takes entries by itself may take one after any look at the queue: nothing of it comes back before the ring is over.
#[test]
fn a_broken_ring_whose_entries_the_kernel_takes_hands_back_when_it_is_over() {
    let (reader, _writer) = std::io::pipe().unwrap();
    let Some((mut queue, file)) = queue_over(reader.into(), 4, SQPOLL) else { return };
    let (part, guard) = guarded();
    queue.submit(1, Op::Read { file, offset: 0, parts: vec![part] }).unwrap();
    queue.submit(2, read_of(file)).unwrap();
    queue.give_up(Errno::OWNERDEAD);
    assert_eq!((queue.ready.len(), queue.in_flight(), Arc::strong_count(&guard)), (0, 2, 2));
    assert!(queue.leaving.is_some());
    queue.submit(3, read_of(file)).unwrap();
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.wait(&mut done, LONG);
    }
    let mut tokens: Vec<u64> = done.iter().map(|done| done.token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [1, 2, 3]);
    for done in done {
        let fault = done.result.unwrap_err();
        assert_eq!((fault.kind, fault.errno), (FaultKind::Other, Errno::OWNERDEAD.raw_os_error()));
    }
    assert_eq!(Arc::strong_count(&guard), 1);
}

#[test]
fn rings_of_each_kind_are_of_that_kind() {
    for setup in [PLAIN, DEFERRED, SQPOLL] {
        let ring = match Maker::new(setup).and_then(|maker| maker.ring(4)) {
            Ok(ring) => ring,
            Err(fault) => {
                eprintln!("skipped: {fault}");
                continue;
            }
        };
        let has = ring.uring.params();
        assert_eq!(has.is_setup_sqpoll(), setup.kind == crate::rings::RingKind::Sqpoll, "{setup}");
        assert_eq!(has.is_setup_single_issuer(), setup.kind == crate::rings::RingKind::Deferred, "{setup}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Whichever of several threads, all of which live, submits, looks or waits next: each operation ends once, with its bytes.
    #[test]
    fn any_thread_goes_on_where_another_stopped(
        steps in prop::collection::vec((0usize..3, 0u8..3), 1..40),
        kind in prop::sample::select(vec![PLAIN, DEFERRED, SQPOLL]),
    ) {
        let dir = TempDir::new().unwrap();
        let Some((queue, file)) = queue_over_pattern(&dir, 8, kind) else { return Ok(()) };
        thread::scope(|scope| {
            let (back, backs) = channel();
            let workers: Vec<_> = (0..3).map(|_| {
                let (order, orders) = channel::<(UringQueue, u8, u64)>();
                let back = back.clone();
                scope.spawn(move || {
                    for (mut queue, what, next) in orders {
                        let mut done = Vec::new();
                        match what {
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
            for (who, what) in steps {
                workers[who].send((queue, what, next)).unwrap();
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

//! The promises of a queue, tested on each real backend.

#![allow(clippy::disallowed_methods, reason = "tests move queues between threads")]
#![allow(missing_docs, reason = "a test crate")]

mod common;

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use common::{BLOCK, LONG, drain, filled, kind, on_each_side, perform, read, submit};
use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::disk::{Disk, FileId, Op, Queue};
use pagelith_io::fault::{FaultKind, FaultOp};

const BLOCKS: u64 = 64;

fn file(disk: &Arc<dyn Disk>) -> FileId {
    disk.create(0, "data", BLOCKS * BLOCK as u64).unwrap()
}

/// A part of `len` bytes that begins `skip` bytes into an owned, aligned buffer.
fn slice(skip: usize, len: usize, exclusive: bool) -> (Part, Arc<AlignedBuf>) {
    let mut buf = AlignedBuf::new(4 * BLOCK).unwrap();
    let ptr = NonNull::from(&mut buf[skip..skip + len]).cast();
    let buf = Arc::new(buf);
    // SAFETY: the range was bounds-checked inside `buf`, which is initialised and kept by the part.
    // The tests read the buffer only after the part is dropped.
    let part = unsafe {
        match exclusive {
            true => Part::exclusive(ptr, len, Some(buf.clone())),
            false => Part::shared(ptr, len, Some(buf.clone())),
        }
    };
    (part, buf)
}

#[test]
fn parts_are_written_and_read_in_order() {
    on_each_side(|disk, _| {
        let (file, mut queue) = (file(disk), disk.queue(4).unwrap());
        let parts = vec![filled(1, 1), filled(3, 2), filled(2, 3)];
        let written = perform(&mut *queue, Op::Write { file, offset: BLOCK as u64, parts });
        written.result.unwrap();
        assert_eq!(written.op.into_parts().len(), 3);

        let parts = vec![filled(2, 0), filled(1, 0), filled(4, 0)];
        let done = perform(&mut *queue, Op::Read { file, offset: BLOCK as u64, parts });
        done.result.unwrap();
        let bytes: Vec<u8> = done.op.into_parts().iter().flat_map(|p| p.bytes().to_vec()).collect();
        let mut expected = vec![1; BLOCK];
        expected.extend(vec![2; 3 * BLOCK]);
        expected.extend(vec![3; 2 * BLOCK]);
        expected.extend(vec![0; BLOCK]);
        assert!(bytes == expected, "read back differs");
    });
}

#[test]
fn shared_part_is_refused_for_read() {
    on_each_side(|disk, _| {
        let (file, mut queue) = (file(disk), disk.queue(4).unwrap());
        let (part, buf) = slice(0, BLOCK, false);
        let done =
            perform(&mut *queue, Op::Read { file, offset: 0, parts: vec![filled(1, 0), part] });
        let fault = done.result.unwrap_err();
        assert_eq!((fault.kind, fault.op, fault.errno), (FaultKind::Invalid, FaultOp::Read, 0));
        assert_eq!(done.op.into_parts().len(), 2);
        assert_eq!(Arc::strong_count(&buf), 1, "the part's guard is still held");

        let (part, _) = slice(0, BLOCK, false);
        perform(&mut *queue, Op::Write { file, offset: 0, parts: vec![part] }).result.unwrap();
    });
}

#[test]
fn unaligned_operation_is_refused_and_returned() {
    on_each_side(|disk, _| {
        let (file, mut queue) = (file(disk), disk.queue(4).unwrap());
        let align = disk.facts().memory_align.min(disk.facts().offset_align);
        let cases = [
            ("offset", (align / 2) as u64, 0, BLOCK),
            ("address", 0, align / 2, BLOCK),
            ("length", 0, 0, BLOCK - align / 2),
            ("all", 1, 1, 1),
        ];
        for (case, offset, skip, len) in cases {
            for write in [false, true] {
                let (part, buf) = slice(skip, len, true);
                let parts = vec![part];
                let op = match write {
                    true => Op::Write { file, offset, parts },
                    false => Op::Read { file, offset, parts },
                };
                let done = perform(&mut *queue, op);
                assert_eq!(kind(done.result), FaultKind::Invalid, "{case} write={write}");
                assert_eq!(done.op.into_parts()[0].len(), len, "{case}");
                assert_eq!(Arc::strong_count(&buf), 1, "{case}");
            }
        }
    });
}

#[test]
fn invalid_ranges_files_and_part_counts_are_refused() {
    on_each_side(|disk, _| {
        let (file, mut queue) = (file(disk), disk.queue(4).unwrap());
        let end = BLOCKS * BLOCK as u64;
        let last = i64::MAX as u64 + 1 - BLOCK as u64;
        let too_many = (0..=disk.facts().parts_max).map(|_| filled(1, 0)).collect();
        let unknown = FileId(file.0 + 1);
        let wrong = [
            ("write past the end", Op::Write { file, offset: end, parts: vec![filled(1, 0)] }),
            (
                "write over the end",
                Op::Write { file, offset: end - BLOCK as u64, parts: vec![filled(2, 0)] },
            ),
            ("read past any file", Op::Read { file, offset: last, parts: vec![filled(1, 0)] }),
            (
                "read that wraps",
                Op::Read { file, offset: u64::MAX - 4095, parts: vec![filled(1, 0)] },
            ),
            ("too many parts", Op::Read { file, offset: 0, parts: too_many }),
            ("read of no file", Op::Read { file: unknown, offset: 0, parts: vec![filled(1, 0)] }),
            ("sync of no file", Op::Sync { file: unknown }),
        ];
        for (case, op) in wrong {
            let done = perform(&mut *queue, op);
            assert_eq!(kind(done.result), FaultKind::Invalid, "{case}");
        }
        let most = (0..disk.facts().parts_max).map(|_| filled(1, 9)).collect();
        let all = disk.create(0, "wide", (disk.facts().parts_max * BLOCK) as u64).unwrap();
        perform(&mut *queue, Op::Write { file: all, offset: 0, parts: most }).result.unwrap();
        assert!(
            read(&mut *queue, all, (disk.facts().parts_max as u64 - 1) * BLOCK as u64, 1)
                == [9; BLOCK]
        );
        assert_eq!(std::fs::metadata(format!("{}/data", disk.dir_name(0))).unwrap().len(), end);
    });
}

#[test]
fn read_past_end_of_file_is_short() {
    on_each_side(|disk, _| {
        let (file, mut queue) = (file(disk), disk.queue(4).unwrap());
        let end = BLOCKS * BLOCK as u64;
        for (offset, blocks) in [(end, 1), (end - BLOCK as u64, 2), (end + (1 << 30), 4)] {
            let done =
                perform(&mut *queue, Op::Read { file, offset, parts: vec![filled(blocks, 0)] });
            let fault = done.result.unwrap_err();
            assert_eq!(
                (fault.kind, fault.offset, fault.errno),
                (FaultKind::Short, offset, 0),
                "{fault}"
            );
            assert_eq!(done.op.into_parts()[0].len(), blocks * BLOCK);
        }
    });
}

#[test]
fn submit_to_full_queue_returns_operation() {
    on_each_side(|disk, _| {
        let (file, mut queue) = (file(disk), disk.queue(3).unwrap());
        let depth = queue.room();
        assert!(depth >= 3);
        for token in 0..depth as u64 {
            // A refused operation occupies a slot too, until it is handed back.
            let offset = if token == 0 { 1 } else { token * BLOCK as u64 };
            submit(&mut *queue, token, Op::Read { file, offset, parts: vec![filled(1, 0)] });
        }
        assert_eq!((queue.room(), queue.in_flight()), (0, depth));
        let back =
            queue.submit(99, Op::Write { file, offset: 0, parts: vec![filled(2, 7)] }).unwrap_err();
        let parts = back.into_parts();
        assert!(parts[0].bytes().iter().all(|b| *b == 7) && parts[0].len() == 2 * BLOCK);

        let mut tokens: Vec<u64> = drain(&mut *queue).iter().map(|c| c.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..depth as u64).collect::<Vec<_>>());
        assert_eq!((queue.room(), queue.in_flight()), (depth, 0));
    });
}

#[test]
fn wait_ends_without_work_or_time() {
    on_each_side(|disk, _| {
        let (file, mut queue) = (file(disk), disk.queue(4).unwrap());
        let mut done = Vec::new();
        // With nothing in flight even an unbounded wait returns.
        queue.wait(&mut done, Duration::MAX);
        queue.poll(&mut done);
        assert!(done.is_empty());

        submit(&mut *queue, 1, Op::Sync { file });
        while done.is_empty() {
            queue.wait(&mut done, Duration::ZERO);
        }
        done.pop().unwrap().result.unwrap();

        submit(&mut *queue, 2, Op::Sync { file });
        while done.is_empty() {
            queue.poll(&mut done);
        }
        assert_eq!((done[0].token, queue.in_flight()), (2, 0));
    });
}

#[test]
fn dropped_queue_releases_every_part() {
    on_each_side(|disk, _| {
        let file = file(disk);
        let mut queue = disk.queue(32).unwrap();
        let mut guards = Vec::new();
        for token in 0..32 {
            let (part, buf) = slice(0, 4 * BLOCK, true);
            guards.push(buf);
            let (offset, parts) = (token % 8 * 4 * BLOCK as u64, vec![part]);
            let op = match token % 2 {
                0 => Op::Write { file, offset, parts },
                _ => Op::Read { file, offset, parts },
            };
            submit(&mut *queue, token, op);
            if token == 15 {
                queue.poll(&mut Vec::new());
            }
        }
        drop(queue);
        for guard in guards {
            assert_eq!(Arc::strong_count(&guard), 1);
        }
    });
}

#[test]
fn queue_works_when_moved_between_threads() {
    on_each_side(|disk, _| {
        let file = file(disk);
        let mut queue = disk.queue(8).unwrap();
        for round in 0..16u8 {
            // Completions of operations that an ended thread submitted must reach the waiting
            // thread.
            let submitted = std::thread::spawn(move || {
                for token in 0..8 {
                    let offset = token * BLOCK as u64;
                    submit(
                        &mut *queue,
                        token,
                        Op::Write { file, offset, parts: vec![filled(1, round)] },
                    );
                }
                let mut done = Vec::new();
                queue.poll(&mut done);
                (queue, done)
            });
            let mut done;
            (queue, done) = submitted.join().unwrap();
            done.extend(drain(&mut *queue));
            assert_eq!(done.len(), 8);
            for completion in done {
                completion.result.unwrap();
            }
            assert!(read(&mut *queue, file, 7 * BLOCK as u64, 1) == [round; BLOCK]);
        }
    });
}

#[test]
fn queues_of_one_disk_keep_own_completions() {
    on_each_side(|disk, _| {
        let file = file(disk);
        let mut queues: Vec<Box<dyn Queue>> = (0..4).map(|_| disk.queue(4).unwrap()).collect();
        for (q, queue) in queues.iter_mut().enumerate() {
            for n in 0..4 {
                let offset = (q * 4 + n) as u64 * BLOCK as u64;
                let parts = vec![filled(1, q as u8 + 1)];
                submit(&mut **queue, (q * 10 + n) as u64, Op::Write { file, offset, parts });
            }
        }
        for (q, queue) in queues.iter_mut().enumerate() {
            let done = drain(&mut **queue);
            assert_eq!(done.len(), 4);
            for completion in done {
                assert_eq!(completion.token / 10, q as u64);
                assert!(completion.op.into_parts()[0].bytes().iter().all(|b| *b == q as u8 + 1));
            }
        }
    });
}

#[test]
fn random_operations_complete_once_with_right_bytes() {
    on_each_side(|disk, _| {
        for seed in 1..=20 {
            let file = disk.create(0, &format!("mix-{seed}"), BLOCKS * BLOCK as u64).unwrap();
            let mut mix = Mix {
                rng: seed,
                file,
                blocks: [0; BLOCKS as usize],
                busy: [false; BLOCKS as usize],
            };
            mix.run(&mut *disk.queue(1 + seed as usize).unwrap());
        }
    });
}

/// Random operations, at most one at a time on a block, so that the expected bytes of each read are
/// known.
struct Mix {
    rng: u64,
    file: FileId,
    blocks: [u8; BLOCKS as usize],
    busy: [bool; BLOCKS as usize],
}

impl Mix {
    /// Knuth's MMIX generator; the high bits are the good ones.
    fn below(&mut self, n: u64) -> u64 {
        self.rng = self
            .rng
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.rng >> 33) % n
    }

    fn run(&mut self, queue: &mut dyn Queue) {
        const OPS: u64 = 300;
        let (mut next, mut finished) = (0, vec![false; OPS as usize]);
        let mut done = Vec::new();
        while finished.iter().any(|f| !f) {
            while next < OPS && queue.room() > 0 {
                let op = self.op();
                submit(queue, next, op);
                next += 1;
            }
            match self.below(3) {
                0 => queue.poll(&mut done),
                _ => queue.wait(&mut done, LONG),
            }
            for completion in done.drain(..) {
                let seen = &mut finished[completion.token as usize];
                assert!(!*seen, "token={} completed twice", completion.token);
                *seen = true;
                completion.result.unwrap();
                self.check(completion.op);
            }
        }
        assert_eq!(queue.in_flight(), 0);
    }

    fn op(&mut self) -> Op {
        let file = self.file;
        let (first, want) = (self.below(BLOCKS) as usize, 1 + self.below(6) as usize);
        let free = self.busy[first..].iter().take(want).take_while(|b| !**b).count();
        if free == 0 || self.below(8) == 0 {
            return Op::Sync { file };
        }
        self.busy[first..first + free].fill(true);
        let offset = (first * BLOCK) as u64;
        let one = 1 + self.below(free as u64) as usize;
        let write = self.below(2) == 0;
        let byte = if write { 1 + self.below(255) as u8 } else { 0 };
        let mut parts = vec![filled(one, byte)];
        if one < free {
            parts.push(filled(free - one, byte));
        }
        match write {
            true => {
                self.blocks[first..first + free].fill(byte);
                Op::Write { file, offset, parts }
            }
            false => Op::Read { file, offset, parts },
        }
    }

    fn check(&mut self, op: Op) {
        let (Op::Read { offset, .. } | Op::Write { offset, .. }) = &op else { return };
        let mut block = *offset as usize / BLOCK;
        for part in op.into_parts() {
            for bytes in part.bytes().chunks(BLOCK) {
                let expected = self.blocks[block];
                assert!(bytes.iter().all(|b| *b == expected), "block={block} expected={expected}");
                assert!(std::mem::replace(&mut self.busy[block], false));
                block += 1;
            }
        }
    }
}

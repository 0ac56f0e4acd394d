//! The rules of the disk interface: alignment, ranges, locks, names, overlap.

use std::ptr::NonNull;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::disk::{Disk, FileId, IoBackend, Op};
use pagelith_io::fault::FaultKind;

use super::{Fixture, drain, part, read, write};
use crate::disk::CrashMode;

#[test]
fn read_over_several_parts_returns_written_bytes() {
    let mut b = Fixture::new(1);
    let file = b.file;
    let parts = vec![part(1, 1), part(2, 2)];
    assert_eq!(b.run(Op::Write { file, offset: 4096, parts }), Ok(()));
    b.submit(7, Op::Read { file, offset: 0, parts: vec![part(2, 9), part(3, 9)] });
    let done = b.finish().pop().expect("one completion");
    assert_eq!((done.token, done.result), (7, Ok(())));
    let bytes: Vec<u8> = done.op.into_parts().iter().flat_map(|p| p.bytes().to_vec()).collect();
    let firsts: Vec<u8> = bytes.chunks(4096).map(|c| c[0]).collect();
    assert_eq!(firsts, [0, 1, 2, 2, 0]);
    assert_eq!(b.process.facts().backend, IoBackend::Simulated);
}

#[test]
fn misaligned_operation_is_invalid_and_changes_nothing() {
    let mut b = Fixture::new(1);
    let (file, before) = (b.file, b.disk.ops_done());
    let odd = |len| AlignedBuf::new(len).expect("memory").into_part();
    assert_eq!(
        b.run(Op::Write { file, offset: 512, parts: vec![part(1, 1)] }),
        Err(FaultKind::Invalid)
    );
    assert_eq!(
        b.run(Op::Write { file, offset: 0, parts: vec![odd(4000)] }),
        Err(FaultKind::Invalid)
    );
    // The sum is aligned, the parts are not.
    assert_eq!(
        b.run(Op::Write { file, offset: 0, parts: vec![odd(1024), odd(3072)] }),
        Err(FaultKind::Invalid)
    );
    assert_eq!(b.run(Op::Read { file, offset: 0, parts: vec![] }), Err(FaultKind::Invalid));
    let many = (0..1025).map(|_| part(1, 0)).collect();
    assert_eq!(b.run(Op::Read { file, offset: 0, parts: many }), Err(FaultKind::Invalid));
    assert_eq!(b.disk.ops_done(), before);
}

#[test]
#[allow(unsafe_code, reason = "shared and misaligned memory can only be made by hand")]
fn misaligned_or_shared_read_memory_is_invalid() {
    let mut b = Fixture::new(1);
    let file = b.file;
    let mut memory = AlignedBuf::new(3 * 4096).expect("memory");
    memory.fill(5);
    let at = |offset: usize| NonNull::from(&memory[offset]);
    // SAFETY: `memory` outlives the operations, which end inside `run`, and nothing writes it
    // meanwhile.
    let shared = |offset| unsafe { Part::shared(at(offset), 4096, None) };
    assert_eq!(
        b.run(Op::Read { file, offset: 0, parts: vec![shared(0)] }),
        Err(FaultKind::Invalid)
    );
    assert_eq!(
        b.run(Op::Write { file, offset: 0, parts: vec![shared(512)] }),
        Err(FaultKind::Invalid)
    );
    assert_eq!(b.run(Op::Write { file, offset: 0, parts: vec![shared(4096)] }), Ok(()));
    assert_eq!(b.block(0), 5);
}

#[test]
fn read_beyond_end_is_short_and_write_is_invalid() {
    let mut b = Fixture::new(1);
    let file = b.file;
    assert_eq!(b.run(read(file, 15, 1)), Ok(()));
    assert_eq!(b.run(read(file, 15, 2)), Err(FaultKind::Short));
    assert_eq!(b.run(write(file, 15, 2, 1)), Err(FaultKind::Invalid));
    let far = Op::Read { file, offset: u64::MAX - 4095, parts: vec![part(1, 0)] };
    assert_eq!(b.run(far), Err(FaultKind::Short));
    assert_eq!(b.run(read(FileId(99), 0, 1)), Err(FaultKind::Invalid));
    // A file number of another process is invalid in this one.
    let mut other = b.disk.connect().queue(1).expect("a live process");
    other.submit(0, read(file, 0, 1)).expect("room");
    let kinds: Vec<_> =
        drain(other.as_mut()).into_iter().map(|c| c.result.map_err(|f| f.kind)).collect();
    assert_eq!(kinds, [Err(FaultKind::Invalid)]);
}

#[test]
#[should_panic(
    expected = "write token=2 offset=8192 len=4096 and write token=1 offset=4096 len=8192"
)]
fn overlapping_writes_in_flight_panic_with_both_named() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.submit(1, write(file, 1, 2, 1));
    b.submit(2, write(file, 2, 1, 2));
}

#[test]
#[should_panic(expected = "read token=2 offset=0 len=8192 and write token=1 offset=4096 len=4096")]
fn read_overlapping_write_of_other_queue_panics() {
    let mut b = Fixture::new(1);
    let file = b.file;
    let mut other = b.process.queue(1).expect("a live process");
    b.submit(1, write(file, 1, 1, 1));
    let refused = other.submit(2, read(file, 0, 2));
    panic!("taken without a word: {refused:?}");
}

#[test]
fn overlapping_reads_and_adjacent_writes_succeed() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.submit(1, read(file, 0, 2));
    b.submit(2, read(file, 1, 2));
    b.submit(3, write(file, 3, 1, 1));
    assert!(b.finish().iter().all(|c| c.result.is_ok()));
    // A returned operation is no longer in flight.
    b.submit(4, write(file, 0, 2, 1));
    assert!(b.finish().iter().all(|c| c.result.is_ok()));
}

#[test]
fn submit_to_full_queue_returns_operation() {
    let b = Fixture::new(1);
    let file = b.file;
    let mut small = b.process.queue(1).expect("a live process");
    small.submit(1, write(file, 0, 1, 1)).expect("room");
    assert_eq!((small.room(), small.in_flight()), (0, 1));
    let back = small.submit(2, write(file, 1, 1, 2)).expect_err("no room");
    assert_eq!(back.into_parts()[0].bytes()[0], 2);
    assert_eq!(b.process.queue(0).err().map(|f| f.kind), Some(FaultKind::Invalid));
}

#[test]
fn file_stays_locked_until_last_queue_is_dropped() {
    let Fixture { disk, process, queue, .. } = Fixture::new(1);
    let second = disk.connect();
    let open = || second.open(0, "f").map(|(_, len)| len).map_err(|f| f.kind);
    assert_eq!(open(), Err(FaultKind::Locked));
    assert_eq!(
        process.open(0, "f").map_err(|f| f.kind),
        Err(FaultKind::Locked),
        "even by its holder"
    );
    assert_eq!(second.remove(0, "f").map_err(|f| f.kind), Err(FaultKind::Locked));
    drop(process);
    assert_eq!(open(), Err(FaultKind::Locked), "a queue keeps its process's locks");
    drop(queue);
    assert_eq!(open(), Ok(16 * 4096));
}

#[test]
fn killed_process_fails_and_releases_locks() {
    let mut b = Fixture::new(1);
    let file = b.file;
    b.submit(1, read(file, 0, 1));
    b.process.kill();
    assert_eq!(
        b.finish().pop().map(|c| c.result.map_err(|f| f.kind)),
        Some(Err(FaultKind::Device))
    );
    assert_eq!(b.run(write(file, 0, 1, 1)), Err(FaultKind::Device));
    assert_eq!(b.block(0), 0);
    assert_eq!(b.process.create(0, "g", 4096).map_err(|f| f.kind), Err(FaultKind::Device));
    assert_eq!(b.process.queue(1).err().map(|f| f.kind), Some(FaultKind::Device));
    let next = b.disk.connect();
    assert_eq!(next.open(0, "f").map(|(_, len)| len), Ok(16 * 4096));
}

#[test]
fn file_number_from_before_crash_is_invalid() {
    let b = Fixture::new(1);
    let old = b.file;
    b.disk.crash(CrashMode::KeepAll, 1);
    let mut b = b.reopen();
    assert_ne!(b.file, old);
    assert_eq!(b.run(read(old, 0, 1)), Err(FaultKind::Invalid));
}

#[test]
fn control_operations_fail_with_specific_kinds() {
    let mut b = Fixture::new(1);
    let kind = |r: Result<FileId, pagelith_io::fault::IoFault>| r.map_err(|f| f.kind);
    assert_eq!(kind(b.process.create(0, "f", 4096)), Err(FaultKind::Exists));
    assert_eq!(kind(b.process.create(1, "f", 4096)), Err(FaultKind::Invalid));
    assert_eq!(kind(b.process.create(0, "a/b", 4096)), Err(FaultKind::Invalid));
    assert_eq!(b.process.open(0, "absent").map_err(|f| f.kind), Err(FaultKind::NotFound));
    assert_eq!(b.process.remove(0, "absent"), Ok(()));
    // Operations on a file that is removed while they are in flight.
    let file = b.file;
    b.submit(1, read(file, 0, 1));
    b.process.remove(0, "f").expect("own file");
    assert_eq!(
        b.finish().pop().map(|c| c.result.map_err(|f| f.kind)),
        Some(Err(FaultKind::NotFound))
    );
    assert_eq!(b.run(read(file, 0, 1)), Err(FaultKind::Invalid));
    assert_eq!((b.process.dirs(), b.process.dir_name(0)), (1, "sim0".to_string()));
}

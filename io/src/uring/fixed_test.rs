//! Reads into registered memory.

use proptest::prelude::*;
use tempfile::TempDir;

use super::entries::EntryRange;
use super::tests::{LONG, TruncatedDevice, queue_over_bytes};
use super::*;
use crate::buffer::{AlignedBuf, Part};
use crate::disk::FileId;
use crate::fault::{FaultKind, FaultOp};
use crate::registered::MemoryRange;
use crate::registered::Registration;

/// Bytes of a part that gets its own entry, and of one that does not.
const LONG_PART: usize = 128 << 10;
const SHORT_PART: usize = 4096;
pub(super) const FILE: usize = 1 << 20;

/// The pattern byte of a file at an offset.
pub(super) fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

fn queue_over_pattern(dir: &TempDir, depth: usize) -> Option<(UringQueue, FileId)> {
    let path = dir.path().join("pattern");
    std::fs::write(&path, (0..FILE).map(byte).collect::<Vec<u8>>()).unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    queue_over_bytes(file.into(), FILE as u64, depth)
}

pub(super) fn register(queue: &UringQueue, buf: &[u8]) -> Registration {
    queue.fixed.registered.add(MemoryRange { base: buf.as_ptr() as usize, len: buf.len() })
}

pub(super) fn buffer(len: usize) -> AlignedBuf {
    AlignedBuf::new(len).unwrap()
}

/// Read into `parts` from `offset`, and compare with the pattern.
pub(super) fn read(
    queue: &mut UringQueue,
    file: FileId,
    offset: usize,
    parts: Vec<Part>,
) -> Vec<Part> {
    queue.submit(1, Op::Read { file, offset: offset as u64, parts }).unwrap();
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.wait(&mut done, LONG);
    }
    assert_eq!((done.len(), queue.strays, queue.extra_entries), (1, 0, 0));
    let done = done.remove(0);
    done.result.unwrap();
    let parts = done.op.into_parts();
    let bytes = parts.iter().flat_map(|part| part.bytes());
    assert!(
        bytes.enumerate().all(|(i, b)| *b == byte(offset + i)),
        "wrong bytes from offset={offset}"
    );
    parts
}

#[test]
fn registered_memory_is_read_by_index_until_dropped() {
    let dir = TempDir::new().unwrap();
    let Some((mut queue, file)) = queue_over_pattern(&dir, 4) else { return };
    let (a, b) = (buffer(8 * SHORT_PART), buffer(8 * SHORT_PART));
    let (first, second) = (register(&queue, &a), register(&queue, &b[SHORT_PART..7 * SHORT_PART]));

    let parts = read(&mut queue, file, 4096, vec![a.into_part()]);
    assert_eq!(queue.fixed.made, 1);
    let a = parts.into_iter().next().unwrap();
    // The second half of a registered buffer, and a part that begins before the registered range.
    let (front, back) = a.split(3 * SHORT_PART);
    read(&mut queue, file, 512, vec![back]);
    assert_eq!(queue.fixed.made, 2);
    let b = read(&mut queue, file, 0, vec![b.into_part()]).remove(0);
    assert_eq!(queue.fixed.made, 2, "the front of the part is not registered");

    drop(first);
    read(&mut queue, file, 1024, vec![front]);
    assert_eq!(queue.fixed.made, 2, "a dropped registration was used");
    let (_, rest) = b.split(SHORT_PART);
    let rest = read(&mut queue, file, 2048, vec![rest]).remove(0);
    assert_eq!(queue.fixed.made, 2, "the end of the part is not registered");
    read(&mut queue, file, 2048, vec![rest.split(6 * SHORT_PART).0]);
    assert_eq!(queue.fixed.made, 3, "the second registration ended with the first");
    drop(second);
    assert!(!queue.fixed.refresh(&queue.ring));
}

#[test]
fn long_registered_parts_get_own_entries() {
    let dir = TempDir::new().unwrap();
    let Some((mut queue, file)) = queue_over_pattern(&dir, 8) else { return };
    let pool = buffer(4 * LONG_PART);
    let _pool = register(&queue, &pool);
    let mut pool = pool.into_part();
    let mut parts = Vec::new();
    for _ in 0..3 {
        let (long, rest) = pool.split(LONG_PART);
        parts.extend([buffer(SHORT_PART).into_part(), long]);
        pool = rest;
    }
    parts.push(buffer(SHORT_PART).into_part());
    let parts = read(&mut queue, file, 512, parts);
    assert_eq!((parts.len(), queue.fixed.made, queue.fixed.live), (7, 3, 0));
    // No room for the extra entries: one entry for all parts, without a registered buffer.
    queue.extra_entries_max = 5;
    read(&mut queue, file, 1024, parts);
    assert_eq!(queue.fixed.made, 3);
    assert!(!queue.push(0), "a number that was never given");
}

#[test]
fn buffer_list_is_unchanged_while_fixed_read_in_flight() {
    let dir = TempDir::new().unwrap();
    let Some((mut queue, file)) = queue_over_pattern(&dir, 4) else { return };
    let (a, b) = (buffer(SHORT_PART), buffer(SHORT_PART));
    let gone = register(&queue, &a);
    queue.submit(1, Op::Read { file, offset: 0, parts: vec![a.into_part()] }).unwrap();
    drop(gone);
    let _b = register(&queue, &b);
    // The first read is not even submitted: with a new list the kernel would use other memory for
    // its index.
    queue.submit(2, Op::Read { file, offset: 0, parts: vec![b.into_part()] }).unwrap();
    assert_eq!((queue.fixed.made, queue.fixed.live), (1, 1));
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.wait(&mut done, LONG);
    }
    let mut parts = Vec::new();
    for done in done {
        done.result.unwrap();
        parts.extend(done.op.into_parts());
    }
    assert!(parts.iter().all(|part| part.bytes().iter().enumerate().all(|(i, b)| *b == byte(i))));
    for part in parts {
        read(&mut queue, file, 0, vec![part]);
    }
    assert_eq!(queue.fixed.made, 2);
}

#[test]
fn broken_ring_hands_back_split_operation_once() {
    let dir = TempDir::new().unwrap();
    let Some((mut queue, file)) = queue_over_pattern(&dir, 4) else { return };
    let pool = buffer(LONG_PART);
    let _pool = register(&queue, &pool);
    let parts = vec![buffer(SHORT_PART).into_part(), pool.into_part()];
    queue.submit(1, Op::Read { file, offset: 0, parts }).unwrap();
    assert_eq!((queue.pending.len(), queue.extra_entries, queue.fixed.live), (2, 1, 1));
    queue.give_up(Errno::BADF);
    assert_eq!((queue.in_flight(), queue.extra_entries, queue.fixed.live), (1, 0, 0));
    let mut done = Vec::new();
    queue.wait(&mut done, LONG);
    assert_eq!(done.len(), 1);
    assert_eq!(done.remove(0).result.unwrap_err().errno, Errno::BADF.raw_os_error());
}

#[test]
fn split_read_past_end_of_device_is_short() {
    let dir = TempDir::new().unwrap();
    let image = dir.path().join("image");
    std::fs::write(&image, vec![7; FILE]).unwrap();
    let device = match TruncatedDevice::new((LONG_PART + SHORT_PART) as u64, &image) {
        Ok(device) => device,
        Err(why) => return eprintln!("skipped: no loop device: {why}"),
    };
    let file = std::fs::File::options().read(true).write(true).open(&device.0).unwrap();
    crate::create::set_direct(&file.try_clone().unwrap().into(), true).unwrap();
    let Some((mut queue, file)) = queue_over_bytes(file.into(), FILE as u64, 4) else { return };
    let pool = buffer(2 * LONG_PART);
    let _pool = register(&queue, &pool);
    let (first, second) = pool.into_part().split(LONG_PART);
    let parts = vec![buffer(SHORT_PART).into_part(), first, second];
    queue.submit(1, Op::Read { file, offset: 0, parts }).unwrap();
    let mut done = Vec::new();
    while queue.in_flight() > 0 {
        queue.wait(&mut done, LONG);
    }
    assert_eq!((done.len(), queue.fixed.made), (1, 2));
    let fault = done.remove(0).result.expect_err("short");
    assert_eq!(fault.kind, FaultKind::Short, "{fault}");
    assert!(fault.detail.contains("moved=135168 wanted=266240"), "{fault}");
}

#[test]
fn unmapped_memory_registration_is_refused_and_reads_work() {
    let dir = TempDir::new().unwrap();
    let Some((mut queue, file)) = queue_over_pattern(&dir, 4) else { return };
    let unmapped = MemoryRange { base: 4096, len: 4096 };
    let fault = may_register(unmapped).expect_err("page one is mapped");
    assert_eq!((fault.op, fault.errno), (FaultOp::Register, Errno::FAULT.raw_os_error()));
    let good = buffer(SHORT_PART);
    may_register(MemoryRange { base: good.as_ptr() as usize, len: good.len() }).unwrap();
    // A range that cannot be registered disables the other ranges too, and fails no read.
    let _both = (queue.fixed.registered.add(unmapped), register(&queue, &good));
    read(&mut queue, file, 0, vec![good.into_part()]);
    assert_eq!(queue.fixed.made, 0);
}

proptest! {
    /// The ranges cover all parts in order, and each begins where the previous ends.
    #[test]
    fn entry_ranges_cover_parts_in_order(
        parts in prop::collection::vec((any::<bool>(), prop::sample::select(vec![512, 4096, LONG_PART, LONG_PART + 512])), 1..9),
        extra_max in 0usize..12,
    ) {
        let registered = Arc::new(RegisteredMemory::default());
        let mut fixed = FixedBuffers::new(registered.clone());
        let buffers: Vec<_> = parts.iter().map(|(_, len)| buffer(*len)).collect();
        let all = buffers.iter().zip(&parts).filter(|(_, (is, _))| *is);
        let _registrations: Vec<_> = all.map(|(buf, _)| registered.add(MemoryRange { base: buf.as_ptr() as usize, len: buf.len() })).collect();
        let Ok(ring) = ring::build(1) else { return Ok(()) };
        prop_assert_eq!(fixed.refresh(&ring), parts.iter().any(|(is, _)| *is));
        let lens: Vec<usize> = parts.iter().map(|(_, len)| *len).collect();
        let parts: Vec<Part> = buffers.into_iter().map(AlignedBuf::into_part).collect();
        let ranges: Vec<EntryRange> = fixed.read_ranges(&parts, 4096, extra_max).iter().copied().collect();
        prop_assert!(ranges.len() <= extra_max + 1);
        let (mut next, mut at) = (0, 0usize);
        for range in &ranges {
            prop_assert_eq!((range.first, range.at), (next, at as u64));
            prop_assert!(range.count > 0 && (range.fixed.is_none() || range.count == 1));
            prop_assert!(at.is_multiple_of(4096), "a range from offset {}", at);
            next += range.count;
            at += lens[range.first..][..range.count].iter().sum::<usize>();
        }
        prop_assert_eq!(next, parts.len());
    }
}

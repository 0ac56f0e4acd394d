//! A byte ring from one process to another, with wake-ups for a side that sleeps.
//!
//! Each side counts the bytes that it moved, in 64 bits that never wrap, and publishes its count
//! after the copy. Invariant: `READ <= WRITTEN <= READ + RING_BYTES`, and the bytes between the two
//! counts are the reader's.
//!
//! A side that is about to sleep sets its flag, checks the counts once more, and then sleeps. The
//! other side checks the flag after each count that it publishes, and wakes the sleeper. A fence
//! between store and load on both sides ensures that at least one of them sees the other's store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use super::SharedMemory;

/// Capacity of a ring in bytes: a power of two, small enough to stay in a core's cache.
pub const RING_BYTES: usize = 512 << 10;
/// Bytes of the header before them, which holds the counts.
const HEAD_BYTES: usize = 4096;
/// Bytes of memory that a ring occupies.
pub const RING_MEMORY_BYTES: usize = HEAD_BYTES + RING_BYTES;

/// Offsets of the counts and flags, each in a cache line of its own.
const WRITTEN: usize = 0;
const READ: usize = 128;
const READER_SLEEPS: usize = 256;
const WRITER_SLEEPS: usize = 384;

/// The other process wrote an impossible count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidRingCount;

struct Ring {
    memory: Arc<SharedMemory>,
    at: usize,
}

impl Ring {
    fn count(&self, at: usize) -> &AtomicU64 {
        let cells: *const AtomicU8 = self.memory.cells(self.at + at, 8).as_ptr();
        // SAFETY: eight bytes inside of the mapping, as `cells` checked, at a multiple of eight:
        // mappings are page-aligned, rings begin at multiples of 4096 and counts at multiples of
        // 128. Atomics may change under a shared borrow.
        unsafe { &*cells.cast::<AtomicU64>() }
    }

    fn flag(&self, at: usize) -> &AtomicU32 {
        let cells: *const AtomicU8 = self.memory.cells(self.at + at, 4).as_ptr();
        // SAFETY: as in `count`.
        unsafe { &*cells.cast::<AtomicU32>() }
    }

    /// Clear the flag of a sleeping side; true if it was set, and then the caller must wake it.
    fn take_sleeper(&self, at: usize) -> bool {
        fence(Ordering::SeqCst);
        let flag = self.flag(at);
        flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
    }

    fn sleep(&self, at: usize, sleeps: bool) {
        self.flag(at).store(u32::from(sleeps), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The two ranges of memory of the `len` bytes from count `from` on.
    fn ranges(&self, from: u64, len: usize) -> [(usize, usize); 2] {
        let start = (from % RING_BYTES as u64) as usize;
        let first = len.min(RING_BYTES - start);
        let bytes = self.at + HEAD_BYTES;
        [(bytes + start, first), (bytes, len - first)]
    }
}

/// The writing end.
pub struct RingWriter {
    ring: Ring,
    written: u64,
}

impl RingWriter {
    fn new(memory: Arc<SharedMemory>, at: usize) -> RingWriter {
        RingWriter { ring: Ring { memory, at }, written: 0 }
    }

    /// Free bytes.
    pub fn room(&self) -> Result<usize, InvalidRingCount> {
        let read = self.ring.count(READ).load(Ordering::Acquire);
        match self.written.checked_sub(read) {
            Some(held) if held <= RING_BYTES as u64 => Ok(RING_BYTES - held as usize),
            _ => Err(InvalidRingCount),
        }
    }

    /// Write as much of `bytes` as fits; returns how much. The reader does not see it before
    /// [`RingWriter::publish`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, InvalidRingCount> {
        let len = self.room()?.min(bytes.len());
        let [(first, most), (second, _)] = self.ring.ranges(self.written, len);
        let (one, other) = bytes[..len].split_at(most);
        self.ring.memory.copy_in(first, one);
        self.ring.memory.copy_in(second, other);
        self.written += len as u64;
        Ok(len)
    }

    /// Make the written bytes visible to the reader; returns whether the reader sleeps and must be
    /// woken.
    pub fn publish(&mut self) -> bool {
        self.ring.count(WRITTEN).store(self.written, Ordering::Release);
        self.ring.take_sleeper(READER_SLEEPS)
    }

    /// As [`RingWriter::publish`], without waking: a sleeping reader sleeps on, and is woken by the
    /// next publish.
    pub fn publish_without_wake(&mut self) {
        self.ring.count(WRITTEN).store(self.written, Ordering::Release);
    }

    /// Set or clear the flag that this side sleeps until the ring has room.
    pub fn sleep(&self, sleeps: bool) {
        self.ring.sleep(WRITER_SLEEPS, sleeps);
    }
}

/// The reading end.
pub struct RingReader {
    ring: Ring,
    read: u64,
}

impl RingReader {
    fn new(memory: Arc<SharedMemory>, at: usize) -> RingReader {
        RingReader { ring: Ring { memory, at }, read: 0 }
    }

    /// Bytes that can be read.
    pub fn available(&self) -> Result<usize, InvalidRingCount> {
        let written = self.ring.count(WRITTEN).load(Ordering::Acquire);
        match written.checked_sub(self.read) {
            Some(held) if held <= RING_BYTES as u64 => Ok(held as usize),
            _ => Err(InvalidRingCount),
        }
    }

    /// Fill as much of `to` as can be read; returns how much. The writer may reuse the space after
    /// [`RingReader::publish`].
    pub fn read(&mut self, to: &mut [u8]) -> Result<usize, InvalidRingCount> {
        let len = self.available()?.min(to.len());
        let [(first, most), (second, _)] = self.ring.ranges(self.read, len);
        let (one, other) = to[..len].split_at_mut(most);
        self.ring.memory.copy_out(first, one);
        self.ring.memory.copy_out(second, other);
        self.read += len as u64;
        Ok(len)
    }

    /// Return the space of the read bytes to the writer; returns whether the writer sleeps and must
    /// be woken.
    pub fn publish(&mut self) -> bool {
        self.ring.count(READ).store(self.read, Ordering::Release);
        self.ring.take_sleeper(WRITER_SLEEPS)
    }

    /// Set or clear the flag that this side sleeps until bytes arrive.
    pub fn sleep(&self, sleeps: bool) {
        self.ring.sleep(READER_SLEEPS, sleeps);
    }
}

/// Bytes of memory with two rings, one for each direction.
pub const PAIR_MEMORY_BYTES: usize = 2 * RING_MEMORY_BYTES;

/// This side's ends of the two rings in `memory`; the `first` side writes to the first of them.
pub fn pair(memory: SharedMemory, first: bool) -> (RingWriter, RingReader) {
    let memory = Arc::new(memory);
    let at = |second: bool| if second { RING_MEMORY_BYTES } else { 0 };
    (RingWriter::new(memory.clone(), at(!first)), RingReader::new(memory, at(first)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn both_sides() -> ((RingWriter, RingReader), (RingWriter, RingReader)) {
        let memory = SharedMemory::new(PAIR_MEMORY_BYTES).expect("memory");
        let fd = rustix::io::dup(&memory).expect("another descriptor");
        let theirs = SharedMemory::of(fd, PAIR_MEMORY_BYTES).expect("as it was made");
        (pair(memory, true), pair(theirs, false))
    }

    #[test]
    fn ring_delivers_bytes_in_order_over_many_laps() {
        let ((mut writer_a, mut reader_a), (mut writer_b, mut reader_b)) = both_sides();
        let (mut sent, mut received, mut back) = (0u64, 0u64, 0u64);
        let byte = |at: u64| (at ^ (at >> 8) ^ (at >> 17)) as u8;
        for round in 0..400u64 {
            let len = (round * 7919 % 300_000) as usize;
            let bytes: Vec<u8> = (sent..).take(len).map(byte).collect();
            let wrote = writer_a.write(&bytes).expect("valid counts");
            assert_eq!(wrote, len.min(RING_BYTES - (sent - received) as usize));
            sent += wrote as u64;
            assert_eq!(
                reader_b.available(),
                Ok((sent - wrote as u64 - received) as usize),
                "seen before it was published"
            );
            assert!(!writer_a.publish());
            let mut to = vec![0; (round * 104_729 % 280_000) as usize];
            let read = reader_b.read(&mut to).expect("valid counts");
            assert!(
                to[..read].iter().zip(received..).all(|(b, at)| *b == byte(at)),
                "round={round}"
            );
            received += read as u64;
            reader_b.publish();
            // The other direction has counts and bytes of its own.
            assert_eq!(writer_b.write(&[round as u8]), Ok(1));
            writer_b.publish();
            let mut one = [0; 2];
            assert_eq!((reader_a.read(&mut one), one[0]), (Ok(1), round as u8));
            reader_a.publish();
            back += 1;
        }
        assert!(received > 20 * RING_BYTES as u64 && back == 400);
    }

    #[test]
    fn sleeping_side_is_woken_once() {
        let ((mut writer, _), (_, mut reader)) = both_sides();
        reader.sleep(true);
        writer.write(&[1]).expect("room");
        assert!(writer.publish());
        writer.write(&[2]).expect("room");
        assert!(!writer.publish(), "it is awake");
        reader.sleep(true);
        writer.write(&[3]).expect("room");
        writer.publish_without_wake();
        assert_eq!(reader.available(), Ok(3), "the bytes are visible");
        assert!(writer.publish(), "it still sleeps");
        reader.sleep(true);
        reader.sleep(false);
        assert!(!writer.publish());
        writer.write(&vec![0; RING_BYTES]).expect("room for some");
        writer.publish();
        assert_eq!(writer.room(), Ok(0));
        writer.sleep(true);
        reader.read(&mut [0; 10]).expect("bytes");
        assert!(reader.publish() && writer.room() == Ok(10));
    }

    #[test]
    fn impossible_ring_counts_are_reported() {
        let ((mut writer, mut reader), _) = both_sides();
        for wrong in [RING_BYTES as u64 + 1, u64::MAX, 1 << 40] {
            reader.ring.count(WRITTEN).store(wrong, Ordering::Relaxed);
            assert_eq!(
                (reader.available(), reader.read(&mut [0; 100])),
                (Err(InvalidRingCount), Err(InvalidRingCount))
            );
        }
        writer.write(&[0; 100]).expect("room");
        for wrong in [101, u64::MAX] {
            writer.ring.count(READ).store(wrong, Ordering::Relaxed);
            assert_eq!(
                (writer.room(), writer.write(&[0; 100])),
                (Err(InvalidRingCount), Err(InvalidRingCount))
            );
        }
        // A count that goes backwards is invalid too: bytes that were read cannot come again.
        reader.ring.count(WRITTEN).store(50, Ordering::Relaxed);
        reader.read(&mut [0; 50]).expect("bytes");
        reader.ring.count(WRITTEN).store(49, Ordering::Relaxed);
        assert_eq!(reader.available(), Err(InvalidRingCount));
    }

    #[test]
    fn unsealed_or_missized_memory_is_refused() {
        let open =
            memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&open, PAIR_MEMORY_BYTES as u64).expect("grown");
        assert!(SharedMemory::of(open, PAIR_MEMORY_BYTES).is_err(), "it can shrink");
        let small = SharedMemory::new(4096).expect("memory");
        assert!(SharedMemory::of(small.fd, PAIR_MEMORY_BYTES).is_err());
        let dir = tempfile::tempfile().expect("a file");
        assert!(SharedMemory::of(dir.into(), PAIR_MEMORY_BYTES).is_err(), "not shared memory");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a thread for each side is what is tested")]
    fn ring_streams_between_two_threads() {
        const BYTES: u64 = 40 << 20;
        let ((mut writer, _), (_, mut reader)) = both_sides();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let (mut at, mut chunk) = (0u64, vec![0u8; 70_001]);
                while at < BYTES {
                    let len = chunk.len().min((BYTES - at) as usize);
                    for (byte, at) in chunk[..len].iter_mut().zip(at..) {
                        *byte = ((at * 31) >> 5) as u8;
                    }
                    let mut done = 0;
                    while done < len {
                        done += writer.write(&chunk[done..len]).expect("valid counts");
                        writer.publish();
                        std::hint::spin_loop();
                    }
                    at += len as u64;
                }
            });
            let (mut at, mut to) = (0u64, vec![0u8; 33_333]);
            while at < BYTES {
                let read = reader.read(&mut to).expect("valid counts");
                assert!(
                    to[..read].iter().zip(at..).all(|(byte, at)| *byte == ((at * 31) >> 5) as u8),
                    "at={at}"
                );
                at += read as u64;
                reader.publish();
                std::hint::spin_loop();
            }
        });
    }
}

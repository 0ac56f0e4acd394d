//! A ring of bytes from one process to another, and who sleeps at it.
//!
//! Each side counts the bytes that it moved, in 64 bits that never wrap, and publishes its count behind what it did: what
//! lies between the two counts is the reader's. A side that is about to sleep says so, looks once more, and is woken by
//! the other one, which looks for sleepers behind each count that it publishes; the fences between store and look are
//! what makes one of the two see the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering, fence};

use super::SharedMemory;

/// Bytes that a ring holds: a power of two, little enough that what goes through stays in a core's cache.
pub const RING_BYTES: usize = 512 << 10;
/// Bytes of the counts before them.
const HEAD_BYTES: usize = 4096;
/// Bytes of memory that a ring takes.
pub const RING_MEMORY_BYTES: usize = HEAD_BYTES + RING_BYTES;

/// Where the counts lie, each in a cache line of its own.
const WRITTEN: usize = 0;
const READ: usize = 128;
const READER_SLEEPS: usize = 256;
const WRITER_SLEEPS: usize = 384;

/// The other process wrote a count that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

struct Ring {
    memory: Arc<SharedMemory>,
    at: usize,
}

impl Ring {
    fn count(&self, at: usize) -> &AtomicU64 {
        let cells: *const AtomicU8 = self.memory.cells(self.at + at, 8).as_ptr();
        // SAFETY: eight bytes inside of the mapping, as `cells` checked, at a multiple of eight: mappings begin at a page,
        // rings at multiples of 4096 and counts at multiples of 128. Atomics may change under a shared borrow.
        unsafe { &*cells.cast::<AtomicU64>() }
    }

    fn flag(&self, at: usize) -> &AtomicU32 {
        let cells: *const AtomicU8 = self.memory.cells(self.at + at, 4).as_ptr();
        // SAFETY: as in `count`.
        unsafe { &*cells.cast::<AtomicU32>() }
    }

    /// Whether somebody sleeps there, who is to be woken by whoever asks.
    fn take_sleeper(&self, at: usize) -> bool {
        fence(Ordering::SeqCst);
        let flag = self.flag(at);
        flag.load(Ordering::Relaxed) != 0 && flag.swap(0, Ordering::Relaxed) != 0
    }

    fn sleep(&self, at: usize, sleeps: bool) {
        self.flag(at).store(u32::from(sleeps), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The stretches of the ring that the `len` bytes from count `from` on lie in.
    fn stretches(&self, from: u64, len: usize) -> [(usize, usize); 2] {
        let start = (from % RING_BYTES as u64) as usize;
        let first = len.min(RING_BYTES - start);
        let bytes = self.at + HEAD_BYTES;
        [(bytes + start, first), (bytes, len - first)]
    }
}

/// The end that bytes go in at.
pub struct RingWriter {
    ring: Ring,
    written: u64,
}

impl RingWriter {
    pub(super) fn new(memory: Arc<SharedMemory>, at: usize) -> RingWriter {
        RingWriter { ring: Ring { memory, at }, written: 0 }
    }

    /// Bytes that there is room for.
    pub fn room(&self) -> Result<usize, Broken> {
        let read = self.ring.count(READ).load(Ordering::Acquire);
        match self.written.checked_sub(read) {
            Some(held) if held <= RING_BYTES as u64 => Ok(RING_BYTES - held as usize),
            _ => Err(Broken),
        }
    }

    /// Write as much of `bytes` as there is room for; how much. Nobody sees it before [`RingWriter::publish`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        let len = self.room()?.min(bytes.len());
        let [(first, most), (second, _)] = self.ring.stretches(self.written, len);
        let (one, other) = bytes[..len].split_at(most);
        self.ring.memory.copy_in(first, one);
        self.ring.memory.copy_in(second, other);
        self.written += len as u64;
        Ok(len)
    }

    /// Let the reader see what was written; whether it sleeps, and has to be woken.
    pub fn publish(&mut self) -> bool {
        self.ring.count(WRITTEN).store(self.written, Ordering::Release);
        self.ring.take_sleeper(READER_SLEEPS)
    }

    /// Let the reader see it when it looks by itself: a sleeper sleeps on, and is woken by what is published next.
    pub fn publish_quietly(&mut self) {
        self.ring.count(WRITTEN).store(self.written, Ordering::Release);
    }

    /// Say that this side is about to sleep until there is room, or not any more.
    pub fn sleep(&self, sleeps: bool) {
        self.ring.sleep(WRITER_SLEEPS, sleeps);
    }
}

/// The end that bytes come out at.
pub struct RingReader {
    ring: Ring,
    read: u64,
}

impl RingReader {
    pub(super) fn new(memory: Arc<SharedMemory>, at: usize) -> RingReader {
        RingReader { ring: Ring { memory, at }, read: 0 }
    }

    /// Bytes that are there.
    pub fn available(&self) -> Result<usize, Broken> {
        let written = self.ring.count(WRITTEN).load(Ordering::Acquire);
        match written.checked_sub(self.read) {
            Some(held) if held <= RING_BYTES as u64 => Ok(held as usize),
            _ => Err(Broken),
        }
    }

    /// Fill as much of `to` as there is; how much. The room is the writer's again behind [`RingReader::publish`].
    pub fn read(&mut self, to: &mut [u8]) -> Result<usize, Broken> {
        let len = self.available()?.min(to.len());
        let [(first, most), (second, _)] = self.ring.stretches(self.read, len);
        let (one, other) = to[..len].split_at_mut(most);
        self.ring.memory.copy_out(first, one);
        self.ring.memory.copy_out(second, other);
        self.read += len as u64;
        Ok(len)
    }

    /// Let the writer have the room of what was read; whether it sleeps, and has to be woken.
    pub fn publish(&mut self) -> bool {
        self.ring.count(READ).store(self.read, Ordering::Release);
        self.ring.take_sleeper(WRITER_SLEEPS)
    }

    /// Say that this side is about to sleep until there are bytes, or not any more.
    pub fn sleep(&self, sleeps: bool) {
        self.ring.sleep(READER_SLEEPS, sleeps);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PAIR_MEMORY_BYTES, pair};
    use super::*;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    fn both() -> ((RingWriter, RingReader), (RingWriter, RingReader)) {
        let memory = SharedMemory::new(PAIR_MEMORY_BYTES).expect("memory");
        let fd = rustix::io::dup(&memory).expect("another descriptor");
        let theirs = SharedMemory::of(fd, PAIR_MEMORY_BYTES).expect("as it was made");
        (pair(memory, true), pair(theirs, false))
    }

    #[test]
    fn bytes_come_out_as_they_went_in_over_any_number_of_laps() {
        let ((mut a_out, mut a_in), (mut b_out, mut b_in)) = both();
        let (mut sent, mut got, mut back) = (0u64, 0u64, 0u64);
        let byte = |at: u64| (at ^ (at >> 8) ^ (at >> 17)) as u8;
        for round in 0..400u64 {
            let len = (round * 7919 % 300_000) as usize;
            let bytes: Vec<u8> = (sent..).take(len).map(byte).collect();
            let wrote = a_out.write(&bytes).expect("sane");
            assert_eq!(wrote, len.min(RING_BYTES - (sent - got) as usize));
            sent += wrote as u64;
            assert_eq!(
                b_in.available(),
                Ok((sent - wrote as u64 - got) as usize),
                "seen before it was published"
            );
            assert!(!a_out.publish());
            let mut to = vec![0; (round * 104_729 % 280_000) as usize];
            let read = b_in.read(&mut to).expect("sane");
            assert!(to[..read].iter().zip(got..).all(|(b, at)| *b == byte(at)), "round={round}");
            got += read as u64;
            b_in.publish();
            // The other way has counts and bytes of its own.
            assert_eq!(b_out.write(&[round as u8]), Ok(1));
            b_out.publish();
            let mut one = [0; 2];
            assert_eq!((a_in.read(&mut one), one[0]), (Ok(1), round as u8));
            a_in.publish();
            back += 1;
        }
        assert!(got > 20 * RING_BYTES as u64 && back == 400);
    }

    #[test]
    fn whoever_sleeps_is_woken_once() {
        let ((mut out, _), (_, mut inward)) = both();
        inward.sleep(true);
        out.write(&[1]).expect("room");
        assert!(out.publish());
        out.write(&[2]).expect("room");
        assert!(!out.publish(), "it is awake");
        inward.sleep(true);
        out.write(&[3]).expect("room");
        out.publish_quietly();
        assert_eq!(inward.available(), Ok(3), "it can be seen");
        assert!(out.publish(), "it sleeps still");
        inward.sleep(true);
        inward.sleep(false);
        assert!(!out.publish());
        out.write(&vec![0; RING_BYTES]).expect("room for some");
        out.publish();
        assert_eq!(out.room(), Ok(0));
        out.sleep(true);
        inward.read(&mut [0; 10]).expect("bytes");
        assert!(inward.publish() && out.room() == Ok(10));
    }

    #[test]
    fn counts_that_cannot_be_are_told_and_reach_no_byte() {
        let ((mut out, mut inward), _) = both();
        for wrong in [RING_BYTES as u64 + 1, u64::MAX, 1 << 40] {
            inward.ring.count(WRITTEN).store(wrong, Ordering::Relaxed);
            assert_eq!((inward.available(), inward.read(&mut [0; 100])), (Err(Broken), Err(Broken)));
        }
        out.write(&[0; 100]).expect("room");
        for wrong in [101, u64::MAX] {
            out.ring.count(READ).store(wrong, Ordering::Relaxed);
            assert_eq!((out.room(), out.write(&[0; 100])), (Err(Broken), Err(Broken)));
        }
        // Backwards, too: what was read cannot come again.
        inward.ring.count(WRITTEN).store(50, Ordering::Relaxed);
        inward.read(&mut [0; 50]).expect("bytes");
        inward.ring.count(WRITTEN).store(49, Ordering::Relaxed);
        assert_eq!(inward.available(), Err(Broken));
    }

    #[test]
    fn memory_that_may_shrink_or_is_of_another_length_is_refused() {
        let open = memfd_create("open", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("memory");
        ftruncate(&open, PAIR_MEMORY_BYTES as u64).expect("grown");
        assert!(SharedMemory::of(open, PAIR_MEMORY_BYTES).is_err(), "it may shrink");
        let small = SharedMemory::new(4096).expect("memory");
        assert!(SharedMemory::of(small.fd, PAIR_MEMORY_BYTES).is_err());
        let dir = tempfile::tempfile().expect("a file");
        assert!(SharedMemory::of(dir.into(), PAIR_MEMORY_BYTES).is_err(), "no memory at all");
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "a thread for each side is what is tested")]
    fn two_threads_move_a_stream_through() {
        const BYTES: u64 = 40 << 20;
        let ((mut out, _), (_, mut inward)) = both();
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
                        done += out.write(&chunk[done..len]).expect("sane");
                        out.publish();
                        std::hint::spin_loop();
                    }
                    at += len as u64;
                }
            });
            let (mut at, mut to) = (0u64, vec![0u8; 33_333]);
            while at < BYTES {
                let read = inward.read(&mut to).expect("sane");
                assert!(
                    to[..read].iter().zip(at..).all(|(byte, at)| *byte == ((at * 31) >> 5) as u8),
                    "at={at}"
                );
                at += read as u64;
                inward.publish();
                std::hint::spin_loop();
            }
        });
    }
}

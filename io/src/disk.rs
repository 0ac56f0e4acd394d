//! The disk seam: what the store asks of storage, and what it may rely on.
//!
//! Invariants that every side (io_uring, blocking, simulated) keeps:
//! - A [`Part`] moved into an [`Op`] belongs to the disk until its [`Completion`] hands it back. Nothing
//!   else reads or writes that memory in between, and the disk never touches it afterwards.
//! - A completion is `Ok` only if *every* byte of the operation was transferred. There is no count to
//!   misread: a short transfer is an [`IoFault`] of kind [`FaultKind::Short`].
//! - Each submitted operation completes exactly once, on the queue it was submitted to.
//! - Operations are unordered among themselves. A [`Op::Sync`] covers exactly the writes to its file whose
//!   completions had been *returned* by a queue of this disk before the sync was submitted.

use std::time::Duration;

use crate::buffer::Part;
use crate::fault::IoFault;
use crate::prefetch;
use crate::registered::Registration;

/// A file of the store, as [`Disk::create`] and [`Disk::open`] number them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// Which implementation moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// io_uring with O_DIRECT.
    Uring,
    /// Positioned reads and writes on helper threads, for kernels, containers and file systems that
    /// refuse io_uring or O_DIRECT.
    Blocking,
    /// A simulated disk.
    Simulated,
}

/// What a disk is and what it demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// Which implementation moves the bytes.
    pub side: Side,
    /// Whether transfers bypass the page cache.
    pub direct: bool,
    /// Alignment of a part's address in bytes, a power of two of at most 4096.
    pub memory_align: usize,
    /// Alignment of offsets and lengths in bytes, a power of two of at most 4096.
    pub offset_align: usize,
    /// Most parts that one operation may have.
    pub parts_max: usize,
    /// Why this side was chosen, for the line said at open.
    pub reason: String,
}

/// One operation. `offset` and the sum of the parts' lengths are multiples of `offset_align`, each part's
/// address and length are multiples of `memory_align`; checked in release builds too (kind `Invalid`).
#[derive(Debug)]
pub enum Op {
    /// Fill `parts` in order from `offset`. Every part must be exclusive.
    Read {
        /// The file.
        file: FileId,
        /// Byte offset in the file.
        offset: u64,
        /// Destinations, filled in order.
        parts: Vec<Part>,
    },
    /// Write `parts` in order at `offset`.
    Write {
        /// The file.
        file: FileId,
        /// Byte offset in the file.
        offset: u64,
        /// Sources, written in order.
        parts: Vec<Part>,
    },
    /// Make earlier writes to `file` durable (fdatasync).
    Sync {
        /// The file.
        file: FileId,
    },
}

impl Op {
    /// Total bytes of the operation's parts; 0 for a sync.
    pub fn bytes(&self) -> u64 {
        match self {
            Op::Read { parts, .. } | Op::Write { parts, .. } => parts.iter().map(|p| p.len() as u64).sum(),
            Op::Sync { .. } => 0,
        }
    }

    /// The operation's parts, empty for a sync.
    pub fn into_parts(self) -> Vec<Part> {
        match self {
            Op::Read { parts, .. } | Op::Write { parts, .. } => parts,
            Op::Sync { .. } => Vec::new(),
        }
    }
}

/// The end of an operation: its verdict, and its memory handed back.
#[derive(Debug)]
pub struct Completion {
    /// What the submitter named the operation.
    pub token: u64,
    /// `Ok` only if all of it happened.
    pub result: Result<(), IoFault>,
    /// The operation with its parts; what a failed read's parts hold is unspecified but initialised.
    pub op: Op,
}

impl Completion {
    /// Start bringing what a read begins with, so many bytes, into the cache: the disk wrote it to memory.
    pub fn expect(&self, bytes: usize) {
        if let Op::Read { parts, .. } = &self.op {
            parts.first().into_iter().for_each(|part| prefetch::front(part.bytes(), bytes));
        }
    }
}

/// One thread's way to the disk; it may go from thread to thread, with operations in flight too. Never blocks except in [`Queue::wait`]. Dropping a queue waits for the
/// operations still in flight (bounded), and leaks their memory rather than let the kernel write into it
/// after it was freed.
pub trait Queue: Send {
    /// How many operations may be submitted now.
    fn room(&self) -> usize;
    /// How many operations have been submitted and not been handed back.
    fn in_flight(&self) -> usize;
    /// Take an operation. With no room left it is handed back unharmed. An operation that can be seen to
    /// be wrong (alignment, unknown file) is taken and completes with a fault.
    fn submit(&mut self, token: u64, op: Op) -> Result<(), Op>;
    /// Move every finished operation to `done`; start what was submitted. Never waits.
    fn poll(&mut self, done: &mut Vec<Completion>);
    /// As `poll`, but wait until at least one operation finished, none is in flight, or `timeout` passed.
    fn wait(&mut self, done: &mut Vec<Completion>, timeout: Duration);
    /// Let dropping it wait no longer than `wait` for operations in flight; at first that is 30 s.
    fn limit_drop(&mut self, _wait: Duration) {}
}

/// Storage in one or several directories. Control operations block and are rare.
pub trait Disk: Send + Sync {
    /// What this disk is and demands.
    fn facts(&self) -> DiskFacts;
    /// Number of directories; `dir` arguments are below it.
    fn dirs(&self) -> usize;
    /// A directory's name for messages.
    fn dir_name(&self, dir: usize) -> String;
    /// Names and lengths of the regular files in a directory; empty if the directory does not exist.
    fn list(&self, dir: usize) -> Result<Vec<(String, u64)>, IoFault>;
    /// Create `name`, allocate all of `len` bytes (reading as zeros), lock it for one writer and sync file
    /// and directory. Directories are made as needed. On failure nothing is left behind, no block stays
    /// taken. An existing file is a fault of kind `Exists`.
    fn create(&self, dir: usize, name: &str, len: u64) -> Result<FileId, IoFault>;
    /// Open an existing file for reading and writing, and lock it: held by another opener, a fault of kind
    /// `Locked`; absent, of kind `NotFound`. The lock lives on the open description that transfers use, so
    /// that a killed process's transfer still in flight keeps it. Returns the file's length too.
    fn open(&self, dir: usize, name: &str) -> Result<(FileId, u64), IoFault>;
    /// Remove a file by name and sync the directory; absent is fine. A directory that this disk made goes with
    /// the last file in it.
    fn remove(&self, dir: usize, name: &str) -> Result<(), IoFault>;
    /// Whether every file that is open is still the one that its name leads to, and as long as it was: a fault of kind `Gone`
    /// names the first that is not. What was synced to it will not be found by the next open. Costs two system calls a file.
    fn check_names(&self) -> Result<(), IoFault>;
    /// The first bytes of a file, whoever has its lock, for messages alone.
    fn glance(&self, _dir: usize, _name: &str) -> Option<Vec<u8>> {
        None
    }
    /// Spare reads into this memory the looking up of its pages, as far as this side can, until the registration is dropped:
    /// `len` bytes from the address `base`, which are mapped, and to the same pages, all that while. Costs what looking all of
    /// them up does, here and at each queue's next read. A fault says why it cannot be had; reads are what they were then.
    fn register(&self, _base: usize, _len: usize) -> Result<Registration, IoFault> {
        Ok(Registration::none())
    }
    /// A queue for one thread that holds up to `depth` operations in flight.
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>, IoFault>;
}

//! The disk interface: the operations that the store needs from storage, and their contract.
//!
//! Invariants that every implementation (io_uring, blocking, simulated) keeps:
//! - A [`Part`] moved into an [`Op`] belongs to the disk until its [`Completion`] hands it back.
//!   Nothing else reads or writes that memory in between, and the disk never touches it afterwards.
//! - A completion is `Ok` only if *every* byte of the operation was transferred. There is no count
//!   to misread: a short transfer is an [`IoFault`] of kind
//!   [`FaultKind::Short`](crate::fault::FaultKind::Short).
//! - Each submitted operation completes exactly once, on the queue it was submitted to.
//! - Operations are unordered among themselves. A [`Op::Sync`] covers exactly the writes to its
//!   file whose completions had been *returned* by a queue of this disk before the sync was
//!   submitted.

use std::time::Duration;

use crate::buffer::Part;
use crate::fault::IoFault;
use crate::registered::Registration;

/// A file of the store: the number that [`Disk::create`] and [`Disk::open`] gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u32);

/// Which implementation moves the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoBackend {
    /// io_uring with O_DIRECT.
    Uring,
    /// Positioned reads and writes on helper threads, for kernels, containers and file systems that
    /// refuse io_uring or O_DIRECT.
    Blocking,
    /// A simulated disk.
    Simulated,
}

/// Properties of a disk and the alignment that it demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// The backend that moves the bytes.
    pub backend: IoBackend,
    /// Whether transfers bypass the page cache.
    pub direct: bool,
    /// Alignment of a part's address in bytes, a power of two of at most 4096.
    pub memory_align: usize,
    /// Alignment of offsets and lengths in bytes, a power of two of at most 4096.
    pub offset_align: usize,
    /// Most parts that one operation may have.
    pub parts_max: usize,
    /// The reason for choosing this backend, for the log line at open.
    pub reason: String,
}

/// One operation. `offset` and the sum of the parts' lengths are multiples of `offset_align`, each
/// part's address and length are multiples of `memory_align`; checked in release builds too (kind
/// `Invalid`).
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
            Op::Read { parts, .. } | Op::Write { parts, .. } => {
                parts.iter().map(|p| p.len() as u64).sum()
            }
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

/// A finished operation: its result, and its memory handed back.
#[derive(Debug)]
pub struct Completion {
    /// The number that the submitter gave the operation.
    pub token: u64,
    /// `Ok` only if every byte was transferred, or the sync succeeded.
    pub result: Result<(), IoFault>,
    /// The operation with its parts. After a failed read their bytes are unspecified but
    /// initialised.
    pub op: Op,
}

/// A queue of operations for one thread at a time; it may move to another thread, also with
/// operations in flight. Only [`Queue::wait`] blocks. Dropping a queue waits for the operations
/// still in flight (bounded). Memory and file of an operation that has not ended then stay in use
/// until it does.
pub trait Queue: Send {
    /// How many operations may be submitted now.
    fn room(&self) -> usize;
    /// How many operations have been submitted and not yet handed back.
    fn in_flight(&self) -> usize;
    /// Submit an operation. With no room left it is handed back unharmed. An operation with a
    /// detectable error (alignment, unknown file) is accepted and completes with a fault.
    fn submit(&mut self, token: u64, op: Op) -> Result<(), Op>;
    /// Move every finished operation to `done`; start the submitted ones. Never waits.
    fn poll(&mut self, done: &mut Vec<Completion>);
    /// As `poll`, but wait until at least one operation finished, none is in flight, or `timeout`
    /// passed.
    fn wait(&mut self, done: &mut Vec<Completion>, timeout: Duration);
    /// Bound the wait for operations in flight when this queue is dropped; the default is 30 s.
    fn set_drop_timeout(&mut self, _wait: Duration) {}
}

/// Storage in one or several directories. Control operations block and are rare.
pub trait Disk: Send + Sync {
    /// Properties and demands of this disk.
    fn facts(&self) -> DiskFacts;
    /// Number of directories; each `dir` argument is smaller.
    fn dirs(&self) -> usize;
    /// A directory's name for messages.
    fn dir_name(&self, dir: usize) -> String;
    /// Names and lengths of the regular files in a directory; empty if the directory does not
    /// exist.
    fn list(&self, dir: usize) -> Result<Vec<(String, u64)>, IoFault>;
    /// Create `name`, allocate all of `len` bytes (reading as zeros), lock it for one writer and
    /// sync file and directory. Directories are made as needed. A failure leaves no file and no
    /// allocated block. An existing file is a fault of kind `Exists`; a new one that another opener
    /// locks first is left to it, and the fault is of kind `Locked`.
    fn create(&self, dir: usize, name: &str, len: u64) -> Result<FileId, IoFault>;
    /// Open an existing file for reading and writing, and lock it. If another opener holds the
    /// lock, the fault is of kind `Locked`; if the file is absent, of kind `NotFound`. The lock
    /// belongs to the open file description that transfers use, so a transfer still in flight after
    /// its process was killed keeps the lock. Returns the file's length too.
    fn open(&self, dir: usize, name: &str) -> Result<(FileId, u64), IoFault>;
    /// Remove a file by name and sync the directory; it is no error if the file is absent. A
    /// directory that this disk made is removed with the last file in it.
    fn remove(&self, dir: usize, name: &str) -> Result<(), IoFault>;
    /// Check that each open file is still the one under its name, and not shorter than it was. A
    /// fault of kind `Gone` names the first that is not: data synced to it would be missing after
    /// the next open. Costs two system calls a file.
    fn check_names(&self) -> Result<(), IoFault>;
    /// The first bytes of a file, whether or not it is locked; for messages only.
    fn read_prefix(&self, _dir: usize, _name: &str) -> Option<Vec<u8>> {
        None
    }
    /// Register the `len` bytes at address `base`, as far as this backend can, so that reads into
    /// them skip the page lookup, until the registration is dropped. The memory must stay mapped
    /// to the same pages for that time. The cost is one lookup of all pages, now and at each
    /// queue's next read. A fault says why registration failed; reads work without it.
    fn register(&self, _base: usize, _len: usize) -> Result<Registration, IoFault> {
        Ok(Registration::none())
    }
    /// A queue for one thread that holds up to `depth` operations in flight.
    fn queue(&self, depth: usize) -> Result<Box<dyn Queue>, IoFault>;
}

//! Random faults: the kinds, their rates, and the record of strikes.
//!
//! Invariants:
//! - At most one fault strikes an operation when it executes, and at most one delays it.
//! - Which operations are struck follows from the seed of the rates and the operations alone.

use std::fmt;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::fault::{FaultKind, FaultOp};

/// A way in which a device fails or lies. Kinds that fail an operation end it with the fault that a
/// real backend would return; with the others the operation succeeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DiskFault {
    /// A read fails with EIO, half filled.
    ReadError,
    /// A read ends early: kind `Short`, half filled.
    ShortRead,
    /// A block of the range read becomes unreadable: EIO for this read and every later one until
    /// the block is written. Only the first of these reads is a strike.
    BadBlock,
    /// A read returns the bytes of another aligned range of the same file or another file of its
    /// kind.
    MisdirectedRead,
    /// A read returns the bytes from before the last write.
    StaleRead,
    /// A read returns one bit flipped; the data at rest is unchanged.
    BitFlipRead,
    /// A write fails with EIO; each of its sectors is old or new.
    WriteError,
    /// A write ends early: kind `Short`, and its first sectors are new.
    ShortWrite,
    /// A write is acknowledged and changes nothing.
    LostWrite,
    /// A write is acknowledged with at least one new and at least one old sector: a prefix, a
    /// suffix, or any.
    TornWrite,
    /// A write is acknowledged and lands whole at another aligned range of the same file or another
    /// file of its kind.
    MisdirectedWrite,
    /// A write is acknowledged and lands with one bit flipped.
    BitFlipAtRest,
    /// A sync fails with EIO; a later sync does not cover the data that was dirty either.
    SyncError,
    /// A create fails for lack of space.
    NoSpace,
    /// An operation takes a hundred times as long.
    Slow,
    /// An operation takes [`FaultRates::stuck_for`] longer.
    Stuck,
}

/// Factor of [`DiskFault::Slow`].
pub(crate) const SLOW_TIMES: u32 = 100;

/// Denominator of rates.
pub(crate) const MILLION: u64 = 1_000_000;

impl DiskFault {
    /// All kinds.
    pub const ALL: [DiskFault; 16] = [
        DiskFault::ReadError,
        DiskFault::ShortRead,
        DiskFault::BadBlock,
        DiskFault::MisdirectedRead,
        DiskFault::StaleRead,
        DiskFault::BitFlipRead,
        DiskFault::WriteError,
        DiskFault::ShortWrite,
        DiskFault::LostWrite,
        DiskFault::TornWrite,
        DiskFault::MisdirectedWrite,
        DiskFault::BitFlipAtRest,
        DiskFault::SyncError,
        DiskFault::NoSpace,
        DiskFault::Slow,
        DiskFault::Stuck,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            DiskFault::ReadError => "read_error",
            DiskFault::ShortRead => "short_read",
            DiskFault::BadBlock => "bad_block",
            DiskFault::MisdirectedRead => "misdirected_read",
            DiskFault::StaleRead => "stale_read",
            DiskFault::BitFlipRead => "bit_flip_read",
            DiskFault::WriteError => "write_error",
            DiskFault::ShortWrite => "short_write",
            DiskFault::LostWrite => "lost_write",
            DiskFault::TornWrite => "torn_write",
            DiskFault::MisdirectedWrite => "misdirected_write",
            DiskFault::BitFlipAtRest => "bit_flip_at_rest",
            DiskFault::SyncError => "sync_error",
            DiskFault::NoSpace => "no_space",
            DiskFault::Slow => "slow",
            DiskFault::Stuck => "stuck",
        }
    }

    /// Whether it can strike operations of this kind.
    pub fn strikes(self, op: FaultOp) -> bool {
        match op {
            FaultOp::Read => self.delays() || (self as u8) <= DiskFault::BitFlipRead as u8,
            FaultOp::Write => {
                self.delays() || (DiskFault::WriteError..=DiskFault::BitFlipAtRest).contains(&self)
            }
            FaultOp::Sync => self.delays() || self == DiskFault::SyncError,
            FaultOp::Create => self == DiskFault::NoSpace,
            _ => false,
        }
    }

    /// Whether it only delays an operation.
    pub fn delays(self) -> bool {
        matches!(self, DiskFault::Slow | DiskFault::Stuck)
    }

    /// How the struck operation fails; `None` if it succeeds.
    pub fn failure(self) -> Option<FaultKind> {
        use DiskFault::*;
        match self {
            ReadError | BadBlock | WriteError | SyncError => Some(FaultKind::Device),
            ShortRead | ShortWrite => Some(FaultKind::Short),
            NoSpace => Some(FaultKind::NoSpace),
            _ => None,
        }
    }
}

impl fmt::Display for DiskFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How often each kind of fault strikes; see [`super::SimDisk::set_faults`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRates {
    seed: u64,
    rates: [u32; DiskFault::ALL.len()],
    names: Vec<String>,
    stuck_for: Duration,
}

impl FaultRates {
    /// No faults, on all files; stuck operations take 30 s longer.
    pub fn new(seed: u64) -> FaultRates {
        let stuck_for = Duration::from_secs(30);
        FaultRates { seed, rates: [0; DiskFault::ALL.len()], names: Vec::new(), stuck_for }
    }

    /// Makes `fault` strike this many of a million operations that it can strike.
    ///
    /// # Panics
    /// If the rates of the faults that can strike an operation sum to more than a million.
    pub fn with(mut self, fault: DiskFault, millionths: u32) -> FaultRates {
        self.rates[fault as usize] = millionths;
        for op in [FaultOp::Read, FaultOp::Write, FaultOp::Sync, FaultOp::Create] {
            for delays in [false, true] {
                let sum: u64 = self.of(op, delays).map(|(_, rate)| u64::from(rate)).sum();
                assert!(sum <= MILLION, "rates exceed one million op={op} sum={sum}");
            }
        }
        self
    }

    /// Strikes only files whose names begin with one of these; with none, all files.
    pub fn only(mut self, names: &[&str]) -> FaultRates {
        self.names = names.iter().map(ToString::to_string).collect();
        self
    }

    /// Sets how much longer a stuck operation takes, in simulated time.
    pub fn stuck_for(mut self, time: Duration) -> FaultRates {
        self.stuck_for = time;
        self
    }

    /// The rate of a fault, in millionths.
    pub fn rate(&self, fault: DiskFault) -> u32 {
        self.rates[fault as usize]
    }

    /// The seed.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// The additional time of a stuck operation.
    pub(crate) fn stuck(&self) -> Duration {
        self.stuck_for
    }

    /// Whether files with this name may be struck.
    pub(crate) fn covers(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.iter().any(|start| name.starts_with(start.as_str()))
    }

    /// The faults with rates that can strike an operation: either those that delay it, or the
    /// others.
    pub(crate) fn of(&self, op: FaultOp, delays: bool) -> impl Iterator<Item = (DiskFault, u32)> {
        let all = DiskFault::ALL.into_iter().zip(self.rates);
        all.filter(move |(fault, rate)| *rate > 0 && fault.strikes(op) && fault.delays() == delays)
    }
}

/// An offset in a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileOffset {
    /// Directory number.
    pub dir: usize,
    /// File name.
    pub name: String,
    /// Byte offset in the file.
    pub offset: u64,
}

/// One fault that struck.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StrikeRecord {
    /// The struck operation's number in the log, [`super::LoggedOp::n`]. A delay strikes at
    /// submission and has the number of the last operation before it.
    pub n: u64,
    /// Simulated time.
    pub at: Mono,
    /// The fault.
    pub fault: DiskFault,
    /// The kind of operation.
    pub op: FaultOp,
    /// The directory number that the operation addressed.
    pub dir: usize,
    /// File name.
    pub name: String,
    /// Byte offset; 0 for a sync and a create.
    pub offset: u64,
    /// Bytes of the operation; for a create the file's length, 0 for a sync.
    pub len: u64,
    /// The range (of the operation's length) that a misdirected operation accessed instead; the
    /// byte that was flipped; the block that is bad.
    pub hit: Option<FileOffset>,
    /// Whether any byte, at rest or returned, differs from an honest device's. True for a fault
    /// that fails its operation, and for a delay.
    pub effective: bool,
}

impl fmt::Display for StrikeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StrikeRecord { n, at, fault, op, dir, name, offset, len, hit, effective } = self;
        write!(
            f,
            "n={n} at_ns={} {fault} {op} file=sim{dir}/{name} offset={offset} len={len}",
            at.0
        )?;
        if let Some(FileOffset { dir, name, offset }) = hit {
            write!(f, " hit=sim{dir}/{name} hit_offset={offset}")?;
        }
        write!(f, " effective={effective}")
    }
}

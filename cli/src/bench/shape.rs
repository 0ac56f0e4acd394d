//! The measured work: tier, operation, sizes and memory.

use std::time::Duration;

use clap::ValueEnum;
use pagelith::AlignedBuf;
use pagelith::layouts::align::align_up;
use serde::Serialize;

/// A tier to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BenchTier {
    /// The arena.
    Dram,
    /// The segment log.
    Ssd,
}

/// An operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BenchOp {
    /// Put new objects; on SSD until they are durable.
    Put,
    /// Read random objects.
    Get,
    /// Check whether objects exist.
    Exists,
    /// The same number of batches of gets and of puts. Latencies are those of gets.
    Mixed,
    /// Open the store after a simulated crash.
    Open,
    /// Open the store after it was closed.
    OpenClean,
}

/// Kind of the application's memory, also for the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum BufferKind {
    /// Huge pages, if the system has them.
    Huge,
    /// Pages of 4 KiB, as a host pool often has.
    Small,
    /// Pages of 4 KiB, registered with io_uring.
    Registered,
}

/// Minimum bytes of a mapping of `AlignedBuf::many` for huge pages.
pub(super) const HUGE_FROM: u64 = 4 << 20;

impl BufferKind {
    /// `count` adjacent buffers.
    pub(super) fn buffers(self, count: usize, len: usize) -> std::io::Result<Vec<AlignedBuf>> {
        match self {
            BufferKind::Huge => {
                // A shorter mapping has small pages.
                let least = HUGE_FROM.div_ceil(align_up(len.max(1) as u64)) as usize;
                let mut buffers = AlignedBuf::many(count.max(least), len)?;
                buffers.truncate(count);
                Ok(buffers)
            }
            BufferKind::Small | BufferKind::Registered => AlignedBuf::sparse(count, len),
        }
    }

    /// Address and length of the buffers, if they are to be registered.
    pub(super) fn registered(self, buffers: &[AlignedBuf]) -> Option<(*const u8, usize)> {
        let (first, last) = (buffers.first()?, buffers.last()?);
        let end = last.as_ptr() as usize + last.len();
        (self == BufferKind::Registered).then(|| (first.as_ptr(), end - first.as_ptr() as usize))
    }
}

/// The sizes of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct BenchShape {
    pub(super) tier: BenchTier,
    pub(super) op: BenchOp,
    pub(super) object_bytes: usize,
    pub(super) objects: u64,
    pub(super) batch: usize,
    pub(super) depth: usize,
    /// Estimate of the index capacity in objects, before the store is open.
    pub(super) index_objects: u64,
    /// Bytes per second of a concurrent writer.
    pub(super) write_rate: Option<u64>,
    pub(super) memory: BufferKind,
    /// No object is read before the measurement.
    pub(super) just_opened: bool,
    pub(super) round: Duration,
    pub(super) rounds: u32,
    pub(super) seed: u64,
}

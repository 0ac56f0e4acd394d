//! The limits of a measurement: the same bytes are moved without a store. On SSD these are plain
//! reads or writes through the store's disk interface, of the same sizes, at the depth of a batch.
//! In DRAM it is a copy, and for `exists` a read of the same number of cache lines.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use pagelith::AlignedBuf;
use pagelith::config::SsdIo;
use pagelith::io::hashed_copy::{CopyMode, SourcePiece, copy_blocks};
use pagelith::layouts::align::align_up;
use pagelith::layouts::checksum::{BLOCK_BYTES, block_lengths};

use super::baseline::Baseline;
use super::file_transfers::LimitFile;
use super::round::{Round, Timer};
use super::shape::{BenchOp, BenchShape, BenchTier};
use crate::rng::SplitMix64;

/// A limit, ready to be measured.
pub(super) enum Limit {
    /// Reads of cache lines.
    Probes(Probes),
    /// Copies in memory.
    Memory(MemoryCopies),
    /// Transfers of a file.
    File(LimitFile),
}

impl Limit {
    /// Prepare the limit, or one of the baselines.
    pub(super) fn prepare(
        shape: BenchShape,
        baseline: Option<Baseline>,
        dir: &Path,
        store: &[PathBuf],
        io: Option<SsdIo>,
    ) -> anyhow::Result<Limit> {
        Ok(match (shape.op, shape.tier) {
            (BenchOp::Exists, _) => Limit::Probes(Probes::new(shape)?),
            (_, BenchTier::Dram) => Limit::Memory(MemoryCopies::new(shape)?),
            (BenchOp::Get, BenchTier::Ssd) => {
                Limit::File(LimitFile::of_store(shape, baseline, store, io)?)
            }
            (_, BenchTier::Ssd) => Limit::File(LimitFile::created(shape, baseline, dir, io)?),
        })
    }

    /// The description for the report.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Limit::Probes(_) => "a line of memory for each key",
            Limit::Memory(m) => match m.shape.op {
                BenchOp::Put => "memcpy",
                BenchOp::Mixed => "copy and checksum, then memcpy",
                BenchOp::Get | BenchOp::Exists | BenchOp::Open | BenchOp::OpenClean => {
                    "copy and checksum"
                }
            },
            Limit::File(file) => match (file.baseline, file.shape.op) {
                (Some(baseline), _) => baseline.what(),
                (None, BenchOp::Put) => "bare writes and a sync",
                (None, BenchOp::Mixed) => "bare reads and bare writes at once, and a sync",
                (None, BenchOp::Get | BenchOp::Exists | BenchOp::Open | BenchOp::OpenClean) => {
                    "bare reads of the same extents"
                }
            },
        }
    }

    /// One round.
    pub(super) fn round(&mut self) -> anyhow::Result<Round> {
        match self {
            Limit::Probes(probes) => Ok(probes.round()),
            Limit::Memory(memory) => Ok(memory.round()),
            Limit::File(file) => file.round(),
        }
    }
}

/// Reads of random cache lines of a table as large as the index, which no index can avoid. The
/// reads of a batch are independent of each other.
pub(super) struct Probes {
    shape: BenchShape,
    table: AlignedBuf,
    batches: Vec<Vec<u32>>,
}

/// Approximate index memory per object.
const INDEX_BYTES: usize = 40;
/// Bytes of a cache line.
const LINE: usize = 64;
/// Number of batches that are used cyclically.
pub(super) const EXISTS_BATCHES: usize = 256;

impl Probes {
    fn new(shape: BenchShape) -> anyhow::Result<Probes> {
        let lines = (usize::try_from(shape.index_objects)? * INDEX_BYTES).div_ceil(LINE);
        let mut table = AlignedBuf::new(lines * LINE).context("no memory")?;
        table.chunks_mut(4096).for_each(|page| page[0] = 1);
        let mut rng = SplitMix64::new(shape.seed);
        let mut batch =
            || (0..shape.batch).map(|_| rng.within(0, lines as u64 - 1) as u32).collect();
        let batches = (0..EXISTS_BATCHES).map(|_| batch()).collect();
        Ok(Probes { shape, table, batches })
    }

    fn round(&mut self) -> Round {
        let mut timer = Timer::start(self.shape.round);
        let mut probed = 0;
        for batch in self.batches.iter().cycle() {
            let begun = Instant::now();
            let found = batch.iter().fold(0, |all, line| all ^ self.table[*line as usize * LINE]);
            std::hint::black_box(found);
            timer.record(begun);
            probed += batch.len() as u64;
            if timer.is_over() {
                break;
            }
        }
        timer.stop(probed, 0)
    }
}

/// Copies between buffers of the same sizes as the store's copies.
pub(super) struct MemoryCopies {
    shape: BenchShape,
    /// Like the store's arena: one mapping.
    arena: AlignedBuf,
    /// Like the application's buffers: one for each object in flight.
    buffers: Vec<AlignedBuf>,
    rng: SplitMix64,
}

impl MemoryCopies {
    fn new(shape: BenchShape) -> anyhow::Result<MemoryCopies> {
        let stride = align_up(shape.object_bytes as u64) as usize;
        // As arena apart as the store's objects, so that caches do not serve the copies.
        let mut arena =
            AlignedBuf::new(stride * usize::try_from(shape.objects)?).context("no memory")?;
        let mut buffers =
            AlignedBuf::many(shape.batch * shape.depth, shape.object_bytes).context("no memory")?;
        // Not zeros: some CPUs copy zeros a sixth faster than other content.
        let mut rng = SplitMix64::new(shape.seed);
        rng.fill(std::iter::once(&mut arena).chain(&mut buffers));
        Ok(MemoryCopies { shape, arena, buffers, rng: SplitMix64::new(shape.seed) })
    }

    fn round(&mut self) -> Round {
        let mut timer = Timer::start(self.shape.round);
        let (mut objects, mut turn) = (0, 0);
        while !timer.is_over() {
            let begun = Instant::now();
            let slots = turn * self.shape.batch..(turn + 1) * self.shape.batch;
            turn = (turn + 1) % self.shape.depth;
            let (gets, puts) = match self.shape.op {
                BenchOp::Put => (false, true),
                BenchOp::Mixed => (true, true),
                BenchOp::Get | BenchOp::Exists | BenchOp::Open | BenchOp::OpenClean => {
                    (true, false)
                }
            };
            if gets {
                slots.clone().for_each(|slot| self.get(slot));
                objects += self.shape.batch as u64;
                timer.record(begun);
            }
            if puts {
                slots.for_each(|slot| self.put(slot));
                objects += self.shape.batch as u64;
                if !gets {
                    timer.record(begun);
                }
            }
        }
        timer.stop(objects, objects * self.shape.object_bytes as u64)
    }

    /// The range of a random object in `arena`.
    fn object_range(&mut self) -> std::ops::Range<usize> {
        let stride = align_up(self.shape.object_bytes as u64) as usize;
        let at = self.rng.within(0, self.shape.objects - 1) as usize * stride;
        at..at + self.shape.object_bytes
    }

    fn put(&mut self, slot: usize) {
        let range = self.object_range();
        self.arena[range.clone()].copy_from_slice(&self.buffers[slot]);
        std::hint::black_box(&self.arena[range]);
    }

    fn get(&mut self, slot: usize) {
        let range = self.object_range();
        let stores = CopyMode::of((self.shape.batch * self.shape.object_bytes) as u64);
        let lengths = block_lengths(0..self.shape.object_bytes as u64, BLOCK_BYTES);
        let (to, from) =
            ([&mut self.buffers[slot][..]], [SourcePiece::Private(&self.arena[range])]);
        copy_blocks(to, from, lengths, stores, |sum| {
            std::hint::black_box(sum);
        });
    }
}

//! What the store is measured against: the same bytes moved with nothing around them. On SSD, bare reads or
//! writes of the store's own disk seam, of the same sizes, at the depth of a batch; in DRAM, a copy; for `exists`, a
//! look at as many lines of memory.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use pagelith::AlignedBuf;
use pagelith::config::SsdIo;
use pagelith::io::fused::{Piece, Stores, copy_blocks};
use pagelith::layouts::align::align_up;
use pagelith::layouts::checksum::{BLOCK_BYTES, block_lengths};

use super::bare::File;
use super::beside::Beside;
use super::round::{Round, Timer};
use super::{BenchTier, Op, Shape};
use crate::rng::SplitMix64;

/// A limit, ready to be measured.
pub(super) enum Limit {
    /// Looks at memory.
    Probes(Probes),
    /// Copies in memory.
    Memory(Memory),
    /// Transfers of a file.
    File(File),
}

impl Limit {
    /// Make ready what the measurement needs: the limit, or what is `beside` it.
    pub(super) fn prepare(
        shape: Shape,
        beside: Option<Beside>,
        dir: &Path,
        store: &[PathBuf],
        io: Option<SsdIo>,
    ) -> anyhow::Result<Limit> {
        Ok(match (shape.op, shape.tier) {
            (Op::Exists, _) => Limit::Probes(Probes::new(shape)?),
            (_, BenchTier::Dram) => Limit::Memory(Memory::new(shape)?),
            (Op::Get, BenchTier::Ssd) => Limit::File(File::of_store(shape, beside, store, io)?),
            (_, BenchTier::Ssd) => Limit::File(File::made(shape, beside, dir, io)?),
        })
    }

    /// What it is, for the report.
    pub(super) fn what(&self) -> &'static str {
        match self {
            Limit::Probes(_) => "a line of memory for each key",
            Limit::Memory(m) => match m.shape.op {
                Op::Put => "memcpy",
                Op::Mixed => "copy and checksum, then memcpy",
                Op::Get | Op::Exists | Op::Open | Op::OpenClean => "copy and checksum",
            },
            Limit::File(file) => match (file.beside, file.shape.op) {
                (Some(beside), _) => beside.what(),
                (None, Op::Put) => "bare writes and a sync",
                (None, Op::Mixed) => "bare reads beside bare writes, and a sync",
                (None, Op::Get | Op::Exists | Op::Open | Op::OpenClean) => "bare reads of the same extents",
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

/// Looks at random lines of a table as large as the index: what no index can do without. The looks of a batch do not
/// depend on each other.
pub(super) struct Probes {
    shape: Shape,
    table: AlignedBuf,
    batches: Vec<Vec<u32>>,
}

/// Memory that the index has for an object, about.
const INDEX_BYTES: usize = 40;
/// A line of the cache.
const LINE: usize = 64;
/// Batches that are asked for in turn.
pub(super) const EXISTS_BATCHES: usize = 256;

impl Probes {
    fn new(shape: Shape) -> anyhow::Result<Probes> {
        let lines = (usize::try_from(shape.index_objects)? * INDEX_BYTES).div_ceil(LINE);
        let mut table = AlignedBuf::new(lines * LINE).context("no memory")?;
        table.chunks_mut(4096).for_each(|page| page[0] = 1);
        let mut rng = SplitMix64::new(shape.seed);
        let mut batch = || (0..shape.batch).map(|_| rng.within(0, lines as u64 - 1) as u32).collect();
        let batches = (0..EXISTS_BATCHES).map(|_| batch()).collect();
        Ok(Probes { shape, table, batches })
    }

    fn round(&mut self) -> Round {
        let mut timer = Timer::start(self.shape.round);
        let mut asked = 0;
        for batch in self.batches.iter().cycle() {
            let begun = Instant::now();
            let looked = batch.iter().fold(0, |all, line| all ^ self.table[*line as usize * LINE]);
            std::hint::black_box(looked);
            timer.ended(begun);
            asked += batch.len() as u64;
            if timer.is_over() {
                break;
            }
        }
        timer.stop(asked, 0)
    }
}

/// Copies between buffers of the sizes that the store copies between.
pub(super) struct Memory {
    shape: Shape,
    /// As the store's arena: one mapping.
    far: AlignedBuf,
    /// As the buffers of the store's side: one for each object in flight.
    near: Vec<AlignedBuf>,
    rng: SplitMix64,
}

impl Memory {
    fn new(shape: Shape) -> anyhow::Result<Memory> {
        let stride = align_up(shape.object_bytes as u64) as usize;
        // As spread out as the store's objects, or the caches would do the work.
        let mut far = AlignedBuf::new(stride * usize::try_from(shape.objects)?).context("no memory")?;
        let mut near =
            AlignedBuf::many(shape.batch * shape.depth, shape.object_bytes).context("no memory")?;
        // As the store's objects: there are CPUs that copy zeros a sixth faster than anything else.
        let mut rng = SplitMix64::new(shape.seed);
        rng.fill(std::iter::once(&mut far).chain(&mut near));
        Ok(Memory { shape, far, near, rng: SplitMix64::new(shape.seed) })
    }

    fn round(&mut self) -> Round {
        let mut timer = Timer::start(self.shape.round);
        let (mut objects, mut turn) = (0, 0);
        while !timer.is_over() {
            let begun = Instant::now();
            let slots = turn * self.shape.batch..(turn + 1) * self.shape.batch;
            turn = (turn + 1) % self.shape.depth;
            let (gets, puts) = match self.shape.op {
                Op::Put => (false, true),
                Op::Mixed => (true, true),
                Op::Get | Op::Exists | Op::Open | Op::OpenClean => (true, false),
            };
            if gets {
                slots.clone().for_each(|slot| self.get(slot));
                objects += self.shape.batch as u64;
                timer.ended(begun);
            }
            if puts {
                slots.for_each(|slot| self.put(slot));
                objects += self.shape.batch as u64;
                if !gets {
                    timer.ended(begun);
                }
            }
        }
        timer.stop(objects, objects * self.shape.object_bytes as u64)
    }

    /// Where an object's bytes are far away.
    fn place(&mut self) -> std::ops::Range<usize> {
        let stride = align_up(self.shape.object_bytes as u64) as usize;
        let at = self.rng.within(0, self.shape.objects - 1) as usize * stride;
        at..at + self.shape.object_bytes
    }

    fn put(&mut self, slot: usize) {
        let place = self.place();
        self.far[place.clone()].copy_from_slice(&self.near[slot]);
        std::hint::black_box(&self.far[place]);
    }

    fn get(&mut self, slot: usize) {
        let place = self.place();
        let stores = Stores::of((self.shape.batch * self.shape.object_bytes) as u64);
        let lengths = block_lengths(0..self.shape.object_bytes as u64, BLOCK_BYTES);
        let (to, from) = ([&mut self.near[slot][..]], [Piece::Lent(&self.far[place])]);
        copy_blocks(to, from, lengths, stores, |sum| {
            std::hint::black_box(sum);
        });
    }
}

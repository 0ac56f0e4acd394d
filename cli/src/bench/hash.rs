//! The cost of verification: a pass of the checksum over memory that is in no cache.

use anyhow::Context;
use pagelith::AlignedBuf;
use pagelith::layouts::checksum::{BLOCK_BYTES, checksum};

use crate::meter::thread_cpu;
use crate::rng::SplitMix64;

/// More than the caches of most machines.
const BYTES: usize = 256 << 20;

/// Memory to hash, larger than the caches.
pub(super) struct ColdMemory(AlignedBuf);

impl ColdMemory {
    /// Filled with pseudorandom bytes.
    pub(super) fn new(seed: u64) -> anyhow::Result<ColdMemory> {
        let mut memory = AlignedBuf::new(BYTES).context("no memory")?;
        SplitMix64::new(seed).fill([&mut memory]);
        Ok(ColdMemory(memory))
    }

    /// CPU seconds of a pass per 10^9 bytes.
    pub(super) fn pass(&self) -> f64 {
        let before = thread_cpu();
        for block in self.0.chunks(BLOCK_BYTES as usize) {
            std::hint::black_box(checksum(block));
        }
        (thread_cpu() - before).as_secs_f64() / (BYTES as f64 / 1e9)
    }
}

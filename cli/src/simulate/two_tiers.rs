//! DRAM and SSD log without bytes, with the policies of the store. A request does what a cache
//! controller does to the store: it looks up the longest stored prefix, gets it, and puts the rest.

use std::sync::Arc;

use anyhow::Context;
use pagelith_tiers::policy::admission::{Admission, BatchKind, PageHash, TouchedPage};
use pagelith_tiers::policy::{FrameId, FramePolicy, LastRequests, Recency, SegmentPolicy};

use super::blocks::BlockState;
use super::counts::Counts;
use super::log::{BLOCK_BYTES, SimulatedLog};

/// Blocks of a batch, as `pagelith replay` and SGLang's HiCache have them.
const BATCH_BLOCKS: usize = 128;

/// The DRAM tier.
struct Dram {
    policy: Box<dyn FramePolicy>,
    last_requests: Arc<LastRequests>,
    /// The block in each frame.
    frames: Vec<Option<u32>>,
    free: Vec<u32>,
}

impl Dram {
    fn new(
        frames: usize,
        policy: impl FnOnce(&Arc<LastRequests>) -> Option<Box<dyn FramePolicy>>,
    ) -> anyhow::Result<Dram> {
        let last_requests = Arc::new(LastRequests::new(frames)?);
        let policy = policy(&last_requests).context("the DRAM policy is unknown")?;
        let free = (0..frames as u32).rev().collect();
        Ok(Dram { policy, last_requests, frames: vec![None; frames], free })
    }

    /// The number of an unused frame; evicts one if there is none.
    fn take_frame(&mut self, blocks: &mut [BlockState]) -> Option<u32> {
        if let Some(frame) = self.free.pop() {
            return Some(frame);
        }
        let FrameId(frame) = self.policy.victim(&mut |_| true)?;
        if let Some(block) = self.frames[frame as usize].take() {
            blocks[block as usize].frame = None;
        }
        Some(frame)
    }

    fn insert(&mut self, block: u32, at: Recency, blocks: &mut [BlockState]) {
        let Some(frame) = self.take_frame(blocks) else { return };
        self.frames[frame as usize] = Some(block);
        blocks[block as usize].frame = Some(frame);
        self.last_requests.set(FrameId(frame), at);
        self.policy.insert(FrameId(frame), 4096, fingerprint(block), at);
    }
}

/// The fingerprint of a block: any function of it that scatters.
fn fingerprint(block: u32) -> u128 {
    let low = crate::rng::mix(u64::from(block) + 1);
    u128::from(crate::rng::mix(low)) << 64 | u128::from(low)
}

/// The hash of a block, for admission.
fn page_of(block: u32) -> PageHash {
    PageHash(fingerprint(block) as u64)
}

/// The SSD tier.
struct Ssd {
    log: SimulatedLog,
    admission: Option<Admission>,
    /// Share of the blocks put that may be written.
    write_budget: Option<f64>,
}

/// The two tiers, either of which may be absent.
pub(super) struct TwoTiers {
    blocks: Vec<BlockState>,
    dram: Option<Dram>,
    ssd: Option<Ssd>,
    epoch: u64,
    counts: Counts,
}

impl TwoTiers {
    /// Empty tiers for blocks numbered below `unique`, without an SSD. Without blocks of DRAM there
    /// is none.
    ///
    /// # Errors
    /// The system has no memory, or the policy is unknown.
    pub(super) fn new(
        unique: usize,
        dram: usize,
        policy: impl FnOnce(&Arc<LastRequests>) -> Option<Box<dyn FramePolicy>>,
    ) -> anyhow::Result<TwoTiers> {
        let dram = Some(Dram::new(dram, policy)?).filter(|_| dram > 0);
        let blocks = vec![BlockState::default(); unique];
        Ok(TwoTiers { blocks, dram, ssd: None, epoch: 0, counts: Counts::default() })
    }

    /// Add an SSD of `capacity` blocks. Without admission every block is written. `write_budget` is
    /// the share of the blocks put that may be written.
    pub(super) fn add_ssd(
        &mut self,
        capacity: usize,
        reclaim: Box<dyn SegmentPolicy>,
        admission: Option<Admission>,
        write_budget: Option<f64>,
    ) {
        let log = SimulatedLog::new(capacity, reclaim);
        self.ssd = Some(Ssd { log, admission, write_budget });
    }

    /// The counts so far.
    pub(super) fn counts(&self) -> Counts {
        let (written, moved) = self.ssd.as_ref().map_or((0, 0), |s| (s.log.written, s.log.moved));
        Counts { written, moved, ..self.counts }
    }

    /// Kill the store and open it again: blocks that only DRAM has are lost, and admission
    /// continues with its learned state.
    pub(super) fn reopen(
        &mut self,
        policy: impl FnOnce(&Arc<LastRequests>) -> Option<Box<dyn FramePolicy>>,
        restart: impl FnOnce(&Admission) -> Admission,
    ) -> anyhow::Result<()> {
        if let Some(dram) = self.dram.as_mut() {
            *dram = Dram::new(dram.frames.len(), policy)?;
        }
        self.blocks.iter_mut().for_each(|block| block.frame = None);
        if let Some(admission) = self.ssd.as_mut().and_then(|ssd| ssd.admission.as_mut()) {
            *admission = restart(admission);
        }
        Ok(())
    }

    fn leading_run(&self, blocks: &[u32]) -> usize {
        blocks.iter().take_while(|b| self.blocks[**b as usize].is_resident()).count()
    }

    /// One request for the prefix of these blocks.
    pub(super) fn request(&mut self, blocks: &[u32]) {
        self.epoch += 1;
        let found = self.leading_run(blocks);
        let mut hits = 0;
        while hits < found {
            let batch = hits..found.min(hits + BATCH_BLOCKS);
            let run = batch.start + self.leading_run(&blocks[batch.clone()]);
            self.get(&blocks[batch.start..run], batch.start as u32);
            hits = run;
            if run < batch.end {
                break;
            }
        }
        let orphans =
            blocks[hits..].iter().filter(|b| self.blocks[**b as usize].is_resident()).count();
        self.counts.requested += blocks.len() as u64;
        self.counts.orphans += orphans as u64;
        for first in (hits..blocks.len()).step_by(BATCH_BLOCKS) {
            let end = blocks.len().min(first + BATCH_BLOCKS);
            self.put(&blocks[first..end], first as u32);
        }
    }

    fn recency(&self, depth: usize) -> Recency {
        Recency { epoch: self.epoch, depth: depth as u32 }
    }

    /// A batch of gets that all hit; those from SSD are promoted.
    fn get(&mut self, batch: &[u32], depth: u32) {
        let now = self.ssd.as_ref().map_or(0, |ssd| ssd.log.now());
        let mut promoted = Vec::new();
        for (at, block) in batch.iter().enumerate() {
            let recency = self.recency(depth as usize + at);
            let state = &mut self.blocks[*block as usize];
            let before = std::mem::replace(&mut state.tick, now);
            if let (Some(location), Some(ssd)) = (state.location, self.ssd.as_mut()) {
                ssd.log.record_request(location, before);
            }
            match (state.frame, self.dram.as_mut()) {
                (Some(frame), Some(dram)) => {
                    self.counts.hits_dram += 1;
                    dram.last_requests.raise(FrameId(frame), recency);
                }
                _ => {
                    self.counts.hits_ssd += 1;
                    promoted.push((*block, recency));
                }
            }
        }
        if let Some(dram) = self.dram.as_mut() {
            promoted.iter().for_each(|(block, at)| dram.insert(*block, *at, &mut self.blocks));
        }
        self.write(batch, BatchKind::Get);
    }

    /// Write the blocks of a batch that admission chooses, the last first.
    fn write(&mut self, batch: &[u32], kind: BatchKind) {
        let Some(Ssd { log, admission, write_budget }) = self.ssd.as_mut() else { return };
        let page = |block: &u32| TouchedPage {
            page: page_of(*block),
            bytes: BLOCK_BYTES,
            on_ssd: self.blocks[*block as usize].location.is_some(),
            required: false,
        };
        let pages: Vec<TouchedPage> = batch.iter().map(page).collect();
        let mut chosen = Vec::new();
        match admission.as_mut() {
            Some(admission) => {
                if let Some(share) = write_budget.filter(|_| kind == BatchKind::Put) {
                    admission.grant((share * (batch.len() as u64 * BLOCK_BYTES) as f64) as u64);
                }
                admission.touch(self.epoch, kind, &pages, 0, &mut chosen);
            }
            None => chosen.extend(pages.iter().map(|page| !page.on_ssd)),
        }
        if kind == BatchKind::Put {
            self.counts.offered += batch.len() as u64;
            self.counts.refused += chosen.iter().filter(|chosen| !**chosen).count() as u64;
        }
        for (block, _) in batch.iter().zip(chosen).rev().filter(|(_, chosen)| *chosen) {
            if self.blocks[*block as usize].location.is_some() {
                // A batch that names a block twice.
                continue;
            }
            let before = log.written;
            log.append(*block, &mut self.blocks);
            let victims = log.take_samples();
            if let Some(admission) = admission.as_mut() {
                admission.appended((log.written - before) * BLOCK_BYTES);
                for victim in victims {
                    admission.reclaim(victim.into_iter().map(|block| block.map(page_of)));
                }
            }
        }
    }

    /// A batch of puts: absent blocks enter DRAM, and are written, the last first.
    fn put(&mut self, batch: &[u32], depth: u32) {
        let now = self.ssd.as_ref().map_or(0, |ssd| ssd.log.now());
        let mut stored = Vec::new();
        for (at, block) in batch.iter().enumerate() {
            if self.blocks[*block as usize].is_resident() {
                continue;
            }
            let recency = self.recency(depth as usize + at);
            let state = &mut self.blocks[*block as usize];
            (state.tick, state.depth) = (now, recency.depth);
            if let Some(dram) = self.dram.as_mut() {
                dram.insert(*block, recency, &mut self.blocks);
            }
            stored.push(*block);
        }
        self.write(&stored, BatchKind::Put);
    }
}

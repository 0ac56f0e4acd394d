//! A bound: both tiers with the same sizes and the same log, by a policy that knows the future.
//! What is requested last leaves DRAM first, only blocks that are requested again are written, and
//! reclaim takes the segment whose blocks are requested last, and moves its next ones.
//!
//! It is no strict bound, since segments are reclaimed as a whole; no policy that does not know the
//! future comes near it.

use std::collections::BTreeSet;

use super::counts::Counts;
use super::log::{SEGMENTS_MIN, segments_of};
use super::requests::Requests;

/// A block is not requested again.
const NEVER: u32 = u32::MAX;

/// Where a block is.
#[derive(Clone, Copy, Default)]
struct BlockTiers {
    in_dram: bool,
    segment: Option<usize>,
}

/// The tiers.
struct Clairvoyant {
    blocks: Vec<BlockTiers>,
    /// Request at which each block is requested next.
    next: Vec<u32>,
    dram: BTreeSet<(u32, u32)>,
    dram_blocks: usize,
    segments: Vec<Vec<u32>>,
    segment_blocks: usize,
    open: usize,
    counts: Counts,
}

/// Simulate the bound; a tier of 0 blocks is absent.
pub(super) fn simulate(requests: &Requests, dram: usize, ssd: usize) -> Counts {
    let (segments, segment_blocks) = if ssd < SEGMENTS_MIN { (0, 0) } else { segments_of(ssd, 1) };
    let mut tiers = Clairvoyant {
        blocks: vec![BlockTiers::default(); requests.unique()],
        next: vec![NEVER; requests.unique()],
        dram: BTreeSet::new(),
        dram_blocks: dram,
        segments: vec![Vec::new(); segments],
        segment_blocks,
        open: 0,
        counts: Counts::default(),
    };
    let nexts = next_requests(requests);
    let mut first = 0;
    for blocks in requests.iter() {
        tiers.request(blocks, &nexts[first..first + blocks.len()]);
        first += blocks.len();
    }
    tiers.counts
}

/// For each reference, the number of the next request for its block.
fn next_requests(requests: &Requests) -> Vec<u32> {
    let all: Vec<&[u32]> = requests.iter().collect();
    let mut seen = vec![NEVER; requests.unique()];
    let mut nexts = vec![NEVER; requests.references()];
    let mut at = nexts.len();
    for (number, blocks) in all.iter().enumerate().rev() {
        for block in blocks.iter().rev() {
            at -= 1;
            // A block that a request has twice is requested next by a later request.
            nexts[at] = seen[*block as usize];
        }
        blocks.iter().for_each(|block| seen[*block as usize] = number as u32);
    }
    nexts
}

impl Clairvoyant {
    fn is_resident(&self, block: u32) -> bool {
        let tiers = self.blocks[block as usize];
        tiers.in_dram || tiers.segment.is_some()
    }

    fn request(&mut self, blocks: &[u32], nexts: &[u32]) {
        let hits = blocks.iter().take_while(|block| self.is_resident(**block)).count();
        self.counts.requested += blocks.len() as u64;
        let resident = blocks[hits..].iter().filter(|block| self.is_resident(**block)).count();
        self.counts.orphans += resident as u64;
        for (block, next) in blocks.iter().zip(nexts) {
            let (tiers, before) = (self.blocks[*block as usize], self.next[*block as usize]);
            if tiers.in_dram {
                self.dram.remove(&(before, *block));
                self.dram.insert((*next, *block));
            }
            self.next[*block as usize] = *next;
        }
        for (at, block) in blocks.iter().enumerate() {
            let tiers = self.blocks[*block as usize];
            let is_hit = at < hits;
            self.counts.hits_dram += u64::from(is_hit && tiers.in_dram);
            self.counts.hits_ssd += u64::from(is_hit && !tiers.in_dram);
            if !tiers.in_dram {
                self.insert(*block);
            }
            if !is_hit && tiers.segment.is_none() {
                self.counts.offered += 1;
                self.write(*block);
            }
        }
    }

    fn insert(&mut self, block: u32) {
        let next = self.next[block as usize];
        if self.dram_blocks == 0 || next == NEVER {
            return;
        }
        if self.dram.len() == self.dram_blocks {
            let Some(last) = self.dram.last().copied().filter(|last| last.0 > next) else { return };
            self.dram.remove(&last);
            self.blocks[last.1 as usize].in_dram = false;
        }
        self.dram.insert((next, block));
        self.blocks[block as usize].in_dram = true;
    }

    fn write(&mut self, block: u32) {
        if self.segments.is_empty() {
            return;
        }
        if self.next[block as usize] == NEVER {
            self.counts.refused += 1;
            return;
        }
        self.append(block);
        while self.segments[self.open].len() >= self.segment_blocks {
            self.reclaim();
        }
    }

    fn append(&mut self, block: u32) {
        self.counts.written += 1;
        self.segments[self.open].push(block);
        self.blocks[block as usize].segment = Some(self.open);
    }

    /// Open the segment whose blocks are requested last, with a quarter of it moved.
    fn reclaim(&mut self) {
        let never = self.next.len() as f64;
        let worth = |segment: &Vec<u32>| -> f64 {
            let soon = |block: &u32| 1.0 / (1.0 + f64::from(self.next[*block as usize]).min(never));
            let live = segment.iter().filter(|block| self.next[**block as usize] != NEVER);
            live.map(soon).sum::<f64>()
        };
        let others = (0..self.segments.len()).filter(|segment| *segment != self.open);
        let victim = others.min_by(|a, b| {
            worth(&self.segments[*a]).total_cmp(&worth(&self.segments[*b])).then(a.cmp(b))
        });
        let Some(victim) = victim else { return };
        let mut live = std::mem::take(&mut self.segments[victim]);
        live.retain(|block| self.blocks[*block as usize].segment == Some(victim));
        live.iter().for_each(|block| self.blocks[*block as usize].segment = None);
        self.open = victim;
        live.retain(|block| self.next[*block as usize] != NEVER);
        live.sort_by_key(|block| (self.next[*block as usize], *block));
        live.truncate(self.segment_blocks / 4);
        self.counts.moved += live.len() as u64;
        live.into_iter().for_each(|block| self.append(block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_that_returns_first_stays_in_dram() {
        let requests = Requests::new("t", [vec![1], vec![2], vec![3], vec![1], vec![3], vec![2]]);
        let counts = simulate(&requests, 1, 0);
        // Block 1 stays until its hit; then 3, which was not kept, and then 2.
        assert_eq!((counts.hits_dram, counts.hits_ssd), (1, 0));
        assert_eq!(simulate(&requests, 3, 0).hits_dram, 3);
    }

    #[test]
    fn block_that_does_not_return_is_not_written() {
        let requests = Requests::new("t", [vec![1, 2], vec![1, 3], vec![4]]);
        let counts = simulate(&requests, 0, 64);
        assert_eq!((counts.offered, counts.refused, counts.written), (4, 3, 1));
        assert_eq!((counts.hits_ssd, counts.requested), (1, 5));
    }

    #[test]
    fn loop_larger_than_the_cache_hits_its_share() {
        let requests = Requests::new("t", (0..2000).map(|n| vec![n % 100]));
        let counts = simulate(&requests, 50, 0);
        let ratio = counts.hits_dram as f64 / counts.requested as f64;
        assert!((0.4..0.5).contains(&ratio), "ratio={ratio}");
    }
}

//! One simulated file: what reads see, what a power cut leaves, and the writes in between.
//!
//! Invariant: `live` = `durable` with every unsynced write applied in the order of their sequence numbers
//! (damage at rest is patched into all of them alike). A block that became durable from a younger write is
//! never overwritten by an older one: the older write counts as superseded there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use pagelith_layouts::align::ALIGN;

use super::image::{Block, Fate, Image, SECTOR, mix};
use crate::entropy::SplitMix64;

/// One sector in this many becomes garbage, of those that a power cut tears.
const GARBAGE_ONE_IN: u64 = 24;

/// A write that no sync has covered yet.
#[derive(Clone, Debug)]
struct Unsynced {
    /// First block number.
    first: u64,
    blocks: Vec<Block>,
    /// When the completion was handed back; a sync submitted later covers the write.
    returned: Option<u64>,
    /// A sync failed while the write was dirty. ext4, XFS and Btrfs then mark the page clean (Rebello et al.,
    /// "Can applications recover from fsync failures?", ATC'20), so that a retried sync succeeds without it.
    forsaken: bool,
    /// Blocks that are durable from a younger write.
    superseded: BTreeSet<u64>,
}

impl Unsynced {
    fn numbered(&self) -> impl Iterator<Item = (u64, &Block)> {
        (self.first..).zip(&self.blocks)
    }
}

/// A file of fixed length.
#[derive(Clone, Debug)]
pub(crate) struct SimFile {
    /// Length in bytes.
    pub(crate) len: u64,
    live: Image,
    durable: Image,
    unsynced: BTreeMap<u64, Unsynced>,
}

impl SimFile {
    /// A file of `len` zero bytes, durable.
    pub(crate) fn new(len: u64) -> SimFile {
        SimFile { len, live: Image::default(), durable: Image::default(), unsynced: BTreeMap::new() }
    }

    /// Copy the live bytes at `offset` to `out`.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        self.live.read(offset, out);
    }

    /// Execute a write of whole blocks at the aligned `offset`, numbered `seq`, greater than all before.
    pub(crate) fn write(&mut self, seq: u64, offset: u64, blocks: Vec<Block>) {
        let write = Unsynced {
            first: offset / ALIGN,
            blocks,
            returned: None,
            forsaken: false,
            superseded: BTreeSet::new(),
        };
        for (block, data) in write.numbered() {
            self.live.put(block, data.clone());
        }
        self.unsynced.insert(seq, write);
    }

    /// Execute a write that fails: each sector is new or old by chance.
    pub(crate) fn write_failing(&mut self, seq: u64, offset: u64, blocks: &[Block], rng: &mut SplitMix64) {
        let half = |rng: &mut SplitMix64| if rng.one_in(2) { Fate::New } else { Fate::Old };
        let torn = (offset / ALIGN..).zip(blocks).map(|(n, new)| mix(&self.live.get(n), new, rng, half));
        let torn = torn.collect();
        self.write(seq, offset, torn);
    }

    /// The completion of write `seq` was handed back at moment `now`.
    pub(crate) fn returned(&mut self, seq: u64, now: u64) {
        if let Some(write) = self.unsynced.get_mut(&seq) {
            write.returned = Some(now);
        }
    }

    /// Execute a sync that was submitted at moment `submitted`.
    pub(crate) fn sync(&mut self, submitted: u64) {
        let covers = |w: &Unsynced| !w.forsaken && w.returned.is_some_and(|at| at < submitted);
        let covered: Vec<u64> =
            self.unsynced.iter().filter(|(_, w)| covers(w)).map(|(seq, _)| *seq).collect();
        for seq in covered {
            let Some(write) = self.unsynced.remove(&seq) else { continue };
            for (block, data) in write.numbered().filter(|(block, _)| !write.superseded.contains(block)) {
                self.durable.put(block, data.clone());
                for older in self.unsynced.range_mut(..seq).map(|(_, w)| w) {
                    older.superseded.insert(block);
                }
            }
        }
    }

    /// Execute a sync that fails: what is dirty now, no later sync makes durable.
    pub(crate) fn sync_failing(&mut self) {
        self.unsynced.values_mut().for_each(|w| w.forsaken = true);
    }

    /// The process is gone and the machine runs on: nothing is lost yet, and the next process's sync covers
    /// what the dead one wrote.
    pub(crate) fn orphan(&mut self) {
        for write in self.unsynced.values_mut() {
            write.returned = Some(0);
            // The next process cannot know of the failed sync, so no store could pass if it stayed so.
            write.forsaken = false;
        }
    }

    /// Power cut: every unsynced write is lost.
    pub(crate) fn drop_unsynced(&mut self) {
        self.unsynced.clear();
        self.live = self.durable.clone();
    }

    /// Power cut: each sector of each unsynced write is kept, lost or garbage.
    ///
    /// A quarter of the writes is kept whole and a quarter lost whole; were all of them torn by independent
    /// sectors, a record of 64 KiB would survive once in 2^128 cuts and recovery would only ever see ruins.
    pub(crate) fn tear_unsynced(&mut self, rng: &mut SplitMix64) {
        let torn = |rng: &mut SplitMix64| match rng.below(GARBAGE_ONE_IN) {
            0 => Fate::Garbage,
            n if n % 2 == 0 => Fate::New,
            _ => Fate::Old,
        };
        for write in std::mem::take(&mut self.unsynced).into_values() {
            let whole = rng.below(4);
            for (block, data) in write.numbered().filter(|(block, _)| !write.superseded.contains(block)) {
                let mixed = match whole {
                    0 => data.clone(),
                    1 => continue,
                    _ => mix(&self.durable.get(block), data, rng, torn),
                };
                self.durable.put(block, mixed);
            }
        }
        self.live = self.durable.clone();
    }

    /// Number of sectors that no sync has covered.
    pub(crate) fn unsynced_sectors(&self) -> usize {
        let blocks: usize = self.unsynced.values().map(|w| w.blocks.len()).sum();
        blocks * (ALIGN as usize / SECTOR)
    }

    /// Damage at rest: change `len` bytes at `offset`, in what reads see and in what a power cut leaves.
    /// `change` maps an index below `len` and the old byte to the new byte.
    pub(crate) fn damage(&mut self, offset: u64, len: usize, change: impl Fn(usize, u8) -> u8) {
        let mut bytes = vec![0; len];
        for image in [&mut self.live, &mut self.durable] {
            image.read(offset, &mut bytes);
            bytes.iter_mut().enumerate().for_each(|(i, b)| *b = change(i, *b));
            image.patch(offset, &bytes);
        }
        for write in self.unsynced.values_mut() {
            for (i, place) in (offset..).take(len).enumerate() {
                let Some(index) = (place / ALIGN).checked_sub(write.first) else { continue };
                if let Some(block) = write.blocks.get_mut(index as usize) {
                    let byte = &mut Arc::make_mut(block)[(place % ALIGN) as usize];
                    *byte = change(i, *byte);
                }
            }
        }
    }
}

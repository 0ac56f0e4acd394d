//! One simulated file: what reads see, what a power cut leaves, and the writes in between.
//!
//! Invariant: `live` = `durable` with every unsynced write applied in the order of their sequence numbers
//! (damage at rest is patched into all of them alike). A block that became durable from a younger write is
//! never overwritten by an older one.

use std::collections::BTreeSet;
use std::sync::Arc;

use pagelith_layouts::align::ALIGN;

use super::image::{Block, Fate, Image, SECTORS, mix};
use crate::entropy::SplitMix64;

/// One sector in this many becomes garbage, of those that a power cut tears.
const GARBAGE_ONE_IN: u64 = 24;

/// A write that no sync has covered yet.
#[derive(Clone, Debug)]
struct Unsynced {
    /// Its sequence number.
    seq: u64,
    /// First block number.
    first: u64,
    blocks: Vec<Block>,
    /// When the completion was handed back; a sync submitted later covers the write.
    returned: Option<u64>,
    /// A sync failed while the write was dirty. ext4, XFS and Btrfs then mark the page clean (Rebello et al.,
    /// "Can applications recover from fsync failures?", ATC'20), so that a retried sync succeeds without it.
    forsaken: bool,
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
    /// By sequence number.
    unsynced: Vec<Unsynced>,
    /// What each block held before its last write, while that is remembered.
    before: Option<Image>,
    /// Blocks that cannot be read until they are written.
    bad: BTreeSet<u64>,
}

impl SimFile {
    /// A file of `len` zero bytes, durable.
    pub(crate) fn new(len: u64) -> SimFile {
        SimFile {
            len,
            live: Image::default(),
            durable: Image::default(),
            unsynced: Vec::new(),
            before: None,
            bad: BTreeSet::new(),
        }
    }

    /// Copy the live bytes at `offset` to `out`.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        self.live.read(offset, out);
    }

    /// The live block number `block`.
    pub(crate) fn block(&self, block: u64) -> Block {
        self.live.get(block)
    }

    /// Execute a write of whole blocks at the aligned `offset`, numbered `seq`, greater than all before.
    pub(crate) fn write(&mut self, seq: u64, offset: u64, blocks: Vec<Block>) {
        let write = Unsynced { seq, first: offset / ALIGN, blocks, returned: None, forsaken: false };
        for (block, data) in write.numbered() {
            if let Some(before) = &mut self.before {
                before.put(seq, block, self.live.get(block));
            }
            self.live.put(seq, block, data.clone());
        }
        if !self.bad.is_empty() {
            write.numbered().for_each(|(block, _)| _ = self.bad.remove(&block));
        }
        self.unsynced.push(write);
    }

    /// What a write of `blocks` at `offset` leaves if not all of its sectors land, as `fate` says one by one.
    pub(crate) fn partly(
        &self,
        offset: u64,
        blocks: &[Block],
        rng: &mut SplitMix64,
        mut fate: impl FnMut(&mut SplitMix64) -> Fate,
    ) -> Vec<Block> {
        let numbered = (offset / ALIGN..).zip(blocks);
        numbered.map(|(n, new)| mix(&self.live.get(n), new, rng, &mut fate)).collect()
    }

    /// The completion of write `seq` was handed back at moment `now`.
    pub(crate) fn returned(&mut self, seq: u64, now: u64) {
        if let Ok(at) = self.unsynced.binary_search_by_key(&seq, |w| w.seq) {
            self.unsynced[at].returned = Some(now);
        }
    }

    /// Execute a sync that was submitted at moment `submitted`.
    pub(crate) fn sync(&mut self, submitted: u64) {
        let SimFile { durable, unsynced, .. } = self;
        unsynced.retain(|write| {
            let covered = !write.forsaken && write.returned.is_some_and(|at| at < submitted);
            if covered {
                make_durable(durable, write, |_, data| data.clone());
            }
            !covered
        });
    }

    /// Execute a sync that fails: what is dirty now, no later sync makes durable.
    pub(crate) fn sync_failing(&mut self) {
        self.unsynced.iter_mut().for_each(|w| w.forsaken = true);
    }

    /// The process is gone and the machine runs on: nothing is lost yet, and the next process's sync covers
    /// what the dead one wrote.
    pub(crate) fn orphan(&mut self) {
        for write in &mut self.unsynced {
            write.returned = Some(0);
            // The next process cannot know of the failed sync, so no store could pass if it stayed so.
            write.forsaken = false;
        }
    }

    /// Power cut: every unsynced write is lost.
    pub(crate) fn drop_unsynced(&mut self) {
        let lost = std::mem::take(&mut self.unsynced);
        self.fall(&lost);
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
        let writes = std::mem::take(&mut self.unsynced);
        for write in &writes {
            match rng.below(4) {
                0 => make_durable(&mut self.durable, write, |_, data| data.clone()),
                1 => {}
                _ => make_durable(&mut self.durable, write, |old, data| mix(&old(), data, rng, torn)),
            }
        }
        self.fall(&writes);
    }

    /// The power is back: reads see what is durable, and nobody remembers what was there before what was lost.
    fn fall(&mut self, writes: &[Unsynced]) {
        self.live = self.durable.clone();
        if let Some(before) = &mut self.before {
            for (block, _) in writes.iter().flat_map(Unsynced::numbered) {
                before.put(self.live.seq(block), block, self.live.get(block));
            }
        }
    }

    /// Number of sectors that no sync has covered.
    pub(crate) fn unsynced_sectors(&self) -> usize {
        self.unsynced.iter().map(|w| w.blocks.len()).sum::<usize>() * SECTORS
    }

    /// Remember from now on what each block held before its last write, or forget it.
    pub(crate) fn remember(&mut self, on: bool) {
        self.before = match self.before.take() {
            Some(before) if on => Some(before),
            _ => on.then(Image::default),
        };
    }

    /// What block number `block` held before its last write, if that was remembered.
    pub(crate) fn before(&self, block: u64) -> Option<&Block> {
        self.before.as_ref()?.written(block)
    }

    /// Make block number `block` unreadable until it is written.
    pub(crate) fn spoil(&mut self, block: u64) {
        self.bad.insert(block);
    }

    /// Whether a read of these bytes meets a bad block.
    pub(crate) fn is_bad(&self, offset: u64, len: u64) -> bool {
        !self.bad.is_empty()
            && self.bad.range(offset / ALIGN..(offset + len).div_ceil(ALIGN)).next().is_some()
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
        for write in &mut self.unsynced {
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

/// Put a write's blocks, as `shape` makes them of the old block and the new, into what survives, where no younger
/// write has come to it first.
fn make_durable(
    durable: &mut Image,
    write: &Unsynced,
    mut shape: impl FnMut(&dyn Fn() -> Block, &Block) -> Block,
) {
    for (block, data) in write.numbered() {
        if durable.seq(block) < write.seq {
            let shaped = shape(&|| durable.get(block), data);
            durable.put(write.seq, block, shaped);
        }
    }
}

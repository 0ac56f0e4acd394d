//! A simulated file: its live bytes, its durable bytes, and the unsynced writes between them.
//!
//! Invariant: `live` = `durable` with every write of `unsynced` applied in order of sequence number
//! (damage at rest changes all of them alike). A block that became durable from a later write is
//! never overwritten by an earlier one.

use std::collections::BTreeSet;
use std::sync::Arc;

use pagelith_layouts::align::ALIGN;

use super::image::{Block, Image, SECTORS, SectorFate, mix};
use crate::entropy::SplitMix64;

/// Of the sectors that a power cut tears, one in this many becomes garbage.
const GARBAGE_ONE_IN: u64 = 24;

/// A write that no sync has covered yet.
#[derive(Clone, Debug)]
struct Unsynced {
    /// Its sequence number.
    seq: u64,
    /// First block number.
    first: u64,
    blocks: Vec<Block>,
    /// The moment at which the completion was returned; a sync submitted later covers the write.
    returned: Option<u64>,
    /// A sync failed while the write was dirty. ext4, XFS and Btrfs then mark the page clean
    /// (Rebello et al., "Can applications recover from fsync failures?", ATC'20), so that a retried
    /// sync succeeds without it.
    lost_by_failed_sync: bool,
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
    /// Ordered by sequence number.
    unsynced: Vec<Unsynced>,
    /// The content of each block before its last write, while that is recorded.
    previous: Option<Image>,
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
            previous: None,
            bad: BTreeSet::new(),
        }
    }

    /// Copies the live bytes at `offset` to `out`.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        self.live.read(offset, out);
    }

    /// The live block number `block`.
    pub(crate) fn block(&self, block: u64) -> Block {
        self.live.get(block)
    }

    /// Executes a write of whole blocks at the aligned `offset`. `seq` is greater than all earlier
    /// ones.
    pub(crate) fn write(&mut self, seq: u64, offset: u64, blocks: Vec<Block>) {
        let write = Unsynced {
            seq,
            first: offset / ALIGN,
            blocks,
            returned: None,
            lost_by_failed_sync: false,
        };
        for (block, data) in write.numbered() {
            if let Some(previous) = &mut self.previous {
                previous.put(seq, block, self.live.get(block));
            }
            self.live.put(seq, block, data.clone());
        }
        if !self.bad.is_empty() {
            write.numbered().for_each(|(block, _)| _ = self.bad.remove(&block));
        }
        self.unsynced.push(write);
    }

    /// The blocks that a write of `blocks` at `offset` leaves if `fate` decides for each sector
    /// whether it lands.
    pub(crate) fn partial_write(
        &self,
        offset: u64,
        blocks: &[Block],
        rng: &mut SplitMix64,
        mut fate: impl FnMut(&mut SplitMix64) -> SectorFate,
    ) -> Vec<Block> {
        let numbered = (offset / ALIGN..).zip(blocks);
        numbered.map(|(n, new)| mix(&self.live.get(n), new, rng, &mut fate)).collect()
    }

    /// Records that the completion of write `seq` was returned at moment `now`.
    pub(crate) fn returned(&mut self, seq: u64, now: u64) {
        if let Ok(at) = self.unsynced.binary_search_by_key(&seq, |w| w.seq) {
            self.unsynced[at].returned = Some(now);
        }
    }

    /// Executes a sync that was submitted at moment `submitted`.
    pub(crate) fn sync(&mut self, submitted: u64) {
        let SimFile { durable, unsynced, .. } = self;
        unsynced.retain(|write| {
            let covered =
                !write.lost_by_failed_sync && write.returned.is_some_and(|at| at < submitted);
            if covered {
                make_durable(durable, write, |_, data| data.clone());
            }
            !covered
        });
    }

    /// Executes a failing sync: no later sync makes durable the data that is dirty now.
    pub(crate) fn sync_failing(&mut self) {
        self.unsynced.iter_mut().for_each(|w| w.lost_by_failed_sync = true);
    }

    /// The process is dead and the machine keeps running: nothing is lost yet, and the next
    /// process's sync covers the writes of the dead one.
    pub(crate) fn orphan(&mut self) {
        for write in &mut self.unsynced {
            write.returned = Some(0);
            // The next process cannot know of the failed sync, so no store could pass if the mark
            // stayed.
            write.lost_by_failed_sync = false;
        }
    }

    /// Power cut: every unsynced write is lost.
    pub(crate) fn drop_unsynced(&mut self) {
        let lost = std::mem::take(&mut self.unsynced);
        self.restore_durable(&lost);
    }

    /// Power cut: each sector of each unsynced write is kept, lost or garbage.
    ///
    /// A quarter of the writes is kept whole and a quarter lost whole. If all were torn by
    /// independent sectors, a record of 64 KiB would survive once in 2^128 cuts, and recovery would
    /// only ever see damaged records.
    pub(crate) fn tear_unsynced(&mut self, rng: &mut SplitMix64) {
        let torn = |rng: &mut SplitMix64| match rng.below(GARBAGE_ONE_IN) {
            0 => SectorFate::Garbage,
            n if n % 2 == 0 => SectorFate::New,
            _ => SectorFate::Old,
        };
        let writes = std::mem::take(&mut self.unsynced);
        for write in &writes {
            match rng.below(4) {
                0 => make_durable(&mut self.durable, write, |_, data| data.clone()),
                1 => {}
                _ => {
                    make_durable(&mut self.durable, write, |old, data| mix(&old(), data, rng, torn))
                }
            }
        }
        self.restore_durable(&writes);
    }

    /// After the power returns, reads see the durable bytes, and lost writes leave no previous
    /// contents.
    fn restore_durable(&mut self, writes: &[Unsynced]) {
        self.live = self.durable.clone();
        if let Some(previous) = &mut self.previous {
            for (block, _) in writes.iter().flat_map(Unsynced::numbered) {
                previous.put(self.live.seq(block), block, self.live.get(block));
            }
        }
    }

    /// Number of sectors that no sync has covered.
    pub(crate) fn unsynced_sectors(&self) -> usize {
        self.unsynced.iter().map(|w| w.blocks.len()).sum::<usize>() * SECTORS
    }

    /// Starts or stops recording the previous content of each block.
    pub(crate) fn track_previous(&mut self, on: bool) {
        self.previous = match self.previous.take() {
            Some(previous) if on => Some(previous),
            _ => on.then(Image::default),
        };
    }

    /// The content of block number `block` before its last write, if recorded.
    pub(crate) fn previous(&self, block: u64) -> Option<&Block> {
        self.previous.as_ref()?.written(block)
    }

    /// Makes block number `block` unreadable until it is written.
    pub(crate) fn mark_bad(&mut self, block: u64) {
        self.bad.insert(block);
    }

    /// Whether a read of these bytes includes a bad block.
    pub(crate) fn is_bad(&self, offset: u64, len: u64) -> bool {
        !self.bad.is_empty()
            && self.bad.range(offset / ALIGN..(offset + len).div_ceil(ALIGN)).next().is_some()
    }

    /// Damage at rest: changes `len` bytes at `offset` in the live, durable and unsynced data.
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

/// Makes a write's blocks durable, after `shape` combines the old and the new block, except where a
/// later write is durable already.
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

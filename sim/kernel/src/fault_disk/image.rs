//! A file in memory that tracks the bytes that a power cut would lose.

use std::collections::BTreeMap;

use crate::killed::content::Rng;

const BLOCK: usize = 4096;
const SECTOR: usize = 512;

/// Effect of a power cut on unsynced blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nothing.
    DropAll,
    /// Each block whole, not at all, or in some sectors; rarely garbage.
    Some,
}

/// A file's bytes, and the old content of blocks written since the last sync.
#[derive(Debug, Default)]
pub struct Image {
    live: Vec<u8>,
    unsynced: BTreeMap<usize, Vec<u8>>,
    /// Blocks that were unsynced when a sync failed: no later sync covers them, as on Linux's file
    /// systems.
    lost_by_failed_sync: BTreeMap<usize, Vec<u8>>,
}

impl Image {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// Sets the length; new bytes read as zeros.
    pub fn set_len(&mut self, len: usize) {
        self.live.resize(len, 0);
    }

    /// Up to `len` bytes from `at`; fewer at the end.
    pub fn read(&self, at: usize, len: usize) -> &[u8] {
        let end = self.live.len().min(at.saturating_add(len));
        self.live.get(at..end).unwrap_or(&[])
    }

    /// Writes `bytes` at `at`.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let end = at + bytes.len();
        if end > self.live.len() {
            self.set_len(end);
        }
        for block in at / BLOCK..end.div_ceil(BLOCK) {
            let old = self.lost_by_failed_sync.remove(&block);
            let now =
                || self.live[block * BLOCK..self.live.len().min((block + 1) * BLOCK)].to_vec();
            self.unsynced.entry(block).or_insert_with(|| old.unwrap_or_else(now));
        }
        self.live[at..end].copy_from_slice(bytes);
    }

    /// A byte to change at rest.
    pub fn at_rest(&mut self, at: usize) -> Option<&mut u8> {
        self.live.get_mut(at)
    }

    /// Makes all writes so far durable.
    pub fn sync(&mut self) {
        self.unsynced.clear();
    }

    /// A failing sync: the writes that it should have covered never become durable, though reads
    /// still see them.
    pub fn fail_sync(&mut self) {
        for (block, old) in std::mem::take(&mut self.unsynced) {
            self.lost_by_failed_sync.entry(block).or_insert(old);
        }
    }

    /// Power cut. Returns the number of blocks that were unsynced.
    pub fn cut(&mut self, cut: Cut, rng: &mut Rng) -> u64 {
        let unsynced_blocks: Vec<_> = std::mem::take(&mut self.unsynced)
            .into_iter()
            .chain(std::mem::take(&mut self.lost_by_failed_sync))
            .collect();
        for (block, old) in &unsynced_blocks {
            let fate = if cut == Cut::DropAll { 0 } else { rng.below(4) };
            for (i, sector) in old.chunks(SECTOR).enumerate() {
                let at = block * BLOCK + i * SECTOR;
                let new = &mut self.live[at..at + sector.len()];
                match fate {
                    0 => new.copy_from_slice(sector),
                    1 => {}
                    _ => match rng.below(16) {
                        0 => new.iter_mut().for_each(|b| *b = rng.next() as u8),
                        1..8 => new.copy_from_slice(sector),
                        _ => {}
                    },
                }
            }
        }
        unsynced_blocks.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_cut_loses_unsynced_writes() {
        let mut image = Image::default();
        image.write(0, &[1; BLOCK]);
        image.sync();
        image.write(0, &[2; BLOCK]);
        image.write(BLOCK, &[3; 10]);
        assert_eq!(image.cut(Cut::DropAll, &mut Rng(1)), 2);
        assert_eq!((image.read(0, 1), image.read(BLOCK, 1)), (&[1][..], &[0][..]));
    }

    #[test]
    fn later_sync_does_not_cover_writes_of_failed_sync() {
        let mut image = Image::default();
        image.write(0, &[1; BLOCK]);
        image.sync();
        image.write(0, &[2; BLOCK]);
        image.fail_sync();
        image.sync();
        assert_eq!(image.read(0, 1), [2]);
        image.cut(Cut::DropAll, &mut Rng(1));
        assert_eq!(image.read(0, 1), [1]);
        image.write(0, &[2; BLOCK]);
        image.fail_sync();
        image.write(0, &[3; BLOCK]);
        image.sync();
        image.cut(Cut::DropAll, &mut Rng(1));
        assert_eq!(image.read(0, 1), [3], "written again, and synced");
    }
}

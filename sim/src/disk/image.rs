//! The content of a file: a sparse, copy-on-write table of 4096-byte blocks.

use std::sync::Arc;

use pagelith_layouts::align::ALIGN;

use crate::entropy::SplitMix64;

/// Bytes in a block: the alignment unit, so every aligned write is a run of whole blocks.
pub(crate) const BLOCK: usize = ALIGN as usize;

/// Bytes in a sector: the largest unit that a disk writes atomically, hence the unit at which a
/// power cut tears.
pub(crate) const SECTOR: usize = 512;

/// Sectors in a block.
pub(crate) const SECTORS: usize = BLOCK / SECTOR;

/// One block, shared between images, unsynced writes and snapshots.
pub(crate) type Block = Arc<[u8; BLOCK]>;

/// Blocks in a chunk of the table: few enough that a copy after a snapshot is cheap, and enough
/// that the table of chunks is short.
const CHUNK: usize = 128;

/// A written block and the number of the write.
type Entry = Option<(u64, Block)>;
type Chunk = Arc<[Entry; CHUNK]>;

/// The content of a file. Blocks never written read as zeros and cost nothing; a clone costs one
/// pointer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Image(Arc<Vec<Option<Chunk>>>);

impl Image {
    /// Replaces block number `block` with the data of write `seq`.
    pub(crate) fn put(&mut self, seq: u64, block: u64, data: Block) {
        let (chunk, at) = (block as usize / CHUNK, block as usize % CHUNK);
        let chunks = Arc::make_mut(&mut self.0);
        if chunks.len() <= chunk {
            chunks.resize(chunk + 1, None);
        }
        let chunk = chunks[chunk].get_or_insert_with(|| Arc::new([const { None }; CHUNK]));
        Arc::make_mut(chunk)[at] = Some((seq, data));
    }

    fn entry(&self, block: u64) -> Option<&(u64, Block)> {
        self.0.get(block as usize / CHUNK)?.as_ref()?[block as usize % CHUNK].as_ref()
    }

    /// Block number `block`, if it was ever written.
    pub(crate) fn written(&self, block: u64) -> Option<&Block> {
        self.entry(block).map(|(_, data)| data)
    }

    /// Block number `block`.
    pub(crate) fn get(&self, block: u64) -> Block {
        self.written(block).cloned().unwrap_or_else(|| Arc::new([0; BLOCK]))
    }

    /// The number of the last write to block `block`; 0 if there was none.
    pub(crate) fn seq(&self, block: u64) -> u64 {
        self.entry(block).map_or(0, |(seq, _)| *seq)
    }

    /// Copies the bytes at `offset` to `out`; any alignment.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) {
        for (block, at, range) in spans(offset, out.len()) {
            match self.written(block) {
                Some(data) => {
                    let len = range.len();
                    out[range].copy_from_slice(&data[at..at + len]);
                }
                None => out[range].fill(0),
            }
        }
    }

    /// Changes the bytes at `offset`; any alignment. For damage at rest, not for writes.
    pub(crate) fn patch(&mut self, offset: u64, bytes: &[u8]) {
        for (block, at, range) in spans(offset, bytes.len()) {
            let mut data = *self.get(block);
            data[at..at + range.len()].copy_from_slice(&bytes[range]);
            self.put(self.seq(block), block, Arc::new(data));
        }
    }
}

/// The pieces of `offset..offset + len`, split at block borders: block number, start inside the
/// block, and the piece's range in the caller's buffer.
pub(crate) fn spans(
    offset: u64,
    len: usize,
) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let place = offset + done as u64;
        let at = (place % ALIGN) as usize;
        let take = (BLOCK - at).min(len - done);
        let range = done..done + take;
        done += take;
        Some((place / ALIGN, at, range))
    })
}

/// Appends `bytes`, whose length is a multiple of 4096, to `blocks`.
pub(crate) fn push_blocks(blocks: &mut Vec<Block>, bytes: &[u8]) {
    let (whole, rest) = bytes.as_chunks::<BLOCK>();
    assert!(rest.is_empty(), "a checked write has whole blocks len={}", bytes.len());
    blocks.extend(whole.iter().map(|b| Arc::new(*b)));
}

/// The fate of one sector of an unfinished write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectorFate {
    /// The new bytes.
    New,
    /// The old bytes.
    Old,
    /// Neither: random bytes.
    Garbage,
}

/// A block with old, new and garbage sectors, as `fate` decides for each.
pub(crate) fn mix(
    old: &Block,
    new: &Block,
    rng: &mut SplitMix64,
    mut fate: impl FnMut(&mut SplitMix64) -> SectorFate,
) -> Block {
    let mut out = **old;
    for (to, from) in out.chunks_exact_mut(SECTOR).zip(new.chunks_exact(SECTOR)) {
        match fate(rng) {
            SectorFate::New => to.copy_from_slice(from),
            SectorFate::Old => {}
            SectorFate::Garbage => rng.fill(to),
        }
    }
    Arc::new(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_read_across_blocks_returns_patch_and_zeros() {
        let mut image = Image::default();
        image.patch(4090, &[7; 12]);
        let mut out = [9; 20];
        image.read(4086, &mut out);
        assert_eq!(out, [0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 0, 0, 0, 0]);
    }

    #[test]
    fn image_read_across_chunks_returns_patch() {
        let mut image = Image::default();
        let border = (3 * CHUNK * BLOCK) as u64;
        image.patch(border - 2, &[1, 2, 3, 4]);
        let mut out = [9; 6];
        image.read(border - 3, &mut out);
        assert_eq!(out, [0, 1, 2, 3, 4, 0]);
        assert!(image.written(0).is_none(), "a block without writes");
    }

    #[test]
    fn image_clone_keeps_old_bytes() {
        let mut image = Image::default();
        image.patch(0, &[1; 8]);
        let before = image.clone();
        image.patch(0, &[2; 8]);
        let mut out = [0; 8];
        before.read(0, &mut out);
        assert_eq!(out, [1; 8]);
    }

    #[test]
    fn mixed_block_follows_fate_of_each_sector() {
        let (old, new) = (Arc::new([1; BLOCK]), Arc::new([2; BLOCK]));
        let mut fates = [SectorFate::New, SectorFate::Old, SectorFate::Garbage].into_iter().cycle();
        let out =
            mix(&old, &new, &mut SplitMix64::new(1), |_| fates.next().unwrap_or(SectorFate::Old));
        assert_eq!(out[..SECTOR], [2; SECTOR]);
        assert_eq!(out[SECTOR..2 * SECTOR], [1; SECTOR]);
        let garbage = &out[2 * SECTOR..3 * SECTOR];
        assert!(garbage.iter().any(|b| *b != 1 && *b != 2), "a garbage sector looks old or new");
    }
}

//! Copies of several blocks between lists of pieces. Non-temporal stores are waited for once, after
//! all blocks.

use pagelith_layouts::checksum::Checksum;

use super::{BlockCopy, CopyMode, store_fence};
use crate::shm::PeerMemory;

/// A source: contiguous bytes.
#[derive(Clone, Copy, Debug)]
pub enum SourcePiece<'a> {
    /// Bytes that are not written during the copy.
    Private(&'a [u8]),
    /// Bytes of memory that another process shares, and may write during the copy: the checksum is
    /// of the copy.
    Shared {
        /// The view of the memory.
        view: &'a PeerMemory,
        /// The offset of the bytes in the view.
        at: u64,
        /// The number of bytes.
        len: usize,
    },
}

impl SourcePiece<'_> {
    fn len(&self) -> usize {
        match self {
            SourcePiece::Private(bytes) => bytes.len(),
            SourcePiece::Shared { len, .. } => *len,
        }
    }

    /// Copy as many of its bytes as `to` holds, and advance past them. It works in place: see
    /// [`BlockCopy::finish`].
    fn copy(&mut self, to: &mut [u8], block: &mut BlockCopy) {
        match self {
            SourcePiece::Private(bytes) => {
                block.piece(to, &bytes[..to.len()]);
                *bytes = &bytes[to.len()..];
            }
            SourcePiece::Shared { view, at, len } => {
                view.copy_block(*at, to, block);
                (*at, *len) = (*at + to.len() as u64, *len - to.len());
            }
        }
    }
}

/// Copies one list of blocks after another. Its non-temporal stores are waited for once, when it is
/// dropped: no other thread may be notified of the copied bytes before.
pub struct Copier {
    block: BlockCopy,
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.wait();
    }
}

impl Copier {
    /// A copier with this kind of store.
    pub fn new(stores: CopyMode) -> Copier {
        Copier { block: BlockCopy::new(0, stores) }
    }

    /// Wait for its stores: later stores become visible after them.
    pub fn wait(&self) {
        if self.block.stores == CopyMode::NonTemporal {
            store_fence();
        }
    }

    /// Its kind of store.
    pub fn stores(&self) -> CopyMode {
        self.block.stores
    }

    /// Copy the bytes of the pieces `from` in order to the pieces `to`, in blocks of the lengths
    /// `blocks`, and call `sum` with the checksum of each copied block. False if either list ends
    /// before the blocks do; `sum` was not called for the rest.
    ///
    /// # Panics
    /// If a piece is of shared memory that has no such bytes.
    pub fn copy<'t, 'f>(
        &mut self,
        to: impl IntoIterator<Item = &'t mut [u8]>,
        from: impl IntoIterator<Item = SourcePiece<'f>>,
        blocks: impl IntoIterator<Item = usize>,
        mut sum: impl FnMut(Checksum),
    ) -> bool {
        let (mut to, mut from) = (to.into_iter(), from.into_iter());
        let (mut target, mut source): (&mut [u8], SourcePiece<'_>) =
            (&mut [], SourcePiece::Private(&[]));
        let block = &mut self.block;
        for len in blocks {
            block.begin(len);
            while block.left > 0 {
                while target.is_empty() {
                    let Some(next) = to.next() else { return false };
                    target = next;
                }
                while source.len() == 0 {
                    let Some(next) = from.next() else { return false };
                    source = next;
                }
                let here = block.left.min(target.len()).min(source.len());
                let (now, later) = std::mem::take(&mut target).split_at_mut(here);
                target = later;
                source.copy(now, block);
            }
            sum(block.finish().to_le_bytes());
        }
        true
    }
}

/// Copy one list of blocks, as [`Copier::copy`].
///
/// # Panics
/// As [`Copier::copy`].
pub fn copy_blocks<'t, 'f>(
    to: impl IntoIterator<Item = &'t mut [u8]>,
    from: impl IntoIterator<Item = SourcePiece<'f>>,
    blocks: impl IntoIterator<Item = usize>,
    stores: CopyMode,
    sum: impl FnMut(Checksum),
) -> bool {
    Copier::new(stores).copy(to, from, blocks, sum)
}

//! Several blocks in one go, out of pieces and into pieces: stores past the cache are waited for once, behind all of them.

use pagelith_layouts::checksum::Checksum;

use super::{BlockCopy, Stores, settle};
use crate::shm::View;

/// Bytes side by side that are copied from.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Nobody writes them meanwhile.
    Lent(&'a [u8]),
    /// So many bytes of what another process handed over, from `at` on, which it may write meanwhile: the checksum is of the copy.
    Shown {
        /// What was handed over.
        view: &'a View,
        /// Where the bytes begin in it.
        at: u64,
        /// How many there are.
        len: usize,
    },
}

impl Piece<'_> {
    fn len(&self) -> usize {
        match self {
            Piece::Lent(bytes) => bytes.len(),
            Piece::Shown { len, .. } => *len,
        }
    }

    /// Copy as many of its bytes as `to` has, and go on behind them. In place: see [`BlockCopy::finish`].
    fn copy(&mut self, to: &mut [u8], block: &mut BlockCopy) {
        match self {
            Piece::Lent(bytes) => {
                block.piece(to, &bytes[..to.len()]);
                *bytes = &bytes[to.len()..];
            }
            Piece::Shown { view, at, len } => {
                view.copy_block(*at, to, block);
                (*at, *len) = (*at + to.len() as u64, *len - to.len());
            }
        }
    }
}

/// Copies one thing after the other. What it stores past the cache is waited for once, when it is dropped: nobody may be told before that what
/// was copied is there.
pub struct Copier {
    block: BlockCopy,
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.wait();
    }
}

impl Copier {
    /// One that stores so.
    pub fn new(stores: Stores) -> Copier {
        Copier { block: BlockCopy::new(0, stores) }
    }

    /// Wait for what it has stored: what is stored from here on comes behind that.
    pub fn wait(&self) {
        if self.block.stores == Stores::PastCache {
            settle();
        }
    }

    /// How it stores.
    pub fn stores(&self) -> Stores {
        self.block.stores
    }

    /// Copy what lies in the pieces `from`, one behind the other, to the pieces `to`, in blocks of the lengths `blocks`; `sum` hears the
    /// checksum of each, of what was copied. False if either ends before the blocks do: `sum` has not heard of the rest then.
    ///
    /// # Panics
    /// If a piece is shown of memory that has no such bytes.
    pub fn copy<'t, 'f>(
        &mut self,
        to: impl IntoIterator<Item = &'t mut [u8]>,
        from: impl IntoIterator<Item = Piece<'f>>,
        blocks: impl IntoIterator<Item = usize>,
        mut sum: impl FnMut(Checksum),
    ) -> bool {
        let (mut to, mut from) = (to.into_iter(), from.into_iter());
        let (mut target, mut source): (&mut [u8], Piece<'_>) = (&mut [], Piece::Lent(&[]));
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

/// Copy once, as [`Copier::copy`].
///
/// # Panics
/// As that.
pub fn copy_blocks<'t, 'f>(
    to: impl IntoIterator<Item = &'t mut [u8]>,
    from: impl IntoIterator<Item = Piece<'f>>,
    blocks: impl IntoIterator<Item = usize>,
    stores: Stores,
    sum: impl FnMut(Checksum),
) -> bool {
    Copier::new(stores).copy(to, from, blocks, sum)
}

//! Copies of several blocks between lists of pieces. Non-temporal stores are waited for once, after
//! all blocks.

use pagelith_layouts::checksum::Checksum;

use super::{AHEAD, BlockCopy, Stores, settle};
use crate::shm::View;

/// A source: contiguous bytes.
#[derive(Clone, Copy, Debug)]
pub enum Piece<'a> {
    /// Bytes that are not written during the copy.
    Lent(&'a [u8]),
    /// Bytes of memory that another process shares, and may write during the copy: the checksum is
    /// of the copy.
    Shown {
        /// The view of the memory.
        view: &'a View,
        /// The offset of the bytes in the view.
        at: u64,
        /// The number of bytes.
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

    /// Where its bytes begin; `None` if they are not mapped.
    fn address(&self) -> Option<usize> {
        match self {
            Piece::Lent(bytes) => Some(bytes.as_ptr().addr()),
            Piece::Shown { view, at, .. } => Some(view.mapped_at(*at)?.addr()),
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

/// Copies one list of blocks after another. Its non-temporal stores are waited for once, when it is
/// dropped: no other thread may be notified of the copied bytes before.
pub struct Copier {
    block: BlockCopy,
    /// Where that begins which is copied next.
    then: Option<usize>,
}

impl Drop for Copier {
    fn drop(&mut self) {
        self.wait();
    }
}

impl Copier {
    /// A copier with this kind of store.
    pub fn new(stores: Stores) -> Copier {
        Copier { block: BlockCopy::new(0, stores), then: None }
    }

    /// Wait for its stores: later stores become visible after them.
    pub fn wait(&self) {
        if self.block.stores == Stores::PastCache {
            settle();
        }
    }

    /// Its kind of store.
    pub fn stores(&self) -> Stores {
        self.block.stores
    }

    /// What is copied behind the next copy. The first of its bytes are asked for while the last ones of that are copied, as all others are by what
    /// is copied before them.
    pub fn then(&mut self, next: &Piece<'_>) {
        self.then = next.address();
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
        let (block, then) = (&mut self.block, self.then.take());
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
                let (mut now, later) = std::mem::take(&mut target).split_at_mut(here);
                target = later;
                if source.len() == here
                    && let Some(then) = then
                {
                    let (before, last) = now.split_at_mut(here.saturating_sub(AHEAD));
                    source.copy(before, block);
                    let ahead = source.address().map(|at| then.wrapping_sub(at) as isize);
                    block.ask_ahead(ahead.unwrap_or(AHEAD as isize));
                    now = last;
                }
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
    from: impl IntoIterator<Item = Piece<'f>>,
    blocks: impl IntoIterator<Item = usize>,
    stores: Stores,
    sum: impl FnMut(Checksum),
) -> bool {
    Copier::new(stores).copy(to, from, blocks, sum)
}

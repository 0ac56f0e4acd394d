//! The table of frames, which who has the core has all of, or threads in lanes some each.
//!
//! Invariants:
//! 1. [`Cells`] is a part of the core: who reaches it has the core's lock, and [the gate](pagelith_io::gate::Gate) of the lanes is closed.
//! 2. [`LaneCells`] is used inside of that gate alone. So the two are never used at once, and what the one side did is seen by the other.
//! 3. Of those inside the gate one at a time has a cell: who has its number, who has the lock of the lane that orders its frame, or who
//!    took that out of its lane as a victim. How it comes from one to the next is seen: by that lock, or with the number.

use std::cell::UnsafeCell;

use pagelith_io::gated::{Gated, Seen};
use pagelith_io::{huge, prefetch};

use super::Frame;

/// A place for a frame.
struct Cell(UnsafeCell<Option<Frame>>);

// SAFETY: a frame may go from thread to thread and be seen by several (asserted below); that no two have a cell and one changes it is what the
// module's text promises.
unsafe impl Sync for Cell {}

const _: () = {
    const fn is_shared<T: Send + Sync>() {}
    is_shared::<Frame>();
};

/// All of the table.
pub(super) struct Cells(Gated<Vec<Cell>>);

/// The table for who has some of it.
pub(super) struct LaneCells(Seen<Vec<Cell>>);

impl Cells {
    /// Empty, with room for so many.
    pub(super) fn with_room(most: usize) -> Cells {
        // SAFETY: invariants 1 and 2.
        Cells(unsafe { Gated::new(huge::table(most)) })
    }

    pub(super) fn of_lanes(&self) -> LaneCells {
        LaneCells(self.0.seen())
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, at: usize) -> Option<&Frame> {
        // SAFETY: invariant 1: nobody is inside the gate, and who would change it has `&mut` of the one `Cells`.
        self.0.get(at).and_then(|cell| unsafe { &*cell.0.get() }.as_ref())
    }

    /// A place, to be filled, emptied or changed.
    pub(super) fn place(&mut self, at: usize) -> Option<&mut Option<Frame>> {
        self.0.get_mut(at).map(|cell| cell.0.get_mut())
    }

    /// One more, empty; its number.
    pub(super) fn push(&mut self) -> usize {
        self.0.push(Cell(UnsafeCell::new(None)));
        self.0.len() - 1
    }

    pub(super) fn prefetch_to_write(&self, at: usize) {
        self.0.get(at).into_iter().for_each(prefetch::line_to_write);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, &Frame)> {
        (0..self.len()).filter_map(|at| Some((at, self.get(at)?)))
    }
}

impl LaneCells {
    fn cell(&self, at: usize) -> Option<&Cell> {
        // SAFETY: invariant 2.
        unsafe { self.0.get() }.get(at)
    }

    /// A cell.
    ///
    /// # Safety
    /// The caller is inside the gate and has it by invariant 3, and what this returned before is gone.
    #[allow(clippy::mut_from_ref, reason = "the caller has it alone")]
    pub(super) unsafe fn place(&self, at: usize) -> Option<&mut Option<Frame>> {
        // SAFETY: the caller says so.
        self.cell(at).map(|cell| unsafe { &mut *cell.0.get() })
    }

    pub(super) fn prefetch_to_write(&self, at: usize) {
        self.cell(at).into_iter().for_each(prefetch::line_to_write);
    }
}

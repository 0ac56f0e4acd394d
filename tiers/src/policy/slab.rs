//! A table by frame number.

use pagelith_io::hugepage;

use super::frame::FrameId;

/// Values that a policy keeps for each frame. As long as the largest frame number seen.
#[derive(Debug)]
pub(super) struct Slab<T> {
    notes: Vec<Option<T>>,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Slab<T> {
        Slab { notes: Vec::new() }
    }

    /// There will be at most `frames` frames: reserve room for all of them.
    pub(super) fn reserve(&mut self, frames: usize) {
        if self.notes.is_empty() {
            self.notes = hugepage::table(frames);
        }
    }

    pub(super) fn get(&self, frame: FrameId) -> Option<&T> {
        self.notes.get(frame.0 as usize)?.as_ref()
    }

    pub(super) fn get_mut(&mut self, frame: FrameId) -> Option<&mut T> {
        self.notes.get_mut(frame.0 as usize)?.as_mut()
    }

    pub(super) fn set(&mut self, frame: FrameId, note: T) {
        let at = frame.0 as usize;
        if at >= self.notes.len() {
            self.notes.resize_with(at + 1, || None);
        }
        self.notes[at] = Some(note);
    }

    pub(super) fn take(&mut self, frame: FrameId) -> Option<T> {
        self.notes.get_mut(frame.0 as usize)?.take()
    }
}

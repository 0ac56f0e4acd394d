//! A table by frame number.

use pagelith_io::{huge, prefetch};

use super::FrameId;
use super::lanes::Spread;

/// What a policy notes of each frame. As long as the largest frame number seen, of those in its lane.
#[derive(Debug)]
pub(super) struct Slab<T> {
    notes: Vec<Option<T>>,
    spread: Spread,
}

impl<T> Slab<T> {
    pub(super) fn new() -> Slab<T> {
        Slab::of(Spread::NONE)
    }

    /// Of the frames of one lane.
    pub(super) fn of(spread: Spread) -> Slab<T> {
        Slab { notes: Vec::new(), spread }
    }

    /// There will be at most so many frames: room for all of them at once.
    pub(super) fn expect(&mut self, frames: usize) {
        if self.notes.is_empty() {
            self.notes = huge::table(frames);
        }
    }

    pub(super) fn get(&self, frame: FrameId) -> Option<&T> {
        self.notes.get(self.spread.place(frame))?.as_ref()
    }

    /// Start bringing a note into the cache, to be changed. Changes nothing.
    pub(super) fn prefetch(&self, frame: FrameId) {
        self.notes.get(self.spread.place(frame)).into_iter().for_each(prefetch::line_to_write);
    }

    pub(super) fn get_mut(&mut self, frame: FrameId) -> Option<&mut T> {
        self.notes.get_mut(self.spread.place(frame))?.as_mut()
    }

    pub(super) fn set(&mut self, frame: FrameId, note: T) {
        let at = self.spread.place(frame);
        if at >= self.notes.len() {
            self.notes.resize_with(at + 1, || None);
        }
        self.notes[at] = Some(note);
    }

    pub(super) fn take(&mut self, frame: FrameId) -> Option<T> {
        self.notes.get_mut(self.spread.place(frame))?.take()
    }
}

//! Whether a batch of gets loads what is on SSD, or leaves it to be recomputed.

use pagelith_io::clock::Mono;

/// Whether a batch may answer that its pages are to be recomputed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recompute {
    /// Its caller needs the bytes.
    Never,
    /// It may, and that is not decided yet.
    Undecided,
    /// Its objects are loaded; when that began, and when the last read ended.
    Loading(Mono, Mono),
}

impl Recompute {
    /// A read of the batch ended.
    pub fn read_ended(&mut self, now: Mono) {
        if let Recompute::Loading(_, last) = self {
            *last = now;
        }
    }
}

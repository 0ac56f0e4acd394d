//! Whether a batch of gets loads what is on SSD, or leaves it to be recomputed.

use pagelith_io::clock::Mono;

/// Whether a batch may answer that its pages are to be recomputed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recompute {
    /// Its caller needs the bytes.
    Never,
    /// It may, and that is not decided yet. Later batches of its request load `more` bytes of its
    /// pages. The caller recomputes this many tokens in a second; 0 is the configured rate.
    Undecided { more: u64, tokens_per_s: u64 },
    /// The request is loaded.
    Load,
    /// Its objects are loaded; when that began, and when the last read ended.
    Loading(Mono, Mono),
    /// Of the request, what is on SSD is to be recomputed.
    Slow,
}

impl Recompute {
    /// Not decided yet, for a whole request.
    pub fn asking(tokens_per_s: u64) -> Recompute {
        Recompute::Undecided { more: 0, tokens_per_s }
    }

    /// A read of the batch ended.
    pub fn read_ended(&mut self, now: Mono) {
        if let Recompute::Loading(_, last) = self {
            *last = now;
        }
    }

    /// For the next batch of the same request: it is decided once.
    pub fn of_next_batch(self) -> Recompute {
        match self {
            Recompute::Load | Recompute::Loading(..) => Recompute::Load,
            Recompute::Undecided { tokens_per_s, .. } => Recompute::asking(tokens_per_s),
            Recompute::Never | Recompute::Slow => self,
        }
    }
}

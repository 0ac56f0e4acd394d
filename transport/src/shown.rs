//! Memory that the two ends of a link share, and bytes that are shown there.

use std::sync::{Arc, Mutex, PoisonError};

use pagelith_io::buffer::Part;
use pagelith_io::shm::{Region, View};
use pagelith_layouts::wire::shown::{ShownPiece, Stretch};

/// Most regions that a side hands over on one link.
pub const REGIONS_MAX: usize = 32;

/// Memory of this process that its peers may look at: what links hand over that are made from now on. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Shows(Arc<Mutex<Vec<Arc<Region>>>>);

impl Shows {
    /// One more; false, and nothing is done, if there are [`REGIONS_MAX`].
    pub fn add(&self, region: Arc<Region>) -> bool {
        let mut regions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = regions.len() < REGIONS_MAX;
        if room {
            regions.push(region);
        }
        room
    }

    /// All of them, in the order in which they were added.
    pub fn regions(&self) -> Vec<Arc<Region>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What each side has handed over, in that order.
#[derive(Clone, Debug, Default)]
pub struct Regions {
    /// This side's own memory: what is pushed from there is shown.
    pub own: Vec<Arc<Region>>,
    /// The peer's.
    pub theirs: Vec<Arc<View>>,
}

impl Regions {
    /// Where all of `parts` lie in this side's regions; `None` if one of them lies elsewhere, or none has a byte.
    pub(crate) fn pieces(&self, parts: &[Part]) -> Option<Vec<ShownPiece>> {
        if self.own.is_empty() {
            return None;
        }
        let place = |part: &Part| {
            let regions = self.own.iter().zip(0u32..);
            regions
                .filter_map(|(region, number)| Some((number, region.place(part.addr(), part.len())?)))
                .next()
                .map(|(number, at)| ShownPiece::new(number, at, part.len() as u64))
        };
        let pieces: Vec<ShownPiece> =
            parts.iter().filter(|part| !part.is_empty()).map(place).collect::<Option<_>>()?;
        (!pieces.is_empty()).then_some(pieces)
    }

    /// What the peer shows; `None` if it has handed over no such memory.
    pub(crate) fn shown(&self, stretch: Stretch, pieces: impl Iterator<Item = ShownPiece>) -> Option<Shown> {
        let piece = |piece: ShownPiece| {
            let view = self.theirs.get(piece.region as usize)?;
            view.has(piece.at, piece.length).then(|| (view.clone(), piece.at, piece.length))
        };
        Some(Shown { stretch, pieces: pieces.map(piece).collect::<Option<_>>()? })
    }
}

/// Bytes in the peer's memory, and the right to look at them until they are handed to
/// [`Link::took`](crate::link::Link::took). Nothing says that they stay as they are: what was copied is compared with
/// checksums before it is believed.
#[derive(Debug)]
pub struct Shown {
    stretch: Stretch,
    /// In order: where each begins in its view, and how long it is.
    pieces: Vec<(Arc<View>, u64, u64)>,
}

impl Shown {
    /// Which operation, item and offset it is of.
    pub fn stretch(&self) -> Stretch {
        self.stretch
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.pieces.iter().map(|(_, _, length)| length).sum()
    }

    /// Where they are mapped, if they lie side by side and are.
    pub fn mapped_at(&self) -> Option<*const u8> {
        match self.pieces.as_slice() {
            [(view, at, _)] => view.mapped_at(*at),
            _ => None,
        }
    }

    /// Copy the bytes from `from` on into `to`.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn copy_out(&self, from: u64, to: &mut [u8]) {
        let (mut skip, mut to) = (from, to);
        for (view, at, length) in &self.pieces {
            if skip >= *length {
                skip -= length;
                continue;
            }
            let here = usize::try_from(length - skip).unwrap_or(usize::MAX).min(to.len());
            let (now, later) = to.split_at_mut(here);
            view.copy_out(at + skip, now);
            (skip, to) = (0, later);
            if to.is_empty() {
                return;
            }
        }
        assert!(to.is_empty(), "beyond what is shown");
    }
}

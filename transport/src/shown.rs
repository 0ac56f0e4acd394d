//! Memory that the two ends of a link share, and bytes that are shown there.

use std::sync::{Arc, Mutex, PoisonError};

use pagelith_io::buffer::Part;
use pagelith_io::fused::Piece;
use pagelith_io::shm::{CatalogView, Region, SteadyWords, View};
use pagelith_layouts::wire::shown::{ShownPiece, Stretch};
use smallvec::SmallVec;

/// Most regions that a side hands over on one link.
pub const REGIONS_MAX: usize = 32;

/// Where bytes lie that are shown: side by side, mostly.
pub type Pieces = SmallVec<[ShownPiece; 1]>;

/// Memory of this process that its peers may look at: what links hand over that are made from now on. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Shows(Arc<Mutex<Vec<Arc<Region>>>>);

impl Shows {
    /// One more; false, and nothing is added, if there are [`REGIONS_MAX`]. What was there before at some of its addresses is dropped: it is not
    /// mapped there any more.
    pub fn add(&self, region: Arc<Region>) -> bool {
        let mut regions = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (first, end) = (region.base() as usize, region.base() as usize + region.len());
        regions.retain(|one| one.base() as usize >= end || one.base() as usize + one.len() <= first);
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
    /// Where the client says what is steady, if that is agreed.
    pub steady: Option<SteadyWords>,
    /// What lies where in the first region of the peer's, if it tells.
    pub catalog: Option<Arc<CatalogView>>,
}

impl Regions {
    /// The same, where the peer's last region is a catalog of its first.
    #[must_use]
    pub fn with_catalog(self) -> Regions {
        let catalog = self.theirs.last().cloned().and_then(CatalogView::of).map(Arc::new);
        Regions { catalog, ..self }
    }

    /// Where all of `parts` lie in this side's regions; `None` if one of them lies elsewhere, or none has a byte.
    pub fn pieces(&self, parts: &[Part]) -> Option<Pieces> {
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
        let pieces: Pieces =
            parts.iter().filter(|part| !part.is_empty()).map(place).collect::<Option<_>>()?;
        (!pieces.is_empty()).then_some(pieces)
    }

    /// Whether all of these lie in regions of this side's where nobody else can have something else.
    pub fn stay(&self, parts: &[Part]) -> bool {
        let stays = |piece: &ShownPiece| self.own.get(piece.region as usize).is_some_and(|own| own.stays());
        self.pieces(parts).is_some_and(|pieces| pieces.iter().all(stays))
    }

    /// What the peer shows; `None` if it has handed over no such memory.
    pub fn shown(&self, stretch: Stretch, pieces: impl Iterator<Item = ShownPiece>) -> Option<Shown> {
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
    pieces: SmallVec<[(Arc<View>, u64, u64); 1]>,
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
        self.each_view(from, to, |view, at, to| view.copy_out(at, to));
    }

    /// The pieces that they lie in, in order.
    pub fn pieces(&self) -> impl Iterator<Item = Piece<'_>> {
        // A view is memory of this process's, so its bytes can be counted.
        self.pieces.iter().map(|(view, at, length)| Piece::Shown { view, at: *at, len: *length as usize })
    }

    fn each_view(&self, from: u64, to: &mut [u8], mut copy: impl FnMut(&View, u64, &mut [u8])) {
        let (mut skip, mut to) = (from, to);
        for (view, at, length) in &self.pieces {
            if skip >= *length {
                skip -= length;
                continue;
            }
            let here = usize::try_from(length - skip).unwrap_or(usize::MAX).min(to.len());
            let (now, later) = to.split_at_mut(here);
            copy(view, at + skip, now);
            (skip, to) = (0, later);
            if to.is_empty() {
                return;
            }
        }
        assert!(to.is_empty(), "beyond what is shown");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many bytes of a file in memory, mapped at this address by the caller's word.
    fn region(address: usize, bytes: usize) -> Arc<Region> {
        let own = Region::new(bytes).expect("memory");
        let fd = std::os::fd::AsFd::as_fd(&own).try_clone_to_owned().expect("a descriptor");
        Arc::new(Region::mapped(fd, address, bytes).expect("a file in memory"))
    }

    #[test]
    fn a_region_takes_the_place_of_those_whose_addresses_it_has() {
        let (shows, page) = (Shows::default(), 4096);
        let at = |n: usize| (1 << 20) + n * page;
        let given = [region(at(0), page), region(at(1), page), region(at(2), page), region(at(4), page)];
        given.iter().for_each(|one| assert!(shows.add(one.clone())));
        let again = region(at(1), 2 * page);
        assert!(shows.add(again.clone()));
        let left: Vec<_> = shows.regions().iter().map(|one| (one.base() as usize, one.len())).collect();
        assert_eq!(left, [(at(0), page), (at(4), page), (at(1), 2 * page)]);
        // The same over and over is one.
        (0..2 * REGIONS_MAX).for_each(|_| assert!(shows.add(again.clone())));
        assert_eq!(shows.regions().len(), 3);
        (3..REGIONS_MAX).for_each(|n| assert!(shows.add(region(at(2 * n), page))));
        assert!(!shows.add(region(at(2 * REGIONS_MAX), page)));
        assert!(shows.add(region(at(6), page)));
    }
}

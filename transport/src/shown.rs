//! Memory that the two ends of a link share, and references to bytes in them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagelith_io::buffer::Part;
use pagelith_io::hashed_copy::SourcePiece;
use pagelith_io::shm::{PeerMemory, SharedRegion};
use pagelith_layouts::wire::shm_ref::{ItemRange, ShownPiece};

/// Maximum regions that one end hands over on a link.
pub const REGIONS_MAX: usize = 32;

/// Memory of this process that its peers may read. Each new link hands it over. Clones share the
/// list.
#[derive(Clone, Debug, Default)]
pub struct SharedRegions(Arc<Mutex<Vec<Arc<SharedRegion>>>>);

impl SharedRegions {
    /// Add a region. Returns false, and adds nothing, if the list has [`REGIONS_MAX`] regions.
    /// Regions that overlap its addresses are removed first: they are no longer mapped there.
    pub fn add(&self, region: Arc<SharedRegion>) -> bool {
        let mut regions = self.lock();
        regions.retain(|one| !overlap(one, &region));
        let room = regions.len() < REGIONS_MAX;
        if room {
            regions.push(region);
        }
        room
    }

    /// Whether [`SharedRegions::add`] would add a region.
    pub fn has_room_for(&self, region: &SharedRegion) -> bool {
        self.lock().iter().filter(|one| !overlap(one, region)).count() < REGIONS_MAX
    }

    /// All regions, in the order in which they were added.
    pub fn regions(&self) -> Vec<Arc<SharedRegion>> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<SharedRegion>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether two regions have an address in common.
fn overlap(one: &SharedRegion, other: &SharedRegion) -> bool {
    let range = |region: &SharedRegion| (region.base().addr(), region.base().addr() + region.len());
    let ((first, end), (other_first, other_end)) = (range(one), range(other));
    first < other_end && other_first < end
}

/// The regions and files that each end has handed over, in that order.
#[derive(Clone, Debug, Default)]
pub struct LinkRegions {
    /// Memory of this end: pushes from it are passed by reference.
    pub own: Vec<Arc<SharedRegion>>,
    /// Memory of the peer.
    pub theirs: Vec<Arc<PeerMemory>>,
}

impl LinkRegions {
    /// The locations of all of `parts` in this end's regions; `None` if one of them is outside of
    /// the regions, or if none has a byte.
    pub fn pieces(&self, parts: &[Part]) -> Option<Vec<ShownPiece>> {
        if self.own.is_empty() {
            return None;
        }
        let piece_of = |part: &Part| {
            let regions = self.own.iter().zip(0u32..);
            regions
                .filter_map(|(region, number)| {
                    Some((number, region.offset_of(part.addr(), part.len())?))
                })
                .next()
                .map(|(number, at)| ShownPiece::new(number, at, part.len() as u64))
        };
        let pieces: Vec<ShownPiece> =
            parts.iter().filter(|part| !part.is_empty()).map(piece_of).collect::<Option<_>>()?;
        (!pieces.is_empty()).then_some(pieces)
    }

    /// A reference to bytes in the peer's regions; `None` if it has handed over no such memory.
    pub fn shown(
        &self,
        range: ItemRange,
        pieces: impl Iterator<Item = ShownPiece>,
    ) -> Option<ShmRef> {
        let piece = |piece: ShownPiece| {
            let view = self.theirs.get(piece.region as usize)?;
            view.has(piece.at, piece.length).then(|| (view.clone(), piece.at, piece.length))
        };
        Some(ShmRef { range, pieces: pieces.map(piece).collect::<Option<_>>()? })
    }
}

/// A reference to bytes in the peer's memory. The holder may read them until it hands the reference
/// to [`Link::release_ref`](crate::link::Link::release_ref). The peer may change the bytes at any
/// time, so the holder verifies its copy by checksums.
#[derive(Debug)]
pub struct ShmRef {
    range: ItemRange,
    /// The pieces in order: a view, the offset in it, and the length.
    pieces: Vec<(Arc<PeerMemory>, u64, u64)>,
}

impl ShmRef {
    /// The operation, item and offset.
    pub fn range(&self) -> ItemRange {
        self.range
    }

    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.pieces.iter().map(|(_, _, length)| length).sum()
    }

    /// The address of the bytes, if they are contiguous and mapped.
    pub fn mapped_at(&self) -> Option<*const u8> {
        match self.pieces.as_slice() {
            [(view, at, _)] => view.mapped_at(*at),
            _ => None,
        }
    }

    /// Copy the bytes from `from` on into `to`.
    ///
    /// # Panics
    /// If there are fewer bytes than `to` holds.
    pub fn copy_out(&self, from: u64, to: &mut [u8]) {
        self.each_view(from, to, |view, at, to| view.copy_out(at, to));
    }

    /// The pieces in order.
    pub fn pieces(&self) -> impl Iterator<Item = SourcePiece<'_>> {
        // A view is in this process's address space, so its length fits a usize.
        self.pieces.iter().map(|(view, at, length)| SourcePiece::Shared {
            view,
            at: *at,
            len: *length as usize,
        })
    }

    fn each_view(
        &self,
        from: u64,
        to: &mut [u8],
        mut copy: impl FnMut(&PeerMemory, u64, &mut [u8]),
    ) {
        let (mut skip, mut to) = (from, to);
        for (view, at, length) in &self.pieces {
            if skip >= *length {
                skip -= length;
                continue;
            }
            let count = usize::try_from(length - skip).unwrap_or(usize::MAX).min(to.len());
            let (now, later) = to.split_at_mut(count);
            copy(view, at + skip, now);
            (skip, to) = (0, later);
            if to.is_empty() {
                return;
            }
        }
        assert!(to.is_empty(), "the reference has fewer bytes than requested");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region of `bytes` bytes in a memfd, announced as mapped at `address`.
    fn region(address: usize, bytes: usize) -> Arc<SharedRegion> {
        let own = SharedRegion::new(bytes).expect("memory");
        let fd = std::os::fd::AsFd::as_fd(&own).try_clone_to_owned().expect("a descriptor");
        Arc::new(SharedRegion::mapped(fd, address, bytes).expect("a file in memory"))
    }

    #[test]
    fn added_region_replaces_those_that_overlap_its_addresses() {
        let (shows, page) = (SharedRegions::default(), 4096);
        let at = |n: usize| (1 << 20) + n * page;
        let given =
            [region(at(0), page), region(at(1), page), region(at(2), page), region(at(4), page)];
        given.iter().for_each(|one| assert!(shows.add(one.clone())));
        let again = region(at(1), 2 * page);
        assert!(shows.add(again.clone()));
        let left: Vec<_> =
            shows.regions().iter().map(|one| (one.base() as usize, one.len())).collect();
        assert_eq!(left, [(at(0), page), (at(4), page), (at(1), 2 * page)]);
        // Adding the same region again replaces it.
        (0..2 * REGIONS_MAX).for_each(|_| assert!(shows.add(again.clone())));
        assert_eq!(shows.regions().len(), 3);
        (3..REGIONS_MAX).for_each(|n| assert!(shows.add(region(at(2 * n), page))));
        assert!(!shows.add(region(at(2 * REGIONS_MAX), page)));
        assert!(shows.add(region(at(6), page)));
    }
}

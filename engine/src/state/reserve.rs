//! Reserved arena memory, which an object's bytes are written to before the object is visible: the
//! payload of a put over a link, or a prefetch from SSD. The bytes are copied once, or not at all.
//!
//! Invariants:
//! - A reserved extent belongs to no frame, and only its reservation refers to it. It is written
//!   through one [`Part`] while its bytes arrive, and only read afterwards. When that part is gone,
//!   the extent moves into a frame or returns to the allocator.
//! - [`BytesInUse::reserved`] is the sum of the padded bytes of all reserved extents, and has a
//!   limit common to all links and readers. A dropped reservation returns its extent.
//! - No reservation is dropped while the core's lock is held, since its drop takes that lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagelith_io::buffer::{KeepAlive, Part};
use pagelith_io::sync::AtomicU64;
use pagelith_layouts::align::align_up;
use pagelith_layouts::checksum::Checksums;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::dram::arena::Extent;

use crate::memory::frames::FrameMember;
use crate::state::frame_access::UnpublishedExtent;
use crate::state::group_memory;
use crate::state::shared::Shared;

/// Reserved extents may take 1/`RESERVED_SHARE` of the arena, or the memory of one group if that is
/// more.
pub(crate) const RESERVED_SHARE: u64 = 4;

/// A reserved extent.
struct ReservedExtent {
    shared: Arc<Shared>,
    extent: Option<Extent>,
}

impl ReservedExtent {
    fn take(&mut self) -> Option<Extent> {
        let extent = self.extent.take()?;
        self.shared.bytes.reserved.fetch_sub(extent.padded_bytes(), Ordering::Relaxed);
        Some(extent)
    }
}

impl Drop for ReservedExtent {
    fn drop(&mut self) {
        if let Some(extent) = self.take() {
            self.shared.lock().dram.space.free(extent);
        }
    }
}

/// Reserved memory whose bytes have not arrived yet.
#[derive(Debug)]
pub(crate) struct ArenaReservation(Arc<ReservedExtent>);

/// Reserved memory that holds an object's bytes, with the checksums of their blocks.
pub(crate) struct FilledReservation {
    reserved: Arc<ReservedExtent>,
    sums: Checksums,
}

/// Result of a request for memory.
pub(crate) enum ReserveResult {
    /// One reservation for each object, and the memory to be filled.
    Reserved(Vec<(ArenaReservation, Part)>),
    /// [`BytesInUse::reserved`] would exceed its limit.
    OverLimit,
    /// The arena is full of frames that cannot be evicted.
    ArenaFull,
}

/// Reserve memory for objects of these lengths: for all of them or for none.
pub(crate) fn reserve_all(shared: &Arc<Shared>, lengths: &[u64]) -> ReserveResult {
    let bytes: u64 = lengths.iter().map(|length| align_up(*length)).sum();
    if !count_reserved(&shared.bytes.reserved, bytes, shared.config.arena_bytes() / RESERVED_SHARE)
    {
        return ReserveResult::OverLimit;
    }
    let mut extents = Vec::with_capacity(lengths.len());
    let mut core = shared.lock();
    core.expire_due(|| shared.now());
    for length in lengths {
        let mut extent = group_memory::reserve_extent(&mut core, *length);
        if extent.is_none() {
            core.expire(shared.now());
            extent = group_memory::reserve_extent(&mut core, *length);
        }
        let Some(extent) = extent else {
            extents.into_iter().for_each(|extent| core.dram.space.free(extent));
            drop(core);
            shared.bytes.reserved.fetch_sub(bytes, Ordering::Relaxed);
            shared.signals.flusher.raise();
            return ReserveResult::ArenaFull;
        };
        extents.push(extent);
    }
    drop(core);
    let reservation = |extent: Extent| {
        let reserved = Arc::new(ReservedExtent { shared: shared.clone(), extent: Some(extent) });
        let part =
            UnpublishedExtent::new(extent).into_part(&shared.memory, reserved.clone() as KeepAlive);
        let (part, mut padding) = part.split(extent.bytes as usize);
        padding.bytes_mut().into_iter().for_each(|padding| padding.fill(0));
        (ArenaReservation(reserved), part)
    };
    ReserveResult::Reserved(extents.into_iter().map(reservation).collect())
}

/// Add `bytes` to `reserved` unless the sum exceeds `max`; from zero, any number may be added.
pub(crate) fn count_reserved(reserved: &AtomicU64, bytes: u64, max: u64) -> bool {
    let add = |now: u64| (now == 0 || now + bytes <= max).then_some(now + bytes);
    reserved.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok()
}

impl ArenaReservation {
    /// All bytes have arrived in `parts`, which are the reserved memory; `sums` are their
    /// checksums.
    pub fn fill(self, parts: Vec<Part>, sums: Checksums) -> FilledReservation {
        drop(parts);
        FilledReservation { reserved: self.0, sums }
    }
}

impl FilledReservation {
    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.reserved.extent.map_or(0, |extent| extent.bytes)
    }

    /// The extent that holds the bytes.
    pub fn extent(&self) -> Option<Extent> {
        self.reserved.extent
    }

    /// Convert into a frame member, which owns the extent from then on; `None` if a part of the
    /// memory still exists.
    pub fn into_member(self, key: ObjectKey, fingerprint: u128) -> Option<FrameMember> {
        let mut reserved = Arc::try_unwrap(self.reserved).ok()?;
        let extent = reserved.take()?;
        Some(FrameMember { key, fingerprint, extent, checksums: self.sums })
    }
}

impl std::fmt::Debug for ReservedExtent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReservedExtent").field("extent", &self.extent).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for FilledReservation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FilledReservation").field("length", &self.length()).finish_non_exhaustive()
    }
}

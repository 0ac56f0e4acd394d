//! Memory of the arena that an object's bytes arrive in before anybody sees the object: what comes over a link to be put, and
//! what is read from SSD to be kept. So it is copied once, or not at all.
//!
//! Invariants:
//! - An extent that was set aside is in no frame and known to nobody else: it is written through one [`Part`] while its bytes
//!   arrive, then only read, and goes into a frame or back to the allocator once nothing is left of that part.
//! - What is set aside at a time is bounded, of all links and readers together, and what is no longer wanted goes back when it is dropped.
//!   Nothing of this is dropped under the core's lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use pagelith_io::buffer::{Keep, Part};
use pagelith_io::sync::AtomicU64;
use pagelith_layouts::align::align_up;
use pagelith_layouts::checksum::Checksums;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::dram::arena::Extent;

use crate::memory::frames::FrameMember;
use crate::state::frame_access::Unpublished;
use crate::state::put_types;
use crate::state::shared::Shared;

/// What may be set aside at a time: this share of the arena, or one group if that is more.
pub(crate) const ARRIVING_SHARE: u64 = 4;

/// An extent set aside.
struct Hold {
    shared: Arc<Shared>,
    extent: Option<Extent>,
}

impl Hold {
    fn take(&mut self) -> Option<Extent> {
        let extent = self.extent.take()?;
        self.shared.arriving.fetch_sub(extent.padded_bytes(), Ordering::Relaxed);
        Some(extent)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(extent) = self.take() {
            self.shared.lock().space.free(extent);
        }
    }
}

/// Memory for an object whose bytes are on their way.
#[derive(Debug)]
pub(crate) struct Arriving(Arc<Hold>);

/// An object's bytes, in the arena, with the checksums of their blocks.
pub(crate) struct Arrived {
    hold: Arc<Hold>,
    sums: Checksums,
}

/// What came of asking for memory.
pub(crate) enum SetAside {
    /// For each object, and the memory to be filled.
    Now(Vec<(Arriving, Part)>),
    /// Too much is on its way already.
    Later,
    /// The arena is full of what may not leave.
    Full,
}

/// Memory for objects of these lengths, for all of them or none.
pub(crate) fn set_aside(shared: &Arc<Shared>, lengths: &[u64]) -> SetAside {
    let bytes: u64 = lengths.iter().map(|length| align_up(*length)).sum();
    if !reserve(&shared.arriving, bytes, shared.config.arena_bytes() / ARRIVING_SHARE) {
        return SetAside::Later;
    }
    let mut extents = Vec::with_capacity(lengths.len());
    let mut core = shared.lock();
    for length in lengths {
        let mut extent = put_types::set_aside_one(&mut core, *length);
        if extent.is_none() {
            put_types::expire(shared, &mut core);
            extent = put_types::set_aside_one(&mut core, *length);
        }
        let Some(extent) = extent else {
            extents.into_iter().for_each(|extent| core.space.free(extent));
            drop(core);
            shared.arriving.fetch_sub(bytes, Ordering::Relaxed);
            shared.work.raise();
            return SetAside::Full;
        };
        extents.push(extent);
    }
    drop(core);
    let arriving = |extent: Extent| {
        let hold = Arc::new(Hold { shared: shared.clone(), extent: Some(extent) });
        let part = Unpublished::new(extent).into_part(&shared.memory, hold.clone() as Keep);
        let (part, mut padding) = part.split(extent.bytes as usize);
        padding.bytes_mut().into_iter().for_each(|padding| padding.fill(0));
        (Arriving(hold), part)
    };
    SetAside::Now(extents.into_iter().map(arriving).collect())
}

/// Count `bytes` in, if they are not too many beside what is there already; alone they may be more.
pub(crate) fn reserve(arriving: &AtomicU64, bytes: u64, most: u64) -> bool {
    let more = |now: u64| (now == 0 || now + bytes <= most).then_some(now + bytes);
    arriving.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
}

impl Arriving {
    /// All of it has arrived; `parts` are its memory, and `sums` are the checksums of what is there.
    pub fn arrived(self, parts: Vec<Part>, sums: Checksums) -> Arrived {
        drop(parts);
        Arrived { hold: self.0, sums }
    }
}

impl Arrived {
    /// Length in bytes.
    pub fn length(&self) -> u64 {
        self.hold.extent.map_or(0, |extent| extent.bytes)
    }

    /// Where it lies, for who puts it into a group at that place.
    pub fn extent(&self) -> Option<Extent> {
        self.hold.extent
    }

    /// It as a member of a frame, which has the memory from then on; `None` if part of that is still somebody else's.
    pub fn into_member(self, key: ObjectKey, fingerprint: u128) -> Option<FrameMember> {
        let mut hold = Arc::try_unwrap(self.hold).ok()?;
        let extent = hold.take()?;
        Some(FrameMember { key, fingerprint, extent, checksums: self.sums })
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hold").field("extent", &self.extent).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Arrived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrived").field("length", &self.length()).finish_non_exhaustive()
    }
}

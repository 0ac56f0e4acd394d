//! Memory of buffers that were dropped, kept for the next ones: to map a buffer of a few pages, have the kernel
//! clear them one fault at a time, and unmap it costs more than to copy into it.
//!
//! Invariants:
//! - What is kept is at most [`SPARE_BYTES`] and [`SPARES`] maps; what is longer than [`LONGEST`] goes back to the
//!   system.
//! - A map has one owner: the list, or whoever took it from there.

use memmap2::{Advice, MmapMut, MmapOptions};

use crate::sync::{PoisonError, StaticMutex};

/// Most that is kept, bytes: the reads and writes of a deep queue, not somebody's staging memory.
const SPARE_BYTES: usize = 16 << 20;
/// The longest map that is kept, bytes.
pub(crate) const LONGEST: usize = 2 << 20;
/// Most maps that are kept: the list is searched from end to end.
const SPARES: usize = 64;
/// Maps of up to this many bytes serve any shorter buffer; a longer one must be half used.
const ANY: usize = 64 << 10;

/// Maps of so many bytes are asked to be of huge pages.
const HUGE: usize = 4 << 20;

static SPARE: StaticMutex<Vec<MmapMut>> = StaticMutex::new(Vec::new());

/// At least `len` bytes, at least one, the first `len` of them zero.
pub(crate) fn zeroed(len: usize) -> std::io::Result<MmapMut> {
    let Some(mut map) = taken(len) else { return fresh(len) };
    map[..len].fill(0);
    Ok(map)
}

/// A zeroed map of its own, at least one byte long, of which only what is written to is taken from the system.
pub(crate) fn sparse(len: usize) -> std::io::Result<MmapMut> {
    MmapOptions::new().len(len.max(1)).map_anon()
}

/// A zeroed map of its own, at least one byte long.
pub(crate) fn fresh(len: usize) -> std::io::Result<MmapMut> {
    let map = sparse(len)?;
    if len >= HUGE {
        // A table of many MiB that is looked at here and there misses the TLB each time. What the system declines
        // is no error.
        let _ = map.advise(Advice::HugePage);
    }
    Ok(map)
}

/// Keep a map that nobody uses any more, or give it back.
pub(crate) fn keep(map: MmapMut) {
    if map.len() > LONGEST {
        return;
    }
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes: usize = spare.iter().map(|m| m.len()).sum();
    if spare.len() < SPARES && bytes + map.len() <= SPARE_BYTES {
        spare.push(map);
    }
}

fn taken(len: usize) -> Option<MmapMut> {
    if len > LONGEST {
        return None;
    }
    let mut spare = SPARE.lock().unwrap_or_else(PoisonError::into_inner);
    let serves = |m: &MmapMut| m.len() >= len && m.len() <= ANY.max(2 * len);
    let (at, _) = spare.iter().enumerate().filter(|(_, m)| serves(m)).min_by_key(|(_, m)| m.len())?;
    Some(spare.swap_remove(at))
}

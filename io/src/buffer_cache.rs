//! A cache of mappings from dropped buffers, for new buffers of a few pages. Mapping such a buffer,
//! having the kernel clear it one page fault at a time, and unmapping it costs more than the copy
//! into it.
//!
//! Invariants:
//! - The cache holds at most [`CACHE_BYTES_MAX`] bytes in at most [`CACHE_MAPS_MAX`] mappings; none
//!   is longer than [`CACHED_MAP_BYTES_MAX`].
//! - Each mapping has one owner: the cache, or the buffer that took it.

use memmap2::{Advice, MmapMut, MmapOptions};

use crate::sync::{StaticMutex, try_lock_static};

/// Capacity in bytes: enough for the reads and writes of a deep queue, and not for a staging pool.
const CACHE_BYTES_MAX: usize = 16 << 20;
/// Bytes of the longest mapping that is cached.
pub(crate) const CACHED_MAP_BYTES_MAX: usize = 2 << 20;
/// Most mappings: the list is searched linearly.
const CACHE_MAPS_MAX: usize = 64;
/// Mappings up to this long serve any shorter buffer; of a longer one the buffer must use at least
/// half.
const ANY_LENGTH_BYTES_MAX: usize = 64 << 10;

/// Mappings at least this long are advised to use huge pages.
const HUGE_PAGE_BYTES_MIN: usize = 4 << 20;

static CACHE: StaticMutex<Vec<MmapMut>> = StaticMutex::new(Vec::new());

/// Tries to lock the cache, some 50 us. Without it a buffer is mapped and unmapped, as it must be
/// in a child that was forked while another thread had the lock.
const CACHE_TRIES: u32 = 100;

/// A mapping of at least `len` bytes and at least one, with the first `len` bytes zero.
pub(crate) fn zeroed(len: usize) -> std::io::Result<MmapMut> {
    let Some(mut map) = take(len) else { return new_map(len) };
    map[..len].fill(0);
    Ok(map)
}

/// A new zeroed mapping of at least one byte, without huge pages: only pages that are written to
/// take memory.
pub(crate) fn new_sparse_map(len: usize) -> std::io::Result<MmapMut> {
    MmapOptions::new().len(len.max(1)).map_anon()
}

/// A new zeroed mapping of at least one byte, in huge pages where it is long.
pub(crate) fn new_map(len: usize) -> std::io::Result<MmapMut> {
    let map = new_sparse_map(len)?;
    if len >= HUGE_PAGE_BYTES_MIN {
        // Sparse accesses to a table of many MiB would miss the TLB each time. It is no error if
        // the system declines.
        let _ = map.advise(Advice::HugePage);
    }
    Ok(map)
}

/// Cache a mapping that is no longer used, or unmap it.
pub(crate) fn put(map: MmapMut) {
    if map.len() > CACHED_MAP_BYTES_MAX {
        return;
    }
    let Some(mut cached) = try_lock_static(&CACHE, CACHE_TRIES) else { return };
    let bytes: usize = cached.iter().map(|m| m.len()).sum();
    if cached.len() < CACHE_MAPS_MAX && bytes + map.len() <= CACHE_BYTES_MAX {
        cached.push(map);
    }
}

fn take(len: usize) -> Option<MmapMut> {
    if len > CACHED_MAP_BYTES_MAX {
        return None;
    }
    let mut cached = try_lock_static(&CACHE, CACHE_TRIES)?;
    let serves = |m: &MmapMut| m.len() >= len && m.len() <= ANY_LENGTH_BYTES_MAX.max(2 * len);
    let (at, _) =
        cached.iter().enumerate().filter(|(_, m)| serves(m)).min_by_key(|(_, m)| m.len())?;
    Some(cached.swap_remove(at))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As after a fork, when a thread of the parent had the lock.
    #[test]
    fn buffer_is_mapped_while_the_cache_stays_locked() {
        let locked = try_lock_static(&CACHE, u32::MAX).expect("free after a moment");
        let map = zeroed(10).expect("memory");
        assert!(map.len() >= 10 && map[..10] == [0; 10]);
        put(map);
        drop(locked);
    }
}

//! The mapped address ranges of this process. A wrong address is reported as an error; without this
//! check its use would end the process.
//!
//! The kernel lists the mappings (`/proc/self/maps`); that takes about a millisecond in an engine
//! with two thousand mappings. So the list is cached, and read again only when an address is not in
//! it. A range that was unmapped after the list was read is not detected.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

/// First address, and one past the last address.
type AddressRange = (usize, usize);

/// Readable and writable ranges: sorted, with adjacent mappings joined.
#[derive(Default)]
struct MemoryMap {
    readable: Vec<AddressRange>,
    writable: Vec<AddressRange>,
}

/// Locked only with the GIL held, and never while the GIL is released, as it is to read the
/// kernel's list. So the lock is free in a forked child.
static MEMORY_MAP: Mutex<MemoryMap> =
    Mutex::new(MemoryMap { readable: Vec::new(), writable: Vec::new() });

/// The reason why memory cannot be read, or cannot be written if `writable`.
pub fn access_problem(
    py: Python<'_>,
    address: usize,
    length: usize,
    writable: bool,
) -> Option<&'static str> {
    if lock_cached().contains(address, length, writable) {
        return None;
    }
    // If the list cannot be read, the address is accepted.
    let list =
        py.detach(|| std::fs::read("/proc/self/maps").ok().map(|list| MemoryMap::parse(&list)))?;
    let mut mapped = lock_cached();
    *mapped = list;
    if mapped.contains(address, length, writable) {
        None
    } else if mapped.contains(address, length, false) {
        Some("address is not writable in this process")
    } else {
        Some("address is not mapped in this process (GPU memory never is)")
    }
}

fn lock_cached() -> MutexGuard<'static, MemoryMap> {
    MEMORY_MAP.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryMap {
    /// Parses the kernel's list. The mapping names in it may contain any bytes but newlines.
    fn parse(list: &[u8]) -> MemoryMap {
        let mut mapped = MemoryMap::default();
        for line in list.split(|byte| *byte == b'\n') {
            let Some((range, allowed)) = parse_line(line) else { continue };
            for (ranges, letter) in [(&mut mapped.readable, 'r'), (&mut mapped.writable, 'w')] {
                match ranges.last_mut() {
                    _ if !allowed.contains(letter) => {}
                    Some(last) if last.1 == range.0 => last.1 = range.1,
                    _ => ranges.push(range),
                }
            }
        }
        mapped
    }

    fn contains(&self, address: usize, length: usize, writable: bool) -> bool {
        let ranges = if writable { &self.writable } else { &self.readable };
        let after = ranges.partition_point(|range| range.0 <= address);
        after
            .checked_sub(1)
            .is_some_and(|at| address.checked_add(length).is_some_and(|end| end <= ranges[at].1))
    }
}

/// The address range of a line, and its permissions.
fn parse_line(line: &[u8]) -> Option<(AddressRange, &str)> {
    let mut words =
        line.split(|byte| *byte == b' ').map_while(|word| std::str::from_utf8(word).ok());
    let (from, to) = words.next()?.split_once('-')?;
    let range = (usize::from_str_radix(from, 16).ok()?, usize::from_str_radix(to, 16).ok()?);
    Some((range, words.next()?))
}

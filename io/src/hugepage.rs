//! Huge pages for tables of millions of small entries with random access: with 4096-byte pages each
//! access misses the TLB, which in a virtual machine costs as much as the access itself.

use rustix::mm::{Advice, madvise};

/// Tables shorter than this many bytes use ordinary pages.
const HUGE_PAGE_BYTES_MIN: usize = 4 << 20;
const PAGE: usize = 4096;

/// An empty table with capacity for `entries`, in huge pages if it is long and the system has them.
/// Unused capacity takes address space and no memory. If the system commits memory for address
/// space and has none left, the table grows as it is filled.
pub fn table<T>(entries: usize) -> Vec<T> {
    let mut table: Vec<T> = Vec::new();
    let _ = table.try_reserve_exact(entries);
    let bytes = table.capacity().saturating_mul(size_of::<T>());
    if bytes >= HUGE_PAGE_BYTES_MIN {
        let at = table.as_ptr().cast_mut().cast::<u8>();
        let skip = at.align_offset(PAGE);
        let len = (bytes - skip) / PAGE * PAGE;
        // SAFETY: the range is inside the table's own allocation, and the advice changes neither
        // contents nor access. It is no error if the system declines.
        let _ = unsafe { madvise(at.wrapping_add(skip).cast(), len, Advice::LinuxHugepage) };
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_page_table_has_capacity_and_stores_entries() {
        for entries in [0, 10, 3 << 20] {
            let mut table = table::<u64>(entries);
            assert!(table.is_empty() && table.capacity() >= entries);
            let room = table.as_ptr();
            table.extend(0..entries as u64);
            assert_eq!(table.as_ptr(), room, "entries={entries}");
            assert!(table.iter().zip(0..).all(|(a, b)| *a == b));
        }
    }
}

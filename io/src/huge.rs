//! Huge pages under tables of millions of small entries that are looked at here and there: with pages of 4096 bytes each
//! look misses the TLB, which costs a virtual machine as much as the look itself.

use rustix::mm::{Advice, madvise};

/// Tables shorter than this stay as they are, bytes.
const WORTH_IT: usize = 4 << 20;
const PAGE: usize = 4096;

/// An empty table with room for `entries`, in huge pages where it is long and the system has them. Room that is never
/// used costs addresses, and no memory; where the system counts addresses as memory and has none, the table grows as it
/// is filled.
pub fn table<T>(entries: usize) -> Vec<T> {
    let mut table: Vec<T> = Vec::new();
    let _ = table.try_reserve_exact(entries);
    let bytes = table.capacity().saturating_mul(size_of::<T>());
    if bytes >= WORTH_IT {
        let at = table.as_ptr().cast_mut().cast::<u8>();
        let skip = at.align_offset(PAGE);
        let len = (bytes - skip) / PAGE * PAGE;
        // SAFETY: the range lies in the table's own allocation, and the advice changes neither contents nor access. What
        // the system declines is no error.
        let _ = unsafe { madvise(at.wrapping_add(skip).cast(), len, Advice::LinuxHugepage) };
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_empty_has_room_and_takes_what_it_is_given() {
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

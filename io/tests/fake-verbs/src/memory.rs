//! Access to registered memory by its address, and errno.

use std::ptr::with_exposed_provenance_mut;

use crate::abi::Sge;

/// Copy the bytes of a registered range.
pub fn read(address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    let from = with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: the caller found the range in a registered region, whose memory is mapped and
    // accessed through raw pointers as long as it is registered.
    unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(from, length) };
    bytes
}

/// Write bytes to a registered range.
pub fn write(address: u64, bytes: &[u8]) {
    let to = with_exposed_provenance_mut::<u8>(address as usize);
    // SAFETY: as in `read`.
    unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// The bytes of a scatter list, one piece after the other.
pub fn gather(pieces: &[Sge]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for piece in pieces {
        bytes.extend(read(piece.addr, piece.length as usize));
    }
    bytes
}

/// Write bytes to a scatter list, one piece after the other.
pub fn scatter(pieces: &[Sge], mut bytes: &[u8]) {
    for piece in pieces {
        let (now, rest) = bytes.split_at(bytes.len().min(piece.length as usize));
        write(piece.addr, now);
        bytes = rest;
    }
}

/// Set errno of this thread.
pub fn set_errno(errno: i32) {
    // SAFETY: the location is this thread's own, and always valid.
    unsafe { *libc::__errno_location() = errno };
}

//! Addresses of devices, which the host cannot access, and bytes of the host.

use std::ptr::{null_mut, with_exposed_provenance_mut};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

const PAGE: usize = 4096;

/// Memory of a device. Its addresses belong to pages without access, so that a host that uses them
/// is stopped; a page without access lies before and after them.
pub struct Allocation {
    base: usize,
    mapped: usize,
    pub device: u32,
    pub bytes: Vec<u8>,
}

impl Allocation {
    pub fn new(device: u32, bytes: usize) -> Option<Allocation> {
        let mapped = bytes.next_multiple_of(PAGE) + 2 * PAGE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping without access, at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(null_mut(), mapped, ProtFlags::empty(), flags) }.ok()?;
        Some(Allocation { base: base.expose_provenance(), mapped, device, bytes: vec![0; bytes] })
    }

    pub fn address(&self) -> u64 {
        (self.base + PAGE) as u64
    }

    /// The bytes of a range, if all of it is allocated.
    pub fn range(&mut self, address: u64, bytes: usize) -> Option<&mut [u8]> {
        let offset = usize::try_from(address.checked_sub(self.address())?).ok()?;
        self.bytes.get_mut(offset..offset.checked_add(bytes)?)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's, and nothing accesses it.
        let _ = unsafe { munmap(with_exposed_provenance_mut(self.base), self.mapped) };
    }
}

/// Copy bytes of the host.
pub fn read(address: usize, to: &mut [u8]) {
    let from = with_exposed_provenance_mut::<u8>(address);
    // SAFETY: the caller of the driver keeps the range, and accesses it no other way meanwhile.
    unsafe { from.copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) };
}

/// Write bytes of the host.
pub fn write(address: usize, from: &[u8]) {
    let to = with_exposed_provenance_mut::<u8>(address);
    // SAFETY: as in `read`.
    unsafe { to.copy_from_nonoverlapping(from.as_ptr(), from.len()) };
}

//! Memory that a client registered with its device, and ranges of it.

#![expect(unsafe_code, reason = "a device writes memory that no code of the process hands it")]

use std::sync::Arc;

use pagelith_io::shm::SharedRegion;

/// Memory of the client that the server's device may read and write: the first `len` bytes of a
/// region.
#[derive(Clone, Debug)]
pub struct RegisteredRegion {
    memory: Arc<SharedRegion>,
    len: u64,
}

/// Bytes of an operation's item that the server may write, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::link) struct Target {
    /// The item's number in its request.
    pub item: u32,
    /// Offset in bytes of the first byte in the requested range of the item.
    pub offset: u64,
    /// Number of the region.
    pub region: u32,
    /// Offset in bytes in the region.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
}

impl RegisteredRegion {
    /// The first `len` bytes of `memory`, or all of them if it has fewer.
    pub fn new(memory: Arc<SharedRegion>, len: u64) -> RegisteredRegion {
        let len = len.min(memory.len() as u64);
        RegisteredRegion { memory, len }
    }

    /// The address of the first byte.
    pub(super) fn base(&self) -> u64 {
        self.memory.base() as u64
    }

    /// The offset of the `len` bytes at `address`; `None` if they are not all registered.
    pub(super) fn offset_of(&self, address: u64, len: u64) -> Option<u64> {
        let at = address.checked_sub(self.base())?;
        (at.checked_add(len)? <= self.len).then_some(at)
    }

    /// The device writes `bytes` at `at`.
    ///
    /// # Panics
    /// If they are not all registered.
    pub(super) fn write(&self, at: u64, bytes: &[u8]) {
        assert!(at + bytes.len() as u64 <= self.len, "beyond the registered memory");
        // SAFETY: inside of the mapping, which `memory` keeps. The run has one thread, and no
        // reference to these bytes is live in this call: parts and slots borrow them for single
        // copies only.
        unsafe {
            self.memory
                .base()
                .add(at as usize)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    /// The device reads bytes from `at` on.
    ///
    /// # Panics
    /// If they are not all registered.
    pub(super) fn read(&self, at: u64, to: &mut [u8]) {
        assert!(at + to.len() as u64 <= self.len, "beyond the registered memory");
        // SAFETY: as in `write`.
        unsafe {
            to.as_mut_ptr().copy_from_nonoverlapping(self.memory.base().add(at as usize), to.len());
        }
    }
}

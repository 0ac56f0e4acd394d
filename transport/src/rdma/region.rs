//! Memory of this process that is registered with every rail.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use pagelith_io::verbs::{DeviceMemory, LocalPiece, RegisteredMemory, RemoteAccess, VerbsError};

/// A registered range of memory. Its registration ends with
/// [`RdmaHost::unregister`](super::host::RdmaHost::unregister), or with the last Arc.
pub struct RdmaRegion {
    number: u32,
    memory: Arc<dyn DeviceMemory>,
    access: RemoteAccess,
    chunk_bytes: usize,
    /// A registration for each rail; empty after the end of the registration.
    per_rail: RwLock<Vec<Arc<RegisteredMemory>>>,
}

impl RdmaRegion {
    /// `per_rail` has a registration for each rail, all with the same length of a chunk.
    pub(super) fn new(
        number: u32,
        memory: Arc<dyn DeviceMemory>,
        access: RemoteAccess,
        per_rail: Vec<Arc<RegisteredMemory>>,
    ) -> RdmaRegion {
        let chunk_bytes = per_rail.first().map_or(0, |memory| memory.chunk_bytes());
        RdmaRegion { number, memory, access, chunk_bytes, per_rail: RwLock::new(per_rail) }
    }

    /// The number, which no other region of the host ever has.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The address of the first byte.
    pub fn base(&self) -> u64 {
        self.memory.base().as_ptr().expose_provenance() as u64
    }

    /// The length in bytes.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes() as u64
    }

    /// Access of peers.
    pub fn access(&self) -> RemoteAccess {
        self.access
    }

    /// The length in bytes of each chunk but the last, which may be shorter.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes as u64
    }

    /// The offset in the region of a range of memory; `None` if it is empty, not inside of the
    /// region, or if the registration has ended.
    pub fn offset_of(&self, address: usize, length: usize) -> Option<u64> {
        let offset = (address as u64).checked_sub(self.base())?;
        let end = offset.checked_add(length as u64)?;
        (length > 0 && end <= self.bytes() && self.is_registered()).then_some(offset)
    }

    /// The remote keys of a rail, one for each chunk; `None` without remote access, and after the
    /// end of the registration.
    pub fn remote_keys(&self, rail: usize) -> Option<Vec<u32>> {
        let per_rail = self.per_rail();
        let chunks = per_rail.get(rail)?.chunks().iter();
        chunks.map(|chunk| chunk.remote(0).map(|piece| piece.key)).collect()
    }

    /// Append the pieces of a range for requests on a rail, one for each chunk that it touches. The
    /// device refuses requests that it begins after the end of the registration.
    ///
    /// # Errors
    /// If the range is not inside of the region, the rail unknown, or the registration has ended.
    pub fn local(
        &self,
        rail: usize,
        offset: usize,
        length: usize,
        to: &mut Vec<LocalPiece>,
    ) -> Result<(), VerbsError> {
        match self.per_rail().get(rail) {
            Some(memory) => memory.local(offset, length, to),
            None => Err(VerbsError::OutsideRegion { offset, length, region: 0 }),
        }
    }

    /// Whether the registration has not ended.
    pub fn is_registered(&self) -> bool {
        !self.per_rail().is_empty()
    }

    /// End the registration. After this returns without an error, no device accesses the memory
    /// through it. An error leaks the memory.
    pub(super) fn deregister(&self) -> Result<(), VerbsError> {
        let per_rail =
            std::mem::take(&mut *self.per_rail.write().unwrap_or_else(PoisonError::into_inner));
        // Rails of one device share a registration, which the last of them ends.
        let last = per_rail.into_iter().filter_map(Arc::into_inner);
        last.map(RegisteredMemory::deregister).fold(Ok(()), Result::and)
    }

    fn per_rail(&self) -> RwLockReadGuard<'_, Vec<Arc<RegisteredMemory>>> {
        self.per_rail.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RdmaRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaRegion")
            .field("number", &self.number)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

//! Memory that devices access: protection domains, memory regions, and registration in chunks.
//!
//! Invariants:
//! - A region holds an Arc of its memory. The memory is released after the region is deregistered.
//! - If deregistration fails, the memory is leaked: a device may still access it.
//! - Registration in chunks registers the whole range, or nothing.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use memmap2::{MmapOptions, MmapRaw};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

use super::abi;
use super::device::Device;
use super::error::{Result, VerbsError};
use super::library::{Handle, check};

/// Memory that can be registered with devices.
///
/// # Safety
///
/// - Both functions always return the same. The range stays mapped, readable and writable, until
///   the value is dropped; or this process accesses it no other way than through a device, which
///   keeps the pages that were mapped at the registration.
/// - While a device may write bytes of the range, no reference to them exists: they are accessed
///   through raw pointers or atomics.
pub unsafe trait DeviceMemory: Send + Sync + 'static {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;
    /// The length in bytes.
    fn bytes(&self) -> usize;
}

/// Private memory of this process, zeroed, that is copied into and out of.
pub struct HostMemory(MmapRaw);

impl HostMemory {
    /// Map `bytes` bytes.
    pub fn new(bytes: usize) -> std::io::Result<HostMemory> {
        Ok(HostMemory(MmapRaw::from(MmapOptions::new().len(bytes).map_anon()?)))
    }

    /// Copy bytes in, from `offset` on.
    ///
    /// # Panics
    ///
    /// If the range is not inside of the memory.
    pub fn copy_in(&self, offset: usize, from: &[u8]) {
        self.check(offset, from.len());
        // SAFETY: the range is inside of the mapping, which is accessed through raw pointers only,
        // so it does not overlap the borrow.
        unsafe {
            self.0.as_mut_ptr().add(offset).copy_from_nonoverlapping(from.as_ptr(), from.len())
        }
    }

    /// Copy bytes out, from `offset` on.
    ///
    /// # Panics
    ///
    /// If the range is not inside of the memory.
    pub fn copy_out(&self, offset: usize, to: &mut [u8]) {
        self.check(offset, to.len());
        // SAFETY: as in `copy_in`. A device may write the bytes meanwhile; only the copy is read.
        unsafe { self.0.as_ptr().add(offset).copy_to_nonoverlapping(to.as_mut_ptr(), to.len()) }
    }

    fn check(&self, offset: usize, length: usize) {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.0.len()), "range is beyond the memory");
    }
}

// SAFETY: the mapping lives as long as the value, and is accessed through raw pointers only.
unsafe impl DeviceMemory for HostMemory {
    fn base(&self) -> NonNull<u8> {
        NonNull::new(self.0.as_mut_ptr()).expect("no mapping begins at address 0")
    }

    fn bytes(&self) -> usize {
        self.0.len()
    }
}

/// Memory of a caller, by address. Registration locks the pages that are mapped there, and fails
/// without any. If other memory is mapped there later, devices still access the former pages, which
/// nothing else uses.
#[derive(Debug)]
pub struct CallerMemory {
    base: NonNull<u8>,
    bytes: usize,
}

impl CallerMemory {
    /// `bytes` bytes from `base` on; `None` if the range is empty, begins at 0 or wraps around.
    pub fn new(base: *const u8, bytes: usize) -> Option<CallerMemory> {
        let base = NonNull::new(base.cast_mut())?;
        let end = base.addr().get().checked_add(bytes);
        (bytes > 0 && end.is_some()).then_some(CallerMemory { base, bytes })
    }
}

// SAFETY: the address is only passed to devices and compared.
unsafe impl Send for CallerMemory {}
// SAFETY: as above.
unsafe impl Sync for CallerMemory {}
// SAFETY: a device accesses pages that registration found mapped and keeps. Their owner exposes
// bytes to a link before a device writes them, and gives up its access meanwhile.
unsafe impl DeviceMemory for CallerMemory {
    fn base(&self) -> NonNull<u8> {
        self.base
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

/// A protection domain: queue pairs access only regions of their own domain.
pub struct ProtectionDomain {
    pub(super) pd: Handle<abi::Pd>,
    device: Arc<Device>,
}

impl ProtectionDomain {
    /// A new domain of the device.
    pub fn new(device: &Arc<Device>) -> Result<Arc<ProtectionDomain>> {
        // SAFETY: the context is open.
        let pd = unsafe { (device.library.functions.ibv_alloc_pd)(device.context.pointer()) };
        let pd = Handle::new(pd, "ibv_alloc_pd", device.name())?;
        Ok(Arc::new(ProtectionDomain { pd, device: device.clone() }))
    }

    /// The domain's device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        let device = &self.device;
        // SAFETY: each object of the domain holds an Arc of it, so none is left.
        let status = unsafe { (device.library.functions.ibv_dealloc_pd)(self.pd.pointer()) };
        if let Err(error) = check(status, "ibv_dealloc_pd", device.name()) {
            tracing::warn!(%error, "protection domain stays allocated");
            std::mem::forget(device.clone());
        }
    }
}

/// Access of peers to a region. The device itself may always read and write it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RemoteAccess {
    /// Peers that know the key may read.
    pub read: bool,
    /// Peers that know the key may write.
    pub write: bool,
}

impl RemoteAccess {
    /// No access for peers.
    pub const NONE: RemoteAccess = RemoteAccess { read: false, write: false };
    /// Peers may read.
    pub const READ: RemoteAccess = RemoteAccess { read: true, write: false };
    /// Peers may write.
    pub const WRITE: RemoteAccess = RemoteAccess { read: false, write: true };
    /// Peers may read and write.
    pub const READ_WRITE: RemoteAccess = RemoteAccess { read: true, write: true };

    pub(super) fn flags(self) -> i32 {
        let flag = |set, flag| if set { flag } else { 0 };
        abi::access::LOCAL_WRITE
            | flag(self.read, abi::access::REMOTE_READ)
            | flag(self.write, abi::access::REMOTE_WRITE)
    }
}

/// A registered range of memory. It is deregistered when it is dropped; no device accesses it after
/// that.
pub struct MemoryRegion {
    mr: Handle<abi::Mr>,
    address: u64,
    bytes: usize,
    local_key: u32,
    remote_key: Option<u32>,
    memory: Arc<dyn DeviceMemory>,
    domain: Arc<ProtectionDomain>,
    released: bool,
}

impl MemoryRegion {
    /// Register `bytes` bytes of `memory`, from `offset` on, as one region.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        memory: &Arc<dyn DeviceMemory>,
        offset: usize,
        bytes: usize,
        access: RemoteAccess,
    ) -> Result<MemoryRegion> {
        let total = memory.bytes();
        if bytes == 0 || offset.checked_add(bytes).is_none_or(|end| end > total) {
            return Err(VerbsError::OutsideRegion { offset, length: bytes, region: total });
        }
        let device = &domain.device;
        let limit = device.limits().max_mr_size;
        if bytes as u64 > limit {
            let (device, bytes) = (device.name().to_owned(), bytes as u64);
            return Err(VerbsError::RegionTooLarge { device, bytes, limit });
        }
        let start = memory.base().as_ptr().wrapping_add(offset);
        let register = device.library.functions.ibv_reg_mr;
        // SAFETY: the range is mapped memory that the region keeps, and its owner allows device
        // accesses.
        let mr = unsafe { register(domain.pd.pointer(), start.cast(), bytes, access.flags()) };
        let mr = Handle::new(mr, "ibv_reg_mr", device.name())
            .map_err(|error| named_limit(error, device, bytes))?;
        // SAFETY: the library returned the structure, and does not change these fields.
        let (local_key, remote_key) = unsafe { ((*mr.pointer()).lkey, (*mr.pointer()).rkey) };
        Ok(MemoryRegion {
            mr,
            address: start.expose_provenance() as u64,
            bytes,
            local_key,
            remote_key: (access != RemoteAccess::NONE).then_some(remote_key),
            memory: memory.clone(),
            domain: domain.clone(),
            released: false,
        })
    }

    /// The length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A range of the region for a scatter list of this side.
    pub fn local(&self, offset: usize, length: usize) -> Result<LocalPiece> {
        let address = self.address_of(offset, length)?;
        let outside = VerbsError::OutsideRegion { offset, length, region: self.bytes };
        let length = u32::try_from(length).map_err(|_| outside)?;
        Ok(LocalPiece(abi::Sge { addr: address, length, lkey: self.local_key }))
    }

    /// The address and key by which a peer names the byte at `offset`; `None` without remote
    /// access.
    pub fn remote(&self, offset: usize) -> Option<RemotePiece> {
        let address = self.address_of(offset, 1).ok()?;
        self.remote_key.map(|key| RemotePiece { address, key })
    }

    /// Deregister the region. After this returns without an error, no device accesses the memory
    /// through it. An error leaks the memory.
    pub fn deregister(mut self) -> Result<()> {
        self.release()
    }

    /// Deregister, once.
    fn release(&mut self) -> Result<()> {
        if std::mem::replace(&mut self.released, true) {
            return Ok(());
        }
        let device = &self.domain.device;
        // SAFETY: the region is registered, and is deregistered once.
        let status = unsafe { (device.library.functions.ibv_dereg_mr)(self.mr.pointer()) };
        let result = check(status, "ibv_dereg_mr", device.name());
        if let Err(error) = &result {
            tracing::error!(%error, bytes = self.bytes, "memory region stays registered, leaked");
            std::mem::forget((self.memory.clone(), self.domain.clone()));
        }
        result
    }

    fn address_of(&self, offset: usize, length: usize) -> Result<u64> {
        match offset.checked_add(length) {
            Some(end) if length > 0 && end <= self.bytes => Ok(self.address + offset as u64),
            _ => Err(VerbsError::OutsideRegion { offset, length, region: self.bytes }),
        }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // A failure is logged.
        let _ = self.release();
    }
}

impl fmt::Debug for MemoryRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRegion").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

/// A failed registration with its limit named. The kernel's errno for the locked-memory limit is
/// ENOMEM.
fn named_limit(error: VerbsError, device: &Device, bytes: usize) -> VerbsError {
    let VerbsError::CallFailed { errno, .. } = error else { return error };
    match locked_memory_limit() {
        Some(limit) if Errno::from_raw_os_error(errno) == Errno::NOMEM => {
            let (device, bytes) = (device.name().to_owned(), bytes as u64);
            VerbsError::LockedMemory { device, bytes, registered: 0, limit }
        }
        _ => error,
    }
}

/// The bytes that this process may lock in memory; `None` if it may lock any number. The kernel
/// counts registered memory once for each device.
pub fn locked_memory_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Memlock).current?;
    let unlimited =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    (!unlimited).then_some(limit)
}

/// A range inside of a [`MemoryRegion`], for a scatter list.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct LocalPiece(pub(super) abi::Sge);

/// An address in a peer's memory, and the key that permits access to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemotePiece {
    /// The address in the peer's process.
    pub address: u64,
    /// The key of the peer's region.
    pub key: u32,
}

/// Memory that is registered in chunks.
#[derive(Debug)]
pub struct RegisteredMemory {
    chunks: Vec<MemoryRegion>,
    chunk_bytes: usize,
    bytes: usize,
}

/// The unit of chunk sizes: the smallest page of the machine.
const PAGE: usize = 4096;

impl RegisteredMemory {
    /// Register all of `memory` in chunks of at most `chunk_bytes` bytes and the device's
    /// `max_mr_size`. If one chunk fails, those before it are deregistered.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        memory: &Arc<dyn DeviceMemory>,
        chunk_bytes: usize,
        access: RemoteAccess,
    ) -> Result<RegisteredMemory> {
        let limit = domain.device.limits().max_mr_size;
        let most = chunk_bytes.min(usize::try_from(limit).unwrap_or(usize::MAX));
        // A limit below a page leaves the error to the registration.
        let chunk_bytes = (most / PAGE * PAGE).max(PAGE);
        let bytes = memory.bytes();
        let chunk = |offset: usize| {
            let length = chunk_bytes.min(bytes - offset);
            let whole = |error| match error {
                // The limit counts all chunks.
                VerbsError::LockedMemory { device, registered, limit, .. } => {
                    let bytes = bytes as u64;
                    VerbsError::LockedMemory { device, bytes, registered, limit }
                }
                error => error,
            };
            MemoryRegion::new(domain, memory, offset, length, access).map_err(whole)
        };
        let chunks = (0..bytes).step_by(chunk_bytes).map(chunk).collect::<Result<_>>()?;
        Ok(RegisteredMemory { chunks, chunk_bytes, bytes })
    }

    /// The length in bytes of each chunk but the last, which may be shorter.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes
    }

    /// Deregister all chunks. After this returns without an error, no device accesses the memory
    /// through them. An error leaks the memory.
    pub fn deregister(self) -> Result<()> {
        self.chunks.into_iter().map(MemoryRegion::deregister).fold(Ok(()), Result::and)
    }

    /// The chunks, in the order of their addresses.
    pub fn chunks(&self) -> &[MemoryRegion] {
        &self.chunks
    }

    /// Append the pieces of a range, one for each chunk that it touches.
    pub fn local(&self, offset: usize, length: usize, to: &mut Vec<LocalPiece>) -> Result<()> {
        let outside = VerbsError::OutsideRegion { offset, length, region: self.bytes };
        let end = offset.checked_add(length).ok_or(outside.clone())?;
        if length == 0 || end > self.bytes {
            return Err(outside);
        }
        let mut at = offset;
        while at < end {
            let (chunk, inside) = (at / self.chunk_bytes, at % self.chunk_bytes);
            let next = end.min((chunk + 1) * self.chunk_bytes);
            to.push(self.chunks[chunk].local(inside, next - at)?);
            at = next;
        }
        Ok(())
    }
}

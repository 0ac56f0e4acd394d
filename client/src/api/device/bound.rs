//! Devices that are bound to a store, and the store's memory that copies to and from them use.

use std::sync::atomic::Ordering;

use pagelith_io::device::{Device, DeviceError, DeviceHandle, Driver, LockedMemory};
use pagelith_io::sync::{Arc, AtomicU64, Mutex, MutexGuard, PoisonError};

use crate::api::error::{Error, ErrorKind, Result};

/// The devices of a store, the memory that their driver locks, and the memory that copies use.
#[derive(Default)]
pub struct Devices {
    bound: Mutex<BoundDevices>,
    /// Held while a device is bound, which locks memory for long.
    binding: Mutex<()>,
    /// Of staging memory.
    pub staged: ByteCount,
    /// Of frames of the arena.
    pub held: ByteCount,
}

#[derive(Default)]
struct BoundDevices {
    handles: Vec<DeviceHandle>,
    /// Empty before it is locked, and if none is to be. Copies in flight hold it, so that it is
    /// unlocked after them.
    locked: Vec<Arc<LockedMemory>>,
}

impl Devices {
    /// Bind a device, once. `lock` locks the store's memory for the first one.
    pub fn bind(
        &self,
        driver: &Driver,
        ordinal: u32,
        lock: impl FnOnce(&DeviceHandle) -> std::result::Result<Vec<LockedMemory>, DeviceError>,
    ) -> Result<DeviceHandle> {
        self.release_late();
        let device = Device { driver: driver.kind(), ordinal };
        let _binding = self.binding.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = self.handles().into_iter().find(|handle| handle.device() == device) {
            return Ok(handle);
        }
        let handle = driver.bind(ordinal).map_err(|why| device_error(&why))?;
        let locked = match self.locked().is_empty() {
            true => lock(&handle).map_err(|why| device_error(&why))?,
            false => Vec::new(),
        };
        let mut bound = self.lock();
        bound.locked.extend(locked.into_iter().map(Arc::new));
        bound.handles.push(handle.clone());
        Ok(handle)
    }

    /// The handles of all bound devices.
    pub fn handles(&self) -> Vec<DeviceHandle> {
        self.lock().handles.clone()
    }

    /// The memory that is locked now.
    pub fn locked(&self) -> Vec<Arc<LockedMemory>> {
        self.lock().locked.clone()
    }

    /// Release the memory of copies that callers gave up, if the devices are done with it. Takes no
    /// lock of the store while it does.
    pub fn release_late(&self) {
        for handle in self.handles() {
            handle.late_copies();
        }
    }

    /// An error if `device` was bound through another store.
    pub fn check(&self, device: &DeviceHandle) -> Result<()> {
        if self.lock().handles.iter().any(|handle| handle.is_clone_of(device)) {
            return Ok(());
        }
        let device = device.device();
        Err(Error::invalid(format!(
            "the device was not bound through this store; bind it with this one device={device}"
        )))
    }

    fn lock(&self) -> MutexGuard<'_, BoundDevices> {
        self.bound.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes in use, with a limit.
#[derive(Clone, Default)]
pub struct ByteCount(Arc<AtomicU64>);

impl ByteCount {
    /// Count `bytes` until the value is dropped; `None` if the sum would exceed `max`. From zero,
    /// any number may be counted.
    pub fn count(&self, bytes: u64, max: u64) -> Option<CountedBytes> {
        let add = |now: u64| (now == 0 || now + bytes <= max).then_some(now + bytes);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).ok()?;
        Some(CountedBytes { count: self.0.clone(), bytes })
    }
}

/// Bytes that are counted.
pub struct CountedBytes {
    count: Arc<AtomicU64>,
    bytes: u64,
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.count.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The store's error for one of a device.
pub fn device_error(why: &DeviceError) -> Error {
    let kind = match why {
        DeviceError::NoDevice { .. }
        | DeviceError::ContextAbsent { .. }
        | DeviceError::ContextOther { .. }
        | DeviceError::ForeignMemory { .. }
        | DeviceError::OutsideMemory { .. } => ErrorKind::Invalid,
        DeviceError::NotLocked { .. } => ErrorKind::Busy,
        DeviceError::LibraryAbsent { .. }
        | DeviceError::LibraryUnusable { .. }
        | DeviceError::CallFailed { .. } => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("device: {why}"))
}

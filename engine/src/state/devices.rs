//! Devices that are bound to the store.

use pagelith_io::device::{DeviceHandle, LockedMemory};
use pagelith_io::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The devices, and the store's memory that their driver locks.
#[derive(Default)]
pub(crate) struct Devices(Mutex<BoundDevices>);

#[derive(Default)]
pub(crate) struct BoundDevices {
    pub handles: Vec<DeviceHandle>,
    /// Arena and staging memory; empty before they are locked, and without `dram.pin`. Copies in
    /// flight hold it, so that it is unlocked after them.
    pub locked: Vec<Arc<LockedMemory>>,
}

impl Devices {
    pub fn lock(&self) -> MutexGuard<'_, BoundDevices> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! What a client keeps for its devices: their handles, and the memory through which it copies.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use pagelith_io::device::{DeviceHandle, Driver, LockedMemory};
use pagelith_io::runtime::Runtime;
use pagelith_io::shm::SharedRegion;
use pagelith_io::staging::StagingPool;
use pagelith_io::sync::{Arc, Mutex, PoisonError};

use crate::api::device::bound::Devices;
use crate::api::error::{Error, Result};

/// Staging memory, unless the caller chooses.
const STAGING_BYTES: usize = 64 << 20;

/// The devices of a client.
pub(super) struct DeviceMemory {
    pub devices: Devices,
    /// With its size as the caller gave it.
    staging: OnceLock<(StagingPool, usize)>,
    /// The size for the next bind.
    staging_bytes: AtomicUsize,
    /// Held while a device is bound.
    binding: Mutex<()>,
    runtime: Mutex<Option<Arc<dyn Runtime>>>,
}

impl Default for DeviceMemory {
    fn default() -> DeviceMemory {
        DeviceMemory {
            devices: Devices::default(),
            staging: OnceLock::new(),
            staging_bytes: AtomicUsize::new(STAGING_BYTES),
            binding: Mutex::default(),
            runtime: Mutex::default(),
        }
    }
}

impl DeviceMemory {
    pub fn set_staging_bytes(&self, bytes: usize) {
        self.staging_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bind a device; with the first one, lock staging memory and pass it to `share`. Another size
    /// of it is refused from then on.
    pub fn bind(
        &self,
        driver: &Driver,
        ordinal: u32,
        share: impl FnOnce(Arc<SharedRegion>),
    ) -> Result<DeviceHandle> {
        let _binding = self.binding.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = self.staging_bytes.load(Ordering::Relaxed);
        let mut made = None;
        let pool = match self.staging.get() {
            Some((pool, has)) if *has == bytes => pool.clone(),
            Some((_, has)) => {
                self.staging_bytes.store(*has, Ordering::Relaxed);
                let detail = "device: the devices of a client share its staging memory; bind the \
                              first one with the size for all";
                return Err(Error::invalid(format!("{detail} has={has} staging_bytes={bytes}")));
            }
            None => {
                let no_memory = |error: std::io::Error| {
                    Error::invalid(format!("device: {error} staging_bytes={bytes}"))
                };
                let (pool, region) = StagingPool::shared(bytes).map_err(no_memory)?;
                made = Some(region);
                pool
            }
        };
        let memory = Arc::new(pool.clone());
        let handle = self.devices.bind(driver, ordinal, |handle| {
            LockedMemory::new(handle, "staging_bytes", memory).map(|locked| vec![locked])
        })?;
        if let Some(region) = made {
            self.staging.get_or_init(|| (pool, bytes));
            share(region);
        }
        Ok(handle)
    }

    /// The memory through which bytes are copied.
    pub fn staging(&self) -> Result<&StagingPool> {
        self.staging.get().map(|(pool, _)| pool).ok_or_else(|| {
            Error::invalid("no device was bound through this client; bind it with this one")
        })
    }

    pub fn set_runtime(&self, runtime: Arc<dyn Runtime>) {
        *self.runtime.lock().unwrap_or_else(PoisonError::into_inner) = Some(runtime);
    }

    pub fn runtime(&self) -> Option<Arc<dyn Runtime>> {
        self.runtime.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for DeviceMemory {
    /// The caller may keep a handle, and with it late memory, beyond the client.
    fn drop(&mut self) {
        self.devices.release_late();
    }
}

//! Memory of this process that the store may read and write by RDMA.

use pagelith_io::shm::SharedRegion;
use pagelith_io::sync::{Arc, Mutex, PoisonError};
use pagelith_io::verbs::{CallerMemory, VerbsError};
use pagelith_transport::rdma::host::RdmaHost;
use pagelith_transport::rdma::registration::RdmaRegistration;
use pagelith_transport::shown::{REGIONS_MAX, SharedRegions};

use crate::api::error::{Error, ErrorKind, Result};

/// The devices, and the registrations of shared regions.
#[derive(Clone, Default)]
pub(super) struct RdmaMemory {
    host: Option<Arc<RdmaHost>>,
    shared: Arc<Mutex<Vec<(Arc<SharedRegion>, RdmaRegistration)>>>,
}

impl RdmaMemory {
    pub fn new(host: Option<Arc<RdmaHost>>) -> RdmaMemory {
        RdmaMemory { host, shared: Arc::default() }
    }

    pub fn host(&self) -> Option<&Arc<RdmaHost>> {
        self.host.as_ref()
    }

    /// Register `len` bytes from `base`; `None` without devices.
    pub fn register(&self, base: *const u8, len: usize) -> Result<Option<RdmaRegistration>> {
        self.host.as_ref().map(|host| register_memory(host, base, len)).transpose()
    }

    /// Add a shared region to `regions`, and register it as long as this value lives. A region that
    /// is mapped over others replaces them.
    pub fn share(&self, regions: &SharedRegions, region: Arc<SharedRegion>) -> Result<()> {
        // Calls are serialised, so that the room that is found stays.
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if !regions.has_room_for(&region) {
            return Err(Error::invalid(format!(
                "too many shared memory regions max={REGIONS_MAX}"
            )));
        }
        let range = |one: &SharedRegion| (one.base().addr(), one.base().addr() + one.len());
        let (first, end) = range(&region);
        shared.retain(|(one, _)| range(one).0 >= end || range(one).1 <= first);
        if let Some(registration) = self.register(region.base(), region.len())? {
            shared.push((region.clone(), registration));
        }
        regions.add(region);
        Ok(())
    }
}

/// Register `len` bytes from `base` with the devices of `host`.
///
/// # Errors
/// `Busy` if the process may not lock so much memory; `Invalid` if the range is empty or not
/// mapped, or if a device refuses it.
pub fn register_memory(
    host: &Arc<RdmaHost>,
    base: *const u8,
    len: usize,
) -> Result<RdmaRegistration> {
    let memory = CallerMemory::new(base, len).ok_or_else(|| {
        Error::invalid(format!("memory to register is empty or wraps around len={len}"))
    })?;
    RdmaRegistration::new(host, memory).map_err(|why| {
        let kind = match why {
            VerbsError::LockedMemory { .. } => ErrorKind::Busy,
            _ => ErrorKind::Invalid,
        };
        Error::new(kind, format!("cannot register memory for RDMA: {why} len={len}"))
    })
}

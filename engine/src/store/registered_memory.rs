//! Memory that callers register: with the SSD tier's disk, and with RDMA devices.

use pagelith_io::fault::IoFault;
use pagelith_io::registered;
use pagelith_transport::rdma::registration::RdmaRegistration;

use crate::api::error::{Error, ErrorKind, Result};
use crate::state::shared::Shared;
use pagelith_client::client::register_memory;

/// Keeps memory registered until it is dropped.
#[derive(Debug)]
#[must_use = "dropping this ends the registration"]
pub struct Registration {
    disk: registered::Registration,
    rdma: Option<RdmaRegistration>,
}

impl Registration {
    /// Whether reads of the SSD tier, or transfers by RDMA, use the registration.
    pub fn is_used(&self) -> bool {
        self.disk.is_used() || self.rdma.is_some()
    }
}

impl From<Option<RdmaRegistration>> for Registration {
    /// A registration with RDMA devices alone, or one without effect.
    fn from(rdma: Option<RdmaRegistration>) -> Registration {
        Registration { disk: registered::Registration::none(), rdma }
    }
}

/// See [`crate::Store::register_memory`].
pub(crate) fn register(shared: &Shared, base: *const u8, len: usize) -> Result<Registration> {
    shared.check_open()?;
    let rdma = shared.rdma.host.get().map(|host| register_memory(host, base, len)).transpose()?;
    let disk = match &shared.ssd.volume {
        Some(volume) => volume.disk.register(base as usize, len).map_err(registration_error)?,
        None => registered::Registration::none(),
    };
    let registration = Registration { disk, rdma };
    if registration.is_used() {
        tracing::info!(bytes = len, rdma = registration.rdma.is_some(), "memory registered");
    }
    Ok(registration)
}

/// Errors other than `Busy` and `Denied` are caused by the memory itself.
fn registration_error(fault: IoFault) -> Error {
    let mut error = Error::from(fault);
    if !matches!(error.kind, ErrorKind::Busy | ErrorKind::Denied) {
        error.kind = ErrorKind::Invalid;
    }
    error
}

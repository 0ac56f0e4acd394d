//! Memory of a caller that is registered until a value is dropped.

use std::sync::Arc;

use pagelith_io::verbs::{CallerMemory, RemoteAccess, VerbsError};

use super::host::RdmaHost;
use super::region::RdmaRegion;

/// Keeps memory of a caller registered. After it is dropped, no device accesses the memory.
/// Transfers that use it then fail, and end the links that carry them.
#[derive(Debug)]
#[must_use = "dropping this ends the registration"]
pub struct RdmaRegistration {
    host: Arc<RdmaHost>,
    region: Arc<RdmaRegion>,
}

impl RdmaRegistration {
    /// Register memory for peers to read and write.
    ///
    /// # Errors
    /// As [`RdmaHost::register`].
    pub fn new(host: &Arc<RdmaHost>, memory: CallerMemory) -> Result<RdmaRegistration, VerbsError> {
        let region = host.register(Arc::new(memory), RemoteAccess::READ_WRITE)?;
        Ok(RdmaRegistration { host: host.clone(), region })
    }

    /// The registered memory.
    pub fn region(&self) -> &Arc<RdmaRegion> {
        &self.region
    }
}

impl Drop for RdmaRegistration {
    fn drop(&mut self) {
        // An error is logged where it happens, and the memory is then leaked: the device may still
        // access it.
        let _ = self.host.unregister(&self.region);
    }
}

//! Memory that callers register with the SSD tier's disk.

use pagelith_io::fault::IoFault;
use pagelith_io::registered::Registration;

use crate::api::error::{Error, ErrorKind, Result};
use crate::state::shared::Shared;

/// See [`crate::Store::register_memory`].
pub(crate) fn register(shared: &Shared, base: usize, len: usize) -> Result<Registration> {
    shared.check_open()?;
    let Some(volume) = &shared.ssd.volume else { return Ok(Registration::none()) };
    let registration = volume.disk.register(base, len).map_err(registration_error)?;
    if registration.is_used() {
        tracing::info!(bytes = len, "memory registered for reads");
    }
    Ok(registration)
}

/// Errors other than `Busy` and `Denied` are caused by the memory itself.
fn registration_error(fault: IoFault) -> Error {
    let error = Error::from(fault);
    match error.kind {
        ErrorKind::Busy | ErrorKind::Denied => error,
        _ => Error { kind: ErrorKind::Invalid, ..error },
    }
}

//! Python exceptions: one class per error kind, so that an `except` clause can name the kinds that
//! the program can handle.

use pagelith::{ConfigError, Error, ErrorKind};
use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(
    pagelith,
    PagelithError,
    PyException,
    "Base class of the errors of a store. A miss is not an error."
);
create_exception!(
    pagelith,
    InvalidError,
    PagelithError,
    "The call or the configuration is invalid; a repetition fails too."
);
create_exception!(
    pagelith,
    BusyError,
    PagelithError,
    "A limit is reached for now: retry later, or continue without the store."
);
create_exception!(
    pagelith,
    NoSpaceError,
    PagelithError,
    "No space on the file system, or no room for another namespace."
);
create_exception!(
    pagelith,
    UnavailableError,
    PagelithError,
    "A device, a file or a store process failed."
);
create_exception!(pagelith, DamagedError, PagelithError, "A file of the store is damaged.");
create_exception!(
    pagelith,
    IncompatibleError,
    PagelithError,
    "A store of another format or another configuration."
);
create_exception!(pagelith, ClosedError, PagelithError, "The store was closed.");
create_exception!(
    pagelith,
    ForkedError,
    ClosedError,
    "The store was opened in the process that this one was forked from."
);
create_exception!(
    pagelith,
    DeniedError,
    PagelithError,
    "Another process has the store open, or access is denied."
);
create_exception!(pagelith, InternalError, PagelithError, "A bug in Pagelith.");

pub fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    for (name, class) in [
        ("PagelithError", py.get_type::<PagelithError>()),
        ("InvalidError", py.get_type::<InvalidError>()),
        ("BusyError", py.get_type::<BusyError>()),
        ("NoSpaceError", py.get_type::<NoSpaceError>()),
        ("UnavailableError", py.get_type::<UnavailableError>()),
        ("DamagedError", py.get_type::<DamagedError>()),
        ("IncompatibleError", py.get_type::<IncompatibleError>()),
        ("ClosedError", py.get_type::<ClosedError>()),
        ("ForkedError", py.get_type::<ForkedError>()),
        ("DeniedError", py.get_type::<DeniedError>()),
        ("InternalError", py.get_type::<InternalError>()),
    ] {
        module.add(name, class)?;
    }
    Ok(())
}

/// The Python exception for an error of the engine.
pub fn raised(error: &Error) -> PyErr {
    let message = error.to_string();
    match error.kind {
        ErrorKind::Invalid => InvalidError::new_err(message),
        ErrorKind::Busy => BusyError::new_err(message),
        ErrorKind::NoSpace => NoSpaceError::new_err(message),
        ErrorKind::Unavailable => UnavailableError::new_err(message),
        ErrorKind::Damaged => DamagedError::new_err(message),
        ErrorKind::Incompatible => IncompatibleError::new_err(message),
        ErrorKind::Closed => ClosedError::new_err(message),
        ErrorKind::Denied => DeniedError::new_err(message),
        // A kind that this module does not know is a bug of its own.
        _ => InternalError::new_err(message),
    }
}

/// The Python exception for a refused configuration; the message lists every problem.
pub fn refused(error: &ConfigError) -> PyErr {
    InvalidError::new_err(error.to_string())
}

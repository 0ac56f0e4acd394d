//! Error kinds: the caller acts by the kind. A miss is not an error.

use std::fmt;

use pagelith_io::fault::{FaultKind, IoFault};
use pagelith_layouts::error::FormatError;

/// The kind of an error, by which the caller acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request itself is wrong, and will fail again. Fix the call or the configuration.
    Invalid,
    /// A limit is reached for now (arena full of unflushed pages, staging memory in use). Retry
    /// later, or continue without.
    Busy,
    /// No room on the file system, or no room for another namespace. Make room.
    NoSpace,
    /// A device, file, peer or link failed, or did not answer in time. The request may or may not
    /// have been carried out, also later. It may be repeated, and the caller may go on without it.
    Unavailable,
    /// Stored bytes failed verification and no other copy exists (opening a store). Run `verify`.
    Damaged,
    /// The store on disk has another format or configuration. Nothing was changed.
    Incompatible,
    /// The store was closed.
    Closed,
    /// Another process holds the store, the file system is read-only, or others can read a key
    /// file.
    Denied,
    /// A bug in Pagelith.
    Internal,
}

/// An error: its kind, and a message that names field, file, offset or key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Error {
    /// The kind.
    pub kind: ErrorKind,
    /// What happened, lower-case, with `name=value` at the end.
    pub message: String,
    /// The kernel's errno, if there was one.
    pub errno: Option<i32>,
}

/// Results of the store.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    #[doc(hidden)]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), errno: None }
    }

    #[doc(hidden)]
    pub fn invalid(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Invalid, message)
    }

    #[doc(hidden)]
    pub fn busy(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::Busy, message)
    }

    /// Prefix the message with a context.
    #[doc(hidden)]
    pub fn context(mut self, what: impl fmt::Display) -> Error {
        self.message = format!("{what}: {}", self.message);
        self
    }

    /// Bytes that could not be decoded while opening a store; `message` also says where they are.
    #[doc(hidden)]
    pub fn format(error: &FormatError, message: impl Into<String>) -> Error {
        let kind = match error {
            FormatError::Version { .. } => ErrorKind::Incompatible,
            _ => ErrorKind::Damaged,
        };
        Error::new(kind, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}

impl From<IoFault> for Error {
    fn from(fault: IoFault) -> Error {
        let kind = match fault.kind {
            FaultKind::NoSpace => ErrorKind::NoSpace,
            FaultKind::ReadOnly | FaultKind::Locked => ErrorKind::Denied,
            FaultKind::Invalid => ErrorKind::Internal,
            FaultKind::Exhausted => ErrorKind::Busy,
            _ => ErrorKind::Unavailable,
        };
        let errno = (fault.errno != 0).then_some(fault.errno);
        Error { kind, message: fault.to_string(), errno }
    }
}

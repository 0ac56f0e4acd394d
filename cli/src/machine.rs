//! The system calls of `inspect` and `verify`: who has a store open, and how its files are opened and written.

pub(crate) use pagelith::io::cow::write_in_place;
pub(crate) use pagelith::io::fault::FaultKind;
pub(crate) use pagelith::io::owner::has_ended;
pub(crate) use pagelith::io::regular_file::{Access, open_own};

//! The functions of `pagelith::io` that `inspect` and `verify` use: liveness of a store's owner,
//! and opening and writing of its files.

pub(crate) use pagelith::io::copy_on_write::write_in_place;
pub(crate) use pagelith::io::fault::FaultKind;
pub(crate) use pagelith::io::lock_owner::has_ended;
pub(crate) use pagelith::io::regular_file::{Access, open_store_file};

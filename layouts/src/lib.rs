//! The formats of Pagelith: keys, records, segments, manifest, checkpoint, wire frames, and the
//! arithmetic around them. No I/O, no threads, no `unsafe`: every function is a pure function of
//! bytes and is fuzzed alone. This crate is enough to read a store: `pagelith inspect` and
//! `pagelith verify` use nothing else.
//!
//! `docs/format.md` is rendered from the field tables in this crate ([`format`]); a test compares
//! the two.
#![forbid(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!("the format is little-endian and its structures are cast in place");

pub mod align;
pub mod checkpoint;
pub mod checksum;
pub mod client_names;
pub mod error;
pub mod footer;
pub mod format;
pub mod format_doc;
pub mod geometry;
pub mod ids;
pub mod key;
pub mod learned;
pub mod manifest;
pub mod names;
pub mod namespace;
pub mod record;
pub mod scan;
pub mod segment;
pub mod shard;
pub mod staging;
pub mod wire;

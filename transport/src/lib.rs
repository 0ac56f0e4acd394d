//! Links between processes and hosts: what carries frames and bulk bytes between a client and a store.
//!
//! [`link::Link`] is the seam: one end of a connection, completion-based, that owns the memory it may touch until it
//! hands it back. [`socket`] is its first side, TCP and Unix sockets; it is [`conn::Conn`], a link over any
//! [`stream::Stream`] of bytes. [`capability`], [`auth`] and [`handshake`] are pure state machines that every side shares. The bytes of a
//! frame are in `pagelith_layouts::wire`, and `docs/protocol.md` has the protocol.
#![forbid(unsafe_code)]

pub mod address;
pub mod auth;
pub mod capability;
pub mod closed;
pub mod conn;
pub mod dial;
pub mod handshake;
pub mod limits;
pub mod link;
pub mod pending;
#[allow(clippy::disallowed_methods, reason = "the system's resolver blocks: it runs on a thread of its own")]
pub mod resolve;
pub mod rights;
pub mod shown;
pub mod socket;
pub mod stream;

mod by_name;
mod heartbeat;
mod inbound;
mod landing;
mod outbound;
mod places;
mod sending;

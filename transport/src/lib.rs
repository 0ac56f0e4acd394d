//! Links between a client and a store: connections that carry control frames and bulk bytes.
//!
//! [`link::Link`] is the interface: one end of a connection, completion-based. It owns each buffer
//! that it may touch until it hands the buffer back. [`conn::Conn`] implements it over any byte
//! stream ([`stream::Stream`]); [`socket`] provides the streams: TCP, Unix sockets and shared
//! memory. [`capability`], [`auth`] and [`handshake`] are state machines without I/O. The encoding
//! of frames is in `pagelith_layouts::wire`; `docs/protocol.md` describes the protocol.
#![forbid(unsafe_code)]

pub mod address;
pub mod auth;
pub mod capability;
pub mod conn;
pub mod dial;
pub mod handshake;
pub mod limits;
pub mod link;
pub mod link_error;
pub mod peer_address;
pub mod pending;
pub mod rdma;
#[allow(
    clippy::disallowed_methods,
    reason = "the system resolver blocks, so it runs on its own thread"
)]
pub mod resolve;
pub mod rights;
pub mod shown;
pub mod socket;
pub mod stream;

mod exposures;
mod frame_sink;
mod frame_writer;
mod handshake_outcome;
mod heartbeat;
mod inbound;
mod link_devices;
mod link_permits;
mod outbound;
mod poll;
mod push_cursor;

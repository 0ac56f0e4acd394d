//! Links over sockets: TCP, and Unix sockets within a host.
//!
//! A scatter read (readv) moves bulk bytes from the socket into exposed memory. A gather write
//! (sendmsg) moves them from pushed memory into the socket. Control frames are batched.
//!
//! Within a host, and if both ends support it, the bytes go through ring buffers in shared memory
//! (`rings`); the socket then carries only wake-ups.
//!
//! TCP is not encrypted; `docs/security.md` describes the consequences. Over a Unix socket the
//! kernel identifies the peer: only processes of this user and of root are admitted.

mod accept;
mod connect;
mod connected;
mod fd_passing;
#[allow(
    clippy::disallowed_methods,
    reason = "descriptors from a peer may block, so its handshake runs on a separate thread"
)]
mod handshake_thread;
mod listen_config;
mod listener;
mod pending_peers;
mod rings;
mod source;

pub use connect::{connect, dial};
pub use connected::{Socket, SocketLink, SocketPending};
pub use listen_config::{ListenConfig, ListenError};
pub use listener::{Listener, wait};
pub use pending_peers::AdmissionResult;

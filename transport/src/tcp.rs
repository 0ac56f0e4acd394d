//! Links over TCP: works everywhere. Bulk bytes go from the socket into the memory exposed for them by a scatter read,
//! and from the memory pushed into the socket by a gathering write; control frames are batched.
//!
//! Nothing is encrypted: `docs/security.md` says what that means.

mod connect;
mod listener;
mod socket;

use crate::conn::Conn;
use crate::pending::Pending;

pub use connect::{connect, dial};
pub use listener::{Arrival, Listen, ListenError, Listener};
pub use socket::Socket;

/// A TCP link.
pub type TcpLink = Conn<Socket>;
/// A TCP connection in its handshake.
pub type TcpPending = Pending<Socket>;

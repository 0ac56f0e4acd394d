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
mod listener;
mod pending_peers;
mod rings;
mod source;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use pagelith_layouts::wire::greeting::Feature;

use crate::address::Address;
use crate::capability::Offer;
use crate::conn::Conn;
use crate::pending::Pending;

pub use connect::{connect, dial};
pub use connected::Socket;
pub use listener::{Arrival, ListenConfig, ListenError, Listener};

/// The offer of an end at `address`: shared memory, and references to it, only within a host.
fn offered(offer: Offer, address: &Address, can_share: bool) -> Offer {
    match address {
        Address::Unix(_) if can_share => offer,
        Address::Unix(_) | Address::Tcp(_) => {
            offer.without(Feature::SharedMemory).without(Feature::Shown)
        }
    }
}

/// A link over a socket.
pub type SocketLink = Conn<Socket>;
/// A connection in its handshake.
pub type SocketPending = Pending<Socket>;

/// Wait at most `timeout` until one of these must be polled; false if none must. `others` are
/// further descriptors that a server's thread waits for: a ring, an eventfd.
pub fn wait(
    listener: Option<&Listener>,
    links: &[&SocketLink],
    others: &[BorrowedFd<'_>],
    timeout: Duration,
) -> bool {
    // Without a short circuit: each link must announce that this end is about to sleep.
    let arm =
        |any, link: &&SocketLink| any | link.stream().is_some_and(|s| s.arm(link.wants_write()));
    if links.iter().fold(false, arm) {
        return true;
    }
    let open = links.iter().filter_map(|link| Some((link.stream()?.as_fd(), link.wants_write())));
    let mut sockets: Vec<_> = open.collect();
    sockets.extend(listener.into_iter().flat_map(Listener::sockets));
    sockets.extend(others.iter().map(|fd| (*fd, false)));
    let due = links.iter().map(|link| link.due()).chain(listener.and_then(Listener::due)).min();
    let timeout = due.map_or(timeout, |due| due.min(timeout));
    connected::wait_for(&sockets, timeout) || due.is_some_and(|due| due <= timeout)
}

//! Links over sockets: TCP, which works everywhere, and Unix sockets within a host. Bulk bytes go from the socket into the memory exposed for them by a scatter read,
//! and from the memory pushed into the socket by a gathering write; control frames are batched.
//!
//! Within a host the bytes go through memory that both sides have, where both can (`rings`): the socket is then what they wait at.
//!
//! Over TCP nothing is encrypted: `docs/security.md` says what that means. Over a Unix socket the kernel says who the
//! other side is: this user's processes are let in, and root's.

mod accept;
#[allow(
    clippy::disallowed_methods,
    reason = "what a peer hands over may block: its handshake has a thread of its own"
)]
mod aside;
mod connect;
mod end;
mod handed;
mod listener;
mod rings;
mod source;
mod unknown;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use pagelith_layouts::wire::greeting::Feature;

use crate::address::Address;
use crate::capability::Offer;
use crate::conn::Conn;
use crate::pending::Pending;

pub use connect::{connect, dial};
pub use end::Socket;
pub use listener::{Arrival, Listen, ListenError, Listener};

/// What a side offers at an address: shared memory, and to show what lies there, within a host alone.
fn offered(offer: Offer, address: &Address, can_share: bool) -> Offer {
    match address {
        Address::Unix(_) if can_share => offer,
        Address::Unix(_) | Address::Tcp(_) => {
            let offer = offer.without(Feature::SharedMemory).without(Feature::Shown);
            offer.without(Feature::Steady).without(Feature::Catalog)
        }
    }
}

/// A link over a socket.
pub type SocketLink = Conn<Socket>;
/// A connection in its handshake.
pub type SocketPending = Pending<Socket>;

/// Wait until one of these has something to be polled for, at most `timeout`; false if none has. `others` are what else a
/// server's thread waits for: a ring, an event.
pub fn wait(
    listener: Option<&Listener>,
    links: &[&SocketLink],
    others: &[BorrowedFd<'_>],
    timeout: Duration,
) -> bool {
    // All of them: each says for itself that it is waited for.
    let arm = |any, link: &&SocketLink| any | link.stream().is_some_and(|s| s.arm(link.wants_write()));
    if links.iter().fold(false, arm) {
        return true;
    }
    let open = links.iter().filter_map(|link| Some((link.stream()?.as_fd(), link.wants_write())));
    let mut sockets: Vec<_> = open.collect();
    sockets.extend(listener.into_iter().flat_map(Listener::sockets));
    sockets.extend(others.iter().map(|fd| (*fd, false)));
    let due = links.iter().map(|link| link.due()).chain(listener.and_then(Listener::due)).min();
    let timeout = due.map_or(timeout, |due| due.min(timeout));
    end::wait_for(&sockets, timeout) || due.is_some_and(|due| due <= timeout)
}

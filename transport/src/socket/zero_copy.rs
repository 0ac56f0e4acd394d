//! Zero-copy sends of a TCP socket: to which peers, and until when.
//!
//! A peer on this host is copied to by the kernel in any case, and told apart by its address before anything is sent so. Where
//! the kernel says of other bytes that it has copied them after all, or has not what it needs, the connection goes back to
//! plain sends for good.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::zero_copy;
use rustix::io::Errno;
use rustix::net::{Shutdown, connect_unspec, getpeername, getsockname, shutdown};

use super::end::{moved, plain, wait_for};
use crate::limits::Limits;
use crate::stream::{Moved, ZeroCopy};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Not asked for yet: not every connection has anything long to send.
    Unknown,
    On,
    Off,
}

/// Zero-copy sends of a socket.
pub(super) struct Sender {
    fd: Arc<OwnedFd>,
    min: usize,
    within_host: bool,
    mode: Mode,
    /// Sends that are not over.
    open: u32,
    aborted: bool,
}

impl Sender {
    pub fn new(fd: Arc<OwnedFd>, limits: &Limits) -> Sender {
        let Limits { zero_copy_min: min, zero_copy_within_host: within_host, .. } = *limits;
        Sender { fd, min, within_host, mode: Mode::Unknown, open: 0, aborted: false }
    }

    fn find_out(&self) -> Mode {
        let own = getsockname(&self.fd).ok().and_then(|at| SocketAddr::try_from(at).ok());
        let peer = getpeername(&self.fd).ok().flatten().and_then(|at| SocketAddr::try_from(at).ok());
        let (Some(own), Some(peer)) = (own, peer) else { return Mode::Off };
        if is_within_host(own.ip(), peer.ip()) && !self.within_host {
            return Mode::Off;
        }
        if zero_copy::enable(self.fd.as_fd()).is_ok() { Mode::On } else { Mode::Off }
    }
}

fn is_within_host(own: IpAddr, peer: IpAddr) -> bool {
    let (own, peer) = (own.to_canonical(), peer.to_canonical());
    peer.is_loopback() || own == peer
}

impl ZeroCopy for Sender {
    fn pays(&mut self, bytes: usize) -> bool {
        if bytes < self.min || self.min == usize::MAX {
            return false;
        }
        if self.mode == Mode::Unknown {
            self.mode = self.find_out();
        }
        self.mode == Mode::On
    }

    fn send(&mut self, parts: &[IoSlice<'_>]) -> (Moved, bool) {
        match zero_copy::send(self.fd.as_fd(), parts) {
            // No memory for the completion, or more pages than this process may pin: less is open soon.
            Err(Errno::NOBUFS) if self.open > 0 => (plain(&self.fd, parts, false), false),
            Err(Errno::NOBUFS | Errno::FAULT | Errno::INVAL | Errno::OPNOTSUPP) => {
                self.mode = Mode::Off;
                (plain(&self.fd, parts, false), false)
            }
            sent => {
                self.open = self.open.wrapping_add(sent.is_ok().into());
                (moved("send MSG_ZEROCOPY", sent), true)
            }
        }
    }

    fn completion(&mut self) -> Option<(u32, u32)> {
        // The queue cannot be lost, and what is wrong with the connection is found by who reads or writes.
        let found = zero_copy::completion(self.fd.as_fd()).ok().flatten()?;
        if found.copied {
            self.mode = Mode::Off;
        }
        let count = found.last.wrapping_sub(found.first).wrapping_add(1);
        self.open = self.open.saturating_sub(count);
        Some((found.first, found.last))
    }

    fn finish(&mut self) {
        let _ = shutdown(&self.fd, Shutdown::Write);
    }

    fn abort(&mut self) {
        // Dissolves the connection: the peer gets a reset, and what waits to be sent or acknowledged is dropped. The socket, and
        // with it the queue of completions, stays. It cannot fail on a socket that was connected.
        let _ = connect_unspec(&self.fd);
        self.aborted = true;
    }

    fn wait(&mut self, timeout: Duration) {
        if self.aborted {
            // It is at its end, and says so to whoever waits at it.
            wait_for(&[], timeout);
        } else {
            zero_copy::wait(self.fd.as_fd(), timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_on_this_host_are_told_by_their_addresses() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        for (own, peer, within) in [
            ("127.0.0.1", "127.0.0.1", true),
            ("10.0.0.1", "127.9.9.9", true),
            ("::1", "::1", true),
            ("10.0.0.1", "10.0.0.1", true),
            ("::ffff:10.0.0.1", "10.0.0.1", true),
            ("::ffff:127.0.0.1", "::ffff:127.0.0.1", true),
            ("10.0.0.1", "10.0.0.2", false),
            ("fe80::1", "fe80::2", false),
        ] {
            assert_eq!(is_within_host(ip(own), ip(peer)), within, "own={own} peer={peer}");
        }
    }
}

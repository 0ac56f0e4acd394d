//! A connected socket, never blocking.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv, retry_on_intr};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_nodelay, socket_peercred};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::closed::Closed;
use crate::stream::{Moved, Stream};

/// A socket of TCP or of this host.
pub struct Socket(OwnedFd);

impl Socket {
    /// Take a socket of TCP that does not block: without Nagle's delay, kept alive.
    pub(super) fn tcp(socket: OwnedFd) -> Result<Socket, Closed> {
        set_tcp_nodelay(&socket, true).map_err(fault("setsockopt TCP_NODELAY"))?;
        set_socket_keepalive(&socket, true).map_err(fault("setsockopt SO_KEEPALIVE"))?;
        Ok(Socket(socket))
    }

    /// Take a socket of this host that does not block, if this user's process is at its other end, or root's.
    pub(super) fn unix(socket: OwnedFd) -> Result<Socket, Closed> {
        let peer = socket_peercred(&socket).map_err(fault("getsockopt SO_PEERCRED"))?;
        if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
            return Err(Closed::NotAuthentic { what: "the user" });
        }
        Ok(Socket(socket))
    }
}

/// The system failed an operation.
pub(super) fn fault(operation: &'static str) -> impl Fn(Errno) -> Closed {
    move |e| Closed::System { operation, errno: e.raw_os_error() }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Stream for Socket {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> Moved {
        match retry_on_intr(|| readv(&self.0, parts)) {
            Ok(0) => Moved::Ended,
            other => moved("recv", other),
        }
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> Moved {
        // Not writev: a peer that is gone must be an error here, and no signal to the whole process.
        let flags = SendFlags::NOSIGNAL;
        moved("send", retry_on_intr(|| sendmsg(&self.0, parts, &mut SendAncillaryBuffer::default(), flags)))
    }

    fn ready(&mut self, write: bool, timeout: Duration) -> bool {
        wait_for(&[(self.as_fd(), write)], timeout)
    }
}

fn moved(operation: &'static str, result: Result<usize, Errno>) -> Moved {
    match result {
        Ok(bytes) => Moved::Bytes(bytes),
        Err(Errno::AGAIN) => Moved::Blocked,
        Err(Errno::CONNRESET | Errno::PIPE) => Moved::Ended,
        Err(e) => Moved::Failed { operation, errno: e.raw_os_error() },
    }
}

/// Wait until one of these can be read, or written where that is asked for, at most `timeout`; false if none can.
pub(super) fn wait_for(sockets: &[(BorrowedFd<'_>, bool)], timeout: Duration) -> bool {
    let flags = |write: &bool| if *write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut fds: Vec<_> =
        sockets.iter().map(|(fd, write)| PollFd::from_borrowed_fd(*fd, flags(write))).collect();
    let timeout = Timespec::try_from(timeout).ok();
    // An interrupted wait is over too early at worst: whoever waits looks at the clock.
    !matches!(poll(&mut fds, timeout.as_ref()), Ok(0) | Err(Errno::INTR))
}

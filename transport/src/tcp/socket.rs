//! A connected socket, never blocking.

use std::io::{IoSlice, IoSliceMut};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv, retry_on_intr};
use rustix::net::sockopt::set_socket_keepalive;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use crate::closed::Closed;
use crate::stream::{Moved, Stream};

/// A TCP socket.
pub struct Socket(TcpStream);

impl Socket {
    /// Take a socket: without Nagle's delay, kept alive, never blocking.
    pub(super) fn new(stream: TcpStream) -> Result<Socket, Closed> {
        let fault = |operation| {
            move |e: std::io::Error| Closed::System { operation, errno: e.raw_os_error().unwrap_or(0) }
        };
        stream.set_nonblocking(true).map_err(fault("fcntl"))?;
        stream.set_nodelay(true).map_err(fault("setsockopt TCP_NODELAY"))?;
        set_socket_keepalive(&stream, true)
            .map_err(|e| Closed::System { operation: "setsockopt SO_KEEPALIVE", errno: e.raw_os_error() })?;
        Ok(Socket(stream))
    }
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

//! A socket that listens.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, fchmod, lstat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, bind, connect, getsockname,
    listen, socket_with, sockopt::set_socket_reuseaddr,
};

use super::Socket;
use super::end::fault;
use super::listener::ListenError;
use crate::address::Address;
use crate::closed::Closed;
use crate::limits::Limits;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// A connection: its name for messages, and what became of it.
pub(super) type Accepted = (String, Result<Socket, Closed>);

/// A socket that listens; one of this host has a file, which goes with it.
pub(super) struct Acceptor {
    socket: OwnedFd,
    file: Option<PathBuf>,
}

impl Acceptor {
    /// Listen, and where.
    pub(super) fn new(address: &Address) -> Result<(Acceptor, Address), ListenError> {
        let failed = |operation| {
            let address = address.clone();
            move |e: Errno| ListenError::System { operation, address, errno: e.raw_os_error() }
        };
        let family = match address {
            Address::Tcp(at) if at.is_ipv4() => AddressFamily::INET,
            Address::Tcp(_) => AddressFamily::INET6,
            Address::Unix(_) => AddressFamily::UNIX,
        };
        let socket = socket_with(family, SocketType::STREAM, FLAGS, None).map_err(failed("socket"))?;
        let (found, file) = match address {
            Address::Tcp(at) => {
                // What a process that was just killed left behind does not keep the next one out.
                set_socket_reuseaddr(&socket, true).map_err(failed("setsockopt SO_REUSEADDR"))?;
                bind(&socket, at).map_err(failed("bind"))?;
                let found =
                    getsockname(&socket).and_then(SocketAddr::try_from).map_err(failed("getsockname"))?;
                (Address::Tcp(found), None)
            }
            Address::Unix(path) => {
                // The file is made with the socket's mode, so that there is no moment at which others can connect.
                fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("fchmod"))?;
                let at = SocketAddrUnix::new(path).map_err(failed("bind"))?;
                match bind(&socket, &at) {
                    Err(Errno::ADDRINUSE) if is_left_over(path, &at) => {
                        let _ = unlink(path);
                        bind(&socket, &at).map_err(failed("bind"))?;
                    }
                    bound => bound.map_err(failed("bind"))?,
                }
                (address.clone(), Some(path.clone()))
            }
        };
        let acceptor = Acceptor { socket, file };
        listen(&acceptor.socket, BACKLOG).map_err(failed("listen"))?;
        Ok((acceptor, found))
    }

    /// The next connection, if there is one.
    pub(super) fn accept(&self, limits: &Limits) -> Result<Option<Accepted>, Closed> {
        match acceptfrom_with(&self.socket, FLAGS) {
            Ok((socket, from)) => {
                let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                let name = from.map_or_else(|| "this host".to_owned(), |from| from.to_string());
                let socket = if self.file.is_some() {
                    Socket::unix(socket, None).map(Socket::seeing_peer)
                } else {
                    Socket::tcp(socket, limits)
                };
                Ok(Some((name, socket)))
            }
            Err(Errno::AGAIN) => Ok(None),
            Err(e) => Err(fault("accept")(e)),
        }
    }
}

/// Whether a file is the socket of a process that is gone: nobody takes a connection.
fn is_left_over(path: &Path, at: &SocketAddrUnix) -> bool {
    let is_socket = lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    let probe = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        connect(&socket, at)
    };
    is_socket && probe() == Err(Errno::CONNREFUSED)
}

impl AsFd for Acceptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = unlink(file);
        }
    }
}

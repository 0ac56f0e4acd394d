//! Listening sockets.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use pagelith_io::fork;
use rustix::fs::{FileType, Mode, fchmod, lstat, unlink};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, acceptfrom_with, bind, connect,
    getsockname, listen, socket_with, sockopt::set_socket_reuseaddr,
};

use super::connected::peer_user;
use super::listen_config::ListenError;
use super::source::ConnectionSource;
use crate::address::{Address, Endpoint};
use crate::link_error::{LinkError, system_error};

/// Length of the kernel's accept queue.
const BACKLOG: i32 = 128;
const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// An accepted connection, before any other call on it.
pub(super) struct Accepted {
    /// The peer's name for messages.
    pub peer: String,
    pub source: ConnectionSource,
    pub socket: OwnedFd,
}

/// Listening sockets, one for each address of a host name.
pub(super) struct Acceptor {
    sockets: Vec<Arc<OwnedFd>>,
    /// The file of a Unix socket, with its device and inode. Dropping the acceptor removes it.
    file: Option<(PathBuf, (u64, u64))>,
}

impl Acceptor {
    /// Listen at `address`; `hosts` are the addresses to which a TCP address resolves. Also returns
    /// the address with the port in use.
    pub(super) fn new(
        address: &Address,
        hosts: &[SocketAddr],
    ) -> Result<(Acceptor, Address), ListenError> {
        match address {
            Address::Tcp(endpoint) => Acceptor::tcp(endpoint, hosts),
            Address::Unix(_) => Acceptor::unix(address),
        }
    }

    /// Skips an address that this host does not have, unless it has none of them: IPv6 may be
    /// disabled.
    fn tcp(endpoint: &Endpoint, hosts: &[SocketAddr]) -> Result<(Acceptor, Address), ListenError> {
        let (mut sockets, mut port, mut skipped) = (Vec::new(), endpoint.port(), None);
        for (at, host) in hosts.iter().enumerate() {
            // A resolver may return an address twice, which cannot be bound twice.
            if hosts[..at].iter().any(|earlier| earlier.ip() == host.ip()) {
                continue;
            }
            match listen_at(SocketAddr::new(host.ip(), port)) {
                Ok((socket, found)) => {
                    port = found;
                    sockets.push(socket);
                }
                Err((operation, errno)) => {
                    let address = Address::from(SocketAddr::new(host.ip(), port));
                    let error =
                        ListenError::System { operation, address, errno: errno.raw_os_error() };
                    if !matches!(errno, Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT) {
                        return Err(error);
                    }
                    skipped = Some(error);
                }
            }
        }
        if let Some(error) = skipped.filter(|_| sockets.is_empty()) {
            return Err(error);
        }
        let found = match endpoint {
            Endpoint::Ip(address) => Endpoint::Ip(SocketAddr::new(address.ip(), port)),
            Endpoint::Name { host, .. } => Endpoint::Name { host: host.clone(), port },
        };
        let sockets = sockets.into_iter().map(tracked).collect();
        Ok((Acceptor { sockets, file: None }, Address::Tcp(found)))
    }

    fn unix(address: &Address) -> Result<(Acceptor, Address), ListenError> {
        let failed = |operation| {
            let address = address.clone();
            move |e: Errno| ListenError::System { operation, address, errno: e.raw_os_error() }
        };
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)
            .map_err(failed("socket"))?;
        let file = match address {
            Address::Tcp(_) => None,
            Address::Unix(path) => {
                // bind creates the file with the socket's mode, so other users can at no time
                // connect.
                fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed("fchmod"))?;
                let at = SocketAddrUnix::new(path).map_err(failed("bind"))?;
                match bind(&socket, &at) {
                    Err(Errno::ADDRINUSE) if is_stale(path, &at) => {
                        let _ = unlink(path);
                        bind(&socket, &at).map_err(failed("bind"))?;
                    }
                    bound => bound.map_err(failed("bind"))?,
                }
                let made = lstat(path).map_err(failed("lstat"))?;
                Some((path.clone(), (made.st_dev, made.st_ino)))
            }
        };
        let acceptor = Acceptor { sockets: vec![tracked(socket)], file };
        acceptor
            .sockets
            .iter()
            .try_for_each(|socket| listen(socket, BACKLOG))
            .map_err(failed("listen"))?;
        Ok((acceptor, address.clone()))
    }

    /// The next connection in the accept queue, if any.
    pub(super) fn accept(&self) -> Result<Option<Accepted>, LinkError> {
        let accepted = self.sockets.iter().map(|socket| acceptfrom_with(socket, FLAGS));
        match accepted.into_iter().find(|accepted| !matches!(accepted, Err(Errno::AGAIN))) {
            Some(Ok((socket, from))) => {
                let from = from.and_then(|from| SocketAddr::try_from(from).ok());
                let peer = from.map_or_else(|| "this host".to_owned(), |from| from.to_string());
                let source = from.map_or_else(
                    || peer_user(&socket).map(ConnectionSource::User),
                    |from| Ok(ConnectionSource::of(from)),
                );
                Ok(Some(Accepted { peer, source: source?, socket }))
            }
            None => Ok(None),
            Some(Err(e)) => Err(system_error("accept")(e)),
        }
    }

    /// The descriptors to wait for.
    pub(super) fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(AsFd::as_fd)
    }
}

/// A socket that a forked child releases: otherwise it would take connections that no process
/// serves.
fn tracked(socket: OwnedFd) -> Arc<OwnedFd> {
    let socket = Arc::new(socket);
    fork::track_descriptor(&socket);
    socket
}

/// A socket that listens at this address, and its port; or the failed call and its errno.
fn listen_at(at: SocketAddr) -> Result<(OwnedFd, u16), (&'static str, Errno)> {
    let family = if at.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let failed = |operation| move |errno| (operation, errno);
    let socket = socket_with(family, SocketType::STREAM, FLAGS, None).map_err(failed("socket"))?;
    // Connections of a process that was just killed must not block the next one from binding.
    set_socket_reuseaddr(&socket, true).map_err(failed("setsockopt SO_REUSEADDR"))?;
    bind(&socket, &at).map_err(failed("bind"))?;
    listen(&socket, BACKLOG).map_err(failed("listen"))?;
    let found =
        getsockname(&socket).and_then(SocketAddr::try_from).map_err(failed("getsockname"))?;
    Ok((socket, found.port()))
}

/// Whether `path` is the socket file of a process that has ended: no process accepts connections.
fn is_stale(path: &Path, at: &SocketAddrUnix) -> bool {
    let is_socket =
        lstat(path).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket);
    let probe = || {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
        connect(&socket, at)
    };
    is_socket && probe() == Err(Errno::CONNREFUSED)
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        if let Some((file, made)) = &self.file
            && lstat(file).is_ok_and(|now| (now.st_dev, now.st_ino) == *made)
        {
            let _ = unlink(file);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_resolves_twice_to_one_address_is_listened_at_once() {
        let by_name: Address = "tcp:store.test:0".parse().expect("an address");
        let host: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let (acceptor, address) = Acceptor::new(&by_name, &[host, host]).expect("listens");
        assert_eq!(acceptor.sockets().count(), 1);
        assert!(address.to_string().starts_with("tcp:store.test:"), "{address}");
    }
}

//! Credentials of the peer process of a Unix socket.
//!
//! `rustix` cannot represent them: the peer's process number is 0 if the peer is in no pid
//! namespace that this process sees (another container), and rustix's type excludes 0.

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use libc::{c_void, socklen_t, ucred};

/// The credentials of the peer, which connected or listened.
fn credentials(socket: impl AsFd) -> Result<ucred> {
    let mut value = MaybeUninit::<ucred>::zeroed();
    let mut len = size_of::<ucred>() as socklen_t;
    let (socket, to) = (socket.as_fd().as_raw_fd(), value.as_mut_ptr().cast::<c_void>());
    // SAFETY: `to` has room for `len` bytes, and the kernel writes no more.
    let failed =
        unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len) };
    if failed != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the value is all zeros, or the kernel wrote over them; every bit pattern of its
    // integers is valid.
    Ok(unsafe { value.assume_init() })
}

/// The user id of the peer.
pub fn user(socket: impl AsFd) -> Result<u32> {
    credentials(socket).map(|peer| peer.uid)
}

/// The process id of the peer; 0 if it is not visible in this pid namespace.
pub fn number(socket: impl AsFd) -> Result<i32> {
    credentials(socket).map(|peer| peer.pid)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn peer_of_own_socket_is_this_process() {
        let flags = SocketFlags::CLOEXEC;
        let (local, _remote) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets");
        assert_eq!(user(&local).expect("a user"), rustix::process::geteuid().as_raw());
        assert_eq!(number(&local).ok(), i32::try_from(std::process::id()).ok());
    }

    #[test]
    fn descriptor_without_socket_has_no_peer() {
        let file = tempfile::tempfile().expect("a file");
        assert!(user(&file).is_err() && number(&file).is_err());
    }
}

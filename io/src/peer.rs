//! Who is at the other end of a Unix socket.
//!
//! Not by `rustix`: where the other side's number is 0, because it is in no namespace of processes that this one sees (another container),
//! its type has no such value.

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};

use libc::{c_void, socklen_t, ucred};

/// What the kernel says of the process that connected, or that listened.
fn credentials(socket: impl AsFd) -> Result<ucred> {
    let mut value = MaybeUninit::<ucred>::zeroed();
    let mut len = size_of::<ucred>() as socklen_t;
    let (socket, to) = (socket.as_fd().as_raw_fd(), value.as_mut_ptr().cast::<c_void>());
    // SAFETY: there is room for `len` bytes, and the kernel writes no more.
    let failed = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, to, &raw mut len) };
    if failed != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: zeros, or what the kernel wrote over them: numbers, which have no invalid values.
    Ok(unsafe { value.assume_init() })
}

/// The user who connected, or who listened.
pub fn user(socket: impl AsFd) -> Result<u32> {
    credentials(socket).map(|peer| peer.uid)
}

/// The number of the process that connected, or that listened; 0 if it cannot be seen from here.
pub fn number(socket: impl AsFd) -> Result<i32> {
    credentials(socket).map(|peer| peer.pid)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn this_process_is_at_the_other_end_of_its_own_socket() {
        let flags = SocketFlags::CLOEXEC;
        let (here, _there) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets");
        assert_eq!(user(&here).expect("a user"), rustix::process::geteuid().as_raw());
        assert_eq!(number(&here).ok(), i32::try_from(std::process::id()).ok());
    }

    #[test]
    fn what_is_no_socket_has_nobody_at_the_other_end() {
        let file = tempfile::tempfile().expect("a file");
        assert!(user(&file).is_err() && number(&file).is_err());
    }
}

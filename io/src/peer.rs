//! Credentials of the peer process of a Unix socket.
//!
//! `rustix` cannot represent them: the peer's process number is 0 if the peer is in no pid
//! namespace that this process sees (another container), and rustix's type excludes 0.

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void, socklen_t};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The value in asm-generic/socket.h, since Linux 6.5.
const SO_PEERPIDFD: c_int = 77;

/// Read a socket option as the kernel writes it.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: c_int) -> Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as socklen_t;
    let to = value.as_mut_ptr().cast::<c_void>();
    // SAFETY: `to` has room for `len` bytes, and the kernel writes no more.
    let failed = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, to, &raw mut len) };
    if failed != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the value is all zeros, or the kernel wrote over them. It is used only with integer
    // types, for which every bit pattern is valid.
    Ok(unsafe { value.assume_init() })
}

/// The user id of the peer, which connected or listened.
pub fn user(socket: impl AsFd) -> Result<u32> {
    option::<libc::ucred>(socket.as_fd(), libc::SO_PEERCRED).map(|peer| peer.uid)
}

/// The process id of the peer; 0 if it is not visible in this pid namespace.
pub fn number(socket: impl AsFd) -> Result<i32> {
    option::<libc::ucred>(socket.as_fd(), libc::SO_PEERCRED).map(|peer| peer.pid)
}

/// A pidfd of the peer (`pidfd_open(2)`), to detect that it has ended; from Linux 6.5 on also
/// across pid namespaces. `None` if the peer has ended already or is not visible in this pid
/// namespace.
pub fn process(socket: impl AsFd) -> Option<OwnedFd> {
    let socket = socket.as_fd();
    if let Ok(fd) = option::<c_int>(socket, SO_PEERPIDFD) {
        // SAFETY: the call created the descriptor, and nothing else owns it.
        return Some(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    // Process ids are reused, so this may be another process by now, whose end is not the peer's
    // end. That is harmless: the peer is trusted no longer than the socket is open.
    let pid = option::<libc::ucred>(socket, libc::SO_PEERCRED).ok()?.pid;
    pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[test]
    fn this_process_is_at_the_other_end_of_its_own_socket() {
        let flags = SocketFlags::CLOEXEC;
        let (local, _remote) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets");
        assert_eq!(user(&local).expect("a user"), rustix::process::geteuid().as_raw());
        let process = process(&local).expect("a process");
        let mut fds = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(0), "it has not ended");
    }

    #[test]
    fn what_is_no_socket_has_nobody_at_the_other_end() {
        let file = tempfile::tempfile().expect("a file");
        assert!(user(&file).is_err() && process(&file).is_none());
    }
}

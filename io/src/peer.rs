//! Who is at the other end of a Unix socket.
//!
//! Not by `rustix`: where the other side's number is 0, because it is in no namespace of processes that this one sees (another container),
//! its type has no such value.

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, c_void, socklen_t};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Of asm-generic/socket.h, since Linux 6.5.
const SO_PEERPIDFD: c_int = 77;

/// An option of a socket, as the kernel writes it.
fn option<T: Copy>(socket: BorrowedFd<'_>, name: c_int) -> Result<T> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as socklen_t;
    let to = value.as_mut_ptr().cast::<c_void>();
    // SAFETY: there is room for `len` bytes, and the kernel writes no more.
    let failed = unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, name, to, &raw mut len) };
    if failed != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: zeros, or what the kernel wrote over them: both are used for numbers alone, which have no other values.
    Ok(unsafe { value.assume_init() })
}

/// The user who connected, or who listened.
pub fn user(socket: impl AsFd) -> Result<u32> {
    option::<libc::ucred>(socket.as_fd(), libc::SO_PEERCRED).map(|peer| peer.uid)
}

/// The number of the process that connected, or that listened; 0 if it cannot be seen from here.
pub fn number(socket: impl AsFd) -> Result<i32> {
    option::<libc::ucred>(socket.as_fd(), libc::SO_PEERCRED).map(|peer| peer.pid)
}

/// The process that connected, or that listened, to be asked whether it has ended (`pidfd_open(2)`): also one of another namespace, from Linux 6.5 on.
/// `None` if it has ended already or cannot be seen from here.
pub fn process(socket: impl AsFd) -> Option<OwnedFd> {
    let socket = socket.as_fd();
    if let Ok(fd) = option::<c_int>(socket, SO_PEERPIDFD) {
        // SAFETY: the call made the descriptor, and gave it to nobody else.
        return Some(unsafe { OwnedFd::from_raw_fd(fd) });
    }
    // Numbers are used again: this may be another process by now. That one's end is not the end of who connected, who is not believed for longer
    // than the socket is open either.
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
        let (here, _there) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets");
        assert_eq!(user(&here).expect("a user"), rustix::process::geteuid().as_raw());
        let process = process(&here).expect("a process");
        let mut fds = [PollFd::from_borrowed_fd(process.as_fd(), PollFlags::IN)];
        assert_eq!(poll(&mut fds, Some(&Timespec::default())), Ok(0), "it has not ended");
    }

    #[test]
    fn what_is_no_socket_has_nobody_at_the_other_end() {
        let file = tempfile::tempfile().expect("a file");
        assert!(user(&file).is_err() && process(&file).is_none());
    }
}

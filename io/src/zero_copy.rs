//! Sends of TCP whose bytes the kernel reads from where they lie, after the call too, until it says that it does not any
//! more (`MSG_ZEROCOPY`; Linux 4.14, `Documentation/networking/msg_zerocopy.rst`).
//!
//! The kernel keeps the pages of such bytes, so that memory which is freed meanwhile is no memory of anybody else's. What is
//! written into it is sent, though: whoever sends keeps the bytes as they are until the completion. Completions lie in
//! the socket's error queue, make it ready as an error does, and are lost with the socket.

use std::io::IoSlice;
use std::mem::size_of;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::from_ref;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

/// Where an entry of an error queue comes from, and what its code says (`linux/errqueue.h`).
const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;
/// The kinds of ancillary data that an entry comes in: of IPv4 and of IPv6.
const ENTRIES: [(i32, i32); 2] = [(libc::SOL_IP, libc::IP_RECVERR), (libc::SOL_IPV6, libc::IPV6_RECVERR)];
/// Room for one entry with the longest address behind it.
const ENTRY_BYTES: usize = 128;

/// Sends that are over. They are numbered from 0 in the order in which they moved bytes, mod 2^32; these are consecutive ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number of the first.
    pub first: u32,
    /// The number of the last.
    pub last: u32,
    /// The kernel has copied bytes of them after all.
    pub copied: bool,
}

/// Let a socket send so. An error where the kernel or the kind of socket has no such thing.
pub fn enable(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option's value is an int that outlives the call, which copies it.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ZEROCOPY,
            from_ref(&on).cast(),
            length,
        )
    };
    if result == 0 { Ok(()) } else { Err(last_error()) }
}

/// Send from `parts` in order, as much as the socket takes now: at least a byte, or an error. The bytes must stay as they are
/// until a completion names the call, which is the next one in number.
pub fn send(socket: BorrowedFd<'_>, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let flags = flags | SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as u32);
    retry_on_intr(|| sendmsg(socket, parts, &mut SendAncillaryBuffer::default(), flags))
}

/// The next completion, if there is one.
pub fn completion(socket: BorrowedFd<'_>) -> Result<Option<Completion>, Errno> {
    loop {
        // Aligned as the kernel's structures are.
        let mut control = [0u64; ENTRY_BYTES / 8];
        // SAFETY: zeros are a value of the structure, which is integers and pointers.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = ENTRY_BYTES;
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: the message names `control` alone, with its length, and both outlive the call.
        let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
        if received < 0 {
            match last_error() {
                Errno::AGAIN => return Ok(None),
                Errno::INTR => continue,
                e => return Err(e),
            }
        }
        let length = message.msg_controllen.min(ENTRY_BYTES);
        // What else is in the queue is not asked for, and is dropped.
        if let Some(found) = parse(&bytes_of(&control)[..length]) {
            return Ok(Some(found));
        }
    }
}

/// Wait until the socket has a completion, or its connection is over, at most `timeout`.
pub fn wait(socket: BorrowedFd<'_>, timeout: Duration) {
    // Errors and the end are always told.
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::empty())];
    let _ = poll(&mut fds, Timespec::try_from(timeout).ok().as_ref());
}

fn last_error() -> Errno {
    let error = std::io::Error::last_os_error();
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

fn bytes_of(words: &[u64; ENTRY_BYTES / 8]) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// The completion among ancillary data: a `cmsghdr` (length, level, type) with a `sock_extended_err` behind it (errno,
/// origin, type, code, padding, info, data).
fn parse(mut control: &[u8]) -> Option<Completion> {
    const HEAD: usize = 16;
    let word = |bytes: &[u8], at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    loop {
        let length = usize::try_from(u64::from_ne_bytes(*control.first_chunk()?)).ok()?;
        let (level, kind) = (word(control, 8)? as i32, word(control, 12)? as i32);
        let entry = control.get(HEAD..length)?;
        let is_ours = ENTRIES.contains(&(level, kind)) && entry.get(4) == Some(&ORIGIN_ZEROCOPY);
        if is_ours && word(entry, 0)? == 0 {
            let copied = *entry.get(6)? & CODE_COPIED != 0;
            return Some(Completion { first: word(entry, 8)?, last: word(entry, 12)?, copied });
        }
        control = control.get(length.next_multiple_of(8)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(level: i32, kind: i32, errno: u32, origin: u8, code: u8, range: (u32, u32)) -> Vec<u8> {
        let mut bytes = 48u64.to_ne_bytes().to_vec();
        bytes.extend([level, kind].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(errno.to_ne_bytes());
        bytes.extend([origin, 0, code, 0]);
        bytes.extend([range.0, range.1].iter().flat_map(|word| word.to_ne_bytes()));
        bytes.resize(48, 0);
        bytes
    }

    #[test]
    fn completions_are_told_from_what_else_is_there() {
        let ours = entry(0, 11, 0, 5, 1, (7, 9));
        let found = Completion { first: 7, last: 9, copied: true };
        assert_eq!(parse(&ours), Some(found));
        let six = entry(41, 25, 0, 5, 0, (u32::MAX, 0));
        assert_eq!(parse(&six), Some(Completion { first: u32::MAX, last: 0, copied: false }));
        // A refused connection, a time stamp, another kind of message.
        let others =
            [entry(0, 11, 111, 2, 0, (1, 1)), entry(0, 11, 42, 4, 0, (1, 1)), entry(1, 29, 0, 5, 0, (1, 1))];
        others.iter().for_each(|other| assert_eq!(parse(other), None));
        assert_eq!(parse(&[others[1].clone(), ours.clone()].concat()), Some(found));
        for cut in 0..32 {
            assert_eq!(parse(&ours[..cut]), None, "cut={cut}");
        }
        let endless = [&0u64.to_ne_bytes()[..], &[0; 40]].concat();
        assert_eq!(parse(&endless), None, "an entry of no length");
    }
}

//! Passing of file descriptors over a Unix socket (SCM_RIGHTS).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::link_error::{LinkError, system_error};
use crate::shown::REGIONS_MAX;

/// Maximum descriptors in one message: a link's rings, and regions.
const FDS_MAX: usize = 1 + REGIONS_MAX;

/// Send `fds` with one byte, `tag`, that tells their kind; false if the socket takes nothing now.
pub(super) fn send_fds(
    socket: &OwnedFd,
    tag: u8,
    fds: &[BorrowedFd<'_>],
) -> Result<bool, LinkError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(system_error("sendmsg")(Errno::NOBUFS));
    }
    match sendmsg(socket, &[IoSlice::new(&[tag])], &mut ancillary, SendFlags::NOSIGNAL) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(e) => Err(system_error("sendmsg")(e)),
    }
}

/// Receive descriptors of the peer that have this tag; `None` if they have not arrived yet.
pub(super) fn receive_fds(socket: &OwnedFd, tag: u8) -> Result<Option<Vec<OwnedFd>>, LinkError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(e) => return Err(system_error("recvmsg")(e)),
    };
    let fds: Vec<OwnedFd> = ancillary
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
            _ => Vec::new(),
        })
        .collect();
    if received.bytes == 0 {
        return Err(LinkError::Disconnected);
    }
    // Truncated although the buffer had room: this process has no free descriptors, and the kernel
    // drops the excess ones silently.
    if received.flags.contains(ReturnFlags::CTRUNC) && fds.len() < FDS_MAX {
        return Err(system_error("recvmsg")(Errno::MFILE));
    }
    if byte[0] != tag {
        return Err(LinkError::violation("no shared memory came with the handshake"));
    }
    Ok(Some(fds))
}

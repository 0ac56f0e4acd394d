//! Descriptors that one process hands another on their socket.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use super::end::fault;
use crate::closed::Closed;
use crate::shown::REGIONS_MAX;

/// Most descriptors at a time: a link's rings, and regions.
const FDS_MAX: usize = 1 + REGIONS_MAX;

/// Hand `fds` over behind one byte that says what they are; false if the socket takes nothing now.
pub(super) fn hand(socket: &OwnedFd, what: u8, fds: &[BorrowedFd<'_>]) -> Result<bool, Closed> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(fault("sendmsg")(Errno::NOBUFS));
    }
    match sendmsg(socket, &[IoSlice::new(&[what])], &mut ancillary, SendFlags::NOSIGNAL) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN | Errno::INTR) => Ok(false),
        Err(e) => Err(fault("sendmsg")(e)),
    }
}

/// Take what the other side handed over behind the byte `what`; `None` if it has not come yet.
pub(super) fn take(socket: &OwnedFd, what: u8) -> Result<Option<Vec<OwnedFd>>, Closed> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags) {
        Ok(received) => received,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(e) => return Err(fault("recvmsg")(e)),
    };
    let fds: Vec<OwnedFd> = ancillary
        .drain()
        .flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.collect::<Vec<_>>(),
            _ => Vec::new(),
        })
        .collect();
    if received.bytes == 0 {
        return Err(Closed::Ended);
    }
    // There was room for more: this process may have no more descriptors, and the kernel drops those silently.
    if received.flags.contains(ReturnFlags::CTRUNC) && fds.len() < FDS_MAX {
        return Err(fault("recvmsg")(Errno::MFILE));
    }
    if byte[0] != what {
        return Err(Closed::broken("shared memory", "none was handed over"));
    }
    Ok(Some(fds))
}

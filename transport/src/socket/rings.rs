//! Shared memory in place of a Unix socket's own buffers, once both sides are known: two rings of bytes, made by the
//! client and handed over on the socket, which from then on carries nothing but wake-ups, and the end of the other side.
//!
//! While both sides are busy no call enters the kernel. A side that finds nothing looks again for some microseconds, then
//! says that it sleeps and waits at its socket; whoever moves bytes past a sleeper sends it one.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use pagelith_io::shm::{Broken, PAIR_MEMORY_BYTES, RingReader, RingWriter, SharedMemory, pair};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recv, recvmsg, send, sendmsg,
};

use super::end::{fault, wait_for};
use crate::closed::Closed;
use crate::stream::Moved;

/// How often a side looks again before it sleeps: some 20 us, a few times what a small request takes.
const LOOKS: u32 = 600;
/// Reads that found nothing after which the socket is looked at: whoever never waits must notice the end too.
const IDLE_READS: u32 = 1024;
/// What the memory is handed over with.
const HANDED: u8 = 1;
/// What wakes a sleeper.
const WAKE: u8 = 2;

/// This side's ends of both rings.
pub(super) struct Rings {
    out: RingWriter,
    inward: RingReader,
    /// Wake-ups may lie in the socket.
    armed: Cell<bool>,
    ended: bool,
    idle_reads: u32,
}

impl Rings {
    fn new(memory: SharedMemory, first: bool) -> Rings {
        let (out, inward) = pair(memory, first);
        Rings { out, inward, armed: Cell::new(false), ended: false, idle_reads: 0 }
    }

    /// A client's memory for them; `None` if this process may not make any.
    pub fn memory() -> Option<SharedMemory> {
        SharedMemory::new(PAIR_MEMORY_BYTES).ok()
    }

    /// Hand the memory over, and begin to use it. `None` if it cannot be handed over yet.
    pub fn hand_over(socket: &OwnedFd, memory: SharedMemory) -> Result<Result<Rings, SharedMemory>, Closed> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let fds = [memory.as_fd()];
        if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(fault("sendmsg")(Errno::NOBUFS));
        }
        match sendmsg(socket, &[IoSlice::new(&[HANDED])], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Err(memory)),
            Err(e) => return Err(fault("sendmsg")(e)),
        }
        Ok(Ok(Rings::new(memory, true)))
    }

    /// Take what a client hands over; `None` if it has not come yet.
    pub fn take_over(socket: &OwnedFd) -> Result<Option<Rings>, Closed> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
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
        let mut fds = fds.into_iter();
        let (Some(fd), None, HANDED) = (fds.next(), fds.next(), byte[0]) else {
            return Err(Closed::broken("shared memory", "none was handed over"));
        };
        let memory =
            SharedMemory::of(fd, PAIR_MEMORY_BYTES).map_err(|e| Closed::broken("shared memory", e))?;
        Ok(Some(Rings::new(memory, false)))
    }

    pub fn read(&mut self, socket: &OwnedFd, parts: &mut [IoSliceMut<'_>]) -> Moved {
        let mut total = 0;
        for part in parts.iter_mut() {
            match self.inward.read(part) {
                Ok(n) => {
                    total += n;
                    // What arrives from here on belongs where this part ends.
                    if n < part.len() {
                        break;
                    }
                }
                Err(broken) => return failed(broken),
            }
        }
        if total > 0 {
            self.idle_reads = 0;
            if self.inward.publish() {
                self.wake(socket);
            }
            return Moved::Bytes(total);
        }
        self.idle_reads += 1;
        if self.armed.get() || self.idle_reads >= IDLE_READS {
            self.idle_reads = 0;
            self.drain(socket);
            // What was written before the end was written.
            if self.ended && self.inward.available() == Ok(0) {
                return Moved::Ended;
            }
        }
        match self.ended && self.inward.available() == Ok(0) {
            true => Moved::Ended,
            false => Moved::Blocked,
        }
    }

    pub fn write(&mut self, socket: &OwnedFd, parts: &[IoSlice<'_>]) -> Moved {
        if self.ended {
            return Moved::Ended;
        }
        let mut total = 0;
        for part in parts {
            match self.out.write(part) {
                Ok(n) => {
                    total += n;
                    if n < part.len() {
                        break;
                    }
                }
                Err(broken) => return failed(broken),
            }
        }
        if total == 0 {
            return Moved::Blocked;
        }
        if self.out.publish() {
            self.wake(socket);
        }
        Moved::Bytes(total)
    }

    /// Wait until there is something to do, at most `timeout`; false if there is nothing.
    pub fn ready(&mut self, socket: &OwnedFd, write: bool, timeout: Duration) -> bool {
        for _ in 0..LOOKS {
            if self.has_work(write) {
                return true;
            }
            std::hint::spin_loop();
        }
        if !self.arm(write) {
            wait_for(&[(socket.as_fd(), false)], timeout);
        }
        self.inward.sleep(false);
        self.out.sleep(false);
        self.drain(socket);
        self.has_work(write)
    }

    /// Say that this side is about to wait at its socket; true if it need not.
    pub fn arm(&self, write: bool) -> bool {
        self.armed.set(true);
        self.inward.sleep(true);
        if write {
            self.out.sleep(true);
        }
        self.has_work(write)
    }

    /// Also true where something is wrong: whoever moves bytes next is told what.
    fn has_work(&self, write: bool) -> bool {
        self.ended || self.inward.available() != Ok(0) || write && self.out.room() != Ok(0)
    }

    /// Take wake-ups out of the socket, and notice its end.
    fn drain(&mut self, socket: &OwnedFd) {
        self.armed.set(false);
        let mut bytes = [0u8; 64];
        match recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.ended = true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.ended = true,
        }
    }

    fn wake(&mut self, socket: &OwnedFd) {
        match send(socket, &[WAKE], SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            // A socket that is full has woken it already.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.ended = true,
        }
    }
}

fn failed(_: Broken) -> Moved {
    Moved::Failed { operation: "shared memory", errno: Errno::PROTO.raw_os_error() }
}

//! Two byte rings in shared memory that replace the buffers of a Unix socket after the handshake.
//!
//! The client allocates the memory and passes it over the socket. From then on the socket carries
//! only wake-ups, and the end of the connection. While both ends are busy, no call enters the
//! kernel. An end that finds no work polls for [`SPIN`], then sets its sleep flag and waits on its
//! socket. The other end sends a wake-up if that flag is set when it moves bytes, or when it is
//! about to.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::shm::{
    InvalidRingCount, MapLimits, PAIR_MEMORY_BYTES, PeerMemory, RingReader, RingWriter,
    SharedMemory, SharedRegion, pair,
};
use pagelith_io::system::SystemClock;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::fd_passing;
use crate::link_error::LinkError;
use crate::poll::wait_for;
use crate::stream::StreamResult;

/// Time that an end polls the rings before it sleeps: longer than a small request takes, and than
/// the other end needs to wake it (benches/results/link-waits.md has puts with 50, 100 and 200 us).
const SPIN: Duration = Duration::from_micros(100);
/// Polls between two readings of the clock.
const POLLS_PER_CLOCK_READ: u32 = 32;
/// Empty reads after which the socket is checked: an end that never waits must notice the end of
/// the connection too.
const IDLE_READS: u32 = 1024;
/// Tag of a client's memory.
const TAG_RINGS: u8 = 1;
/// Byte of a wake-up.
const WAKE: u8 = 2;
/// Tag of a server's regions.
const TAG_REGIONS: u8 = 3;

/// This end of both rings.
pub(super) struct Rings {
    out: RingWriter,
    incoming: RingReader,
    /// Wake-ups may be in the socket.
    armed: Cell<bool>,
    /// The last write did not wake the other end.
    unannounced: bool,
    /// The last wait found nothing. An idle link is not polled at each visit of its thread.
    idle: bool,
    ended: bool,
    idle_reads: u32,
}

/// The rings and the memory received from a client.
pub(super) type ClientMemory = (Rings, Vec<Arc<PeerMemory>>);

impl Rings {
    fn new(memory: SharedMemory, first: bool) -> Rings {
        let (out, incoming) = pair(memory, first);
        Rings {
            out,
            incoming,
            armed: Cell::new(false),
            unannounced: false,
            idle: false,
            ended: false,
            idle_reads: 0,
        }
    }

    /// A client's memory for the rings; `None` if this process cannot allocate it.
    pub fn memory() -> Option<SharedMemory> {
        SharedMemory::new(PAIR_MEMORY_BYTES).ok()
    }

    /// Send a client's memory and its shared regions, and begin to use the rings. Returns the
    /// memory if the socket cannot take it yet.
    pub fn send_memory(
        socket: &OwnedFd,
        memory: SharedMemory,
        regions: &[Arc<SharedRegion>],
    ) -> Result<Result<Rings, SharedMemory>, LinkError> {
        let fds: Vec<BorrowedFd<'_>> = std::iter::once(memory.as_fd())
            .chain(regions.iter().map(|region| region.as_fd()))
            .collect();
        Ok(match fd_passing::send_fds(socket, TAG_RINGS, &fds)? {
            true => Ok(Rings::new(memory, true)),
            false => Err(memory),
        })
    }

    /// Receive a client's memory and at most `regions_max` regions, and map them within `bound`;
    /// `None` if they have not arrived yet.
    pub fn receive_memory(
        socket: &OwnedFd,
        regions_max: usize,
        bound: &MapLimits,
    ) -> Result<Option<ClientMemory>, LinkError> {
        let Some(fds) = fd_passing::receive_fds(socket, TAG_RINGS)? else { return Ok(None) };
        let mut fds = fds.into_iter();
        let Some(fd) = fds.next().filter(|_| fds.len() <= regions_max) else {
            return Err(LinkError::violation("no shared memory came with the handshake"));
        };
        let memory = SharedMemory::of(fd, PAIR_MEMORY_BYTES).map_err(|e| unmapped(&e))?;
        Ok(Some((Rings::new(memory, false), views(fds, Some(bound))?)))
    }

    /// Send a server's regions; false if the socket cannot take
    /// them yet.
    pub fn send_regions(
        socket: &OwnedFd,
        regions: &[Arc<SharedRegion>],
    ) -> Result<bool, LinkError> {
        let fds: Vec<BorrowedFd<'_>> = regions.iter().map(|region| region.as_fd()).collect();
        fd_passing::send_fds(socket, TAG_REGIONS, &fds)
    }

    /// Receive a server's regions; `None` if they have not arrived
    /// yet.
    pub fn receive_regions(socket: &OwnedFd) -> Result<Option<Vec<Arc<PeerMemory>>>, LinkError> {
        let Some(fds) = fd_passing::receive_fds(socket, TAG_REGIONS)? else { return Ok(None) };
        views(fds.into_iter(), None).map(Some)
    }

    pub fn read(&mut self, socket: &OwnedFd, parts: &mut [IoSliceMut<'_>]) -> StreamResult {
        let mut total = 0;
        for part in parts.iter_mut() {
            match self.incoming.read(part) {
                Ok(n) => {
                    total += n;
                    // Stop here: bytes that arrive meanwhile continue in this part.
                    if n < part.len() {
                        break;
                    }
                }
                Err(broken) => return failed(broken),
            }
        }
        if total > 0 {
            self.idle_reads = 0;
            if self.incoming.publish() {
                self.wake(socket);
            }
            return StreamResult::Bytes(total);
        }
        self.idle_reads += 1;
        if self.armed.get() || self.idle_reads >= IDLE_READS {
            self.idle_reads = 0;
            self.drain(socket);
            // Bytes that were written before the end are delivered first.
            if self.ended && self.incoming.available() == Ok(0) {
                return StreamResult::Ended;
            }
        }
        match self.ended && self.incoming.available() == Ok(0) {
            true => StreamResult::Ended,
            false => StreamResult::Blocked,
        }
    }

    /// Write, and with `wakes` wake the other end if it sleeps.
    pub fn write(&mut self, socket: &OwnedFd, parts: &[IoSlice<'_>], wakes: bool) -> StreamResult {
        if self.ended {
            return StreamResult::Ended;
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
            return StreamResult::Blocked;
        }
        self.unannounced = !wakes;
        if !wakes {
            self.out.publish_without_wake();
        } else if self.out.publish() {
            self.wake(socket);
        }
        StreamResult::Bytes(total)
    }

    /// Wake the other end if it sleeps, before a write.
    pub fn wake_peer(&mut self, socket: &OwnedFd) {
        if self.out.publish() {
            self.wake(socket);
        }
    }

    /// Wait at most `timeout` until there is work; false if there is none, which may be before the
    /// timeout.
    pub fn ready(&mut self, socket: &OwnedFd, write: bool, timeout: Duration) -> bool {
        if self.has_work(write) || !self.idle && self.spin(write) {
            self.idle = false;
            return true;
        }
        // The other end may wait for bytes that were written without a wake-up, and send nothing
        // before it has them. So it must be woken before this end sleeps.
        if std::mem::take(&mut self.unannounced) {
            self.wake_peer(socket);
        }
        let woken = !self.arm(write) && wait_for(&[(socket.as_fd(), false)], timeout);
        self.incoming.sleep(false);
        self.out.sleep(false);
        self.drain(socket);
        // A wake-up without work comes from `wake_peer`: work is about to arrive.
        let is_ready = self.has_work(write) || woken && self.spin(write);
        self.idle = !is_ready;
        is_ready
    }

    /// As [`Rings::ready`], but wait only for room to write.
    pub fn ready_to_write(&mut self, socket: &OwnedFd, timeout: Duration) -> bool {
        let has_room = |rings: &Rings| rings.ended || rings.out.room() != Ok(0);
        // The other end makes room only after it knows about the bytes.
        if std::mem::take(&mut self.unannounced) {
            self.wake_peer(socket);
        }
        self.armed.set(true);
        self.out.sleep(true);
        if !has_room(self) {
            wait_for(&[(socket.as_fd(), false)], timeout);
        }
        self.out.sleep(false);
        self.drain(socket);
        has_room(self)
    }

    /// Poll the rings for at most [`SPIN`]; true if there is work. It does not yield its core: the
    /// other end usually runs on another one.
    fn spin(&self, write: bool) -> bool {
        // The system clock: rings are never simulated.
        let clock = SystemClock::new();
        loop {
            for _ in 0..POLLS_PER_CLOCK_READ {
                if self.has_work(write) {
                    return true;
                }
                std::hint::spin_loop();
            }
            if clock.now().since(Mono::default()) >= SPIN {
                return false;
            }
        }
    }

    /// Announce that this end is about to wait on its socket; true if there is work already.
    pub fn arm(&self, write: bool) -> bool {
        self.armed.set(true);
        self.incoming.sleep(true);
        if write {
            self.out.sleep(true);
        }
        self.has_work(write)
    }

    /// Also true after a failure, which the next read or write reports.
    fn has_work(&self, write: bool) -> bool {
        self.ended || self.incoming.available() != Ok(0) || write && self.out.room() != Ok(0)
    }

    /// Read wake-ups from the socket, and detect its end.
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
            // A full socket contains a wake-up already.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.ended = true,
        }
    }
}

fn views(
    fds: impl Iterator<Item = OwnedFd>,
    bound: Option<&MapLimits>,
) -> Result<Vec<Arc<PeerMemory>>, LinkError> {
    fds.map(|fd| PeerMemory::shared(fd, bound).map_err(|e| unmapped(&e))).collect()
}

/// The error for memory of the peer that could not be mapped: this process lacks address space, or
/// the memory is not valid.
fn unmapped(e: &std::io::Error) -> LinkError {
    match e.raw_os_error() {
        Some(errno) if errno == Errno::NOMEM.raw_os_error() => {
            LinkError::SystemCall { operation: "mmap", errno }
        }
        _ => LinkError::violation(format_args!("its shared memory cannot be mapped: {e}")),
    }
}

fn failed(_: InvalidRingCount) -> StreamResult {
    StreamResult::Failed { operation: "shared memory", errno: Errno::PROTO.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// Both ends, and the socket of each.
    fn two() -> ([Rings; 2], [OwnedFd; 2]) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets");
        let memory = Rings::memory().expect("memory");
        let fd = rustix::io::dup(&memory).expect("another descriptor");
        let theirs = SharedMemory::of(fd, PAIR_MEMORY_BYTES).expect("as it was made");
        ([Rings::new(memory, true), Rings::new(theirs, false)], [here, there])
    }

    #[test]
    fn nudge_wakes_a_sleeping_end_once_for_the_next_write() {
        let ([mut ours, mut theirs], [here, there]) = two();
        let is_woken = || wait_for(&[(there.as_fd(), false)], Duration::ZERO);
        ours.wake_peer(&here);
        assert!(!is_woken(), "the other end is awake");
        assert!(!theirs.arm(false));
        ours.wake_peer(&here);
        ours.wake_peer(&here);
        assert!(is_woken());
        theirs.drain(&there);
        assert!(!is_woken(), "one wake-up per sleep");
        assert!(!theirs.ready(&there, false, Duration::ZERO), "no bytes followed");
        assert!(!theirs.arm(false));
        ours.wake_peer(&here);
        assert_eq!(ours.write(&here, &[IoSlice::new(b"x")], true), StreamResult::Bytes(1));
        assert!(theirs.ready(&there, false, Duration::from_secs(60)));
        let woken = recv(&there, &mut [0u8; 8][..], RecvFlags::DONTWAIT).map(|(_, bytes)| bytes);
        assert_eq!(woken, Ok(1), "the write sent no second wake-up");
    }

    #[test]
    fn quiet_write_wakes_the_other_end_before_this_end_sleeps() {
        let ([mut ours, theirs], [here, there]) = two();
        let is_woken = || wait_for(&[(there.as_fd(), false)], Duration::ZERO);
        assert!(!theirs.arm(false));
        assert!(!ours.ready(&here, false, Duration::ZERO));
        assert!(!is_woken(), "nothing was written");
        assert_eq!(ours.write(&here, &[IoSlice::new(b"x")], false), StreamResult::Bytes(1));
        assert!(!is_woken(), "a quiet write wakes no one");
        assert!(!ours.ready(&here, false, Duration::ZERO));
        assert!(is_woken(), "otherwise both ends would sleep");
    }
}

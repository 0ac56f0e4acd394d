//! Shared memory in place of a Unix socket's own buffers, once both sides are known: two rings of bytes, made by the
//! client and handed over on the socket, which from then on carries nothing but wake-ups, and the end of the other side.
//!
//! While both sides are busy no call enters the kernel. A side that finds nothing polls for [`SPIN`], then says that it
//! sleeps and waits at its socket; whoever moves bytes past a sleeper, or is about to, sends it one.

use std::cell::Cell;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::shm::{
    Broken, MapBound, PAIR_MEMORY_BYTES, Region, RingReader, RingWriter, SharedMemory, SteadyWords, View,
    pair,
};
use pagelith_io::system::SystemClock;
use pagelith_layouts::wire::Side;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};

use super::end::wait_for;
use super::handed;
use crate::closed::Closed;
use crate::stream::Moved;

/// How long a side polls the rings before it sleeps: longer than a small request takes, and than the other side needs to wake it
/// (decision 0032 has what puts reach with 50, 100 and 200 us).
const SPIN: Duration = Duration::from_micros(100);
/// Polls between two readings of the clock.
const POLLS: u32 = 32;
/// Reads that found nothing after which the socket is looked at: whoever never waits must notice the end too.
const IDLE_READS: u32 = 1024;
/// What the memory is handed over with.
const HANDED: u8 = 1;
/// What wakes a sleeper.
const WAKE: u8 = 2;
/// What a server's regions are handed over with.
const SHOWS: u8 = 3;

/// This side's ends of both rings.
pub(super) struct Rings {
    out: RingWriter,
    inward: RingReader,
    /// Wake-ups may lie in the socket.
    armed: Cell<bool>,
    /// Something was written last that woke nobody.
    unsaid: bool,
    /// Nothing came in the last wait: an idle link is not polled each time that its thread looks after it.
    idle: bool,
    ended: bool,
    idle_reads: u32,
}

/// What a client handed over: the rings, and what it shows.
pub(super) type Shared = (Rings, Vec<Arc<View>>);

impl Rings {
    fn new(memory: SharedMemory, first: bool) -> Rings {
        let (out, inward) = pair(memory, first);
        Rings {
            out,
            inward,
            armed: Cell::new(false),
            unsaid: false,
            idle: false,
            ended: false,
            idle_reads: 0,
        }
    }

    /// A client's memory for them; `None` if this process may not make any.
    pub fn memory() -> Option<SharedMemory> {
        SharedMemory::new(PAIR_MEMORY_BYTES).ok()
    }

    /// Hand the memory over, with memory that is shown beside it, and begin to use it. The memory back if it cannot be handed
    /// over yet.
    pub fn hand_over(
        socket: &OwnedFd,
        memory: SharedMemory,
        shows: &[Arc<Region>],
    ) -> Result<Result<Rings, SharedMemory>, Closed> {
        let fds: Vec<BorrowedFd<'_>> =
            std::iter::once(memory.as_fd()).chain(shows.iter().map(|region| region.as_fd())).collect();
        Ok(match handed::hand(socket, HANDED, &fds)? {
            true => Ok(Rings::new(memory, true)),
            false => Err(memory),
        })
    }

    /// Take what a client hands over: its memory, and at most so many regions, mapped within `bound`; `None` if it has not come yet.
    pub fn take_over(
        socket: &OwnedFd,
        regions_max: usize,
        bound: &MapBound,
    ) -> Result<Option<Shared>, Closed> {
        let Some(fds) = handed::take(socket, HANDED)? else { return Ok(None) };
        let mut fds = fds.into_iter();
        let Some(fd) = fds.next().filter(|_| fds.len() <= regions_max) else {
            return Err(Closed::broken("shared memory", "none was handed over"));
        };
        let memory = SharedMemory::of(fd, PAIR_MEMORY_BYTES).map_err(|e| unmapped(&e))?;
        Ok(Some((Rings::new(memory, false), views(fds, Some(bound))?)))
    }

    /// Hand a server's regions over; false if they cannot be handed over yet.
    pub fn show(socket: &OwnedFd, shows: &[Arc<Region>]) -> Result<bool, Closed> {
        let fds: Vec<BorrowedFd<'_>> = shows.iter().map(|region| region.as_fd()).collect();
        handed::hand(socket, SHOWS, &fds)
    }

    /// Take a server's regions; `None` if they have not come yet.
    pub fn take_shown(socket: &OwnedFd) -> Result<Option<Vec<Arc<View>>>, Closed> {
        let Some(fds) = handed::take(socket, SHOWS)? else { return Ok(None) };
        views(fds.into_iter(), None).map(Some)
    }

    /// Where the client says what is steady, as this side has it.
    pub fn steady(&self, side: Side) -> SteadyWords {
        match side {
            Side::Client => self.out.steady(),
            Side::Server => self.inward.steady(),
        }
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

    /// Write, and wake a sleeper if it is to hear of it now.
    pub fn write(&mut self, socket: &OwnedFd, parts: &[IoSlice<'_>], wakes: bool) -> Moved {
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
        self.unsaid = !wakes;
        if !wakes {
            self.out.publish_quietly();
        } else if self.out.publish() {
            self.wake(socket);
        }
        Moved::Bytes(total)
    }

    /// Wake the other side if it sleeps, for what is about to be written; whether it did.
    pub fn nudge(&mut self, socket: &OwnedFd) -> bool {
        let slept = self.out.publish();
        if slept {
            self.wake(socket);
        }
        slept
    }

    /// Wait until there is something to do, at most `timeout`; false if there is nothing, also before that time is up.
    pub fn ready(&mut self, socket: &OwnedFd, write: bool, timeout: Duration) -> bool {
        if self.has_work(write) || !self.idle && self.spin(write) {
            self.idle = false;
            return true;
        }
        // What was said quietly may be what the other side waits for, if it has no more to show: nothing else would tell it.
        if std::mem::take(&mut self.unsaid) {
            self.nudge(socket);
        }
        let woken = !self.arm(write) && wait_for(&[(socket.as_fd(), false)], timeout);
        self.inward.sleep(false);
        self.out.sleep(false);
        self.drain(socket);
        // Who is woken before there is anything is woken because it is about to come.
        let is_ready = self.has_work(write) || woken && self.spin(write);
        self.idle = !is_ready;
        is_ready
    }

    /// As [`Rings::ready`], of room for what is to be sent alone.
    pub fn ready_to_write(&mut self, socket: &OwnedFd, timeout: Duration) -> bool {
        let has_room = |rings: &Rings| rings.ended || rings.out.room() != Ok(0);
        // The other side makes room only if it knows what lies there.
        if std::mem::take(&mut self.unsaid) {
            self.nudge(socket);
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

    /// Poll for [`SPIN`]; whether there is something to do. The core is kept meanwhile: the other side has its own, mostly.
    fn spin(&self, write: bool) -> bool {
        // Rings are of one host, and never simulated.
        let clock = SystemClock::new();
        loop {
            for _ in 0..POLLS {
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

fn views(fds: impl Iterator<Item = OwnedFd>, bound: Option<&MapBound>) -> Result<Vec<Arc<View>>, Closed> {
    fds.map(|fd| View::shared(fd, bound).map_err(|e| unmapped(&e))).collect()
}

/// Memory that was handed over is not mapped: this process has no room for it, or it is not what it should be.
fn unmapped(e: &std::io::Error) -> Closed {
    match e.raw_os_error() {
        Some(errno) if errno == Errno::NOMEM.raw_os_error() => Closed::System { operation: "mmap", errno },
        _ => Closed::broken("shared memory", e),
    }
}

fn failed(_: Broken) -> Moved {
    Moved::Failed { operation: "shared memory", errno: Errno::PROTO.raw_os_error() }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    /// Both sides, and the socket of each.
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
    fn who_sleeps_is_woken_once_for_what_is_about_to_come() {
        let ([mut ours, mut theirs], [here, there]) = two();
        let is_woken = || wait_for(&[(there.as_fd(), false)], Duration::ZERO);
        ours.nudge(&here);
        assert!(!is_woken(), "it is awake");
        assert!(!theirs.arm(false));
        ours.nudge(&here);
        ours.nudge(&here);
        assert!(is_woken());
        theirs.drain(&there);
        assert!(!is_woken(), "once is enough");
        assert!(!theirs.ready(&there, false, Duration::ZERO), "it was for nothing");
        assert!(!theirs.arm(false));
        ours.nudge(&here);
        assert_eq!(ours.write(&here, &[IoSlice::new(b"x")], true), Moved::Bytes(1));
        assert!(theirs.ready(&there, false, Duration::from_secs(60)));
        let woken = recv(&there, &mut [0u8; 8][..], RecvFlags::DONTWAIT).map(|(_, bytes)| bytes);
        assert_eq!(woken, Ok(1), "what was written needed no other");
    }

    #[test]
    fn what_was_said_quietly_wakes_the_other_side_before_this_one_sleeps() {
        let ([mut ours, theirs], [here, there]) = two();
        let is_woken = || wait_for(&[(there.as_fd(), false)], Duration::ZERO);
        assert!(!theirs.arm(false));
        assert!(!ours.ready(&here, false, Duration::ZERO));
        assert!(!is_woken(), "there is nothing that it does not know");
        assert_eq!(ours.write(&here, &[IoSlice::new(b"x")], false), Moved::Bytes(1));
        assert!(!is_woken(), "quietly");
        assert!(!ours.ready(&here, false, Duration::ZERO));
        assert!(is_woken(), "both would sleep");
    }
}

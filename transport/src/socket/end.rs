//! A connected socket, never blocking.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::peer;
use pagelith_io::shm::{MapBound, Region, SharedMemory, SteadyWords, View};
use pagelith_io::system::SystemClock;
use pagelith_layouts::wire::Side;
use pagelith_layouts::wire::greeting::Feature;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv, retry_on_intr};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_nodelay};
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::rings::Rings;
use crate::closed::Closed;
use crate::limits::Limits;
use crate::shown::{REGIONS_MAX, Regions};
use crate::stream::{Moved, Stream};

/// How long a side polls its socket before it sleeps: what is on its way comes sooner than the kernel stops a core and starts it again
/// (decision 0032 has what gets reach with 0, 20 and 50 us).
const SPIN: Duration = Duration::from_micros(50);
/// What a socket maps of the other side's before it is known whose it is.
const NOTHING: MapBound = MapBound { all: 0, of_peer: 0, peer: 0 };

/// A socket of TCP or of this host.
pub struct Socket {
    fd: Arc<OwnedFd>,
    carries: Carries,
    /// This side's memory that the other is shown, where that is agreed.
    shows: Vec<Arc<Region>>,
    /// The process at the other end of a socket of this host, if this one can see it end.
    peer: Option<OwnedFd>,
    /// How much of a client's memory is mapped.
    bound: MapBound,
    /// Nothing came in the last wait: an idle socket is not polled each time that its thread looks after it.
    idle: bool,
}

/// What moves the bytes.
enum Carries {
    /// The socket.
    Bytes,
    /// The socket, until a client that has this memory hands it over, or a server takes it.
    BytesUntil(Option<SharedMemory>),
    /// Shared memory, once what is shown beside it has gone the other way too; this is what the other side handed over.
    RingsSoon(Rings, Vec<Arc<View>>),
    /// Shared memory, and what is shown beside it.
    Rings(Rings, Regions),
}

impl Socket {
    /// Take a socket of TCP that does not block: without Nagle's delay, kept alive.
    pub(super) fn tcp(socket: OwnedFd) -> Result<Socket, Closed> {
        set_tcp_nodelay(&socket, true).map_err(fault("setsockopt TCP_NODELAY"))?;
        set_socket_keepalive(&socket, true).map_err(fault("setsockopt SO_KEEPALIVE"))?;
        let (fd, carries) = (Arc::new(socket), Carries::Bytes);
        Ok(Socket { fd, carries, shows: Vec::new(), peer: None, bound: NOTHING, idle: false })
    }

    /// Take a socket of this host that does not block, if this user's process is at its other end, or root's. A
    /// client has `memory` to share, if it can.
    pub(super) fn unix(socket: OwnedFd, memory: Option<SharedMemory>) -> Result<Socket, Closed> {
        let user = user(&socket)?;
        if !is_let_in(user) {
            return Err(Closed::NotAuthentic { what: "the user" });
        }
        let (fd, carries) = (Arc::new(socket), Carries::BytesUntil(memory));
        Ok(Socket { fd, carries, shows: Vec::new(), peer: None, bound: NOTHING, idle: false })
    }

    /// The socket itself.
    pub(super) fn shared(&self) -> Arc<OwnedFd> {
        self.fd.clone()
    }

    /// The same, of who connected: it is noticed when that process has ended, if it can be seen from here, and its memory is mapped within
    /// the limits.
    pub(super) fn seeing_peer(self, limits: &Limits) -> Socket {
        let peer = peer::process(&self.fd);
        let (all, of_peer) = (limits.mapped_max, limits.mapped_of_peer_max);
        let bound = MapBound { all, of_peer, peer: peer::number(&self.fd).unwrap_or(0) };
        Socket { peer, bound, ..self }
    }

    /// Bytes of memory of the other side's that is not mapped, but read by calls.
    pub fn unmapped_bytes(&self) -> u64 {
        let unmapped = |regions: &Regions| {
            regions.theirs.iter().filter(|view| !view.is_mapped()).map(|view| view.len() as u64).sum()
        };
        if let Carries::Rings(_, regions) = &self.carries { unmapped(regions) } else { 0 }
    }

    /// Whether it would be noticed that the process at the other end has ended.
    pub(super) fn sees_peer(&self) -> bool {
        self.peer.is_some()
    }

    /// The same, which hands this memory over where that is agreed: [`REGIONS_MAX`] regions at most.
    pub(super) fn showing(self, shows: Vec<Arc<Region>>) -> Socket {
        Socket { shows, ..self }
    }

    /// Where a client says what is steady, with these features.
    fn steady(&mut self, rings: &Rings, side: Side, features: u64) -> Option<SteadyWords> {
        let agreed = Feature::Shown.bit() | Feature::Steady.bit();
        let words = (features & agreed == agreed).then(|| rings.steady(side))?;
        match side {
            Side::Client => Some(words),
            Side::Server => Some(words.watching(self.peer.take()?, self.fd.clone())),
        }
    }

    /// Whether the bytes go through memory that both sides have.
    pub fn is_shared_memory(&self) -> bool {
        matches!(self.carries, Carries::Rings(..))
    }

    /// Poll for [`SPIN`]; whether there is something to do.
    fn spin(&self, write: bool) -> bool {
        // By the clock of the kernel that has the socket: nothing of it is ever simulated.
        let clock = SystemClock::new();
        while clock.now().since(Mono::default()) < SPIN {
            if wait_for(&[(self.as_fd(), write)], Duration::ZERO) {
                return true;
            }
        }
        false
    }

    /// Before somebody waits at the descriptor: true if there is something to be done already.
    pub(super) fn arm(&self, write: bool) -> bool {
        match &self.carries {
            Carries::Rings(rings, _) => rings.arm(write),
            Carries::Bytes | Carries::BytesUntil(_) | Carries::RingsSoon(..) => false,
        }
    }
}

/// The user at the other end of a socket of this host.
pub(super) fn user(socket: &OwnedFd) -> Result<u32, Closed> {
    peer::user(socket).map_err(|e| Closed::System {
        operation: "getsockopt SO_PEERCRED",
        errno: e.raw_os_error().unwrap_or(0),
    })
}

/// Whether this user's processes are talked to: this process's own user, and root.
pub(super) fn is_let_in(user: u32) -> bool {
    user == rustix::process::geteuid().as_raw() || user == 0
}

/// The system failed an operation.
pub(super) fn fault(operation: &'static str) -> impl Fn(Errno) -> Closed {
    move |e| Closed::System { operation, errno: e.raw_os_error() }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Stream for Socket {
    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> Moved {
        if let Carries::Rings(rings, _) = &mut self.carries {
            return rings.read(&self.fd, parts);
        }
        match retry_on_intr(|| readv(&self.fd, parts)) {
            Ok(0) => Moved::Ended,
            other => moved("recv", other),
        }
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> Moved {
        if let Carries::Rings(rings, _) = &mut self.carries {
            return rings.write(&self.fd, parts, true);
        }
        // Not writev: a peer that is gone must be an error here, and no signal to the process.
        let (mut no_control, flags) = (SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
        moved("send", retry_on_intr(|| sendmsg(&self.fd, parts, &mut no_control, flags)))
    }

    fn write_quietly(&mut self, parts: &[IoSlice<'_>]) -> Moved {
        match &mut self.carries {
            Carries::Rings(rings, _) => rings.write(&self.fd, parts, false),
            Carries::Bytes | Carries::BytesUntil(_) | Carries::RingsSoon(..) => self.write(parts),
        }
    }

    fn nudge(&mut self) -> bool {
        match &mut self.carries {
            Carries::Rings(rings, _) => rings.nudge(&self.fd),
            Carries::Bytes | Carries::BytesUntil(_) | Carries::RingsSoon(..) => false,
        }
    }

    fn ready(&mut self, write: bool, timeout: Duration) -> bool {
        match &mut self.carries {
            Carries::Rings(rings, _) => rings.ready(&self.fd, write, timeout),
            Carries::Bytes | Carries::BytesUntil(_) | Carries::RingsSoon(..) => {
                let is_ready = !self.idle && self.spin(write) || wait_for(&[(self.as_fd(), write)], timeout);
                self.idle = !is_ready;
                is_ready
            }
        }
    }

    fn ready_to_write(&mut self, timeout: Duration) -> bool {
        match &mut self.carries {
            Carries::Rings(rings, _) => rings.ready_to_write(&self.fd, timeout),
            Carries::Bytes | Carries::BytesUntil(_) | Carries::RingsSoon(..) => {
                let mut socket = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::OUT)];
                let timeout = Timespec::try_from(timeout).ok();
                !matches!(poll(&mut socket, timeout.as_ref()), Ok(0) | Err(Errno::INTR))
            }
        }
    }

    fn goes_over(&self, features: u64) -> bool {
        matches!(self.carries, Carries::BytesUntil(_)) && features & Feature::SharedMemory.bit() != 0
    }

    fn go_over(&mut self, side: Side, features: u64) -> Result<bool, Closed> {
        let shows = features & Feature::Shown.bit() != 0;
        let own = if shows { std::mem::take(&mut self.shows) } else { Vec::new() };
        if let Carries::BytesUntil(memory) = &mut self.carries {
            let begun = match (side, memory.take()) {
                (Side::Server, _) => {
                    Rings::take_over(&self.fd, if shows { REGIONS_MAX } else { 0 }, &self.bound)?
                }
                (Side::Client, Some(made)) => match Rings::hand_over(&self.fd, made, &own)? {
                    Ok(rings) => Some((rings, Vec::new())),
                    Err(made) => {
                        *memory = Some(made);
                        None
                    }
                },
                (Side::Client, None) => return Err(Closed::broken("shared memory", "this side has none")),
            };
            if let Some((rings, theirs)) = begun {
                self.carries = Carries::RingsSoon(rings, theirs);
            }
        }
        let over = match &mut self.carries {
            Carries::RingsSoon(_, theirs) if shows => match side {
                Side::Server => Rings::show(&self.fd, &own)?,
                Side::Client => match Rings::take_shown(&self.fd)? {
                    Some(shown) => {
                        *theirs = shown;
                        true
                    }
                    None => false,
                },
            },
            Carries::RingsSoon(..) | Carries::Rings(..) | Carries::Bytes => true,
            Carries::BytesUntil(_) => false,
        };
        if !over {
            self.shows = own;
            return Ok(false);
        }
        self.carries = match std::mem::replace(&mut self.carries, Carries::Bytes) {
            Carries::RingsSoon(rings, theirs) => {
                let steady = self.steady(&rings, side, features);
                let regions = Regions { own, theirs, steady, catalog: None };
                let tells = shows && side == Side::Client && features & Feature::Catalog.bit() != 0;
                Carries::Rings(rings, if tells { regions.with_catalog() } else { regions })
            }
            other => other,
        };
        Ok(true)
    }

    fn is_there(&self) -> bool {
        let mut fds = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::RDHUP)];
        // What cannot be asked is not there.
        poll(&mut fds, Some(&Timespec::default())) == Ok(0)
    }

    fn regions(&self) -> Regions {
        match &self.carries {
            Carries::Rings(_, regions) => regions.clone(),
            Carries::Bytes | Carries::BytesUntil(_) | Carries::RingsSoon(..) => Regions::default(),
        }
    }
}

fn moved(operation: &'static str, result: Result<usize, Errno>) -> Moved {
    match result {
        Ok(bytes) => Moved::Bytes(bytes),
        Err(Errno::AGAIN) => Moved::Blocked,
        Err(Errno::CONNRESET | Errno::PIPE) => Moved::Ended,
        Err(e) => Moved::Failed { operation, errno: e.raw_os_error() },
    }
}

/// Wait until one of these can be read, or written where that is asked for, at most `timeout`; false if none can.
pub(super) fn wait_for(sockets: &[(BorrowedFd<'_>, bool)], timeout: Duration) -> bool {
    let flags = |write: &bool| if *write { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
    let mut fds: Vec<_> =
        sockets.iter().map(|(fd, write)| PollFd::from_borrowed_fd(*fd, flags(write))).collect();
    let timeout = Timespec::try_from(timeout).ok();
    // An interrupted wait is over too early at worst: whoever waits looks at the clock.
    !matches!(poll(&mut fds, timeout.as_ref()), Ok(0) | Err(Errno::INTR))
}

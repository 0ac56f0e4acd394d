//! A connected, non-blocking socket, and its move to shared memory.

use std::io::{IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::peer;
use pagelith_io::shm::{MapLimits, PeerMemory, SharedMemory, SharedRegion};
use pagelith_io::system::SystemClock;
use pagelith_layouts::wire::LinkRole;
use pagelith_layouts::wire::greeting::Feature;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, readv, retry_on_intr};
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_nodelay};
use rustix::net::{SendAncillaryBuffer, SendFlags, getpeername, sendmsg};

use super::rings::Rings;
use crate::conn::Conn;
use crate::limits::LinkLimits;
use crate::link_error::{LinkError, system_error};
use crate::pending::PendingHandshake;
use crate::poll::{wait_for, wait_for_any};
use crate::shown::{LinkRegions, REGIONS_MAX};
use crate::stream::{Awaited, Stream, StreamResult};

/// Time that an end polls its socket before it sleeps: bytes in flight arrive sooner than the
/// kernel puts a core to sleep and wakes it again (benches/results/link-waits.md has gets with 0,
/// 20 and 50 us).
const SPIN: Duration = Duration::from_micros(50);
/// Memory that a socket maps before its peer is identified: none.
const NOTHING: MapLimits = MapLimits { all: 0, of_peer: 0, peer: 0 };

/// A TCP or Unix socket.
pub struct Socket {
    fd: Arc<OwnedFd>,
    carrier: Carrier,
    /// Memory of this end that it hands over if that is agreed.
    shared_regions: Vec<Arc<SharedRegion>>,
    /// Bounds on the mapped memory of a client.
    bound: MapLimits,
    /// The last wait found nothing. An idle socket is not polled at each visit of its thread.
    idle: bool,
}

/// A link over a socket.
pub type SocketLink = Conn<Socket>;
/// A connection in its handshake.
pub type SocketPending = PendingHandshake<Socket>;

/// The transport of the bytes.
enum Carrier {
    /// The socket.
    Socket,
    /// The socket, until a client hands over this memory, or a server receives it.
    SocketUntilRings(Option<SharedMemory>),
    /// Rings, as soon as the server's regions are handed over too. Holds the peer's memory.
    RingsPending(Rings, Vec<Arc<PeerMemory>>),
    /// Rings in shared memory, and the regions of both ends.
    Rings(Rings, LinkRegions),
}

impl Socket {
    /// Wrap a non-blocking TCP socket: without Nagle's delay, with keepalive.
    pub(super) fn tcp(socket: OwnedFd) -> Result<Socket, LinkError> {
        set_tcp_nodelay(&socket, true).map_err(system_error("setsockopt TCP_NODELAY"))?;
        set_socket_keepalive(&socket, true).map_err(system_error("setsockopt SO_KEEPALIVE"))?;
        let (fd, carrier) = (Arc::new(socket), Carrier::Socket);
        Ok(Socket { fd, carrier, shared_regions: Vec::new(), bound: NOTHING, idle: false })
    }

    /// Wrap a non-blocking Unix socket, if its peer is a process of this user or of root. `memory`
    /// is a client's memory for the rings.
    pub(super) fn unix(socket: OwnedFd, memory: Option<SharedMemory>) -> Result<Socket, LinkError> {
        let user = peer_user(&socket)?;
        if !is_trusted(user) {
            return Err(LinkError::AuthenticationFailed { what: "the user" });
        }
        let (fd, carrier) = (Arc::new(socket), Carrier::SocketUntilRings(memory));
        Ok(Socket { fd, carrier, shared_regions: Vec::new(), bound: NOTHING, idle: false })
    }

    /// The descriptor of the socket.
    pub(super) fn shared(&self) -> Arc<OwnedFd> {
        self.fd.clone()
    }

    /// The same, which maps the memory of the process that connected within the limits.
    pub(super) fn mapping_within(self, limits: &LinkLimits) -> Socket {
        let (all, of_peer) = (limits.mapped_max, limits.mapped_of_peer_max);
        let bound = MapLimits { all, of_peer, peer: peer::number(&self.fd).unwrap_or(0) };
        Socket { bound, ..self }
    }

    /// Bytes of the peer's memory that are not mapped, but read by system calls.
    pub fn unmapped_bytes(&self) -> u64 {
        let unmapped = |regions: &LinkRegions| {
            regions
                .theirs
                .iter()
                .filter(|view| !view.is_mapped())
                .map(|view| view.len() as u64)
                .sum()
        };
        if let Carrier::Rings(_, regions) = &self.carrier { unmapped(regions) } else { 0 }
    }

    /// Hand this memory over if that is agreed: at most [`REGIONS_MAX`] regions.
    pub(super) fn sharing(self, shared_regions: Vec<Arc<SharedRegion>>) -> Socket {
        Socket { shared_regions, ..self }
    }

    /// Whether the bytes go through rings in shared memory.
    pub fn is_shared_memory(&self) -> bool {
        matches!(self.carrier, Carrier::Rings(..))
    }

    /// Poll the socket for at most [`SPIN`]; true if it is ready.
    fn spin(&self, write: bool) -> bool {
        // The system clock: a kernel socket is never simulated.
        let clock = SystemClock::new();
        while clock.now().since(Mono::default()) < SPIN {
            if wait_for(&[(self.as_fd(), write)], Duration::ZERO) {
                return true;
            }
        }
        false
    }

    /// Prepare a wait on the descriptor; true if there is work already.
    pub(super) fn arm(&self, write: bool) -> bool {
        match &self.carrier {
            Carrier::Rings(rings, _) => rings.arm(write),
            Carrier::Socket | Carrier::SocketUntilRings(_) | Carrier::RingsPending(..) => false,
        }
    }
}

/// The user at the other end of a Unix socket.
pub(super) fn peer_user(socket: &OwnedFd) -> Result<u32, LinkError> {
    peer::user(socket).map_err(|e| LinkError::SystemCall {
        operation: "getsockopt SO_PEERCRED",
        errno: e.raw_os_error().unwrap_or(0),
    })
}

/// Whether connections of this user are admitted: the user of this process, and root.
pub(super) fn is_trusted(user: u32) -> bool {
    user == rustix::process::geteuid().as_raw() || user == 0
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Stream for Socket {
    fn peer_ip(&self) -> Option<IpAddr> {
        let address = SocketAddr::try_from(getpeername(&self.fd).ok()??).ok()?;
        Some(address.ip().to_canonical())
    }

    fn read(&mut self, parts: &mut [IoSliceMut<'_>]) -> StreamResult {
        if let Carrier::Rings(rings, _) = &mut self.carrier {
            return rings.read(&self.fd, parts);
        }
        match retry_on_intr(|| readv(&self.fd, parts)) {
            Ok(0) => StreamResult::Ended,
            other => moved("recv", other),
        }
    }

    fn write(&mut self, parts: &[IoSlice<'_>]) -> StreamResult {
        if let Carrier::Rings(rings, _) = &mut self.carrier {
            return rings.write(&self.fd, parts, true);
        }
        // Not writev: a closed connection must be an error here, not a SIGPIPE.
        let (mut no_control, flags) = (SendAncillaryBuffer::default(), SendFlags::NOSIGNAL);
        moved("send", retry_on_intr(|| sendmsg(&self.fd, parts, &mut no_control, flags)))
    }

    fn write_without_wake(&mut self, parts: &[IoSlice<'_>]) -> StreamResult {
        match &mut self.carrier {
            Carrier::Rings(rings, _) => rings.write(&self.fd, parts, false),
            Carrier::Socket | Carrier::SocketUntilRings(_) | Carrier::RingsPending(..) => {
                self.write(parts)
            }
        }
    }

    fn wake_peer(&mut self) {
        if let Carrier::Rings(rings, _) = &mut self.carrier {
            rings.wake_peer(&self.fd);
        }
    }

    fn ready(&mut self, write: bool, timeout: Duration) -> bool {
        match &mut self.carrier {
            Carrier::Rings(rings, _) => rings.ready(&self.fd, write, timeout),
            Carrier::Socket | Carrier::SocketUntilRings(_) | Carrier::RingsPending(..) => {
                let is_ready =
                    !self.idle && self.spin(write) || wait_for(&[(self.as_fd(), write)], timeout);
                self.idle = !is_ready;
                is_ready
            }
        }
    }

    fn ready_to_write(&mut self, timeout: Duration) -> bool {
        match &mut self.carrier {
            Carrier::Rings(rings, _) => rings.ready_to_write(&self.fd, timeout),
            Carrier::Socket | Carrier::SocketUntilRings(_) | Carrier::RingsPending(..) => {
                let mut socket = [PollFd::from_borrowed_fd(self.fd.as_fd(), PollFlags::OUT)];
                let timeout = Timespec::try_from(timeout).ok();
                !matches!(poll(&mut socket, timeout.as_ref()), Ok(0) | Err(Errno::INTR))
            }
        }
    }

    fn ready_with(
        &mut self,
        awaited: Awaited,
        others: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> bool {
        let all = || {
            let others = others.iter().map(|fd| (*fd, Awaited::READ));
            std::iter::once((self.fd.as_fd(), awaited)).chain(others)
        };
        // As in `ready`: completions too come sooner than a core sleeps and wakes.
        let clock = SystemClock::new();
        let mut is_ready = false;
        while !is_ready && !self.idle && clock.now().since(Mono::default()) < SPIN {
            is_ready = wait_for_any(all(), Duration::ZERO);
        }
        let is_ready = is_ready || wait_for_any(all(), timeout);
        self.idle = !is_ready;
        is_ready
    }

    fn will_upgrade(&self, features: u64) -> bool {
        matches!(self.carrier, Carrier::SocketUntilRings(_))
            && features & Feature::SharedMemory.bit() != 0
    }

    fn upgrade_carrier(&mut self, side: LinkRole, features: u64) -> Result<bool, LinkError> {
        let by_ref = features & Feature::Shown.bit() != 0;
        let own = if by_ref { std::mem::take(&mut self.shared_regions) } else { Vec::new() };
        if let Carrier::SocketUntilRings(memory) = &mut self.carrier {
            let begun = match (side, memory.take()) {
                (LinkRole::Server, _) => Rings::receive_memory(
                    &self.fd,
                    if by_ref { REGIONS_MAX } else { 0 },
                    &self.bound,
                )?,
                (LinkRole::Client, Some(made)) => match Rings::send_memory(&self.fd, made, &own)? {
                    Ok(rings) => Some((rings, Vec::new())),
                    Err(made) => {
                        *memory = Some(made);
                        None
                    }
                },
                (LinkRole::Client, None) => {
                    return Err(LinkError::violation(
                        "shared memory of a server that this end did not request",
                    ));
                }
            };
            if let Some((rings, theirs)) = begun {
                self.carrier = Carrier::RingsPending(rings, theirs);
            }
        }
        let over = match &mut self.carrier {
            Carrier::RingsPending(_, theirs) if by_ref => match side {
                LinkRole::Server => Rings::send_regions(&self.fd, &own)?,
                LinkRole::Client => match Rings::receive_regions(&self.fd)? {
                    Some(received) => {
                        *theirs = received;
                        true
                    }
                    None => false,
                },
            },
            Carrier::RingsPending(..) | Carrier::Rings(..) | Carrier::Socket => true,
            Carrier::SocketUntilRings(_) => false,
        };
        if !over {
            self.shared_regions = own;
            return Ok(false);
        }
        self.carrier = match std::mem::replace(&mut self.carrier, Carrier::Socket) {
            Carrier::RingsPending(rings, theirs) => {
                Carrier::Rings(rings, LinkRegions { own, theirs })
            }
            other => other,
        };
        Ok(true)
    }

    fn regions(&self) -> LinkRegions {
        match &self.carrier {
            Carrier::Rings(_, regions) => regions.clone(),
            Carrier::Socket | Carrier::SocketUntilRings(_) | Carrier::RingsPending(..) => {
                LinkRegions::default()
            }
        }
    }
}

fn moved(operation: &'static str, result: Result<usize, Errno>) -> StreamResult {
    match result {
        Ok(bytes) => StreamResult::Bytes(bytes),
        Err(Errno::AGAIN) => StreamResult::Blocked,
        Err(Errno::CONNRESET | Errno::PIPE) => StreamResult::Ended,
        Err(e) => StreamResult::Failed { operation, errno: e.raw_os_error() },
    }
}

//! The server's end: accepting connections, and their handshakes.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::entropy::Entropy;
use pagelith_io::shm::SharedRegion;
use pagelith_layouts::wire::LinkRole;
use rustix::event::{EventfdFlags, eventfd};

use super::accept::{Accepted, Acceptor};
use super::connected::{Socket, SocketLink, SocketPending, is_trusted};
use super::handshake_thread::{HandshakeThread, HandshakeThreads, close_on_thread};
use super::listen_config::{ListenConfig, ListenError};
use super::pending_peers::{AdmissionResult, Handshaking, PendingPeers};
use super::source::ConnectionSource;
use crate::address::Address;
use crate::capability::Capabilities;
use crate::handshake::{ClientAuth, Handshake};
use crate::limits::LinkLimits;
use crate::link_error::LinkError;
use crate::link_permits::LinkPermits;
use crate::pending::{HandshakeProgress, PendingHandshake};
use crate::poll::wait_for_any;
use crate::rdma::host::RdmaHost;
use crate::rdma::rdma_use::RdmaUse;
use crate::resolve::Resolver;
use crate::rights::Namespaces;
use crate::stream::Awaited;

/// Maximum connections accepted in one poll.
const ACCEPTS_MAX: usize = 64;
/// The errno of accept if the peer closed the connection before.
const CONNABORTED: i32 = rustix::io::Errno::CONNABORTED.raw_os_error();
/// Threads per handshake slot: peers that block their threads occupy at most one thread of each
/// slot.
const THREADS_PER_HANDSHAKE: usize = 2;
/// Pause after a failed accept: the missing resource (a descriptor, memory, a thread) becomes free
/// when another connection ends.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Listening sockets, and the connections in their handshakes.
pub struct Listener {
    acceptor: Acceptor,
    address: Address,
    pending_peers: PendingPeers,
    /// The handshake threads of a Unix socket.
    threads: Option<HandshakeThreads>,
    permits: Arc<LinkPermits>,
    admission: ClientAuth,
    offer: Capabilities,
    entropy: Arc<dyn Entropy>,
    clock: Arc<dyn Clock>,
    limits: LinkLimits,
    shared_regions: Vec<Arc<SharedRegion>>,
    rdma: RdmaUse,
    /// No connection is accepted before this time.
    paused_until: Option<Mono>,
}

impl Listener {
    /// Listen.
    pub fn new(
        listen: &ListenConfig,
        offer: Capabilities,
        entropy: Arc<dyn Entropy>,
        clock: Arc<dyn Clock>,
        limits: LinkLimits,
    ) -> Result<Listener, ListenError> {
        Listener::with_resolver(&Resolver::default(), listen, offer, entropy, clock, limits)
    }

    /// As [`Listener::new`], with a resolver for an address with a host name.
    pub fn with_resolver(
        resolver: &Resolver,
        listen: &ListenConfig,
        offer: Capabilities,
        entropy: Arc<dyn Entropy>,
        clock: Arc<dyn Clock>,
        limits: LinkLimits,
    ) -> Result<Listener, ListenError> {
        let keyed = matches!(listen.admission, ClientAuth::Keys(_));
        let hosts = match &listen.address {
            Address::Tcp(endpoint) => {
                resolver.addresses(endpoint, limits.handshake).map_err(ListenError::Unresolved)?
            }
            Address::Unix(_) => Vec::new(),
        };
        let all_loopback = hosts.iter().all(|address| address.ip().is_loopback());
        match (all_loopback, listen.allow_remote, keyed) {
            (false, false, _) => return Err(ListenError::RemoteNotAllowed(listen.address.clone())),
            (_, true, false) => return Err(ListenError::NoKey(listen.address.clone())),
            _ => {}
        }
        let (acceptor, address) = Acceptor::new(&listen.address, &hosts)?;
        let threads = match &address {
            Address::Tcp(_) => None,
            Address::Unix(_) => Some(HandshakeThreads::new(
                eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| {
                    let (operation, address) = ("eventfd", address.clone());
                    ListenError::System { operation, address, errno: e.raw_os_error() }
                })?,
            )),
        };
        let offer = offer.at(&address, true);
        let admission = listen.admission.clone();
        Ok(Listener {
            acceptor,
            address,
            pending_peers: PendingPeers::new(limits, offer.versions),
            threads,
            permits: LinkPermits::new(limits.links_max),
            admission,
            offer,
            entropy,
            clock,
            limits,
            shared_regions: Vec::new(),
            rdma: RdmaUse::Off,
            paused_until: None,
        })
    }

    /// Share `regions` with clients of this host, at most
    /// [`REGIONS_MAX`](crate::shown::REGIONS_MAX): only with clients that may read every namespace,
    /// since they can read all of the memory.
    pub fn with_shared_regions(self, regions: Vec<Arc<SharedRegion>>) -> Listener {
        let shared_regions = if self.may_share() { regions } else { Vec::new() };
        Listener { shared_regions, ..self }
    }

    /// Offer RDMA to clients, over TCP. Peers learn neither addresses nor keys of memory of this
    /// end.
    pub fn with_rdma(self, host: Arc<RdmaHost>) -> Listener {
        let rdma = RdmaUse::Offered(host).at(&self.address);
        Listener { offer: rdma.offer(self.offer), rdma, ..self }
    }

    /// Whether all clients may read every namespace.
    fn may_share(&self) -> bool {
        match &self.admission {
            ClientAuth::Connection(rights) => rights.read && rights.namespaces == Namespaces::All,
            ClientAuth::Keys(_) => false,
        }
    }

    /// The address of the listener, with the port in use if none was given.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Bytes of memory held for each unauthenticated peer.
    pub fn held_bytes(&self) -> Vec<usize> {
        self.pending_peers.held_bytes()
    }

    /// Number of unauthenticated peers that have sent their greeting.
    pub fn greeted(&self) -> usize {
        self.pending_peers.greeted()
    }

    /// Number of open links.
    pub fn links(&self) -> usize {
        self.permits.in_use()
    }

    /// Accept connections, and advance handshakes, as far as possible now. Never waits.
    pub fn poll(&mut self, arrivals: &mut Vec<AdmissionResult>) {
        self.paused_until = self.paused_until.filter(|until| self.clock.now() < *until);
        if let Some(threads) = &self.threads {
            let _ = rustix::io::read(threads.wake(), &mut [0; 8]);
        }
        for _ in 0..ACCEPTS_MAX {
            if !self.accepts() {
                break;
            }
            match self.acceptor.accept() {
                Ok(Some(accepted)) => self.start_handshake(accepted, arrivals),
                Ok(None) => break,
                // The peer closed the connection before it was accepted, or this process has no
                // free descriptors. In the latter case connections stay in the accept queue for a
                // while.
                Err(why) => {
                    let gone =
                        matches!(why, LinkError::SystemCall { errno, .. } if errno == CONNABORTED);
                    self.paused_until = (!gone).then(|| self.clock.now().after(ACCEPT_PAUSE));
                    arrivals.push(AdmissionResult::Refused { peer: String::new(), why });
                    break;
                }
            }
        }
        self.pending_peers.poll(self.clock.now(), arrivals);
    }

    /// Whether connections are accepted now.
    fn accepts(&self) -> bool {
        let threads_max = THREADS_PER_HANDSHAKE * self.limits.unauthenticated_max;
        self.paused_until.is_none()
            && self.threads.as_ref().is_none_or(|threads| threads.count() < threads_max)
    }

    /// As `poll`, but first wait at most `timeout` until a socket is ready or a handshake times
    /// out.
    pub fn wait(&mut self, arrivals: &mut Vec<AdmissionResult>, timeout: Duration) {
        wait(Some(self), &[], &[], timeout);
        self.poll(arrivals);
    }

    /// Time until [`Listener::poll`] must be called even if nothing arrives.
    pub(super) fn due(&self) -> Option<Duration> {
        let now = self.clock.now();
        let pause = self.paused_until.map(|until| until.since(now));
        self.pending_peers.due(now).into_iter().chain(pause).min()
    }

    /// The sockets to wait for, and whether each must become writable too.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let accepting = self.accepts();
        let accepted = self.acceptor.sockets().filter(move |_| accepting);
        let wake = self.threads.iter().map(|threads| threads.wake().as_fd());
        accepted.chain(wake).map(|socket| (socket, false)).chain(self.pending_peers.sockets())
    }

    fn start_handshake(&mut self, accepted: Accepted, arrivals: &mut Vec<AdmissionResult>) {
        let Accepted { peer, source, socket } = accepted;
        let socket = match (source, &self.threads) {
            (ConnectionSource::User(user), Some(threads)) if !is_trusted(user) => {
                close_on_thread(socket, threads);
                Err(LinkError::AuthenticationFailed { what: "the user" })
            }
            (ConnectionSource::User(_), _) => {
                Socket::unix(socket, None).map(|socket| socket.mapping_within(&self.limits))
            }
            (ConnectionSource::Network(_), _) => Socket::tcp(socket),
        };
        let socket = match socket {
            Ok(socket) => socket,
            Err(why) => return arrivals.push(AdmissionResult::Refused { peer, why }),
        };
        self.pending_peers.make_room(source, arrivals);
        let pending = self.pending(socket, peer.clone());
        let Some(threads) = &self.threads else {
            // Bytes that have arrived already are processed before the connection can be evicted.
            return match pending.poll() {
                HandshakeProgress::Waiting(pending) => {
                    self.pending_peers.add(source, peer, Handshaking::Inline(Box::new(pending)))
                }
                HandshakeProgress::Ready(link) => arrivals.push(AdmissionResult::Link(link)),
                HandshakeProgress::Failed(why) => {
                    arrivals.push(AdmissionResult::Refused { peer, why })
                }
            };
        };
        match HandshakeThread::start(pending, threads, &*self.clock) {
            Ok(thread) => self.pending_peers.add(source, peer, Handshaking::Thread(thread)),
            Err(why) => {
                self.paused_until = Some(self.clock.now().after(ACCEPT_PAUSE));
                arrivals.push(AdmissionResult::Refused { peer, why });
            }
        }
    }

    fn pending(&self, socket: Socket, peer: String) -> SocketPending {
        let socket = socket.sharing(self.shared_regions.clone());
        let handshake = Handshake::server(self.offer, self.admission.clone(), &*self.entropy);
        let outside = (self.clock.clone(), self.limits);
        let handshake = handshake.with_permits(self.permits.clone());
        PendingHandshake::new(socket, peer, LinkRole::Server, self.offer, handshake, outside)
            .with_rdma(self.rdma.clone())
    }
}

/// Wait at most `timeout` until one of these must be polled; false if none must. `others` are
/// further descriptors that a server's thread waits for: a ring, an eventfd.
pub fn wait(
    listener: Option<&Listener>,
    links: &[&SocketLink],
    others: &[BorrowedFd<'_>],
    timeout: Duration,
) -> bool {
    // Without a short circuit: each link must announce that this end is about to sleep.
    let arm = |any, link: &&SocketLink| {
        any | link.arm_wakes() | link.stream().is_some_and(|s| s.arm(link.wants_write()))
    };
    if links.iter().fold(false, arm) {
        return true;
    }
    let open = links.iter().filter_map(|link| Some((link.stream()?.as_fd(), link.awaited())));
    let reading = |fd| (fd, Awaited::READ);
    let accepting = listener.into_iter().flat_map(Listener::sockets);
    let sockets = open
        .chain(accepting.map(|(fd, write)| (fd, Awaited::reading(write))))
        .chain(links.iter().flat_map(|link| link.wakes()).map(reading))
        .chain(others.iter().copied().map(reading));
    let due = links.iter().map(|link| link.due()).chain(listener.and_then(Listener::due)).min();
    let timeout = due.map_or(timeout, |due| due.min(timeout));
    wait_for_any(sockets, timeout) || due.is_some_and(|due| due <= timeout)
}

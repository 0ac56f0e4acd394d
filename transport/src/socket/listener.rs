//! A server's end: accepting, and the handshakes of peers that are not known yet.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::entropy::Entropy;
use pagelith_io::shm::Region;
use pagelith_layouts::wire::Side;
use pagelith_layouts::wire::greeting::Feature;
use rustix::event::{EventfdFlags, eventfd};

use super::accept::{Accepted, Acceptor};
use super::aside::{self, Aside, Helpers};
use super::end::is_let_in;
use super::source::Source;
use super::unknown::{Shaking, Unknown};
use super::{Socket, SocketLink, SocketPending, offered, wait};
use crate::address::Address;
use crate::capability::Offer;
use crate::closed::Closed;
use crate::handshake::{Admission, Handshake};
use crate::limits::Limits;
use crate::pending::{Pending, Progress};
use crate::places::Places;
use crate::resolve::Resolver;
use crate::rights::Namespaces;
use crate::shown::REGIONS_MAX;

/// Most connections accepted in one poll.
const ACCEPTS_MAX: usize = 64;
/// The errno of a peer that went away before it was accepted.
const CONNABORTED: i32 = rustix::io::Errno::CONNABORTED.raw_os_error();
/// Threads for handshakes, for each that may be under way: those that a peer keeps from ending are as many as that at most.
const HELPERS: usize = 2;
/// Pause after an accept that failed: what it lacks (a descriptor, memory, a thread) comes back when another connection ends.
const PAUSE: Duration = Duration::from_millis(200);

/// Where to listen, and for whom.
#[derive(Clone, Debug)]
pub struct Listen {
    /// The address; port 0 for any that is free. Of a host name, all addresses that it resolves to. A Unix socket's
    /// file is made, for its user alone, and goes with the listener; one that a process left behind that is gone is
    /// replaced.
    pub address: Address,
    /// How clients are known.
    pub admission: Admission,
    /// Take clients from other hosts too. They must be known by a key. Without it the address must be loopback.
    pub beyond_this_host: bool,
}

/// Why a listener was not made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListenError {
    /// The name of the host could not be resolved.
    #[error(transparent)]
    Unresolved(Closed),
    /// The address can be reached from other hosts, which was not asked for.
    #[error(
        "the address is not loopback: allow other hosts (--beyond-this-host, with keys) or listen at loopback address={0}"
    )]
    BeyondThisHost(Address),
    /// Clients of other hosts would not be known by a key.
    #[error("clients of other hosts must be known by a key address={0}")]
    NoKey(Address),
    /// The system failed it.
    #[error("{operation} failed: {} address={address} errno={errno}", std::io::Error::from_raw_os_error(*.errno))]
    System {
        /// Which operation.
        operation: &'static str,
        /// The address.
        address: Address,
        /// The kernel's errno.
        errno: i32,
    },
}

/// What came in.
pub enum Arrival {
    /// A client that is known.
    Link(Box<SocketLink>),
    /// One that was not let in, and why.
    Refused {
        /// Its address.
        peer: String,
        /// Why.
        why: Closed,
    },
}

/// A socket that listens, and the connections whose peers are not known yet.
pub struct Listener {
    acceptor: Acceptor,
    address: Address,
    unknown: Unknown,
    /// For connections of this host.
    helpers: Option<Helpers>,
    links: Arc<Places>,
    admission: Admission,
    offer: Offer,
    entropy: Arc<dyn Entropy>,
    clock: Arc<dyn Clock>,
    limits: Limits,
    shows: Vec<Arc<Region>>,
    catalog: Option<Arc<Region>>,
    /// Nothing is accepted until then.
    paused_until: Option<Mono>,
}

impl Listener {
    /// Listen.
    pub fn new(
        listen: &Listen,
        offer: Offer,
        entropy: Arc<dyn Entropy>,
        clock: Arc<dyn Clock>,
        limits: Limits,
    ) -> Result<Listener, ListenError> {
        Listener::resolved_by(&Resolver::default(), listen, offer, entropy, clock, limits)
    }

    /// As [`Listener::new`], at an address that `resolver` resolves if it is by name.
    pub fn resolved_by(
        resolver: &Resolver,
        listen: &Listen,
        offer: Offer,
        entropy: Arc<dyn Entropy>,
        clock: Arc<dyn Clock>,
        limits: Limits,
    ) -> Result<Listener, ListenError> {
        let keyed = matches!(listen.admission, Admission::Keys(_));
        let hosts = match &listen.address {
            Address::Tcp(endpoint) => {
                resolver.addresses(endpoint, limits.handshake).map_err(ListenError::Unresolved)?
            }
            Address::Unix(_) => Vec::new(),
        };
        let within_host = hosts.iter().all(|address| address.ip().is_loopback());
        match (within_host, listen.beyond_this_host, keyed) {
            (false, false, _) => return Err(ListenError::BeyondThisHost(listen.address.clone())),
            (_, true, false) => return Err(ListenError::NoKey(listen.address.clone())),
            _ => {}
        }
        let (acceptor, address) = Acceptor::new(&listen.address, &hosts)?;
        let helpers = match &address {
            Address::Tcp(_) => None,
            Address::Unix(_) => Some(Helpers::new(
                eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|e| {
                    let (operation, address) = ("eventfd", address.clone());
                    ListenError::System { operation, address, errno: e.raw_os_error() }
                })?,
            )),
        };
        let offer = offered(offer, &address, true);
        let admission = listen.admission.clone();
        Ok(Listener {
            acceptor,
            address,
            unknown: Unknown::new(limits, offer.versions),
            helpers,
            links: Places::new(limits.links_max),
            admission,
            offer,
            entropy,
            clock,
            limits,
            shows: Vec::new(),
            catalog: None,
            paused_until: None,
        })
    }

    /// Show clients of this host what lies in `regions` ([`REGIONS_MAX`](crate::shown::REGIONS_MAX) at most): to those who may
    /// read every namespace, since they can look at all of it.
    pub fn showing(self, regions: Vec<Arc<Region>>) -> Listener {
        let shows = if self.shows_all() { regions } else { Vec::new() };
        Listener { shows, ..self }
    }

    /// Show them `catalog` too, which tells what lies where in the first region ([`Listener::showing`]).
    pub fn telling(self, catalog: Option<Arc<Region>>) -> Listener {
        let room = (1..REGIONS_MAX).contains(&self.shows.len());
        Listener { catalog: catalog.filter(|_| room), ..self }
    }

    fn shows_all(&self) -> bool {
        match &self.admission {
            Admission::Connection(rights) => rights.read && rights.namespaces == Namespaces::All,
            Admission::Keys(_) => false,
        }
    }

    /// Where it listens: the port that was found, if none was said.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Bytes that are held for each peer that is not known yet.
    pub fn held_bytes(&self) -> Vec<usize> {
        self.unknown.held_bytes()
    }

    /// Peers that are not known yet and have greeted.
    pub fn greeted(&self) -> usize {
        self.unknown.greeted()
    }

    /// Links of it that there are now.
    pub fn links(&self) -> usize {
        self.links.taken()
    }

    /// Accept, and go on with handshakes, as far as it goes now. Never waits.
    pub fn poll(&mut self, arrivals: &mut Vec<Arrival>) {
        self.paused_until = self.paused_until.filter(|until| self.clock.now() < *until);
        if let Some(helpers) = &self.helpers {
            let _ = rustix::io::read(helpers.wake(), &mut [0; 8]);
        }
        for _ in 0..ACCEPTS_MAX {
            if !self.accepts() {
                break;
            }
            match self.acceptor.accept() {
                Ok(Some(accepted)) => self.begin(accepted, arrivals),
                Ok(None) => break,
                // The peer went away before it was accepted, or this process is out of descriptors: whoever polls sees it, and then
                // the connections that wait go on waiting.
                Err(why) => {
                    let gone = matches!(why, Closed::System { errno, .. } if errno == CONNABORTED);
                    self.paused_until = (!gone).then(|| self.clock.now().after(PAUSE));
                    arrivals.push(Arrival::Refused { peer: String::new(), why });
                    break;
                }
            }
        }
        self.unknown.poll(self.clock.now(), arrivals);
    }

    /// Whether connections are accepted now.
    fn accepts(&self) -> bool {
        let most = HELPERS * self.limits.unknown_max;
        self.paused_until.is_none() && self.helpers.as_ref().is_none_or(|helpers| helpers.count() < most)
    }

    /// As `poll`, but wait until something came in or a handshake has taken too long, at most `timeout`.
    pub fn wait(&mut self, arrivals: &mut Vec<Arrival>, timeout: Duration) {
        wait(Some(self), &[], &[], timeout);
        self.poll(arrivals);
    }

    /// How long until [`Listener::poll`] must be called though nothing arrived.
    pub(super) fn due(&self) -> Option<Duration> {
        let now = self.clock.now();
        let pause = self.paused_until.map(|until| until.since(now));
        self.unknown.due(now).into_iter().chain(pause).min()
    }

    /// What to wait for: sockets, and whether bytes wait to be written to them.
    pub(super) fn sockets(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        let accepting = self.accepts();
        let accepted = self.acceptor.sockets().filter(move |_| accepting);
        let wake = self.helpers.iter().map(|helpers| helpers.wake().as_fd());
        accepted.chain(wake).map(|socket| (socket, false)).chain(self.unknown.sockets())
    }

    fn begin(&mut self, accepted: Accepted, arrivals: &mut Vec<Arrival>) {
        let Accepted { peer, source, socket } = accepted;
        let socket = match (source, &self.helpers) {
            (Source::User(user), Some(helpers)) if !is_let_in(user) => {
                aside::let_go(socket, helpers);
                Err(Closed::NotAuthentic { what: "the user" })
            }
            (Source::User(_), _) => Socket::unix(socket, None).map(|socket| socket.seeing_peer(&self.limits)),
            (Source::Network(_), _) => Socket::tcp(socket),
        };
        let socket = match socket {
            Ok(socket) => socket,
            Err(why) => return arrivals.push(Arrival::Refused { peer, why }),
        };
        self.unknown.make_room(source, arrivals);
        let pending = self.pending(socket, peer.clone());
        let Some(helpers) = &self.helpers else {
            // What it said already is answered before it may have to make room for others.
            return match pending.poll() {
                Progress::Waiting(pending) => {
                    self.unknown.add(source, peer, Shaking::Here(Box::new(pending)))
                }
                Progress::Ready(link) => arrivals.push(Arrival::Link(link)),
                Progress::Over(why) => arrivals.push(Arrival::Refused { peer, why }),
            };
        };
        match Aside::begin(pending, helpers, &*self.clock) {
            Ok(aside) => self.unknown.add(source, peer, Shaking::Aside(aside)),
            Err(why) => {
                self.paused_until = Some(self.clock.now().after(PAUSE));
                arrivals.push(Arrival::Refused { peer, why });
            }
        }
    }

    fn pending(&self, socket: Socket, peer: String) -> SocketPending {
        let shows = self.shows.iter().chain(&self.catalog).cloned().collect();
        let socket = socket.showing(shows);
        // Nobody's word is taken who may be gone.
        let offer = if socket.sees_peer() { self.offer } else { self.offer.without(Feature::Steady) };
        let offer = if self.catalog.is_some() { offer } else { offer.without(Feature::Catalog) };
        let handshake = Handshake::server(offer, self.admission.clone(), &*self.entropy);
        let outside = (self.clock.clone(), self.limits);
        let handshake = handshake.taking_places(self.links.clone());
        Pending::new(socket, peer, Side::Server, offer, handshake, outside)
    }
}

//! Establishing links from the client's end, without blocking.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::{Clock, Mono};
use pagelith_io::entropy::Entropy;
use pagelith_io::system::SystemEntropy;

use crate::address::{Address, Endpoint};
use crate::auth::Key;
use crate::capability::Capabilities;
use crate::limits::LinkLimits;
use crate::link::Link;
use crate::link_error::LinkError;
use crate::pending::HandshakeProgress;
use crate::rdma::rdma_use::RdmaUse;
use crate::resolve::{NameLookup, Resolver};
use crate::shown::SharedRegions;
use crate::socket::{Socket, SocketPending, connect};

/// Establishes links to one peer.
pub trait Dial: Send + Sync {
    /// Begin to establish a link. Never waits.
    fn begin(&self) -> Result<Box<dyn Dialing>, LinkError>;
}

/// A link that is being established.
pub trait Dialing: Send {
    /// Advance as far as possible now. Never waits.
    fn poll(self: Box<Self>) -> DialProgress;
    /// As `poll`, but wait until there is progress or `timeout` passed.
    fn wait(self: Box<Self>, timeout: Duration) -> DialProgress;
}

/// Progress of a [`Dialing`].
pub enum DialProgress {
    /// More bytes must arrive.
    Waiting(Box<dyn Dialing>),
    /// The established link.
    Ready(Box<dyn Link>),
    /// The link could not be established.
    Failed(LinkError),
}

/// Establishes links over sockets.
#[derive(Clone)]
pub struct SocketDial {
    /// The peer.
    pub address: Address,
    /// The capabilities that this end offers.
    pub offer: Capabilities,
    /// The key for authentication, if the peer requires one.
    pub key: Option<Key>,
    /// Source of nonces.
    pub entropy: Arc<dyn Entropy>,
    /// Clock for deadlines.
    pub clock: Arc<dyn Clock>,
    /// Bounds of the link.
    pub limits: LinkLimits,
    /// Memory of this process that a peer on this host may read.
    pub shared_regions: SharedRegions,
    /// Resolves the address if it has a host name.
    pub resolver: Resolver,
    /// The use of RDMA. Over a Unix socket there is none.
    pub rdma: RdmaUse,
    /// The name of this host, for the peer's log.
    pub local_hostname: Option<String>,
}

impl SocketDial {
    /// For the peer at `address`, authenticated by `key`, with the system's entropy. A process
    /// makes the same `offer` on all of its links.
    pub fn new(
        address: Address,
        key: Option<Key>,
        offer: Capabilities,
        clock: Arc<dyn Clock>,
    ) -> SocketDial {
        let limits = LinkLimits::default();
        let entropy = Arc::new(SystemEntropy);
        let (shared_regions, resolver) = (SharedRegions::default(), Resolver::default());
        SocketDial {
            address,
            offer,
            key,
            entropy,
            clock,
            limits,
            shared_regions,
            resolver,
            rdma: RdmaUse::Off,
            local_hostname: None,
        }
    }

    /// Begin to connect to an address that has no host name.
    fn connect(&self, to: &Address, limits: LinkLimits) -> Result<SocketPending, LinkError> {
        let (key, clock) = (self.key.clone(), self.clock.clone());
        let (rdma, regions) = (self.rdma.at(to), self.shared_regions.regions());
        let offer = rdma.offer(self.offer);
        let (host, outside) = (self.local_hostname.as_deref(), (clock, limits));
        let pending = connect(to, offer, key, host, &*self.entropy, outside, &regions)?;
        Ok(pending.with_rdma(rdma))
    }
}

impl Dial for SocketDial {
    fn begin(&self) -> Result<Box<dyn Dialing>, LinkError> {
        match &self.address {
            Address::Tcp(Endpoint::Name { host, port }) => {
                Ok(Box::new(NameDial::begin(self.clone(), host, *port)?))
            }
            address => Ok(Box::new(self.connect(address, self.limits)?)),
        }
    }
}

impl Dialing for SocketPending {
    fn poll(self: Box<Self>) -> DialProgress {
        dialled((*self).poll())
    }

    fn wait(self: Box<Self>, timeout: Duration) -> DialProgress {
        dialled((*self).wait(timeout))
    }
}

fn dialled(progress: HandshakeProgress<Socket>) -> DialProgress {
    match progress {
        HandshakeProgress::Waiting(pending) => DialProgress::Waiting(Box::new(pending)),
        HandshakeProgress::Ready(link) => DialProgress::Ready(link),
        HandshakeProgress::Failed(why) => DialProgress::Failed(why),
    }
}

/// A link to a host name that is being established: the name is resolved, and its addresses are
/// tried one after the other.
///
/// All tries together take at most [`LinkLimits::handshake`]. Each address gets an equal share of
/// the time that is left when it is tried.
struct NameDial {
    dial: SocketDial,
    deadline: Mono,
    lookup: Arc<NameLookup>,
    /// The connection to the current address; `None` while the name is being resolved.
    pending: Option<Box<SocketPending>>,
    /// Addresses not tried yet.
    rest: VecDeque<SocketAddr>,
}

impl NameDial {
    /// Begin. Never waits.
    fn begin(dial: SocketDial, host: &str, port: u16) -> Result<NameDial, LinkError> {
        let deadline = dial.clock.now().after(dial.limits.handshake);
        let lookup = dial.resolver.begin(host, port)?;
        Ok(NameDial { dial, deadline, lookup, pending: None, rest: VecDeque::new() })
    }

    fn left(&self) -> Duration {
        self.deadline.since(self.dial.clock.now())
    }

    /// Begin to connect to the next address.
    fn connect(&mut self) -> Result<SocketPending, LinkError> {
        loop {
            let Some(address) = self.rest.pop_front() else { return Err(LinkError::Disconnected) };
            let tries = u32::try_from(self.rest.len()).unwrap_or(u32::MAX).saturating_add(1);
            let limits = LinkLimits { handshake: self.left() / tries, ..self.dial.limits };
            match self.dial.connect(&Address::from(address), limits) {
                Err(_) if !self.rest.is_empty() => {}
                begun => return begun,
            }
        }
    }

    /// Advance as far as possible, after a wait of at most `timeout`.
    fn advance(mut self: Box<Self>, timeout: Duration) -> DialProgress {
        let polled = self.pending.take().map(|pending| match timeout.is_zero() {
            true => (*pending).poll(),
            false => (*pending).wait(timeout),
        });
        let mut progress = match polled {
            Some(progress) => progress,
            None => {
                let left = self.left();
                match self.lookup.found(timeout.min(left)) {
                    None if left.is_zero() => {
                        return DialProgress::Failed(
                            self.lookup.timed_out(self.dial.limits.handshake),
                        );
                    }
                    None => return DialProgress::Waiting(self),
                    Some(Err(why)) => return DialProgress::Failed(why),
                    Some(Ok(addresses)) => self.rest = addresses.into(),
                }
                match self.connect() {
                    Ok(pending) => pending.poll(),
                    Err(why) => return DialProgress::Failed(why),
                }
            }
        };
        loop {
            match progress {
                HandshakeProgress::Waiting(pending) => {
                    self.pending = Some(Box::new(pending));
                    return DialProgress::Waiting(self);
                }
                HandshakeProgress::Ready(link) => return DialProgress::Ready(link),
                // A store responded at this address, so another address does not help.
                HandshakeProgress::Failed(why) if !why.retryable() || self.rest.is_empty() => {
                    return DialProgress::Failed(why);
                }
                HandshakeProgress::Failed(_) => match self.connect() {
                    Ok(pending) => progress = pending.poll(),
                    Err(why) => return DialProgress::Failed(why),
                },
            }
        }
    }
}

impl Dialing for NameDial {
    fn poll(self: Box<Self>) -> DialProgress {
        self.advance(Duration::ZERO)
    }

    fn wait(self: Box<Self>, timeout: Duration) -> DialProgress {
        self.advance(timeout)
    }
}

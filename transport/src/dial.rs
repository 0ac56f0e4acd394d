//! Establishing links from the client's end, without blocking.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::entropy::Entropy;
use pagelith_io::system::SystemEntropy;

use crate::address::{Address, Endpoint};
use crate::auth::Key;
use crate::capability::Offer;
use crate::closed::Closed;
use crate::dial_name::NameDial;
use crate::limits::Limits;
use crate::link::Link;
use crate::pending::Progress;
use crate::resolve::Resolver;
use crate::shown::SharedRegions;
use crate::socket::{Socket, SocketPending, connect};

/// Establishes links to one peer.
pub trait Dial: Send + Sync {
    /// Begin to establish a link. Never waits.
    fn begin(&self) -> Result<Box<dyn Dialing>, Closed>;
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
    Over(Closed),
}

/// Establishes links over sockets.
#[derive(Clone)]
pub struct SocketDial {
    /// The peer.
    pub address: Address,
    /// The capabilities that this end offers.
    pub offer: Offer,
    /// The key for authentication, if the peer requires one.
    pub key: Option<Key>,
    /// Source of nonces.
    pub entropy: Arc<dyn Entropy>,
    /// Clock for deadlines.
    pub clock: Arc<dyn Clock>,
    /// Bounds of the link.
    pub limits: Limits,
    /// Memory of this process that a peer on this host may read.
    pub shows: SharedRegions,
    /// Resolves the address if it has a host name.
    pub resolver: Resolver,
}

impl SocketDial {
    /// For the peer at `address`, authenticated by `key`, with the system's entropy. A process
    /// makes the same `offer` on all of its links.
    pub fn new(
        address: Address,
        key: Option<Key>,
        offer: Offer,
        clock: Arc<dyn Clock>,
    ) -> SocketDial {
        let limits = Limits::default();
        let entropy = Arc::new(SystemEntropy);
        let (shows, resolver) = (SharedRegions::default(), Resolver::default());
        SocketDial { address, offer, key, entropy, clock, limits, shows, resolver }
    }

    /// Begin to connect to an address that has no host name.
    pub(crate) fn connect(&self, to: &Address, limits: Limits) -> Result<SocketPending, Closed> {
        let (key, clock) = (self.key.clone(), self.clock.clone());
        connect(to, self.offer, key, &*self.entropy, clock, limits, &self.shows.regions())
    }
}

impl Dial for SocketDial {
    fn begin(&self) -> Result<Box<dyn Dialing>, Closed> {
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

fn dialled(progress: Progress<Socket>) -> DialProgress {
    match progress {
        Progress::Waiting(pending) => DialProgress::Waiting(Box::new(pending)),
        Progress::Ready(link) => DialProgress::Ready(link),
        Progress::Over(why) => DialProgress::Over(why),
    }
}

//! How a client reaches a peer: whatever carries the link, it begins, goes on without waiting, and ends.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::entropy::Entropy;
use pagelith_io::system::SystemEntropy;

use crate::address::{Address, Endpoint};
use crate::auth::Key;
use crate::by_name::ByName;
use crate::capability::Offer;
use crate::closed::Closed;
use crate::limits::Limits;
use crate::link::Link;
use crate::pending::Progress;
use crate::resolve::Resolver;
use crate::shown::Shows;
use crate::socket::{Socket, SocketPending, connect};

/// Makes links to one peer.
pub trait Dial: Send + Sync {
    /// Begin to make a link. Never waits.
    fn begin(&self) -> Result<Box<dyn Dialing>, Closed>;
}

/// A link on its way.
pub trait Dialing: Send {
    /// Go on as far as it goes now. Never waits.
    fn poll(self: Box<Self>) -> Dialled;
    /// As `poll`, but wait until there is progress or `timeout` passed.
    fn wait(self: Box<Self>, timeout: Duration) -> Dialled;
}

/// How far it is.
pub enum Dialled {
    /// More must arrive.
    Waiting(Box<dyn Dialing>),
    /// Here it is.
    Ready(Box<dyn Link>),
    /// There will be none.
    Over(Closed),
}

/// Links over sockets.
#[derive(Clone)]
pub struct SocketDial {
    /// The peer.
    pub address: Address,
    /// What this side says of itself.
    pub offer: Offer,
    /// What it is known by, where the peer demands it.
    pub key: Option<Key>,
    /// For nonces.
    pub entropy: Arc<dyn Entropy>,
    /// For deadlines.
    pub clock: Arc<dyn Clock>,
    /// Bounds of the link.
    pub limits: Limits,
    /// Memory of this process that the peer may look at, where it is one of this host.
    pub shows: Shows,
    /// For the address, where it is by name.
    pub resolver: Resolver,
}

impl SocketDial {
    /// To the peer at `address`, which knows this process by `key`, with the system's randomness. `offer` is what this
    /// process says of itself on all of its links.
    pub fn new(address: Address, key: Option<Key>, offer: Offer, clock: Arc<dyn Clock>) -> SocketDial {
        let limits = Limits::default();
        let entropy = Arc::new(SystemEntropy);
        let (shows, resolver) = (Shows::default(), Resolver::default());
        SocketDial { address, offer, key, entropy, clock, limits, shows, resolver }
    }

    /// Begin to connect to this address, which is by no name.
    pub(crate) fn connect(&self, to: &Address, limits: Limits) -> Result<SocketPending, Closed> {
        let (key, clock) = (self.key.clone(), self.clock.clone());
        connect(to, self.offer, key, &*self.entropy, clock, limits, &self.shows.regions())
    }
}

impl Dial for SocketDial {
    fn begin(&self) -> Result<Box<dyn Dialing>, Closed> {
        match &self.address {
            Address::Tcp(Endpoint::Name { host, port }) => {
                Ok(Box::new(ByName::begin(self.clone(), host, *port)?))
            }
            address => Ok(Box::new(self.connect(address, self.limits)?)),
        }
    }
}

impl Dialing for SocketPending {
    fn poll(self: Box<Self>) -> Dialled {
        dialled((*self).poll())
    }

    fn wait(self: Box<Self>, timeout: Duration) -> Dialled {
        dialled((*self).wait(timeout))
    }
}

fn dialled(progress: Progress<Socket>) -> Dialled {
    match progress {
        Progress::Waiting(pending) => Dialled::Waiting(Box::new(pending)),
        Progress::Ready(link) => Dialled::Ready(link),
        Progress::Over(why) => Dialled::Over(why),
    }
}

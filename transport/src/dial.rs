//! How a client reaches a peer: whatever carries the link, it begins, goes on without waiting, and ends.

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::entropy::Entropy;
use pagelith_io::system::SystemEntropy;

use crate::address::Address;
use crate::auth::Key;
use crate::capability::Offer;
use crate::closed::Closed;
use crate::limits::Limits;
use crate::link::Link;
use crate::pending::Progress;
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
}

impl SocketDial {
    /// To the peer at `address`, which knows this process by `key`, with the system's randomness. `offer` is what this
    /// process says of itself on all of its links.
    pub fn new(address: Address, key: Option<Key>, offer: Offer, clock: Arc<dyn Clock>) -> SocketDial {
        let limits = Limits::default();
        let entropy = Arc::new(SystemEntropy);
        SocketDial { address, offer, key, entropy, clock, limits, shows: Shows::default() }
    }
}

impl Dial for SocketDial {
    fn begin(&self) -> Result<Box<dyn Dialing>, Closed> {
        let clock = self.clock.clone();
        Ok(Box::new(connect(
            &self.address,
            self.offer,
            self.key.clone(),
            &*self.entropy,
            clock,
            self.limits,
            &self.shows.regions(),
        )?))
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

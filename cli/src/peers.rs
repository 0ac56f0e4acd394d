//! Where other stores are, and how they are reached.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use pagelith::attach::Attached;
use pagelith::io::entropy::Entropy;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::remote::Peer;
use pagelith::transport::address::Address;
use pagelith::transport::auth::Key;
use pagelith::transport::capability::Offer;
use pagelith::transport::dial::SocketDial;

/// What this process says of itself on every link.
pub(crate) fn offer() -> Offer {
    Offer::of_this_build(SystemEntropy.bytes16())
}

/// Longest that a call to another process's store may take: as a store's own default.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Which store processes are behind this store.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PeerFlags {
    /// A store process whose store is a tier behind this one's, as `pagelith serve` printed it; again for each further. What is put here goes
    /// to the one that owns its page
    #[arg(long, value_name = "tcp:HOST:PORT|unix:PATH")]
    pub(crate) remote: Vec<Address>,
    /// One of --remote that everything goes to instead, as long as it can be reached, and that is asked before whoever owns a page
    #[arg(long, value_name = "tcp:HOST:PORT|unix:PATH", requires = "remote")]
    prefer: Option<Address>,
}

impl PeerFlags {
    /// Peers of equal weight, named by their addresses; all of them know this process by `key`.
    pub(crate) fn peers(&self, key: Option<&Key>) -> anyhow::Result<Vec<Peer>> {
        let (offer, clock) = (offer(), Arc::new(SystemClock::new()));
        let peer = |address: &Address| {
            let dial = SocketDial::new(address.clone(), key.cloned(), offer, clock.clone());
            let preferred = self.prefer.as_ref() == Some(address);
            Peer { name: address.to_string(), weight: 1.0, preferred, dial: Arc::new(dial) }
        };
        if let Some(prefer) = self.prefer.as_ref().filter(|prefer| !self.remote.contains(prefer)) {
            bail!("--prefer {prefer} is not one of --remote");
        }
        Ok(self.remote.iter().map(peer).collect())
    }
}

/// The store of the process at `address`, which knows this one by `key`.
pub(crate) fn attach(address: &Address, key: Option<&Key>) -> anyhow::Result<Attached> {
    Attached::to(address, key, TIMEOUT).with_context(|| format!("address={address}"))
}

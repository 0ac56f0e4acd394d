//! Where other stores are, and how they are reached.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
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

/// Peers of equal weight, named by their addresses; all of them know this process by `key`.
pub(crate) fn of(addresses: &[Address], key: Option<&Key>) -> Vec<Peer> {
    let (offer, clock) = (offer(), Arc::new(SystemClock::new()));
    let peer = |address: &Address| {
        let dial = SocketDial::new(address.clone(), key.cloned(), offer, clock.clone());
        Peer { name: address.to_string(), weight: 1.0, dial: Arc::new(dial) }
    };
    addresses.iter().map(peer).collect()
}

/// The store of the process at `address`, which knows this one by `key`.
pub(crate) fn attach(address: &Address, key: Option<&Key>) -> anyhow::Result<Attached> {
    Attached::to(address, key, TIMEOUT).with_context(|| format!("address={address}"))
}

//! Where other stores are, and how they are reached.

use std::sync::Arc;

use pagelith::io::entropy::Entropy;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::remote::Peer;
use pagelith::transport::address::Address;
use pagelith::transport::auth::Key;
use pagelith::transport::capability::Offer;
use pagelith::transport::dial::SocketDial;
use pagelith::transport::limits::Limits;

/// What this process says of itself on every link.
pub(crate) fn offer() -> Offer {
    Offer::of_this_build(SystemEntropy.bytes16())
}

/// Peers of equal weight, named by their addresses; all of them know this process by `key`.
pub(crate) fn of(addresses: &[Address], key: Option<&Key>) -> Vec<Peer> {
    let offer = offer();
    let clock = Arc::new(SystemClock::new());
    let peer = |address: &Address| {
        let dial = SocketDial {
            address: address.clone(),
            offer,
            key: key.cloned(),
            entropy: Arc::new(SystemEntropy),
            clock: clock.clone(),
            limits: Limits::default(),
        };
        Peer { name: address.to_string(), weight: 1.0, dial: Arc::new(dial) }
    };
    addresses.iter().map(peer).collect()
}

//! Where other stores are, and how they are reached.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;

use pagelith::io::entropy::Entropy;
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::remote::Peer;
use pagelith::transport::auth::Key;
use pagelith::transport::capability::Offer;
use pagelith::transport::dial::TcpDial;
use pagelith::transport::limits::Limits;

/// Where a store process listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address(pub(crate) SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        let address = text.strip_prefix("tcp:").ok_or("an address begins with tcp:")?;
        address
            .parse()
            .map(Address)
            .map_err(|_| "tcp: is followed by an IP address, a colon and a port".into())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tcp:{}", self.0)
    }
}

/// What this process says of itself on every link.
pub(crate) fn offer() -> Offer {
    Offer::of_this_build(SystemEntropy.bytes16())
}

/// Peers of equal weight, named by their addresses; all of them know this process by `key`.
pub(crate) fn of(addresses: &[Address], key: Option<&Key>) -> Vec<Peer> {
    let offer = offer();
    let clock = Arc::new(SystemClock::new());
    let peer = |address: &Address| {
        let dial = TcpDial {
            address: address.0,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_as_it_prints_and_nothing_else_is_one() {
        for text in ["tcp:127.0.0.1:7411", "tcp:[::1]:1"] {
            assert_eq!(text.parse::<Address>().map(|a| a.to_string()), Ok(text.to_owned()));
        }
        for text in ["127.0.0.1:7411", "tcp:", "tcp:localhost:1", "tcp:127.0.0.1", "udp:127.0.0.1:1"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}

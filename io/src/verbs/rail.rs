//! Checks between the two ends of a rail, before they connect.

use std::fmt;

use super::error::{Result, VerbsError};
use super::port::{LinkLayer, Mtu, Port};

/// An end of a rail.
#[derive(Clone, Copy, Debug)]
pub struct RailEnd<'a> {
    /// The host.
    pub host: &'a str,
    /// Its port.
    pub port: &'a Port,
}

impl fmt::Display for RailEnd<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.host, self.port)
    }
}

/// The path MTU of a rail: the smaller one of its ends. Both ports must be active and have the same
/// link layer; the error names both ends.
pub fn path_mtu(own: RailEnd<'_>, peer: RailEnd<'_>) -> Result<Mtu> {
    let refused = |reason, remedy| {
        let (own, peer) = (own.to_string(), peer.to_string());
        Err(VerbsError::RailRefused { reason, remedy, own, peer })
    };
    let [own_layer, peer_layer] = [own, peer].map(|end| end.port.link_layer);
    let is_unknown = |layer| matches!(layer, LinkLayer::Other(_));
    if own.port.check_active().is_err() {
        return refused("own port is not active", "set its network interface up");
    }
    if peer.port.check_active().is_err() {
        return refused("the peer's port is not active", "set its network interface up");
    }
    if is_unknown(own_layer) || is_unknown(peer_layer) {
        return refused("unknown link layer", "choose a port of InfiniBand or Ethernet");
    }
    if own_layer != peer_layer {
        return refused("different link layers", "choose ports of one link layer");
    }
    Ok(own.port.mtu.min(peer.port.mtu))
}

#[cfg(test)]
mod tests {
    use super::super::port::PortState;
    use super::*;

    fn port(device: &str, state: PortState, link_layer: LinkLayer, mtu_code: u32) -> Port {
        let mtu = Mtu::of_code(mtu_code).expect("a code");
        let (device, gids) = (device.to_owned(), Vec::new());
        Port { device, number: 1, state, link_layer, mtu, lid: 0, gids }
    }

    fn agreed(own: &Port, peer: &Port) -> Result<u32> {
        let (own, peer) = (RailEnd { host: "a", port: own }, RailEnd { host: "b", port: peer });
        path_mtu(own, peer).map(Mtu::bytes)
    }

    #[test]
    fn path_mtu_is_the_smaller_of_both_ends() {
        for layer in [LinkLayer::Ethernet, LinkLayer::InfiniBand] {
            for (own, peer, bytes) in [(5, 5, 4096), (5, 3, 1024), (1, 4, 256)] {
                let [own, peer] = [own, peer].map(|mtu| port("x", PortState::Active, layer, mtu));
                assert_eq!(agreed(&own, &peer), Ok(bytes));
                assert_eq!(agreed(&peer, &own), Ok(bytes));
            }
        }
    }

    #[test]
    fn refused_rail_is_reported_with_both_ends() {
        use LinkLayer::{Ethernet, InfiniBand, Other};
        use PortState::{Active, ActiveDeferred, Down};
        let cases = [
            ((Down, Ethernet), (Active, Ethernet), "own port is not active"),
            ((Active, Ethernet), (Down, Ethernet), "the peer's port is not active"),
            ((Active, Ethernet), (ActiveDeferred, InfiniBand), "different link layers"),
            ((Active, Other(7)), (Active, Other(7)), "unknown link layer"),
            ((Active, Ethernet), (Active, Other(0)), "unknown link layer"),
            ((Active, Other(0)), (Active, Ethernet), "unknown link layer"),
        ];
        for (own, peer, reason) in cases {
            let (own, peer) = (port("mlx5_0", own.0, own.1, 5), port("mlx5_7", peer.0, peer.1, 3));
            let text = agreed(&own, &peer).expect_err(reason).to_string();
            assert!(text.starts_with(&format!("rail refused: {reason}; ")), "{text}");
            assert!(text.contains(", or use TCP own=a mlx5_0/1 "), "{text}");
            assert!(text.ends_with(&format!("peer=b {peer}")), "{text}");
        }
    }
}

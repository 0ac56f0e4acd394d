//! The source of a connection. Connections of one source share a part of the capacity for
//! unauthenticated peers.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Length of the IPv6 prefix that is assigned to one host or site.
const SITE_BITS: u32 = 64;

/// The source of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ConnectionSource {
    /// An IP address. For IPv6 its /64, since one host may have every address in that.
    Network(IpAddr),
    /// A user of this host.
    User(u32),
}

impl ConnectionSource {
    pub fn of(address: SocketAddr) -> ConnectionSource {
        match address.ip().to_canonical() {
            IpAddr::V4(ip) => ConnectionSource::Network(IpAddr::V4(ip)),
            IpAddr::V6(ip) => {
                let site = ip.to_bits() & (u128::MAX << (128 - SITE_BITS));
                ConnectionSource::Network(IpAddr::V6(Ipv6Addr::from_bits(site)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_host_map_to_one_source() {
        let of = |text: &str| ConnectionSource::of(text.parse().expect("an address"));
        assert_eq!(of("10.0.0.1:5"), of("10.0.0.1:6"));
        assert_ne!(of("10.0.0.1:5"), of("10.0.0.2:5"));
        assert_eq!(of("[::ffff:10.0.0.1]:5"), of("10.0.0.1:5"));
        assert_eq!(of("[2001:db8:1:2:3::1]:5"), of("[2001:db8:1:2:ffff::9]:7"));
        assert_ne!(of("[2001:db8:1:2::1]:5"), of("[2001:db8:1:3::1]:5"));
    }
}

//! GIDs, the addresses of a port, and the choice of one by type and address.
//!
//! The index of a GID says nothing: index 0 of a RoCE port is link-local on most hosts. So each GID
//! gets a score, and the reason for it, which diagnostics show.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::abi;

/// A 128-bit address of a port: an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The address as IPv6; an IPv4 address is mapped into it.
    pub fn address(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    /// The IPv4 address that is mapped into the GID.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        self.address().to_ipv4_mapped()
    }

    fn is(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => self.ipv4() == Some(v4),
            IpAddr::V6(v6) => self.address() == v6,
        }
    }

    fn is_link_local(self) -> bool {
        self.address().is_unicast_link_local() || self.ipv4().is_some_and(|v4| v4.is_link_local())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address().fmt(f)
    }
}

/// The protocol that a GID belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1, which routers do not forward.
    RoceV1,
    /// RoCE version 2, over UDP.
    RoceV2,
    /// Another protocol, by its number.
    Other(u32),
}

impl GidKind {
    pub(super) fn of(number: u32) -> GidKind {
        match number {
            abi::gid_type::IB => GidKind::InfiniBand,
            abi::gid_type::ROCE_V1 => GidKind::RoceV1,
            abi::gid_type::ROCE_V2 => GidKind::RoceV2,
            other => GidKind::Other(other),
        }
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GidKind::InfiniBand => f.write_str("InfiniBand"),
            GidKind::RoceV1 => f.write_str("RoCE v1"),
            GidKind::RoceV2 => f.write_str("RoCE v2"),
            GidKind::Other(number) => write!(f, "type {number}"),
        }
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The index in the table.
    pub index: u8,
    /// The address.
    pub gid: Gid,
    /// The protocol.
    pub kind: GidKind,
    /// The index of the network interface; 0 if it has none.
    pub interface: u32,
}

/// Which GID to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GidWish {
    /// The one with the highest score.
    #[default]
    Best,
    /// One with this address.
    Address(IpAddr),
    /// The one at this index, whatever its kind.
    Index(u8),
}

impl fmt::Display for GidWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GidWish::Best => f.write_str("best"),
            GidWish::Address(address) => write!(f, "address {address}"),
            GidWish::Index(index) => write!(f, "index {index}"),
        }
    }
}

/// A GID, its score, and the reason for the score.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoredGid {
    /// The entry.
    pub entry: GidEntry,
    /// The score; 0 if the GID cannot be used.
    pub score: u8,
    /// The reason.
    pub reason: &'static str,
}

impl fmt::Display for ScoredGid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let GidEntry { index, gid, kind, .. } = self.entry;
        write!(f, "{index}: {gid} {kind} score {} ({})", self.score, self.reason)
    }
}

/// The entries with their scores, in the table's order.
pub fn scored(entries: &[GidEntry], wish: GidWish) -> Vec<ScoredGid> {
    let scored = |entry: &GidEntry| {
        let (score, reason) = match wish {
            GidWish::Best => score(entry),
            GidWish::Address(address) if !entry.gid.is(address) => (0, "another address"),
            // Link-local addresses are usable if they are requested; the wrong protocol is not.
            GidWish::Address(_) => match score(entry) {
                (0, reason) if reason != LINK_LOCAL => (0, reason),
                (score, _) => (score.max(1), "the wanted address"),
            },
            GidWish::Index(index) if entry.index == index => (u8::MAX, "the wanted index"),
            GidWish::Index(_) => (0, "another index"),
        };
        ScoredGid { entry: *entry, score, reason }
    };
    entries.iter().map(scored).collect()
}

/// The entry with the highest score; the first of several. `None` if all scores are 0.
pub fn best(scored: &[ScoredGid]) -> Option<&ScoredGid> {
    scored.iter().rev().max_by_key(|gid| gid.score).filter(|gid| gid.score > 0)
}

const LINK_LOCAL: &str = "link-local, not routable";

fn score(entry: &GidEntry) -> (u8, &'static str) {
    match (entry.kind, entry.gid.ipv4()) {
        (GidKind::RoceV2, _) if entry.gid.is_link_local() => (0, LINK_LOCAL),
        (GidKind::RoceV2, Some(v4)) if v4.is_loopback() => (0, "loopback"),
        (GidKind::RoceV2, Some(_)) => (80, "RoCE v2 over IPv4"),
        (GidKind::RoceV2, None) if entry.gid.address().is_unique_local() => {
            (60, "RoCE v2 over a private IPv6 network")
        }
        (GidKind::RoceV2, None) => (70, "RoCE v2 over IPv6"),
        (GidKind::InfiniBand, _) => (50, "InfiniBand"),
        (GidKind::RoceV1, _) => (0, "RoCE v1, not routable"),
        (GidKind::Other(_), _) => (0, "unknown protocol"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK_LOCAL_V6: &str = "fe80::5054:ff:fe12:3456";

    fn entries(all: &[(&str, GidKind)]) -> Vec<GidEntry> {
        let entry = |(index, (address, kind)): (usize, &(&str, GidKind))| {
            let gid = match address.parse().expect("an address") {
                IpAddr::V4(v4) => Gid(v4.to_ipv6_mapped().octets()),
                IpAddr::V6(v6) => Gid(v6.octets()),
            };
            GidEntry { index: index as u8, gid, kind: *kind, interface: 1 }
        };
        all.iter().enumerate().map(entry).collect()
    }

    fn chosen(all: &[(&str, GidKind)], wish: GidWish) -> Option<u8> {
        best(&scored(&entries(all), wish)).map(|gid| gid.entry.index)
    }

    /// The table of a RoCE port with an IPv4 and an IPv6 address, as Linux fills it.
    const TABLE: [(&str, GidKind); 6] = [
        (LINK_LOCAL_V6, GidKind::RoceV1),
        (LINK_LOCAL_V6, GidKind::RoceV2),
        ("2001:db8::7", GidKind::RoceV1),
        ("2001:db8::7", GidKind::RoceV2),
        ("192.0.2.1", GidKind::RoceV1),
        ("192.0.2.1", GidKind::RoceV2),
    ];

    #[test]
    fn best_gid_is_routable_and_of_roce_v2() {
        assert_eq!(chosen(&TABLE, GidWish::Best), Some(5));
        assert_eq!(chosen(&TABLE[..4], GidWish::Best), Some(3));
        assert_eq!(chosen(&TABLE[..3], GidWish::Best), None);
        assert_eq!(chosen(&[("fd00::1", GidKind::RoceV2)], GidWish::Best), Some(0));
        assert_eq!(chosen(&[("127.0.0.1", GidKind::RoceV2)], GidWish::Best), None);
        assert_eq!(chosen(&[("169.254.0.1", GidKind::RoceV2)], GidWish::Best), None);
        assert_eq!(chosen(&[("fe80::1", GidKind::InfiniBand)], GidWish::Best), Some(0));
        let two = [("192.0.2.1", GidKind::RoceV2), ("192.0.2.2", GidKind::RoceV2)];
        assert_eq!(chosen(&two, GidWish::Best), Some(0), "the first of equal ones");
    }

    #[test]
    fn gid_is_found_by_address_and_by_index() {
        let by = |address: &str| GidWish::Address(address.parse().expect("an address"));
        assert_eq!(chosen(&TABLE, by("192.0.2.1")), Some(5));
        assert_eq!(chosen(&TABLE, by("2001:db8::7")), Some(3));
        assert_eq!(chosen(&TABLE, by(LINK_LOCAL_V6)), Some(1), "requested");
        assert_eq!(chosen(&TABLE, by("192.0.2.9")), None);
        assert_eq!(chosen(&TABLE, GidWish::Index(0)), Some(0));
        assert_eq!(chosen(&TABLE, GidWish::Index(9)), None);
    }

    #[test]
    fn each_gid_shows_its_score_and_reason() {
        let all = scored(&entries(&TABLE), GidWish::Best);
        assert_eq!(all[5].to_string(), "5: ::ffff:192.0.2.1 RoCE v2 score 80 (RoCE v2 over IPv4)");
        assert!(all[1].to_string().ends_with("score 0 (link-local, not routable)"), "{}", all[1]);
        assert!(all[2].to_string().ends_with("score 0 (RoCE v1, not routable)"), "{}", all[2]);
    }
}

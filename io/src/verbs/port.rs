//! Ports of devices: state, link layer, MTU and GIDs.

use std::fmt;

use super::abi;
use super::device::Device;
use super::error::{Result, VerbsError};
use super::gid::{Gid, GidEntry, GidKind, GidWish, ScoredGid, best, scored};
use super::library::check;

/// The protocol below RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: peers are reached by LID.
    InfiniBand,
    /// Ethernet, so RoCE: peers are reached by GID.
    Ethernet,
    /// Not reported, or another one.
    Other(u8),
}

/// The largest payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtu(u32);

impl Mtu {
    /// 256 bytes, which every port has.
    pub const SMALLEST: Mtu = Mtu(1);

    /// The MTU of this code of the InfiniBand specification, 1 to 5.
    pub fn of_code(code: u32) -> Option<Mtu> {
        (1..=5).contains(&code).then_some(Mtu(code))
    }

    /// The code of the InfiniBand specification.
    pub fn code(self) -> u32 {
        self.0
    }

    /// Bytes, 256 to 4096.
    pub fn bytes(self) -> u32 {
        128 << self.0
    }
}

/// The state of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// A link that carries no data yet.
    Initialising,
    /// Ready for traffic.
    Active,
    /// Active, with a link error that may pass.
    ActiveDeferred,
    /// Not reported, or another one.
    Other,
}

impl PortState {
    fn of(number: u32) -> PortState {
        match number {
            abi::port_state::DOWN => PortState::Down,
            abi::port_state::INIT | abi::port_state::ARMED => PortState::Initialising,
            abi::port_state::ACTIVE => PortState::Active,
            abi::port_state::ACTIVE_DEFER => PortState::ActiveDeferred,
            _ => PortState::Other,
        }
    }

    /// The state in a word.
    pub fn name(self) -> &'static str {
        match self {
            PortState::Down => "down",
            PortState::Initialising => "initialising",
            PortState::Active => "active",
            PortState::ActiveDeferred => "active-deferred",
            PortState::Other => "unknown",
        }
    }
}

/// A port of a device, as it was when it was queried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// The device's name.
    pub device: String,
    /// The number; the first is 1.
    pub number: u8,
    /// The state.
    pub state: PortState,
    /// The protocol below RDMA.
    pub link_layer: LinkLayer,
    /// The MTU in use.
    pub mtu: Mtu,
    /// The local identifier of InfiniBand; 0 over Ethernet.
    pub lid: u16,
    /// Entries of the GID table that are in use.
    pub gids: Vec<GidEntry>,
}

impl Port {
    /// The port of this number, with its attributes and GIDs as they are at this moment.
    pub fn of(device: &Device, number: u8) -> Result<Port> {
        let ports = device.limits().ports;
        if number == 0 || number > ports {
            let device = device.name().to_owned();
            return Err(VerbsError::PortUnknown { device, port: number, ports });
        }
        // The symbol fills an older, shorter structure: the rest stays zero.
        let mut raw = abi::PortAttr::default();
        let context = device.context.pointer();
        // SAFETY: the context is open, and the call fills the structure or the beginning of it.
        let status =
            unsafe { (device.library.functions.ibv_query_port)(context, number, &raw mut raw) };
        check(status, "ibv_query_port", device.name())?;
        let length = u32::try_from(raw.gid_tbl_len).unwrap_or(0);
        let gids = (0..length).filter_map(|index| gid_entry(device, number, index)).collect();
        Ok(Port {
            device: device.name().to_owned(),
            number,
            state: PortState::of(raw.state),
            link_layer: match raw.link_layer {
                abi::link_layer::INFINIBAND => LinkLayer::InfiniBand,
                abi::link_layer::ETHERNET => LinkLayer::Ethernet,
                other => LinkLayer::Other(other),
            },
            mtu: Mtu::of_code(raw.active_mtu).unwrap_or(Mtu(1)),
            lid: raw.lid,
            gids,
        })
    }

    /// Whether the port can carry traffic; the error names its state and the remedy.
    pub fn check_active(&self) -> Result<()> {
        match self.state {
            PortState::Active | PortState::ActiveDeferred => Ok(()),
            state => Err(VerbsError::PortInactive {
                device: self.device.clone(),
                port: self.number,
                state: state.name(),
            }),
        }
    }

    /// Every GID with its score.
    pub fn scored_gids(&self, wish: GidWish) -> Vec<ScoredGid> {
        scored(&self.gids, wish)
    }

    /// The GID to use. The error lists every GID with the reason against it.
    pub fn choose_gid(&self, wish: GidWish) -> Result<GidEntry> {
        let all = self.scored_gids(wish);
        best(&all).map(|gid| gid.entry).ok_or_else(|| VerbsError::NoUsableGid {
            device: self.device.clone(),
            port: self.number,
            wanted: wish.to_string(),
            gids: all.iter().map(ScoredGid::to_string).collect::<Vec<_>>().join(", "),
        })
    }
}

/// The entry at an index of a port's GID table; `None` if it is empty.
fn gid_entry(device: &Device, port: u8, index: u32) -> Option<GidEntry> {
    let mut raw = abi::GidEntry::default();
    let query = device.library.functions._ibv_query_gid_ex;
    let (context, size) = (device.context.pointer(), size_of::<abi::GidEntry>());
    // SAFETY: the context is open, and the call fills at most `size` bytes of the structure.
    let status = unsafe { query(context, u32::from(port), index, &raw mut raw, 0, size) };
    if status != 0 || raw.gid.0 == [0; 16] {
        return None;
    }
    let (gid, kind) = (Gid(raw.gid.0), GidKind::of(raw.gid_type));
    // A queue pair names its GID with 8 bits.
    let index = u8::try_from(index).ok()?;
    Some(GidEntry { index, gid, kind, interface: raw.ndev_ifindex })
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (state, mtu) = (self.state.name(), self.mtu.bytes());
        write!(f, "{}/{} {state} {:?} mtu {mtu}", self.device, self.number, self.link_layer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_are_those_of_the_specification() {
        let bytes = |code| Mtu::of_code(code).map(Mtu::bytes);
        assert_eq!([1, 2, 3, 4, 5].map(bytes), [256, 512, 1024, 2048, 4096].map(Some));
        assert_eq!((bytes(0), bytes(6)), (None, None));
    }

    fn port(state: PortState, gids: Vec<GidEntry>) -> Port {
        Port {
            device: "mlx5_0".into(),
            number: 1,
            state,
            link_layer: LinkLayer::Ethernet,
            mtu: Mtu(5),
            lid: 0,
            gids,
        }
    }

    #[test]
    fn inactive_port_is_named_with_its_state() {
        let error = port(PortState::Down, Vec::new()).check_active().expect_err("down");
        let text = error.to_string();
        assert!(text.contains("set its network interface up"), "{text}");
        assert!(text.ends_with("device=mlx5_0 port=1 state=down"), "{text}");
        assert_eq!(port(PortState::Active, Vec::new()).check_active(), Ok(()));
    }

    #[test]
    fn port_without_usable_gid_lists_all_of_them() {
        let gid = Gid(std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1).octets());
        let entry = GidEntry { index: 0, gid, kind: GidKind::RoceV2, interface: 2 };
        let error =
            port(PortState::Active, vec![entry]).choose_gid(GidWish::Best).expect_err("no IP");
        let text = error.to_string();
        assert!(text.contains("give the port's network interface an IP address"), "{text}");
        assert!(
            text.contains("device=mlx5_0 port=1 wanted=best gids=0: fe80::1 RoCE v2"),
            "{text}"
        );
    }
}

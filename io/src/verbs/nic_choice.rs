//! The choice of ports as rails, by distance to a GPU or a NUMA node.
//!
//! Each port gets a score, and the reason for it, which errors and diagnostics show.
//!
//! Invariants:
//! - A port that is not active is never chosen.
//! - All rails have the same score and the same link layer.

use std::cmp::Reverse;
use std::fmt;

use super::error::{Result, VerbsError};
use super::port::{LinkLayer, Port};
use super::topology::{Distance, Locality};

/// Which ports to use as rails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicWish {
    /// Those at the least distance to this locality: a GPU, or a NUMA node. The default locality is
    /// at an unknown distance to all ports, so it chooses among all of them.
    Near(Locality),
    /// Those of the device with this name.
    Device(String),
}

impl fmt::Display for NicWish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NicWish::Device(name) => write!(f, "device {name}"),
            NicWish::Near(Locality { pci, node }) => match (pci.last(), node) {
                (Some(address), _) => write!(f, "near PCI device {address}"),
                (None, Some(node)) => write!(f, "near NUMA node {node}"),
                (None, None) => f.write_str("any"),
            },
        }
    }
}

/// A port that may become a rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicCandidate {
    /// The port.
    pub port: Port,
    /// The locality of its device.
    pub locality: Locality,
}

/// A port, its score, and the reason for the score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScoredNic {
    /// The port.
    pub port: Port,
    /// The score; 0 if the port cannot be used.
    pub score: u8,
    /// The reason.
    pub reason: String,
    /// Whether the port is a rail.
    pub chosen: bool,
}

impl fmt::Display for ScoredNic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (chosen, score, reason) = (self.chosen, self.score, &self.reason);
        let chosen = if chosen { "chosen" } else { "not chosen" };
        write!(f, "{} {chosen} score {score} ({reason})", self.port)
    }
}

/// The chosen ports among all candidates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicChoice {
    /// All candidates: the highest score first, then the largest MTU, then by name.
    pub candidates: Vec<ScoredNic>,
}

impl NicChoice {
    /// The rails, in the order of the candidates; at least one.
    pub fn rails(&self) -> impl Iterator<Item = &Port> {
        self.candidates.iter().filter(|nic| nic.chosen).map(|nic| &nic.port)
    }
}

impl fmt::Display for NicChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&listed(&self.candidates))
    }
}

/// The rails to use: all ports with the highest score and one link layer. The error lists every
/// candidate with the reason against it.
pub fn choose_nics(candidates: &[NicCandidate], wish: &NicWish) -> Result<NicChoice> {
    if candidates.is_empty() {
        return Err(VerbsError::NoDevice);
    }
    let mut all: Vec<_> = candidates.iter().map(|candidate| scored(candidate, wish)).collect();
    let order = |nic: &ScoredNic| {
        (Reverse(nic.score), Reverse(nic.port.mtu), nic.port.device.clone(), nic.port.number)
    };
    all.sort_by_cached_key(order);
    let (score, link_layer) = (all[0].score, all[0].port.link_layer);
    if score == 0 {
        return Err(VerbsError::NoUsablePort {
            wanted: wish.to_string(),
            candidates: listed(&all),
        });
    }
    for nic in all.iter_mut().filter(|nic| nic.score == score) {
        nic.chosen = nic.port.link_layer == link_layer;
        if !nic.chosen {
            nic.reason.push_str(", another link layer than the first rail");
        }
    }
    Ok(NicChoice { candidates: all })
}

fn scored(candidate: &NicCandidate, wish: &NicWish) -> ScoredNic {
    let NicCandidate { port, locality } = candidate;
    let (score, reason) = match wish {
        _ if port.check_active().is_err() => (0, "port is not active".to_owned()),
        _ if matches!(port.link_layer, LinkLayer::Other(_)) => (0, "unknown link layer".to_owned()),
        NicWish::Device(name) if *name == port.device => (u8::MAX, "the wanted device".to_owned()),
        NicWish::Device(_) => (0, "another device".to_owned()),
        NicWish::Near(wanted) => {
            let distance = wanted.distance(locality);
            (score(distance), distance.to_string())
        }
    };
    ScoredNic { port: port.clone(), score, reason, chosen: false }
}

fn score(distance: Distance) -> u8 {
    match distance {
        Distance::SameSwitch => 60,
        Distance::SameRootPort => 50,
        Distance::SameRootComplex => 40,
        Distance::SameNode => 30,
        Distance::OtherNode => 20,
        Distance::Unknown => 10,
    }
}

fn listed(candidates: &[ScoredNic]) -> String {
    candidates.iter().map(ScoredNic::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::port::{Mtu, PortState};
    use super::*;

    /// An active Ethernet port of MTU 4096 below `path`, a path of PCI addresses.
    fn nic(device: &str, path: &str, node: u32) -> NicCandidate {
        let port = Port {
            device: device.to_owned(),
            number: 1,
            state: PortState::Active,
            link_layer: LinkLayer::Ethernet,
            mtu: Mtu::of_code(5).expect("a code"),
            lid: 0,
            gids: Vec::new(),
        };
        NicCandidate { port, locality: locality(path, Some(node)) }
    }

    fn locality(path: &str, node: Option<u32>) -> Locality {
        Locality { pci: path.split('/').map(str::to_owned).collect(), node }
    }

    /// A port at each distance from the GPU of [`near_gpu`], the farthest first.
    fn at_each_distance() -> Vec<NicCandidate> {
        let mut soft = nic("rxe0", "", 0);
        soft.locality = Locality::default();
        vec![
            soft,
            nic("mlx5_5", "pci0:85/85:01.0/86:00.0", 1),
            nic("mlx5_4", "pci0:25/25:01.0/26:00.0", 0),
            nic("mlx5_3", "pci0:15/15:02.0/1d:00.0", 0),
            nic("mlx5_2", "pci0:15/15:01.0/16:00.0/17:02.0/1a:00.0/1b:00.0/1c:00.0", 0),
            nic("mlx5_1", "pci0:15/15:01.0/16:00.0/17:01.0/19:00.0", 0),
        ]
    }

    fn near_gpu() -> NicWish {
        NicWish::Near(locality("pci0:15/15:01.0/16:00.0/17:00.0/18:00.0", Some(0)))
    }

    /// The names of the rails, with their ports.
    fn rails(candidates: &[NicCandidate], wish: &NicWish) -> Vec<String> {
        let choice = choose_nics(candidates, wish).expect("rails");
        choice.rails().map(|port| format!("{}/{}", port.device, port.number)).collect()
    }

    #[test]
    fn nearest_port_is_chosen_at_every_distance() {
        let mut candidates = at_each_distance();
        for expected in ["mlx5_1", "mlx5_2", "mlx5_3", "mlx5_4", "mlx5_5", "rxe0"] {
            assert_eq!(rails(&candidates, &near_gpu()), [format!("{expected}/1")]);
            candidates.pop();
        }
    }

    #[test]
    fn ports_at_the_least_distance_are_rails_in_order_of_mtu_and_name() {
        let (upper, lower) = ("pci0:85/85:01.0/86:00.0", "pci0:95/95:01.0/96:00.0");
        let mut candidates = vec![
            nic("mlx5_3", lower, 1),
            nic("mlx5_1", upper, 1),
            nic("mlx5_2", upper, 1),
            nic("mlx5_2", upper, 1),
            nic("mlx5_0", "pci0:15/15:01.0/16:00.0", 0),
        ];
        candidates[3].port.number = 2;
        candidates[1].port.mtu = Mtu::of_code(3).expect("a code");
        let wish = NicWish::Near(Locality::of_node(1));
        assert_eq!(rails(&candidates, &wish), ["mlx5_2/1", "mlx5_2/2", "mlx5_3/1", "mlx5_1/1"]);
        candidates.reverse();
        assert_eq!(rails(&candidates, &wish), ["mlx5_2/1", "mlx5_2/2", "mlx5_3/1", "mlx5_1/1"]);
        assert_eq!(rails(&candidates, &NicWish::Near(Locality::of_node(0))), ["mlx5_0/1"]);
        let all = rails(&candidates, &NicWish::Near(Locality::default()));
        assert_eq!(all, ["mlx5_0/1", "mlx5_2/1", "mlx5_2/2", "mlx5_3/1", "mlx5_1/1"]);
    }

    #[test]
    fn port_that_is_not_active_is_never_chosen() {
        for state in [PortState::Down, PortState::Initialising, PortState::Other] {
            let mut candidates = at_each_distance();
            candidates[5].port.state = state;
            assert_eq!(rails(&candidates, &near_gpu()), ["mlx5_2/1"], "{state:?}");
        }
        let mut candidates = at_each_distance();
        candidates[5].port.state = PortState::ActiveDeferred;
        assert_eq!(rails(&candidates, &near_gpu()), ["mlx5_1/1"]);
    }

    #[test]
    fn rails_have_one_link_layer() {
        let path = "pci0:15/15:02.0/1d:00.0";
        let mut candidates = [nic("mlx5_0", path, 0), nic("mlx5_1", path, 0)];
        candidates[1].port.link_layer = LinkLayer::InfiniBand;
        let choice = choose_nics(&candidates, &near_gpu()).expect("rails");
        let text = choice.to_string();
        assert_eq!(rails(&candidates, &near_gpu()), ["mlx5_0/1"]);
        assert!(text.ends_with("root complex, another link layer than the first rail)"), "{text}");
        candidates[0].port.link_layer = LinkLayer::Other(7);
        assert_eq!(rails(&candidates, &near_gpu()), ["mlx5_1/1"], "an unknown link layer");
    }

    #[test]
    fn wanted_device_is_chosen_at_any_distance() {
        let wish = NicWish::Device("mlx5_5".into());
        assert_eq!(rails(&at_each_distance(), &wish), ["mlx5_5/1"]);
    }

    #[test]
    fn choice_lists_every_candidate_with_its_reason() {
        let mut candidates = at_each_distance();
        candidates[5].port.state = PortState::Down;
        let text = choose_nics(&candidates, &near_gpu()).expect("rails").to_string();
        let expected = "\
mlx5_2/1 active Ethernet mtu 4096 chosen score 50 (same PCIe root port), \
mlx5_3/1 active Ethernet mtu 4096 not chosen score 40 (same PCIe root complex), \
mlx5_4/1 active Ethernet mtu 4096 not chosen score 30 (same NUMA node), \
mlx5_5/1 active Ethernet mtu 4096 not chosen score 20 (other NUMA node), \
rxe0/1 active Ethernet mtu 4096 not chosen score 10 (distance unknown), \
mlx5_1/1 down Ethernet mtu 4096 not chosen score 0 (port is not active)";
        assert_eq!(text, expected);
    }

    #[test]
    fn choice_without_usable_port_lists_every_candidate() {
        let mut candidates = at_each_distance();
        let wish = NicWish::Device("mlx5_1".into());
        candidates[5].port.state = PortState::Down;
        let text = choose_nics(&candidates, &wish).expect_err("no port").to_string();
        assert!(text.starts_with("no usable RDMA port; connect a cable"), "{text}");
        assert!(text.contains("wanted=device mlx5_1 candidates=mlx5_1/1 down"), "{text}");
        assert!(text.contains("rxe0/1 active Ethernet mtu 4096 not chosen score 0"), "{text}");
        assert_eq!(choose_nics(&[], &wish), Err(VerbsError::NoDevice));
    }

    #[test]
    fn wish_is_named_by_its_place() {
        let wishes =
            [near_gpu(), NicWish::Near(Locality::of_node(1)), NicWish::Near(Locality::default())];
        let expected = ["near PCI device 18:00.0", "near NUMA node 1", "any"];
        assert_eq!(wishes.map(|wish| wish.to_string()), expected);
    }
}

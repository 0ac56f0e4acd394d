//! Peers as settings: how an entry of the list is read, and the rules for the list.

use std::collections::HashSet;
use std::fmt;

use pagelith_transport::address::Address;
use pagelith_transport::peer_address::{BulkTransport, PeerAddress};
use serde::{Serialize, Serializer};

use super::node::{Node, quoted};

/// Most peers of one store: each session has a connection to every peer that it uses.
pub(super) const PEERS_MAX: usize = 64;
/// Longest name of a peer in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The keys of an entry, in the order of the reference.
const KEYS: [&str; 5] = ["address", "transport", "name", "weight", "preferred"];

/// A store process that holds pages for this store: a string with its address, or a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PeerConfig {
    /// Its address: `tcp:HOST:PORT`, `unix:PATH`, or `rdma:HOST:PORT` for `tcp:HOST:PORT` with the
    /// transport `rdma`. No default. A host name is resolved for every connection.
    #[serde(serialize_with = "as_text")]
    pub address: Address,
    /// How payload travels to and from it: `tcp` (default); `rdma`, and a connection without RDMA
    /// is an error; or `auto`: RDMA where both ends have it, else TCP. A store with a peer of
    /// transport `rdma` or `auto` registers its arena with RDMA devices at open, so that the peer
    /// can read all of it.
    #[serde(serialize_with = "as_name")]
    pub transport: BulkTransport,
    /// Its name, the same at every store that shares it: the name determines which pages it owns.
    /// Default: the address, with `tcp:` for `rdma:`; 1 to 255 bytes. Set it if the peer has
    /// several addresses, or if its address may change.
    pub name: String,
    /// Its share of the pages, relative to the other peers. Default 1; above 0. Set it to each
    /// peer's capacity in bytes, so that all fill up alike.
    pub weight: f64,
    /// Whether all puts go to this peer while it is reachable, regardless of the page's owner, and
    /// gets try it before the owner. Default false; at most one peer. For a store process on this
    /// host. A store that shares the other peers without preferring this one does not find those
    /// pages.
    pub preferred: bool,
}

fn as_text<S: Serializer>(address: &Address, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(address)
}

fn as_name<S: Serializer>(transport: &BulkTransport, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(transport.name())
}

impl From<Address> for PeerConfig {
    /// The peer at this address, with defaults for the rest.
    fn from(address: Address) -> PeerConfig {
        PeerAddress::from(address).into()
    }
}

impl From<PeerAddress> for PeerConfig {
    /// The peer at this address, with defaults for the rest.
    fn from(peer: PeerAddress) -> PeerConfig {
        let PeerAddress { address, transport } = peer;
        PeerConfig { name: address.to_string(), address, transport, weight: 1.0, preferred: false }
    }
}

impl fmt::Display for PeerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PeerConfig { address, transport, name, weight, preferred } = self;
        let transport = transport.name();
        write!(
            f,
            "{address} transport={transport} name={name} weight={weight} preferred={preferred}"
        )
    }
}

/// An entry as far as it can be read, and the faults of the rest.
struct Entry {
    address: Option<PeerAddress>,
    transport: Option<BulkTransport>,
    name: Option<String>,
    weight: f64,
    preferred: bool,
    faults: Vec<String>,
}

/// The peers of a list, or all its faults other than a wrong type.
pub(super) fn read(node: &Node) -> Result<Vec<PeerConfig>, String> {
    let Node::List(nodes) = node else { return Err(String::new()) };
    if nodes.len() > PEERS_MAX {
        // The rule's own message states the number of entries.
        return Err(String::new());
    }
    let entries: Vec<Entry> = nodes.iter().map(Entry::read).collect();
    let faults_of = |(number, entry): (usize, &Entry)| {
        entry.faults.iter().map(|fault| (number, fault.clone())).collect::<Vec<_>>()
    };
    let mut faults: Vec<(usize, String)> = entries.iter().enumerate().flat_map(faults_of).collect();
    if faults.is_empty() {
        return Ok(entries.into_iter().filter_map(Entry::peer).collect());
    }
    // Check the entries that could be read too, so that all faults are reported at once.
    let rest = |entry: &Entry| (entry.name.clone(), entry.weight, entry.preferred);
    faults.extend(rule_faults(entries.iter().map(rest)));
    faults.sort_by_key(|(number, _)| *number);
    Err(with_entry_numbers(faults).join(", "))
}

impl Entry {
    fn read(node: &Node) -> Entry {
        let mut entry = Entry {
            address: None,
            transport: None,
            name: None,
            weight: 1.0,
            preferred: false,
            faults: Vec::new(),
        };
        let mut named = false;
        match node {
            Node::Text(text) => entry.put_address(text),
            Node::Table(fields) => {
                named = fields.iter().any(|(key, _)| key == "name");
                fields.iter().for_each(|(key, value)| entry.put(key, value));
                if !fields.iter().any(|(key, _)| key == "address") {
                    entry.faults.push("has no address".to_owned());
                }
            }
            other => entry.faults.push(format!("is {other}")),
        }
        if !named {
            entry.name = entry.address.as_ref().map(|peer| peer.address.to_string());
        }
        if let (Some(peer), Some(transport)) = (entry.address.clone(), entry.transport) {
            match peer.with_transport(transport) {
                Ok(peer) => entry.address = Some(peer),
                Err(wrong) => entry.faults.push(format!("is wrong: {wrong}")),
            }
        }
        entry
    }

    fn put(&mut self, key: &str, value: &Node) {
        let must = |what: &str| format!("has as {key} {value}, which must be {what}");
        match (key, value) {
            ("address", Node::Text(text)) => self.put_address(text),
            ("transport", Node::Text(text)) if BulkTransport::of_name(text).is_some() => {
                self.transport = BulkTransport::of_name(text);
            }
            ("transport", _) => {
                let names = BulkTransport::NAMES.join(", ");
                self.faults.push(must(&format!("one of {names}")));
            }
            ("name", Node::Text(text)) => self.name = Some(text.clone()),
            ("weight", Node::Float(number)) => self.weight = *number,
            ("weight", Node::Integer(number)) => self.weight = *number as f64,
            ("preferred", Node::Bool(flag)) => self.preferred = *flag,
            ("address" | "name", _) => self.faults.push(must("a string")),
            ("weight", _) => self.faults.push(must("a number")),
            ("preferred", _) => self.faults.push(must("true or false")),
            _ => self.faults.push(format!("has {}, and may have {}", quoted(key), KEYS.join(", "))),
        }
    }

    fn put_address(&mut self, text: &str) {
        match text.parse() {
            Ok(address) => self.address = Some(address),
            Err(wrong) => self.faults.push(format!("has as address {}: {wrong}", quoted(text))),
        }
    }

    /// The peer, if the entry has no faults.
    fn peer(self) -> Option<PeerConfig> {
        let Entry { address, name, weight, preferred, .. } = self;
        let PeerAddress { address, transport } = address?;
        Some(PeerConfig { address, transport, name: name?, weight, preferred })
    }
}

/// Faults of peers of the right type.
pub(super) fn faults(peers: &[PeerConfig]) -> Vec<String> {
    if peers.len() > PEERS_MAX {
        return vec![format!("there are {}", peers.len())];
    }
    let checked_parts = |peer: &PeerConfig| (Some(peer.name.clone()), peer.weight, peer.preferred);
    with_entry_numbers(rule_faults(peers.iter().map(checked_parts)))
}

/// The list's rules that these names (if known), weights and preferences break, with the entry's
/// number.
fn rule_faults(peers: impl Iterator<Item = (Option<String>, f64, bool)>) -> Vec<(usize, String)> {
    let mut faults = Vec::new();
    let (mut names, mut first_preferred) = (HashSet::new(), None);
    for (number, (name, weight, preferred)) in peers.enumerate() {
        let mut fault = |text: String| faults.push((number, text));
        match name {
            Some(name) if name.is_empty() => fault("has an empty name".to_owned()),
            Some(name) if name.len() > NAME_BYTES_MAX => {
                let bytes = name.len();
                fault(format!("has a name of {bytes} bytes, and {NAME_BYTES_MAX} are the most"));
            }
            Some(name) => {
                let repeats = format!("repeats the name {}", quoted(&name));
                if !names.insert(name) {
                    fault(repeats);
                }
            }
            None => {}
        }
        if !(weight.is_finite() && weight > 0.0) {
            fault(format!("has the weight {weight}, which must be finite and above 0"));
        }
        match first_preferred {
            Some(first) if preferred => fault(format!("is preferred, and so is entry {first}")),
            _ => first_preferred = first_preferred.or(preferred.then_some(number)),
        }
    }
    faults
}

fn with_entry_numbers(faults: Vec<(usize, String)>) -> Vec<String> {
    faults.into_iter().map(|(number, fault)| format!("entry {number} {fault}")).collect()
}

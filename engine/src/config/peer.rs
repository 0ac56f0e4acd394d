//! Peers, as settings: how an entry of the list is read, and what a list may be.

use std::collections::HashSet;
use std::fmt;

use pagelith_transport::address::Address;
use serde::{Serialize, Serializer};

use super::node::{Node, quoted};

/// Most peers of one store: each session has a link to every one that it asks.
pub(super) const PEERS_MAX: usize = 64;
/// Longest name of a peer in bytes: longer ones are something else.
const NAME_BYTES_MAX: usize = 255;
/// What an entry may say, in the order of the reference.
const KEYS: [&str; 4] = ["address", "name", "weight", "preferred"];

/// A store process that holds pages for this store: a text that is its address, or a table.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PeerConfig {
    /// Where it listens: `tcp:HOST:PORT` or `unix:PATH`. No default.
    #[serde(serialize_with = "as_text")]
    pub address: Address,
    /// Its name, the same at every store that shares it: which pages it owns hangs on it. Default the address; 1 to 255 bytes. Give one where it is
    /// reached by several addresses, or may get another.
    pub name: String,
    /// Its share of the pages beside the others'. Default 1; above 0. Give each the bytes that it has for pages, so that they fill up alike.
    pub weight: f64,
    /// Whether everything that is put goes to it as long as it can be reached, whoever owns the page, and it is asked before that one. Default false;
    /// one peer at most. For a store process on this host; who shares the others and does not prefer it finds nothing there.
    pub preferred: bool,
}

fn as_text<S: Serializer>(address: &Address, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(address)
}

impl From<Address> for PeerConfig {
    /// The peer at this address, with nothing else said of it.
    fn from(address: Address) -> PeerConfig {
        PeerConfig { name: address.to_string(), address, weight: 1.0, preferred: false }
    }
}

impl fmt::Display for PeerConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PeerConfig { address, name, weight, preferred } = self;
        write!(f, "{address} name={name} weight={weight} preferred={preferred}")
    }
}

/// The peers of a list; else everything that is wrong with it and is not its type.
pub(super) fn read(node: &Node) -> Result<Vec<PeerConfig>, String> {
    let Node::List(entries) = node else { return Err(String::new()) };
    let (mut peers, mut faults) = (Vec::new(), Vec::new());
    // Of more entries than there may be the rule says so.
    for (number, entry) in entries.iter().enumerate().take(PEERS_MAX + 1) {
        match entry_of(entry) {
            Ok(peer) => peers.push(peer),
            Err(wrong) => faults.extend(wrong.into_iter().map(|wrong| format!("entry {number} {wrong}"))),
        }
    }
    if faults.is_empty() { Ok(peers) } else { Err(faults.join(", ")) }
}

fn entry_of(node: &Node) -> Result<PeerConfig, Vec<String>> {
    let fields = match node {
        Node::Text(text) => return address_of(text).map(PeerConfig::from).map_err(|wrong| vec![wrong]),
        Node::Table(fields) => fields,
        other => return Err(vec![format!("is {other}")]),
    };
    let mut faults = Vec::new();
    let (mut address, mut name, mut weight, mut preferred) = (None, None, 1.0, false);
    for (key, value) in fields {
        let must = |what: &str| format!("has as {key} {value}, which must be {what}");
        match (key.as_str(), value) {
            ("address", Node::Text(text)) => match address_of(text) {
                Ok(read) => address = Some(read),
                Err(wrong) => faults.push(wrong),
            },
            ("name", Node::Text(text)) => name = Some(text.clone()),
            ("weight", Node::Float(number)) => weight = *number,
            ("weight", Node::Integer(number)) => weight = *number as f64,
            ("preferred", Node::Bool(flag)) => preferred = *flag,
            ("address" | "name", _) => faults.push(must("a string")),
            ("weight", _) => faults.push(must("a number")),
            ("preferred", _) => faults.push(must("true or false")),
            _ => faults.push(format!("has {}, and may have {}", quoted(key), KEYS.join(", "))),
        }
    }
    if !fields.iter().any(|(key, _)| key == "address") {
        faults.push("has no address".to_owned());
    }
    match address.filter(|_| faults.is_empty()) {
        Some(address) => {
            let peer = PeerConfig::from(address);
            Ok(PeerConfig { name: name.unwrap_or(peer.name), weight, preferred, ..peer })
        }
        None => Err(faults),
    }
}

fn address_of(text: &str) -> Result<Address, String> {
    text.parse().map_err(|wrong| format!("has as address {}: {wrong}", quoted(text)))
}

/// What is wrong with peers that are of the right type.
pub(super) fn faults(peers: &[PeerConfig]) -> Vec<String> {
    if peers.len() > PEERS_MAX {
        return vec![format!("there are {}", peers.len())];
    }
    let mut faults = Vec::new();
    let (mut names, mut preferred) = (HashSet::new(), None);
    for (number, PeerConfig { name, weight, preferred: is_preferred, .. }) in peers.iter().enumerate() {
        match name.len() {
            0 => faults.push(format!("entry {number} has an empty name")),
            1..=NAME_BYTES_MAX if !names.insert(name) => {
                faults.push(format!("entry {number} repeats the name {}", quoted(name)));
            }
            1..=NAME_BYTES_MAX => {}
            bytes => faults.push(format!("entry {number} has a name of {bytes} bytes, and 255 are the most")),
        }
        if !(weight.is_finite() && *weight > 0.0) {
            faults.push(format!("entry {number} has the weight {weight}, which must be above 0"));
        }
        match preferred {
            Some(first) if *is_preferred => {
                faults.push(format!("entries {first} and {number} are both preferred"));
            }
            _ => preferred = preferred.or(is_preferred.then_some(number)),
        }
    }
    faults
}

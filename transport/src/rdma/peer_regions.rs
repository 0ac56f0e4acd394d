//! The memory of a client that a server may access: addresses and keys, as the client named them.
//!
//! Bounded: a client that names more regions or keys ends its link.

use std::collections::BTreeMap;

use pagelith_io::verbs::RemotePiece;
use pagelith_layouts::wire::rdma_regions::{self, RegionItem};
use pagelith_mutants::{self as mutant, Mutant};

use super::requests::RemoteRange;
use crate::link_error::LinkError;

/// Maximum regions of a client, each on each of its rails.
pub(crate) const PEER_REGIONS_MAX: usize = 4096;
/// Least length of a chunk that is not the only one of its region.
const CHUNK_BYTES_MIN: u64 = 4096;
/// Maximum keys of a client.
const KEYS_MAX: usize = 1 << 20;

/// The regions of one client.
pub(crate) struct PeerRegions {
    rails: usize,
    /// By number and rail.
    regions: BTreeMap<(u32, u32), PeerRegion>,
    keys: usize,
}

struct PeerRegion {
    base: u64,
    length: u64,
    chunk_bytes: u64,
    keys: Vec<u32>,
}

impl PeerRegions {
    /// No region yet, of a client with `rails` rails.
    pub fn new(rails: usize) -> PeerRegions {
        PeerRegions { rails, regions: BTreeMap::new(), keys: 0 }
    }

    /// Add or remove the regions of a frame.
    pub fn receive(&mut self, body: &[u8]) -> Result<(), LinkError> {
        for (item, keys) in rdma_regions::decode(body)?.iter() {
            if item.rail as usize >= self.rails {
                return Err(LinkError::bad_field("rail", item.rail));
            }
            let RegionItem { number, rail, base, length, chunk_bytes } = item;
            if length == 0 {
                let removed = self.regions.remove(&(number, rail));
                self.keys -= removed.map_or(0, |region| region.keys.len());
                continue;
            }
            if chunk_bytes < CHUNK_BYTES_MIN.min(length) {
                return Err(LinkError::bad_field("chunk_bytes", chunk_bytes));
            }
            self.keys += keys.len();
            let room = self.regions.len() < PEER_REGIONS_MAX * self.rails && self.keys <= KEYS_MAX;
            if !room || self.regions.contains_key(&(number, rail)) {
                return Err(LinkError::bad_field("regions", number));
            }
            let keys = keys.iter().collect();
            self.regions.insert((number, rail), PeerRegion { base, length, chunk_bytes, keys });
        }
        Ok(())
    }

    /// Whether a range lies in a region, on every rail.
    pub fn has(&self, number: u32, at: u64, length: u64) -> bool {
        let end = at.checked_add(length);
        (0..self.rails as u32).all(|rail| {
            let region = self.regions.get(&(number, rail));
            region.is_some_and(|region| end.is_some_and(|end| end <= region.length))
        })
    }

    /// Append a range as the peer's device knows it on a rail, cut at the edges of chunks; false if
    /// it does not lie in a region.
    pub fn remote(
        &self,
        rail: usize,
        (number, at, length): (u32, u64, u64),
        to: &mut Vec<RemoteRange>,
    ) -> bool {
        let key = (number, u32::try_from(rail).unwrap_or(u32::MAX));
        let Some(region) = self.regions.get(&key) else { return false };
        let Some(end) = at.checked_add(length).filter(|end| *end <= region.length) else {
            return false;
        };
        let base = match self.regions.values().next() {
            Some(first) if mutant::on(Mutant::RdmaWrongBase) => first.base,
            _ => region.base,
        };
        let mut at = at;
        while at < end {
            let chunk = at / region.chunk_bytes;
            let next = end.min((chunk + 1).saturating_mul(region.chunk_bytes));
            let Some(key) = usize::try_from(chunk).ok().and_then(|chunk| region.keys.get(chunk))
            else {
                return false;
            };
            let start = RemotePiece { address: base + at, key: *key };
            to.push(RemoteRange { start, length: next - at });
            at = next;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_shorter_than_a_page_are_refused_unless_the_region_is_one_chunk() {
        let receive = |length: u64, chunk_bytes: u64| {
            let item = RegionItem { number: 1, rail: 0, base: 1 << 20, length, chunk_bytes };
            let keys = vec![5; item.chunks() as usize];
            PeerRegions::new(1).receive(&rdma_regions::encode(&[item], &keys))
        };
        assert_eq!(receive(100, 100), Ok(()));
        assert_eq!(receive(100, 4096), Ok(()));
        assert_eq!(receive(10_000, 4096), Ok(()));
        assert!(receive(10_000, 4095).is_err() && receive(100, 99).is_err());
    }
}

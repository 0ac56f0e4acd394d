//! The registered memory of this process, as one link knows it.

use std::sync::Arc;

use super::host::RdmaHost;
use super::region::RdmaRegion;
use super::requests::LocalRange;

/// A copy of the host's list of regions, sorted by address.
pub(crate) struct OwnRegions {
    /// Version of the list; `None` before the first copy.
    version: Option<u64>,
    sorted: Vec<Arc<RdmaRegion>>,
}

impl OwnRegions {
    pub fn new() -> OwnRegions {
        OwnRegions { version: None, sorted: Vec::new() }
    }

    /// Copy the list if it has changed. Returns whether it had.
    pub fn refresh(&mut self, host: &RdmaHost) -> bool {
        let version = host.version();
        if self.version == Some(version) {
            return false;
        }
        self.version = Some(version);
        self.sorted = host.regions();
        self.sorted.sort_by_key(|region| region.base());
        true
    }

    /// All regions, by address.
    pub fn all(&self) -> &[Arc<RdmaRegion>] {
        &self.sorted
    }

    /// The region that has all of these bytes, and their offset in it.
    pub fn find(&self, address: usize, length: usize) -> Option<LocalRange> {
        let next = self.sorted.partition_point(|region| region.base() <= address as u64);
        // Regions may overlap: the one that begins last need not be the one that has all bytes.
        self.sorted[..next].iter().rev().find_map(|region| {
            let at = region.offset_of(address, length)?;
            Some(LocalRange { region: region.clone(), at, length: length as u64 })
        })
    }
}

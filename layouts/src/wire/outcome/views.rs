//! Views: the location of objects in the store's memory, for clients that read them there.

use super::OutcomeHead;
use crate::checksum::{Checksum, checksum};
use crate::error::FormatError;
use crate::format::{is_zero, structure};
use crate::record::OBJECT_BYTES_MAX;
use crate::wire::List;

structure! {
    /// One object of a view.
    pub struct ViewItem = 56 {
        /// XXH3-128 of the whole key, never zero.
        key_hash: Checksum,
        /// XXH3-128 of the checksums of its blocks, 16 bytes each, in order.
        digest: Checksum,
        /// Offset of the object in the region.
        at: u64,
        /// Length; 0 if it is not in memory.
        length: u64,
        /// Number of the region.
        region: u32,
        /// Zero.
        reserved: u32,
    }
}

const WHAT: &str = "view";

/// Location of an object in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionExtent {
    /// Number of the region.
    pub region: u32,
    /// Offset in the region, in bytes.
    pub at: u64,
    /// Length in bytes.
    pub length: u64,
    /// [`digest`] of its checksums.
    pub digest: Checksum,
}

/// XXH3-128 of the checksums of an object's blocks.
pub fn digest(checksums: &[Checksum]) -> Checksum {
    checksum(bytemuck::cast_slice(checksums))
}

impl ViewItem {
    /// The item of the object whose key has this hash; `location` is `None` if it is not in memory.
    pub fn of(key_hash: Checksum, location: Option<RegionExtent>) -> ViewItem {
        let item = ViewItem { key_hash, ..bytemuck::Zeroable::zeroed() };
        location.map_or(item, |RegionExtent { region, at, length, digest }| ViewItem {
            digest,
            at,
            length,
            region,
            ..item
        })
    }

    /// The hash of its key.
    pub fn key_hash(&self) -> Checksum {
        self.key_hash
    }

    /// Location of the object; `None` if it is not in memory.
    pub fn location(&self) -> Option<RegionExtent> {
        let ViewItem { region, at, length, digest, .. } = *self;
        (length > 0).then_some(RegionExtent { region, at, length, digest })
    }

    fn check(&self) -> Result<(), FormatError> {
        let in_memory = self.length > 0;
        let checks = [
            ("key_hash", !is_zero(&self.key_hash)),
            ("digest", is_zero(&self.digest) != in_memory),
            ("at", in_memory || self.at == 0),
            (
                "length",
                self.length <= OBJECT_BYTES_MAX && self.at.checked_add(self.length).is_some(),
            ),
            ("region", in_memory || self.region == 0),
            ("reserved", self.reserved == 0),
        ];
        match checks.into_iter().find(|(_, ok)| !ok) {
            Some((field, _)) => Err(FormatError::field(WHAT, field, "out of range")),
            None => Ok(()),
        }
    }
}

pub(super) fn read<'a>(
    head: &OutcomeHead,
    rest: &mut &'a [u8],
) -> Result<List<'a, ViewItem>, FormatError> {
    let items = List::<ViewItem>::take(rest, head.item_count);
    let items = items
        .ok_or_else(|| FormatError::field("outcome", "item_count", "beyond the end of the body"))?;
    items.iter().try_for_each(|item| item.check())?;
    Ok(items)
}

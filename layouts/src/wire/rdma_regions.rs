//! Regions: memory of a client that the store may read and write by RDMA. They are the only frames
//! with memory addresses, all of them the client's own.

use super::List;
use crate::error::FormatError;
use crate::format::{read, structure};

structure! {
    /// Start of the body of a regions frame. `items` items follow, then the remote keys of all
    /// chunks, of 4 bytes each, in the order of the items and of the addresses.
    pub struct RegionsHead = 8 {
        /// Number of items, at least 1.
        items: u32,
        /// Number of keys.
        keys: u32,
    }
}

structure! {
    /// One region on one rail. Its memory is registered in chunks, each with a key of its own.
    pub struct RegionItem = 32 {
        /// Number of the region, which no other region of the connection ever has.
        pub number: u32,
        /// Number of the rail.
        pub rail: u32,
        /// Address of its first byte in the client's process.
        pub base: u64,
        /// Length; 0 if the region is removed, which is no longer used.
        pub length: u64,
        /// Length of each chunk, except that the last may be shorter; zero if the region is
        /// removed.
        pub chunk_bytes: u64,
    }
}

const WHAT: &str = "regions";

impl RegionItem {
    /// The number of keys.
    pub fn chunks(&self) -> u64 {
        if self.chunk_bytes == 0 { 0 } else { self.length.div_ceil(self.chunk_bytes) }
    }
}

/// A decoded regions frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions<'a> {
    items: List<'a, RegionItem>,
    keys: List<'a, u32>,
}

impl<'a> Regions<'a> {
    /// Each item and the keys of its chunks, in order.
    pub fn iter(&self) -> impl Iterator<Item = (RegionItem, List<'a, u32>)> + use<'a> {
        let (items, keys) = (self.items, self.keys);
        items.iter().scan(0usize, move |first, item| {
            // `decode` has compared the sum of all counts with the number of keys.
            let last = *first + item.chunks() as usize;
            let keys = keys.slice(std::mem::replace(first, last), last);
            Some((item, keys))
        })
    }
}

/// Encode the body of a regions frame: items, and the keys of all their chunks.
pub fn encode(items: &[RegionItem], keys: &[u32]) -> Vec<u8> {
    let head = RegionsHead {
        items: u32::try_from(items.len()).unwrap_or(u32::MAX),
        keys: u32::try_from(keys.len()).unwrap_or(u32::MAX),
    };
    [bytemuck::bytes_of(&head), bytemuck::cast_slice(items), bytemuck::cast_slice(keys)].concat()
}

/// Read the body of a regions frame. The server must check that each rail exists.
pub fn decode(body: &[u8]) -> Result<Regions<'_>, FormatError> {
    let wrong = |field, value: u64| Err(FormatError::field(WHAT, field, value));
    let Some(head) = read::<RegionsHead>(body) else { return wrong("length", body.len() as u64) };
    let mut rest = &body[RegionsHead::BYTES..];
    let items = List::<RegionItem>::take(&mut rest, head.items);
    let Some(items) = items.filter(|items| !items.is_empty()) else {
        return wrong("items", head.items.into());
    };
    let Some(keys) = List::<u32>::take(&mut rest, head.keys).filter(|_| rest.is_empty()) else {
        return wrong("keys", head.keys.into());
    };
    let mut chunks = 0u64;
    for item in items.iter() {
        let removed = (item.base, item.length, item.chunk_bytes) == (0, 0, 0);
        if !removed && (item.length == 0 || item.base.checked_add(item.length).is_none()) {
            return wrong("length", item.length);
        }
        if !removed && item.chunk_bytes == 0 {
            return wrong("chunk_bytes", item.chunk_bytes);
        }
        chunks = chunks.saturating_add(item.chunks());
    }
    if chunks != u64::from(head.keys) {
        return wrong("keys", head.keys.into());
    }
    Ok(Regions { items, keys })
}

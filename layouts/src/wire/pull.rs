//! Pulls: the server requests bytes of a put. It never requests objects that are present already,
//! and it requests only bytes for which it has reserved memory.

use super::List;
use crate::error::FormatError;
use crate::format::structure;
use crate::record::OBJECT_BYTES_MAX;

structure! {
    /// One byte range of one item; the body of a pull is one or several.
    pub struct PullItem = 24 {
        /// Number of the item.
        pub item: u32,
        /// Zero.
        reserved: u32,
        /// First byte of the range in the object.
        pub offset: u64,
        /// Length of the range, at least 1.
        pub length: u64,
    }
}

const WHAT: &str = "pull";

impl PullItem {
    /// A byte range of an item.
    pub fn new(item: u32, offset: u64, length: u64) -> PullItem {
        PullItem { item, reserved: 0, offset, length }
    }
}

/// The body of a pull.
pub fn encode(items: &[PullItem]) -> Vec<u8> {
    bytemuck::cast_slice(items).to_vec()
}

/// Read the body of a pull. The client must check that each range is inside an object of the put.
pub fn decode(body: &[u8]) -> Result<List<'_, PullItem>, FormatError> {
    let count = (body.len() / PullItem::BYTES) as u32;
    let mut rest = body;
    let items = List::<PullItem>::take(&mut rest, count)
        .filter(|items| rest.is_empty() && !items.is_empty());
    let items = items.ok_or_else(|| FormatError::field(WHAT, "length", body.len()))?;
    for i in items.iter() {
        if i.reserved != 0 {
            return Err(FormatError::field(WHAT, "reserved", i.reserved));
        }
        let end = i.offset.checked_add(i.length);
        if i.length == 0 || end.is_none_or(|end| end > OBJECT_BYTES_MAX) {
            return Err(FormatError::field(WHAT, "length", i.length));
        }
    }
    Ok(items)
}

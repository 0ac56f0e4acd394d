//! Placement of bytes by RDMA: where a client wants them, which bytes a store has written there,
//! and the notices that say that they have landed.

use super::List;
use crate::error::FormatError;
use crate::format::{read, structure};
use crate::record::OBJECT_BYTES_MAX;

structure! {
    /// Where a range of an item is to be written; the body of a targets frame is one or several, of
    /// the frame's operation.
    pub struct TargetItem = 32 {
        /// Number of the item.
        pub item: u32,
        /// Number of the region.
        pub region: u32,
        /// First byte, from the start of the requested range.
        pub offset: u64,
        /// Offset in the region.
        pub at: u64,
        /// Length, at least 1.
        pub length: u64,
    }
}

structure! {
    /// Body of a placed frame. Operation, item and offset are in its head.
    pub struct PlacedBody = 16 {
        /// Number of the notice on that rail that follows the bytes, from 1. They have landed once
        /// the client has polled it.
        pub notice: u64,
        /// Number of bytes, at least 1.
        pub length: u32,
        /// Number of the rail.
        pub rail: u32,
    }
}

structure! {
    /// The notices of one rail that the client has polled; the body of a noticed frame is one or
    /// several.
    pub struct NoticedItem = 16 {
        /// Number of the rail.
        pub rail: u32,
        /// Zero.
        reserved: u32,
        /// Notices polled since the connection began.
        pub notices: u64,
    }
}

const TARGETS: &str = "targets";
const PLACED: &str = "placed";
const NOTICED: &str = "noticed";

/// Most bytes of one placed frame.
pub const PLACED_BYTES_MAX: u32 = super::DATA_BODY_MAX;

/// Encode the body of a targets frame.
pub fn encode_targets(items: &[TargetItem]) -> Vec<u8> {
    bytemuck::cast_slice(items).to_vec()
}

/// Read the body of a targets frame. The server must check that each range is inside its region.
pub fn decode_targets(body: &[u8]) -> Result<List<'_, TargetItem>, FormatError> {
    let items = whole::<TargetItem>(TARGETS, body)?;
    for item in items.iter() {
        let end = item.offset.checked_add(item.length);
        if item.length == 0 || end.is_none_or(|end| end > OBJECT_BYTES_MAX) {
            return Err(FormatError::field(TARGETS, "length", item.length));
        }
        if item.at.checked_add(item.length).is_none() {
            return Err(FormatError::field(TARGETS, "at", item.at));
        }
    }
    Ok(items)
}

impl PlacedBody {
    /// The body of a placed frame.
    pub fn encode(&self) -> Vec<u8> {
        bytemuck::bytes_of(self).to_vec()
    }

    /// Read the body of a placed frame. The client must check that the rail exists.
    pub fn decode(body: &[u8]) -> Result<PlacedBody, FormatError> {
        let wrong = |field, value: u64| Err(FormatError::field(PLACED, field, value));
        let placed = read::<PlacedBody>(body).filter(|_| body.len() == PlacedBody::BYTES);
        let Some(placed) = placed else { return wrong("length", body.len() as u64) };
        if placed.notice == 0 {
            return wrong("notice", placed.notice);
        }
        if !(1..=PLACED_BYTES_MAX).contains(&placed.length) {
            return wrong("length", placed.length.into());
        }
        Ok(placed)
    }
}

impl NoticedItem {
    /// So many notices of a rail.
    pub fn new(rail: u32, notices: u64) -> NoticedItem {
        NoticedItem { rail, reserved: 0, notices }
    }
}

/// Encode the body of a noticed frame.
pub fn encode_noticed(items: &[NoticedItem]) -> Vec<u8> {
    bytemuck::cast_slice(items).to_vec()
}

/// Read the body of a noticed frame. The server must check that each rail exists, and that it
/// posted as many notices.
pub fn decode_noticed(body: &[u8]) -> Result<List<'_, NoticedItem>, FormatError> {
    let items = whole::<NoticedItem>(NOTICED, body)?;
    match items.iter().find(|item| item.reserved != 0) {
        Some(item) => Err(FormatError::field(NOTICED, "reserved", item.reserved)),
        None => Ok(items),
    }
}

/// A body of one or several structures and nothing else.
fn whole<'a, T: bytemuck::AnyBitPattern>(
    what: &'static str,
    body: &'a [u8],
) -> Result<List<'a, T>, FormatError> {
    let count = (body.len() / size_of::<T>()) as u32;
    let mut rest = body;
    List::<T>::take(&mut rest, count)
        .filter(|items| rest.is_empty() && !items.is_empty())
        .ok_or_else(|| FormatError::field(what, "length", body.len()))
}

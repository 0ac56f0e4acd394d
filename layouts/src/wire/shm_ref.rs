//! Bytes that are passed by reference: their location in memory that the sender handed over on the
//! connection's socket. The receiver copies them, releases the reference, and compares checksums.
//! The sender does not change them before the release, or before a timeout of its own choice.

use super::List;
use crate::error::FormatError;
use crate::format::{read, structure};
use crate::ids::OpId;
use crate::record::OBJECT_BYTES_MAX;

structure! {
    /// Start of the body of a shown frame. `pieces` pieces follow.
    pub struct ShownHead = 16 {
        /// Number of the item.
        item: u32,
        /// Number of pieces, at least 1.
        pieces: u32,
        /// First byte, from the start of the requested range.
        offset: u64,
    }
}

structure! {
    /// Contiguous bytes in one region.
    pub struct ShownPiece = 24 {
        /// Number of the region.
        pub region: u32,
        /// Zero.
        reserved: u32,
        /// Offset in the region or file.
        pub at: u64,
        /// Length, at least 1.
        pub length: u64,
    }
}

structure! {
    /// One range that the receiver no longer reads; the body is one or several.
    pub struct TakenItem = 24 {
        /// Operation.
        op: u64,
        /// Number of the item, as in the shown frame.
        item: u32,
        /// Bit 0, only over RDMA: the bytes were not read and are to be sent as data.
        flags: u32,
        /// Position of the range in the item, as in the shown frame.
        offset: u64,
    }
}

const SHOWN: &str = "shown";
const TAKEN: &str = "taken";

/// Identifies a range of an item on a link: operation, item, and position in the item.
pub type ItemRange = (OpId, u32, u64);

impl ShownPiece {
    /// A range of a region.
    pub fn new(region: u32, at: u64, length: u64) -> ShownPiece {
        ShownPiece { region, reserved: 0, at, length }
    }
}

/// A decoded frame that passes bytes by reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShmRefBody<'a> {
    /// Number of the item in its request.
    pub item: u32,
    /// Position of the first byte, in bytes from the start of the requested range.
    pub offset: u64,
    /// Total length of the pieces in bytes.
    pub length: u64,
    /// Location of the bytes, in order.
    pub pieces: List<'a, ShownPiece>,
}

/// Encode the body of a frame that passes bytes by reference.
pub fn encode(item: u32, offset: u64, pieces: &[ShownPiece]) -> Vec<u8> {
    let count = u32::try_from(pieces.len()).unwrap_or(u32::MAX);
    let head = ShownHead { item, pieces: count, offset };
    [bytemuck::bytes_of(&head), bytemuck::cast_slice(pieces)].concat()
}

/// Read the body of a frame that passes bytes by reference. The receiver must check that each piece
/// is inside a region.
pub fn decode(body: &[u8]) -> Result<ShmRefBody<'_>, FormatError> {
    let wrong = |field, value: u64| Err(FormatError::field(SHOWN, field, value));
    let Some(head) = read::<ShownHead>(body) else { return wrong("length", body.len() as u64) };
    let mut rest = &body[ShownHead::BYTES..];
    let pieces = List::<ShownPiece>::take(&mut rest, head.pieces);
    let Some(pieces) = pieces.filter(|pieces| rest.is_empty() && !pieces.is_empty()) else {
        return wrong("pieces", head.pieces.into());
    };
    let mut length = 0u64;
    for piece in pieces.iter() {
        if piece.reserved != 0 {
            return wrong("reserved", piece.reserved.into());
        }
        let inside =
            piece.at.checked_add(piece.length).is_some() && piece.length <= OBJECT_BYTES_MAX;
        if piece.length == 0 || !inside {
            return wrong("length", piece.length);
        }
        length += piece.length;
    }
    if head.offset.checked_add(length).is_none_or(|end| end > OBJECT_BYTES_MAX) {
        return wrong("offset", head.offset);
    }
    Ok(ShmRefBody { item: head.item, offset: head.offset, length, pieces })
}

/// A range that the receiver no longer reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Released {
    /// The range.
    pub range: ItemRange,
    /// The bytes were not read: the sender sends them as data. Only over RDMA.
    pub unread: bool,
}

/// Bit of [`TakenItem`]'s flags: the bytes were not read.
const UNREAD: u32 = 1;

/// Encode the body of a frame that lists ranges no longer read.
pub fn encode_released(ranges: &[Released]) -> Vec<u8> {
    let item = |released: &Released| {
        let (op, item, offset) = released.range;
        TakenItem { op: op.0, item, flags: if released.unread { UNREAD } else { 0 }, offset }
    };
    bytemuck::cast_slice(&ranges.iter().map(item).collect::<Vec<_>>()).to_vec()
}

/// Read the body of a frame that lists ranges no longer read. The receiver must ignore ranges that
/// it never passed.
pub fn decode_released(body: &[u8]) -> Result<impl Iterator<Item = Released>, FormatError> {
    let count = (body.len() / TakenItem::BYTES) as u32;
    let mut rest = body;
    let items = List::<TakenItem>::take(&mut rest, count)
        .filter(|items| rest.is_empty() && !items.is_empty());
    let items = items.ok_or_else(|| FormatError::field(TAKEN, "length", body.len()))?;
    for item in items.iter() {
        if item.flags & !UNREAD != 0 {
            return Err(FormatError::field(TAKEN, "flags", item.flags));
        }
        if item.op == 0 {
            return Err(FormatError::field(TAKEN, "op", item.op));
        }
    }
    Ok(items.iter().map(|item| Released {
        range: (OpId(item.op), item.item, item.offset),
        unread: item.flags & UNREAD != 0,
    }))
}

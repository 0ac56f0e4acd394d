//! The header of a segment: its identity in this incarnation. The manifest has the same facts;
//! where they differ, the manifest is authoritative.

use crate::align::ALIGN;
use crate::checksum::{Checksum, checksum_around};
use crate::error::FormatError;
use crate::format::{VERSION, read, structure};
use crate::ids::{Incarnation, SegmentId, SegmentOrder, StoreId};

structure! {
    /// First block of a segment.
    pub struct SegmentHead = 96 {
        /// `PLSEGMNT`.
        magic: [u8; 8],
        /// XXH3-128 of the block.
        checksum: Checksum,
        /// Format version.
        version: u16,
        /// Zero.
        reserved: u16,
        /// Segment number.
        segment: u32,
        /// Store.
        store: StoreId,
        /// Incarnation.
        incarnation: u64,
        /// Number of incarnations opened in the store so far.
        order: u64,
        /// Length of the segment.
        segment_bytes: u64,
        /// Zero.
        tail: [u8; 24],
    }
}

const WHAT: &str = "segment header";
const MAGIC: [u8; 8] = *b"PLSEGMNT";
const CHECKSUM_AT: usize = 8;

/// Shortest segment in bytes that the format allows.
pub const SEGMENT_BYTES_MIN: u64 = 4 * ALIGN;
/// Longest segment in bytes: index entries and checkpoint entries address 4096-byte blocks in it by
/// 16 bits.
pub const SEGMENT_BYTES_MAX: u64 = (u16::MAX as u64 + 1) * ALIGN;

/// Store, segment and incarnation. Every structure inside a segment repeats them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentIdentity {
    /// The store.
    pub store: StoreId,
    /// The segment.
    pub segment: SegmentId,
    /// Its incarnation.
    pub incarnation: Incarnation,
}

/// Encode the header into a 4096-byte block.
pub fn encode_head(
    identity: SegmentIdentity,
    order: SegmentOrder,
    segment_bytes: u64,
) -> [u8; ALIGN as usize] {
    let mut block = [0; ALIGN as usize];
    let head = SegmentHead {
        magic: MAGIC,
        checksum: [0; 16],
        version: VERSION,
        reserved: 0,
        segment: identity.segment.0,
        store: identity.store,
        incarnation: identity.incarnation.0,
        order: order.0,
        segment_bytes,
        tail: [0; 24],
    };
    block[..SegmentHead::BYTES].copy_from_slice(bytemuck::bytes_of(&head));
    if let Some(sum) = checksum_around(&block, CHECKSUM_AT) {
        block[CHECKSUM_AT..CHECKSUM_AT + 16].copy_from_slice(&sum);
    }
    block
}

/// Read the header of `segment` and check that it belongs to `store`. The incarnation is returned
/// and not checked: only the manifest has the current one.
pub fn decode_head(
    block: &[u8],
    store: StoreId,
    segment: SegmentId,
) -> Result<(Incarnation, SegmentOrder, u64), FormatError> {
    let short = FormatError::Short { structure: WHAT, need: ALIGN, have: block.len() as u64 };
    let block = block.get(..ALIGN as usize).ok_or_else(|| short.clone())?;
    let head: SegmentHead = read(block).ok_or(short)?;
    if head.magic == [0; 8] {
        return Err(FormatError::Empty { structure: WHAT });
    }
    if head.magic != MAGIC {
        return Err(FormatError::Magic { structure: WHAT });
    }
    if checksum_around(block, CHECKSUM_AT) != Some(head.checksum) {
        return Err(FormatError::Checksum { structure: WHAT });
    }
    if head.version != VERSION {
        return Err(FormatError::Version { structure: WHAT, found: head.version, known: VERSION });
    }
    FormatError::same(WHAT, "store", head.store, store)?;
    FormatError::same(WHAT, "segment", head.segment, segment.0)?;
    let identity = SegmentIdentity { store, segment, incarnation: Incarnation(head.incarnation) };
    let order = SegmentOrder(head.order);
    // Equality with the re-encoded header implies that every reserved byte is zero.
    if encode_head(identity, order, head.segment_bytes) != block {
        return Err(FormatError::field(WHAT, "reserved", "not zero"));
    }
    Ok((identity.incarnation, order, head.segment_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: StoreId = StoreId([7; 16]);
    const SEGMENT: SegmentId = SegmentId(3);

    fn head() -> [u8; ALIGN as usize] {
        let identity =
            SegmentIdentity { store: STORE, segment: SEGMENT, incarnation: Incarnation(9) };
        encode_head(identity, SegmentOrder(21), 1 << 20)
    }

    /// The header with one byte changed and a valid checksum.
    fn forged(at: usize, value: u8) -> [u8; ALIGN as usize] {
        let mut block = head();
        block[at] = value;
        let sum = checksum_around(&block, CHECKSUM_AT).expect("a hole inside");
        block[CHECKSUM_AT..CHECKSUM_AT + 16].copy_from_slice(&sum);
        block
    }

    #[test]
    fn longest_segment_is_256_mib() {
        assert_eq!(SEGMENT_BYTES_MAX, 256 << 20);
    }

    #[test]
    fn segment_header_round_trips() {
        let read = decode_head(&head(), STORE, SEGMENT);
        assert_eq!(read, Ok((Incarnation(9), SegmentOrder(21), 1 << 20)));
    }

    #[test]
    fn every_flipped_bit_of_segment_header_is_detected() {
        let mut block = head();
        for bit in 0..block.len() * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(decode_head(&block, STORE, SEGMENT).is_err(), "bit={bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn segment_header_of_other_place_is_refused_by_field() {
        let other = decode_head(&head(), StoreId([8; 16]), SEGMENT).unwrap_err();
        assert!(other.to_string().contains("field=store"), "{other}");
        let other = decode_head(&head(), STORE, SegmentId(4)).unwrap_err();
        let expected = "identity of segment header does not match field=segment found=3 expected=4";
        assert_eq!(other.to_string(), expected);
    }

    #[test]
    fn invalid_segment_header_error_names_reason() {
        let refused = |block: &[u8]| decode_head(block, STORE, SEGMENT).unwrap_err();
        assert_eq!(refused(&[0; 4096]), FormatError::Empty { structure: WHAT });
        assert_eq!(refused(&[1; 4096]), FormatError::Magic { structure: WHAT });
        assert_eq!(
            refused(&head()[..4095]),
            FormatError::Short { structure: WHAT, need: 4096, have: 4095 }
        );
        let version = std::mem::offset_of!(SegmentHead, version);
        let newer = FormatError::Version { structure: WHAT, found: 2, known: VERSION };
        assert_eq!(refused(&forged(version, 2)), newer);
        for reserved in [std::mem::offset_of!(SegmentHead, reserved), 90, SegmentHead::BYTES, 4095]
        {
            assert_eq!(
                refused(&forged(reserved, 1)),
                FormatError::field(WHAT, "reserved", "not zero")
            );
        }
    }
}

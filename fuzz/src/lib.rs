//! Shared code of the fuzz targets. A fuzzer cannot guess a checksum, so each target reads its
//! input twice: as it is, and with every checksum corrected, as an attacker or a defective writer
//! could make it.
#![forbid(unsafe_code)]

pub mod client;
pub mod damaged;
pub mod operations;
#[path = "../../transport/tests/common/rings.rs"]
pub mod rings;

use pagelith_layouts::checksum::checksum_around;
use pagelith_layouts::ids::{Incarnation, SegmentId, StoreId};
use pagelith_layouts::segment::SegmentIdentity;

/// The golden store's id (`layouts/tests/common`), so that its files are seeds.
pub const STORE: StoreId = StoreId(*b"store for tests.");

/// The identity of the golden segment, in its second incarnation.
pub const IDENTITY: SegmentIdentity =
    SegmentIdentity { store: STORE, segment: SegmentId(1), incarnation: Incarnation(2) };

/// Bytes of an alignment unit.
pub const BLOCK: usize = 4096;

/// Makes the checksum at `at` right; false if the input is too short to have one.
pub fn seal(bytes: &mut [u8], at: usize) -> bool {
    let Some(sum) = checksum_around(bytes, at) else { return false };
    bytes[at..at + 16].copy_from_slice(&sum);
    true
}

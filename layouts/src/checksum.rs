//! Checksums and key fingerprints. Payload blocks and headers are covered by XXH3-128
//! (<https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md>). The index identifies a key
//! by its keyed 128-bit fingerprint.
//!
//! Only this file names XXH3, except for `pagelith_io::hashed_copy`, which computes it while it
//! copies and is tested against this file.
//!
//! Payload and one-block headers are hashed by `twox-hash`, which detects the vector width of the
//! CPU at run time: a build for baseline x86-64 uses AVX2 where the CPU has it. Keys are short and
//! long headers are rare; both are hashed by `xxhash-rust`, whose streaming state needs no heap
//! memory.

use std::ops::Range;

use pagelith_mutants::{self as mutant, Mutant};
use smallvec::SmallVec;
use twox_hash::XxHash3_128;
use xxhash_rust::xxh3::{Xxh3, xxh3_64, xxh3_128_with_secret};

use crate::align::ALIGN;
use crate::ids::Generation;
use crate::key::ObjectKey;

/// A checksum as stored on disk: XXH3-128, little-endian.
pub type Checksum = [u8; 16];

/// The checksums of an object's blocks, in order. Up to two are stored inline: two blocks is the
/// smallest common object size, so such an object needs no separate allocation.
pub type Checksums = SmallVec<[Checksum; 2]>;

/// Default block size in bytes: the unit of payload checksums, to which a range read is widened.
/// Small enough to be hashed in the L1/L2 cache, large enough that 16 bytes per block are 0.05 %.
pub const BLOCK_BYTES: u32 = 32 * 1024;

/// Largest block size in bytes that the format allows: a reader must hold one block to verify it.
pub const BLOCK_BYTES_MAX: u32 = 1 << 20;

/// Whether `block_bytes` is a valid block size: a multiple of 4096, from 4096 to
/// [`BLOCK_BYTES_MAX`].
pub const fn is_valid_block_bytes(block_bytes: u32) -> bool {
    block_bytes > 0
        && block_bytes <= BLOCK_BYTES_MAX
        && crate::align::is_aligned(block_bytes as u64)
}

/// The checksum of `bytes`.
pub fn checksum(bytes: &[u8]) -> Checksum {
    XxHash3_128::oneshot(bytes).to_le_bytes()
}

/// XXH3-64 of `bytes`: the checksum of wire frames, which is never stored.
pub fn checksum64(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

/// The checksum of a whole key, by which an outcome names its key. Never 0.
pub fn key_hash(key: &ObjectKey) -> Checksum {
    u128::from_le_bytes(checksum(key.as_bytes())).max(1).to_le_bytes()
}

/// The checksum of `bytes` with the 16 bytes at `hole` read as zero, so that a structure covers its
/// own checksum field. `None` if `hole + 16` exceeds the length of `bytes`.
pub fn checksum_around(bytes: &[u8], hole: usize) -> Option<Checksum> {
    let rest = bytes.get(hole.checked_add(16)?..)?;
    // Most headers, and all manifest blocks, are one block long. Hashing a copy uses the full
    // vector width, which the streaming hash does not, and takes half the time.
    if bytes.len() <= ALIGN as usize {
        let mut block = [0; ALIGN as usize];
        let copy = &mut block[..bytes.len()];
        copy[..hole].copy_from_slice(&bytes[..hole]);
        copy[hole + 16..].copy_from_slice(rest);
        return Some(checksum(copy));
    }
    let mut h = Xxh3::new();
    h.update(&bytes[..hole]);
    h.update(&[0; 16]);
    h.update(rest);
    Some(h.digest128().to_le_bytes())
}

/// The checksum of a block that arrives in pieces (a scatter list).
#[derive(Default)]
pub struct StreamChecksum(XxHash3_128);

impl StreamChecksum {
    /// A checksum over no bytes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Append `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The checksum of the bytes so far; resets the state.
    pub fn finish(&mut self) -> Checksum {
        std::mem::take(&mut self.0).finish_128().to_le_bytes()
    }
}

/// Number of blocks of an object of `length` bytes; `block_bytes` must not be 0.
pub const fn block_count(length: u64, block_bytes: u32) -> u64 {
    length.div_ceil(block_bytes as u64)
}

/// The intersection of each block of an object with the bytes `range`, in order;
/// `block_bytes` must not be 0.
pub fn blocks_in(range: Range<u64>, block_bytes: u32) -> impl Iterator<Item = Range<u64>> {
    let block_bytes = u64::from(block_bytes);
    let inside =
        move |n: u64| (n * block_bytes).max(range.start)..((n + 1) * block_bytes).min(range.end);
    (range.start / block_bytes..range.end.div_ceil(block_bytes)).map(inside)
}

/// The length in bytes of each range that [`blocks_in`] returns.
pub fn block_lengths(range: Range<u64>, block_bytes: u32) -> impl Iterator<Item = usize> {
    blocks_in(range, block_bytes).map(|block| (block.end - block.start) as usize)
}

/// Length of the fingerprint key in bytes: a full XXH3 secret, stored in the superblock.
pub const FINGERPRINT_KEY_BYTES: usize = 192;

/// The 128-bit keyed fingerprint of a key under a generation of its namespace. The hash covers the
/// generation, so that raising it makes every older index entry unreachable at once. Never 0.
pub fn fingerprint(
    secret: &[u8; FINGERPRINT_KEY_BYTES],
    key: &ObjectKey,
    generation: Generation,
) -> u128 {
    let generation =
        if mutant::on(Mutant::GenerationUnchecked) { Generation::FIRST } else { generation };
    let mut input = [0; ObjectKey::BYTES + 8];
    input[..8].copy_from_slice(&generation.0.to_le_bytes());
    input[8..].copy_from_slice(key.as_bytes());
    xxh3_128_with_secret(&input, secret).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_split_at_block_boundaries() {
        let of = |range| blocks_in(range, 10).collect::<Vec<_>>();
        assert_eq!(of(0..30), [0..10, 10..20, 20..30]);
        assert_eq!(of(13..31), [13..20, 20..30, 30..31]);
        assert_eq!(of(13..21), [13..20, 20..21]);
        assert_eq!((of(10..10), of(0..0)), (vec![], vec![]));
        assert_eq!(block_lengths(13..31, 10).collect::<Vec<_>>(), [7, 10, 1]);
    }

    #[test]
    fn checksum_field_counts_as_zeros() {
        for len in [64, 4095, 4096, 4097, 20_000] {
            let mut bytes: Vec<u8> = (0..len).map(|i| i as u8 | 1).collect();
            for hole in [0, 8, len - 16] {
                let around = checksum_around(&bytes, hole);
                let kept = bytes[hole..hole + 16].to_vec();
                bytes[hole..hole + 16].fill(0);
                assert_eq!(around, Some(checksum(&bytes)), "len={len} hole={hole}");
                bytes[hole..hole + 16].copy_from_slice(&kept);
            }
            assert_eq!(checksum_around(&bytes, len - 15), None);
        }
    }

    proptest::proptest! {
        /// Two implementations of one specification: each reads a store that the other wrote.
        #[test]
        fn both_xxh3_implementations_agree(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..5000), cut in 0usize..5000) {
            let other = xxhash_rust::xxh3::xxh3_128(&bytes).to_le_bytes();
            proptest::prop_assert_eq!(checksum(&bytes), other);
            let (a, b) = bytes.split_at(cut.min(bytes.len()));
            let mut stream = StreamChecksum::new();
            stream.update(a);
            stream.update(b);
            proptest::prop_assert_eq!(stream.finish(), other);
        }
    }

    #[test]
    fn stream_checksum_equals_one_pass_and_resets() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| i.wrapping_mul(31) as u8).collect();
        let mut s = StreamChecksum::new();
        for _ in 0..2 {
            bytes.chunks(777).for_each(|c| s.update(c));
            assert_eq!(s.finish(), checksum(&bytes));
        }
        assert_eq!(checksum(&bytes), xxhash_rust::xxh3::xxh3_128(&bytes).to_le_bytes());
    }

    #[test]
    fn block_size_out_of_bounds_is_invalid() {
        let sizes =
            [0, 512, 4095, 4096, BLOCK_BYTES, BLOCK_BYTES_MAX, BLOCK_BYTES_MAX + 4096, u32::MAX];
        assert_eq!(
            sizes.map(is_valid_block_bytes),
            [false, false, false, true, true, true, false, false]
        );
    }

    #[test]
    fn fingerprint_depends_on_secret_generation_and_every_key_byte() {
        let secret = std::array::from_fn(|i| i as u8);
        let key: ObjectKey = bytemuck::Zeroable::zeroed();
        let mut seen = vec![
            fingerprint(&secret, &key, Generation(1)),
            fingerprint(&secret, &key, Generation(2)),
            fingerprint(&[9; FINGERPRINT_KEY_BYTES], &key, Generation(1)),
        ];
        for i in 0..ObjectKey::BYTES {
            let mut bytes = [0u8; ObjectKey::BYTES];
            bytes[i] = 1;
            seen.push(fingerprint(&secret, &bytemuck::cast(bytes), Generation(1)));
        }
        let distinct: std::collections::HashSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), seen.len());
        assert_eq!(fingerprint(&secret, &key, Generation(1)), seen[0], "and on nothing else");
    }

    #[test]
    fn block_count_rounds_up() {
        assert_eq!([1, 32768, 32769].map(|n| block_count(n, BLOCK_BYTES)), [1, 1, 2]);
    }
}

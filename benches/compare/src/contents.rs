//! The contents of the objects: made before the measurement and kept, so that no side pays for them
//! and every returned value can be compared.

use anyhow::Context;
use pagelith::AlignedBuf;
use pagelith::layouts::checksum::{Checksum, checksum};

use crate::rng::mix;
use crate::work::Work;

/// Bytes compared at each of three places of a value that its engine has verified.
const SAMPLE_BYTES: usize = 64;

/// The bytes of all objects, concatenated.
pub(crate) struct Contents {
    object_bytes: usize,
    bytes: AlignedBuf,
    sums: Vec<Checksum>,
}

impl Contents {
    /// The contents of a seed. Object `n` is a stream of hashes of the position, starting at a hash
    /// of `n` and the seed (`nixl.py` makes the same kind itself): objects share words only by
    /// chance.
    pub(crate) fn new(work: &Work) -> anyhow::Result<Contents> {
        let len = usize::try_from(work.bytes())?;
        let mut bytes = AlignedBuf::new(len).context("no memory for the objects")?;
        let mut sums = Vec::with_capacity(work.objects as usize);
        for (number, object) in bytes.chunks_mut(work.object_bytes).enumerate() {
            let base = mix(mix(work.seed) ^ number as u64);
            let step = mix(base) | 1;
            for (at, word) in object.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                let x = base.wrapping_add(step.wrapping_mul(at as u64));
                let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
                *word = (x ^ (x >> 29)).to_le_bytes();
            }
            sums.push(checksum(object));
        }
        Ok(Contents { object_bytes: work.object_bytes, bytes, sums })
    }

    /// An object's bytes.
    pub(crate) fn of(&self, number: u64) -> &[u8] {
        let at = number as usize * self.object_bytes;
        &self.bytes[at..at + self.object_bytes]
    }

    /// Whether all of `value` is right, by one pass of xxh3.
    pub(crate) fn is_whole(&self, number: u64, value: &[u8]) -> bool {
        value.len() == self.object_bytes && checksum(value) == self.sums[number as usize]
    }

    /// Whether the length and a few bytes at the start, in the middle and at the end are right.
    pub(crate) fn samples_match(&self, number: u64, value: &[u8]) -> bool {
        let object = self.of(number);
        let places = [0, object.len() / 2, object.len() - SAMPLE_BYTES];
        let same = |at: usize| value[at..at + SAMPLE_BYTES] == object[at..at + SAMPLE_BYTES];
        value.len() == object.len() && places.into_iter().all(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_check_accepts_only_own_bytes() {
        let work = Work { object_bytes: 4096, objects: 3, batch: 1, depth: 1, threads: 1, seed: 5 };
        let contents = Contents::new(&work).unwrap();
        let mut value = contents.of(1).to_vec();
        assert!(contents.is_whole(1, &value) && contents.samples_match(1, &value));
        assert!(!contents.is_whole(2, &value) && !contents.samples_match(2, &value));
        assert!(!contents.is_whole(1, &value[1..]) && !contents.samples_match(1, &value[..4095]));
        value[1000] ^= 1;
        assert!(!contents.is_whole(1, &value));
        value[4095] ^= 1;
        assert!(!contents.samples_match(1, &value));
    }
}

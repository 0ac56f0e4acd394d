//! Content of replayed objects: a pseudorandom stream derived from the key and the seed. So every
//! byte that is read back can be checked without a copy of the bytes that were put.
//!
//! The streams of two keys differ in almost every word, and no stream equals a shifted copy of
//! itself or of another one. So bytes of another object, offset or run are detected.

use pagelith_layouts::key::ObjectKey;

use crate::rng::mix;

/// Generates and checks the bytes of objects.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Content {
    seed: u64,
}

/// One object's stream: word `i` is a hash of `base + i * step`.
#[derive(Clone, Copy)]
struct Stream {
    base: u64,
    step: u64,
}

impl Stream {
    fn word(self, i: usize) -> u64 {
        let x = self.base.wrapping_add(self.step.wrapping_mul(i as u64));
        // One multiplication per word: the check must be much faster than the store.
        let x = (x ^ (x >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        x ^ (x >> 29)
    }
}

impl Content {
    /// The contents of a run with this seed.
    pub(crate) fn new(seed: u64) -> Content {
        Content { seed }
    }

    fn stream(&self, key: &ObjectKey) -> Stream {
        let fold = |sum: u64, bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            mix(sum ^ u64::from_le_bytes(word))
        };
        let base = key.as_bytes().chunks(8).fold(mix(self.seed), fold);
        Stream { base, step: mix(base) | 1 }
    }

    /// Write the object's bytes.
    pub(crate) fn fill(&self, key: &ObjectKey, out: &mut [u8]) {
        let stream = self.stream(key);
        let mut words = out.chunks_exact_mut(8);
        let mut i = 0;
        for word in words.by_ref() {
            word.copy_from_slice(&stream.word(i).to_le_bytes());
            i += 1;
        }
        let rest = words.into_remainder();
        let last = stream.word(i).to_le_bytes();
        rest.copy_from_slice(&last[..rest.len()]);
    }

    /// Number of `bytes` that differ from the object's.
    pub(crate) fn wrong_bytes(&self, key: &ObjectKey, bytes: &[u8]) -> u64 {
        let stream = self.stream(key);
        let words = bytes.chunks_exact(8);
        let (whole, rest) = (bytes.len() / 8, words.remainder());
        let mut wrong = 0;
        for (i, word) in words.enumerate() {
            let mut found = [0; 8];
            found.copy_from_slice(word);
            let difference = u64::from_le_bytes(found) ^ stream.word(i);
            // The common case costs one comparison per word; otherwise the check would dominate the
            // run.
            if difference != 0 {
                wrong += difference.to_le_bytes().iter().filter(|b| **b != 0).count() as u64;
            }
        }
        let expected = stream.word(whole).to_le_bytes();
        wrong + rest.iter().zip(expected).filter(|(found, b)| *found != b).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::{NamespaceId, PrefixHash};
    use pagelith_layouts::key::Role;
    use pagelith_layouts::shard::Shard;

    use super::*;

    fn key(page: u8, component: &str) -> ObjectKey {
        let (namespace, hash) = (NamespaceId([1; 16]), PrefixHash([page; 32]));
        ObjectKey::new(namespace, hash, Role::Target, "kv", component, Shard::Whole).unwrap()
    }

    fn bytes(content: Content, key: &ObjectKey, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        content.fill(key, &mut out);
        out
    }

    #[test]
    fn each_flipped_bit_is_one_wrong_byte() {
        let (content, key) = (Content::new(5), key(1, "k"));
        for len in [1, 7, 8, 9, 61] {
            let good = bytes(content, &key, len);
            assert_eq!(content.wrong_bytes(&key, &good), 0, "len={len}");
            for bit in 0..len * 8 {
                let mut bad = good.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(content.wrong_bytes(&key, &bad), 1, "len={len} bit={bit}");
            }
        }
    }

    #[test]
    fn streams_of_other_keys_seeds_and_offsets_differ_almost_everywhere() {
        let content = Content::new(5);
        let (own, len) = (key(1, "k"), 4096);
        let good = bytes(content, &own, 2 * len);
        let others = [
            bytes(content, &key(2, "k"), len),
            bytes(content, &key(1, "v"), len),
            bytes(Content::new(6), &own, len),
            good[8..8 + len].to_vec(),
            good[1..1 + len].to_vec(),
            good[len..].to_vec(),
            vec![0; len],
        ];
        for (i, other) in others.iter().enumerate() {
            // One byte in 256 is equal by chance.
            assert!(content.wrong_bytes(&own, other) > 4000, "other={i}");
        }
    }
}

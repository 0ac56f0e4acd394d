//! The objects of a measurement, by number.

use anyhow::Context;
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;

use crate::rng::mix;

/// The keys of objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Objects {
    first: ObjectKey,
}

impl Objects {
    /// Objects of one length and seed.
    pub(super) fn new(object_bytes: usize, seed: u64) -> anyhow::Result<Objects> {
        let extra = vec![
            ("bytes".to_owned(), object_bytes.to_string()),
            ("seed".to_owned(), seed.to_string()),
        ];
        let namespace = Namespace { model: "bench".to_owned(), extra, ..Namespace::default() }.id();
        let first =
            ObjectKey::new(namespace, PrefixHash([0; 32]), Role::Target, "kv", "kv", Shard::Whole);
        Ok(Objects { first: first.context("a key of the bench")? })
    }

    /// The key of object `number`. It is mixed, not hashed with SHA-256 as a client's key, since
    /// the cost of keys is not measured.
    pub(super) fn key(&self, number: u64) -> ObjectKey {
        let mut hash = [0; 32];
        for (word, salt) in hash.as_chunks_mut::<8>().0.iter_mut().zip(0u64..) {
            *word = mix(number ^ salt << 56).to_le_bytes();
        }
        self.first.on_page(PrefixHash(hash))
    }
}

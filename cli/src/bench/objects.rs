//! The objects of a measurement, by number.

use anyhow::Context;
use pagelith::layouts::ids::NamespaceId;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::{Namespace, opaque_hash};
use pagelith::layouts::shard::Shard;

/// Names objects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Objects {
    namespace: NamespaceId,
}

impl Objects {
    /// Objects of one length, with the contents of one seed.
    pub(super) fn new(object_bytes: usize, seed: u64) -> Objects {
        let extra =
            vec![("bytes".to_owned(), object_bytes.to_string()), ("seed".to_owned(), seed.to_string())];
        Objects { namespace: Namespace { model: "bench".to_owned(), extra, ..Namespace::default() }.id() }
    }

    /// The key of object `number`.
    pub(super) fn key(&self, number: u64) -> anyhow::Result<ObjectKey> {
        let hash = opaque_hash(&number.to_le_bytes());
        ObjectKey::new(self.namespace, hash, Role::Target, "kv", "kv", Shard::Whole)
            .context("a key of the bench")
    }
}

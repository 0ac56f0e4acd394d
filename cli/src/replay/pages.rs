//! How a trace's blocks become the store's objects: each page is a group of two, `k` and `v`, of pool `kv`.

use anyhow::Context;
use pagelith::layouts::ids::NamespaceId;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::{Namespace, opaque_hash};
use pagelith::layouts::shard::Shard;

/// Tokens a block of a trace.
const PAGE_TOKENS: u32 = 512;
/// Objects a page.
pub(crate) const MEMBERS: usize = 2;
const COMPONENTS: [&str; MEMBERS] = ["k", "v"];

/// Names the objects of a replay.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pages {
    namespace: NamespaceId,
}

impl Pages {
    /// Pages of one source, seed and object length: a store that another replay has filled holds nothing of
    /// this one's, whose contents would differ.
    pub(crate) fn new(source: &str, seed: u64, object_bytes: u64) -> Pages {
        let extra =
            [("source", source.to_owned()), ("seed", seed.to_string()), ("bytes", object_bytes.to_string())];
        let namespace = Namespace {
            model: "replay".to_owned(),
            page_tokens: PAGE_TOKENS,
            extra: extra.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
            ..Namespace::default()
        };
        Pages { namespace: namespace.id() }
    }

    /// The keys of a request's pages, those of each page together. A trace's id stands for its block and all
    /// before it, as a prefix hash does.
    pub(crate) fn keys(&self, ids: &[u64]) -> anyhow::Result<Vec<ObjectKey>> {
        let mut keys = Vec::with_capacity(ids.len() * MEMBERS);
        for id in ids {
            let hash = opaque_hash(&id.to_le_bytes());
            for component in COMPONENTS {
                let key = ObjectKey::new(self.namespace, hash, Role::Target, "kv", component, Shard::Whole);
                keys.push(key.context("a key of the replay")?);
            }
        }
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_two_objects_and_runs_do_not_share() {
        let keys = |source, seed, bytes| Pages::new(source, seed, bytes).keys(&[5, 6]).unwrap();
        let own = keys("chat", 1, 100);
        assert_eq!(own, keys("chat", 1, 100));
        assert_eq!(own.len(), 4);
        assert!(own[0].same_page(&own[1]) && !own[1].same_page(&own[2]));
        assert_ne!(own[0], own[1]);
        for other in [keys("trace", 1, 100), keys("chat", 2, 100), keys("chat", 1, 101)] {
            assert!(own.iter().all(|key| !other.contains(key)));
        }
    }
}

//! What was got and looked up without asking, until the store is told.

use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::request::Terms;

/// Batches of which a store is told together, and objects: so that it is woken for few of them, and little is forgotten of a process that ends.
const BATCHES: usize = 8;
const KEYS: usize = 256;
/// Most objects of one request.
const REQUEST_KEYS: usize = 4096;

/// What was done with objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// They were got, so many bytes in all.
    Got(u64),
    /// They were found to be there.
    Found,
}

/// A batch: as part of what, what was done, and with which objects.
pub(crate) type Used = (Terms, Use, Vec<ObjectKey>);

/// Batches that the store was not told of.
#[derive(Default)]
pub(super) struct Untold {
    batches: Vec<Used>,
    keys: usize,
}

impl Untold {
    /// One more; whether the store is to be told now.
    pub fn note(&mut self, used: Used) -> bool {
        if !used.2.is_empty() {
            self.keys += used.2.len();
            let (terms, how, keys) = used;
            // An object has a byte at least: all requests together have as many as the batch.
            let behind = keys.len().div_ceil(REQUEST_KEYS) as u64 - 1;
            let parts = keys.chunks(REQUEST_KEYS).enumerate();
            self.batches.extend(parts.map(|(at, keys)| {
                let how = match how {
                    Use::Got(bytes) => Use::Got(if at == 0 { bytes - behind } else { 1 }),
                    Use::Found => Use::Found,
                };
                (terms, how, keys.to_vec())
            }));
        }
        self.batches.len() >= BATCHES || self.keys >= KEYS
    }

    /// All of them, to be told.
    pub fn take(&mut self) -> Vec<Used> {
        self.keys = 0;
        std::mem::take(&mut self.batches)
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::{NamespaceId, PrefixHash};
    use pagelith_layouts::key::Role;
    use pagelith_layouts::shard::Shard;

    use super::*;

    #[test]
    fn a_store_is_told_of_several_batches_together_and_of_none_twice() {
        let key =
            ObjectKey::new(NamespaceId([1; 16]), PrefixHash([2; 32]), Role::Target, "kv", "k", Shard::Whole);
        let key = key.expect("a key");
        let used = |keys| (Terms::default(), Use::Got(9), vec![key; keys]);
        let mut untold = Untold::default();
        assert!((0..1000).all(|_| !untold.note(used(0))), "nothing was used");
        let told: Vec<bool> = (0..BATCHES).map(|_| untold.note(used(1))).collect();
        assert_eq!(told.iter().position(|told| *told), Some(BATCHES - 1));
        assert_eq!(untold.take().len(), BATCHES);
        let long = (Terms::default(), Use::Got(1 << 30), vec![key; 2 * REQUEST_KEYS + 1]);
        assert!(untold.note(long));
        let parts: Vec<(Use, usize)> =
            untold.take().into_iter().map(|(_, how, keys)| (how, keys.len())).collect();
        let got = Use::Got;
        assert_eq!(parts, [(got((1 << 30) - 2), REQUEST_KEYS), (got(1), REQUEST_KEYS), (got(1), 1)]);
        assert!(untold.take().is_empty() && !untold.note(used(KEYS - 1)) && untold.note(used(1)));
    }
}

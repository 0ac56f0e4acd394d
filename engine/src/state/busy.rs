//! Puts that found no room, each counted once however often it was tried: callers ask again every few milliseconds, and so do
//! clients over links.

use std::hash::Hasher;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;
use rustc_hash::FxHasher;

use crate::state::core::Core;

/// Tries of an object that are no further apart are of one put.
const APART: Duration = Duration::from_secs(1);
/// Objects that are remembered: 64 KiB. One that another took the place of is counted again with its next try.
const PLACES: usize = 4096;

/// When objects were last tried in vain, by hash.
pub(crate) struct BusyPuts(Box<[(u64, Mono)]>);

impl Default for BusyPuts {
    fn default() -> BusyPuts {
        BusyPuts(vec![(0, Mono::default()); PLACES].into())
    }
}

impl BusyPuts {
    /// Note a try in vain; whether it is the first of its put.
    pub fn note(&mut self, key: &ObjectKey, now: Mono) -> bool {
        let mut hasher = FxHasher::default();
        hasher.write(key.as_bytes());
        // Zero is nobody's.
        let hash = hasher.finish() | 1;
        let place = &mut self.0[(hash >> 52) as usize % PLACES];
        let (last, at) = std::mem::replace(place, (hash, now));
        last != hash || now.since(at) > APART
    }
}

impl Core {
    /// A put of these was answered `Busy`.
    pub fn count_busy<'a>(&mut self, keys: impl Iterator<Item = &'a ObjectKey>, now: Mono) {
        let first = |key: &&ObjectKey| self.busy.note(key, now);
        self.counters.puts_busy += keys.filter(first).count() as u64;
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::{NamespaceId, PrefixHash};
    use pagelith_layouts::key::Role;
    use pagelith_layouts::shard::Shard;

    use super::*;

    #[test]
    fn tries_of_one_object_are_one_put_until_nobody_tries_for_a_second() {
        let key = |n| {
            ObjectKey::new(NamespaceId([n; 16]), PrefixHash([1; 32]), Role::Target, "kv", "k", Shard::Whole)
                .expect("a key")
        };
        let at = |ms| Mono::default().after(Duration::from_millis(ms));
        let mut busy = BusyPuts::default();
        assert!(busy.note(&key(1), at(0)) && busy.note(&key(2), at(0)));
        for ms in [2, 900, 1800] {
            assert!(!busy.note(&key(1), at(ms)), "ms={ms}");
        }
        assert!(busy.note(&key(1), at(2801)));
    }
}

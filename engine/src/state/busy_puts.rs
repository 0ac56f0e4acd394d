//! Counts puts that were refused as busy once per put, not once per try: callers and remote clients
//! retry every few milliseconds.

use std::hash::Hasher;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;
use rustc_hash::FxHasher;

/// Tries of an object with at most this time between them count as one put.
const RETRY_GAP_MAX: Duration = Duration::from_secs(1);
/// Number of remembered objects, 64 KiB. If another object took its slot, the next try of an object
/// is counted again.
const SLOTS: usize = 4096;

/// Hash of the key and time of the last refused try, in a slot chosen by the hash.
pub(crate) struct BusyPuts(Box<[(u64, Mono)]>);

impl Default for BusyPuts {
    fn default() -> BusyPuts {
        BusyPuts(vec![(0, Mono::default()); SLOTS].into())
    }
}

impl BusyPuts {
    /// Record a refused try; true if it is the first of its put.
    pub fn record(&mut self, key: &ObjectKey, now: Mono) -> bool {
        let mut hasher = FxHasher::default();
        hasher.write(key.as_bytes());
        // Zero marks an empty slot.
        let hash = hasher.finish() | 1;
        let slot = &mut self.0[(hash >> 52) as usize % SLOTS];
        let (last, at) = std::mem::replace(slot, (hash, now));
        last != hash || now.since(at) > RETRY_GAP_MAX
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::{NamespaceId, PrefixHash};
    use pagelith_layouts::key::Role;
    use pagelith_layouts::shard::Shard;

    use super::*;

    #[test]
    fn retries_within_a_second_count_as_one_put() {
        let key = |n| {
            ObjectKey::new(
                NamespaceId([n; 16]),
                PrefixHash([1; 32]),
                Role::Target,
                "kv",
                "k",
                Shard::Whole,
            )
            .expect("a key")
        };
        let at = |ms| Mono::default().after(Duration::from_millis(ms));
        let mut busy = BusyPuts::default();
        assert!(busy.record(&key(1), at(0)) && busy.record(&key(2), at(0)));
        for ms in [2, 900, 1800] {
            assert!(!busy.record(&key(1), at(ms)), "ms={ms}");
        }
        assert!(busy.record(&key(1), at(2801)));
    }
}

//! Keys for the benches.

use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::{ids::PrefixHash, namespace::Namespace, shard::Shard};

/// SplitMix64's finalizer (Steele, Lea, Flood, OOPSLA 2014).
pub fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The keys of objects with these numbers.
pub fn keys(numbers: impl Iterator<Item = u64>) -> Vec<ObjectKey> {
    let namespace = Namespace { model: "micro".into(), ..Namespace::default() }.id();
    let first =
        ObjectKey::new(namespace, PrefixHash([0; 32]), Role::Target, "kv", "kv", Shard::Whole);
    let first = first.expect("a key");
    let of = |number: u64| {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&mix(number).to_le_bytes());
        first.on_page(PrefixHash(hash))
    };
    numbers.map(of).collect()
}

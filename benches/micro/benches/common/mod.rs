//! Keys for the benches.

use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::{ids::PrefixHash, namespace::Namespace, shard::Shard};

mod mix;

pub use self::mix::mix;

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

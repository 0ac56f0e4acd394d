//! Self-describing bytes: a function of page, component and version.

use pagelith::layouts::{
    ids::NamespaceId, ids::PrefixHash, key::ObjectKey, key::Role, namespace::Namespace,
    shard::Shard,
};

use super::Page;

/// A repeatable stream of numbers (splitmix64, Steele et al. 2014).
#[derive(Clone, Debug)]
pub struct Rng(pub u64);

impl Rng {
    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// The components of a page, and the byte of each in a seed.
pub const COMPONENTS: [&str; 2] = ["k", "v"];

/// The namespace with this number.
pub fn namespace(number: u8) -> NamespaceId {
    Namespace { model: format!("model-{number}"), ..Namespace::default() }.id()
}

/// The key of one component of a page.
pub fn key(page: Page, component: usize) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&page.number.to_le_bytes());
    let part = COMPONENTS[component];
    ObjectKey::new(
        namespace(page.namespace),
        PrefixHash(hash),
        Role::Target,
        "kv",
        part,
        Shard::Whole,
    )
    .expect("a key")
}

fn seed(page: Page, component: usize) -> u64 {
    u64::from(page.number) << 16 | u64::from(page.namespace) << 8 | component as u64
}

/// Length in bytes, the same for every version: mostly a few blocks, some a few bytes, some as long
/// as a write.
pub fn length(page: Page, component: usize) -> usize {
    let mut rng = Rng(seed(page, component));
    let most =
        [64, 64, 8 << 10, 8 << 10, 8 << 10, 24 << 10, 24 << 10, 100 << 10][rng.below(8) as usize];
    1 + rng.below(most) as usize
}

/// The bytes of one version, beginning with the version as far as there is room.
pub fn content(page: Page, component: usize, version: u64) -> Vec<u8> {
    let len = length(page, component);
    let mut rng = Rng(seed(page, component) ^ version.rotate_left(40));
    let words = std::iter::once(version).chain(std::iter::repeat_with(move || rng.next()));
    words.take(len.div_ceil(8)).flat_map(u64::to_le_bytes).take(len).collect()
}

/// The version of these bytes: the one with which they begin, or one of `known` if they are too
/// short.
pub fn version_of(page: Page, component: usize, bytes: &[u8], known: &[u64]) -> Option<u64> {
    let right = |version: &u64| content(page, component, *version) == bytes;
    match bytes.first_chunk() {
        Some(version) => Some(u64::from_le_bytes(*version)).filter(right),
        None => known.iter().copied().rev().find(right),
    }
}

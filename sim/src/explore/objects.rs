//! The objects of runs: pages, their parts, lengths and bytes. All follow from numbers, so that
//! nothing needs to be stored to know what a get must return.

use std::sync::OnceLock;

use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::{ObjectKey, Role};
use pagelith_layouts::namespace::Namespace;
use pagelith_layouts::shard::Shard;

/// Pages of a run.
pub const PAGES: usize = 96;
/// Most parts of a page.
pub const PARTS: usize = 8;
/// Namespaces; page `p` is in namespace `p % NAMESPACES`.
pub const NAMESPACES: usize = 3;
/// Largest object in bytes.
pub const LENGTH_MAX: usize = 100_000;

/// An object: `page * PARTS + part`.
pub type ObjectId = u16;

/// How a page's objects are put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageKind {
    /// Each by itself.
    Singles,
    /// A base group of two, and attached objects.
    Pair,
    /// A base group of five, and attached objects.
    Many,
    /// A base group of two, of which one is also put by itself, and another group that conflicts
    /// with it.
    Mixed,
}

/// Pool, component and role of each part.
const NAMES: [(&str, &str, Role); PARTS] = [
    ("kv", "k", Role::Target),
    ("kv", "v", Role::Target),
    ("indexer", "i", Role::Target),
    ("indexer", "j", Role::Target),
    ("mamba", "temporal", Role::Target),
    ("mamba", "conv", Role::Target),
    ("swa", "w", Role::Target),
    ("kv", "k", Role::Draft),
];

/// The group of [`PageKind::Mixed`] pages that conflicts with their base group.
pub const OTHER_FORM: [usize; 2] = [0, 2];

/// How a page is put.
pub fn kind(page: usize) -> PageKind {
    match page / NAMESPACES % 6 {
        0 | 1 => PageKind::Singles,
        2 | 3 => PageKind::Pair,
        4 => PageKind::Many,
        _ => PageKind::Mixed,
    }
}

/// The parts of a page's base group; empty for a page of singles.
pub fn base_form(page: usize) -> &'static [usize] {
    match kind(page) {
        PageKind::Singles => &[],
        PageKind::Pair | PageKind::Mixed => &[0, 1],
        PageKind::Many => &[0, 1, 2, 3, 7],
    }
}

/// The attached groups of a page: the part of their base, and their parts.
pub fn attached(page: usize) -> &'static [(usize, &'static [usize])] {
    match kind(page) {
        PageKind::Singles => &[],
        PageKind::Mixed => &[(0, &[6])],
        PageKind::Pair | PageKind::Many => &[(0, &[4, 5]), (1, &[6])],
    }
}

/// The base group of an attached object's page, without which it is not visible; empty for other
/// objects.
pub fn base_of(oid: ObjectId) -> impl Iterator<Item = ObjectId> {
    let (page, part) = (page_of(oid), part_of(oid));
    let is_attached = attached(page).iter().any(|(_, parts)| parts.contains(&part));
    let base = if is_attached { base_form(page) } else { &[] };
    base.iter().map(move |part| self::oid(page, *part))
}

/// The parts that are put by themselves.
pub fn singles(page: usize) -> &'static [usize] {
    match kind(page) {
        PageKind::Singles => &[0, 1, 2, 3, 4, 5],
        PageKind::Mixed => &[1],
        PageKind::Pair | PageKind::Many => &[],
    }
}

/// The page of an object.
pub fn page_of(oid: ObjectId) -> usize {
    usize::from(oid) / PARTS
}

/// The part number of an object.
pub fn part_of(oid: ObjectId) -> usize {
    usize::from(oid) % PARTS
}

/// The object of a part.
pub fn oid(page: usize, part: usize) -> ObjectId {
    (page * PARTS + part) as ObjectId
}

/// The objects of these parts.
pub fn oids(page: usize, parts: &[usize]) -> Vec<ObjectId> {
    parts.iter().map(|part| oid(page, *part)).collect()
}

/// Every object that a run may put.
pub fn all() -> impl Iterator<Item = ObjectId> {
    (0..PAGES).flat_map(|page| (0..PARTS).map(move |part| oid(page, part))).filter(|o| is_used(*o))
}

fn is_used(oid: ObjectId) -> bool {
    let (page, part) = (page_of(oid), part_of(oid));
    let attached = attached(page).iter().any(|(_, parts)| parts.contains(&part));
    attached || base_form(page).contains(&part) || singles(page).contains(&part)
}

/// The namespace of this number.
pub fn namespace(number: usize) -> NamespaceId {
    static IDS: OnceLock<[NamespaceId; NAMESPACES]> = OnceLock::new();
    let make = |i| Namespace { model: format!("model-{i}"), ..Namespace::default() }.id();
    IDS.get_or_init(|| std::array::from_fn(make))[number % NAMESPACES]
}

/// The prefix hash of a page.
pub fn page_hash(page: usize) -> PrefixHash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&mix(page as u64 + 1).to_le_bytes());
    PrefixHash(hash)
}

/// The key of an object.
pub fn key(oid: ObjectId) -> ObjectKey {
    static KEYS: OnceLock<Vec<ObjectKey>> = OnceLock::new();
    let make = |at: usize| {
        let (page, (pool, part, role)) = (at / PARTS, NAMES[at % PARTS]);
        let ns = namespace(page % NAMESPACES);
        ObjectKey::new(ns, page_hash(page), role, pool, part, Shard::Whole).expect("a key")
    };
    KEYS.get_or_init(|| (0..PAGES * PARTS).map(make).collect())[usize::from(oid)]
}

/// An object's length in bytes: mostly small, sometimes around block and page sizes, some up to 100
/// KB.
pub fn length(oid: ObjectId) -> usize {
    let r = mix(u64::from(oid) ^ 0xfeed);
    let (class, r) = (r % 32, (r >> 8) as usize);
    match class {
        0 => 1,
        1 => 1 + r % 7,
        2 => 4095 + r % 3,
        3 => 8192,
        4 => 32_767 + r % 3,
        5 => 65_537,
        6 => LENGTH_MAX - r % 4096,
        7..=9 => 16_384 + r % 16_384,
        10..=15 => 4096 * (1 + r % 3),
        16..=21 => 4097 + r % 12_000,
        _ => 8 + r % 4088,
    }
}

/// The finaliser of SplitMix64.
pub fn mix(x: u64) -> u64 {
    let z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The bytes of a put: every eight bytes a word that identifies object, put and offset, cheap
/// enough that comparing every byte of every hit does not dominate a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content(u64);

/// Difference between successive words; odd, so that no two words of an object are equal.
const STEP: u64 = 0xd134_2543_de82_ef95;

impl Content {
    /// The content of put number `no` of an object.
    pub fn of(oid: ObjectId, no: u32) -> Content {
        Content(mix(u64::from(oid) << 32 | u64::from(no)))
    }

    fn word(self, at: u64) -> [u8; 8] {
        self.0.wrapping_add(at.wrapping_mul(STEP)).to_le_bytes()
    }

    /// Writes the object's bytes from the start.
    pub fn fill(self, out: &mut [u8]) {
        let (words, rest) = out.as_chunks_mut::<8>();
        let end = words.len() as u64;
        words.iter_mut().zip(0..).for_each(|(word, at)| *word = self.word(at));
        let len = rest.len();
        rest.copy_from_slice(&self.word(end)[..len]);
    }

    /// Whether `bytes` are the object's bytes from `offset`.
    pub fn is(self, offset: usize, bytes: &[u8]) -> bool {
        let skew = offset % 8;
        let head = if skew == 0 { 0 } else { (8 - skew).min(bytes.len()) };
        if head > 0 && self.word(offset as u64 / 8)[skew..skew + head] != bytes[..head] {
            return false;
        }
        let from = (offset + head) as u64 / 8;
        let (words, rest) = bytes[head..].as_chunks::<8>();
        let wrong = words.iter().zip(from..).fold(0, |wrong, (word, at)| {
            wrong | (u64::from_le_bytes(*word) ^ u64::from_le_bytes(self.word(at)))
        });
        wrong == 0 && self.word(from + words.len() as u64)[..rest.len()] == *rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_check_detects_every_changed_byte() {
        let mut bytes = vec![0; 100];
        Content::of(7, 3).fill(&mut bytes);
        for from in 0..100 {
            for to in from + 1..=100 {
                assert!(Content::of(7, 3).is(from, &bytes[from..to]), "from={from} to={to}");
            }
        }
        for at in 0..100 {
            bytes[at] ^= 4;
            assert!(!Content::of(7, 3).is(0, &bytes), "at={at}");
            bytes[at] ^= 4;
        }
        assert!(!Content::of(7, 4).is(0, &bytes) && !Content::of(8, 3).is(0, &bytes));
        assert!(!Content::of(7, 3).is(8, &bytes[..50]), "bytes of another place");
    }

    #[test]
    fn object_keys_differ_and_lengths_are_bounded() {
        let keys: std::collections::BTreeSet<_> =
            (0..(PAGES * PARTS) as ObjectId).map(key).collect();
        assert_eq!(keys.len(), PAGES * PARTS);
        assert!(all().all(|o| (1..=LENGTH_MAX).contains(&length(o))));
        assert!(all().any(|o| length(o) > 90_000) && all().any(|o| length(o) == 1));
    }
}

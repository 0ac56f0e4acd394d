//! Keys, contents and configurations of the small stores.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagelith::config::{Promote, SsdPolicy};
use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::{AlignedBuf, Config, MachineLimits, Size, ValidConfig};
use pagelith_sim::entropy::SplitMix64;
use pagelith_sim::model::Put;

use super::plan::Shape;

/// Longer than any plan takes by itself: only a step lets groups expire.
pub const GROUP_DEADLINE_MS: u64 = 3_600_000;

/// The configuration of a shape.
pub fn config(shape: Shape) -> ValidConfig {
    let mut c = Config::default();
    c.deadline_ms = 2_000;
    c.namespaces_max = 8;
    c.groups.deadline_ms = GROUP_DEADLINE_MS;
    c.dram.bytes = if shape.cold { Size::ZERO } else { Size::mib(2) };
    c.dram.promote = if shape.promote { Promote::Always } else { Promote::Never };
    c.ssd.bytes = Size::mib(shape.ssd_mib);
    // Without a DRAM tier every read goes to the device, headers too: that shows the effects of
    // damage.
    c.ssd.headers_bytes = if shape.cold { Size::ZERO } else { Size::kib(64) };
    c.ssd.dirs = (0..shape.dirs).map(|d| format!("sim{d}").into()).collect();
    c.ssd.segment_bytes = Some(Size::mib(1));
    c.ssd.policy = if shape.recency { SsdPolicy::Recency } else { SsdPolicy::Fifo };
    c.ssd.write_bytes = Size::kib(256);
    c.ssd.write_depth = 4;
    c.ssd.checkpoint_segments = shape.checkpoint;
    c.staging.bytes = Size::mib(1);
    c.staging.chunk_bytes = Size::kib(64);
    c.index.max_objects = Some(512);
    let facts = MachineLimits::new(1 << 40, "test".into());
    let valid = c.validate(&facts).expect("a valid configuration");
    if shape.constant { valid.with_constant_fingerprint() } else { valid }
}

/// The namespace of a page.
pub fn namespace(page: u32) -> NamespaceId {
    Namespace { model: format!("model-{}", page % 2), ..Namespace::default() }.id()
}

/// The key of a component of a page.
pub fn key(page: u32, component: &str) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&page.to_le_bytes());
    ObjectKey::new(namespace(page), PrefixHash(hash), Role::Target, "kv", component, Shard::Whole)
        .expect("a key")
}

/// All components of a page: of the base groups, then of the attached groups.
pub const COMPONENTS: [&str; 17] =
    ["k", "v", "x", "a", "b", "c", "d", "e", "f", "g", "h", "m", "n", "o", "q", "r", "w"];

/// All components of a page.
pub fn components(page: u32) -> [ObjectKey; COMPONENTS.len()] {
    COMPONENTS.map(|component| key(page, component))
}

/// The base groups of two to ten objects of a page. Of their members only `x` is ever put by
/// itself. All have `k`, so a page is in one of them at a time.
pub const FORMS: [&[&str]; 5] = [
    &["k", "v"],
    &["k", "x"],
    &["k", "a", "b", "c", "d"],
    &["k", "v", "x", "a", "b", "c", "d", "e", "f", "g"],
    &["h", "k", "x"],
];

/// The attached groups, each with the component whose group is its base.
pub const ATTACHED: [(&str, &[&str]); 3] =
    [("k", &["m", "n"]), ("k", &["w"]), ("v", &["o", "q", "r"])];

/// The keys of these components of a page.
pub fn keys(page: u32, components: &[&str]) -> Vec<ObjectKey> {
    components.iter().map(|component| key(page, component)).collect()
}

/// An object's length in bytes, constant for a key: `k`, `v`, `x` and `m` have 40 to 140 KB; the
/// others are around a block of 32 KiB, around a page of 4096, or tiny.
pub fn length(key: &ObjectKey) -> usize {
    let page = u32::from_le_bytes(key.hash().0[..4].try_into().expect("four bytes")) as usize;
    let own = key.component().as_bytes()[0];
    match own {
        b'a' | b'o' => 4095 + page % 3,
        b'b' => 32_767 + page % 3,
        b'c' | b'q' => 9 + page % 7,
        b'd' => 65_537,
        b'e' => 12_345,
        b'f' => 1,
        b'g' => 511,
        b'h' | b'n' => 33_333,
        b'r' => 40_961,
        b'w' => 70_001,
        own => 40_000 + (page * 7919 + usize::from(own) * 104_729) % 100_000,
    }
    .max(9)
}

/// The bytes of each put, made once.
type Made = HashMap<(ObjectKey, Put), Arc<[u8]>>;

/// The bytes of each put. Contents are random by key and put, so none is part of another. Clones
/// share them.
#[derive(Clone, Default)]
pub struct Contents(Arc<Mutex<Made>>);

impl Contents {
    fn lock(&self) -> MutexGuard<'_, Made> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes of a put. They start with its number.
    pub fn of(&self, key: &ObjectKey, put: Put) -> Arc<[u8]> {
        let make = || {
            let mut bytes = vec![0; length(key)];
            let page = u64::from(key.hash().0[0]) << 8 | u64::from(key.component().as_bytes()[0]);
            SplitMix64::new(put.0 << 20 | page).fill(&mut bytes[8..]);
            bytes[..8].copy_from_slice(&put.0.to_le_bytes());
            Arc::from(bytes)
        };
        self.lock().entry((*key, put)).or_insert_with(make).clone()
    }

    /// The put that wrote all of these bytes; `None` if none did.
    pub fn put_of_bytes(&self, key: &ObjectKey, bytes: &[u8]) -> Option<Put> {
        let put = Put(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?));
        let known = self.lock().get(&(*key, put))?.clone();
        (*known == *bytes).then_some(put)
    }
}

/// Memory for a get: aligned or not depending on the key, never on the allocator, because the store
/// reads aligned memory in another way.
pub struct Memory {
    buf: AlignedBuf,
    at: std::ops::Range<usize>,
}

impl Memory {
    /// Memory for this key.
    pub fn of(key: &ObjectKey) -> Memory {
        let start = usize::from("xaw".contains(key.component())) * 8;
        let len = length(key);
        let buf = AlignedBuf::new((start + len).next_multiple_of(4096)).expect("memory");
        Memory { buf, at: start..start + len }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.buf[self.at.clone()]
    }

    /// Its bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buf[self.at.clone()]
    }
}

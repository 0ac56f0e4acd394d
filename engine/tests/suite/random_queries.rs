//! Random queries of hit rules, and reference answers; independent of a store.

use std::collections::BTreeSet;

use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::{HitPolicy, PagesFound, PagesQuery, PoolQuery};

pub fn page(n: u64) -> PrefixHash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&n.to_le_bytes());
    PrefixHash(hash)
}

pub fn pages(range: std::ops::Range<u64>) -> Vec<PrefixHash> {
    range.map(page).collect()
}

/// Templates of the objects of a page in a pool; their own page is never put.
pub fn objects(role: Role, pool: &str, components: &[&str]) -> Vec<ObjectKey> {
    let namespace = Namespace { model: "m".into(), ..Namespace::default() }.id();
    let object = |part: &&str| {
        ObjectKey::new(namespace, page(u64::MAX), role, pool, part, Shard::Whole).expect("a key")
    };
    components.iter().map(object).collect()
}

/// A small generator, so that a failure can be reproduced from its round.
pub struct SmallRng(pub u64);

impl SmallRng {
    /// A number in 0..n.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A query with owned contents.
pub struct PrefixQuery {
    pages: Vec<PrefixHash>,
    anchor: Vec<ObjectKey>,
    pools: Vec<(Vec<ObjectKey>, Rule)>,
}

pub enum Rule {
    All,
    Trailing(usize),
    Groups { block_pages: usize, group_pages: usize, keys: Vec<PrefixHash> },
}

impl PrefixQuery {
    /// Up to 40 pages in up to 5 pools.
    pub fn random(dice: &mut SmallRng) -> PrefixQuery {
        let span = dice.below(41);
        let names = [
            (Role::Target, "indexer"),
            (Role::Target, "mamba"),
            (Role::Draft, "kv"),
            (Role::Target, "swa"),
        ];
        let count = dice.below(5) as usize;
        let mut pools = Vec::new();
        for (role, name) in &names[..count] {
            let parts = 1 + dice.below(3) as usize;
            let rule = match dice.below(5) {
                0 | 1 => Rule::All,
                2 | 3 => Rule::Trailing(dice.below(4) as usize),
                _ => {
                    let block_pages = 1 + dice.below(4);
                    let group_pages = 1 + dice.below(block_pages);
                    let keys = pages(1000..1000 + span / block_pages * group_pages + dice.below(3));
                    Rule::Groups {
                        block_pages: block_pages as usize,
                        group_pages: group_pages as usize,
                        keys,
                    }
                }
            };
            pools.push((objects(*role, name, &["a", "b", "c"][..parts]), rule));
        }
        let decided = pools.iter().any(|(_, rule)| !matches!(rule, Rule::Groups { .. }));
        let logical = decided && dice.below(4) == 0;
        let anchor = if logical { Vec::new() } else { objects(Role::Target, "kv", &["k", "v"]) };
        PrefixQuery { pages: pages(0..span), anchor, pools }
    }

    /// The answer of the store under test.
    pub fn ask(&self, ask: impl Fn(&PagesQuery<'_>) -> PagesFound) -> PagesFound {
        let pools: Vec<_> = self
            .pools
            .iter()
            .map(|(objects, rule)| PoolQuery {
                objects,
                policy: match rule {
                    Rule::All => HitPolicy::AllPages,
                    Rule::Trailing(n) => HitPolicy::TrailingPages(*n),
                    Rule::Groups { block_pages, group_pages, keys } => HitPolicy::BlockGroups {
                        block_pages: *block_pages,
                        group_pages: *group_pages,
                        keys,
                    },
                },
            })
            .collect();
        ask(&PagesQuery { pages: &self.pages, anchor: &self.anchor, pools: &pools })
    }

    /// Every object that may be put.
    pub fn all_keys(&self) -> Vec<Vec<ObjectKey>> {
        let own = |rule: &Rule| match rule {
            Rule::Groups { keys, .. } => keys.clone(),
            _ => self.pages.clone(),
        };
        let pools = self.pools.iter().map(|(objects, rule)| spread(objects, &own(rule)));
        std::iter::once(spread(&self.anchor, &self.pages)).chain(pools).collect()
    }

    /// Whether the anchor lacks a page and has a later one.
    pub fn has_hole_in_anchor(&self, put: &BTreeSet<ObjectKey>) -> bool {
        let here = |page: &PrefixHash| {
            self.anchor.iter().all(|object| put.contains(&object.on_page(*page)))
        };
        self.pages.iter().skip_while(|page| here(page)).any(here)
    }

    /// The reference answer, from the objects that were put.
    pub fn expected(&self, put: &BTreeSet<ObjectKey>) -> PagesFound {
        let here = |objects: &[ObjectKey], pages: &[PrefixHash]| {
            spread(objects, pages).iter().all(|key| put.contains(key))
        };
        let anchor = |l: usize| here(&self.anchor, &self.pages[..l]);
        let allows = |(objects, rule): &(Vec<ObjectKey>, Rule), l: usize| match rule {
            Rule::All => here(objects, &self.pages[..l]),
            Rule::Trailing(n) => here(objects, &self.pages[l.saturating_sub((*n).max(1))..l]),
            Rule::Groups { .. } => true,
        };
        let anchor_pages = (0..=self.pages.len()).filter(|l| anchor(*l)).max().unwrap_or(0);
        let own = |pool: &(Vec<ObjectKey>, Rule)| match &pool.1 {
            Rule::Groups { block_pages, group_pages, keys } => {
                let covered = |blocks: &usize| here(&pool.0, &keys[..blocks * group_pages]);
                (0..=self.pages.len() / block_pages).filter(covered).max().unwrap_or(0)
                    * block_pages
            }
            _ => (0..=anchor_pages).filter(|l| *l == 0 || allows(pool, *l)).max().unwrap_or(0),
        };
        let is_stop = |l: &usize| anchor(*l) && self.pools.iter().all(|pool| allows(pool, *l));
        let stops: Vec<usize> = (1..=self.pages.len()).filter(is_stop).collect();
        PagesFound {
            usable_pages: stops.last().copied().unwrap_or(0),
            anchor_pages,
            pool_pages: self.pools.iter().map(own).collect(),
            stops,
        }
    }
}

pub fn spread(objects: &[ObjectKey], pages: &[PrefixHash]) -> Vec<ObjectKey> {
    pages.iter().flat_map(|page| objects.iter().map(|object| object.on_page(*page))).collect()
}

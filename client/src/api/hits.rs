//! Hit rules: how long a prefix this store can restore, when a page's state is spread over several
//! pools.
//!
//! Terms:
//! - *anchor*: the pool of a query to which the other pools belong, KV as a rule.
//! - *hole*: an absent page before a present one, in one pool.
//! - *boundary* of a pool: the longest prefix, in pages, that the pool allows by itself. A pool's
//!   policy determines the lengths that it allows.
//! - *stop*: a number of leading pages from which every pool allows generation to continue.
//!
//! A pool of which only a tail is kept (a Mamba checkpoint, a sliding window) has holes. So the
//! longest stop does not imply the others, and ranks that must agree intersect their whole sets of
//! stops.
//!
//! `check` validates a query, `lookup` looks its keys up into a table of pages x pools, and
//! `evaluate`, a pure function, computes the answer from the table.

mod check;
mod evaluate;
mod lookup;

use pagelith_layouts::geometry;
use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::ObjectKey;

use crate::api::error::Result;

pub use check::check as check_query;
pub use lookup::KeyLookup;

/// Which prefix lengths a pool allows. A page counts as present only if *all* of its objects in the
/// pool are.
///
/// The rules and their names are those of `PoolHitPolicy` in SGLang 0.5.23 (`hicache_storage.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitPolicy<'a> {
    /// `L` pages if pages `0..L` are present: KV, draft KV, indexers, compressed KV.
    AllPages,
    /// `L` pages if the last `n` of them are present, pages `max(0, L - n)..L`, with `n` the number
    /// given and at least 1: 1 for a Mamba checkpoint, the window's length in pages for a sliding
    /// window. A window that reaches back before the first page of the query ends there; earlier
    /// pages are the caller's concern.
    TrailingPages(usize),
    /// A second form of the pages, in groups of its own. Block `b` covers the pages `b *
    /// block_pages..` of the query, and is present if its whole group `keys[b *
    /// group_pages..][..group_pages]` is. The pool allows every length: it reports a boundary, but
    /// does not restrict the stops. Blocks that reach beyond the query's pages, and keys that form
    /// no whole group, do not count.
    BlockGroups {
        /// Pages that a block covers, at least 1.
        block_pages: usize,
        /// Keys in a block's group, 1 to `block_pages`.
        group_pages: usize,
        /// The pool's own pages, starting with the first block.
        keys: &'a [PrefixHash],
    },
}

/// Converts the policy that a model's geometry gives for a pool.
impl From<geometry::HitPolicy> for HitPolicy<'_> {
    fn from(policy: geometry::HitPolicy) -> Self {
        match policy {
            geometry::HitPolicy::AllPages => HitPolicy::AllPages,
            // A window is below 2^32 pages, and so is an address space of 32 bits.
            geometry::HitPolicy::TrailingPages(pages) => HitPolicy::TrailingPages(pages as usize),
        }
    }
}

/// A pool of a query, in addition to the anchor.
#[derive(Clone, Copy, Debug)]
pub struct PoolQuery<'a> {
    /// The objects that a page has in the pool, at least one. Their prefix hash is ignored.
    pub objects: &'a [ObjectKey],
    /// Which lengths the pool allows.
    pub policy: HitPolicy<'a>,
}

/// Asks how long a prefix of `pages` can be restored. All objects are of one namespace, each list
/// of objects is of one pool, and each pool is listed once (a draft model's pool differs from the
/// target's of the same name).
#[derive(Clone, Copy, Debug)]
pub struct PagesQuery<'a> {
    /// The pages, in the order of the prefix; the first need not be the first of the prompt.
    pub pages: &'a [PrefixHash],
    /// The objects that a page has in the pool to which the others belong, KV as a rule; their
    /// prefix hash is ignored. Its policy is [`HitPolicy::AllPages`]. Empty for an anchor without
    /// objects (DeepSeek-V4): it counts as present on every page, and at least one of `pools` must
    /// restrict the lengths.
    pub anchor: &'a [ObjectKey],
    /// The other pools.
    pub pools: &'a [PoolQuery<'a>],
}

/// How long a prefix can be restored: the contents of SGLang's `PoolTransferResult`. Lengths are in
/// pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagesFound {
    /// The longest stop, 0 if there is none (`kv_hit_pages`).
    pub usable_pages: usize,
    /// The anchor's own boundary, independent of other pools (`extra_pool_hit_pages["kv"]`): pages
    /// before its first hole. For an anchor without objects, all pages of the query.
    pub anchor_pages: usize,
    /// Each pool's own boundary, in the order of the query (`extra_pool_hit_pages`), independent of
    /// the *other* pools: the longest length up to `anchor_pages` that it allows, 0 if it allows
    /// none. Pages after the anchor's boundary are not looked up, so 0 next to an anchor of 0
    /// implies nothing about the pool. For block groups, independent of the anchor: the pages that
    /// the leading whole groups cover, up to the number of pages of the query.
    pub pool_pages: Vec<usize>,
    /// Every stop, ascending: each length from 1 to `anchor_pages` that all pools allow
    /// (`restorable_prefix_pages`). A stop at 0 is always legal and not listed.
    pub stops: Vec<usize>,
}

/// Answer a query with the lookups of `look`.
pub fn exists_groups_by(look: &mut impl KeyLookup, query: &PagesQuery<'_>) -> Result<PagesFound> {
    check::check(query)?;
    answer(look, query)
}

/// Answer a checked query with the lookups of `look`.
pub fn answer(look: &mut impl KeyLookup, query: &PagesQuery<'_>) -> Result<PagesFound> {
    let policies: Vec<_> = query.pools.iter().map(|pool| pool.policy).collect();
    let residency = lookup::look_up(look, query)?;
    let found = evaluate::evaluate(&residency, &policies);
    lookup::mark_trailing_requested(look, query, found.usable_pages);
    lookup::note_states(look, query, &residency, found.usable_pages);
    Ok(found)
}

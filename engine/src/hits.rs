//! Hit rules: how long a prefix can be restored from here when a page's state lies in several pools.
//!
//! A *stop* is a number of leading pages that every pool allows to go on from. Which lengths a pool allows is its
//! policy's affair: a pool of which only a tail is kept (a Mamba checkpoint, a sliding window) leaves holes, so
//! the longest stop does not tell the others, and whoever agrees with other ranks intersects the whole sets.
//!
//! `check` refuses what is no query, `ask` turns the query into a table of pages x pools, and `evaluate`, a pure
//! function, turns the table into the answer.

mod ask;
mod check;
mod evaluate;
pub(crate) mod peers;

use pagelith_layouts::geometry;
use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use crate::error::Result;
use crate::exists;
use crate::shared::Shared;

pub(crate) use ask::Look;

/// Which prefix lengths a pool allows. A page counts as here only if *all* of the pool's objects of it are.
///
/// The rules and their names are those of `PoolHitPolicy` in SGLang 0.5.23 (`hicache_storage.py`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HitPolicy<'a> {
    /// `L` pages if pages `0..L` are here: KV, draft KV, indexers, compressed KV.
    AllPages,
    /// `L` pages if the last `n` of them are here, pages `max(0, L - n)..L`, with `n` the number given and at
    /// least 1: 1 for a Mamba checkpoint, the window's length in pages for a sliding window. A window that
    /// reaches back before the first page asked about ends there: what lies before it is the caller's.
    TrailingPages(usize),
    /// A second form of the pages, in groups of its own. Block `b` is the pages `b * block_pages..` of the span,
    /// and is here if its whole group `keys[b * group_pages..][..group_pages]` is. It allows every length: it
    /// has a boundary, and no say in where to stop. Blocks that reach beyond the span, and keys that make no
    /// whole group, do not count.
    BlockGroups {
        /// Pages that a block covers, at least 1.
        block_pages: usize,
        /// Keys in a block's group, 1 to `block_pages`.
        group_pages: usize,
        /// The pool's own pages, from the first block's on.
        keys: &'a [PrefixHash],
    },
}

/// What a model's geometry says of a pool is asked as it is.
impl From<geometry::HitPolicy> for HitPolicy<'_> {
    fn from(policy: geometry::HitPolicy) -> Self {
        match policy {
            geometry::HitPolicy::AllPages => HitPolicy::AllPages,
            // A window is below 2^32 pages, and so is an address space of 32 bits.
            geometry::HitPolicy::TrailingPages(pages) => HitPolicy::TrailingPages(pages as usize),
        }
    }
}

/// A pool that is asked about beside the anchor.
#[derive(Clone, Copy, Debug)]
pub struct PoolQuery<'a> {
    /// Which objects a page has in the pool, at least one. Their prefix hash is not looked at.
    pub objects: &'a [ObjectKey],
    /// Which lengths the pool allows.
    pub policy: HitPolicy<'a>,
}

/// How long a prefix of `pages` can be restored. All objects are of one namespace, each list of objects is of one
/// pool, and no pool is named twice (a draft model's pool is not the target's of the same name).
#[derive(Clone, Copy, Debug)]
pub struct PagesQuery<'a> {
    /// The pages, in the order of the prefix; the first need not be the first of the prompt.
    pub pages: &'a [PrefixHash],
    /// Which objects a page has in the pool that the others go with, KV as a rule; their prefix hash is not
    /// looked at. It allows what [`HitPolicy::AllPages`] does. Empty for an anchor that is only a name
    /// (DeepSeek-V4): it counts as here on every page, and at least one of `pools` must decide.
    pub anchor: &'a [ObjectKey],
    /// The other pools.
    pub pools: &'a [PoolQuery<'a>],
}

/// How long a prefix can be restored: what SGLang's `PoolTransferResult` says. Lengths are in pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PagesFound {
    /// The longest stop, 0 if there is none (`kv_hit_pages`).
    pub usable_pages: usize,
    /// The anchor's own boundary, whatever other pools have (`extra_pool_hit_pages["kv"]`): pages before its
    /// first hole. For an anchor without objects, all that were asked about.
    pub anchor_pages: usize,
    /// Each pool's own boundary, in the order of the query (`extra_pool_hit_pages`), whatever *other* pools have:
    /// the longest length up to `anchor_pages` that it allows, 0 if it allows none. Behind the anchor's boundary
    /// it is not asked about, so 0 beside an anchor of 0 says nothing of the pool. For block groups, whatever the
    /// anchor has: the pages that the leading whole groups cover, up to the number asked about.
    pub pool_pages: Vec<usize>,
    /// Every stop, ascending: each length from 1 to `anchor_pages` that all pools allow
    /// (`restorable_prefix_pages`). To stop at 0 is always legal and not listed.
    pub stops: Vec<usize>,
}

/// Answer a query from the index. What is looked at and here counts as asked for.
pub(crate) fn exists_groups(shared: &Shared, query: &PagesQuery<'_>, at: Recency) -> Result<PagesFound> {
    shared.check_open()?;
    check::check(query)?;
    exists::at_one_moment(shared, at, |look| answer(look, query))
}

/// Answer a query by what `look` says is here.
pub(crate) fn exists_groups_by(look: &mut impl Look, query: &PagesQuery<'_>) -> Result<PagesFound> {
    check::check(query)?;
    answer(look, query)
}

fn answer(look: &mut impl Look, query: &PagesQuery<'_>) -> Result<PagesFound> {
    let policies: Vec<_> = query.pools.iter().map(|pool| pool.policy).collect();
    Ok(evaluate::evaluate(&ask::ask(look, query)?, &policies))
}

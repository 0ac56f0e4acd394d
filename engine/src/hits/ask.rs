//! What of a query is here, asked of the index.

use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use super::evaluate::Residency;
use super::{HitPolicy, PagesQuery, PoolQuery};
use crate::core::Core;
use crate::exists;
use crate::shared::Shared;

/// Ask about the anchor up to its first hole, then about every other pool on the pages before it: nothing behind
/// it can be a stop, and what nobody can use must not count as asked for. A prompt that was never seen costs one
/// look. Block groups are asked by their own keys. All of it is one critical section: the answer was true at one
/// moment.
pub(super) fn ask(shared: &Shared, query: &PagesQuery<'_>, at: Recency) -> Residency {
    let core = &mut *shared.lock();
    let anchor = match query.anchor {
        [] => query.pages.len(),
        objects => whole_pages(shared, core, objects, query.pages, at),
    };
    let mut paged = by_page(shared, core, query, anchor, at).into_iter();
    let mut here = |pool: &PoolQuery<'_>| match pool.policy {
        HitPolicy::BlockGroups { block_pages, group_pages, keys } => {
            let whole = (query.pages.len() / block_pages).saturating_mul(group_pages);
            vec![true; whole_pages(shared, core, pool.objects, &keys[..whole.min(keys.len())], at)]
        }
        HitPolicy::AllPages | HitPolicy::TrailingPages(_) => paged.next().unwrap_or_default(),
    };
    Residency { anchor: vec![true; anchor], pools: query.pools.iter().map(&mut here).collect() }
}

/// How many of `pages` have all of `objects`, before the first that has not.
fn whole_pages(
    shared: &Shared,
    core: &mut Core,
    objects: &[ObjectKey],
    pages: &[PrefixHash],
    at: Recency,
) -> usize {
    let keys = pages.iter().flat_map(|page| objects.iter().map(|object| object.on_page(*page)));
    exists::prefix(shared, core, keys, at) / objects.len()
}

/// Which of the first `pages` pages are here, by pool that has a say in them. All pools of a page are asked about
/// one after the other: as a page's objects they count as equally recent.
fn by_page(
    shared: &Shared,
    core: &mut Core,
    query: &PagesQuery<'_>,
    pages: usize,
    at: Recency,
) -> Vec<Vec<bool>> {
    let has_say = |pool: &&PoolQuery<'_>| !matches!(pool.policy, HitPolicy::BlockGroups { .. });
    let pools: Vec<_> = query.pools.iter().filter(has_say).map(|pool| pool.objects).collect();
    let objects: Vec<_> = pools.iter().copied().flatten().collect();
    let pages = &query.pages[..pages];
    let keys = pages.iter().flat_map(|page| objects.iter().map(|object| object.on_page(*page)));
    let mut found = exists::exists(shared, core, keys, at).into_iter();
    let mut here = vec![Vec::with_capacity(pages.len()); pools.len()];
    for _ in pages {
        for (objects, here) in pools.iter().zip(&mut here) {
            // Every object's answer is taken, so that the next pool's come next.
            here.push(found.by_ref().take(objects.len()).fold(true, |all, found| all & found));
        }
    }
    here
}

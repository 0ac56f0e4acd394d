//! Looks up a query's keys, wherever the source of the lookups has them.

use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::ObjectKey;

use super::evaluate::Residency;
use super::{HitPolicy, PagesQuery, PoolQuery};
use crate::api::error::Result;

/// A source of lookups. A present object that is looked up counts as used.
pub trait KeyLookup {
    /// How many of `keys` are present before the first that is absent.
    fn prefix(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<usize>;
    /// Which of `keys` are present.
    fn exists(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<Vec<bool>>;
}

/// Look up the anchor up to its first hole, then every other pool on the pages before that hole. No
/// page after it can be a stop, and objects that cannot be used must not count as used. A prompt
/// that was never stored costs one lookup. Block groups are looked up by their own keys.
pub fn look_up(lookup: &mut impl KeyLookup, query: &PagesQuery<'_>) -> Result<Residency> {
    let anchor = match query.anchor {
        [] => query.pages.len(),
        objects => whole_pages(lookup, objects, query.pages)?,
    };
    let mut paged = by_page(lookup, query, anchor)?.into_iter();
    let mut present = |pool: &PoolQuery<'_>| match pool.policy {
        HitPolicy::BlockGroups { block_pages, group_pages, keys } => {
            let whole = (query.pages.len() / block_pages).saturating_mul(group_pages);
            Ok(vec![true; whole_pages(lookup, pool.objects, &keys[..whole.min(keys.len())])?])
        }
        HitPolicy::AllPages | HitPolicy::TrailingPages(_) => Ok(paged.next().unwrap_or_default()),
    };
    let pools = query.pools.iter().map(&mut present).collect::<Result<_>>()?;
    Ok(Residency { anchor: vec![true; anchor], pools })
}

/// How many of `pages` have all of `objects`, before the first that lacks one.
fn whole_pages(
    lookup: &mut impl KeyLookup,
    objects: &[ObjectKey],
    pages: &[PrefixHash],
) -> Result<usize> {
    let keys = pages.iter().flat_map(|page| objects.iter().map(|object| object.on_page(*page)));
    Ok(lookup.prefix(keys)? / objects.len())
}

/// Which of the first `pages` pages are present, by pool that restricts the lengths. All pools of a
/// page are looked up together: as objects of one page they count as equally recent.
fn by_page(
    lookup: &mut impl KeyLookup,
    query: &PagesQuery<'_>,
    pages: usize,
) -> Result<Vec<Vec<bool>>> {
    let restricts = |pool: &&PoolQuery<'_>| !matches!(pool.policy, HitPolicy::BlockGroups { .. });
    let pools: Vec<_> = query.pools.iter().filter(restricts).map(|pool| pool.objects).collect();
    let objects: Vec<_> = pools.iter().copied().flatten().collect();
    let pages = &query.pages[..pages];
    let keys = pages.iter().flat_map(|page| objects.iter().map(|object| object.on_page(*page)));
    let mut found = lookup.exists(keys)?.into_iter();
    let mut present = vec![Vec::with_capacity(pages.len()); pools.len()];
    for _ in pages {
        for (objects, present) in pools.iter().zip(&mut present) {
            // `&`, not `&&`: consume every object's answer, so that the next pool's follow.
            present.push(found.by_ref().take(objects.len()).fold(true, |all, found| all & found));
        }
    }
    Ok(present)
}

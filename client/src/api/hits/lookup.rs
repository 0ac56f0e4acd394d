//! Looks up a query's keys, wherever the source of the lookups has them.

use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::ObjectKey;

use super::evaluate::Residency;
use super::{HitPolicy, PagesQuery, PoolQuery};
use crate::api::error::Result;

/// A source of lookups. A present object that is looked up counts as requested, unless a method
/// says otherwise.
pub trait KeyLookup {
    /// How many of `keys` are present before the first that is absent.
    fn prefix(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<usize>;
    /// Which of `keys` are present.
    fn exists(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<Vec<bool>>;
    /// As [`KeyLookup::exists`], with each key whether it counts as requested. A lookup over a link
    /// cannot distinguish them: all of them count.
    fn exists_each(&mut self, keys: impl Iterator<Item = (ObjectKey, bool)>) -> Result<Vec<bool>> {
        self.exists(keys.map(|(key, _)| key))
    }
    /// Mark `keys` that are present as requested, after [`KeyLookup::exists_each`] did not. The
    /// page of the first key has this number in the query.
    fn mark_requested(&mut self, _first_page: usize, _keys: impl Iterator<Item = ObjectKey>) {}
    /// Note the recurrent states of a prompt that was looked up: `state` has the objects of a
    /// page's state, `states` tells which of the leading present pages have one, and the prompt
    /// goes on from the last of the `usable` pages.
    fn note_states(
        &mut self,
        _pages: &[PrefixHash],
        _state: &[ObjectKey],
        _states: &[bool],
        _usable: usize,
    ) {
    }
}

/// Look up the anchor up to its first hole, then every other pool on the pages before that hole. No
/// page after it can be a stop, and objects that cannot be used must not count as requested. A
/// prompt that was never stored costs one lookup. Block groups are looked up by their own keys.
/// Pools that need trailing pages only do not count as requested yet ([`mark_trailing_requested`]).
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

/// Mark the states that a request goes on from as requested: of pools that need trailing pages
/// only, those before the longest stop. A state that a longer prefix has superseded does not become
/// recent with each request for the prefix.
pub fn mark_trailing_requested(
    lookup: &mut impl KeyLookup,
    query: &PagesQuery<'_>,
    usable_pages: usize,
) {
    for pool in query.pools {
        let HitPolicy::TrailingPages(window) = pool.policy else { continue };
        let first = usable_pages.saturating_sub(window.max(1));
        let pages = query.pages[first..usable_pages].iter();
        let keys = pages.flat_map(|page| pool.objects.iter().map(|object| object.on_page(*page)));
        lookup.mark_requested(first, keys);
    }
}

/// Note the states of pools that need the last page only: recurrent states, each of which stands
/// for the whole prefix.
pub fn note_states(
    lookup: &mut impl KeyLookup,
    query: &PagesQuery<'_>,
    residency: &Residency,
    usable_pages: usize,
) {
    for (pool, states) in query.pools.iter().zip(&residency.pools) {
        if matches!(pool.policy, HitPolicy::TrailingPages(0 | 1)) {
            lookup.note_states(query.pages, pool.objects, states, usable_pages);
        }
    }
}

fn is_trailing(pool: &PoolQuery<'_>) -> bool {
    matches!(pool.policy, HitPolicy::TrailingPages(_))
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
    let objects: Vec<(&ObjectKey, bool)> = (query.pools.iter().filter(restricts))
        .flat_map(|pool| pool.objects.iter().map(|object| (object, !is_trailing(pool))))
        .collect();
    let pages = &query.pages[..pages];
    let keys = pages
        .iter()
        .flat_map(|page| objects.iter().map(|(object, used)| (object.on_page(*page), *used)));
    let mut found = lookup.exists_each(keys)?.into_iter();
    let mut present = vec![Vec::with_capacity(pages.len()); pools.len()];
    for _ in pages {
        for (objects, present) in pools.iter().zip(&mut present) {
            // `&`, not `&&`: consume every object's answer, so that the next pool's follow.
            present.push(found.by_ref().take(objects.len()).fold(true, |all, found| all & found));
        }
    }
    Ok(present)
}

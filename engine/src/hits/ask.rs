//! What of a query is here, asked of the index, or of a store elsewhere.

use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::ObjectKey;

use super::evaluate::Residency;
use super::{HitPolicy, PagesQuery, PoolQuery};
use crate::error::Result;
use crate::exists;

/// Who can say what is here. What is and is asked about counts as asked for.
pub(crate) trait Look {
    /// How many of `keys` are here before the first that is not.
    fn prefix(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<usize>;
    /// Which of `keys` are here.
    fn exists(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<Vec<bool>>;
}

/// This process's own index.
impl Look for exists::Look<'_> {
    fn prefix(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<usize> {
        Ok(exists::Look::prefix(self, keys))
    }

    fn exists(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<Vec<bool>> {
        Ok(self.each(keys))
    }
}

/// Ask about the anchor up to its first hole, then about every other pool on the pages before it: nothing behind
/// it can be a stop, and what nobody can use must not count as asked for. A prompt that was never seen costs one
/// look. Block groups are asked by their own keys.
pub(super) fn ask(look: &mut impl Look, query: &PagesQuery<'_>) -> Result<Residency> {
    let anchor = match query.anchor {
        [] => query.pages.len(),
        objects => whole_pages(look, objects, query.pages)?,
    };
    let mut paged = by_page(look, query, anchor)?.into_iter();
    let mut here = |pool: &PoolQuery<'_>| match pool.policy {
        HitPolicy::BlockGroups { block_pages, group_pages, keys } => {
            let whole = (query.pages.len() / block_pages).saturating_mul(group_pages);
            Ok(vec![true; whole_pages(look, pool.objects, &keys[..whole.min(keys.len())])?])
        }
        HitPolicy::AllPages | HitPolicy::TrailingPages(_) => Ok(paged.next().unwrap_or_default()),
    };
    let pools = query.pools.iter().map(&mut here).collect::<Result<_>>()?;
    Ok(Residency { anchor: vec![true; anchor], pools })
}

/// How many of `pages` have all of `objects`, before the first that has not.
fn whole_pages(look: &mut impl Look, objects: &[ObjectKey], pages: &[PrefixHash]) -> Result<usize> {
    let keys = pages.iter().flat_map(|page| objects.iter().map(|object| object.on_page(*page)));
    Ok(look.prefix(keys)? / objects.len())
}

/// Which of the first `pages` pages are here, by pool that has a say in them. All pools of a page are asked about
/// one after the other: as a page's objects they count as equally recent.
fn by_page(look: &mut impl Look, query: &PagesQuery<'_>, pages: usize) -> Result<Vec<Vec<bool>>> {
    let has_say = |pool: &&PoolQuery<'_>| !matches!(pool.policy, HitPolicy::BlockGroups { .. });
    let pools: Vec<_> = query.pools.iter().filter(has_say).map(|pool| pool.objects).collect();
    let objects: Vec<_> = pools.iter().copied().flatten().collect();
    let pages = &query.pages[..pages];
    let keys = pages.iter().flat_map(|page| objects.iter().map(|object| object.on_page(*page)));
    let mut found = look.exists(keys)?.into_iter();
    let mut here = vec![Vec::with_capacity(pages.len()); pools.len()];
    for _ in pages {
        for (objects, here) in pools.iter().zip(&mut here) {
            // Every object's answer is taken, so that the next pool's come next.
            here.push(found.by_ref().take(objects.len()).fold(true, |all, found| all & found));
        }
    }
    Ok(here)
}

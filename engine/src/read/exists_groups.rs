//! Hit rules of the local index.

use pagelith_layouts::ids::PrefixHash;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use crate::api::error::Result;
use crate::api::hits::{self, KeyLookup, PagesFound, PagesQuery};
use crate::read::exists;
use crate::state::shared::Shared;

/// The local index.
impl KeyLookup for exists::IndexLookup<'_> {
    fn prefix(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<usize> {
        Ok(exists::IndexLookup::prefix(self, keys))
    }

    fn exists(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<Vec<bool>> {
        Ok(self.each(keys))
    }

    fn exists_each(&mut self, keys: impl Iterator<Item = (ObjectKey, bool)>) -> Result<Vec<bool>> {
        Ok(self.each_if_requested(keys))
    }

    fn mark_requested(&mut self, first_page: usize, keys: impl Iterator<Item = ObjectKey>) {
        exists::IndexLookup::mark_requested(self, first_page, keys);
    }

    fn note_states(
        &mut self,
        pages: &[PrefixHash],
        state: &[ObjectKey],
        states: &[bool],
        usable: usize,
    ) {
        exists::IndexLookup::note_states(self, pages, state, states, usable);
    }
}

/// Answer a query from the index. Present objects that were looked up count as requested, but for
/// trailing pages before those that the longest stop needs. Of these, states leave first.
pub(crate) fn exists_groups(
    shared: &Shared,
    query: &PagesQuery<'_>,
    at: Recency,
) -> Result<PagesFound> {
    shared.check_open()?;
    hits::check_query(query)?;
    exists::lookup_at_one_moment(shared, at, |lookup| hits::answer(lookup, query))
}

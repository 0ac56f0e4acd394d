//! Hit rules of a store that has peers: what is not here is asked of them, all that a look is about in one question a peer.

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;

use super::{Look, PagesFound, PagesQuery};
use crate::batch::Options;
use crate::error::Result;
use crate::pooled;
use crate::store::Store;

/// Answer a query by what is here or at a peer: the anchor first, then the other pools, so that something may come or go in between. A
/// peer that does not answer has nothing.
pub(crate) fn exists_groups(store: &Store, query: &PagesQuery<'_>, options: Options) -> Result<PagesFound> {
    store.shared.check_open()?;
    let deadline = store.shared.deadline(options.timeout);
    let request = options.request.unwrap_or_else(|| store.begin_request());
    let options = Options { request: Some(request), ..options };
    super::exists_groups_by(&mut HereOrThere { store, options, deadline }, query)
}

struct HereOrThere<'a> {
    store: &'a Store,
    options: Options,
    deadline: Mono,
}

impl Look for HereOrThere<'_> {
    fn prefix(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<usize> {
        Ok(self.exists(keys)?.into_iter().take_while(|here| *here).count())
    }

    fn exists(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<Vec<bool>> {
        // Each look has the time that is left, not all of it again.
        let timeout = Some(self.deadline.since(self.store.shared.now()));
        let keys: Vec<ObjectKey> = keys.collect();
        Ok(pooled::exists(self.store, &keys, Options { timeout, ..self.options }))
    }
}

//! Hit rules of a store with peers: objects that are absent locally are looked up at peers, with
//! one request to each peer per lookup.

use pagelith_io::clock::Mono;
use pagelith_layouts::key::ObjectKey;

use crate::api::error::Result;
use crate::api::hits::{KeyLookup, PagesFound, PagesQuery};
use crate::api::request::Options;
use crate::state::session_io;
use crate::store::blocking_calls;
use crate::store::session_pool::SessionPool;

/// Answer a query with local objects and those of peers. The anchor is looked up first, then the
/// other pools, so objects may appear or disappear in between. A peer that does not answer counts
/// as empty.
pub(crate) fn exists_groups(
    pool: &SessionPool,
    query: &PagesQuery<'_>,
    options: Options,
) -> Result<PagesFound> {
    pool.shared.check_open()?;
    let deadline = pool.shared.deadline(options.timeout);
    let request = options.request.unwrap_or_else(|| session_io::begin_request(&pool.shared));
    let options = options.request(request);
    crate::api::hits::exists_groups_by(&mut LocalAndPeerLookup { pool, options, deadline }, query)
}

struct LocalAndPeerLookup<'a> {
    pool: &'a SessionPool,
    options: Options,
    deadline: Mono,
}

impl KeyLookup for LocalAndPeerLookup<'_> {
    fn prefix(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<usize> {
        Ok(self.exists(keys)?.into_iter().take_while(|present| *present).count())
    }

    fn exists(&mut self, keys: impl Iterator<Item = ObjectKey>) -> Result<Vec<bool>> {
        // Each lookup has the time that remains.
        let timeout = Some(self.deadline.since(self.pool.shared.now()));
        let keys: Vec<ObjectKey> = keys.collect();
        Ok(blocking_calls::exists(self.pool, &keys, self.options.timeout(timeout)))
    }
}

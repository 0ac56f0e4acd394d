//! Parts of base groups of many pages, in one call.

use pagelith_io::sync::Arc;
use pagelith_layouts::key::ObjectKey;

use crate::api::error::{Error, Result};
use crate::api::outcome::PutOutcome;
use crate::api::request::{Options, PutSlice};
use crate::state::session_io;
use crate::store::group;
use crate::store::session_pool::SessionPool;

/// See [`crate::Store::put_parts`].
pub(crate) fn put(
    pool: &Arc<SessionPool>,
    required: &[ObjectKey],
    parts: &[&[PutSlice<'_>]],
    options: Options,
) -> Vec<Result<PutOutcome>> {
    let shared = &pool.shared;
    let (deadline, room) = (shared.deadline(options.timeout), shared.arena_wait_deadline(&options));
    // All groups of one call are equally recent.
    let request = Some(options.request.unwrap_or_else(|| session_io::begin_request(shared)));
    let depths = (0..).map(|page| options.depth.saturating_add(page));
    let put = |(depth, part): (u32, &&[PutSlice<'_>])| {
        // Each part has the remaining time.
        let (timeout, wait) = (Some(deadline.since(shared.now())), Some(room.since(shared.now())));
        put_one(
            pool,
            required,
            part,
            Options::default().request(request).depth(depth).timeout(timeout).wait(wait),
        )
    };
    depths.zip(parts).map(put).collect()
}

fn put_one(
    pool: &Arc<SessionPool>,
    required: &[ObjectKey],
    part: &[PutSlice<'_>],
    options: Options,
) -> Result<PutOutcome> {
    let first = part.first().ok_or_else(|| Error::invalid("a group has no object"))?;
    let required: Vec<ObjectKey> =
        required.iter().map(|key| key.on_page(first.key.hash())).collect();
    let group = group::begin(pool, &required, options)?;
    for outcome in group.put(part, options) {
        outcome?;
    }
    if group.missing().is_empty() { group.commit(options) } else { Ok(PutOutcome::Waiting) }
}

//! Prefetch: reads objects from SSD into DRAM ahead of a get, on hints from a caller that has
//! looked a prefix up and does not need it yet.
//!
//! - A hint promises nothing. An object that finds no room, is not read in time or changes
//!   meanwhile stays on SSD, and a get reads it there.
//! - Bytes are read from the device straight into reserved memory of the arena, are verified there,
//!   and stay there ([`crate::read::promote`]).
//! - One task reads ([`reader`]), with its own disk queue. It starts with the first hint, so a
//!   store without hints has no extra thread.

mod reader;

use std::sync::Arc;

use pagelith_io::sync::PoisonError;
use pagelith_layouts::align::align_up;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use self::reader::PrefetchTask;
use crate::api::request::Options;
use crate::memory::visibility::VisibilityFilter;
use crate::read::page_depth::PageDepths;
use crate::state::core::Core;
use crate::state::prefetch::PrefetchHint;
use crate::state::session_io::recency;
use crate::state::shared::Shared;

/// Hints that are looked up under one acquisition of the lock.
const LOOKUP_BATCH: usize = 32;
/// Pending hints may take 1/`ARENA_SHARE` of the arena: prefetched pages evict others.
const ARENA_SHARE: u64 = 4;

/// See [`crate::Store::prefetch`].
pub(crate) fn prefetch(
    shared: &Arc<Shared>,
    keys: impl Iterator<Item = ObjectKey>,
    options: &Options,
) -> usize {
    // Without `dram.bytes` the arena is only a write buffer and keeps no pages.
    if shared.ssd.volume.is_none()
        || shared.config.dram_bytes() == 0
        || shared.check_open().is_err()
    {
        return 0;
    }
    let (at, deadline) = (recency(shared, options), shared.deadline(options.timeout));
    let mut depths = PageDepths::default();
    let mut hints = Vec::new();
    let mut batch = Vec::with_capacity(LOOKUP_BATCH);
    let mut look_up = |batch: &mut Vec<(ObjectKey, u32)>| {
        let core = shared.lock();
        for (key, depth) in batch.drain(..) {
            if let Some(length) = on_ssd_only(shared, &core, &key) {
                let at = Recency { depth: at.depth.saturating_add(depth), ..at };
                hints.push(PrefetchHint { key, length, at, deadline });
            }
        }
    };
    for key in keys {
        batch.push((key, depths.depth_of(&key)));
        if batch.len() == LOOKUP_BATCH {
            look_up(&mut batch);
        }
    }
    look_up(&mut batch);
    let taken = enqueue(shared, hints);
    if taken > 0 && start_task(shared) {
        shared.prefetch.work.raise();
    }
    taken
}

/// The length in bytes of an object that is on SSD and not in DRAM.
fn on_ssd_only(shared: &Shared, core: &Core, key: &ObjectKey) -> Option<u64> {
    let generation = core.generation(key.namespace());
    let fingerprint = shared.fingerprint(key, generation);
    if core.find_memory(key, fingerprint, generation).is_some() {
        return None;
    }
    let seen = core.find_ssd(fingerprint).into_iter().find(|e| core.is_visible(e))?;
    Some(seen.length.into())
}

/// Queue as many of the `hints` as fit; returns how many.
fn enqueue(shared: &Shared, hints: Vec<PrefetchHint>) -> usize {
    let most = shared.config.arena_bytes() / ARENA_SHARE;
    let mut queue = shared.prefetch.queue();
    let before = queue.hints.len();
    for hint in hints {
        let bytes = align_up(hint.length);
        // Stop here: hints name a prefix from its front, so later ones are worth less.
        if queue.bytes + bytes > most {
            break;
        }
        if queue.known.insert(hint.key) {
            queue.bytes += bytes;
            queue.hints.push_back(hint);
        }
    }
    queue.hints.len() - before
}

/// Start the task if it does not run; false if it cannot start.
fn start_task(shared: &Arc<Shared>) -> bool {
    let mut task = shared.prefetch.task.lock().unwrap_or_else(PoisonError::into_inner);
    if task.is_some() {
        return true;
    }
    // `Prefetch::stop` has taken the task already, or will once this lock is free.
    let started = shared.check_open().and_then(|()| {
        let reader = Box::new(PrefetchTask::new(shared.clone())?);
        Ok(shared.env.runtime.spawn("pagelith-prefetch", reader, shared.prefetch.work.clone())?)
    });
    match started {
        Ok(started) => {
            *task = Some(started);
            true
        }
        Err(error) => {
            tracing::warn!(%error, "prefetch reader cannot start, hints are dropped");
            let mut queue = shared.prefetch.queue();
            let hints = std::mem::take(&mut queue.hints);
            hints.iter().for_each(|hint| queue.finish(hint));
            false
        }
    }
}

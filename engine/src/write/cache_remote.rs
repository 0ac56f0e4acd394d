//! Caches groups that peers sent in the local tiers, as if they had been put: the next get finds
//! them in DRAM, later ones on SSD. They are not offered to peers.
//!
//! A group is cached only if all of its members were received whole, so that it is from one
//! computation; only if none of its objects is or may be present locally; and only if no removal
//! happened meanwhile ([`crate::rpc::removal_fence`]). An attached group is cached if its base is
//! present locally or was cached before it, and is not visible without the base.

use std::collections::BTreeMap;

use pagelith_io::hashed_copy::{Copier, CopyMode};
use pagelith_layouts::ids::{NamespaceId, PrefixHash};
use pagelith_layouts::key::ObjectKey;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::policy::Recency;

use crate::api::outcome::CompletedGet;
use crate::config::Promote;
use crate::memory::frames::FrameRef;
use crate::rpc::remote_get::{CallOptions, FetchedItem, RemoteGet};
use crate::rpc::removal_fence::FenceVersion;
use crate::state::core::Core;
use crate::state::put_spec::{ObjectSize, PutKind, PutOrigin};
use crate::state::shared::Shared;
use crate::state::ssd_admission;
use crate::write::put;
use crate::write::put::admit::{AdmitOutcome, admit};
use crate::write::put::copy::{CopySource, MemberSource, prepare};
use crate::write::put::publish::publish;

/// Cache the objects that a batch received. A group that does not fit into DRAM is skipped: a
/// promotion is not worth a wait.
pub(crate) fn cache_fetched(shared: &Shared, batch: &mut RemoteGet) {
    let fetched = batch.take_fetched();
    let enabled = shared.config.promote() != Promote::Never && shared.config.dram_bytes() > 0;
    let Some(since) = batch.fence_version().filter(|_| enabled) else { return };
    let mut groups: BTreeMap<(NamespaceId, PrefixHash, usize), BTreeMap<ObjectKey, FetchedItem>> =
        BTreeMap::new();
    let mut attached: BTreeMap<(u64, u32), BTreeMap<ObjectKey, FetchedItem>> = BTreeMap::new();
    for object in fetched.into_iter().filter(|object| object.members > 0) {
        let group = match &object.attached {
            Some((request, base)) => attached.entry((*request, base.number)).or_default(),
            None => {
                // A single object is a group of its own.
                let number = if object.members == 1 { object.index + 1 } else { 0 };
                groups.entry((object.key.namespace(), object.key.hash(), number)).or_default()
            }
        };
        group.insert(object.key, object);
    }
    let mut frames = Vec::new();
    // Attached groups come last: their bases may be in the same batch.
    for group in groups.into_values().chain(attached.into_values()) {
        let group: Vec<FetchedItem> = group.into_values().collect();
        let kind = match &group[0].attached {
            Some((_, base)) => PutKind::Attached(&base.key),
            None if group.len() == 1 => PutKind::Single,
            None => PutKind::Base,
        };
        if group.iter().all(|object| object.members == group.len()) {
            let CallOptions { request, depth, .. } = batch.options();
            let at = Recency { request, depth: depth.saturating_add(group[0].index as u32) };
            frames.extend(cache_group(shared, batch.done(), kind, &group, since, at));
        }
    }
    if !frames.is_empty() {
        let CallOptions { request, depth, .. } = batch.options();
        let last_depth = depth.saturating_add(batch.done().len() as u32);
        let mut core = shared.lock();
        let request = (request, last_depth);
        ssd_admission::enqueue(&shared.admission, shared.now(), &mut core, &mut frames, request);
        drop(core);
        shared.signals.flusher.raise();
    }
}

/// Cache the objects of a group; returns the frames to be queued for the flusher.
fn cache_group(
    shared: &Shared,
    done: &[CompletedGet],
    kind: PutKind<'_>,
    group: &[FetchedItem],
    since: FenceVersion,
    at: Recency,
) -> Vec<FrameRef> {
    let size = |object: &FetchedItem| ObjectSize {
        key: object.key,
        length: Some(done[object.index].destination.len()),
        in_arena: false,
    };
    let sizes: Vec<ObjectSize> = group.iter().map(size).collect();
    // Such a group cannot be put in this store: it is too large, or attached to an object of
    // another page.
    if put::check(shared, kind, &sizes).is_err() {
        return Vec::new();
    }
    // No index entry is evicted for it, because its object would be lost from SSD too. An attached
    // group needs a link for each object in addition.
    let entries = group.len() as u64 * if matches!(kind, PutKind::Attached(_)) { 2 } else { 1 };
    let may_store = |core: &Core| {
        let has_room = core.index.len() + entries <= core.index.capacity();
        has_room
            && (shared.remote.removal_fence.is_unchanged_since(since)
                || mutant::on(Mutant::CachedAfterRemoval))
    };
    let mut core = shared.lock();
    if !may_store(&core) {
        return Vec::new();
    }
    // An object that is or may be present in any form is left as it is.
    let mut admitted = match admit(shared, &mut core, kind, &sizes, None, &[]) {
        AdmitOutcome::Admitted(admitted) => admitted,
        _ => return Vec::new(),
    };
    if admitted.has_existing() {
        admitted.give_back(&mut core);
        return Vec::new();
    }
    admitted.origin = PutOrigin::Fetched;
    drop(core);
    // The caller does not have its memory back yet, so these are the verified bytes. They are
    // compared all the same, since they will be served as the original.
    let bytes = |member: usize| {
        let FetchedItem { index, checksums, .. } = &group[member];
        CopySource::Fetched(&done[*index].destination.0, checksums)
    };
    let incoming = group.iter().map(|object| MemberSource::ToCopy(object.key));
    let mut copying = prepare(kind.initial_group_kind(), &group[0].key, incoming, admitted, at);
    if let Some(copy) = copying.begin_copy() {
        copy.fill(&shared.memory, &mut Copier::new(CopyMode::NonTemporal), bytes);
    }
    let mut core = shared.lock();
    if !may_store(&core) {
        copying.give_back(&mut core);
        return Vec::new();
    }
    let confirmed = copying.confirm(&mut core);
    match confirmed.and_then(|group| publish(shared, &mut core, kind, group, at)) {
        Ok(published) => published.frames,
        Err(returned) => {
            returned.free(&mut core);
            Vec::new()
        }
    }
}

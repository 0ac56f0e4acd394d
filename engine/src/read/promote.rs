//! Promotion: groups that were read whole from SSD are kept in DRAM too. Groups sent by peers are
//! kept by `cache_remote`.

use std::collections::BTreeMap;
use std::sync::Arc;

use pagelith_layouts::ids::SegmentId;
use pagelith_tiers::policy::Recency;

use crate::api::outcome::Tier;
use crate::api::request::Destination;
use crate::config::Promote;
use crate::memory::frames::{FrameData, FrameMember, FrameState, Members};
use crate::memory::index::Entry;
use crate::memory::visibility::VisibilityFilter;
use crate::read::item::{BatchItem, ItemOutcome, Purpose, VerifiedRecord};
use crate::state::core::Core;
use crate::state::frame_access::UnpublishedExtent;
use crate::state::group_memory::Reservation;
use crate::state::put_spec::ObjectSize;
use crate::state::quota::QuotaRoom;
use crate::state::shared::Shared;

/// Promote every record of which this batch read all members whole, and every prefetched object;
/// returns the number of objects. A record that does not fit into DRAM is skipped: a promotion is
/// not worth a wait.
pub(crate) fn promote(shared: &Shared, items: &mut [BatchItem], at: Recency) -> u64 {
    let mut records: BTreeMap<(SegmentId, u64), BTreeMap<u16, usize>> = BTreeMap::new();
    for (i, item) in items.iter().enumerate() {
        if let Some(VerifiedRecord { facts, location, .. }) = verified(item) {
            let record = records.entry((facts.identity.segment, facts.offset)).or_default();
            record.insert(location.payload_sector, i);
        }
    }
    let mut objects = 0;
    for members in records.into_values() {
        let members: Vec<usize> = members.into_values().collect();
        let count = members.first().and_then(|i| verified(&items[*i])).map(|v| v.member_count);
        if count == Some(members.len()) && promote_record(shared, items, &members, at) {
            objects += members.len() as u64;
        }
    }
    objects
}

/// The record of an object that was read whole from SSD.
fn verified(item: &BatchItem) -> Option<&VerifiedRecord> {
    match item.outcome()? {
        ItemOutcome::Hit(hit) => hit.record(),
        ItemOutcome::Miss(_) | ItemOutcome::Failed(_) => None,
    }
}

/// Whether objects that callers read are kept in DRAM.
pub(crate) fn is_on(shared: &Shared) -> bool {
    shared.config.promote() != Promote::Never && shared.config.dram_bytes() > 0
}

/// Whether the object is unchanged since it was read, on SSD only. An object that was cleared or
/// hidden meanwhile would occupy DRAM without a reader.
fn is_only_on_ssd(core: &Core, item: &BatchItem) -> bool {
    let generation = core.generation(item.key.namespace());
    let seen = |e: Entry| is_ssd_entry(item, &e) && core.is_visible(&e);
    verified(item).is_some_and(|v| v.facts.generation == generation)
        && core.index.find(item.fingerprint).any(seen)
}

/// Whether an entry is the object's, and has no frame.
fn is_ssd_entry(item: &BatchItem, entry: &Entry) -> bool {
    entry.frame.is_none() && verified(item).is_some_and(|v| entry.ssd == Some(v.location))
}

fn promote_record(shared: &Shared, items: &mut [BatchItem], which: &[usize], at: Recency) -> bool {
    let members = match which.iter().all(|i| items[*i].keeps_in_arena()) {
        true => which.iter().filter_map(|i| take_reserved(&mut items[*i])).collect(),
        false => copy_to_arena(shared, items, which),
    };
    let first = &items[which[0]];
    let (depth, facts) =
        (at.depth.saturating_add(first.depth_offset), verified(first).map(|v| v.facts));
    let mut core = shared.lock();
    let unchanged =
        members.len() == which.len() && which.iter().all(|i| is_only_on_ssd(&core, &items[*i]));
    let (Some(facts), true) = (facts, unchanged) else {
        members.into_iter().for_each(|m| core.dram.space.free(m.extent));
        return false;
    };
    let data = Arc::new(FrameData {
        namespace: facts.namespace,
        generation: facts.generation,
        sequence: facts.sequence,
        group_kind: facts.group_kind,
        base_name: facts.base_group.0,
        base: None,
        depth: facts.depth,
        members,
    });
    let core = &mut *core;
    let lengths = data.members.iter().map(|m| m.extent.bytes);
    let fits = core.make_quota_room(data.namespace, lengths, false, None) == QuotaRoom::Fits;
    let insert = |core: &mut Core| {
        let at = Recency { depth, ..at };
        core.dram.frames.insert(data.clone(), FrameState::Evictable, at, &mut core.tenants)
    };
    let Some(frame) = fits.then(|| insert(core)).flatten() else {
        data.members.iter().for_each(|m| core.dram.space.free(m.extent));
        return false;
    };
    for item in which.iter().map(|i| &items[*i]) {
        let linked = core.index.update(
            item.fingerprint,
            |e| is_ssd_entry(item, e),
            |e| e.frame = Some(frame.id.0),
        );
        debug_assert!(linked.is_ok_and(|found| found));
        core.events.stored(Tier::Memory, &item.key, false);
    }
    core.counters.promoted += 1;
    core.end_write(frame);
    true
}

/// The frame member of an object that was read into reserved arena memory.
fn take_reserved(item: &mut BatchItem) -> Option<FrameMember> {
    let Purpose::Keep(reservation) = &mut item.purpose else { return None };
    let reservation = reservation.take()?;
    let memory = item.destination.take()?.0;
    let checksums = verified(item)?.checksums.clone();
    // The bytes were verified in this memory, which has no other user.
    reservation.fill(memory, checksums).into_member(item.key, item.fingerprint)
}

/// Copy objects that were read for a caller into the arena; empty if there is no room.
fn copy_to_arena(shared: &Shared, items: &[BatchItem], which: &[usize]) -> Members {
    let mut core = shared.lock();
    if !which.iter().all(|i| is_only_on_ssd(&core, &items[*i])) {
        return Members::new();
    }
    let size = |i: &usize| {
        let BatchItem { key, destination, .. } = &items[*i];
        let length = destination.as_ref().map(Destination::len);
        ObjectSize { key: *key, length, in_arena: false }
    };
    let sizes: Vec<_> = which.iter().map(size).collect();
    let lengths = sizes.iter().filter_map(|size| size.length);
    let namespace = items[which[0]].key.namespace();
    let mut reservation = Reservation::with_capacity(sizes.len());
    if core.make_quota_room(namespace, lengths, false, None) != QuotaRoom::Fits {
        return Members::new();
    }
    if !crate::state::group_memory::reserve_group(&mut core, &sizes, &mut reservation) {
        return Members::new();
    }
    let Reservation { extents, number } = reservation;
    core.dram.frames.give_back(number);
    drop(core);
    let mut filled = true;
    let mut members = Members::with_capacity(which.len());
    for (item, extent) in which.iter().map(|i| &items[*i]).zip(extents.into_iter().flatten()) {
        let pieces: Vec<_> = item.destination.iter().flat_map(Destination::pieces).collect();
        let checksums = verified(item).map(|v| v.checksums.clone()).unwrap_or_default();
        // The caller does not have its memory back yet, so these are the verified bytes. They are
        // compared all the same, since they will be served as the original.
        filled &= UnpublishedExtent::new(extent).fill(&shared.memory, &pieces).as_ref()
            == Some(&checksums);
        members.push(FrameMember {
            key: item.key,
            fingerprint: item.fingerprint,
            extent,
            checksums,
        });
    }
    if !filled {
        let mut core = shared.lock();
        members.drain(..).for_each(|m| core.dram.space.free(m.extent));
    }
    members
}

//! Promotion: what was read whole from SSD is kept in DRAM too, page by page; what a peer sent, in this store's tiers ([`fetched`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use pagelith_layouts::ids::SegmentId;
use pagelith_tiers::policy::Recency;

use crate::api::outcome::{GetOutcome, Tier};
use crate::config::Promote;
use crate::memory::frames::{FrameData, FrameMember, FrameState, Members};
use crate::memory::index::Entry;
use crate::memory::visibility::VisibilityFilter;
use crate::read::slot::Slot;
use crate::state::core::Core;
use crate::state::frame_access::Unpublished;
use crate::state::shared::Shared;
use crate::write::put::{Room, Size};

/// Promote every record of which this batch brought all members whole, and whatever was read to be kept; how many objects. Gives
/// up on one that DRAM has no room for: a promotion is never worth waiting.
pub(crate) fn promote(shared: &Shared, slots: &mut [Slot], at: Recency) -> u64 {
    let always = is_on(shared);
    let mut records: BTreeMap<(SegmentId, u64), BTreeMap<u64, usize>> = BTreeMap::new();
    for (i, slot) in slots.iter().enumerate().filter(|(_, slot)| always || slot.is_arriving()) {
        let whole = slot.want == (0..slot.length);
        let from_ssd = match &slot.outcome {
            Some(Ok(GetOutcome::Hit { tier, .. })) => *tier == Tier::Ssd,
            Some(Ok(GetOutcome::Miss(_)) | Err(_)) | None => false,
        };
        if let (true, true, Some(e), Some(_)) = (whole, from_ssd, &slot.expected, &slot.verified) {
            let record = records.entry((e.identity.segment, e.offset)).or_default();
            record.insert(e.payload_delta, i);
        }
    }
    let mut objects = 0;
    for members in records.into_values() {
        let members: Vec<usize> = members.into_values().collect();
        let all = members.first().and_then(|i| slots[*i].verified.as_ref());
        if all.is_some_and(|v| v.member_count == members.len()) && promote_record(shared, slots, &members, at)
        {
            objects += members.len() as u64;
        }
    }
    objects
}

/// Whether what is read for callers is kept in DRAM.
pub(crate) fn is_on(shared: &Shared) -> bool {
    shared.config.promote() != Promote::Never && shared.config.dram_bytes() > 0
}

/// Whether nothing has happened to the object since it was read: it is on SSD alone. What was cleared meanwhile, or is not seen
/// any more, would lie in memory for nobody.
fn is_there(core: &Core, slot: &Slot) -> bool {
    let generation = core.generation(slot.get.key.namespace());
    let seen = |e: Entry| is_found(slot, &e) && core.is_visible(&e);
    slot.verified.as_ref().is_some_and(|v| v.facts.generation == generation)
        && core.index.find(slot.fingerprint).any(seen)
}

/// Whether an entry is the object's, on SSD alone.
fn is_found(slot: &Slot, entry: &Entry) -> bool {
    entry.ssd == slot.found() && entry.frame.is_none()
}

fn promote_record(shared: &Shared, slots: &mut [Slot], which: &[usize], at: Recency) -> bool {
    let members = match which.iter().all(|i| slots[*i].is_arriving()) {
        true => which.iter().filter_map(|i| arrived(&mut slots[*i])).collect(),
        false => copied(shared, slots, which),
    };
    let first = &slots[which[0]];
    let (depth, facts) = (at.depth.saturating_add(first.step_back), first.verified.as_ref().map(|v| v.facts));
    let mut core = shared.lock();
    let there = members.len() == which.len() && which.iter().all(|i| is_there(&core, &slots[*i]));
    let (Some(facts), true) = (facts, there) else {
        members.into_iter().for_each(|m| core.space.free(m.extent));
        return false;
    };
    let data = Arc::new(FrameData {
        namespace: facts.namespace,
        generation: facts.generation,
        sequence: facts.sequence,
        group_kind: facts.group_kind,
        base_group: facts.base_group.0,
        base: None,
        depth: facts.depth,
        members,
    });
    let Some(frame) = core.frames.insert(data.clone(), FrameState::Clean, Recency { depth, ..at }) else {
        data.members.iter().for_each(|m| core.space.free(m.extent));
        return false;
    };
    for slot in which.iter().map(|i| &slots[*i]) {
        let linked =
            core.index.update(slot.fingerprint, |e| is_found(slot, e), |e| e.frame = Some(frame.id.0));
        debug_assert!(linked.is_ok_and(|found| found));
        core.events.stored(Tier::Memory, &slot.get.key, false);
    }
    core.counters.promoted += 1;
    core.mark_frame_clean(frame);
    true
}

/// What was read to be kept, where it lies.
fn arrived(slot: &mut Slot) -> Option<FrameMember> {
    let arriving = slot.rare.as_mut().and_then(|rare| rare.arriving.take());
    let (arriving, verified) = arriving.zip(slot.verified.as_ref())?;
    let memory = std::mem::take(&mut slot.get.destination.0);
    // It was verified there, and nobody else has it.
    arriving.arrived(memory, verified.checksums.clone()).into_member(slot.get.key, slot.fingerprint)
}

/// A copy of what was read for a caller; nothing if there is no room for it.
fn copied(shared: &Shared, slots: &[Slot], which: &[usize]) -> Members {
    let mut core = shared.lock();
    if !which.iter().all(|i| is_there(&core, &slots[*i])) {
        return Members::new();
    }
    let size = |i: &usize| Size { key: slots[*i].get.key, length: Some(slots[*i].length), in_arena: false };
    let sizes: Vec<_> = which.iter().map(size).collect();
    let mut room = Room::of(sizes.len());
    if !crate::write::put::set_aside(&mut core, &sizes, &mut room) {
        return Members::new();
    }
    let Room { extents, number } = room;
    core.frames.give_back(number);
    drop(core);
    let mut filled = true;
    let mut members = Members::with_capacity(which.len());
    for (slot, extent) in which.iter().map(|i| &slots[*i]).zip(extents.into_iter().flatten()) {
        let pieces: Vec<_> = slot.get.destination.pieces().collect();
        let checksums = slot.verified.as_ref().map(|v| v.checksums.clone()).unwrap_or_default();
        // The caller has not got its memory back yet, so this is what was verified; it is compared all the same,
        // since it will be served as if it were the original.
        filled &= Unpublished::new(extent).fill(&shared.memory, &pieces).as_ref() == Some(&checksums);
        members.push(FrameMember { key: slot.get.key, fingerprint: slot.fingerprint, extent, checksums });
    }
    if !filled {
        let mut core = shared.lock();
        members.drain(..).for_each(|m| core.space.free(m.extent));
    }
    members
}

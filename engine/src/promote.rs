//! Promotion: what was read whole from SSD is kept in DRAM too, page by page.

use std::collections::BTreeMap;
use std::sync::Arc;

use pagelith_layouts::ids::SegmentId;
use pagelith_tiers::dram::arena::Extent;
use pagelith_tiers::policy::Recency;

use crate::config::Promote;
use crate::frame_io::Unpublished;
use crate::frames::{FrameData, FrameMember, FrameState};
use crate::index::Entry;
use crate::outcome::{GetOutcome, Tier};
use crate::put::Size;
use crate::shared::Shared;
use crate::slot::Slot;
use crate::visibility::Sight;

/// Promote every record of which this batch brought all members whole. Gives up on one that DRAM has no
/// room for: a promotion is never worth waiting.
pub(crate) fn promote(shared: &Shared, slots: &[Slot], at: Recency) {
    if shared.config.promote() == Promote::Never || shared.config.dram_bytes() == 0 {
        return;
    }
    let mut records: BTreeMap<(SegmentId, u64), BTreeMap<u64, &Slot>> = BTreeMap::new();
    for slot in slots {
        let whole = slot.want == (0..slot.length);
        let from_ssd = match &slot.outcome {
            Some(Ok(GetOutcome::Hit { tier, .. })) => *tier == Tier::Ssd,
            Some(Ok(GetOutcome::Miss(_)) | Err(_)) | None => false,
        };
        if let (true, true, Some(e), Some(_)) = (whole, from_ssd, &slot.expected, &slot.verified) {
            let record = records.entry((e.identity.segment, e.offset)).or_default();
            record.insert(e.payload_delta, slot);
        }
    }
    for members in records.values() {
        let all = members.values().next().and_then(|s| s.verified.as_ref());
        if all.is_some_and(|v| v.member_count == members.len()) {
            let members: Vec<_> = members.values().copied().collect();
            promote_record(shared, &members, at);
        }
    }
}

fn promote_record(shared: &Shared, members: &[&Slot], at: Recency) {
    let on_ssd_only = |slot: &Slot| {
        let place = slot.found();
        move |e: &Entry| e.ssd == place && e.frame.is_none()
    };
    let mut core = shared.lock();
    // What was cleared meanwhile, or is not seen any more, would lie in memory for nobody.
    let there = |core: &crate::core::Core, s: &Slot| {
        let generation = core.generation(s.get.key.namespace());
        let seen = |e: Entry| on_ssd_only(s)(&e) && core.is_visible(&e);
        s.verified.as_ref().is_some_and(|v| v.facts.generation == generation)
            && core.index.find(s.fingerprint).any(seen)
    };
    if !members.iter().all(|s| there(&core, s)) {
        return;
    }
    let size = |s: &&Slot| Size { key: s.get.key, length: Some(s.length), in_arena: false };
    let sizes: Vec<_> = members.iter().map(size).collect();
    let Some(extents) = crate::put::set_aside(&mut core, &sizes) else { return };
    let extents: Vec<Extent> = extents.into_iter().flatten().collect();
    drop(core);
    let mut filled = true;
    for (slot, extent) in members.iter().zip(&extents) {
        let pieces: Vec<_> = slot.get.destination.pieces().collect();
        let checksums = slot.verified.as_ref().map(|v| &v.checksums);
        // The caller has not got its memory back yet, so this is what was verified; it is compared all the same,
        // since it will be served as if it were the original.
        filled &= Unpublished::new(*extent).fill(&shared.memory, &pieces).as_ref() == checksums;
    }
    let mut core = shared.lock();
    let first = members[0].verified.as_ref().map(|v| v.facts);
    let (true, Some(facts), true) = (filled, first, members.iter().all(|s| there(&core, s))) else {
        extents.into_iter().for_each(|e| core.space.free(e));
        return;
    };
    let member = |(slot, extent): (&&Slot, &Extent)| FrameMember {
        key: slot.get.key,
        fingerprint: slot.fingerprint,
        extent: *extent,
        checksums: slot.verified.as_ref().map(|v| v.checksums.clone()).unwrap_or_default(),
    };
    let data = Arc::new(FrameData {
        namespace: facts.namespace,
        generation: facts.generation,
        sequence: facts.sequence,
        group_kind: facts.group_kind,
        base_group: facts.base_group.0,
        depth: facts.depth,
        members: members.iter().zip(&extents).map(member).collect(),
    });
    let depth = at.depth.saturating_add(members[0].step_back);
    let Some(frame) = core.frames.insert(data, FrameState::Clean, Recency { depth, ..at }) else {
        extents.into_iter().for_each(|e| core.space.free(e));
        return;
    };
    for slot in members {
        let linked = core.index.update(slot.fingerprint, on_ssd_only(slot), |e| e.frame = Some(frame.id.0));
        debug_assert!(linked.is_ok_and(|found| found));
        core.events.stored(Tier::Memory, &slot.get.key, false);
    }
    core.counters.promoted += 1;
    core.settle_frame(frame);
}

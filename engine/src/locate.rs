//! Finding objects, and holding what was found.

use pagelith_layouts::ids::SegmentId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::Record;
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_tiers::policy::{FrameId, Recency};
use pagelith_tiers::ssd::read::Expected;

use crate::core::Core;
use crate::error::Result;
use crate::frame_io::Held;
use crate::index::{Entry, PREFETCH_GROUP, SsdPlace};
use crate::outcome::{GetOutcome, MissCause};
use crate::shared::Shared;
use crate::slot::{Slot, siblings};
use crate::visibility::Sight;

/// Where an object is.
pub(crate) enum Located {
    /// In DRAM, held, as this member.
    Memory(Held, usize),
    /// On SSD; the slot says where, and its segment is held.
    Ssd,
    /// Nowhere, or the request does not fit it.
    Settled(Result<GetOutcome>),
}

/// Look the slots `which` up, in one critical section; depth counts from the batch's first object.
pub(crate) fn locate(
    shared: &Shared,
    slots: &mut [Slot],
    which: &[usize],
    at: Recency,
) -> Vec<(usize, Located)> {
    let mut core = shared.lock();
    let mut located = Vec::with_capacity(which.len());
    let mut fingerprints = Vec::with_capacity(PREFETCH_GROUP);
    for group in which.chunks(PREFETCH_GROUP) {
        // One step for all of the group at a time, so that their misses of the cache are under way together.
        fingerprints.clear();
        fingerprints.extend(group.iter().map(|&i| {
            let slot = &mut slots[i];
            slot.fingerprint = shared.fingerprint(&slot.get.key, core.generation(slot.get.key.namespace()));
            slot.fingerprint
        }));
        core.index.prefetch(&fingerprints);
        core.frames.prefetch_keys(fingerprints.iter().filter_map(|f| core.index.find(*f).next()?.frame));
        for &i in group {
            let at = Recency { depth: at.depth.saturating_add(slots[i].step_back), ..at };
            located.push((i, locate_one(shared, &mut core, &mut slots[i], at)));
        }
    }
    located
}

/// An object's frame in DRAM, held, if it is there as it is wanted: everything else is for a get to say.
pub(crate) fn hold_in_memory(
    shared: &Shared,
    core: &mut Core,
    key: &ObjectKey,
    at: Recency,
    fits: impl Fn(u64) -> bool,
) -> Option<(Held, usize)> {
    let generation = core.generation(key.namespace());
    let fingerprint = shared.fingerprint(key, generation);
    if core.index.find(fingerprint).any(|e| e.attached && !core.is_visible(&e)) {
        return None;
    }
    let (frame, member) = core.find_memory(key, fingerprint, generation)?;
    core.frames.get(frame.id).filter(|f| fits(f.data.members[member].extent.bytes))?;
    core.touch(fingerprint, |e| e.frame == Some(frame.id.0), at);
    Some((Held::new(core, frame)?, member))
}

fn locate_one(shared: &Shared, core: &mut Core, slot: &mut Slot, at: Recency) -> Located {
    let (key, fingerprint) = (slot.get.key, slot.fingerprint);
    let generation = core.generation(key.namespace());
    // A probe asks what lies there, seen or not.
    let hidden = |core: &Core| core.index.find(fingerprint).any(|e| e.attached && !core.is_visible(&e));
    if !slot.probe && hidden(core) {
        return Located::Settled(Ok(GetOutcome::Miss(MissCause::Absent)));
    }
    if let Some((frame, member)) = core.find_memory(&key, fingerprint, generation) {
        let length = core.frames.get(frame.id).map_or(0, |f| f.data.members[member].extent.bytes);
        if let Err(error) = slot.fit(length) {
            return Located::Settled(Err(error));
        }
        core.touch(fingerprint, |e| e.frame == Some(frame.id.0), at);
        if let Some(held) = Held::new(core, frame) {
            return Located::Memory(held, member);
        }
    }
    let candidates = core.find_ssd(fingerprint);
    let mut misfit = None;
    for entry in candidates {
        let Some(place) = entry.ssd.filter(|p| !slot.tried.contains(p)) else { continue };
        match slot.fit(entry.length.into()) {
            Ok(()) => {
                hold(shared, core, slot, &entry, place, at, generation);
                return Located::Ssd;
            }
            Err(error) => misfit = Some(error),
        }
    }
    // With real fingerprints an entry of another length is this object, and the request is wrong.
    Located::Settled(match misfit {
        Some(error) if !shared.config.constant_fingerprint() => Err(error),
        _ => Ok(GetOutcome::Miss(MissCause::Absent)),
    })
}

fn hold(
    shared: &Shared,
    core: &mut Core,
    slot: &mut Slot,
    entry: &Entry,
    place: SsdPlace,
    at: Recency,
    generation: pagelith_layouts::ids::Generation,
) {
    core.touch(entry.fingerprint, |e| e.ssd == Some(place), at);
    let (Some(ssd), Some(volume)) = (core.ssd.as_mut(), &shared.volume) else { return };
    let segment = SegmentId(place.segment);
    let s = ssd.segments.get_mut(segment);
    s.readers += 1;
    slot.place = Some(place);
    slot.expected = Some(Expected {
        identity: SegmentIdentity { store: volume.store, segment, incarnation: s.incarnation },
        offset: u64::from(place.record_block) * 4096,
        payload_delta: u64::from(place.payload_delta) * 4096,
        key: slot.get.key,
        generation,
        length: entry.length.into(),
    });
}

/// Give the slot's segment back.
pub(crate) fn release(shared: &Shared, slot: &mut Slot) {
    if let Some(place) = slot.place.take() {
        crate::session::release_segment(shared, SegmentId(place.segment));
    }
}

/// Drop the entry that the slot's object was read by: the next `exists` says no. With it go the other
/// objects of its record: a page is whole or not here. If no header can tell who they are, the record is
/// noted as broken, and nothing in it is seen any more.
pub(crate) fn forget(shared: &Shared, slot: &Slot, header: Option<&[u8]>) {
    let (Some(place), Some(expected)) = (slot.place, slot.expected) else { return };
    let record = header.and_then(|bytes| Record::decode(bytes).ok());
    let record = record.filter(|r| r.expect(expected.identity, expected.offset).is_ok());
    let mut core = shared.lock();
    let known = core.index.find(slot.fingerprint).any(|e| e.ssd == Some(place));
    // Another get may have brought the page into memory meanwhile.
    let mut pages = core.drop_lost([(slot.fingerprint, place)]);
    // What went together is one failure.
    if known && !core.is_hidden_at(place) {
        core.suspect(SegmentId(place.segment), shared.now());
        shared.work.raise();
    }
    match record {
        Some(record) => {
            let generation = record.facts().generation;
            let siblings = siblings(&record)
                .into_iter()
                .map(|(key, place)| (shared.fingerprint(&key, generation), place));
            pages.extend(core.drop_lost(siblings));
        }
        None => {
            core.visibility.hide_record(place);
        }
    }
    for page in pages {
        if core.requeue_frame(FrameId(page)) {
            shared.work.raise();
        }
    }
}

//! Finding objects, and holding what was found: without the core's lock, as long as nothing changes where they are looked for.
//!
//! A look enters the frames and segments that it finds, and believes what it found if it was so at one moment
//! ([`Snapshot::validate`]); else it leaves them again and looks anew, the last time under the lock, where nothing changes.
//!
//! Invariants:
//! - Nothing is read, and nothing is told to a caller, before the look holds. What is found until then may be anything: it is
//!   compared, and entered, which keeps it from being freed whatever it is.
//! - A frame is closed, and a segment is, behind the change of the index that takes it out of sight. Whoever entered before
//!   is waited for; whoever came later is refused, or sees that its look does not hold.
//! - So who holds a frame or a segment by a look that held has the one that the index led to, until it leaves.

use std::sync::atomic::Ordering::Relaxed;

use pagelith_layouts::ids::{Generation, NamespaceId, SegmentId};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::Record;
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_tiers::policy::{FrameId, Recency};
use pagelith_tiers::ssd::read::Expected;

use crate::api::error::Result;
use crate::api::outcome::{GetOutcome, MissCause};
use crate::memory::index::{Entry, PREFETCH_GROUP, SsdPlace, TICK_MODULUS};
use crate::memory::visibility::VisibilityFilter;
use crate::read::slot::{Slot, siblings};
use crate::state::core::Core;
use crate::state::frame_access::{Entered, Held};
use crate::state::read_view::{LOCK_FREE_TRIES, Snapshot};
use crate::state::recency::{FoundObject, record};
use crate::state::shared::Shared;

/// Where an object is.
pub(crate) enum Located<'a> {
    /// In DRAM, in this frame, as this member.
    Memory(Entered<'a>, FrameId, usize),
    /// On SSD; the slot says where, and its segment is held.
    Ssd,
    /// Nowhere, or the request does not fit it.
    Settled(Result<GetOutcome>),
}

/// Look the slots `which` up, all of them at one moment; depth counts from the batch's first object.
pub(crate) fn locate<'a>(
    shared: &'a Shared,
    slots: &mut [Slot],
    which: &[usize],
    at: Recency,
) -> Vec<(usize, Located<'a>)> {
    // Where every request has to be told of, the lock is needed anyway.
    for _ in 0..if shared.read_view.counts_touches { 0 } else { LOCK_FREE_TRIES } {
        let pin = crossbeam_epoch::pin();
        let reading = shared.read_view.read(&pin);
        let mut look = Look::new(shared, &reading, which.len());
        look.all(slots, which, at);
        let Look { located, touched, left, torn, .. } = look;
        let holds = !torn && reading.validate(&pin);
        drop(pin);
        free_left(shared, &left);
        if holds {
            record(shared, &touched, at);
            return located;
        }
        located.into_iter().for_each(|(i, located)| undo(shared, &mut slots[i], located));
    }
    let mut core = shared.lock();
    let pin = crossbeam_epoch::pin();
    let reading = shared.read_view.read(&pin);
    let mut look = Look::new(shared, &reading, which.len());
    look.all(slots, which, at);
    let Look { located, touched, left, .. } = look;
    left.into_iter().for_each(|frame| core.free_if_unread(frame));
    touched.iter().for_each(|touched| touched.record_in(&mut core, at));
    located
}

/// Take back what a look did that does not hold.
fn undo(shared: &Shared, slot: &mut Slot, located: Located<'_>) {
    match located {
        Located::Memory(entered, frame, _) => leave(shared, entered, frame),
        Located::Ssd => release(shared, slot),
        Located::Settled(_) => {}
    }
    slot.expected = None;
}

/// A get is done with a frame.
pub(crate) fn leave(shared: &Shared, entered: Entered<'_>, frame: FrameId) {
    if entered.leave() {
        shared.lock().free_if_unread(frame);
    }
}

fn free_left(shared: &Shared, left: &[FrameId]) {
    if !left.is_empty() {
        let mut core = shared.lock();
        left.iter().for_each(|frame| core.free_if_unread(*frame));
    }
}

/// A look for the objects of some slots.
struct Look<'a, 'r> {
    shared: &'a Shared,
    reading: &'r Snapshot<'r>,
    /// The tick that counts as now, as the index has it.
    tick: u32,
    located: Vec<(usize, Located<'a>)>,
    touched: Vec<FoundObject>,
    /// Frames of other objects that were dropped while this was inside, and are to be freed.
    left: Vec<FrameId>,
    /// What was found had been closed already.
    torn: bool,
}

impl<'a, 'r> Look<'a, 'r> {
    fn new(shared: &'a Shared, reading: &'r Snapshot<'r>, count: usize) -> Look<'a, 'r> {
        let tick = (shared.read_view.tick.load(Relaxed) % u64::from(TICK_MODULUS)) as u32;
        reading.reserve(count);
        let (located, touched) = (Vec::with_capacity(count), Vec::with_capacity(count));
        Look { shared, reading, tick, located, touched, left: Vec::new(), torn: false }
    }

    fn all(&mut self, slots: &mut [Slot], which: &[usize], at: Recency) {
        // The keys of a batch are of one namespace, mostly.
        let mut of: Option<(NamespaceId, Generation)> = None;
        let mut fingerprints = Vec::with_capacity(PREFETCH_GROUP);
        let mut generations = Vec::with_capacity(PREFETCH_GROUP);
        let mut entries: Vec<Entry> = Vec::new();
        for group in which.chunks(PREFETCH_GROUP) {
            fingerprints.clear();
            generations.clear();
            for &i in group {
                let slot = &mut slots[i];
                let namespace = slot.get.key.namespace();
                let known = of.filter(|known| known.0 == namespace);
                let generation = || self.reading.visibility.generation(namespace);
                let (_, generation) = *of.insert(known.unwrap_or_else(|| (namespace, generation())));
                slot.fingerprint = self.shared.fingerprint(&slot.get.key, generation);
                fingerprints.push(slot.fingerprint);
                generations.push(generation);
            }
            self.shared.read_view.index.prefetch(&fingerprints);
            for (&i, generation) in group.iter().zip(&generations) {
                let slot = &mut slots[i];
                let depth = at.depth.saturating_add(slot.step_back);
                entries.clear();
                entries.extend(self.reading.entries(slot.fingerprint));
                let found = self.one(slot, &entries, *generation, depth);
                self.located.push((i, found));
            }
        }
    }

    fn enter(&self, frame: u32) -> Option<Entered<'a>> {
        self.shared.read_view.frames.enter(frame as usize).map(Entered::new)
    }

    /// Where one object is, of which the index has these `entries`.
    fn one(&mut self, slot: &mut Slot, entries: &[Entry], generation: Generation, depth: u32) -> Located<'a> {
        // A probe asks what lies there, seen or not.
        if !slot.probe && entries.iter().any(|e| e.attached && !self.reading.is_visible(e)) {
            return Located::Settled(Ok(GetOutcome::Miss(MissCause::Absent)));
        }
        for (entry, frame) in entries.iter().filter_map(|e| Some((e, e.frame?))) {
            let Some(entered) = self.enter(frame) else {
                self.torn = true;
                continue;
            };
            let Some(member) = entered.find(&slot.get.key, generation) else {
                self.leave(entered, frame);
                continue;
            };
            if let Err(error) = slot.fit(entered.members[member].extent.bytes) {
                self.leave(entered, frame);
                return Located::Settled(Err(error));
            }
            self.touched.push(FoundObject::new(entry, depth, self.tick));
            return Located::Memory(entered, FrameId(frame), member);
        }
        self.on_ssd(slot, entries, generation, depth)
    }

    fn on_ssd(
        &mut self,
        slot: &mut Slot,
        entries: &[Entry],
        generation: Generation,
        depth: u32,
    ) -> Located<'a> {
        let mut misfit = None;
        // What is in DRAM, too, is known from there to be another object.
        for entry in entries.iter().filter(|e| e.frame.is_none() && !self.reading.is_hidden(e)) {
            let Some(place) = entry.ssd.filter(|place| !slot.has_tried(place)) else { continue };
            match slot.fit(entry.length.into()) {
                Ok(()) => {
                    if self.hold(slot, entry, place, generation) {
                        self.touched.push(FoundObject::new(entry, depth, self.tick));
                        return Located::Ssd;
                    }
                    self.torn = true;
                }
                Err(error) => misfit = Some(error),
            }
        }
        // With real fingerprints an entry of another length is this object, and the request is wrong.
        Located::Settled(match misfit {
            Some(error) if !self.shared.config.constant_fingerprint() => Err(error),
            _ => Ok(GetOutcome::Miss(MissCause::Absent)),
        })
    }

    /// Enter the segment that a place is in, and note what a record there has to say; false if it cannot be entered.
    fn hold(&self, slot: &mut Slot, entry: &Entry, place: SsdPlace, generation: Generation) -> bool {
        let (Some(guards), Some(volume)) = (&self.shared.read_view.guards, &self.shared.volume) else {
            return false;
        };
        let segment = SegmentId(place.segment);
        let Some(incarnation) = guards.enter(segment) else { return false };
        slot.place = Some(place);
        slot.expected = Some(Expected {
            identity: SegmentIdentity { store: volume.store, segment, incarnation },
            offset: u64::from(place.record_block) * 4096,
            payload_delta: u64::from(place.payload_delta) * 4096,
            generation,
            length: entry.length.into(),
        });
        true
    }

    fn leave(&mut self, entered: Entered<'a>, frame: u32) {
        if entered.leave() {
            self.left.push(FrameId(frame));
        }
    }
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

/// Give the slot's segment back.
pub(crate) fn release(shared: &Shared, slot: &mut Slot) {
    if let Some(place) = slot.place.take() {
        crate::store::session::release_segment(shared, SegmentId(place.segment));
    }
}

/// Drop the entry that the slot's object was read by: the next `exists` says no. With it go the other
/// objects of its record: a page is whole or not here. If no header can tell who they are, the record is
/// noted as broken, and nothing in it is seen any more.
pub(crate) fn forget(shared: &Shared, slot: &Slot, record: Option<Record<'_>>) {
    let (Some(place), Some(expected)) = (slot.place, slot.expected) else { return };
    let record = record.filter(|r| r.expect(expected.identity, expected.offset).is_ok());
    let mut core = shared.lock();
    let known = core.index.find(slot.fingerprint).any(|e| e.ssd == Some(place));
    // Another get may have brought the page into memory meanwhile.
    // What was cleared since was told of as that.
    let named = |core: &Core, key: ObjectKey, fingerprint| {
        let now = core.generation(key.namespace());
        (shared.fingerprint(&key, now) == fingerprint).then_some(key)
    };
    let own = named(&core, slot.get.key, slot.fingerprint);
    let mut pages = core.drop_lost([(slot.fingerprint, place, own)]);
    // What went together is one failure.
    if known && !core.is_hidden_at(place) {
        core.suspect(SegmentId(place.segment), shared.now());
        shared.work.raise();
    }
    match record {
        Some(record) => {
            let generation = record.facts().generation;
            let lost = |(key, place)| {
                let fingerprint = shared.fingerprint(&key, generation);
                (fingerprint, place, named(&core, key, fingerprint))
            };
            let lost: Vec<_> = siblings(&record).into_iter().map(lost).collect();
            pages.extend(core.drop_lost(lost));
        }
        None => {
            core.visibility.hide_record(place);
            core.note_damage(SegmentId(place.segment));
            core.events.forgot();
        }
    }
    for page in pages {
        if core.requeue_frame(FrameId(page)) {
            shared.work.raise();
        }
    }
}

//! Locates objects in the index and enters the frames and segments that hold them, without the
//! core's lock while the index is stable.
//!
//! An attempt enters the frames and segments that it finds. It is valid if all that it read was
//! true at one moment ([`Snapshot::validate`]). Otherwise it leaves them and is repeated, the last
//! time under the lock, where nothing changes.
//!
//! Invariants:
//! - Nothing is read, and nothing is returned to a caller, before the attempt is valid. Until then
//!   the frames and segments found may be any: they are compared and entered, and an entered frame
//!   or segment is not freed.
//! - A frame or segment is closed after the index change that hides it. Its closer waits for
//!   readers that entered before; a later reader is refused, or sees that its attempt is invalid.
//! - So a reader that entered a frame or segment in a valid attempt has the one that the index led
//!   to, until it leaves.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_layouts::ids::{Generation, NamespaceId, SegmentId};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::Record;
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_tiers::policy::{FrameId, LastRequests, Recency};
use pagelith_tiers::ssd::read::Expected;

use crate::api::error::Error;
use crate::memory::index::{Entry, PREFETCH_GROUP, SsdLocation, TICK_MODULUS};
use crate::memory::visibility::VisibilityFilter;
use crate::read::item::{BatchItem, SsdObject, record_members};
use crate::state::core::Core;
use crate::state::frame_access::{FrameGuard, FrameReadGuard};
use crate::state::read_view::{LOCK_FREE_TRIES, Snapshot};
use crate::state::recency::{FoundObject, record, record_locked};
use crate::state::session_io::release_segment;
use crate::state::shared::Shared;

/// The location of an object.
pub(crate) enum Located<'a> {
    Memory(LocatedMember<'a>),
    /// It is on SSD, as the item has it; its segment is entered.
    Ssd,
    Absent,
    /// The request does not fit the object.
    InvalidRange(Error),
}

/// The member of a frame that is the object, and the requested range of it.
pub(crate) struct LocatedMember<'a> {
    pub entered: FrameReadGuard<'a>,
    pub frame: FrameId,
    pub member: usize,
    pub want: Range<u64>,
}

/// Locate the items `which`, all at one moment; depth counts from the batch's first object.
pub(crate) fn locate<'a>(
    shared: &'a Shared,
    items: &mut [BatchItem],
    which: &[usize],
    at: Recency,
) -> Vec<(usize, Located<'a>)> {
    for _ in 0..LOCK_FREE_TRIES {
        let epoch_guard = crossbeam_epoch::pin();
        let snapshot = shared.read_view.read(&epoch_guard);
        let mut attempt = LocateAttempt::new(shared, &snapshot, which.len());
        attempt.locate_all(items, which, at);
        let LocateAttempt { located, requested, dropped_frames, raced, .. } = attempt;
        let holds = !raced && snapshot.validate(&epoch_guard);
        drop(epoch_guard);
        free_dropped(shared, &dropped_frames);
        if holds {
            record(shared, &requested, at, LastRequests::raise);
            return located;
        }
        located.into_iter().for_each(|(i, located)| undo(shared, &mut items[i], located));
    }
    let mut core = shared.lock();
    let epoch_guard = crossbeam_epoch::pin();
    let snapshot = shared.read_view.read(&epoch_guard);
    let mut attempt = LocateAttempt::new(shared, &snapshot, which.len());
    attempt.locate_all(items, which, at);
    let LocateAttempt { located, requested, dropped_frames, .. } = attempt;
    dropped_frames.into_iter().for_each(|frame| core.free_if_unused(frame));
    record_locked(shared, &mut core, &requested, at, LastRequests::raise);
    located
}

/// Leave the frame or segment that an invalid attempt entered.
fn undo(shared: &Shared, item: &mut BatchItem, located: Located<'_>) {
    match located {
        Located::Memory(found) => leave_frame(shared, found.entered, found.frame),
        Located::Ssd => leave_segment(shared, item),
        Located::Absent | Located::InvalidRange(_) => {}
    }
}

/// Leave a frame after a get; the last reader of a dropped frame frees it.
pub(crate) fn leave_frame(shared: &Shared, entered: FrameReadGuard<'_>, frame: FrameId) {
    if entered.leave() {
        shared.lock().free_if_unused(frame);
    }
}

fn free_dropped(shared: &Shared, dropped_frames: &[FrameId]) {
    if !dropped_frames.is_empty() {
        let mut core = shared.lock();
        dropped_frames.iter().for_each(|frame| core.free_if_unused(*frame));
    }
}

/// One attempt to locate the objects of some items.
struct LocateAttempt<'a, 'r> {
    shared: &'a Shared,
    snapshot: &'r Snapshot<'r>,
    /// The current tick, in the form that the index stores.
    tick: u32,
    located: Vec<(usize, Located<'a>)>,
    requested: Vec<FoundObject>,
    /// Frames of other objects that were dropped while the attempt was in them, to be freed.
    dropped_frames: Vec<FrameId>,
    /// A frame or segment that was found was already closed, so the attempt is invalid.
    raced: bool,
}

impl<'a, 'r> LocateAttempt<'a, 'r> {
    fn new(shared: &'a Shared, snapshot: &'r Snapshot<'r>, count: usize) -> LocateAttempt<'a, 'r> {
        let tick = (shared.read_view.tick.load(Relaxed) % u64::from(TICK_MODULUS)) as u32;
        snapshot.reserve(count);
        let (located, requested) = (Vec::with_capacity(count), Vec::with_capacity(count));
        LocateAttempt {
            shared,
            snapshot,
            tick,
            located,
            requested,
            dropped_frames: Vec::new(),
            raced: false,
        }
    }

    fn locate_all(&mut self, items: &mut [BatchItem], which: &[usize], at: Recency) {
        // The keys of a batch usually have one namespace.
        let mut last_namespace: Option<(NamespaceId, Generation)> = None;
        let mut fingerprints = Vec::with_capacity(PREFETCH_GROUP);
        let mut generations = Vec::with_capacity(PREFETCH_GROUP);
        let mut entries: Vec<Entry> = Vec::new();
        for group in which.chunks(PREFETCH_GROUP) {
            fingerprints.clear();
            generations.clear();
            for &i in group {
                let item = &mut items[i];
                let namespace = item.key.namespace();
                let known = last_namespace.filter(|known| known.0 == namespace);
                let generation = || self.snapshot.visibility.generation(namespace);
                let (_, generation) =
                    *last_namespace.insert(known.unwrap_or_else(|| (namespace, generation())));
                item.fingerprint = self.shared.fingerprint(&item.key, generation);
                fingerprints.push(item.fingerprint);
                generations.push(generation);
            }
            self.shared.read_view.index.prefetch(&fingerprints);
            for (&i, generation) in group.iter().zip(&generations) {
                let item = &mut items[i];
                let depth = at.depth.saturating_add(item.depth_offset);
                entries.clear();
                entries.extend(self.snapshot.entries(item.fingerprint));
                let found = self.locate_one(item, &entries, *generation, depth);
                self.located.push((i, found));
            }
        }
    }

    fn enter(&self, frame: u32) -> Option<FrameReadGuard<'a>> {
        self.shared.read_view.frames.enter(frame as usize).map(FrameReadGuard::new)
    }

    /// Locate one object, for which the index has these `entries`.
    fn locate_one(
        &mut self,
        item: &mut BatchItem,
        entries: &[Entry],
        generation: Generation,
        depth: u32,
    ) -> Located<'a> {
        // A probe also finds objects that are not visible.
        if !item.is_probe() && entries.iter().any(|e| e.attached && !self.snapshot.is_visible(e)) {
            return Located::Absent;
        }
        for (entry, frame) in entries.iter().filter_map(|e| Some((e, e.frame?))) {
            let Some(entered) = self.enter(frame) else {
                self.raced = true;
                continue;
            };
            let Some(member) = entered.find(&item.key, generation) else {
                self.leave_frame(entered, frame);
                continue;
            };
            let want = match item.requested_range(entered.members[member].extent.bytes) {
                Ok(want) => want,
                Err(error) => {
                    self.leave_frame(entered, frame);
                    return Located::InvalidRange(error);
                }
            };
            self.requested.push(FoundObject::new(entry, depth, self.tick));
            item.only_in_memory = entry.ssd.is_none();
            item.attached = entry.attached;
            return Located::Memory(LocatedMember { entered, frame: FrameId(frame), member, want });
        }
        self.locate_on_ssd(item, entries, generation, depth)
    }

    fn locate_on_ssd(
        &mut self,
        item: &mut BatchItem,
        entries: &[Entry],
        generation: Generation,
        depth: u32,
    ) -> Located<'a> {
        let mut invalid_range = None;
        // An entry with a frame was compared above: its object is another one.
        for entry in entries.iter().filter(|e| e.frame.is_none() && !self.snapshot.is_hidden(e)) {
            let Some(location) =
                entry.ssd.filter(|location| !item.attempts.tried.contains(location))
            else {
                continue;
            };
            match item.requested_range(entry.length.into()) {
                Ok(want) => {
                    if let Some(expected) = self.enter_segment(entry, location, generation) {
                        item.set_ssd_object(SsdObject { expected, want });
                        item.attached = entry.attached;
                        self.requested.push(FoundObject::new(entry, depth, self.tick));
                        return Located::Ssd;
                    }
                    self.raced = true;
                }
                Err(error) => invalid_range = Some(error),
            }
        }
        // With real fingerprints, an entry of another length is this object, and the request is
        // invalid.
        match invalid_range {
            Some(error) if !self.shared.config.constant_fingerprint() => {
                Located::InvalidRange(error)
            }
            _ => Located::Absent,
        }
    }

    /// Enter the segment of a location; returns what its record must contain. `None` if it cannot
    /// be entered.
    fn enter_segment(
        &self,
        entry: &Entry,
        location: SsdLocation,
        generation: Generation,
    ) -> Option<Expected> {
        let (guards, volume) =
            (self.shared.read_view.guards.as_ref()?, self.shared.ssd.volume.as_ref()?);
        let segment = SegmentId(location.segment);
        let incarnation = guards.enter(segment)?;
        Some(Expected {
            identity: SegmentIdentity { store: volume.store, segment, incarnation },
            offset: u64::from(location.record_sector) * 4096,
            payload_offset: u64::from(location.payload_sector) * 4096,
            generation,
            length: entry.length.into(),
        })
    }

    fn leave_frame(&mut self, entered: FrameReadGuard<'a>, frame: u32) {
        if entered.leave() {
            self.dropped_frames.push(FrameId(frame));
        }
    }
}

/// A guard of an object's frame in DRAM, if the object is there and `fits` accepts its length. A
/// get answers every other case.
pub(crate) fn guard_in_memory(
    shared: &Shared,
    core: &mut Core,
    key: &ObjectKey,
    at: Recency,
    fits: impl Fn(u64) -> bool,
) -> Option<(FrameGuard, usize)> {
    let generation = core.generation(key.namespace());
    let fingerprint = shared.fingerprint(key, generation);
    if core.index.find(fingerprint).any(|e| e.attached && !core.is_visible(&e)) {
        return None;
    }
    let (frame, member) = core.find_memory(key, fingerprint, generation)?;
    core.dram.frames.get(frame.id).filter(|f| fits(f.data.members[member].extent.bytes))?;
    shared.hints.requested(std::iter::once(fingerprint), || shared.now());
    core.record_request(fingerprint, |e| e.frame == Some(frame.id.0), at, LastRequests::raise);
    Some((FrameGuard::new(core, frame)?, member))
}

/// Leave the item's segment; the object is to be looked up again.
pub(crate) fn leave_segment(shared: &Shared, item: &mut BatchItem) {
    if let Some(object) = item.take_off_ssd() {
        release_segment(shared, object.segment());
    }
}

/// Drop the entry by which the item's object was read, so that the next `exists` does not find it.
/// The other objects of its record are dropped with it, because a group is present whole or not at
/// all. Without a header the members are unknown: then the record is marked broken, and none of
/// its objects is visible any more.
pub(crate) fn drop_lost_record(
    shared: &Shared,
    item: &BatchItem,
    object: &SsdObject,
    record: Option<Record<'_>>,
) {
    let (location, expected) = (object.ssd_location(), &object.expected);
    let record = record.filter(|r| r.expect(expected.identity, expected.offset).is_ok());
    let mut core = shared.lock();
    let known = core.index.find(item.fingerprint).any(|e| e.ssd == Some(location));
    // Another get may have promoted the group meanwhile. Objects of a namespace that was cleared
    // since are not named: the clear had its own event.
    let named = |core: &Core, key: ObjectKey, fingerprint| {
        let now = core.generation(key.namespace());
        (shared.fingerprint(&key, now) == fingerprint).then_some(key)
    };
    let own = named(&core, item.key, item.fingerprint);
    let mut frames = core.drop_lost([(item.fingerprint, location, own)]);
    // A record that was dropped whole counts as one failure.
    if known && !core.is_hidden_at(location) {
        core.suspect(SegmentId(location.segment), shared.now());
        shared.signals.flusher.raise();
    }
    match record {
        Some(record) => {
            let generation = record.facts().generation;
            let lost = |(key, location)| {
                let fingerprint = shared.fingerprint(&key, generation);
                (fingerprint, location, named(&core, key, fingerprint))
            };
            let lost: Vec<_> = record_members(&record).into_iter().map(lost).collect();
            frames.extend(core.drop_lost(lost));
        }
        None => {
            core.visibility.hide_record(location);
            core.note_damage(SegmentId(location.segment));
            core.events.forgot();
        }
    }
    for frame in frames {
        if core.requeue_frame(FrameId(frame)) {
            shared.signals.flusher.raise();
        }
    }
}

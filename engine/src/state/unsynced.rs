//! Counts the objects that would be lost if the store ended now.

use std::collections::BTreeSet;

use pagelith_layouts::ids::{Generation, NamespaceId, SegmentId};
use pagelith_tiers::policy::FrameId;

use crate::memory::departed::Departure;
use crate::memory::frames::{Frame, FrameRef, FrameState};
use crate::memory::index::{Entry, RecordPlace, SsdLocation};
use crate::memory::visibility::VisibilityFilter;
use crate::state::core::Core;

/// A record that was written and that no sync has covered.
pub(crate) struct UnsyncedRecord {
    /// Namespace of a put, and its generation then; `None` for a move.
    pub namespace: Option<(NamespaceId, Generation)>,
    pub members: Vec<(u128, SsdLocation)>,
    pub bytes: u64,
    /// Name of the base that the objects are attached to.
    pub base: Option<u64>,
    /// Old location of each reinserted member; empty for a put.
    pub from: Vec<SsdLocation>,
}

/// The objects of a written record by the time that a sync covers it. Those that were removed
/// meanwhile, or are written again, are in no count.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct SyncedObjects {
    /// The record that has them now; reclaim may have moved them.
    pub place: Option<RecordPlace>,
    /// Number of objects that a restart finds, apart from what they are attached to.
    pub durable: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of objects that were evicted from every tier.
    pub refused: u64,
    /// Number of objects that were damaged, or whose segment or tier is not read any more.
    pub lost: u64,
}

impl UnsyncedRecord {
    /// Its place, if the index has any of its objects.
    pub fn record(&self) -> Option<RecordPlace> {
        self.members.first().map(|(_, at)| at.record())
    }
}

impl Core {
    /// Objects that are not durable, and their bytes: frames in DRAM that wait to be written, and
    /// written objects that no sync has covered, or not their base. Objects that reclaim has
    /// evicted from SSD count only while the tier takes no writes; otherwise their frames are a
    /// cache. Visits every frame and, without writes, every object of each. Zero without an SSD
    /// tier.
    pub fn unsaved(&self) -> (u64, u64) {
        let unsynced = self.ssd.as_ref().map_or((0, 0), |ssd| ssd.unsynced);
        let unwritten = self.unwritten();
        (unsynced.0 + unwritten.0, unsynced.1 + unwritten.1)
    }

    /// The part of `unsaved` that was not written.
    pub fn unwritten(&self) -> (u64, u64) {
        let Some(ssd) = &self.ssd else { return (0, 0) };
        let takes_writes = ssd.health.writes();
        let waits = |frame: &Frame| frame.state != FrameState::Evictable || !takes_writes;
        let alive = self.dram.frames.iter().filter(|(_, frame)| !frame.is_dead() && waits(frame));
        let counts = alive.map(|(id, frame)| self.only_in_dram(id, frame));
        counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
    }

    fn only_in_dram(&self, id: FrameId, frame: &Frame) -> (u64, u64) {
        let only_here = |e: &Entry| e.frame == Some(id.0) && e.ssd.is_none();
        let members = frame.data.members.iter();
        let left = members.filter(|m| self.index.find(m.fingerprint).any(|e| only_here(&e)));
        left.fold((0, 0), |sum, m| (sum.0 + 1, sum.1 + m.extent.bytes))
    }

    /// Objects were written; no sync has covered them yet.
    pub fn note_written(&mut self, written: &UnsyncedRecord) {
        if let Some(ssd) = self.ssd.as_mut() {
            ssd.unsynced.0 += written.members.len() as u64;
            ssd.unsynced.1 += written.bytes;
            written.base.iter().for_each(|base| ssd.undecided.add_unsynced(*base));
        }
    }

    /// The objects of a record that a sync covers. `is_unsynced` tells whether the record at a
    /// place is that of a put which no sync has covered: it has a report of its own.
    pub fn synced_objects(
        &self,
        written: &UnsyncedRecord,
        is_unsynced: impl Fn(RecordPlace) -> bool,
    ) -> SyncedObjects {
        let mut synced = SyncedObjects::default();
        if self.was_cleared(written) {
            return synced;
        }
        let mut hidden = 0;
        for (fingerprint, written_at) in &written.members {
            let entries = || self.index.find(*fingerprint);
            let here = entries().find(|e| e.ssd == Some(*written_at));
            // With several entries, another location may be that of another object.
            let only = || entries().next().filter(|_| entries().nth(1).is_none());
            let moved = || only().filter(|e| e.ssd.is_some_and(|at| !is_unsynced(at.record())));
            match here.or_else(moved) {
                Some(Entry { ssd: Some(at), length, .. }) if !self.is_hidden_at(at) => {
                    synced.place.get_or_insert(at.record());
                    synced.durable += 1;
                    synced.bytes += u64::from(length);
                }
                Some(entry) if self.is_written_again(&entry) => {}
                Some(entry) if entry.ssd.is_some_and(|at| self.is_offline(at.record())) => {
                    synced.lost += 1;
                }
                Some(_) => hidden += 1,
                None if entries().next().is_some() => {}
                None => match self.departed.find(*fingerprint) {
                    Some(Departure::Damaged | Departure::Lost) => synced.lost += 1,
                    Some(Departure::NotTaken | Departure::Incomplete | Departure::Removed) => {}
                    Some(Departure::EvictedMemory | Departure::EvictedSsd | Departure::Refused)
                    | None => synced.refused += 1,
                },
            }
        }
        // A hidden record was removed, or one of its objects was found damaged.
        if synced.lost > 0 {
            synced.lost += hidden;
        }
        synced
    }

    /// Whether an object has left the store because its bytes were lost.
    pub fn is_lost(&self, fingerprint: u128) -> bool {
        let departure = self.departed.find(fingerprint);
        self.index.find(fingerprint).next().is_none()
            && matches!(departure, Some(Departure::Damaged | Departure::Lost))
    }

    /// Whether the namespace of a record was cleared since its put.
    pub fn was_cleared(&self, written: &UnsyncedRecord) -> bool {
        written.namespace.is_some_and(|(namespace, then)| self.generation(namespace) != then)
    }

    /// Whether an object that SSD loses is written again: DRAM has it, and is not only a write
    /// buffer.
    pub fn is_written_again(&self, entry: &Entry) -> bool {
        entry.frame.is_some() && !self.dram.write_buffer_only
    }

    /// A sync has covered these objects, or they were given up.
    pub fn note_synced(&mut self, written: &UnsyncedRecord) {
        self.end_unsynced(written);
        self.subtract_unsynced(written.members.len() as u64, written.bytes);
    }

    /// A record leaves those that no sync has covered.
    pub fn end_unsynced(&mut self, written: &UnsyncedRecord) {
        if let (Some(base), Some(ssd)) = (written.base, self.ssd.as_mut()) {
            ssd.undecided.remove_unsynced(base);
        }
    }

    /// Objects that were written are durable, or were given up.
    pub fn subtract_unsynced(&mut self, objects: u64, bytes: u64) {
        if let Some(ssd) = self.ssd.as_mut() {
            ssd.unsynced.0 = ssd.unsynced.0.saturating_sub(objects);
            ssd.unsynced.1 = ssd.unsynced.1.saturating_sub(bytes);
        }
    }
}

impl Core {
    fn unwritten_replacements(&mut self) -> &[(FrameRef, SegmentId)] {
        let Some(ssd) = self.ssd.as_mut() else { return &[] };
        if ssd.health.writes() {
            ssd.replaced.forget_written(&self.dram.frames);
        }
        ssd.replaced.unwritten()
    }

    /// The segments of durable objects whose replacements are not written yet.
    pub fn replaced_segments(&mut self) -> BTreeSet<SegmentId> {
        self.unwritten_replacements().iter().map(|(_, segment)| *segment).collect()
    }

    /// The serial of the newest replacement that is not written yet.
    pub fn newest_replacement(&mut self) -> Option<u64> {
        self.unwritten_replacements().iter().map(|(frame, _)| frame.serial).max()
    }

    /// Whether a replacement up to this serial is not written yet.
    pub fn has_replacement_up_to(&mut self, serial: u64) -> bool {
        self.unwritten_replacements().iter().any(|(frame, _)| frame.serial <= serial)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use pagelith_layouts::ids::SegmentId;

    use crate::api::hint::Hint;
    use crate::api::outcome::{FlushReport, PutOutcome};
    use crate::api::request::{Options, PutSlice};
    use crate::config::{Config, SsdAdmissionRule};
    use crate::server::tests::{key, object};
    use crate::store::embedded::Store;
    use crate::store::stepped_runtime::{SteppedRuntime, small_config};

    const LEN: usize = 10_000;
    const PAGES: u8 = 8;

    fn config(dir: &std::path::Path, dram: crate::Size) -> Config {
        let mut config = small_config(dir);
        config.dram.bytes = dram;
        config.ssd.quarantine_after = 1;
        config.ssd.admission = SsdAdmissionRule::Through;
        config
    }

    fn put(store: &Store, page: u8) {
        let put = PutSlice { key: key(page, "k"), pieces: &[&object(page, LEN)] };
        assert_eq!(store.put_batch(&[put], Options::default()), [Ok(PutOutcome::Stored)]);
    }

    fn attach_state(store: &Store, page: u8) {
        let state = PutSlice { key: key(page, "state"), pieces: &[&object(page, LEN)] };
        let put = store.put_attached(&[(key(page, "k"), &[state])], Options::default());
        assert_eq!(put, [Ok(PutOutcome::Stored)]);
    }

    fn unsynced(store: &Store) -> u64 {
        store.shared.lock().ssd.as_ref().map_or(0, |ssd| ssd.unsynced.0)
    }

    /// The segment of an object; `None` if SSD does not have it.
    fn segment(store: &Store, page: u8, component: &str) -> Option<SegmentId> {
        let core = store.shared.lock();
        let key = key(page, component);
        let fingerprint = store.shared.fingerprint(&key, core.generation(key.namespace()));
        let at = core.index.find(fingerprint).find_map(|e| e.ssd);
        at.map(|at| SegmentId(at.segment))
    }

    fn quarantine(store: &Store, segment: SegmentId) {
        store.shared.lock().suspect(segment, store.shared.now());
    }

    /// A store whose pages are written, and not synced.
    fn written(dram: crate::Size) -> (tempfile::TempDir, SteppedRuntime, Store) {
        let dir = tempfile::tempdir().expect("a directory");
        let runtime = SteppedRuntime::default();
        let store = runtime.open(&config(dir.path(), dram));
        (0..PAGES).for_each(|page| put(&store, page));
        runtime.until("they are written", || unsynced(&store) == u64::from(PAGES));
        (dir, runtime, store)
    }

    fn counts(report: &FlushReport) -> (u64, u64, u64) {
        (report.durable_objects, report.refused_objects, report.lost_objects)
    }

    #[test]
    fn object_whose_segment_is_quarantined_before_its_sync_is_reported_as_lost() {
        let (_dir, _, store) = written(crate::Size::ZERO);
        quarantine(&store, segment(&store, 0, "k").expect("on ssd"));
        let report = store.flush(Options::default()).expect("flushed");
        assert_eq!(counts(&report), (0, 0, u64::from(PAGES)), "{report:?}");
        store.abandon();
    }

    #[test]
    fn object_purged_before_its_sync_is_reported_as_lost() {
        let (_dir, runtime, store) = written(crate::Size::ZERO);
        quarantine(&store, segment(&store, 0, "k").expect("on ssd"));
        runtime.until("they are purged", || segment(&store, 0, "k").is_none());
        let report = store.flush(Options::default()).expect("flushed");
        assert_eq!(counts(&report), (0, 0, u64::from(PAGES)), "{report:?}");
        store.abandon();
    }

    #[test]
    fn object_cleared_before_its_sync_is_in_no_report() {
        let (_dir, _, store) = written(crate::Size::ZERO);
        let namespace = key(0, "k").namespace();
        store.shared.lock().clear(namespace);
        put(&store, 1);
        let report = store.flush(Options::default()).expect("flushed");
        assert_eq!(counts(&report), (1, 0, 0), "{report:?}");
        store.abandon();
    }

    #[test]
    fn object_that_leaves_every_tier_before_its_sync_is_reported_as_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        let runtime = SteppedRuntime::default();
        let mut config = config(dir.path(), crate::Size::mib(4));
        config.index.max_objects = Some(32);
        let store = runtime.open(&config);
        let pages = 200;
        for page in 0..pages {
            // Some are refused at once, while no entry of the index may be dropped.
            let put = PutSlice { key: key(page, "k"), pieces: &[&object(page, LEN)] };
            store.put_batch(&[put], Options::default()).remove(0).expect("an outcome");
            runtime.step();
        }
        let report = store.flush(Options::default()).expect("flushed");
        let (durable, refused, lost) = counts(&report);
        assert_eq!((durable + refused, lost), (u64::from(pages), 0), "{report:?}");
        assert!(refused > 0, "{report:?}");
        store.abandon();
    }

    /// Only the bases that attached records wait for are remembered until the next sync.
    #[test]
    fn objects_that_no_attached_record_waits_for_leave_nothing_behind() {
        let dir = tempfile::tempdir().expect("a directory");
        let runtime = SteppedRuntime::default();
        let store = runtime.open(&config(dir.path(), crate::Size::ZERO));
        (0..PAGES).for_each(|page| put(&store, page));
        store.flush(Options::default()).expect("flushed");
        attach_state(&store, 0);
        runtime.until("the state is written", || unsynced(&store) == 1);
        let segments = (0..PAGES).filter_map(|page| segment(&store, page, "k"));
        segments.collect::<BTreeSet<_>>().into_iter().for_each(|one| quarantine(&store, one));
        let are_purged = || (0..PAGES).all(|page| segment(&store, page, "k").is_none());
        runtime.until("they are purged", are_purged);
        let mut core = store.shared.lock();
        let left = core.ssd.as_mut().map(|ssd| ssd.undecided.take_left().len());
        assert!(left.is_some_and(|left| left <= 1), "{left:?}: only the base of the state");
        drop(core);
        store.abandon();
    }

    #[test]
    fn object_removed_before_its_sync_is_in_no_report() {
        let (_dir, _, store) = written(crate::Size::mib(4));
        assert_eq!(store.remove(&[key(1, "k")], Options::default()), Ok(1));
        put(&store, 1);
        let report = store.flush(Options::default()).expect("flushed");
        let all = (u64::from(PAGES), 0, 0);
        assert_eq!(counts(&report), all, "page 1 counts once: {report:?}");
        store.abandon();
    }

    /// The state waits for its base, which is in another segment.
    #[test]
    fn attached_object_in_a_quarantined_segment_is_durable_once_it_is_written_again() {
        let dir = tempfile::tempdir().expect("a directory");
        let runtime = SteppedRuntime::default();
        let mut config = config(dir.path(), crate::Size::mib(4));
        config.ssd.admission = SsdAdmissionRule::SecondTouch;
        // The purge of so large an index takes many steps.
        config.index.max_objects = Some(1_000_000);
        let store = runtime.open(&config);
        put(&store, 1);
        // A retained state is written, and its base is not.
        let retain = Hint::Retain(Duration::from_secs(3600));
        store.hint(&[key(1, "state")], retain).expect("retained");
        attach_state(&store, 1);
        runtime.until("the state is written", || segment(&store, 1, "state").is_some());
        store.remove(&[key(9, "k")], Options::default()).expect("synced");
        assert_eq!((unsynced(&store), segment(&store, 1, "k")), (1, None), "it waits for its base");
        quarantine(&store, segment(&store, 1, "state").expect("on ssd"));
        let mut report = store.flush(Options::default()).expect("flushed");
        // The purge may have queued the state after the first flush.
        let second = store.flush(Options::default()).expect("flushed");
        report.durable_objects += second.durable_objects;
        assert_eq!(counts(&report), (2, 0, 0), "{report:?} {second:?}");
        store.abandon();
    }
}

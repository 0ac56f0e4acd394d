//! Durable objects that were replaced by a group which is not written yet.
//!
//! A group may adopt an object that was put before, alone. The index then leads to the group only,
//! but until that is written only the old record has the object. A crash loses the object if a
//! checkpoint or reclaim forgets the old record first, although a flush has reported the object as
//! durable. So a checkpoint waits for the groups that it cannot list, and reclaim takes other
//! segments, unless no segment is free: then the group itself may wait for reclaim.

use pagelith_layouts::ids::SegmentId;

use crate::memory::frames::{FrameRef, FrameState, Frames};

/// Frames that replaced durable objects, each with the segment of such an object.
#[derive(Debug, Default)]
pub(crate) struct ReplacedObjects {
    unwritten: Vec<(FrameRef, SegmentId)>,
    /// The segment that reclaim is about to free, and whether an object in it was replaced since.
    watched: Option<(SegmentId, bool)>,
}

impl ReplacedObjects {
    /// This frame replaced objects in these segments.
    pub fn note(&mut self, frame: FrameRef, segments: &[SegmentId]) {
        self.unwritten.extend(segments.iter().map(|id| (frame, *id)));
        if let Some((watched, replaced)) = &mut self.watched {
            *replaced |= segments.contains(watched);
        }
    }

    /// Whether this frame replaced a durable object.
    pub fn contains(&self, frame: FrameRef) -> bool {
        self.unwritten.iter().any(|(replacement, _)| *replacement == frame)
    }

    /// Watch a segment from now on.
    pub fn watch(&mut self, segment: SegmentId) {
        self.watched = Some((segment, false));
    }

    /// Watch no segment any more; returns whether an object in it was replaced meanwhile.
    pub fn end_watch(&mut self) -> bool {
        self.watched.take().is_some_and(|(_, replaced)| replaced)
    }

    /// The frames that are not written yet, as of the last [`ReplacedObjects::forget_written`].
    pub fn unwritten(&self) -> &[(FrameRef, SegmentId)] {
        &self.unwritten
    }

    /// Forget the frames that were written or given up. Not while the tier takes no writes: it
    /// gives all frames up, and they are queued again once it does.
    pub fn forget_written(&mut self, frames: &Frames) {
        self.unwritten.retain(|(replacement, _)| {
            let found = frames.get(replacement.id).filter(|f| f.serial == replacement.serial);
            found.is_some_and(|f| matches!(f.state, FrameState::Unwritten | FrameState::Writing))
        });
    }
}

#[cfg(test)]
mod tests {
    use pagelith_io::clock::Mono;

    use super::*;
    use crate::api::request::{Options, PutSlice};
    use crate::server::tests::{key, object};
    use crate::store::embedded::Store;
    use crate::store::stepped_runtime::{SteppedRuntime, small_config};

    const LEN: usize = 100_000;

    fn put(store: &Store, page: u8, parts: &[&str]) {
        let bytes = object(page, LEN);
        let pieces = [bytes.as_slice()];
        let group: Vec<_> =
            parts.iter().map(|part| PutSlice { key: key(page, part), pieces: &pieces }).collect();
        store.put_groups(&[&group], Options::default()).remove(0).expect("stored");
    }

    fn checkpoints(store: &Store) -> u64 {
        store.stats().checkpoints
    }

    /// As if the newest frame replaced a durable object, and its write took long.
    fn delay_newest_frame(store: &Store) -> FrameRef {
        let mut core = store.shared.lock();
        let newest = core.dram.frames.iter().max_by_key(|(_, f)| f.serial);
        let (id, serial) = newest.map(|(id, f)| (id, f.serial)).expect("a frame");
        core.dram.frames.get_mut(id).expect("a frame").state = FrameState::Writing;
        let frame = FrameRef { id, serial };
        core.ssd.as_mut().expect("a tier").replaced.note(frame, &[SegmentId(0)]);
        frame
    }

    fn open(dir: &tempfile::TempDir) -> (SteppedRuntime, Store) {
        let mut config = small_config(dir.path());
        config.ssd.checkpoint_segments = 1;
        let runtime = SteppedRuntime::default();
        let store = runtime.open(&config);
        (runtime, store)
    }

    #[test]
    fn replaced_objects_of_one_segment_are_noted_once() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_runtime, store) = open(&dir);
        put(&store, 1, &["k"]);
        put(&store, 1, &["v"]);
        store.flush(Options::default()).expect("flushed");
        put(&store, 1, &["k", "v"]);
        let core = store.shared.lock();
        assert_eq!(core.ssd.as_ref().expect("a tier").replaced.unwritten().len(), 1);
    }

    #[test]
    fn durable_object_replaced_while_the_tier_takes_no_writes_is_noted() {
        let dir = tempfile::tempdir().expect("a directory");
        let (_runtime, store) = open(&dir);
        put(&store, 1, &["k"]);
        store.flush(Options::default()).expect("flushed");
        let mut core = store.shared.lock();
        assert!(core.ssd.as_mut().expect("a tier").health.stop_writing(Mono(u64::MAX)));
        drop(core);
        put(&store, 1, &["k", "v"]);
        assert_eq!(store.shared.lock().replaced_segments().len(), 1);
    }

    #[test]
    fn checkpoint_waits_until_the_replacement_of_a_durable_object_is_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let (runtime, store) = open(&dir);
        put(&store, 1, &["k"]);
        store.flush(Options::default()).expect("flushed");
        assert!(store.shared.lock().replaced_segments().is_empty());
        put(&store, 1, &["k", "v"]);
        assert_eq!(store.shared.lock().replaced_segments().len(), 1, "the segment of page 1");
        store.flush(Options::default()).expect("flushed");
        assert!(store.shared.lock().replaced_segments().is_empty(), "the group is written");

        // As if the write of page 2 took long.
        put(&store, 2, &["k"]);
        store.flush(Options::default()).expect("flushed");
        let delayed = delay_newest_frame(&store);
        let before = checkpoints(&store);
        (3..18).for_each(|page| put(&store, page, &["k"]));
        runtime.until("a segment is sealed", || store.stats().segments_sealed > 0);
        (0..1000).for_each(|_| runtime.step());
        assert_eq!(checkpoints(&store), before, "none without page 2");
        store.shared.lock().dram.frames.get_ref(delayed).expect("page 2").state =
            FrameState::Evictable;
        runtime.until("a checkpoint", || checkpoints(&store) > before);
    }

    #[test]
    fn checkpoint_is_given_up_if_the_replacement_of_a_durable_object_cannot_be_written() {
        let dir = tempfile::tempdir().expect("a directory");
        let (runtime, store) = open(&dir);
        put(&store, 1, &["k"]);
        store.flush(Options::default()).expect("flushed");
        let delayed = delay_newest_frame(&store);
        (2..18).for_each(|page| put(&store, page, &["k"]));
        runtime.until("a segment is sealed", || store.stats().segments_sealed > 0);
        (0..1000).for_each(|_| runtime.step());
        let before = checkpoints(&store);
        {
            let mut core = store.shared.lock();
            assert!(core.ssd.as_mut().expect("a tier").health.stop_writing(Mono(u64::MAX)));
            core.end_write(delayed);
        }
        (0..1000).for_each(|_| runtime.step());
        assert_eq!(checkpoints(&store), before, "it would forget page 1");
        assert_eq!(store.shared.lock().replaced_segments().len(), 1, "once the tier is on");
    }
}

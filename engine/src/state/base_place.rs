//! Whether a base group survives a restart: what is attached to it is durable only then.

use pagelith_tiers::policy::FrameId;

use crate::memory::frames::FrameState;
use crate::memory::index::{Entry, SsdLocation};
use crate::memory::visibility::VisibilityFilter;
use crate::state::core::Core;

/// Where a base group is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BasePlace {
    /// On SSD, where one of its objects is here.
    Ssd(SsdLocation),
    /// Only in DRAM, and a write or a flush decides whether it will be on SSD.
    Undecided,
    /// Absent, or in DRAM only, and not to be written.
    Nowhere,
}

impl Core {
    /// Where the base group of this name is.
    pub fn base_place(&self, name: u64) -> BasePlace {
        let is_read = |location: &SsdLocation| !self.is_hidden_at(*location);
        let bases = || self.index.find_named(name).filter(|e| !e.attached);
        if let Some(location) = bases().filter_map(|e| e.ssd).find(is_read) {
            return BasePlace::Ssd(location);
        }
        let is_undecided = |e: Entry| {
            let frame = e.frame.and_then(|frame| self.dram.frames.get(FrameId(frame)));
            frame.is_some_and(|f| match f.state {
                FrameState::Unwritten | FrameState::Writing => true,
                // A flush queues what admission has refused. A location that is hidden is dropped
                // by the purge, which queues the frame.
                FrameState::Evictable => f.refused || e.ssd.is_some(),
                FrameState::Dead => false,
            })
        };
        match bases().any(is_undecided) {
            true => BasePlace::Undecided,
            false => BasePlace::Nowhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::SegmentId;

    use super::*;
    use crate::api::request::{Options, PutSlice};
    use crate::memory::index::name_of;
    use crate::server::tests::{key, object};
    use crate::store::embedded::Store;
    use crate::store::stepped_runtime::{SteppedRuntime, small_config};

    const LEN: usize = 10_000;
    const PAGES: u8 = 8;

    fn place(store: &Store, page: u8) -> BasePlace {
        let core = store.shared.lock();
        let base = key(page, "k");
        let generation = core.generation(base.namespace());
        core.base_place(name_of(store.shared.fingerprint(&base, generation)))
    }

    fn attach_state(store: &Store, page: u8) {
        let state = PutSlice { key: key(page, "state"), pieces: &[&object(page, LEN)] };
        store
            .put_attached(&[(key(page, "k"), &[state])], Options::default())
            .remove(0)
            .expect("put");
    }

    /// The segment is quarantined before the purge has queued the frames of the bases again.
    #[test]
    fn base_in_quarantined_segment_is_undecided_while_memory_has_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = small_config(dir.path());
        config.ssd.quarantine_after = 1;
        let store = SteppedRuntime::default().open(&config);
        for page in 0..PAGES {
            let put = PutSlice { key: key(page, "k"), pieces: &[&object(page, LEN)] };
            store.put_batch(&[put], Options::default()).remove(0).expect("put");
        }
        store.flush(Options::default()).expect("flushed");
        let BasePlace::Ssd(at) = place(&store, 0) else { panic!("not on ssd") };
        store.shared.lock().suspect(SegmentId(at.segment), store.shared.now());
        for page in 0..PAGES {
            assert_eq!(place(&store, page), BasePlace::Undecided, "page={page}");
            attach_state(&store, page);
        }
        let mut report = store.flush(Options::default()).expect("flushed");
        // The purge may have queued bases after the first flush.
        report.durable_objects += store.flush(Options::default()).expect("flushed").durable_objects;
        let counts = (report.durable_objects, report.refused_objects, report.lost_objects);
        assert_eq!(counts, (2 * u64::from(PAGES), 0, 0), "{report:?}");
        store.abandon();
        let store = SteppedRuntime::default().open(&config);
        let keys = ["k", "state"].map(|c| (0..PAGES).map(move |page| key(page, c)));
        let keys: Vec<_> = keys.into_iter().flatten().collect();
        assert!(store.exists_batch(&keys, Options::default()).into_iter().all(|here| here));
    }
}

//! Flushes after damage was found: each waits for a checkpoint that leaves the damage out (see
//! [`crate::state::damage`]).

use pagelith_layouts::ids::SegmentOrder;
use pagelith_tiers::ssd::log::Log;

/// A flush that waits for a checkpoint.
#[derive(Debug)]
struct PendingFlush {
    /// Its job.
    id: u64,
    /// Segments up to this one must be sealed first.
    damaged: SegmentOrder,
    /// Serial number of the first checkpoint that suffices.
    serial: u64,
}

/// Flushes that wait for a checkpoint, in the order of the jobs.
#[derive(Debug, Default)]
pub(crate) struct PendingFlushes(Vec<PendingFlush>);

impl PendingFlushes {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Add a flush that waits until all segments up to `damaged` are sealed, and then for the
    /// checkpoint `serial` or a later one.
    pub fn push(&mut self, id: u64, damaged: SegmentOrder, serial: u64) {
        self.0.push(PendingFlush { id, damaged, serial });
    }

    /// Whether a flush waits for a checkpoint that can begin now.
    pub fn want_checkpoint(&self, log: &Log) -> bool {
        let sealed = |order| log.oldest_unsealed().is_none_or(|oldest| order < oldest);
        self.0.first().is_some_and(|pending| sealed(pending.damaged))
    }

    /// The checkpoint `serial` ended: take the flushes that waited for it.
    pub fn take_ready(&mut self, serial: u64) -> impl Iterator<Item = u64> {
        self.0.extract_if(.., move |pending| pending.serial <= serial).map(|pending| pending.id)
    }

    /// Take all flushes.
    pub fn take(&mut self) -> impl DoubleEndedIterator<Item = u64> {
        self.0.drain(..).map(|pending| pending.id)
    }
}

#[cfg(test)]
mod tests {
    use crate::api::outcome::{GetOutcome, MissCause};
    use crate::api::request::{GetSlice, Options, PutSlice};
    use crate::memory::frames::{Frame, FrameState};
    use crate::server::tests::{key, object, overwrite};
    use crate::store::embedded::Store;
    use crate::store::stepped_runtime::{SteppedRuntime, small_config};

    const LEN: usize = 100_000;

    fn put(store: &Store, page: u8) {
        let put = PutSlice { key: key(page, "k"), pieces: &[&object(page, LEN)] };
        store.put_batch(&[put], Options::default()).remove(0).expect("put");
    }

    fn get(store: &Store, page: u8) -> GetOutcome {
        let mut bytes = vec![0; LEN];
        let get = GetSlice { key: key(page, "k"), range: None, pieces: &mut [&mut bytes] };
        store.get_batch(&mut [get], Options::default()).remove(0).expect("get")
    }

    /// The record on SSD then has the changed bytes with the checksums of the put, and a footer
    /// lists it.
    #[test]
    fn page_damaged_in_memory_during_its_write_stays_gone_after_flush_and_crash() {
        for by_view in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            let config = small_config(dir.path());
            let runtime = SteppedRuntime::default();
            let store = runtime.open(&config);
            put(&store, 1);
            let mut bytes = object(1, LEN);
            bytes[50_000] ^= 1;
            overwrite(&store, &bytes);
            put(&store, 2);
            let writes = |store: &Store| {
                let is_writing = |f: &Frame| f.state == FrameState::Writing || f.is_dead();
                store.shared.lock().dram.frames.iter().all(|(_, f)| is_writing(f))
            };
            runtime.until("the frames are being written", || writes(&store));
            match by_view {
                true => assert!(store.view(&key(1, "k")).expect("open").is_none()),
                false => assert_eq!(get(&store, 1), GetOutcome::Miss(MissCause::Damaged)),
            }
            assert!(writes(&store), "still being written when the damage is found");
            // Fill the rest of its segment, and a little of the next.
            (3..13).for_each(|page| put(&store, page));
            runtime.until("a segment is sealed", || store.stats().segments_sealed > 0);
            store.flush(Options::default()).expect("flushed");
            store.abandon();
            let store = SteppedRuntime::default().open(&config);
            let present = store.exists_batch(&[key(1, "k"), key(2, "k")], Options::default());
            assert_eq!(
                (present, get(&store, 2).is_hit()),
                (vec![false, true], true),
                "by_view={by_view}"
            );
        }
    }
}

//! Flushes after damage was found: each waits for a checkpoint that leaves the damage out (see
//! [`crate::state::damage`]).

use pagelith_layouts::ids::SegmentOrder;

use crate::background::flusher::{Flusher, SyncPurpose};

/// A flush that waits for a checkpoint.
#[derive(Debug)]
pub(crate) struct PendingFlush {
    pub flush: u64,
    /// Segments up to this one must be sealed first.
    damaged: SegmentOrder,
    /// Serial number of the first checkpoint that suffices.
    serial: u64,
}

impl Flusher {
    /// Make everything before this durable: at once, or after a checkpoint that leaves out the
    /// damage found.
    pub(crate) fn take_flush(&mut self, flush: u64) {
        match self.checkpoint_for_damage() {
            Some((damaged, serial)) => {
                self.pending_flushes.push(PendingFlush { flush, damaged, serial })
            }
            None => self.sync_for(SyncPurpose::Flush(flush)),
        }
    }

    /// The segment up to which all must be sealed, and the first checkpoint that then leaves out
    /// all damage found so far; `None` without damage.
    fn checkpoint_for_damage(&mut self) -> Option<(SegmentOrder, u64)> {
        // No checkpoint is taken where all fingerprints are equal.
        if self.shared.config.constant_fingerprint() {
            return None;
        }
        let shared = self.shared.clone();
        let damage = shared.lock().ssd.as_mut().and_then(|ssd| {
            if std::mem::take(&mut ssd.damage.writing) {
                ssd.damage.note(self.log.newest_written().unwrap_or(SegmentOrder(0)));
            }
            ssd.damage.newest
        });
        let under_way = self.checkpoint.as_ref();
        let Some(mut damaged) = damage else {
            let under_way = under_way.filter(|c| c.leaves_out.is_some())?;
            return Some((SegmentOrder(0), under_way.serial));
        };
        if let Some(c) = under_way.filter(|c| c.copies() && damaged < c.replay_from) {
            return Some((damaged, c.serial));
        }
        if self.log.open_order().is_some_and(|open| open <= damaged) {
            self.log.seal_open();
            if let Some(open) = self.log.open_order() {
                // The open segment is empty, so it is not sealed, and holds no damage.
                damaged = damaged.min(SegmentOrder(open.0 - 1));
            }
        }
        Some((damaged, self.checkpoint_serial + 1))
    }

    /// Whether a flush waits for a checkpoint that can begin now.
    pub(crate) fn flush_wants_checkpoint(&self) -> bool {
        let sealed = |order| self.log.oldest_unsealed().is_none_or(|oldest| order < oldest);
        self.pending_flushes.first().is_some_and(|pending| sealed(pending.damaged))
    }

    /// A checkpoint ended, written or not: continue the flushes that waited for it.
    pub(crate) fn checkpoint_over(&mut self, serial: u64, left_out: Option<SegmentOrder>) {
        if let (Some(order), Some(ssd)) = (left_out, self.shared.lock().ssd.as_mut()) {
            ssd.damage.note(order);
        }
        let ready = self
            .pending_flushes
            .extract_if(.., |pending| pending.serial <= serial)
            .collect::<Vec<_>>();
        ready.into_iter().for_each(|pending| self.sync_for(SyncPurpose::Flush(pending.flush)));
    }
}

#[cfg(test)]
mod tests {
    use crate::api::outcome::{GetOutcome, MissCause};
    use crate::api::request::{GetSlice, Options, PutSlice};
    use crate::config::Config;
    use crate::memory::frames::{Frame, FrameState};
    use crate::server::tests::{key, object, overwrite};
    use crate::store::embedded::Store;
    use crate::store::stepped::SteppedRuntime;

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
            let mut config = Config::default();
            config.dram.bytes = crate::Size::mib(4);
            config.ssd.bytes = crate::Size::mib(32);
            config.ssd.segment_bytes = Some(crate::Size::mib(1));
            config.ssd.dirs = vec![dir.path().to_owned()];
            config.index.max_objects = Some(1000);
            let runtime = SteppedRuntime::default();
            let store = runtime.open(&config);
            put(&store, 1);
            let mut bytes = object(1, LEN);
            bytes[50_000] ^= 1;
            overwrite(&store, &bytes);
            put(&store, 2);
            let writes = |store: &Store| {
                let is_writing = |f: &Frame| f.state == FrameState::Writing || f.is_dead();
                store.shared.lock().frames.iter().all(|(_, f)| is_writing(f))
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

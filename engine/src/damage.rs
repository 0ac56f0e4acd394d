//! Damage that was found stays found: an open after a crash must not find again what was dropped as damaged.
//!
//! A flush behind damage waits for a checkpoint. That has only what the index still finds, and speaks for every segment that
//! was sealed when it began, so it needs no names. Tombstones would: a record whose header cannot be read does not say whose
//! it is, a quarantined segment holds thousands of objects, and the tombstone of a base would hide what is attached to it
//! behind the next put of the base too.
//!
//! Invariants:
//! - `Damage::newest` is the youngest segment of which something was dropped that no checkpoint under way leaves out.
//! - A checkpoint leaves damage out if it is found before the index is copied to its end, in a segment older than its log position
//!   (`newest < replay_from`); if the checkpoint fails, the damage is noted anew.
//! - A flush waits for one checkpoint at most, so damage that is found on and on does not hold it up, nor does a checkpoint that
//!   cannot be written.

use pagelith_layouts::ids::{SegmentId, SegmentOrder};
use pagelith_tiers::policy::FrameId;

use crate::core::Core;
use crate::flusher::{Flusher, Purpose};
use crate::frames::FrameState;

/// What was dropped as damaged since the last checkpoint, as one number: its youngest segment.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    newest: Option<SegmentOrder>,
    /// A page was found damaged in memory whose record may be in a segment that only the log knows.
    writing: bool,
}

/// A flush that waits for a checkpoint.
#[derive(Debug)]
pub(crate) struct FlushBehind {
    pub flush: u64,
    /// Segments up to this one are to be sealed first.
    damaged: SegmentOrder,
    /// Number of the first checkpoint that will do.
    serial: u64,
}

impl Damage {
    /// Something in a segment of this order was dropped, or may be found again.
    pub fn note(&mut self, order: SegmentOrder) {
        self.newest = self.newest.max(Some(order));
    }

    /// What a checkpoint leaves out that has copied the index to its end.
    pub fn take_before(&mut self, replay_from: SegmentOrder) -> Option<SegmentOrder> {
        self.newest.take_if(|newest| *newest < replay_from)
    }
}

impl Core {
    /// Something in a segment was dropped as damaged.
    pub fn note_damage(&mut self, segment: SegmentId) {
        if let Some(ssd) = self.ssd.as_mut() {
            let order = ssd.segments.get(segment).order;
            ssd.damage.note(order);
        }
    }

    /// What the arena holds of a frame is not what was put: it goes, with all that it says. Its record may be on its way to SSD,
    /// or there although a write of it failed (it is queued again then); an open after a crash would find it.
    pub fn drop_damaged(&mut self, id: FrameId) {
        let may_be_written = self.frames.get(id).is_some_and(|f| f.state != FrameState::Clean);
        self.drop_frame(id, false);
        if let Some(ssd) = self.ssd.as_mut().filter(|_| may_be_written) {
            ssd.damage.writing = true;
        }
    }
}

impl Flusher {
    /// Make everything before this durable: at once, or behind a checkpoint that leaves out what was found damaged.
    pub(crate) fn take_flush(&mut self, flush: u64) {
        match self.checkpoint_for_damage() {
            Some((damaged, serial)) => self.behind.push(FlushBehind { flush, damaged, serial }),
            None => self.sync_for(Purpose::Flush(flush)),
        }
    }

    /// Up to which segment all are to be sealed, and the first checkpoint then that leaves out all damage found so far; `None`
    /// if there is none.
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
                // Nothing was written to it, so it is not sealed, and nothing in it can be found.
                damaged = damaged.min(SegmentOrder(open.0 - 1));
            }
        }
        Some((damaged, self.checkpoint_serial + 1))
    }

    /// Whether a flush waits for a checkpoint that can begin.
    pub(crate) fn flush_wants_checkpoint(&self) -> bool {
        let sealed = |order| self.log.oldest_unsealed().is_none_or(|oldest| order < oldest);
        self.behind.first().is_some_and(|behind| sealed(behind.damaged))
    }

    /// A checkpoint is over, written or not: the flushes that waited for it go on.
    pub(crate) fn checkpoint_over(&mut self, serial: u64, left_out: Option<SegmentOrder>) {
        if let (Some(order), Some(ssd)) = (left_out, self.shared.lock().ssd.as_mut()) {
            ssd.damage.note(order);
        }
        let over = self.behind.extract_if(.., |behind| behind.serial <= serial).collect::<Vec<_>>();
        over.into_iter().for_each(|behind| self.sync_for(Purpose::Flush(behind.flush)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{GetSlice, Options, PutSlice};
    use crate::config::Config;
    use crate::outcome::{GetOutcome, MissCause};
    use crate::remote::tests::{key, object, overwrite};
    use crate::stepped::Stepped;
    use crate::store::Store;

    const LEN: usize = 100_000;

    fn put(store: &Store, page: u8) {
        let put = PutSlice { key: key(page, "k"), pieces: &[&object(page, LEN)] };
        store.put_batch(&[put], Options::default()).remove(0).expect("put");
    }

    fn get(store: &Store, page: u8) -> GetOutcome {
        let mut bytes = vec![0; LEN];
        let get = GetSlice { key: key(page, "k"), range: None, pieces: &mut [&mut bytes] };
        store.get_batch(&mut [get], Options::default()).remove(0).expect("got")
    }

    /// Its record is on SSD then, of the bytes that changed, with the checksums of what was put, and in a footer.
    #[test]
    fn page_found_damaged_in_memory_while_it_is_written_stays_gone_after_a_flush_and_a_crash() {
        for by_a_view in [false, true] {
            let dir = tempfile::tempdir().expect("a directory");
            let mut config = Config::default();
            config.dram.bytes = crate::Size::mib(4);
            config.ssd.bytes = crate::Size::mib(32);
            config.ssd.segment_bytes = Some(crate::Size::mib(1));
            config.ssd.dirs = vec![dir.path().to_owned()];
            config.index.max_objects = Some(1000);
            let work = Stepped::default();
            let store = work.open(&config);
            put(&store, 1);
            let mut bytes = object(1, LEN);
            bytes[50_000] ^= 1;
            overwrite(&store, &bytes);
            put(&store, 2);
            let writes = |store: &Store| {
                store.shared.lock().frames.iter().all(|(_, f)| f.state == FrameState::Writing)
            };
            work.until("the frames are being written", || writes(&store));
            match by_a_view {
                true => assert!(store.view(&key(1, "k")).expect("asked").is_none()),
                false => assert_eq!(get(&store, 1), GetOutcome::Miss(MissCause::Damaged)),
            }
            assert!(writes(&store), "it was written before it was found damaged");
            // The rest of its segment, and a little of the next.
            (3..13).for_each(|page| put(&store, page));
            work.until("a segment is sealed", || store.stats().segments_sealed > 0);
            store.flush(Options::default()).expect("flushed");
            store.abandon();
            let store = Stepped::default().open(&config);
            let here = store.exists_batch(&[key(1, "k"), key(2, "k")], Options::default());
            assert_eq!((here, get(&store, 2).is_hit()), (vec![false, true], true), "by_a_view={by_a_view}");
        }
    }
}

//! The end of a batch of gets: counters, returned results, and misses to request from peers.

use pagelith_io::buffer::AlignedBuf;
use pagelith_tiers::policy::Recency;

use super::GetBatch;
use crate::api::outcome::{CompletedGet, MissCause};
use crate::memory::namespaces::NamespaceCounts;
use crate::read::absence;
use crate::read::item::{BatchItem, Hit, HitSource, ItemOutcome, Purpose};
use crate::read::touch_hits::touch_hits;
use crate::rpc::remote_get::{CallOptions, MissedItem};
use crate::state::session_io::SessionIo;
use crate::state::shared::Shared;
use crate::state::stats::Counters;

/// The result of a batch in this store.
pub(crate) struct Finished {
    pub done: Vec<CompletedGet>,
    /// Misses that peers may have.
    pub missed: Vec<MissedItem>,
    pub options: CallOptions,
}

impl GetBatch {
    /// The outcomes, once [`GetBatch::advance`] returned true.
    pub fn finish(mut self, io: &mut SessionIo) -> Finished {
        let is_prefetch = self.items.iter().any(BatchItem::keeps_in_arena);
        self.note_load(io);
        let missed = if is_prefetch { Vec::new() } else { self.missed(io) };
        let promoted = crate::read::promote::promote(&io.shared, &mut self.items, self.at);
        if !is_prefetch {
            touch_hits(&io.shared, &self.items, self.at);
        }
        let mut counters = Counters::default();
        if is_prefetch {
            io.shared.lock().counters.prefetched += promoted;
        }
        for item in &self.items {
            match item.outcome() {
                // A prefetched object counts neither as a hit nor as a miss.
                Some(ItemOutcome::Miss(MissCause::Damaged)) if is_prefetch => counters.damaged += 1,
                _ if is_prefetch => {}
                Some(ItemOutcome::Hit(hit)) => count_hit(&mut counters, hit, item.is_continued),
                // Peers are asked first; they decide whether it is a miss.
                Some(ItemOutcome::Miss(_)) if !missed.is_empty() => {}
                Some(ItemOutcome::Miss(cause)) if self.is_final(item, *cause) => {
                    counters.miss(*cause)
                }
                Some(ItemOutcome::Miss(MissCause::Damaged)) => counters.damaged += 1,
                Some(ItemOutcome::Miss(_)) => {}
                Some(ItemOutcome::Failed(_)) | None => {}
            }
        }
        if counters.misses.iter().any(|n| *n > 0) {
            let is_absent = |item: &&BatchItem| {
                let is_miss = matches!(item.outcome(), Some(ItemOutcome::Miss(MissCause::Absent)));
                is_miss && self.is_final(item, MissCause::Absent)
            };
            let absent = self.items.iter().filter(is_absent);
            let absent = absent.map(|item| (&item.key, item.fingerprint));
            absence::count(&io.shared, absent, &mut counters.absent);
        }
        io.shared.reads.counters.add(io.counter_stripe, &counters);
        if !is_prefetch {
            self.count_by_namespace(&io.shared, missed.is_empty());
        }
        if io.shared.config.batch_summary() {
            crate::read::summary::log_gets(&self.items);
        }
        let Recency { request, depth } = self.at;
        // Peers do not compare their loads with the caller's rate.
        let deadline = self.deadline;
        let options = CallOptions { request, depth, deadline, prefill_tokens_per_s: 0 };
        Finished {
            done: self.items.iter_mut().map(BatchItem::take_done).collect(),
            missed,
            options,
        }
    }

    /// The buffer of each object that was read; not counted as hits.
    pub fn into_buffers(self) -> Vec<Option<AlignedBuf>> {
        let buffer = |mut item: BatchItem| match item.outcome()? {
            ItemOutcome::Hit(_) => item.destination.take()?.into_buffer(),
            ItemOutcome::Miss(_) | ItemOutcome::Failed(_) => None,
        };
        self.items.into_iter().map(buffer).collect()
    }

    /// Misses that peers may have.
    fn missed(&self, io: &SessionIo) -> Vec<MissedItem> {
        if io.connections.is_none() || self.late || self.local_only {
            return Vec::new();
        }
        let missed = |(index, item): (usize, &BatchItem)| match (item.outcome()?, &item.purpose) {
            (ItemOutcome::Miss(MissCause::Slow), _) => None,
            (ItemOutcome::Miss(_), Purpose::Deliver(range)) => {
                Some(MissedItem { index, key: item.key, range: range.clone() })
            }
            (ItemOutcome::Miss(_) | ItemOutcome::Hit(_) | ItemOutcome::Failed(_), _) => None,
        };
        self.items.iter().enumerate().filter_map(missed).collect()
    }

    /// Whether a miss counts here: not that of a later part of an object, nor if peers are asked
    /// for the whole object.
    fn is_final(&self, item: &BatchItem, cause: MissCause) -> bool {
        !item.is_continued && (!self.local_only || cause == MissCause::Slow)
    }

    /// Count hits and, unless peers are asked, misses.
    fn count_by_namespace(&self, shared: &Shared, peers_are_not_asked: bool) {
        let namespaces = &shared.read_view.namespaces;
        if !namespaces.is_counting() {
            return;
        }
        for item in &self.items {
            let namespace = item.key.namespace();
            match item.outcome() {
                Some(ItemOutcome::Hit(hit)) => {
                    if !namespaces.has(namespace) {
                        shared.lock().namespaces.add(namespace);
                    }
                    let objects = u64::from(!item.is_continued);
                    let counts = namespaces.counts(namespace);
                    counts.into_iter().for_each(|counts| counts.count_hits(objects, hit.bytes));
                }
                Some(ItemOutcome::Miss(cause))
                    if self.is_final(item, *cause)
                        && (peers_are_not_asked || *cause == MissCause::Slow) =>
                {
                    namespaces.counts(namespace).into_iter().for_each(NamespaceCounts::count_miss);
                }
                Some(ItemOutcome::Miss(_) | ItemOutcome::Failed(_)) | None => {}
            }
        }
    }
}

/// Count a hit; the bytes only if it `is_continued`.
fn count_hit(counters: &mut Counters, hit: &Hit, is_continued: bool) {
    let objects = u64::from(!is_continued);
    match &hit.source {
        HitSource::Memory { verified } => {
            counters.hits_memory += objects;
            counters.bytes_memory += hit.bytes;
            counters.hits_unverified += if *verified { 0 } else { objects };
        }
        HitSource::Ssd { staged_bytes, .. } => {
            counters.hits_ssd += objects;
            counters.bytes_ssd += hit.bytes;
            counters.staged_bytes += staged_bytes;
        }
        HitSource::Header(_) => {}
    }
}

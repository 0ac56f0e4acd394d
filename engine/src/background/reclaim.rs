//! Reclaim empties a sealed segment so that it can be used again.
//!
//! 1. The policy picks a victim. Its footer lists its records; without a footer, its record headers
//!    do.
//! 2. Records that the index still finds there, and that are pinned or recent enough for the
//!    budget, are read, verified and appended again. So are tombstones that may still shadow
//!    something.
//! 3. A sync covers the copies. Only then are the victim's remaining entries dropped from the
//!    index, and only when its last reader has left is it free. Without the sync, a crash could
//!    take both copies: the new one because it was not durable, the old one because the segment was
//!    overwritten.

mod contents;
pub(crate) mod reinsertion;
mod scan;
mod tombstones;
mod trim;

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::disk::Completion;
use pagelith_layouts::footer::{self, FooterEntry};
use pagelith_layouts::ids::{NamespaceId, SegmentId};
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::policy::{SegmentFacts, free_segments_min};
use pagelith_tiers::ssd::segments::SegmentState;

use self::contents::{Contents, Member};
use self::reinsertion::Reinsertion;
use self::scan::{Scan, Scanned};
use crate::background::log_context::{LogContext, SyncPurpose};
use crate::background::log_op::LogOp;
use crate::memory::departed::Departure;
use crate::memory::visibility::VisibilityFilter;
use crate::state::read_view::CoreGuard;
use crate::state::ssd_core::SsdCore;

/// A victim is emptied only if at least one part in `GAIN_MIN` of it becomes free. With less, the
/// device would write that much more than is put.
const GAIN_MIN: u64 = 8;
/// Bytes read from a segment's end to find its footer, at first.
const TAIL_BYTES: u64 = 64 * 1024;
/// Time before a victim that could not be emptied is tried again: pins end, and space appears,
/// without a signal.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The same for a victim that could not be read: each try may occupy the device for long.
const RETRY_UNREADABLE_AFTER: Duration = Duration::from_secs(60);

enum Step {
    /// The footer is being read.
    Footer,
    /// The record headers are being read instead.
    Scanning(Scan),
    /// Survivors are read and appended.
    Reinserting(Reinsertion),
    /// Waits for a sync of the reinserted records; `reinserted` tells whether there are any.
    Syncing { reinserted: bool },
}

/// A victim that could not be emptied: when it may be tried again, and whether reads of it failed.
struct DeferredVictim {
    until: Mono,
    unreadable: bool,
}

/// A reclaim under way.
struct Reclaim {
    identity: SegmentIdentity,
    /// Members of the victim's records, once they are known.
    members: Vec<Member>,
    step: Step,
    /// The namespace whose records are dropped, if the segment is only trimmed.
    trims: Option<NamespaceId>,
}

/// Counts when the last reclaim for index space began.
struct IndexFull {
    /// `puts_refused` of the counters.
    refused: u64,
    /// The index's length; the maximum while the index has room.
    entries: u64,
}

/// Empties segments.
pub(crate) struct Reclaimer {
    current: Option<Reclaim>,
    /// Victims that could not be emptied, by segment.
    deferred: HashMap<SegmentId, DeferredVictim>,
    /// Emptied victims that still have readers, and when they were emptied.
    draining: Vec<(SegmentId, Mono)>,
    index_full: IndexFull,
    /// Namespaces whose tombstones keep reclaim from emptying victims.
    blocked_namespaces: BTreeSet<NamespaceId>,
}

impl Default for Reclaimer {
    fn default() -> Reclaimer {
        Reclaimer {
            current: None,
            deferred: HashMap::new(),
            draining: Vec::new(),
            index_full: IndexFull { refused: 0, entries: u64::MAX },
            blocked_namespaces: BTreeSet::new(),
        }
    }
}

impl Reclaimer {
    pub fn is_idle(&self) -> bool {
        self.current.is_none()
    }

    /// Whether records of the victim remain to be appended, or may turn out to once its footer is
    /// read.
    pub fn needs_room(&self) -> bool {
        self.current.as_ref().is_some_and(|r| match r.step {
            Step::Footer | Step::Scanning(_) | Step::Reinserting(_) => r.trims.is_none(),
            Step::Syncing { .. } => false,
        })
    }

    /// Begin or continue a reclaim; true if anything was done.
    pub fn step(&mut self, cx: &mut LogContext) -> bool {
        if !self.is_idle()
            && cx.is_read_only()
            && let Some((_, reinsertion)) = self.reinsertion()
        {
            reinsertion.stop(cx);
        }
        let freed = self.free_drained(cx);
        let more = match self.current.as_ref().map(|r| &r.step) {
            None => self.begin(cx),
            Some(Step::Footer | Step::Scanning(_) | Step::Syncing { .. }) => false,
            Some(Step::Reinserting(_)) => self.reinsert_records(cx),
        };
        freed || more
    }

    /// Try the deferred victims again at once.
    pub fn retry_deferred(&mut self) {
        self.deferred.clear();
    }

    fn begin(&mut self, cx: &mut LogContext) -> bool {
        if cx.is_closing() || !cx.log.is_trusted() {
            return false;
        }
        let low = free_segments_min(cx.volume.geometry.segment_count as usize);
        let shared = cx.shared.clone();
        let mut core = shared.lock();
        let (entries, refused) = (core.index.len(), core.counters.puts_refused);
        let index_full = entries * 100 > core.index.capacity() * 95;
        if !index_full {
            self.index_full.entries = u64::MAX;
        }
        // A victim full of pinned objects gives no entry back, and the next victim may not either.
        // Without this condition the device would be filled with copies of them for as long as the
        // pins last.
        let for_index =
            index_full && (entries < self.index_full.entries || refused != self.index_full.refused);
        let now = shared.now();
        self.deferred.retain(|_, deferred| deferred.until > now);
        let replaced = core.replaced_segments();
        let Some(ssd) = core.ssd.as_mut().filter(|s| s.health.writes()) else { return false };
        // Draining segments are usually free soon; one whose reader stays must not delay the
        // others.
        let soon =
            self.draining.iter().filter(|(_, since)| now.since(*since) < RETRY_AFTER).count();
        let for_space = ssd.segments.count(SegmentState::Free) + soon < low;
        if !for_space && !for_index {
            let may = |id| !self.deferred.contains_key(&id) && !replaced.contains(&id);
            return core.part_to_trim(may).is_some_and(|(namespace, segment)| {
                self.start(cx, core, segment, Some(namespace));
                true
            });
        }
        let mut sealed = ssd.segments.sealed();
        sealed.retain(|s| !self.deferred.contains_key(&s.segment));
        // The replacements may wait for this reclaim, so without another victim they do not count.
        let last: Vec<_> = sealed.extract_if(.., |s| replaced.contains(&s.segment)).collect();
        let victim_of = |facts: &[SegmentFacts]| ssd.policy.victim(facts).map(|i| facts[i].segment);
        let Some(victim) = victim_of(&sealed).or_else(|| victim_of(&last)) else {
            let none_free = ssd.segments.count(SegmentState::Free) == 0;
            drop(core);
            return (none_free
                && (self.clear_blocked_namespaces(cx) || self.stop_without_room(cx)))
                || (index_full && self.seal_for_room(cx, refused));
        };
        if !for_space {
            self.index_full = IndexFull { refused, entries };
        }
        tracing::debug!(segment = victim.0, for_space, entries, "reclaim");
        self.start(cx, core, victim, None);
        true
    }

    /// Begin to read the contents of a sealed segment.
    fn start(
        &mut self,
        cx: &mut LogContext,
        mut core: CoreGuard<'_>,
        segment: SegmentId,
        trims: Option<NamespaceId>,
    ) {
        let Some(ssd) = core.ssd.as_mut() else { return };
        ssd.segments.set_state(segment, SegmentState::Reclaiming);
        let incarnation = ssd.segments.get(segment).incarnation;
        drop(core);
        let identity = SegmentIdentity { store: cx.volume.store, segment, incarnation };
        self.current = Some(Reclaim { identity, members: Vec::new(), step: Step::Footer, trims });
        self.read_footer(cx, TAIL_BYTES.min(cx.volume.geometry.segment_bytes));
    }

    /// Every victim is deferred, no segment is free, and no room is left for the tombstones of some
    /// victims: nothing could ever be written again. Clear the tombstones' namespaces instead, if
    /// the manifest has room for them: a cache may lose objects, but removed objects must not
    /// return.
    ///
    /// Only very many removals lead here, or a crash at the moment at which reclaim holds the last
    /// segment.
    fn clear_blocked_namespaces(&mut self, cx: &mut LogContext) -> bool {
        let max = cx.shared.config.namespaces_max() as usize;
        let mut any = false;
        for namespace in std::mem::take(&mut self.blocked_namespaces) {
            let mut core = cx.shared.lock();
            if !core.visibility.has_room(namespace, max) {
                tracing::error!(
                    %namespace,
                    namespaces_max = max,
                    "no room is left for tombstones, and none for clearing their namespace; create \
                     the store with a larger namespaces_max"
                );
                continue;
            }
            let generation = core.clear(namespace);
            core.counters.namespaces_forgotten += 1;
            drop(core);
            tracing::error!(
                %namespace,
                "no room is left for tombstones, their namespace is cleared; raise ssd.bytes"
            );
            // No caller waits for it.
            cx.generations.raise(&mut cx.log, namespace, generation, 0);
            any = true;
        }
        // The victims are tried again after their delay; by then the manifest has the generations.
        any
    }

    /// No segment is free, and the device can read none of the victims. Requests for space would
    /// wait until the device recovers, and so would a clear after them: stop writing. Each probe
    /// tries the victims again.
    fn stop_without_room(&self, cx: &mut LogContext) -> bool {
        let moving = cx.log.in_flight() > 0 || !self.draining.is_empty() || cx.is_purging();
        if self.deferred.is_empty()
            || moving
            || !self.deferred.values().all(|deferred| deferred.unreadable)
        {
            return false;
        }
        let unread = self.deferred.len();
        cx.stop_writing(&format!("no segment is free, and no victim can be read victims={unread}"))
    }

    /// The index is full of objects in the open segment, which becomes a victim once it is sealed.
    /// Done only after another put was refused, or pinned objects would be written again and again.
    fn seal_for_room(&mut self, cx: &mut LogContext, puts_refused: u64) -> bool {
        if self.index_full.refused == puts_refused {
            return false;
        }
        self.index_full = IndexFull { refused: puts_refused, entries: u64::MAX };
        cx.log.seal_open();
        true
    }

    fn read_footer(&mut self, cx: &mut LogContext, bytes: u64) {
        let Some(r) = self.current.as_ref() else { return };
        let at = cx.volume.geometry.segment_bytes - bytes;
        if !cx.read(LogOp::Footer, r.identity.segment, at, bytes) {
            self.defer(cx);
        }
    }

    /// The read of the footer ended.
    pub fn footer_read(&mut self, cx: &mut LogContext, completion: Completion) {
        let Some(identity) = self.current.as_ref().map(|r| r.identity) else { return };
        let failed = completion.result.is_err();
        let Some(part) = completion.op.into_parts().pop() else { return };
        let segment_bytes = cx.volume.geometry.segment_bytes;
        let claimed = footer::claimed_bytes(part.bytes(), segment_bytes);
        if let Some(more) = claimed.filter(|n| !failed && *n > part.len() as u64) {
            return self.read_footer(cx, more);
        }
        let from = part.len() - claimed.unwrap_or(0).min(part.len() as u64) as usize;
        match footer::decode(&part.bytes()[from..], identity, segment_bytes) {
            Ok((_, entries)) if !failed => self.choose(cx, &entries),
            _ => {
                if failed {
                    cx.suspect(identity.segment);
                }
                if let Some(r) = self.current.as_mut() {
                    r.step = Step::Scanning(Scan::begin(cx, identity));
                }
                self.continue_scan(cx);
            }
        }
    }

    /// A read of the scan ended.
    pub fn scan_read(&mut self, cx: &mut LogContext, completion: Completion) {
        let Some(Reclaim { identity, step: Step::Scanning(scan), .. }) = self.current.as_mut()
        else {
            return;
        };
        if scan.ended(identity.segment, completion) {
            return self.continue_scan(cx);
        }
        cx.suspect(identity.segment);
        // What was not read may be tombstones, so the segment cannot be reused.
        self.defer_for(cx, RETRY_UNREADABLE_AFTER, true);
    }

    fn continue_scan(&mut self, cx: &mut LogContext) {
        let Some(Reclaim { identity, step: Step::Scanning(scan), .. }) = self.current.as_mut()
        else {
            return;
        };
        match scan.step(cx, identity.segment) {
            Scanned::Reading => {}
            Scanned::All(entries) => self.choose(cx, &entries),
            Scanned::NoRoom => self.defer(cx),
        }
    }

    /// Decide which records survive.
    #[tracing::instrument(level = "debug", skip_all, name = "reclaim")]
    fn choose(&mut self, cx: &mut LogContext, entries: &[FooterEntry]) {
        let Some(r) = self.current.as_mut() else { return };
        if let Some(namespace) = r.trims {
            return self.trim(cx, namespace, entries);
        }
        let contents = Contents::of(cx, r.identity.segment, entries);
        r.members = contents.members;
        let (survivors, tombstones) = (contents.survivors, tombstones::packed(contents.tombstones));
        let segment_bytes = cx.volume.geometry.segment_bytes;
        let bytes: u64 = survivors.iter().map(|s| s.bytes).sum();
        let tombstone_bytes = tombstones::bytes_on_device(&tombstones);
        let gain = segment_bytes.saturating_sub(bytes + tombstone_bytes);
        if gain < segment_bytes / GAIN_MIN {
            // Writing everything again would free nothing. Older victims go first, after which
            // these tombstones may be obsolete; pins end.
            if tombstone_bytes > segment_bytes / 2 {
                self.blocked_namespaces
                    .extend(tombstones.iter().map(|(.., keys)| keys[0].namespace()));
            }
            return self.defer(cx);
        }
        tracing::debug!(
            records = survivors.len(),
            tombstones = tombstones.len(),
            "reclaim survivors"
        );
        let tombstones = tombstones.into_iter().map(|(generation, sequence, keys)| {
            cx.pending_records.add_tombstones(generation, sequence, &keys, None)
        });
        r.step = Step::Reinserting(Reinsertion::new(survivors, tombstones.collect()));
    }

    fn reinsertion(&mut self) -> Option<(SegmentIdentity, &mut Reinsertion)> {
        match self.current.as_mut()? {
            Reclaim { identity, step: Step::Reinserting(reinsertion), .. } => {
                Some((*identity, reinsertion))
            }
            Reclaim { step: Step::Footer | Step::Scanning(_) | Step::Syncing { .. }, .. } => None,
        }
    }

    /// Read and append survivors; request a sync once everything is written.
    fn reinsert_records(&mut self, cx: &mut LogContext) -> bool {
        let Some(Reclaim { identity, step, .. }) = self.current.as_mut() else { return false };
        let Step::Reinserting(reinsertion) = step else { return false };
        let progressed = reinsertion.step(cx, *identity, &mut self.blocked_namespaces);
        if !reinsertion.is_done() {
            return progressed;
        }
        if reinsertion.defer {
            self.defer(cx);
            return true;
        }
        let segment = identity.segment;
        *step = Step::Syncing { reinserted: reinsertion.any };
        if needed_for_replaced(cx, segment) {
            self.defer(cx);
            return true;
        }
        // The sync is needed also when nothing was reinserted: newer records in other segments, to
        // which the index lost this segment's entries, may not be durable yet.
        if mutant::on(Mutant::FreeBeforeMoved) {
            self.sync_ended(cx, true);
        } else {
            watch(cx, segment);
            cx.sync_for(SyncPurpose::Reclaim);
        }
        true
    }

    /// The read of a survivor ended.
    pub fn record_read(&mut self, cx: &mut LogContext, number: u32, completion: Completion) {
        if let Some((identity, reinsertion)) = self.reinsertion() {
            reinsertion.record_read(cx, identity, number, completion);
        }
    }

    /// The log finished a record of reclaim.
    pub fn record_written(&mut self) {
        if let Some((_, reinsertion)) = self.reinsertion() {
            reinsertion.record_ended();
        }
    }

    /// A record of reclaim could not be written: defer the victim.
    pub fn record_failed(&mut self) {
        if let Some((_, reinsertion)) = self.reinsertion() {
            reinsertion.defer = true;
            reinsertion.record_ended();
        }
    }

    /// The sync after the move ended.
    pub fn sync_ended(&mut self, cx: &mut LogContext, ok: bool) {
        let Some(r) = self.current.as_mut() else { return };
        let replaced = cx.shared.lock().ssd.as_mut().is_some_and(|ssd| ssd.replaced.end_watch());
        if !ok || needed_for_replaced(cx, r.identity.segment) {
            return self.defer(cx);
        }
        if replaced {
            // The replacement may have been written after the sync began.
            watch(cx, r.identity.segment);
            return cx.sync_for(SyncPurpose::Reclaim);
        }
        if matches!(r.step, Step::Syncing { reinserted: false }) {
            // It wrote nothing, so the next reclaim may follow, whatever this one freed.
            self.index_full.entries = u64::MAX;
        }
        let (segment, members) = (r.identity.segment, std::mem::take(&mut r.members));
        let shared = cx.shared.clone();
        let mut core = shared.lock();
        // A pin does not hold an object that was cleared.
        let stays = |m: &Member| {
            core.pins.is_pinned(m.fingerprint)
                && core.generation(m.key.namespace()) == m.generation
                && core
                    .index
                    .find(m.fingerprint)
                    .any(|e| e.ssd == Some(m.location) && core.is_visible(&e))
        };
        if members.iter().any(stays) && !mutant::on(Mutant::PinIgnored) {
            // Pinned after the choice. The next try moves it.
            drop(core);
            return self.defer(cx);
        }
        // A segment becomes free, so tombstones of deferred victims may be written now.
        self.blocked_namespaces.clear();
        for m in members {
            // The event of the clear covers cleared objects: no event for each key.
            let key = (core.generation(m.key.namespace()) == m.generation).then_some(&m.key);
            core.drop_ssd(m.fingerprint, m.location, key, Departure::EvictedSsd);
        }
        // If headers were read instead of the footer, a damaged header hides the records after it.
        if let Some(ssd) = core.ssd.as_mut().filter(|s| s.segments.get(segment).live_objects > 0) {
            ssd.purges.push_back(Some(segment));
            core.visibility.hide_segment(segment);
            core.events.forgot();
        }
        drop(core);
        self.current = None;
        self.draining.push((segment, shared.now()));
        self.free_drained(cx);
    }

    /// Free the emptied victims that have no reader and no index entry left; true if any was freed.
    fn free_drained(&mut self, cx: &LogContext) -> bool {
        if self.draining.is_empty() {
            return false;
        }
        let mut core = cx.shared.lock();
        let before = self.draining.len();
        self.draining.retain(|(segment, _)| {
            if core.ssd.as_ref().is_some_and(|s| s.purges.contains(&Some(*segment))) {
                return true;
            }
            // Must be the last condition: it closes the segment until it is opened anew.
            if !core.close_if_unread(*segment) && !mutant::on(Mutant::ReadersIgnored) {
                return true;
            }
            core.set_segment_state(*segment, SegmentState::Free);
            let order = core.ssd.as_ref().map(|ssd| ssd.segments.get(*segment).order);
            order.into_iter().for_each(|order| core.tenants.segment_freed(order));
            core.counters.segments_reclaimed += 1;
            false
        });
        let freed = self.draining.len() < before;
        if freed {
            cx.shared.signals.progress.raise();
        }
        freed
    }

    /// Give up on this victim for now.
    fn defer(&mut self, cx: &LogContext) {
        self.defer_for(cx, RETRY_AFTER, false);
    }

    fn defer_for(&mut self, cx: &LogContext, duration: Duration, unreadable: bool) {
        let Some(r) = self.current.take() else { return };
        let until = cx.shared.now().after(duration);
        self.deferred.insert(r.identity.segment, DeferredVictim { until, unreadable });
        cx.shared.lock().set_segment_state(r.identity.segment, SegmentState::Sealed);
    }
}

/// Whether a segment must not be freed yet: it has durable objects whose replacements are not
/// written. If no segment is free, these may wait for this one.
fn needed_for_replaced(cx: &LogContext, segment: SegmentId) -> bool {
    let mut core = cx.shared.lock();
    let any_free = |s: &SsdCore| s.segments.count(SegmentState::Free) > 0;
    core.replaced_segments().contains(&segment) && core.ssd.as_ref().is_some_and(any_free)
}

/// Watch whether objects in this segment are replaced from now on.
fn watch(cx: &LogContext, segment: SegmentId) {
    cx.shared.lock().ssd.iter_mut().for_each(|ssd| ssd.replaced.watch(segment));
}

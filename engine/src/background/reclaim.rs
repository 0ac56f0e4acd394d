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

mod moving;
mod scan;
mod tombstones;

use std::collections::BTreeMap;
use std::time::Duration;

use pagelith_io::clock::Mono;
use pagelith_io::disk::{Completion, Op};
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::footer::{self, FooterEntry};
use pagelith_layouts::ids::{Generation, SegmentId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::RecordKind;
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::policy::ExtentFacts;
use pagelith_tiers::ssd::append::Unit;
use pagelith_tiers::ssd::segments::SegmentState;

use self::scan::Scan;
use self::tombstones::Tombstone;
use crate::background::flusher::{
    Flusher, TAG_FOOTER, TAG_PROBE, TAG_READBACK, TAG_RECORD, TAG_SCAN, TAG_SCRUB,
};
use crate::memory::index::SsdPlace;
use crate::memory::visibility::VisibilityFilter;

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

/// A record of the victim that is to be moved.
#[derive(Clone, Debug)]
struct Survivor {
    record: u64,
    bytes: u64,
    pinned: bool,
    members: Vec<(u128, SsdPlace)>,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Footer,
    Scanning,
    Moving,
    Syncing,
}

/// A victim that could not be emptied: when it may be tried again, and whether reads of it failed.
pub(crate) struct DeferredVictim {
    until: Mono,
    unreadable: bool,
}

/// A member of one of the victim's records.
struct Member {
    fingerprint: u128,
    place: SsdPlace,
    key: ObjectKey,
    generation: Generation,
}

/// A reclaim under way.
pub(crate) struct Reclaim {
    segment: SegmentId,
    identity: SegmentIdentity,
    stage: Stage,
    scan: Option<Scan>,
    members: Vec<Member>,
    to_read: Vec<Survivor>,
    reading: BTreeMap<u64, Survivor>,
    next_tag: u64,
    /// Units that wait for room in the log, and the number of those in it.
    ready: Vec<Unit>,
    in_log: usize,
    /// A record that must survive could not be moved: defer the victim.
    defer: bool,
    /// Whether any record is written again.
    moves: bool,
}

impl Reclaim {
    /// Whether records of the victim remain to be appended, or may turn out to once its footer is
    /// read.
    pub fn needs_room(&self) -> bool {
        match self.stage {
            Stage::Footer | Stage::Scanning | Stage::Moving => true,
            Stage::Syncing => false,
        }
    }
}

impl Flusher {
    /// Free segments below which a victim is sought: one to be prepared and, in a store with many,
    /// one in reserve.
    fn low_water(&self) -> usize {
        let count = self.shared.volume.as_ref().map_or(0, |v| v.geometry.segment_count);
        if count >= 16 { 2 } else { 1 }
    }

    /// Begin or continue a reclaim; true if anything was done.
    pub(crate) fn step_reclaim(&mut self) -> bool {
        if self.reclaim.is_some() && self.is_read_only() {
            self.stop_moving();
        }
        let freed = self.free_drained();
        let more = match self.reclaim.as_ref().map(|r| &r.stage) {
            None => self.begin_reclaim(),
            Some(Stage::Footer | Stage::Scanning | Stage::Syncing) => false,
            Some(Stage::Moving) => self.move_records(),
        };
        freed || more
    }

    fn begin_reclaim(&mut self) -> bool {
        if self.closing.is_some() || !self.log.is_trusted() {
            return false;
        }
        let low = self.low_water();
        let Some(volume) = self.shared.volume.clone() else { return false };
        let mut core = self.shared.lock();
        let (entries, refused) = (core.index.len(), core.counters.puts_refused);
        let index_full = entries * 100 > core.index.capacity() * 95;
        if !index_full {
            self.entries_at_reclaim = u64::MAX;
        }
        // A victim full of pinned objects gives no entry back, and the next victim may not either.
        // Without this condition the device would be filled with copies of them for as long as the
        // pins last.
        let for_index =
            index_full && (entries < self.entries_at_reclaim || refused != self.refused_at_reclaim);
        let now = self.shared.now();
        self.deferred_victims.retain(|_, deferred| deferred.until > now);
        let Some(ssd) = core.ssd.as_mut().filter(|s| s.health.writes()) else { return false };
        // Draining segments are usually free soon; one whose reader stays must not delay the
        // others.
        let soon =
            self.draining.iter().filter(|(_, since)| now.since(*since) < RETRY_AFTER).count();
        let for_space = ssd.segments.count(SegmentState::Free) + soon < low;
        if !for_space && !for_index {
            return false;
        }
        let mut sealed = ssd.segments.sealed();
        sealed.retain(|s| !self.deferred_victims.contains_key(&s.segment));
        let Some(victim) = ssd.policy.victim(&sealed).map(|i| sealed[i].segment) else {
            let none_free = ssd.segments.count(SegmentState::Free) == 0;
            drop(core);
            return (none_free && (self.clear_blocked_namespaces() || self.stop_without_room()))
                || (index_full && self.seal_for_room(refused));
        };
        ssd.segments.set_state(victim, SegmentState::Reclaiming);
        if !for_space {
            (self.refused_at_reclaim, self.entries_at_reclaim) = (refused, entries);
        }
        let identity = SegmentIdentity {
            store: volume.store,
            segment: victim,
            incarnation: ssd.segments.get(victim).incarnation,
        };
        drop(core);
        self.reclaim = Some(Reclaim {
            segment: victim,
            identity,
            stage: Stage::Footer,
            scan: None,
            members: Vec::new(),
            to_read: Vec::new(),
            reading: BTreeMap::new(),
            next_tag: 0,
            ready: Vec::new(),
            in_log: 0,
            defer: false,
            moves: false,
        });
        tracing::debug!(segment = victim.0, for_space, entries, "reclaim");
        self.read_footer(TAIL_BYTES.min(volume.geometry.segment_bytes));
        true
    }

    /// Every victim is deferred, no segment is free, and no room is left for the tombstones of some
    /// victims: nothing could ever be written again. Clear the tombstones' namespaces instead, for
    /// which the manifest always has room: a cache may lose objects, but removed objects must not
    /// return.
    ///
    /// Only very many removals lead here, or a crash at the moment at which reclaim holds the last
    /// segment.
    fn clear_blocked_namespaces(&mut self) -> bool {
        let blocked = std::mem::take(&mut self.blocked_namespaces);
        for &namespace in &blocked {
            tracing::error!(%namespace, "no room is left for tombstones, their namespace is cleared");
            let mut core = self.shared.lock();
            let generation = core.clear(namespace);
            core.counters.namespaces_forgotten += 1;
            drop(core);
            self.clears.push((namespace, generation, 0));
            self.log.raise_generation(namespace, generation);
        }
        // The victims are tried again after their delay; by then the manifest has the generations.
        !blocked.is_empty()
    }

    /// No segment is free, and the device can read none of the victims. Requests for space would
    /// wait until the device recovers, and so would a clear after them: stop writing. Each probe
    /// tries the victims again.
    fn stop_without_room(&mut self) -> bool {
        let moving = self.log.in_flight() > 0 || !self.draining.is_empty() || self.is_purging();
        if self.deferred_victims.is_empty()
            || moving
            || !self.deferred_victims.values().all(|deferred| deferred.unreadable)
        {
            return false;
        }
        let now = self.shared.now();
        let stopped = self.shared.lock().ssd.as_mut().is_some_and(|s| s.health.stop_writing(now));
        if stopped {
            self.state_changed("no segment is free, and no victim can be read");
        }
        stopped
    }

    /// The index is full of objects in the open segment, which becomes a victim once it is sealed.
    /// Done only after another put was refused, or pinned objects would be written again and again.
    fn seal_for_room(&mut self, puts_refused: u64) -> bool {
        if self.refused_at_reclaim == puts_refused {
            return false;
        }
        (self.refused_at_reclaim, self.entries_at_reclaim) = (puts_refused, u64::MAX);
        self.log.seal_open();
        true
    }

    fn read_footer(&mut self, bytes: u64) {
        let (Some(volume), Some(r)) = (self.shared.volume.clone(), self.reclaim.as_ref()) else {
            return;
        };
        let (file, offset) = volume.place(r.segment, volume.geometry.segment_bytes - bytes);
        let submitted = match pagelith_io::buffer::AlignedBuf::new(bytes as usize) {
            Ok(buf) => self
                .log
                .submit(TAG_FOOTER, Op::Read { file, offset, parts: vec![buf.into_part()] })
                .is_ok(),
            Err(_) => false,
        };
        if !submitted {
            self.defer_victim();
        }
    }

    /// An operation that the engine submitted to the log's queue ended.
    pub(crate) fn other(&mut self, tag: u64, completion: Completion) {
        match tag >> 32 << 32 {
            TAG_PROBE => self.probe_ended(completion),
            TAG_READBACK => self.read_back_completed(tag, completion),
            TAG_SCRUB => self.scrub_read(completion),
            TAG_SCAN => self.scan_read(completion),
            TAG_RECORD => self.record_read(tag, completion),
            TAG_FOOTER => self.footer_read(completion),
            _ => self.checkpoint_ended(tag, completion.result),
        }
    }

    fn footer_read(&mut self, completion: Completion) {
        let Some(volume) = self.shared.volume.clone() else { return };
        let Some(identity) = self.reclaim.as_ref().map(|r| r.identity) else { return };
        let failed = completion.result.is_err();
        let Some(part) = completion.op.into_parts().pop() else { return };
        let segment_bytes = volume.geometry.segment_bytes;
        let claimed = footer::claimed_bytes(part.bytes(), segment_bytes);
        if let Some(more) = claimed.filter(|n| !failed && *n > part.len() as u64) {
            return self.read_footer(more);
        }
        let from = part.len() - claimed.unwrap_or(0).min(part.len() as u64) as usize;
        match footer::decode(&part.bytes()[from..], identity, segment_bytes) {
            Ok((_, entries)) if !failed => self.choose(&entries),
            _ => {
                if failed {
                    self.suspect(identity.segment);
                }
                self.begin_scan();
            }
        }
    }

    /// Decide which records survive.
    #[tracing::instrument(level = "debug", skip_all, name = "reclaim")]
    fn choose(&mut self, entries: &[FooterEntry]) {
        let shared = self.shared.clone();
        let Some(mut r) = self.reclaim.take() else { return };
        let mut tombstones = Vec::new();
        let mut records: BTreeMap<u32, (Survivor, u64, usize, u32)> = BTreeMap::new();
        let core = shared.lock();
        for e in entries {
            let fingerprint = shared.fingerprint(&e.key, Generation(e.generation));
            if e.kind == RecordKind::Tombstones as u8 {
                let needed = core
                    .ssd
                    .as_ref()
                    .is_some_and(|s| s.segments.tombstone_needed(r.segment, Sequence(e.sequence)));
                // A clear hides what the tombstone hides, but only once the clear is durable.
                let durable = self.durable_generations.get(&e.key.namespace()).copied();
                let current = durable.unwrap_or(Generation::FIRST) <= Generation(e.generation);
                if needed && current && !mutant::on(Mutant::TombstoneDropped) {
                    tombstones.push(Tombstone {
                        generation: Generation(e.generation),
                        sequence: Sequence(e.sequence),
                        key: e.key,
                        absent: core.index.find(fingerprint).next().is_none(),
                    });
                }
                continue;
            }
            let place = SsdPlace::of_entry(r.segment, e);
            let (namespace, generation) = (e.key.namespace(), Generation(e.generation));
            r.members.push(Member { fingerprint, place, key: e.key, generation });
            if core.generation(namespace) != generation {
                continue;
            }
            let found = core.index.find(fingerprint).find(|i| i.ssd == Some(place));
            // An attached object without its base is of no use.
            let Some(found) = found.filter(|f| core.is_visible(f)) else { continue };
            let tick = core.full_tick(found.tick);
            let pinned = core.pins.is_pinned(fingerprint) && !mutant::on(Mutant::PinIgnored);
            let record = records.entry(e.record_block).or_insert_with(|| {
                let bytes = u64::from(e.record_blocks) * 4096;
                let record = u64::from(e.record_block) * 4096;
                (
                    Survivor { record, bytes, pinned: false, members: Vec::new() },
                    0,
                    0,
                    e.member_count,
                )
            });
            record.0.members.push((fingerprint, place));
            record.0.pinned |= pinned;
            record.1 = record.1.max(tick);
            record.2 += 1;
        }
        // A group that lost a member is invisible, and not worth moving.
        let whole: Vec<_> =
            records.into_values().filter(|(.., live, count)| *live == *count as usize).collect();
        let facts: Vec<_> = whole
            .iter()
            .map(|(s, tick, ..)| ExtentFacts { bytes: s.bytes, tick: *tick, pinned: s.pinned })
            .collect();
        let segment_bytes = shared.volume.as_ref().map_or(0, |v| v.geometry.segment_bytes);
        if let Some(ssd) = core.ssd.as_ref() {
            let budget = (segment_bytes as f64 * ssd.policy.reinsert_ratio()) as u64;
            let chosen = ssd.policy.reinsert(&facts, ssd.segments.mean_tick(), budget);
            r.to_read = chosen.into_iter().rev().map(|i| whole[i].0.clone()).collect();
        }
        drop(core);
        let tombstones = tombstones::packed(tombstones);
        let bytes: u64 = r.to_read.iter().map(|s| s.bytes).sum();
        let tombstone_bytes = tombstones.len() as u64 * ALIGN;
        let gain = segment_bytes.saturating_sub(bytes + tombstone_bytes);
        if gain < segment_bytes / GAIN_MIN {
            // Writing everything again would free nothing. Older victims go first, after which
            // these tombstones may be obsolete; pins end.
            if tombstone_bytes > segment_bytes / 2 {
                self.blocked_namespaces
                    .extend(tombstones.iter().map(|(.., keys)| keys[0].namespace()));
            }
            self.reclaim = Some(r);
            return self.defer_victim();
        }
        tracing::debug!(
            records = r.to_read.len(),
            tombstones = tombstones.len(),
            "reclaim survivors"
        );
        r.moves = !r.to_read.is_empty() || !tombstones.is_empty();
        for (generation, sequence, keys) in tombstones {
            r.ready.push(self.tombstone_unit(generation, sequence, &keys, None));
        }
        r.stage = Stage::Moving;
        self.reclaim = Some(r);
    }

    pub(crate) fn reclaim_synced(&mut self, ok: bool) {
        let Some(r) = self.reclaim.as_mut() else { return };
        if !ok {
            return self.defer_victim();
        }
        let (segment, members) = (r.segment, std::mem::take(&mut r.members));
        if !r.moves {
            // It wrote nothing, so the next reclaim may follow, whatever this one freed.
            self.entries_at_reclaim = u64::MAX;
        }
        let mut core = self.shared.lock();
        // A pin does not hold an object that was cleared.
        let stays = |m: &Member| {
            core.pins.is_pinned(m.fingerprint)
                && core.generation(m.key.namespace()) == m.generation
                && core
                    .index
                    .find(m.fingerprint)
                    .any(|e| e.ssd == Some(m.place) && core.is_visible(&e))
        };
        if members.iter().any(stays) && !mutant::on(Mutant::PinIgnored) {
            // Pinned after the choice. The next try moves it.
            drop(core);
            return self.defer_victim();
        }
        // A segment becomes free, so tombstones of deferred victims may be written now.
        self.blocked_namespaces.clear();
        for m in members {
            // The event of the clear covers cleared objects: no event for each key.
            let key = (core.generation(m.key.namespace()) == m.generation).then_some(&m.key);
            core.drop_ssd(m.fingerprint, m.place, key);
        }
        // If headers were read instead of the footer, a damaged header hides the records after it.
        if let Some(ssd) = core.ssd.as_mut().filter(|s| s.segments.get(segment).live_objects > 0) {
            ssd.purges.push_back(Some(segment));
            core.visibility.hide_segment(segment);
            core.events.forgot();
        }
        drop(core);
        self.reclaim = None;
        self.draining.push((segment, self.shared.now()));
        self.free_drained();
    }

    /// Free the emptied victims that have no reader and no index entry left; true if any was freed.
    fn free_drained(&mut self) -> bool {
        if self.draining.is_empty() {
            return false;
        }
        let shared = self.shared.clone();
        let mut core = shared.lock();
        let before = self.draining.len();
        let purging = self.purge.as_ref().map(|p| p.segment);
        self.draining.retain(|(segment, _)| {
            let waiting = core.ssd.as_ref().is_some_and(|s| s.purges.contains(&Some(*segment)));
            if waiting || purging == Some(Some(*segment)) {
                return true;
            }
            // Must be the last condition: it closes the segment until it is opened anew.
            if !core.close_if_unread(*segment) && !mutant::on(Mutant::ReadersIgnored) {
                return true;
            }
            core.set_segment_state(*segment, SegmentState::Free);
            core.counters.segments_reclaimed += 1;
            false
        });
        let freed = self.draining.len() < before;
        if freed {
            self.shared.progress.raise();
        }
        freed
    }

    /// The tier stopped writing: records that were to be moved stay in the victim, and the victim
    /// stays.
    fn stop_moving(&mut self) {
        let Some(r) = self.reclaim.as_mut().filter(|r| r.needs_room()) else { return };
        r.defer = true;
        r.to_read.clear();
        for unit in r.ready.drain(..) {
            self.units.remove(&unit.id);
        }
    }

    /// Give up on this victim for now.
    fn defer_victim(&mut self) {
        self.defer_for(RETRY_AFTER, false);
    }

    /// Give up on this victim for longer: what was not read may be tombstones, so the segment
    /// cannot be reused.
    fn defer_unreadable(&mut self) {
        self.defer_for(RETRY_UNREADABLE_AFTER, true);
    }

    fn defer_for(&mut self, duration: Duration, unreadable: bool) {
        let Some(r) = self.reclaim.take() else { return };
        self.deferred_victims.insert(
            r.segment,
            DeferredVictim { until: self.shared.now().after(duration), unreadable },
        );
        self.shared.lock().set_segment_state(r.segment, SegmentState::Sealed);
    }
}

//! Reclaim: emptying a sealed segment so that it can be used again.
//!
//! 1. The policy picks a victim; its footer says what was in it, or its headers if it has none.
//! 2. Records that the index still finds there, and that are pinned or recent enough for the budget, are
//!    read, verified and appended again, and so are tombstones that may still shadow something.
//! 3. A sync covers them. Only then does the index forget the rest, and only when the last reader has left
//!    is the segment free. Without the sync a crash could take both copies: the new one because it was not
//!    durable, the old one because the segment was written over.

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
use crate::flusher::{Flusher, TAG_FOOTER, TAG_READBACK, TAG_RECORD, TAG_SCAN, TAG_SCRUB, TAG_TRIAL};
use crate::index::SsdPlace;
use crate::visibility::Sight;

/// Of a segment, one part in so many has to come free for it to be emptied: less, and the device would write that
/// much more than it is given.
const GAIN_MIN: u64 = 8;
/// Bytes of a segment's end that are read at first.
const TAIL_BYTES: u64 = 64 * 1024;
/// How long a victim that could not be emptied is left alone: pins end, and room comes, without a signal.
const KEPT: Duration = Duration::from_secs(1);
/// The same of one that could not be read: each try may take the device long.
const UNREADABLE: Duration = Duration::from_secs(60);

/// A record of the victim that is to survive.
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

/// A victim that could not be emptied: when it may be tried again, and whether the device is to blame.
pub(crate) struct Kept {
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
    /// Units that wait for room in the log, and how many are in it.
    ready: Vec<Unit>,
    in_log: usize,
    /// Something that must survive could not be moved: the victim is kept.
    kept: bool,
    /// Something is to be written again.
    moves: bool,
}

impl Reclaim {
    /// Whether something of the victim is, or may be once its footer was read, still to be appended.
    pub fn needs_room(&self) -> bool {
        match self.stage {
            Stage::Footer | Stage::Scanning | Stage::Moving => true,
            Stage::Syncing => false,
        }
    }
}

impl Flusher {
    /// Free segments below which a victim is looked for: one to be prepared and, in a store with many, one
    /// in reserve.
    fn low_water(&self) -> usize {
        let count = self.shared.volume.as_ref().map_or(0, |v| v.geometry.segment_count);
        if count >= 16 { 2 } else { 1 }
    }

    /// Begin or go on with a reclaim; true if anything was done.
    pub(crate) fn step_reclaim(&mut self) -> bool {
        if self.reclaim.is_some() && self.is_read_only() {
            self.stop_moving();
        }
        let left = self.leave();
        let more = match self.reclaim.as_ref().map(|r| &r.stage) {
            None => self.begin_reclaim(),
            Some(Stage::Footer | Stage::Scanning | Stage::Syncing) => false,
            Some(Stage::Moving) => self.move_records(),
        };
        left || more
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
            self.entries_before = u64::MAX;
        }
        // A victim full of what is pinned gives no entry back, and the next one does not either: without a put that
        // asks for room, the device would be written full of the same for as long as the pins are held.
        let for_index = index_full && (entries < self.entries_before || refused != self.refused_seen);
        let now = self.shared.now();
        self.kept.retain(|_, kept| kept.until > now);
        let Some(ssd) = core.ssd.as_mut().filter(|s| s.health.writes()) else { return false };
        // Readers are gone soon; one that stays does not hold up the rest.
        let soon = self.leaving.iter().filter(|(_, since)| now.since(*since) < KEPT).count();
        let for_space = ssd.segments.count(SegmentState::Free) + soon < low;
        if !for_space && !for_index {
            return false;
        }
        let mut sealed = ssd.segments.sealed();
        sealed.retain(|s| !self.kept.contains_key(&s.segment));
        let Some(victim) = ssd.policy.victim(&sealed).map(|i| sealed[i].segment) else {
            let none_free = ssd.segments.count(SegmentState::Free) == 0;
            drop(core);
            return (none_free && (self.forget_stuck() || self.stop_without_room()))
                || (index_full && self.seal_for_room(refused));
        };
        ssd.segments.set_state(victim, SegmentState::Reclaiming);
        if !for_space {
            (self.refused_seen, self.entries_before) = (refused, entries);
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
            kept: false,
            moves: false,
        });
        tracing::debug!(segment = victim.0, for_space, entries, "reclaim");
        self.read_footer(TAIL_BYTES.min(volume.geometry.segment_bytes));
        true
    }

    /// Every victim is kept, there is no segment left, and what keeps some of them are tombstones that no
    /// room is left for: nothing could ever be written again. Their namespaces are cleared, which the
    /// manifest has room for: a cache may forget, what was removed may not come back. Only removals in great
    /// numbers, or a crash at the one moment at which reclaim holds the last segment, lead here.
    fn forget_stuck(&mut self) -> bool {
        let stuck = std::mem::take(&mut self.stuck);
        for &namespace in &stuck {
            tracing::error!(%namespace, "no room is left for tombstones, their namespace is cleared");
            let mut core = self.shared.lock();
            let generation = core.clear(namespace);
            core.counters.namespaces_forgotten += 1;
            drop(core);
            self.clears.push((namespace, generation, 0));
            self.log.raise_generation(namespace, generation);
        }
        // The victims are tried again when their time is over; by then the manifest has it.
        !stuck.is_empty()
    }

    /// There is no segment left, and the device can read none of those that might be emptied. Who waits for room would
    /// wait as long as the device is as it is, and so would a clear behind it: nothing more is written. Each trial
    /// looks at the victims again.
    fn stop_without_room(&mut self) -> bool {
        let moving = self.log.in_flight() > 0 || !self.leaving.is_empty() || self.is_purging();
        if self.kept.is_empty() || moving || !self.kept.values().all(|kept| kept.unreadable) {
            return false;
        }
        let now = self.shared.now();
        let stopped = self.shared.lock().ssd.as_mut().is_some_and(|s| s.health.stop_writing(now));
        if stopped {
            self.state_changed("no segment is left, and none can be read to be emptied");
        }
        stopped
    }

    /// The index is full of what lies in the open segment: that becomes a victim once it is sealed. Only after
    /// another put was refused, else what is pinned would be written again and again.
    fn seal_for_room(&mut self, puts_refused: u64) -> bool {
        if self.refused_seen == puts_refused {
            return false;
        }
        (self.refused_seen, self.entries_before) = (puts_refused, u64::MAX);
        self.log.seal_open();
        true
    }

    fn read_footer(&mut self, bytes: u64) {
        let (Some(volume), Some(r)) = (self.shared.volume.clone(), self.reclaim.as_ref()) else { return };
        let (file, offset) = volume.place(r.segment, volume.geometry.segment_bytes - bytes);
        let submitted = match pagelith_io::buffer::AlignedBuf::new(bytes as usize) {
            Ok(buf) => {
                self.log.submit(TAG_FOOTER, Op::Read { file, offset, parts: vec![buf.into_part()] }).is_ok()
            }
            Err(_) => false,
        };
        if !submitted {
            self.keep_victim();
        }
    }

    /// An operation that reclaim or a checkpoint submitted came back.
    pub(crate) fn other(&mut self, tag: u64, completion: Completion) {
        match tag >> 32 << 32 {
            TAG_TRIAL => self.trial_ended(completion),
            TAG_READBACK => self.was_read_back(tag, completion),
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

    /// Decide what survives.
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
                // A clear hides what the tombstone hides, but only once it is durable itself.
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
            // What is attached to nothing is of no use to anybody.
            let Some(found) = found.filter(|f| core.is_visible(f)) else { continue };
            let tick = core.full_tick(found.tick);
            let pinned = core.pins.is_pinned(fingerprint) && !mutant::on(Mutant::PinIgnored);
            let record = records.entry(e.record_block).or_insert_with(|| {
                let bytes = u64::from(e.record_blocks) * 4096;
                let record = u64::from(e.record_block) * 4096;
                (Survivor { record, bytes, pinned: false, members: Vec::new() }, 0, 0, e.member_count)
            });
            record.0.members.push((fingerprint, place));
            record.0.pinned |= pinned;
            record.1 = record.1.max(tick);
            record.2 += 1;
        }
        // A group of which a member is gone is invisible, and not worth moving.
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
        let tombstones = tombstones::joined(tombstones);
        let bytes: u64 = r.to_read.iter().map(|s| s.bytes).sum();
        let tombstone_bytes = tombstones.len() as u64 * ALIGN;
        let gain = segment_bytes.saturating_sub(bytes + tombstone_bytes);
        if gain < segment_bytes / GAIN_MIN {
            // To write it all again would free nothing. What is older goes first, and with it the tombstones' use;
            // pins end.
            if tombstone_bytes > segment_bytes / 2 {
                self.stuck.extend(tombstones.iter().map(|(.., keys)| keys[0].namespace()));
            }
            self.reclaim = Some(r);
            return self.keep_victim();
        }
        tracing::debug!(records = r.to_read.len(), tombstones = tombstones.len(), "what survives");
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
            return self.keep_victim();
        }
        let (segment, members) = (r.segment, std::mem::take(&mut r.members));
        if !r.moves {
            // It cost nothing, so the next may follow, whatever came of it.
            self.entries_before = u64::MAX;
        }
        let mut core = self.shared.lock();
        // What was cleared is held by no pin.
        let stays = |m: &Member| {
            core.pins.is_pinned(m.fingerprint)
                && core.generation(m.key.namespace()) == m.generation
                && core.index.find(m.fingerprint).any(|e| e.ssd == Some(m.place) && core.is_visible(&e))
        };
        if members.iter().any(stays) && !mutant::on(Mutant::PinIgnored) {
            // Pinned after the choice was made. The next try moves it.
            drop(core);
            return self.keep_victim();
        }
        // There will be room: what an earlier victim was kept for may be written now.
        self.stuck.clear();
        for m in members {
            // What was cleared was told of as that.
            let key = (core.generation(m.key.namespace()) == m.generation).then_some(&m.key);
            core.drop_ssd(m.fingerprint, m.place, key);
        }
        // Where headers were read instead of the footer, one that is damaged said nothing of what lies behind it.
        if let Some(ssd) = core.ssd.as_mut().filter(|s| s.segments.get(segment).live_objects > 0) {
            ssd.purges.push_back(Some(segment));
            core.visibility.hide_segment(segment);
            core.events.forgot();
        }
        drop(core);
        self.reclaim = None;
        self.leaving.push((segment, self.shared.now()));
        self.leave();
    }

    /// Emptied victims are free once their last reader has left and nothing leads to them; true if one is.
    fn leave(&mut self) -> bool {
        if self.leaving.is_empty() {
            return false;
        }
        let shared = self.shared.clone();
        let mut core = shared.lock();
        let before = self.leaving.len();
        let purging = self.purge.as_ref().map(|p| p.what);
        self.leaving.retain(|(segment, _)| {
            let waiting = core.ssd.as_ref().is_some_and(|s| s.purges.contains(&Some(*segment)));
            if waiting || purging == Some(Some(*segment)) {
                return true;
            }
            // Last: what is closed stays so until it is opened anew.
            if !core.is_left(*segment) && !mutant::on(Mutant::ReadersIgnored) {
                return true;
            }
            core.set_segment_state(*segment, SegmentState::Free);
            core.counters.segments_reclaimed += 1;
            false
        });
        let left = self.leaving.len() < before;
        if left {
            self.shared.progress.raise();
        }
        left
    }

    /// Nothing more is written: what was to be moved stays where it is, and so does the victim.
    fn stop_moving(&mut self) {
        let Some(r) = self.reclaim.as_mut().filter(|r| r.needs_room()) else { return };
        r.kept = true;
        r.to_read.clear();
        for unit in r.ready.drain(..) {
            self.units.remove(&unit.id);
        }
    }

    /// Give up on this victim for now.
    fn keep_victim(&mut self) {
        self.keep_for(KEPT, false);
    }

    /// Give up on it for longer: there may be tombstones in what was not read, so it cannot be used again.
    fn keep_unreadable(&mut self) {
        self.keep_for(UNREADABLE, true);
    }

    fn keep_for(&mut self, duration: Duration, unreadable: bool) {
        let Some(r) = self.reclaim.take() else { return };
        self.kept.insert(r.segment, Kept { until: self.shared.now().after(duration), unreadable });
        self.shared.lock().set_segment_state(r.segment, SegmentState::Sealed);
    }
}

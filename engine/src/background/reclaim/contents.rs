//! Contents of a victim, and which of them must be written again.

use std::collections::{BTreeMap, HashSet};

use pagelith_layouts::align::ALIGN;
use pagelith_layouts::footer::FooterEntry;
use pagelith_layouts::ids::{Generation, SegmentId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::RecordKind;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::policy::admission::VICTIM_SAMPLES;
use pagelith_tiers::policy::{LiveRecordFacts, TICKS_OF_LEAVING};

use super::tombstones::Tombstone;
use crate::background::log_context::LogContext;
use crate::memory::index::{Entry, SsdLocation};
use crate::memory::visibility::VisibilityFilter;
use crate::state::core::Core;

/// A member of one of the victim's records.
pub(super) struct Member {
    pub fingerprint: u128,
    pub location: SsdLocation,
    pub key: ObjectKey,
    pub generation: Generation,
}

/// A record of the victim that is to be reinserted.
#[derive(Clone, Debug)]
pub(super) struct Survivor {
    /// Byte offset in the segment, and length.
    pub offset: u64,
    pub bytes: u64,
    pub pinned: bool,
    pub members: Vec<(u128, SsdLocation)>,
}

/// A record with members that the index finds in it.
struct LiveRecord {
    survivor: Survivor,
    /// Tick of its most recent member.
    tick: u64,
    depth: u32,
    member_count: u32,
    /// The record is not moved if its tick is earlier: its namespace is idle for too long.
    tick_min: u64,
}

/// Contents of a victim.
pub(super) struct Contents {
    pub members: Vec<Member>,
    /// Records that survive; the last is reinserted first.
    pub survivors: Vec<Survivor>,
    /// Tombstones that may still shadow something.
    pub tombstones: Vec<Tombstone>,
}

impl Contents {
    /// Compare the entries of a victim with the index, and let the policy choose.
    pub fn of(cx: &LogContext, segment: SegmentId, entries: &[FooterEntry]) -> Contents {
        let (core, now) = (cx.shared.lock(), cx.shared.now());
        let (mut members, mut tombstones) = (Vec::new(), Vec::new());
        let mut records: BTreeMap<u32, LiveRecord> = BTreeMap::new();
        for e in entries {
            let (namespace, generation) = (e.key.namespace(), Generation(e.generation));
            let fingerprint = cx.shared.fingerprint(&e.key, generation);
            if e.kind == RecordKind::Tombstones as u8 {
                // A clear hides the same objects as the tombstone, but only once the clear is
                // durable.
                let current = cx.generations.durable(namespace) <= generation;
                if current && is_needed(&core, segment, Sequence(e.sequence)) {
                    tombstones.push(Tombstone {
                        generation,
                        sequence: Sequence(e.sequence),
                        key: e.key,
                        absent: core.index.find(fingerprint).next().is_none(),
                    });
                }
                continue;
            }
            let location = SsdLocation::of_entry(segment, e);
            members.push(Member { fingerprint, location, key: e.key, generation });
            if core.generation(namespace) != generation {
                continue;
            }
            let found = core.index.find(fingerprint).find(|i| i.ssd == Some(location));
            // An attached object without its base is of no use.
            let Some(found) = found.filter(|f| core.is_visible(f)) else { continue };
            let record = records.entry(e.record_sector).or_insert_with(|| LiveRecord {
                survivor: Survivor {
                    offset: u64::from(e.record_sector) * ALIGN,
                    bytes: u64::from(e.record_sectors) * ALIGN,
                    pinned: false,
                    members: Vec::new(),
                },
                tick: 0,
                depth: e.depth,
                member_count: e.member_count,
                tick_min: core.idle_before(namespace, now),
            });
            let is_pinned = core.pins.is_pinned(fingerprint) && !mutant::on(Mutant::PinIgnored);
            record.survivor.members.push((fingerprint, location));
            record.survivor.pinned |= is_pinned;
            record.tick = record.tick.max(core.full_tick(found.tick));
        }
        let survivors = survivors(&core, records, cx.volume.geometry.segment_bytes);
        note_victim(cx, &core, &members, &survivors);
        Contents { members, survivors, tombstones }
    }
}

/// Notify admission of some of the members that the victim gives up, spread over it.
fn note_victim(cx: &LogContext, core: &Core, members: &[Member], survivors: &[Survivor]) {
    let kept: HashSet<SsdLocation> =
        survivors.iter().flat_map(|s| &s.members).map(|(_, location)| *location).collect();
    let given_up: Vec<&Member> = members.iter().filter(|m| !kept.contains(&m.location)).collect();
    let samples = VICTIM_SAMPLES.min(given_up.len());
    let sampled = (0..samples).map(|at| {
        let member = given_up[at * given_up.len() / samples];
        // What leaves first is worth nothing.
        let stays = |e: &Entry| {
            e.ssd == Some(member.location)
                && core.full_tick(e.tick) + TICKS_OF_LEAVING > core.now_tick()
        };
        core.index.find(member.fingerprint).any(|e| stays(&e)).then_some(&member.key)
    });
    cx.shared.admission.reclaim(sampled);
}

/// Whether a tombstone of a segment may still shadow something.
fn is_needed(core: &Core, segment: SegmentId, sequence: Sequence) -> bool {
    core.ssd.as_ref().is_some_and(|s| s.segments.tombstone_needed(segment, sequence))
        && !mutant::on(Mutant::TombstoneDropped)
}

/// The records that the policy keeps.
fn survivors(core: &Core, records: BTreeMap<u32, LiveRecord>, segment_bytes: u64) -> Vec<Survivor> {
    // A group that lost a member is invisible, and not worth reinserting.
    let is_whole = |r: &LiveRecord| r.survivor.members.len() == r.member_count as usize;
    let is_used = |r: &LiveRecord| r.survivor.pinned || r.tick >= r.tick_min;
    let whole: Vec<_> = records.into_values().filter(|r| is_whole(r) && is_used(r)).collect();
    let facts = |r: &LiveRecord| LiveRecordFacts {
        bytes: r.survivor.bytes,
        tick: r.tick,
        depth: r.depth,
        pinned: r.survivor.pinned,
    };
    let facts: Vec<_> = whole.iter().map(facts).collect();
    let Some(ssd) = core.ssd.as_ref() else { return Vec::new() };
    let budget = (segment_bytes as f64 * ssd.policy.reinsert_ratio()) as u64;
    let chosen = ssd.policy.reinsert(&facts, ssd.segments.mean_tick(), budget);
    chosen.into_iter().rev().map(|i| whole[i].survivor.clone()).collect()
}

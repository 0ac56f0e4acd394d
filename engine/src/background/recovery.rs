//! Builds the index from the records that recovery finds.
//!
//! Of each key the youngest put wins, unless a tombstone is younger. A group is recovered with all
//! its members or not at all, and an attached object only with its base group. Nothing from before
//! its namespace's last clear is recovered.

use std::collections::{HashMap, HashSet};

use pagelith_layouts::checkpoint::{CheckpointEntry, CheckpointFacts};
use pagelith_layouts::checksum::{FINGERPRINT_KEY_BYTES, fingerprint};
use pagelith_layouts::footer::FooterEntry;
use pagelith_layouts::ids::{Generation, NamespaceId, SegmentId, Sequence};
use pagelith_layouts::record::{GroupKind, RecordKind};
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::ssd::recover::RecoverySink;

use crate::api::error::{Error, ErrorKind, Result};
use crate::memory::departed::Departure;
use crate::memory::index::{Entry, SsdLocation, TICK_MODULUS, name_of, newest_tick};
use crate::state::core::Core;

/// An object that recovery found.
#[derive(Clone, Copy, Debug)]
struct Object {
    /// The true fingerprint, even if the index is configured to use a constant one.
    fingerprint: u128,
    sequence: u64,
    /// Position in the log, to order objects of equal sequence.
    position: u64,
    location: SsdLocation,
    length: u32,
    tick: Option<u32>,
    /// Members of its record; 0 if it comes from a checkpoint, which contains whole groups only.
    member_count: u32,
    namespace: Option<(NamespaceId, Generation)>,
    attached: bool,
    /// Name of its base group, if it is attached and its record names one.
    base: Option<u64>,
}

// docs/memory.md states it.
const _: () = assert!(size_of::<Object>() == 112);

impl Object {
    /// The segment and sector of its record.
    fn record(&self) -> (u32, u16) {
        (self.location.segment, self.location.record_sector)
    }
}

/// Collects the objects, tombstones and generations that recovery finds.
pub(crate) struct RecoveryCollector {
    secret: [u8; FINGERPRINT_KEY_BYTES],
    objects: Vec<Object>,
    tombstones: HashMap<u128, u64>,
    /// Records (segment, sector) that the checkpoint lists and withdraws.
    withdrawn: HashSet<(u32, u16)>,
    /// Base group of each attached object of the checkpoint, by fingerprint.
    links: HashMap<u128, u64>,
    generations: HashMap<NamespaceId, Generation>,
}

impl RecoveryCollector {
    /// A collector that starts with the generations of the manifest.
    pub fn new(
        secret: [u8; FINGERPRINT_KEY_BYTES],
        generations: impl Iterator<Item = (NamespaceId, Generation)>,
    ) -> RecoveryCollector {
        let generations = generations.collect();
        let (tombstones, withdrawn, links) = (HashMap::new(), HashSet::new(), HashMap::new());
        RecoveryCollector { secret, objects: Vec::new(), tombstones, withdrawn, links, generations }
    }

    /// Drop objects that must not be recovered; returns how many groups were dropped because they
    /// are incomplete or lack their base.
    fn drop_unrecoverable(&mut self) -> u64 {
        let generations = &self.generations;
        let current = |(ns, generation): (NamespaceId, Generation)| {
            generations.get(&ns).copied().unwrap_or(Generation::FIRST) == generation
        };
        self.objects.retain(|o| o.namespace.is_none_or(current));
        let withdrawn = &self.withdrawn;
        // Only checkpoint entries: in a replayed segment the same location holds another record.
        self.objects.retain(|o| o.namespace.is_some() || !withdrawn.contains(&o.record()));
        // Records with a hidden or replaced member. The checkpoint does not list the members of a
        // record, so its objects in these records belong to incomplete groups.
        let mut broken = HashSet::new();
        let tombstones = &self.tombstones;
        self.objects.retain(|o| {
            let hidden = tombstones.get(&o.fingerprint).is_some_and(|t| *t >= o.sequence);
            if hidden {
                broken.insert(o.record());
            }
            !hidden
        });
        self.objects.sort_unstable_by_key(|o| (o.fingerprint, o.sequence, o.position));
        let shared = self.shared_records();
        let mut older = Vec::new();
        // Keep the youngest object of each key.
        self.objects.dedup_by(|later, kept| {
            let same = later.fingerprint == kept.fingerprint;
            if same {
                broken.insert(kept.record());
                if later.attached && !kept.attached && !shared.contains(&kept.record()) {
                    older.push(*kept);
                }
                *kept = *later;
            }
            same
        });
        let mut groups: HashMap<(u32, u16), u32> = HashMap::new();
        for o in self.objects.iter().filter(|o| o.member_count > 1) {
            *groups.entry(o.record()).or_default() += 1;
        }
        let mut dropped = HashSet::new();
        self.objects.retain(|o| {
            let whole = match o.member_count {
                0 => !broken.contains(&o.record()) || mutant::on(Mutant::PartialGroup),
                1 => true,
                members => {
                    groups.get(&o.record()) == Some(&members) || mutant::on(Mutant::PartialGroup)
                }
            };
            if !whole {
                dropped.insert(o.record());
            }
            whole
        });
        self.drop_without_base(&mut dropped);
        // An object that was stored alone, was then put as a part of an attached group, and lost
        // that group, is recovered as stored alone: a flush may have covered it.
        if !older.is_empty() {
            let here: HashSet<u128> = self.objects.iter().map(|o| o.fingerprint).collect();
            self.objects.extend(older.into_iter().filter(|o| !here.contains(&o.fingerprint)));
        }
        dropped.len() as u64
    }

    /// Records of which several objects were found; empty, without a search, if no object is
    /// attached.
    fn shared_records(&self) -> HashSet<(u32, u16)> {
        if !self.objects.iter().any(|o| o.attached) {
            return HashSet::new();
        }
        let mut seen = HashSet::new();
        self.objects.iter().map(Object::record).filter(|record| !seen.insert(*record)).collect()
    }

    /// Drop objects whose base group was not found, or was removed after they were put.
    fn drop_without_base(&mut self, dropped: &mut HashSet<(u32, u16)>) {
        let mut removed: HashMap<u64, u64> = HashMap::new();
        for (fingerprint, sequence) in &self.tombstones {
            let youngest = removed.entry(name_of(*fingerprint)).or_default();
            *youngest = (*youngest).max(*sequence);
        }
        let bases: HashSet<u64> =
            self.objects.iter().filter(|o| !o.attached).map(|o| name_of(o.fingerprint)).collect();
        let links = &self.links;
        self.objects.retain_mut(|o| {
            // The checkpoint's links apply to the checkpoint's objects only.
            let link = || links.get(&o.fingerprint).filter(|_| o.namespace.is_none()).copied();
            o.base = o.base.or_else(link).filter(|_| o.attached);
            let here = !o.attached || o.base.is_some_and(|base| bases.contains(&base));
            let removed =
                o.base.and_then(|base| removed.get(&base)).is_some_and(|t| *t >= o.sequence);
            if !here && !removed {
                dropped.insert(o.record());
            }
            here && !removed
        });
    }

    /// Fill the core: generations, index, live counts. `constant` replaces every fingerprint.
    /// `crashed` means that more objects may be found than the index ever held, since a crash
    /// restores objects that were dropped to make room in it.
    ///
    /// # Errors
    /// The index has no room for the objects found, which only a smaller `index.max_objects` can
    /// cause.
    pub fn finish(mut self, core: &mut Core, constant: Option<u128>, crashed: bool) -> Result<()> {
        core.counters.groups_dropped += self.drop_unrecoverable();
        let entries = self.objects.len() as u64
            + self.objects.iter().filter(|o| o.base.is_some()).count() as u64;
        let room = core.index.capacity();
        if entries > room && !crashed {
            let message = format!(
                "index.max_objects: the store holds {entries} entries and the index has room for {room}: entries \
                 without room would be lost for good; set it to at least {entries}"
            );
            return Err(Error::new(ErrorKind::Incompatible, message));
        }
        let newest = self.newest_tick();
        let mut without_room = HashSet::new();
        for o in &self.objects {
            let entry = Entry {
                fingerprint: constant.unwrap_or(o.fingerprint),
                length: o.length,
                ssd: None,
                frame: None,
                tick: o.tick.unwrap_or(newest),
                attached: o.attached,
            };
            // An index with a constant fingerprint has one name for all.
            let base = o.base.map(|base| constant.map_or(base, name_of));
            let linked =
                base.is_none_or(|base| core.index.insert_link(entry.fingerprint, base).is_ok());
            if !linked || core.index.insert(&entry).is_err() {
                if linked && o.attached {
                    core.index.remove_link(entry.fingerprint);
                }
                without_room.insert(o.record());
                continue;
            }
            core.set_ssd_location(
                entry.fingerprint,
                |e| e.ssd.is_none() && e.length == o.length,
                o.location,
            );
        }
        // A group with room for only some of its members is dropped as a whole.
        for o in &self.objects {
            if without_room.contains(&o.record()) {
                let fingerprint = constant.unwrap_or(o.fingerprint);
                core.drop_ssd(fingerprint, o.location, None, Departure::EvictedSsd);
            }
        }
        let (found, kept) = (self.objects.len() as u64, core.index.objects());
        if kept < found {
            tracing::warn!(
                forgotten = found - kept,
                found,
                max_objects = room,
                "index is too small for the recovered objects, the rest is dropped"
            );
        }
        for (namespace, generation) in self.generations {
            core.visibility.set_generation(namespace, generation);
            core.begin_sequences_at(Sequence(generation.0));
        }
        Ok(())
    }

    /// The first tick after those of the checkpoint, and a wrap more: ticks from before the last
    /// wrap are older than those after it.
    pub fn first_tick(&self) -> u64 {
        u64::from(TICK_MODULUS) + u64::from(self.newest_tick()) + 1
    }

    /// The newest tick in the checkpoint.
    fn newest_tick(&self) -> u32 {
        newest_tick(self.objects.iter().filter_map(|o| o.tick))
    }
}

impl RecoverySink for RecoveryCollector {
    fn checkpoint_entry(&mut self, facts: &CheckpointFacts, entry: &CheckpointEntry) {
        if entry.is_withdrawal() {
            self.withdrawn.insert((entry.segment, entry.record_sector));
            return;
        }
        if let Some(base) = entry.link() {
            self.links.insert(u128::from_le_bytes(entry.fingerprint), base);
            return;
        }
        self.objects.push(Object {
            fingerprint: u128::from_le_bytes(entry.fingerprint),
            // A snapshot reflects all tombstones that are older than it; younger ones apply to its
            // entries.
            sequence: facts.sequence.0.saturating_sub(1),
            position: 0,
            location: SsdLocation {
                segment: entry.segment,
                record_sector: entry.record_sector,
                payload_sector: entry.payload_sector,
            },
            length: entry.length,
            tick: Some(entry.ticks()),
            member_count: 0,
            namespace: None,
            attached: entry.is_attached(),
            base: None,
        });
    }

    fn forget_checkpoint(&mut self) {
        self.objects.clear();
        self.withdrawn.clear();
        self.links.clear();
    }

    fn forget_all(&mut self) {
        // Tombstones, generations and withdrawals stay: they only hide objects.
        self.objects.clear();
    }

    fn log_entry(&mut self, segment: SegmentId, entry: &FooterEntry) {
        let (namespace, generation) = (entry.key.namespace(), Generation(entry.generation));
        // A record with a generation newer than the manifest's: a clear was in progress, and an
        // object put after it is durable. The clear counts as done.
        let known = self.generations.get(&namespace).copied().unwrap_or(Generation::FIRST);
        if generation > known {
            self.generations.insert(namespace, generation);
        }
        let fingerprint = fingerprint(&self.secret, &entry.key, generation);
        if entry.kind == RecordKind::Tombstones as u8 {
            let youngest = self.tombstones.entry(fingerprint).or_default();
            *youngest = (*youngest).max(entry.sequence);
            return;
        }
        self.objects.push(Object {
            fingerprint,
            sequence: entry.sequence,
            position: self.objects.len() as u64 + 1,
            location: SsdLocation::of_entry(segment, entry),
            length: entry.length as u32,
            tick: None,
            member_count: entry.member_count,
            namespace: Some((namespace, generation)),
            attached: entry.group_kind == GroupKind::Attached as u8,
            base: Some(entry.base_group).filter(|base| *base != 0),
        });
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::{PrefixHash, SegmentOrder, StoreId};
    use pagelith_layouts::key::{ObjectKey, Role};
    use pagelith_layouts::shard::Shard;

    use super::*;

    const SECRET: [u8; FINGERPRINT_KEY_BYTES] = [7; FINGERPRINT_KEY_BYTES];

    fn key(component: &str) -> ObjectKey {
        let ns = pagelith_layouts::namespace::Namespace::default().id();
        ObjectKey::new(ns, PrefixHash([1; 32]), Role::Target, "kv", component, Shard::Whole)
            .expect("a key")
    }

    /// Adds an object of the record at (`segment`, 1), from a checkpoint whose snapshot began at
    /// sequence 100.
    fn snapshot(
        collector: &mut RecoveryCollector,
        component: &str,
        segment: u32,
        payload_sector: u16,
    ) {
        let facts = CheckpointFacts {
            store: StoreId([7; 16]),
            serial: 1,
            sequence: Sequence(100),
            next_sequence: Sequence(100),
            replay_from: SegmentOrder(9),
            segment_count: 4,
            entry_count: 2,
            chunk_count: 2,
            clean: false,
        };
        let entry = CheckpointEntry {
            fingerprint: fingerprint(&SECRET, &key(component), Generation::FIRST).to_le_bytes(),
            segment,
            record_sector: 1,
            payload_sector,
            length: 5000,
            tick: 3,
        };
        collector.checkpoint_entry(&facts, &entry);
    }

    fn entry(component: &str, kind: RecordKind, sequence: u64, members: u32) -> FooterEntry {
        FooterEntry {
            key: key(component),
            kind: kind as u8,
            generation: 1,
            sequence,
            record_sector: 2,
            record_sectors: 3,
            payload_sector: 1,
            length: 5000,
            member_count: members,
            group: 1,
            base_group: 0,
            group_kind: 1,
            reserved: 0,
            depth: 0,
        }
    }

    fn complete_page() -> RecoveryCollector {
        let mut collector = RecoveryCollector::new(SECRET, std::iter::empty());
        snapshot(&mut collector, "k", 0, 1);
        snapshot(&mut collector, "v", 0, 3);
        collector
    }

    #[test]
    fn tombstone_of_member_drops_group_of_checkpoint() {
        // The page was evicted when `k` was removed, so the store did not know that `v` shares its
        // record. Its segment was not reused before the crash.
        let mut collector = complete_page();
        collector.log_entry(SegmentId(3), &entry("k", RecordKind::Tombstones, 100, 1));
        assert_eq!(collector.drop_unrecoverable(), 1);
        assert!(collector.objects.is_empty(), "half a page: {:?}", collector.objects);
    }

    #[test]
    fn member_put_again_drops_old_group_of_checkpoint() {
        let mut collector = complete_page();
        collector.log_entry(SegmentId(3), &entry("k", RecordKind::Data, 101, 1));
        assert_eq!(collector.drop_unrecoverable(), 1);
        let locations: Vec<_> = collector.objects.iter().map(Object::record).collect();
        assert_eq!(locations, [(3, 2)]);
    }

    /// A log entry of object `t`, attached to the page with key `base`.
    fn attached(sequence: u64, base: &str) -> FooterEntry {
        let name = name_of(fingerprint(&SECRET, &key(base), Generation::FIRST));
        let kind = GroupKind::Attached as u8;
        FooterEntry {
            group_kind: kind,
            base_group: name,
            record_sector: 9,
            ..entry("t", RecordKind::Data, sequence, 1)
        }
    }

    fn recovered_from(entries: &[FooterEntry]) -> (u64, Vec<(u32, u16)>) {
        let mut collector = RecoveryCollector::new(SECRET, std::iter::empty());
        entries.iter().for_each(|e| collector.log_entry(SegmentId(3), e));
        let dropped = collector.drop_unrecoverable();
        (dropped, collector.objects.iter().map(Object::record).collect())
    }

    #[test]
    fn attached_object_is_recovered_only_with_its_base() {
        let base = entry("k", RecordKind::Data, 5, 1);
        let gone = entry("k", RecordKind::Tombstones, 8, 1);
        let again = FooterEntry { record_sector: 4, ..entry("k", RecordKind::Data, 9, 1) };
        let with = |rest: &[FooterEntry]| recovered_from(&[&[attached(7, "k")], rest].concat());
        assert_eq!(with(&[]), (1, vec![]));
        assert_eq!(
            with(&[entry("x", RecordKind::Data, 5, 1)]).0,
            1,
            "another key's page is no base"
        );
        assert_eq!(with(std::slice::from_ref(&base)).1.len(), 2);
        assert_eq!(with(&[base, gone, again]), (0, vec![(3, 4)]), "removed with its first base");
    }

    #[test]
    fn object_stored_alone_before_attached_put_is_recovered_without_base() {
        let alone = entry("t", RecordKind::Data, 3, 1);
        assert_eq!(recovered_from(&[alone, attached(7, "k")]), (1, vec![(3, 2)]));
        // One of two in its record: the other member is gone, so this one is dropped too.
        let two = ["t", "u"].map(|c| entry(c, RecordKind::Data, 3, 2));
        assert_eq!(recovered_from(&[two[0], two[1], attached(7, "k")]).1, vec![]);
    }

    #[test]
    fn untouched_group_of_checkpoint_stays() {
        let mut collector = complete_page();
        collector.log_entry(SegmentId(3), &entry("x", RecordKind::Tombstones, 100, 1));
        collector.log_entry(SegmentId(3), &entry("k", RecordKind::Tombstones, 98, 1));
        assert_eq!(collector.drop_unrecoverable(), 0);
        assert_eq!(collector.objects.len(), 2);
    }
}

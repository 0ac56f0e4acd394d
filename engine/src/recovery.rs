//! What recovery found, made into an index.
//!
//! Of each key the youngest put wins, unless a tombstone is younger; of a group all members or none; and
//! nothing from before its namespace's last clear.

use std::collections::{HashMap, HashSet};

use pagelith_layouts::checkpoint::{CheckpointEntry, CheckpointFacts};
use pagelith_layouts::checksum::{FINGERPRINT_KEY_BYTES, fingerprint};
use pagelith_layouts::footer::FooterEntry;
use pagelith_layouts::ids::{Generation, NamespaceId, SegmentId};
use pagelith_layouts::record::RecordKind;
use pagelith_tiers::ssd::recover::Sink;

use crate::core::Core;
use crate::index::{Entry, SsdPlace};

/// An object that was found.
#[derive(Clone, Copy, Debug)]
struct Object {
    /// The true fingerprint, whatever the index is configured to use.
    fingerprint: u128,
    sequence: u64,
    /// Found later in the log.
    position: u64,
    place: SsdPlace,
    length: u32,
    tick: Option<u32>,
    /// Members of its record; 0 if a checkpoint says so, which only holds whole groups.
    member_count: u32,
    namespace: Option<(NamespaceId, Generation)>,
}

impl Object {
    /// The record it lies in: segment and block.
    fn record(&self) -> (u32, u16) {
        (self.place.segment, self.place.record_block)
    }
}

/// Collects what recovery finds.
pub(crate) struct Collector {
    secret: [u8; FINGERPRINT_KEY_BYTES],
    objects: Vec<Object>,
    tombstones: HashMap<u128, u64>,
    /// Records (segment, block) that the checkpoint says something of and takes back.
    withdrawn: HashSet<(u32, u16)>,
    generations: HashMap<NamespaceId, Generation>,
}

impl Collector {
    /// With the generations that the manifest knows.
    pub fn new(
        secret: [u8; FINGERPRINT_KEY_BYTES],
        generations: impl Iterator<Item = (NamespaceId, Generation)>,
    ) -> Collector {
        let generations = generations.collect();
        let (tombstones, withdrawn) = (HashMap::new(), HashSet::new());
        Collector { secret, objects: Vec::new(), tombstones, withdrawn, generations }
    }

    /// Drop what is not to be found again; returns how many members of groups that are not whole went.
    fn settle(&mut self) -> u64 {
        let generations = &self.generations;
        let current = |(ns, generation): (NamespaceId, Generation)| {
            generations.get(&ns).copied().unwrap_or(Generation::FIRST) == generation
        };
        self.objects.retain(|o| o.namespace.is_none_or(current));
        let withdrawn = &self.withdrawn;
        // Only of what the checkpoint said: in a replayed segment the same place is another record.
        self.objects.retain(|o| o.namespace.is_some() || !withdrawn.contains(&o.record()));
        // Records of which a member is hidden or replaced. The checkpoint does not say who lies with whom, so
        // of its objects these are the parts of groups.
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
        // Keep the last of each key.
        self.objects.dedup_by(|later, kept| {
            let same = later.fingerprint == kept.fingerprint;
            if same {
                broken.insert(kept.record());
                *kept = *later;
            }
            same
        });
        let mut groups: HashMap<(u32, u16), u32> = HashMap::new();
        for o in self.objects.iter().filter(|o| o.member_count > 1) {
            *groups.entry(o.record()).or_default() += 1;
        }
        let before = self.objects.len();
        self.objects.retain(|o| match o.member_count {
            0 => !broken.contains(&o.record()),
            1 => true,
            members => groups.get(&o.record()) == Some(&members),
        });
        (before - self.objects.len()) as u64
    }

    /// Fill the core: generations, index, live counts. `constant` replaces every fingerprint.
    pub fn finish(mut self, core: &mut Core, constant: Option<u128>) {
        core.counters.groups_dropped += self.settle();
        let newest = self.objects.iter().filter_map(|o| o.tick).max().unwrap_or(0);
        let mut dropped = 0u64;
        let mut without_room = HashSet::new();
        for o in &self.objects {
            let entry = Entry {
                fingerprint: constant.unwrap_or(o.fingerprint),
                length: o.length,
                ssd: None,
                frame: None,
                tick: o.tick.unwrap_or(newest),
                freq: 0,
                pinned: false,
            };
            if core.index.insert(&entry).is_err() {
                without_room.insert(o.record());
                dropped += 1;
                continue;
            }
            core.place_ssd(entry.fingerprint, |e| e.ssd.is_none() && e.length == o.length, o.place);
        }
        // A group that had room for some of its members only goes as a whole.
        for o in &self.objects {
            if without_room.contains(&o.record()) {
                core.drop_ssd(constant.unwrap_or(o.fingerprint), o.place);
            }
        }
        if dropped > 0 {
            tracing::warn!(dropped, "index is too small for what the store holds");
        }
        core.generations = self.generations;
    }

    /// The newest tick that a checkpoint knew.
    pub fn newest_tick(&self) -> u64 {
        self.objects.iter().filter_map(|o| o.tick).max().map_or(0, u64::from)
    }
}

impl Sink for Collector {
    fn checkpoint_entry(&mut self, facts: &CheckpointFacts, entry: &CheckpointEntry) {
        if entry.is_withdrawal() {
            self.withdrawn.insert((entry.segment, entry.record_block));
            return;
        }
        self.objects.push(Object {
            fingerprint: u128::from_le_bytes(entry.fingerprint),
            // The snapshot is of this moment: older tombstones had their effect on it, younger ones count.
            sequence: facts.sequence.0.saturating_sub(1),
            position: 0,
            place: SsdPlace {
                segment: entry.segment,
                record_block: entry.record_block,
                payload_delta: entry.payload_delta,
            },
            length: entry.length,
            tick: Some(entry.tick),
            member_count: 0,
            namespace: None,
        });
    }

    fn forget_checkpoint(&mut self) {
        self.objects.clear();
        self.withdrawn.clear();
    }

    fn forget_all(&mut self) {
        // Tombstones, generations and withdrawals stay: they only ever hide something.
        self.objects.clear();
    }

    fn log_entry(&mut self, segment: SegmentId, entry: &FooterEntry) {
        let (namespace, generation) = (entry.key.namespace(), Generation(entry.generation));
        // A record of a generation that the manifest does not know yet: the clear was under way, and
        // something put after it is durable. It counts as done.
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
            place: SsdPlace::of_entry(segment, entry),
            length: entry.length as u32,
            tick: None,
            member_count: entry.member_count,
            namespace: Some((namespace, generation)),
        });
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::{PrefixHash, SegmentOrder, Sequence, StoreId};
    use pagelith_layouts::key::{ObjectKey, Role};
    use pagelith_layouts::shard::Shard;

    use super::*;

    const SECRET: [u8; FINGERPRINT_KEY_BYTES] = [7; FINGERPRINT_KEY_BYTES];

    fn key(component: &str) -> ObjectKey {
        let ns = pagelith_layouts::namespace::Namespace::default().id();
        ObjectKey::new(ns, PrefixHash([1; 32]), Role::Target, "kv", component, Shard::Whole).expect("a key")
    }

    /// An object of the record at (`segment`, 1), as a checkpoint whose snapshot began at sequence 100 has it.
    fn snapshot(collector: &mut Collector, component: &str, segment: u32, payload_delta: u16) {
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
            record_block: 1,
            payload_delta,
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
            record_block: 2,
            record_blocks: 3,
            payload_delta: 1,
            length: 5000,
            member_count: members,
            group: 1,
            base_group: 0,
            group_kind: 1,
            reserved: 0,
            depth: 0,
        }
    }

    fn whole_page() -> Collector {
        let mut collector = Collector::new(SECRET, std::iter::empty());
        snapshot(&mut collector, "k", 0, 1);
        snapshot(&mut collector, "v", 0, 3);
        collector
    }

    #[test]
    fn a_tombstone_of_one_member_takes_the_group_out_of_a_checkpoint() {
        // The page was evicted when `k` was removed, so the store did not know that `v` lies with it; its
        // segment was not yet used again when the store crashed.
        let mut collector = whole_page();
        collector.log_entry(SegmentId(3), &entry("k", RecordKind::Tombstones, 100, 1));
        assert_eq!(collector.settle(), 1);
        assert!(collector.objects.is_empty(), "half a page: {:?}", collector.objects);
    }

    #[test]
    fn a_member_put_again_takes_the_rest_of_its_old_group_out_of_a_checkpoint() {
        let mut collector = whole_page();
        collector.log_entry(SegmentId(3), &entry("k", RecordKind::Data, 101, 1));
        assert_eq!(collector.settle(), 1);
        let places: Vec<_> = collector.objects.iter().map(Object::record).collect();
        assert_eq!(places, [(3, 2)]);
    }

    #[test]
    fn an_untouched_group_of_a_checkpoint_stays() {
        let mut collector = whole_page();
        collector.log_entry(SegmentId(3), &entry("x", RecordKind::Tombstones, 100, 1));
        collector.log_entry(SegmentId(3), &entry("k", RecordKind::Tombstones, 98, 1));
        assert_eq!(collector.settle(), 0);
        assert_eq!(collector.objects.len(), 2);
    }
}

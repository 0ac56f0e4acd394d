//! Packs a victim's tombstones into as few records as possible. Otherwise a log from which many
//! objects are removed one at a time would end up filled with one-sector tombstone records.

use pagelith_layouts::footer::FooterEntry;
use pagelith_layouts::ids::{Generation, NamespaceId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{self, MEMBERS_MAX};

/// A tombstone that still shadows something.
#[derive(Clone, Debug)]
pub(super) struct Tombstone {
    pub generation: Generation,
    /// Objects put before this are removed.
    pub sequence: Sequence,
    pub key: ObjectKey,
    /// Whether the index has no object of this key.
    pub absent: bool,
}

/// Packs tombstones into records of one namespace and one generation each.
///
/// A record has one sequence. Tombstones of absent keys share the highest of their sequences:
/// everything put under these keys so far may stay hidden, and a later put gets a higher sequence.
/// A key that is present may have been put between two sequences, so its tombstone shares a record
/// only with those of its own sequence. A record's sequence is always that of one of its
/// tombstones, so that the record becomes obsolete as soon as everything older is gone.
pub(super) fn packed(
    mut tombstones: Vec<Tombstone>,
) -> Vec<(Generation, Sequence, Vec<ObjectKey>)> {
    let order = |t: &Tombstone| (t.absent, t.key.namespace(), t.generation);
    // By key last, so that duplicates of a key are adjacent.
    tombstones.sort_by_key(|t| (order(t), if t.absent { Sequence(0) } else { t.sequence }, t.key));
    let mut out: Vec<(Generation, Sequence, Vec<ObjectKey>)> = Vec::new();
    let mut last: Option<(bool, NamespaceId, Generation)> = None;
    for t in &tombstones {
        let same = last.replace(order(t)) == Some(order(t));
        match out.last_mut() {
            Some((_, sequence, keys))
                if same && (t.absent || *sequence == t.sequence) && keys.len() < MEMBERS_MAX =>
            {
                *sequence = t.sequence.max(*sequence);
                if keys.last() != Some(&t.key) {
                    keys.push(t.key);
                }
            }
            _ => out.push((t.generation, t.sequence, vec![t.key])),
        }
    }
    out
}

/// Bytes that packed tombstones take in a segment, with their footer entries.
pub(super) fn bytes_on_device(packed: &[(Generation, Sequence, Vec<ObjectKey>)]) -> u64 {
    let bytes = |keys| record::header_bytes(keys, 0) + keys * FooterEntry::BYTES as u64;
    packed.iter().map(|(.., keys)| bytes(keys.len() as u64)).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pagelith_layouts::align::ALIGN;
    use pagelith_layouts::footer;
    use pagelith_layouts::ids::PrefixHash;
    use pagelith_layouts::key::Role;
    use pagelith_layouts::shard::Shard;

    use super::*;

    fn key(namespace: u8, n: u16) -> ObjectKey {
        let mut hash = [0; 32];
        hash[..2].copy_from_slice(&n.to_be_bytes());
        ObjectKey::new(
            NamespaceId([namespace; 16]),
            PrefixHash(hash),
            Role::Target,
            "kv",
            "k",
            Shard::Whole,
        )
        .expect("a key")
    }

    fn tombstone(namespace: u8, n: u16, generation: u64, sequence: u64, absent: bool) -> Tombstone {
        let (generation, sequence) = (Generation(generation), Sequence(sequence));
        Tombstone { generation, sequence, key: key(namespace, n), absent }
    }

    /// A segment of dense tombstones gives nothing back, so reclaim must not choose it again and
    /// again.
    #[test]
    fn tombstones_of_full_records_fill_their_segment_again() {
        let segment_bytes = 4 << 20;
        let footer = |records: u64| footer::footer_bytes(records * MEMBERS_MAX as u64);
        let header = record::header_bytes(MEMBERS_MAX as u64, 0);
        let fits = |records: u64| ALIGN + records * header + footer(records) <= segment_bytes;
        let records = (1..).take_while(|n| fits(*n)).last().expect("some");
        let keys = (0..records * MEMBERS_MAX as u64).map(|n| tombstone(1, n as u16, 1, 5, true));
        let again = bytes_on_device(&packed(keys.collect()));
        assert!(segment_bytes - again < segment_bytes / 8, "records={records} again={again}");
    }

    proptest::proptest! {
        /// A present key is in exactly one record for each of its sequences; an absent key is in
        /// one with at least its highest sequence. No record has a sequence that none of its
        /// tombstones has, mixes namespaces or generations, or holds a key twice.
        #[test]
        fn packed_tombstones_keep_every_key_and_sequence(
            drawn in proptest::collection::vec((0u8..2, 0u16..40, 1u64..3, 1u64..20), 0..200),
        ) {
            let here = |n: u16| n < 8;
            let all: Vec<_> =
                drawn.iter().map(|(ns, n, g, s)| tombstone(*ns, *n, *g, *s, !here(*n))).collect();
            let records = packed(all.clone());
            let mut found: BTreeMap<(ObjectKey, u64), Vec<u64>> = BTreeMap::new();
            for (generation, sequence, keys) in &records {
                proptest::prop_assert!(!keys.is_empty() && keys.len() <= MEMBERS_MAX);
                for key in keys {
                    proptest::prop_assert_eq!(key.namespace(), keys[0].namespace());
                    proptest::prop_assert_eq!(keys.iter().filter(|k| *k == key).count(), 1);
                    found.entry((*key, generation.0)).or_default().push(sequence.0);
                }
                let among = |t: &Tombstone| {
                    t.sequence == *sequence && t.generation == *generation && keys.contains(&t.key)
                };
                proptest::prop_assert!(all.iter().any(among));
            }
            for t in &all {
                let sequences = &found[&(t.key, t.generation.0)];
                let kept = |s: &u64| if t.absent { *s >= t.sequence.0 } else { *s == t.sequence.0 };
                proptest::prop_assert!(sequences.iter().any(kept));
                let given = |s: &u64| all.iter().any(|u| u.key == t.key && u.sequence.0 == *s);
                proptest::prop_assert!(t.absent || sequences.iter().all(given));
            }
        }
    }

    #[test]
    fn single_removals_are_packed_into_full_records() {
        let all = (0..1500).map(|n| tombstone(1, n, 1, 1 + u64::from(n), true)).collect();
        let records = packed(all);
        assert_eq!(records.len(), 2);
        assert_eq!(records.iter().map(|(.., keys)| keys.len()).sum::<usize>(), 1500);
        assert_eq!(records[1].1, Sequence(1500));
    }
}

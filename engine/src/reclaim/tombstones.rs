//! What a victim's tombstones become: as few records as they fit into, or a log that many objects are removed from one
//! by one would in the end hold little else, a block for each.

use pagelith_layouts::ids::{Generation, NamespaceId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::MEMBERS_MAX;

/// A tombstone that still shadows something.
#[derive(Clone, Debug)]
pub(super) struct Tombstone {
    pub generation: Generation,
    /// What was put before this is gone.
    pub sequence: Sequence,
    pub key: ObjectKey,
    /// The index has no object of this key.
    pub absent: bool,
}

/// Records of one namespace and generation each.
///
/// A record has one sequence. Tombstones of different ones share the highest of theirs if their keys are absent: all
/// that was put under them up to now may stay away, and what will be put gets a higher sequence. A key that is here
/// may have been put between the two, so its tombstone shares a record with those of its own sequence only. The
/// sequence is never higher than that of some tombstone, so that it goes as soon as everything older has gone.
pub(super) fn joined(mut tombstones: Vec<Tombstone>) -> Vec<(Generation, Sequence, Vec<ObjectKey>)> {
    let order = |t: &Tombstone| (t.absent, t.key.namespace(), t.generation);
    // By key in the end, so that none is in a record twice.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pagelith_layouts::ids::PrefixHash;
    use pagelith_layouts::key::Role;
    use pagelith_layouts::shard::Shard;

    use super::*;

    fn key(namespace: u8, n: u16) -> ObjectKey {
        let mut hash = [0; 32];
        hash[..2].copy_from_slice(&n.to_be_bytes());
        ObjectKey::new(NamespaceId([namespace; 16]), PrefixHash(hash), Role::Target, "kv", "k", Shard::Whole)
            .expect("a key")
    }

    fn tombstone(namespace: u8, n: u16, generation: u64, sequence: u64, absent: bool) -> Tombstone {
        let (generation, sequence) = (Generation(generation), Sequence(sequence));
        Tombstone { generation, sequence, key: key(namespace, n), absent }
    }

    proptest::proptest! {
        /// Every key is in exactly one record for each of its sequences if it is here, and in one with at least its
        /// highest if it is absent; no record has a sequence that no tombstone of it has, mixes namespaces or
        /// generations, or holds a key twice.
        #[test]
        fn no_tombstone_is_lost_or_raised_above_all(
            drawn in proptest::collection::vec((0u8..2, 0u16..40, 1u64..3, 1u64..20), 0..200),
        ) {
            let here = |n: u16| n < 8;
            let all: Vec<_> =
                drawn.iter().map(|(ns, n, g, s)| tombstone(*ns, *n, *g, *s, !here(*n))).collect();
            let records = joined(all.clone());
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
    fn removals_one_by_one_become_one_record() {
        let all = (0..1500).map(|n| tombstone(1, n, 1, 1 + u64::from(n), true)).collect();
        let records = joined(all);
        assert_eq!(records.len(), 2);
        assert_eq!(records.iter().map(|(.., keys)| keys.len()).sum::<usize>(), 1500);
        assert_eq!(records[1].1, Sequence(1500));
    }
}

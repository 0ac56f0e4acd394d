//! Random histories of an index compared with a plain multimap, and the properties that a
//! checkpoint relies on.

use std::collections::HashMap;

use super::entry::{SLOT_BYTES, stored};
use super::*;
use crate::config::SEGMENT_MAX;

/// SplitMix64 (Steele, Lea and Flood, 2014). A seed determines a whole history, and a failure
/// prints it.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Distribution of the fingerprints of a history.
#[derive(Clone, Copy, Debug)]
enum Spread {
    /// All equal; the home varies with the size of the history's index.
    Constant(u128),
    /// A few homes, the last one of the ring (where runs wrap) among them; low halves differ.
    FewHomes,
    /// Any home, from a set small enough for repeated fingerprints.
    Wide,
}

impl Spread {
    const ALL: [Spread; 5] = [
        Spread::Constant(0),
        Spread::Constant(u128::MAX),
        Spread::Constant(1 << 127),
        Spread::FewHomes,
        Spread::Wide,
    ];

    fn fingerprint(self, random: &mut Random) -> u128 {
        let join = |high: u64, low: u64| u128::from(high) << 64 | u128::from(low);
        match self {
            Spread::Constant(fingerprint) => fingerprint,
            Spread::FewHomes => {
                let homes = [0, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX - u64::MAX / 50, u64::MAX];
                join(homes[random.below(5) as usize], random.below(4))
            }
            Spread::Wide => {
                let high = Random(random.below(60)).next();
                join(high, high.rotate_left(9))
            }
        }
    }
}

/// An entry that differs from all others of its history: its length is `name`, which is unique.
fn entry(random: &mut Random, fingerprint: u128, name: u32) -> Entry {
    let bits = random.next();
    Entry {
        fingerprint,
        length: name,
        ssd: (bits & 1 == 0).then_some(SsdLocation {
            segment: (bits >> 8) as u32 & SEGMENT_MAX,
            record_sector: (bits >> 26) as u16,
            payload_sector: (bits >> 42) as u16,
        }),
        frame: (bits & 2 == 0).then_some((bits >> 40) as u32 & 0xffff),
        tick: (bits >> 32) as u32 % TICK_MODULUS,
        attached: bits & 4 == 0,
    }
}

/// The expected content of the index.
#[derive(Default)]
struct Model(HashMap<u128, Vec<Entry>>);

impl Model {
    fn all(&self) -> Vec<Entry> {
        sorted(self.0.values().flatten().copied())
    }

    fn of(&mut self, fingerprint: u128) -> &mut Vec<Entry> {
        self.0.entry(stored(fingerprint)).or_default()
    }

    fn pick(&self, random: &mut Random) -> Option<Entry> {
        let all = self.all();
        if all.is_empty() { None } else { Some(all[random.below(all.len() as u64) as usize]) }
    }
}

fn sorted(entries: impl Iterator<Item = Entry>) -> Vec<Entry> {
    let mut entries: Vec<Entry> = entries.collect();
    entries.sort_by_key(|e| e.length);
    entries
}

fn visited(index: &Index, from: u64, to: u64) -> Vec<Entry> {
    let mut seen = Vec::new();
    index.visit_homes(from, to, |v| seen.extend(object(v)));
    seen
}

fn object(visited: SlotContent) -> Option<Entry> {
    match visited {
        SlotContent::Object(entry) => Some(entry),
        SlotContent::Link { .. } => None,
    }
}

/// Checks the invariants listed at the head of the module against the slots.
fn check_structure(index: &Index) {
    let slots = &index.table;
    let mut full = 0;
    for at in 0..slots.count() {
        let (current, next) = (slots.fingerprint(at), slots.fingerprint(slots.next(at)));
        full += u64::from(current != 0);
        if next != 0 {
            let distance = slots.distance(slots.next(at), next);
            let distance_max = if current == 0 { 0 } else { slots.distance(at, current) + 1 };
            assert!(
                distance <= distance_max,
                "slot {at} is followed by an entry {distance} from home"
            );
        }
    }
    assert_eq!(full, index.len());
}

fn check_against(index: &Index, model: &mut Model, also: u128) {
    check_structure(index);
    let all = model.all();
    assert_eq!(index.len(), all.len() as u64);
    assert_eq!(sorted(visited(index, 0, index.home_slots()).into_iter()), all);
    model.of(also);
    let fingerprints: Vec<u128> = model.0.keys().copied().collect();
    index.reader().prefetch(&fingerprints);
    for fingerprint in fingerprints {
        let expected = sorted(model.of(fingerprint).iter().copied());
        assert_eq!(sorted(index.find(fingerprint)), expected);
        assert_eq!(index.contains(fingerprint), !expected.is_empty());
    }
}

fn step(index: &mut Index, model: &mut Model, random: &mut Random, spread: Spread, name: u32) {
    let fingerprint = spread.fingerprint(random);
    match random.below(15) {
        0..8 => {
            let new = entry(random, fingerprint, name);
            match index.insert(&new) {
                Ok(()) => {
                    model.of(fingerprint).push(Entry { fingerprint: stored(fingerprint), ..new })
                }
                Err(IndexError::Full { capacity }) => {
                    assert_eq!(capacity, model.all().len() as u64)
                }
                Err(other) => panic!("{other}"),
            }
        }
        8..12 => {
            let Some(old) = model.pick(random) else { return };
            let removed = index.remove(old.fingerprint, |e| e.length == old.length);
            assert_eq!(removed, Some(old));
            model.of(old.fingerprint).retain(|e| *e != old);
        }
        12..14 => {
            let Some(old) = model.pick(random) else { return };
            let new = Entry { fingerprint: old.fingerprint, ..entry(random, 99, name) };
            let change = |e: &mut Entry| *e = Entry { fingerprint: 99, ..new };
            assert!(index.update(old.fingerprint, |e| *e == old, change).expect("in range"));
            model.of(old.fingerprint).iter_mut().filter(|e| **e == old).for_each(|e| *e = new);
        }
        _ => {
            assert_eq!(index.remove(fingerprint, |e| e.length == name), None);
            let updated = index.update(
                fingerprint,
                |e| e.length == name,
                |_| panic!("no entry has this name"),
            );
            assert!(!updated.expect("in range"));
        }
    }
}

#[test]
fn random_histories_match_multimap() {
    for spread in Spread::ALL {
        for seed in 0..60 {
            let mut random = Random(seed);
            // Small rings wrap and fill; those below 4 are full at capacity, without one empty
            // slot.
            let max_objects = [0, 1, 2, 3, 4, 7, 16, 50][seed as usize % 8];
            let mut index = Index::new(max_objects).expect("memory");
            let mut model = Model::default();
            for name in 1..=150 {
                let run = std::panic::AssertUnwindSafe(|| {
                    step(&mut index, &mut model, &mut random, spread, name);
                    let also = spread.fingerprint(&mut random);
                    check_against(&index, &mut model, also);
                });
                if let Err(cause) = std::panic::catch_unwind(run) {
                    eprintln!("spread={spread:?} seed={seed} step={name}");
                    std::panic::resume_unwind(cause);
                }
            }
        }
    }
}

#[test]
fn insert_into_full_index_fails_without_change() {
    for spread in Spread::ALL {
        let mut random = Random(1);
        let mut index = Index::new(200).expect("memory");
        assert_eq!(index.capacity(), 200);
        for name in 1..=200 {
            let fingerprint = spread.fingerprint(&mut random);
            index.insert(&entry(&mut random, fingerprint, name)).expect("room");
        }
        let before = visited(&index, 0, index.home_slots());
        assert_eq!(before.len(), 200);
        for name in 201..210 {
            let fingerprint = spread.fingerprint(&mut random);
            match index.insert(&entry(&mut random, fingerprint, name)) {
                Err(IndexError::Full { capacity }) => assert_eq!(capacity, 200),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(visited(&index, 0, index.home_slots()), before);
        index.remove(before[0].fingerprint, |e| *e == before[0]).expect("there");
        index.insert(&entry(&mut random, 5, 1)).expect("room after a removal");
    }
}

#[test]
fn entry_out_of_range_leaves_index_unchanged() {
    let mut random = Random(2);
    let mut index = Index::new(4).expect("memory");
    let good = entry(&mut random, 9, 1);
    index.insert(&good).expect("room");
    let refused = index.insert(&Entry { length: 0, ..good }).expect_err("zero length");
    assert_eq!(
        refused.to_string(),
        "index entry field out of range field=length value=0 min=1 max=134217728"
    );
    let refused = index.update(9, |_| true, |e| e.frame = Some(FRAME_MAX + 1));
    refused.expect_err("the frame number does not fit");
    assert_eq!(visited(&index, 0, index.home_slots()), [good]);
}

#[test]
fn memory_per_object_is_at_most_40_bytes() {
    // Mapped but not touched, so the large ones use no memory.
    for max_objects in [0, 1, 2, 3, 4, 5, 99, 1000, 1001, 1_000_003, 20_000_000] {
        let index = Index::new(max_objects).expect("memory");
        assert!(index.memory_bytes() <= 40 * max_objects, "max_objects={max_objects}");
        assert!(index.memory_bytes() >= 32 * max_objects, "max_objects={max_objects}");
        assert!(
            index.memory_bytes() > index.table.count() as u64 * SLOT_BYTES as u64
                || max_objects == 0
        );
        assert!(index.table.count() as u64 >= max_objects);
        assert_eq!(index.capacity(), max_objects);
    }
}

#[test]
fn capacity_beyond_system_memory_is_an_error() {
    for max_objects in [u64::MAX, u64::MAX / 5 * 4, 1 << 57] {
        match Index::new(max_objects) {
            Err(IndexError::OutOfMemory { max_objects: named, .. }) => {
                assert_eq!(named, max_objects)
            }
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("memory was allocated max_objects={max_objects}"),
        }
    }
}

/// With well-spread fingerprints, probes are short even in a full index.
#[test]
fn probe_length_in_full_index_is_bounded() {
    let mut random = Random(3);
    let mut index = Index::new(100_000).expect("memory");
    while index.len() < index.capacity() {
        let fingerprint = u128::from(random.next()) << 64 | u128::from(random.next());
        index.insert(&entry(&mut random, fingerprint, 1)).expect("room");
    }
    let count = index.table.count();
    let distances: Vec<usize> = (0..count)
        .map(|at| (at, index.table.fingerprint(at)))
        .filter(|(_, fingerprint)| *fingerprint != 0)
        .map(|(at, fingerprint)| index.table.distance(at, fingerprint))
        .collect();
    // Knuth, The Art of Computer Programming, volume 3, 6.4: linear probing needs (1 + 1 / (1 -
    // 0.8)) / 2 = 3 probes a hit on average; Robin Hood keeps the mean and shrinks the variance.
    let mean = distances.iter().sum::<usize>() as f64 / distances.len() as f64 + 1.0;
    assert!((2.7..3.3).contains(&mean), "mean probes {mean}");
    let longest = distances.into_iter().max();
    assert!(longest < Some(64), "longest {longest:?}");
}

type Visit = fn(&Index, u64, u64, &mut dyn FnMut(&Entry));

/// Walks all homes in random pieces with a random history between the pieces. Returns an error
/// unless every entry that was present throughout was visited exactly once, and every other entry
/// at most once.
fn walk_while_changing(seed: u64, spread: Spread, visit: Visit) -> Result<(), String> {
    let mut random = Random(seed);
    let mut index = Index::new(40).expect("memory");
    let mut model = Model::default();
    let mut names = 1..;
    let mut change = |index: &mut Index, model: &mut Model, random: &mut Random, times: u64| {
        for _ in 0..times {
            step(index, model, random, spread, names.next().expect("an endless range"));
        }
    };
    change(&mut index, &mut model, &mut random, 100);
    let mut throughout = model.all();
    let mut seen: HashMap<u32, u32> = HashMap::new();
    let mut cursor = 0;
    while cursor < index.home_slots() {
        let to = cursor + 1 + random.below(12);
        visit(&index, cursor, to, &mut |e| *seen.entry(e.length).or_default() += 1);
        cursor = to;
        let times = random.below(6);
        change(&mut index, &mut model, &mut random, times);
        let now = model.all();
        throughout.retain(|e| now.contains(e));
    }
    if let Some((name, times)) = seen.iter().find(|(_, times)| **times > 1) {
        return Err(format!("entry {name} was visited {times} times"));
    }
    match throughout.iter().find(|e| !seen.contains_key(&e.length)) {
        Some(missed) => Err(format!("entry {} was missed", missed.length)),
        None => Ok(()),
    }
}

#[test]
fn walk_by_homes_visits_each_lasting_entry_once() {
    for spread in Spread::ALL {
        for seed in 0..400 {
            let walked = walk_while_changing(seed, spread, |index, from, to, f| {
                index.visit_homes(from, to, |v| object(v).iter().for_each(&mut *f));
            });
            assert_eq!(walked, Ok(()), "spread={spread:?} seed={seed}");
        }
    }
}

/// Checks the checker: it must find both faults of a walk by slot positions.
#[test]
fn walk_by_positions_is_detected_as_wrong() {
    let by_position: Visit = |index, from, to, f| {
        for at in from..to.min(index.home_slots()) {
            let slot = index.table.get(at as usize);
            if !slot.is_empty() {
                f(&slot.unpack());
            }
        }
    };
    let faults: Vec<String> = [Spread::FewHomes, Spread::Wide]
        .into_iter()
        .flat_map(|spread| {
            (0..400).filter_map(move |seed| walk_while_changing(seed, spread, by_position).err())
        })
        .collect();
    assert!(
        faults.iter().any(|f| f.ends_with("missed")),
        "no missed entry in {} faults",
        faults.len()
    );
    assert!(faults.iter().any(|f| f.contains("visited")), "no repeat in {} faults", faults.len());
}

/// Checkpoints rely on this: fingerprints in order have homes in order.
#[test]
fn home_order_equals_fingerprint_order() {
    let index = Index::new(1000).expect("memory");
    let homes = index.home_slots();
    assert_eq!(index.table.home(0), 0);
    assert_eq!(index.table.home(u128::MAX) as u64, homes - 1);
    let mut random = Random(5);
    let mut fingerprints: Vec<u128> =
        (0..5000).map(|_| u128::from(random.next()) << 64 | u128::from(random.next())).collect();
    fingerprints.sort_unstable();
    let home_of_each: Vec<usize> = fingerprints.iter().map(|f| index.table.home(*f)).collect();
    assert!(home_of_each.is_sorted());
    let distinct = home_of_each.windows(2).filter(|pair| pair[0] != pair[1]).count() as u64 + 1;
    assert!(distinct > homes * 9 / 10, "5000 fingerprints have only {distinct} of {homes} homes");
}

/// The pieces of a walk are disjoint and complete for every cut, also with runs that wrap around
/// the ring.
#[test]
fn home_ranges_partition_entries() {
    for spread in Spread::ALL {
        let mut random = Random(4);
        let mut index = Index::new(30).expect("memory");
        for name in 1..=30 {
            let fingerprint = spread.fingerprint(&mut random);
            index.insert(&entry(&mut random, fingerprint, name)).expect("room");
        }
        let (homes, all) = (index.home_slots(), sorted(visited(&index, 0, u64::MAX).into_iter()));
        assert_eq!(all.len(), 30);
        for cut in 0..=homes {
            let (low, high) = (visited(&index, 0, cut), visited(&index, cut, homes));
            let home = |e: &Entry| index.table.home(e.fingerprint) as u64;
            assert!(low.iter().all(|e| home(e) < cut) && high.iter().all(|e| home(e) >= cut));
            assert_eq!(sorted(low.into_iter().chain(high)), all);
        }
        assert_eq!(visited(&index, 7, 7), []);
        assert_eq!(visited(&index, homes, u64::MAX), []);
    }
}

#[test]
fn links_and_entries_with_shared_homes_stay_consistent() {
    let mut random = Random(7);
    let mut index = Index::new(64).expect("memory");
    let mut links: HashMap<u128, u64> = HashMap::new();
    for step in 0..20_000u32 {
        // Few homes, so that links and entries displace each other.
        let fingerprint = u128::from(random.below(24)) << 100 | 5;
        match random.below(5) {
            0 if !links.contains_key(&fingerprint) => {
                let base = random.next();
                if index.insert_link(fingerprint, base).is_ok() {
                    links.insert(fingerprint, base);
                }
            }
            1 => assert_eq!(index.remove_link(fingerprint), links.remove(&fingerprint).is_some()),
            2 => {
                let _ = index.insert(&entry(&mut random, fingerprint, step + 1));
            }
            3 => drop(index.remove(fingerprint, |_| true)),
            _ => {}
        }
        check_structure(&index);
        assert_eq!(index.link(fingerprint), links.get(&fingerprint).copied(), "step={step}");
        let named: Vec<_> = sorted(index.find_named(name_of(fingerprint)));
        assert_eq!(named, sorted(index.find(fingerprint)), "step={step}");
        let mut seen = HashMap::new();
        index.visit_homes(0, index.home_slots(), |v| match v {
            SlotContent::Link { fingerprint, base } => {
                assert_eq!(seen.insert(fingerprint, base), None)
            }
            SlotContent::Object(_) => {}
        });
        assert_eq!(seen, links, "step={step}");
    }
    assert!(!links.is_empty() && index.len() > links.len() as u64);
}

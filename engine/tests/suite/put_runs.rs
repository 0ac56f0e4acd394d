//! A batch of groups is put in runs, with the same outcomes as one by one.

use std::time::Duration;

use pagelith::layouts::key::ObjectKey;
use pagelith::{
    CompletedBatch, Options, Put, PutGroup, PutOutcome, PutSlice, Result, Size, Source,
};

use super::env::TestEnv;
use super::harness::Store;
use super::helpers::*;

type Objects = Vec<(ObjectKey, Vec<u8>)>;

fn put_groups(store: &Store, groups: &[Objects]) -> Vec<Result<PutOutcome>> {
    let pieces: Vec<Vec<[&[u8]; 1]>> =
        groups.iter().map(|group| group.iter().map(|(_, bytes)| [&bytes[..]]).collect()).collect();
    let slice = |((key, _), pieces): (&(ObjectKey, Vec<u8>), _)| PutSlice { key: *key, pieces };
    let slices: Vec<Vec<PutSlice<'_>>> = groups
        .iter()
        .zip(&pieces)
        .map(|(group, pieces)| group.iter().zip(pieces.iter().map(|p| &p[..])).map(slice).collect())
        .collect();
    let slices: Vec<&[PutSlice<'_>]> = slices.iter().map(|group| &group[..]).collect();
    store.put_groups(&slices, Options::default())
}

/// Pages in every order and form: one member, all three, too few; with different bytes each time.
/// Each includes the member that may have been put alone: while a group waits for that member to be
/// read, later groups must not overtake it.
fn shuffled_groups(seed: u64) -> Vec<Objects> {
    let pages = 1 + seed % 4;
    (0..40)
        .map(|i| {
            let draw = bytes(seed * 100 + i, 2);
            let mut page = group(u64::from(draw[0]) % pages, 3);
            page.iter_mut().for_each(|(_, bytes)| bytes[0] = i as u8);
            match draw[1] % 6 {
                0 | 1 => page[..1].to_vec(),
                2 => page[..2].to_vec(),
                _ => page,
            }
        })
        .collect()
}

pub fn page_repeated_in_a_batch_is_put_as_if_one_by_one(world: &TestEnv) {
    for seed in 0..world.many(24) as u64 {
        let config = world.memory_config(Size::mib(4));
        let (together, apart) = (world.open(&config), world.open(&config));
        let groups = shuffled_groups(seed);
        let expected: Vec<_> = groups
            .iter()
            .map(|group| put_groups(&apart, std::slice::from_ref(group)).remove(0))
            .collect();
        assert_eq!(put_groups(&together, &groups), expected, "seed={seed}");
        for (key, bytes) in (0..4).flat_map(|n| group(n, 3)) {
            let found = [&together, &apart].map(|store| {
                let mut to = vec![0; bytes.len()];
                get_into(store, key, &mut to).map(|outcome| (outcome, to))
            });
            assert_eq!(found[0], found[1], "seed={seed} key={key}");
        }
    }
}

/// The header of one object must be read, and the bytes of another are in memory.
pub fn groups_of_one_batch_adopt_objects_in_memory_and_on_ssd(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Each put would need headers.
    }
    let config = world.config();
    let store = world.open(&config);
    let (on_ssd, in_memory) = (group(1, 2), group(2, 2));
    assert_eq!(put_group(&store, &on_ssd[..1]), Ok(PutOutcome::Stored));
    let store = world.reopen(store, &config);
    assert_eq!(put_group(&store, &in_memory[..1]), Ok(PutOutcome::Stored));
    flush(&store);
    let put = |(key, bytes): &(ObjectKey, Vec<u8>)| Put {
        key: *key,
        source: Source::shared(bytes.clone().into()),
    };
    let groups = [&in_memory, &on_ssd].map(|page| PutGroup::new(page.iter().map(put).collect()));
    let mut session = store.session().expect("a session");
    let ticket = session.submit_put(groups.into(), Options::default());
    let done = session.wait(ticket, Duration::from_secs(30));
    let Some(CompletedBatch::Put(done)) = done else { panic!("no outcome") };
    let outcomes: Vec<_> = done.into_iter().map(|done| done.outcome).collect();
    let adopted = [Ok(PutOutcome::AlreadyPresent), Ok(PutOutcome::Stored)];
    assert_eq!(outcomes, [adopted.clone(), adopted].concat());
    for (key, bytes) in in_memory.iter().chain(&on_ssd) {
        hit(&store, *key, bytes);
    }
}

pub fn batch_larger_than_the_arena_is_stored(world: &TestEnv) {
    let store = world.open(&world.memory_config(Size::mib(1)));
    let groups: Vec<Objects> = (0..40).map(|n| group(n, 10)).collect();
    assert_eq!(put_groups(&store, &groups), vec![Ok(PutOutcome::Stored); 40]);
    assert!(groups[39].iter().all(|(key, bytes)| is_present(&store, *key, bytes)), "the last put");
    let whole = |group: &&Objects| group.iter().all(|(key, bytes)| is_present(&store, *key, bytes));
    assert!(groups.iter().filter(whole).count() < 8, "six times the arena");
}

pub fn refused_object_does_not_stop_its_batch(world: &TestEnv) {
    let store = world.open(&world.memory_config(Size::mib(4)));
    let mut groups: Vec<Objects> = (0..36).map(|n| group(n, 3)).collect();
    for n in [0, 7, 16, 35] {
        groups[n][1].1.clear();
    }
    let outcomes = put_groups(&store, &groups);
    for (n, (outcome, group)) in outcomes.iter().zip(&groups).enumerate() {
        let whole = group.iter().all(|(_, bytes)| !bytes.is_empty());
        assert_eq!(outcome.is_ok(), whole, "n={n} {outcome:?}");
        assert_eq!(is_present(&store, group[0].0, &group[0].1), whole, "n={n}");
    }
}

//! Reads that cannot go straight into the caller's memory use staging memory, which is scarce.

use super::harness::Store;
use pagelith::{Config, GetOutcome, GetSlice, Options, PutOutcome, Size, Tier};

use super::env::TestEnv;
use super::helpers::*;

/// A budget of four objects of 100,000 bytes.
fn tight(world: &TestEnv) -> Config {
    let mut config = world.config();
    config.staging.bytes = Size::kib(512);
    config.staging.chunk_bytes = Size::kib(64);
    config
}

pub fn object_larger_than_the_budget_is_got_whole(world: &TestEnv) {
    const LEN: usize = 20_000_003;
    let mut config = world.config();
    config.dram.bytes = Size::mib(32);
    config.ssd.bytes = Size::mib(136);
    config.ssd.segment_bytes = Some(Size::mib(32));
    config.staging.bytes = Size::mib(2);
    config.staging.chunk_bytes = Size::kib(256);
    let store = world.open(&config);
    let whole = bytes(1, LEN);
    assert_eq!(put(&store, key(1), &whole), Ok(PutOutcome::Stored));
    store_page(&store, 2, 5000);
    let store = world.reopen(store, &config);
    assert_eq!(hit_unaligned(&store, key(1), &whole), Tier::Ssd);
    staged(world, &store, LEN.next_multiple_of(4096));
    // Also a range of it above the budget, next to a small object.
    let (mut part, mut small) = (Unaligned::new(9_000_000), Unaligned::new(5000));
    let mut gets = [
        GetSlice { key: key(2), range: None, pieces: &mut [small.slice()] },
        GetSlice { key: key(1), range: Some(1_000_001..10_000_001), pieces: &mut [part.slice()] },
    ];
    let outcomes = store.get_batch(&mut gets, Options::default());
    assert!(outcomes.iter().all(|o| o.as_ref().is_ok_and(GetOutcome::is_hit)), "{outcomes:?}");
    assert!(part.slice() == &whole[1_000_001..10_000_001]);
    assert!(small.slice() == bytes(2, 5000));
}

fn get_all_unaligned(store: &Store, pages: u64, len: usize) {
    let mut memory: Vec<Unaligned> = (0..pages).map(|_| Unaligned::new(len)).collect();
    let mut lent: Vec<[&mut [u8]; 1]> = memory.iter_mut().map(|m| [m.slice()]).collect();
    let mut gets: Vec<_> = (0..)
        .zip(&mut lent)
        .map(|(n, pieces)| GetSlice { key: key(n), range: None, pieces })
        .collect();
    let outcomes = store.get_batch(&mut gets, Options::default());
    let expected = Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes: len as u64 });
    assert_eq!(outcomes, vec![expected; pages as usize]);
    for (n, memory) in (0..).zip(&mut memory) {
        assert!(memory.slice() == bytes(n, len), "n={n}");
    }
}

pub fn batch_larger_than_the_budget_is_got_whole(world: &TestEnv) {
    let config = tight(world);
    let store = world.open(&config);
    store_pages(&store, 0..20, 100_000);
    let store = world.reopen(store, &config);
    get_all_unaligned(&store, 20, 100_000);
    get_all_unaligned(&store, 20, 100_000);
}

pub fn four_threads_share_a_small_staging(world: &TestEnv) {
    if world.constant {
        return; // Independent of fingerprints.
    }
    if world.sim().is_some() {
        return; // Simulated stores have one thread.
    }
    let config = tight(world);
    let store = world.open(&config);
    store_pages(&store, 0..16, 100_000);
    let whole = bytes(99, 900_000);
    assert_eq!(put(&store, key(99), &whole), Ok(PutOutcome::Stored));
    let store = world.reopen(store, &config);
    let rounds = 30;
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..rounds).for_each(|_| get_all_unaligned(&store, 16, 100_000)));
        }
        // Larger than the budget: it streams while the others are read.
        scope.spawn(|| {
            (0..rounds).for_each(|_| assert_eq!(hit_unaligned(&store, key(99), &whole), Tier::Ssd));
        });
    });
}

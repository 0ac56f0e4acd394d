//! Cached headers of records on SSD are not read again, and the cache never replaces verification.

use pagelith::io::fault::FaultOp;
use pagelith::{Config, GetOutcome, MissCause, Tier};

use super::env::TestEnv;
use super::harness::Store;
use super::helpers::*;

const LEN: usize = 100_000;
const PADDED: u64 = 102_400;

fn config(world: &TestEnv, headers: pagelith::Size) -> Config {
    let mut config = world.cold_config();
    config.ssd.headers_bytes = headers;
    config
}

/// A get of a page from SSD, and the bytes that it read from the device.
fn read_by_a_get(world: &TestEnv, store: &Store, n: u64) -> u64 {
    let sim = world.sim().expect("simulated");
    let before = sim.disk.log().len();
    assert_eq!(hit_page(store, n, LEN), Tier::Ssd);
    sim.disk.log()[before..].iter().filter(|op| op.kind == FaultOp::Read).map(|op| op.len).sum()
}

pub fn headers_are_read_once_and_cached(world: &TestEnv) {
    if world.sim().is_none() || !world.tells_keys_apart() {
        return;
    }
    let config = config(world, pagelith::Size::mib(1));
    let store = world.open(&config);
    store_pages(&store, 0..4, LEN);
    let store = world.reopen(store, &config);
    assert_eq!(
        read_by_a_get(world, &store, 0),
        4096 + PADDED,
        "nothing is known of a store just opened"
    );
    assert_eq!(read_by_a_get(world, &store, 0), PADDED, "it was read a moment ago");
    // Headers are cached when written; hits from memory read nothing.
    store_pages(&store, 4..40, LEN);
    flush(&store);
    let from_ssd: Vec<u64> = (4..40).filter(|n| hit_page(&store, *n, LEN) == Tier::Ssd).collect();
    assert!(!from_ssd.is_empty(), "all of it is in memory");
    for n in from_ssd {
        assert_eq!(read_by_a_get(world, &store, n), PADDED, "it was written here n={n}");
    }
    let none = self::config(world, pagelith::Size::ZERO);
    let store = world.reopen(store, &none);
    for _ in 0..2 {
        assert_eq!(
            read_by_a_get(world, &store, 1),
            4096 + PADDED,
            "there is no memory for headers"
        );
    }
}

/// A damaged payload is a miss with or without a cached header. A damaged header costs nothing
/// until it must be read.
pub fn cached_headers_never_replace_verification(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Which record would be dropped is undefined.
    }
    let config = config(world, pagelith::Size::mib(1));
    let store = world.open(&config);
    store_pages(&store, 0..4, LEN);
    let mut store = world.reopen(store, &config);
    (0..4).for_each(|n| _ = hit_page(&store, n, LEN));
    if world.sim().is_some() {
        let (payload, header) = (find(world, key(1)).payload, find(world, key(2)).record);
        world.flip(0, "segments", payload + 70_000);
        world.flip(0, "segments", header + 200);
        let mut to = pagelith::AlignedBuf::new(LEN).expect("memory");
        assert_eq!(get_into(&store, key(1), &mut to), Ok(GetOutcome::Miss(MissCause::Damaged)));
        assert!(to.iter().all(|b| *b == 0), "nothing of it is handed out");
        assert_absent(world, &store, key(1), LEN);
        hit_page(&store, 2, LEN);
        store = world.reopen(store, &config);
        assert_eq!(get_into(&store, key(2), &mut to), Ok(GetOutcome::Miss(MissCause::Damaged)));
    }
    // Reused segments hold other records at the same places.
    let last = put_until(&store, 100, LEN, 40 << 20);
    let here = (100..last).filter(|n| is_page_present(&store, *n, LEN)).count();
    assert!(here > 50, "here={here}");
}

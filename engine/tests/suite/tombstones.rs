//! A tombstone outlives every record that it shadows, however often the log wraps.

use pagelith::config::SsdPolicy;
use pagelith::layouts::key::ObjectKey;
use pagelith::{Config, Options, PutOutcome};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 50_000;
/// Approximate bytes of segments of the store in these tests.
const LAP: usize = 14 << 20;

/// Hot pages and a page to be removed are in the same old segments; later the tombstone's own
/// segment is reclaimed, possibly before theirs.
fn removed_then_poured(world: &TestEnv, config: &Config, laps: f64) {
    let world = world.fresh(1);
    let mut config = config.clone();
    config.ssd.dirs = world.paths();
    let store = world.open(&config);
    let hot: Vec<ObjectKey> = (0..18).map(key).collect();
    store_pages(&store, 0..9, LEN);
    store_page(&store, 500, LEN);
    store_pages(&store, 9..18, LEN);
    flush(&store);
    assert_eq!(store.remove(&[key(500)], Options::default()), Ok(1));
    let mut next = 1000;
    let total = (laps * LAP as f64) as usize;
    while ((next - 1000) as usize) * LEN < total {
        next = put_until(&store, next, LEN, 10 * LEN);
        store.exists_batch(&hot, Options::default());
    }
    assert_absent(&world, &store, key(500), LEN);
    let store = world.crash(store, &config);
    assert_absent(&world, &store, key(500), LEN);
    let store = world.reopen(store, &config);
    assert_absent(&world, &store, key(500), LEN);
}

fn under(world: &TestEnv, policy: SsdPolicy, checkpoints: u32) {
    let mut config = world.cold_config();
    config.ssd.policy = policy;
    config.ssd.checkpoint_segments = checkpoints;
    for laps in [0.3, 0.9, 1.1, 1.6, 2.3] {
        removed_then_poured(world, &config, laps);
    }
}

pub fn tombstones_survive_reclaim_under_fifo(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    under(world, SsdPolicy::Fifo, 0);
}

pub fn tombstones_survive_reclaim_under_recency(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    under(world, SsdPolicy::Recency, 0);
    under(world, SsdPolicy::Recency, 3);
}

pub fn tombstones_survive_several_crashes(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    let mut config = world.cold_config();
    config.ssd.policy = SsdPolicy::Recency;
    let mut store = world.open(&config);
    store_pages(&store, 0..20, LEN);
    flush(&store);
    assert_eq!(store.remove(&[key(4), key(11)], Options::default()), Ok(2));
    let mut next = 1000;
    for _ in 0..5 {
        next = put_until(&store, next, LEN, LAP / 2);
        store.exists_batch(&[key(3), key(5), key(10), key(12)], Options::default());
        store = world.crash(store, &config);
        assert_absent(world, &store, key(4), LEN);
        assert_absent(world, &store, key(11), LEN);
    }
}

/// A crash lost the head and the first record of a segment and kept the others: open takes it for a
/// spare. Objects removed after that must not be found in it again when its first block is damaged
/// later and it is read record by record. This holds with a checkpoint, which keeps open from
/// reading the tombstone, and without one, when records in it may be younger than the tombstone.
pub fn tombstones_are_not_undone_by_a_segment_without_a_head(world: &TestEnv) {
    if world.constant {
        return; // The records could not be distinguished.
    }
    for checkpointed in [true, false] {
        let world = world.fresh(1);
        let config = world.cold_config();
        let store = world.open(&config);
        store_pages(&store, 0..8, LEN);
        flush(&store);
        store.abandon();
        let first = find(&world, key(0)).record;
        let last = find(&world, key(7)).record;
        assert_eq!(
            first % config.ssd.segment_bytes.expect("said").bytes(),
            4096,
            "the first of a segment"
        );
        world.write(0, "segments", first - 4096, &[0; 8192]);
        let store = world.open(&config);
        assert_absent(&world, &store, key(7), LEN);
        store_page(&store, 7, LEN);
        assert_eq!(store.remove(&[key(7)], Options::default()), Ok(1));
        store.close().expect("closed");
        for file in ["checkpoint.0", "checkpoint.1"].iter().filter(|_| !checkpointed) {
            world.write(0, file, 0, &[0; 4096]);
        }
        assert_eq!(find(&world, key(7)).record, last, "by its number it is still the youngest");
        world.write(0, "segments", first - 4096, &[0xA5; 4096]);
        let store = world.open(&config);
        assert_eq!(store.opened().from_checkpoint, checkpointed);
        assert_absent(&world, &store, key(7), LEN);
    }
}

/// The device acknowledged the head of a segment and lost it. The record after it, whose header is
/// longer than a sector, proves that the segment was used.
pub fn lost_head_before_a_long_record_header_loses_no_object(world: &TestEnv) {
    if world.constant {
        return; // The records could not be distinguished.
    }
    let config = world.cold_config();
    let store = world.open(&config);
    let part = |n: u64| (key_in(namespace("m"), 1, &format!("c{n}")), bytes(n, 100));
    let group: Vec<_> = (0..40).map(part).collect();
    assert_eq!(put_group(&store, &group), Ok(PutOutcome::Stored));
    flush(&store);
    store.abandon();
    let Found { record, payload, .. } = find(world, group[0].0);
    assert!(payload - record > 4096, "a long header");
    assert_eq!(record % config.ssd.segment_bytes.expect("said").bytes(), 4096, "the first record");
    world.write(0, "segments", record - 4096, &[0; 4096]);
    let store = world.open(&config);
    group.iter().for_each(|(key, bytes)| {
        hit(&store, *key, bytes);
    });
}

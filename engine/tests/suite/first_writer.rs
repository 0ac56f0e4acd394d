//! First writer wins: recomputed bytes of the same page differ in the last bits, and that is no
//! error.

use super::harness::Store;
use pagelith::{ErrorKind, PutOutcome};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 9000;

#[track_caller]
fn second_put_changes_nothing(store: &Store) {
    let (first, second) = (bytes(1, LEN), bytes(2, LEN));
    assert_eq!(put(store, key(1), &second), Ok(PutOutcome::AlreadyPresent));
    hit(store, key(1), &first);
}

pub fn second_put_of_a_key_is_not_stored(world: &TestEnv) {
    let store = world.open(&world.config());
    store_page(&store, 1, LEN);
    second_put_changes_nothing(&store);
    assert_eq!((store.stats().puts_stored, store.stats().puts_present), (1, 1));
}

pub fn first_put_on_ssd_wins(world: &TestEnv) {
    let store = world.open(&world.cold_config());
    store_page(&store, 1, LEN);
    flush(&store);
    assert_eq!(store.stats().dram_objects, 0);
    second_put_changes_nothing(&store);
}

pub fn first_put_wins_after_reopen(world: &TestEnv) {
    let config = world.config();
    let store = world.open(&config);
    store_page(&store, 1, LEN);
    let store = world.reopen(store, &config);
    second_put_changes_nothing(&store);
    let store = world.crash(store, &config);
    second_put_changes_nothing(&store);
}

pub fn put_of_another_length_is_invalid(world: &TestEnv) {
    let config = world.config();
    let check = |store: &Store| {
        for len in [LEN - 1, LEN + 1, 1] {
            let message = format!(
                "key is present with another length key={} present={LEN} given={len}",
                key(1)
            );
            refused(put(store, key(1), &bytes(2, len)), ErrorKind::Invalid, &message);
        }
        hit_page(store, 1, LEN);
    };
    let store = world.open(&config);
    store_page(&store, 1, LEN);
    check(&store);
    let store = world.reopen(store, &config);
    check(&store);
    let store = world.crash(store, &config);
    check(&store);
    store.close().expect("closed");
    check(&world.open(&world.cold_config()));
}

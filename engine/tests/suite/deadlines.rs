//! Every wait ends.

use std::time::Duration;

use pagelith::io::fault::FaultOp;
use pagelith::{ErrorKind, GetOutcome, GetSlice, MissCause, Options, PutOutcome, Size};

use super::kit::*;
use super::world::World;

const LEN: usize = 50_000;
const SOON: Options = Options { request: None, depth: 0, timeout: Some(Duration::from_millis(30)) };

pub fn a_put_into_a_pinned_arena_ends_busy(world: &World) {
    let store = world.open(&world.memory_config(Size::kib(256)));
    store_pages(&store, 0..4, LEN);
    let pin = store.pin(&(0..4).map(key).collect::<Vec<_>>());
    for options in [NOW, SOON] {
        let outcome = put_with(&store, key(9), &bytes(9, LEN), options);
        refused(outcome, ErrorKind::Busy, "arena is full of pages in use bytes=50000");
    }
    drop(pin);
    assert_eq!(put_with(&store, key(9), &bytes(9, LEN), NOW), Ok(PutOutcome::Stored));
}

pub fn no_time_at_all(world: &World) {
    let config = world.config();
    let store = world.open(&config);
    assert_eq!(put_with(&store, key(1), &bytes(1, LEN), NOW), Ok(PutOutcome::Stored));
    let get = |store: &pagelith::Store, to: &mut [u8]| {
        let get = GetSlice { key: key(1), range: None, pieces: &mut [to] };
        store.get_batch(&mut [get], NOW).remove(0)
    };
    let mut to = vec![0; LEN];
    assert!(get(&store, &mut to).is_ok_and(|o| o.is_hit()), "memory needs no time");
    let store = world.reopen(store, &config);
    let mut aligned = pagelith::AlignedBuf::new(LEN).expect("memory");
    assert_eq!(get(&store, &mut aligned), Ok(GetOutcome::Miss(MissCause::Late)));
    let mut crooked = Crooked::new(LEN);
    let message = format!("no staging memory in time key={}", key(1));
    refused(get(&store, crooked.slice()), ErrorKind::Busy, &message);
    hit_page(&store, 1, LEN);
}

pub fn flush_and_remove_end_while_syncs_hang(world: &World) {
    let Some(sim) = world.sim() else { return };
    let store = world.open(&world.config());
    store_pages(&store, 0..3, LEN);
    flush(&store);
    store_page(&store, 3, LEN);
    sim.disk.hold(FaultOp::Sync, None);
    refused(store.flush(SOON), ErrorKind::Unavailable, "flush did not end in time");
    refused(store.remove(&[key(1)], SOON), ErrorKind::Unavailable, "remove did not end in time");
    refused(store.clear(namespace("x"), SOON), ErrorKind::Unavailable, "clear did not end in time");
    hit_page(&store, 3, LEN);
    sim.disk.release();
    flush(&store);
    assert_eq!(store.stats().ssd_state, "on");
}

pub fn a_staged_get_ends_while_reads_hang(world: &World) {
    let Some(sim) = world.sim() else { return };
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..3, LEN);
    let store = world.reopen(store, &config);
    sim.disk.hold(FaultOp::Read, None);
    for n in 0..3 {
        let mut crooked = Crooked::new(LEN);
        let get = GetSlice { key: key(n), range: None, pieces: &mut [crooked.slice()] };
        let outcome = store.get_batch(&mut [get], SOON).remove(0);
        assert_eq!(outcome, Ok(GetOutcome::Miss(MissCause::Late)), "n={n}");
    }
    sim.disk.release();
    for n in 0..3 {
        hit_page(&store, n, LEN);
    }
    store.close().expect("closed");
}

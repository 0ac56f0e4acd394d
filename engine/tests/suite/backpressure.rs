//! A writer faster than the disk: it waits or gets `Busy`, and memory stays within its limit.

use std::time::Duration;

use pagelith::{CompletedBatch, ErrorKind, Options, Put, PutGroup, PutOutcome, PutSlice, Source};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 128 << 10;

pub fn full_arena_answers_busy_at_once(world: &TestEnv) {
    if world.constant {
        return; // A put that reads the header of an equal fingerprint gives the flusher time.
    }
    // The write buffer holds two segments, so sixteen of these. A batch reaches the flusher in
    // steps of 4 MiB or at its end: nothing of this one is written before the arena is full.
    let store = world.open(&world.cold_config());
    let mut session = store.session().expect("a session");
    let groups = (0..24)
        .map(|n| {
            PutGroup::new(vec![Put { key: key(n), source: Source::shared(bytes(n, LEN).into()) }])
        })
        .collect();
    let ticket = session.submit_put(groups, Options::default());
    let Some(CompletedBatch::Put(done)) = session.wait(ticket, Duration::from_secs(30)) else {
        panic!("no put")
    };
    for (n, done) in (0u64..).zip(done) {
        match n {
            0..16 => assert_eq!(done.outcome, Ok(PutOutcome::Stored), "n={n}"),
            _ => refused(done.outcome, ErrorKind::Busy, &no_room(LEN)),
        }
    }
    assert_eq!((store.stats().puts_stored, store.stats().puts_busy), (16, 8));
    flush(&store);
    for n in 0..16 {
        hit_page(&store, n, LEN);
    }
    for n in 16..24 {
        assert!(!is_page_present(&store, n, LEN), "a busy page is present n={n}");
    }
}

pub fn put_without_wait_is_answered_at_once(world: &TestEnv) {
    // As above: the arena is full when the batch ends; within the whole timeout there would soon be
    // room.
    let store = world.open(&world.cold_config());
    let data: Vec<_> = (0..24).map(|n| bytes(n, LEN)).collect();
    let pieces: Vec<[&[u8]; 1]> = data.iter().map(|d| [&d[..]]).collect();
    let puts: Vec<_> =
        (0u64..).zip(&pieces).map(|(n, pieces)| PutSlice { key: key(n), pieces }).collect();
    let outcomes = store.put_batch(&puts, Options::default().wait(Duration::ZERO));
    let stored = outcomes.iter().filter(|outcome| **outcome == Ok(PutOutcome::Stored)).count();
    if world.is_embedded() {
        let busy = store.stats().puts_busy;
        // A put that reads the header of an equal fingerprint gives the flusher time.
        assert!((stored as u64, busy) == (16, 8) || world.constant, "stored={stored} busy={busy}");
        assert_eq!(stored as u64 + busy, 24);
    }
    flush(&store);
    for (n, outcome) in (0u64..).zip(outcomes) {
        assert_eq!(is_page_present(&store, n, LEN), outcome == Ok(PutOutcome::Stored), "n={n}");
        let busy = |error: pagelith::Error| assert_eq!(error.kind, ErrorKind::Busy, "n={n}");
        outcome.map_or_else(busy, |_| ());
    }
}

pub fn waiting_writer_stores_everything(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    let config = world.cold_config();
    let store = world.open(&config);
    let data: Vec<_> = (0..80).map(|n| bytes(n, LEN)).collect();
    let pieces: Vec<[&[u8]; 1]> = data.iter().map(|d| [&d[..]]).collect();
    let puts: Vec<_> =
        (0u64..).zip(&pieces).map(|(n, pieces)| PutSlice { key: key(n), pieces }).collect();
    let outcomes = store.put_batch(&puts, Options::default());
    assert_eq!(outcomes, vec![Ok(PutOutcome::Stored); 80]);
    let stats = store.stats();
    // Over a link, objects may arrive no faster than they are written.
    assert!(stats.puts_busy > 0 || !world.is_embedded(), "it met a full arena {stats:?}");
    assert!(stats.dram_peak_bytes <= 2 << 20, "{stats:?}");
    assert_eq!(stats.puts_stored, 80);
    flush(&store);
    assert_eq!(store.stats().unflushed_bytes, 0);
    for n in 0..80 {
        hit_page(&store, n, LEN);
    }
}

pub fn abandoned_writer_leaves_nothing_torn(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    let config = world.cold_config();
    let mut store = world.open(&config);
    for round in 0..4 {
        store_pages(&store, round * 100..round * 100 + 40, LEN);
        store = world.crash(store, &config);
        // Any of them may be lost; none may be wrong.
        let here =
            (round * 100..round * 100 + 40).filter(|n| is_page_present(&store, *n, LEN)).count();
        assert!(here >= 40 - 17, "the arena holds at most 17 unwritten pages here={here}");
    }
}

//! Bytes that change on SSD: a miss, counted, and no other object lost.

use super::harness::Store;
use pagelith::io::fault::{FaultKind, FaultOp};
use pagelith::layouts::key::ObjectKey;
use pagelith::{
    CompletedBatch, Destination, Get, GetOutcome, MissCause, Options, PutOutcome, Tier,
};
use pagelith_sim::disk::FaultPlan;

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 100_000;

#[track_caller]
fn damaged(world: &TestEnv, store: &Store, key: ObjectKey, len: usize) {
    let mut to = pagelith::AlignedBuf::new(len).expect("memory");
    let outcome = get_into(store, key, &mut to);
    if world.tells_keys_apart() {
        assert_eq!(outcome, Ok(GetOutcome::Miss(MissCause::Damaged)), "key={key}");
        assert_eq!(
            store.exists_batch(&[key], Options::default()),
            [false],
            "the next exists says no"
        );
        assert!(to.iter().all(|b| *b == 0), "nothing of it is handed out");
    } else {
        assert_eq!(outcome.as_ref().map(GetOutcome::is_hit), Ok(false), "key={key} {outcome:?}");
    }
}

/// Eight pages, closed.
fn closed(world: &TestEnv) -> pagelith::Config {
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..8, LEN);
    store.close().expect("closed");
    config
}

fn others_are_intact(store: &Store, without: u64) {
    (0..8).filter(|n| *n != without).for_each(|n| {
        hit_page(store, n, LEN);
    });
}

pub fn damage_in_a_payload_is_a_miss(world: &TestEnv) {
    // First, middle and last byte, each of a different page.
    for (n, at) in [(2, 0), (3, 50_000), (4, LEN as u64 - 1)] {
        for crooked in [false, true] {
            let world = world.fresh(1);
            let config = closed(&world);
            world.flip(0, "segments", find(&world, key(n)).payload + at);
            let store = world.open(&config);
            if crooked && world.tells_keys_apart() {
                let mut to = Unaligned::new(LEN);
                let outcome = get_into(&store, key(n), to.slice());
                assert_eq!(outcome, Ok(GetOutcome::Miss(MissCause::Damaged)));
                assert_absent(&world, &store, key(n), LEN);
            } else {
                damaged(&world, &store, key(n), LEN);
            }
            if world.tells_keys_apart() {
                assert_eq!(store.stats().damaged, 1);
            }
            others_are_intact(&store, n);
            // It can be put again, and stays.
            if world.tells_keys_apart() {
                store_page(&store, n, LEN);
                hit_page(&world.reopen(store, &config), n, LEN);
            }
        }
    }
}

pub fn damage_in_a_header_is_a_miss(world: &TestEnv) {
    // Magic, checksum, lengths, key, block checksums.
    for at in [0, 9, 70, 200, 400] {
        let world = world.fresh(1);
        let config = closed(&world);
        world.flip(0, "segments", find(&world, key(5)).record + at);
        let store = world.open(&config);
        damaged(&world, &store, key(5), LEN);
        if world.tells_keys_apart() {
            others_are_intact(&store, 5);
        }
    }
}

pub fn damaged_footer_loses_no_object(world: &TestEnv) {
    let mut config = world.config();
    config.ssd.checkpoint_segments = 0;
    let store = world.open(&config);
    store_pages(&store, 0..40, LEN);
    flush(&store);
    store.abandon();
    let intact = world.open(&config);
    let (footers, scanned) = (intact.opened().footers, intact.opened().scanned_segments);
    assert!(footers > 1 && scanned <= 1, "footers={footers} scanned={scanned}");
    intact.abandon();
    let first_segment = find(world, key(0)).record >> 20 << 20;
    world.flip(0, "segments", first_segment + (1 << 20) - 40);
    let store = world.open(&config);
    let report = store.opened().clone();
    assert_eq!(report.scanned_segments, 1, "{report:?}");
    assert_eq!(report.torn_records, 0, "{report:?}");
    for n in 0..40 {
        hit_page(&store, n, LEN);
    }
    // The close wrote it again.
    let store = world.crash(store, &config);
    assert_eq!(store.opened().scanned_segments, 0, "{:?}", store.opened());
}

/// The device acknowledged a segment header and lost it; the records after it were flushed.
pub fn damaged_segment_head_loses_no_object(world: &TestEnv) {
    let mut config = world.config();
    config.ssd.checkpoint_segments = 0;
    let store = world.open(&config);
    store_pages(&store, 0..40, LEN);
    store.remove(&[key(0)], Options::default()).expect("removed");
    store_pages(&store, 40..60, LEN);
    flush(&store);
    store.abandon();
    for n in [1, 39] {
        world.write(0, "segments", find(world, key(n)).record >> 20 << 20, &[0; 4096]);
    }
    let store = world.open(&config);
    for n in 1..60 {
        hit_page(&store, n, LEN);
    }
    assert_absent(world, &store, key(0), LEN);
}

pub fn damage_in_a_group_drops_the_whole_group(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Group members cannot be distinguished from other objects.
    }
    let config = world.config();
    let store = world.open(&config);
    for n in 0..3 {
        assert_eq!(put_group(&store, &group(n, 6)), Ok(PutOutcome::Stored));
    }
    store.close().expect("closed");
    let page = group(1, 6);
    world.flip(0, "segments", find(world, page[4].0).payload + 10);
    let store = world.open(&config);
    damaged(world, &store, page[4].0, page[4].1.len());
    let keys: Vec<ObjectKey> = page.iter().map(|(key, _)| *key).collect();
    assert_eq!(store.exists_batch(&keys, Options::default()), [false; 6]);
    for n in [0, 2] {
        group(n, 6).iter().for_each(|(key, bytes)| assert!(is_present(&store, *key, bytes)));
    }
    assert_eq!(put_group(&store, &page), Ok(PutOutcome::Stored));
    page.iter().for_each(|(key, bytes)| assert!(is_present(&store, *key, bytes)));
}

pub fn damage_is_found_only_by_ranges_that_contain_it(world: &TestEnv) {
    if !world.tells_keys_apart() {
        return; // Independent of fingerprints.
    }
    let config = closed(world);
    // In the second block.
    world.flip(0, "segments", find(world, key(5)).payload + 40_000);
    let store = world.open(&config);
    let whole = bytes(5, LEN);
    for range in [0..10, 65_536..100_000] {
        let expected = &whole[range.start as usize..range.end as usize];
        let mut to = vec![0; expected.len()];
        let outcome = get_range(&store, key(5), Some(range), &mut to);
        assert_eq!(outcome.as_ref().map(GetOutcome::is_hit), Ok(true), "{outcome:?}");
        assert!(to == expected);
    }
    // Another byte of that block.
    let outcome = get_range(&store, key(5), Some(32_768..32_769), &mut [0]);
    assert_eq!(outcome, Ok(GetOutcome::Miss(MissCause::Damaged)));
    assert_absent(world, &store, key(5), LEN);
}

/// A valid record in the place of another: a misdirected write.
pub fn misplaced_record_is_a_miss(world: &TestEnv) {
    let config = closed(world);
    let file = world.read(0, "segments");
    let (from, to) = (find(world, key(3)), find(world, key(5)));
    assert_eq!(from.record_bytes, to.record_bytes);
    let record = &file[from.record as usize..(from.record + from.record_bytes) as usize];
    world.write(0, "segments", to.record, record);
    let store = world.open(&config);
    damaged(world, &store, key(5), LEN);
    if world.tells_keys_apart() {
        others_are_intact(&store, 5);
    }
}

/// Two gets of a page are in flight; one promotes it, the other cannot read it. The page stays
/// durable: it is written again from memory.
pub fn damage_found_during_promotion_loses_no_object(world: &TestEnv) {
    let Some(sim) = world.sim().filter(|_| world.tells_keys_apart()) else { return };
    let mut config = world.config();
    config.dram.promote = pagelith::config::Promote::Always;
    let store = world.open(&config);
    store_page(&store, 1, LEN);
    let store = world.reopen(store, &config);
    let mut session = store.session().expect("a session");
    // The first get makes the first read; the second get tries twice.
    for nth in [2, 3] {
        sim.disk.inject(FaultPlan::Fail { op: FaultOp::Read, nth, kind: FaultKind::Device });
    }
    let get = || Get {
        key: key(1),
        range: None,
        destination: Destination::owned(pagelith::AlignedBuf::new(LEN).expect("memory")),
    };
    let tickets = [(); 2].map(|()| session.submit_get(vec![get()], Options::default()));
    let outcomes =
        tickets.map(|ticket| match session.wait(ticket, std::time::Duration::from_secs(30)) {
            Some(CompletedBatch::Get(mut done)) => done.remove(0).outcome,
            other => panic!("{other:?}"),
        });
    assert_eq!(outcomes[0], Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes: LEN as u64 }));
    assert_eq!(outcomes[1], Ok(GetOutcome::Miss(MissCause::Unreadable)));
    drop(session);
    assert_eq!(hit_page(&store, 1, LEN), Tier::Memory);
    assert_eq!(put(&store, key(1), &bytes(1, LEN)), Ok(PutOutcome::AlreadyPresent));
    let store = world.reopen(store, &config);
    assert_eq!(hit_page(&store, 1, LEN), Tier::Ssd);
}

//! Every wait is bounded.

use std::time::Duration;

use pagelith::io::fault::FaultOp;
use pagelith::{ErrorKind, GetOutcome, GetSlice, MissCause, Options, PutOutcome, Size};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 50_000;
const SOON: Options = Options::within(Duration::from_millis(30));

pub fn put_into_a_pinned_arena_ends_busy(world: &TestEnv) {
    let store = world.open(&world.memory_config(Size::kib(256)));
    store_pages(&store, 0..4, LEN);
    let pin = store.pin(&(0..4).map(key).collect::<Vec<_>>());
    for options in [NOW, SOON] {
        let outcome = put_with(&store, key(9), &bytes(9, LEN), options);
        match world.is_embedded() {
            true => refused(outcome, ErrorKind::Busy, &no_room(LEN)),
            // The last try may have timed out.
            false => {
                let kind = outcome.expect_err("there is no room").kind;
                assert!(kind == ErrorKind::Busy || kind == ErrorKind::Unavailable, "{kind:?}");
            }
        }
    }
    drop(pin);
    let outcome = put_with(&store, key(9), &bytes(9, LEN), NOW);
    // A put that timed out may have been stored as soon as there was room.
    let stored_late = !world.is_embedded() && outcome == Ok(PutOutcome::AlreadyPresent);
    assert!(outcome == Ok(PutOutcome::Stored) || stored_late, "{outcome:?}");
    hit_page(&store, 9, LEN);
}

pub fn calls_with_zero_timeout_return_at_once(world: &TestEnv) {
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
    let mut crooked = Unaligned::new(LEN);
    let remedy = "align the destination to 4096 bytes, or raise staging.bytes";
    let message = format!("no staging memory in time; {remedy} key={} bytes={LEN}", key(1));
    refused(get(&store, crooked.slice()), ErrorKind::Busy, &message);
    hit_page(&store, 1, LEN);
}

pub fn flush_and_remove_end_while_syncs_hang(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    let store = world.open(&world.config());
    store_pages(&store, 0..3, LEN);
    put_into_namespace(&store, "x");
    flush(&store);
    store_page(&store, 3, LEN);
    sim.disk.hold(FaultOp::Sync, None);
    let late = |error: pagelith::Error, what: &str| match world.is_embedded() {
        true => assert_eq!(
            error.message,
            format!("{what} did not end in time; raise its timeout, or see `ssd_state`")
        ),
        // A client waits no longer.
        false => assert_eq!(error.kind, ErrorKind::Unavailable),
    };
    late(store.flush(SOON).expect_err("a sync hangs"), "flush");
    late(store.remove(&[key(1)], SOON).expect_err("a sync hangs"), "remove");
    late(store.clear(namespace("x"), SOON).expect_err("a sync hangs"), "clear");
    hit_page(&store, 3, LEN);
    sim.disk.release();
    flush(&store);
    assert_eq!(store.stats().ssd_state, "on");
}

/// A direct read that hangs returns late. While the kernel owns its memory, all other reads are
/// staged and end in time, even if some of them succeed.
pub fn reads_are_staged_while_a_direct_read_is_late(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    if world.constant {
        return; // Each get would read several records.
    }
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..6, LEN);
    let store = world.reopen(store, &config);
    let mut stuck = store.session().expect("a session");
    let mut session = store.session().expect("a session");
    let submit = |session: &mut pagelith::Session, n: u64| {
        let destination =
            pagelith::Destination::owned(pagelith::AlignedBuf::new(LEN).expect("memory"));
        session.submit_get(vec![pagelith::Get { key: key(n), range: None, destination }], SOON)
    };
    let outcome = |session: &mut pagelith::Session, ticket| match session
        .wait(ticket, Duration::from_millis(40))
    {
        Some(pagelith::CompletedBatch::Get(mut done)) => Some(done.remove(0).outcome),
        Some(other) => panic!("{other:?}"),
        None => None,
    };
    sim.disk.hold(FaultOp::Read, None);
    let late = submit(&mut stuck, 0);
    assert_eq!(outcome(&mut stuck, late), None, "its memory is the kernel's");
    assert_eq!(store.stats().late_direct, 1);
    let ticket = submit(&mut session, 1);
    assert_eq!(
        outcome(&mut session, ticket),
        Some(Ok(GetOutcome::Miss(MissCause::Late))),
        "staged: it ends"
    );
    // Reads complete again, but the first completion has not been polled yet.
    sim.disk.release();
    let before = store.stats().staged_bytes;
    for n in 2..4 {
        let ticket = submit(&mut session, n);
        assert!(
            outcome(&mut session, ticket).is_some_and(|o| o.is_ok_and(|o| o.is_hit())),
            "n={n}"
        );
    }
    assert!(store.stats().staged_bytes >= before + 2 * LEN as u64, "one read in time is no proof");
    assert!(outcome(&mut stuck, late).is_some(), "it is back");
    for n in 4..6 {
        let ticket = submit(&mut session, n);
        assert!(
            outcome(&mut session, ticket).is_some_and(|o| o.is_ok_and(|o| o.is_hit())),
            "n={n}"
        );
    }
    let staged = store.stats().staged_bytes;
    hit_page(&store, 4, LEN);
    assert_eq!(store.stats().staged_bytes, staged, "reads are direct again");
    assert_eq!(store.stats().late_direct, 1);
}

/// A drive that completes all reads, but too late for some deadlines: only the first of those gets
/// is late.
pub fn get_with_a_deadline_below_recent_latency_ends_in_time(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    if world.constant || !world.is_embedded() {
        return; // Each get would read several records, or be staged by the server.
    }
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..12, LEN);
    let store = world.reopen(store, &config);
    let now = || pagelith::io::clock::Clock::now(&sim.clock);
    let get = |n: u64, options: Options| {
        let (began, mut to) = (now(), pagelith::AlignedBuf::new(LEN).expect("memory"));
        let get = GetSlice { key: key(n), range: None, pieces: &mut [&mut to] };
        let outcome = store.get_batch(&mut [get], options).remove(0).expect("no error");
        (outcome, now().since(began))
    };
    // A waiting session checks deadlines every 20 ms.
    let in_time = Duration::from_millis(60);
    sim.disk.set_latency(Duration::from_millis(100));
    let (_, took) = get(0, SOON);
    assert!(took > in_time, "nothing was known of the drive: {took:?}");
    assert_eq!(store.stats().late_direct, 1);
    // A get with enough time shows that the drive works, so it no longer counts as hung.
    assert!(get(1, Options::default()).0.is_hit());
    for n in 2..6 {
        let (outcome, took) = get(n, SOON);
        assert_eq!(outcome, GetOutcome::Miss(MissCause::Late), "n={n}");
        assert!(took <= in_time, "n={n} {took:?}");
        let staged = store.stats().staged_bytes;
        assert!(get(n, Options::default()).0.is_hit(), "n={n}");
        assert_eq!(store.stats().staged_bytes, staged, "there was time enough n={n}");
    }
    assert_eq!(store.stats().late_direct, 1);
    // A batch of which only the last reads would be late waits no longer for them than for the
    // others.
    let mut to: Vec<_> = (0..6).map(|_| pagelith::AlignedBuf::new(LEN).expect("memory")).collect();
    let mut pieces: Vec<_> = to.iter_mut().map(|to| [&mut to[..]]).collect();
    let mut gets: Vec<_> = (6..)
        .zip(&mut pieces)
        .map(|(n, pieces)| GetSlice { key: key(n), range: None, pieces })
        .collect();
    let began = now();
    let outcomes = store.get_batch(&mut gets, SOON);
    assert!(now().since(began) <= in_time);
    assert!(
        outcomes.iter().all(|outcome| *outcome == Ok(GetOutcome::Miss(MissCause::Late))),
        "{outcomes:?}"
    );
    // The drive is fast again, and has been for a while.
    sim.disk.set_latency(Duration::from_micros(100));
    sim.clock.advance(Duration::from_secs(120));
    let staged = store.stats().staged_bytes;
    assert!(get(2, SOON).0.is_hit());
    assert_eq!((store.stats().staged_bytes, store.stats().late_direct), (staged, 1));
}

/// Every call that uses the device ends while the device hangs.
pub fn every_call_ends_while_the_device_hangs(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    if world.constant {
        return; // Each lookup would read several records.
    }
    let mut config = world.config();
    config.deadline_ms = 200;
    let store = world.open(&config);
    store_pages(&store, 0..6, LEN);
    let store = world.reopen(store, &config);
    for op in [FaultOp::Read, FaultOp::Write, FaultOp::Sync] {
        sim.disk.hold(op, None);
    }
    let took = |what: &str, began: pagelith::io::clock::Mono| {
        let took = pagelith::io::clock::Clock::now(&sim.clock).since(began);
        assert!(took <= Duration::from_millis(450), "{what} took {took:?}");
    };
    let now = || pagelith::io::clock::Clock::now(&sim.clock);
    let mut crooked = Unaligned::new(LEN);
    let began = now();
    assert_eq!(get_into(&store, key(1), crooked.slice()), Ok(GetOutcome::Miss(MissCause::Late)));
    took("get", began);
    // A put that must read a header first.
    let began = now();
    let outcome = put(&store, key(2), &bytes(2, LEN)).map_err(|e| e.kind);
    match world.is_embedded() {
        true => assert_eq!(outcome, Err(ErrorKind::Busy)),
        // Over a link, only the index is consulted before the reply.
        false => assert_eq!(outcome, Ok(PutOutcome::AlreadyPresent)),
    }
    took("put", began);
    for (what, call) in [
        (
            "remove",
            Box::new(|| store.remove(&[key(3)], Options::default()).map(|_| ()))
                as Box<dyn Fn() -> _>,
        ),
        ("clear", Box::new(|| store.clear(namespace("m"), Options::default()).map(|_| ()))),
        ("flush", Box::new(|| store.flush(Options::default()).map(|_| ()))),
    ] {
        let began = now();
        assert_eq!(
            call().map_err(|e: pagelith::Error| e.kind),
            Err(ErrorKind::Unavailable),
            "{what}"
        );
        took(what, began);
    }
    // Puts continue in memory.
    let began = now();
    assert_eq!(put(&store, key(50), &bytes(50, LEN)), Ok(PutOutcome::Stored));
    took("put", began);
    let began = now();
    assert_eq!(store.close().map_err(|e| e.kind), Err(ErrorKind::Unavailable));
    let took_all = now().since(began);
    assert!(took_all <= Duration::from_millis(1000), "close took {took_all:?}");
    sim.disk.release();
}

/// An open ends too; it waits for the drive for at least 30 s.
pub fn open_ends_while_reads_hang(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    let mut config = world.config();
    config.deadline_ms = 200;
    let store = world.open(&config);
    store_pages(&store, 0..6, LEN);
    store.close().expect("closed");
    for op in [FaultOp::Read, FaultOp::Sync] {
        sim.disk.hold(op, None);
        let began = pagelith::io::clock::Clock::now(&sim.clock);
        let opened = world.try_open(&config).map(|_| ());
        let took = pagelith::io::clock::Clock::now(&sim.clock).since(began);
        assert!(took <= Duration::from_secs(31), "op={op} took {took:?}");
        assert!(opened.is_err(), "op={op}");
        sim.disk.release();
    }
    hit_page(&world.open(&config), 1, LEN);
}

pub fn staged_get_ends_while_reads_hang(world: &TestEnv) {
    let Some(sim) = world.sim() else { return };
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..3, LEN);
    let store = world.reopen(store, &config);
    sim.disk.hold(FaultOp::Read, None);
    for n in 0..3 {
        let mut crooked = Unaligned::new(LEN);
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

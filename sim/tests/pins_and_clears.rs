//! Race moments that no plan reaches by itself, searched in small steps of time.

mod support;

use std::time::Duration;

use pagelith::{AlignedBuf, CompletedBatch, Destination, Get, GetOutcome, Options, Tier};
use pagelith_sim::disk::CrashMode;
use pagelith_sim::env::SimWorld;
use support::check::{CRASHES, record};
use support::objects::{key, length};
use support::plan::Step::*;
use support::plan::{Plan, Shape};
use support::run::Run;

/// Pins after `wait` while the log is reclaimed; returns whether the pin held.
fn pin_at(pages: u32, wait: Duration) -> bool {
    let shape = Shape { promote: false, ..Shape::TIGHT };
    let world = SimWorld::with_dirs(1, shape.dirs);
    let mut run = Run::new(&world, shape);
    assert!(run.open());
    for step in [Group(0), Flush, Fill(10, pages)] {
        run.step(step);
    }
    world.runtime.run_for(wait);
    let store = run.store.take().expect("an open store");
    let keys = &[key(0, "k"), key(0, "v")];
    let pin = store.pin(keys);
    let held = pin.pinned() == 2;
    run.store = Some(store);
    run.step(Fill(100, 30));
    let answers = run.get_keys(keys).expect("a disk that runs");
    let here = answers.values().all(Option::is_some);
    assert!(here || !held, "pinned and gone pages={pages} wait={wait:?} {answers:?}");
    drop(pin);
    world.crash(CrashMode::KeepAll);
    assert!(run.wrong.is_empty(), "pages={pages} wait={wait:?} {:?}", run.wrong);
    held
}

#[test]
fn pin_taken_during_reclaim_of_its_segment_holds() {
    let mut outcomes = [0, 0];
    for pages in 16..34 {
        for wait in 0..8 {
            outcomes[usize::from(pin_at(pages, Duration::from_micros(wait * 97)))] += 1;
        }
    }
    assert!(outcomes.iter().all(|n| *n > 5), "both sides of the moment are met {outcomes:?}");
}

/// The machine crashes after `changes` changes, while a reopened store reclaims a full log: with no
/// segment in reserve it reuses freed segments at once. Returns whether the changes sufficed for
/// the whole plan.
fn crash_during_reclaim(changes: u64, pages: u32, mode: CrashMode) -> bool {
    let shape = Shape { promote: false, ..Shape::TIGHT };
    let world = SimWorld::with_dirs(changes, shape.dirs);
    let mut run = Run::new(&world, shape);
    assert!(run.open());
    for step in [Fill(0, pages), Flush, Abandon] {
        run.step(step);
    }
    assert!(run.store.is_some() || run.open());
    let store = run.store.take().expect("an open store");
    let here = |page: &u32| {
        let keys = [key(*page, "k"), key(*page, "v")];
        store.exists_batch(&keys, Options::default()) == [true, true]
    };
    // The oldest is in the next victim.
    let page = (0..pages).find(here).expect("something is left");
    let keys = &[key(page, "k"), key(page, "v")];
    let pin = store.pin(keys);
    assert_eq!(pin.pinned(), 2);
    run.store = Some(store);
    world.disk.stop_after(changes);
    run.step(Fill(1000, 40));
    let whole = !world.disk.stopped();
    world.crash(mode);
    run.store = None;
    drop(pin);
    assert!(run.open(), "{:?}", run.wrong);
    let store = run.store.as_ref().expect("an open store");
    let here = store.exists_batch(keys, Options::default());
    assert_eq!(
        here,
        [true, true],
        "pinned, flushed and gone changes={changes} pages={pages} mode={mode:?}"
    );
    whole
}

#[test]
fn pinned_durable_object_survives_crash_at_each_change_of_reclaim() {
    for mode in [CrashMode::DropAll, CrashMode::Random] {
        let moments = (0..).take_while(|n| !crash_during_reclaim(*n, 60, mode)).count();
        assert!(moments > 40, "reclaim was hardly met moments={moments}");
    }
}

#[test]
fn put_after_unawaited_clear_survives_checkpoints() {
    let shape = Shape { checkpoint: 1, ..Shape::ROOMY };
    let steps = vec![
        Group(0),
        Flush,
        HastyRemoval(0),
        Group(0),
        Flush,
        Abandon,
        Group(2),
        Flush,
        Close,
        Get(0),
    ];
    let recorded = record(&Plan { name: "hasty_clear", shape, steps, after: Vec::new() }, None);
    let found = recorded.findings(&CRASHES, false, 3);
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn lease_expires_and_pin_does_not() {
    let world = SimWorld::new(1);
    let mut run = Run::new(&world, Shape::TIGHT);
    assert!(run.open());
    for step in [Group(0), Group(2), Flush] {
        run.step(step);
    }
    let store = run.store.take().expect("an open store");
    let _pin = store.pin(&[key(0, "k"), key(0, "v")]);
    assert_eq!(store.lease(&[key(2, "k"), key(2, "v")], Duration::from_millis(1)), 2);
    run.store = Some(store);
    world.clock.advance(Duration::from_millis(2));
    run.step(Fill(10, 60));
    let store = run.store.as_ref().expect("an open store");
    let here = store.exists_batch(&[key(0, "k"), key(0, "v"), key(2, "k")], Options::default());
    assert_eq!(here, [true, true, false]);
    world.crash(CrashMode::KeepAll);
}

/// A read stays in flight while the log wraps. The disk refuses operations that overlap one in
/// flight.
#[test]
fn segment_with_read_in_flight_is_not_overwritten() {
    const READ_TIME: Duration = Duration::from_secs(60);
    const LATENCY: Duration = Duration::from_micros(100);
    let shape = Shape { promote: false, ..Shape::TIGHT };
    let world = SimWorld::with_dirs(1, shape.dirs);
    let mut run = Run::new(&world, shape);
    assert!(run.open());
    // After the reopening the page is on SSD only.
    for step in [Group(0), Flush, Abandon] {
        run.step(step);
    }
    assert!(run.store.is_some() || run.open());
    let store = run.store.take().expect("an open store");
    let mut session = store.session().expect("a session");
    let memory = AlignedBuf::new(length(&key(0, "k"))).expect("memory");
    let get = Get { key: key(0, "k"), range: None, destination: Destination::owned(memory) };
    let options = Options::default().timeout(2 * READ_TIME);
    world.disk.set_latency(READ_TIME);
    let ticket = session.submit_get(vec![get], options);
    assert!(session.poll().is_none(), "the read is in flight");
    world.disk.set_latency(LATENCY);
    let reclaimed = store.stats().segments_reclaimed;
    run.store = Some(store);
    run.step(Fill(100, 80));
    let store = run.store.take().expect("an open store");
    let lap = u64::from(shape.ssd_mib);
    assert!(store.stats().segments_reclaimed > reclaimed + lap, "{:?}", store.stats());
    assert!(session.poll().is_none(), "the read is in flight still");
    let Some(CompletedBatch::Get(done)) = session.wait(ticket, 2 * READ_TIME) else {
        panic!("the get does not end")
    };
    assert!(
        matches!(done[0].outcome, Ok(GetOutcome::Hit { tier: Tier::Ssd, .. })),
        "{:?}",
        done[0].outcome
    );
    assert!(run.wrong.is_empty(), "{:?}", run.wrong);
}

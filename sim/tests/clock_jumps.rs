//! The clock jumps forward by an hour, as on a machine that slept: an operation just submitted is
//! not given up because of it.

mod support;

use std::time::Duration;

use pagelith_sim::disk::CrashMode;
use pagelith_sim::env::SimWorld;
use support::plan::Shape;
use support::plan::Step::*;
use support::run::Run;

/// Puts, waits `us` microseconds, lets the clock jump, flushes, and puts again: nothing fails.
fn jump_after(us: u64) {
    let world = SimWorld::with_dirs(1, Shape::ROOMY.dirs);
    let mut run = Run::new(&world, Shape::ROOMY);
    assert!(run.open());
    for round in 0..3 {
        run.step(Group(round));
        run.step(Idle(us));
        world.clock.advance(Duration::from_secs(3600));
        run.step(Single(10 + round));
        run.step(Flush);
    }
    run.check_all_keys();
    let state = run.store.as_ref().map(|store| store.stats().ssd_state);
    assert_eq!(state.as_deref(), Some("on"), "us={us}");
    assert!(run.wrong.is_empty(), "us={us} {:?}", run.wrong);
    world.crash(CrashMode::KeepAll);
}

#[test]
fn clock_jump_fails_no_call_at_rest_or_in_flight() {
    // A write takes 100 us; after 500 ms the background task is idle.
    for us in (0..400).step_by(13).chain([5_000, 500_000]) {
        jump_after(us);
    }
}

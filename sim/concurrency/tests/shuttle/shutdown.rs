//! Several threads send requests to the flusher at once; then the store is closed, or the machine
//! loses power.

use std::time::Duration;

use pagelith::{
    AlignedBuf, CompletedBatch, Destination, ErrorKind, Get, Options, PutOutcome, PutSlice, Size,
};
use pagelith_sim::disk::CrashMode;

use super::env::{World, tiers};
use super::explore::explore;
use super::helpers::{Scenario, bytes_of, get_pair, is_allowed, part, put_pair, run_all, thread};

const LEN: usize = 8 << 10;

/// After a power cut, objects covered by a flush are present, removed ones are not, and groups are
/// whole, whichever thread flushed or removed, and whichever syncs they shared.
#[test]
fn objects_flushed_by_several_threads_survive_power_cut() {
    explore("objects_flushed_by_several_threads_survive_power_cut", 1200, || {
        let world = World::new();
        let config = tiers(Size::mib(1));
        let scenario = Scenario::new(&world, &config, LEN);
        assert_eq!(scenario.put(3, 30), Ok(PutOutcome::Stored));
        run_all(vec![
            thread(&scenario, |p| {
                assert_eq!(p.put(1, 10), Ok(PutOutcome::Stored));
                p.flush();
            }),
            thread(&scenario, |p| {
                assert_eq!(put_pair(p, 2, 20), Ok(PutOutcome::Stored));
                p.flush();
            }),
            thread(&scenario, |p| {
                p.get(1);
                p.remove(3);
            }),
        ]);
        world.sim.crash_seeded(CrashMode::DropAll, 1);
        let scenario = scenario.reopened(&world, &config, drop);
        assert_eq!(scenario.get(1), Some(10), "flushed and gone");
        assert_eq!(get_pair(&scenario, 2), [Some(20); 2], "flushed and gone");
        assert_eq!(scenario.get(3), None, "removed and back");
        scenario.ends_clean();
    });
}

/// A caller whose put found the object present and that then flushes has it durable, even if the
/// first writer's batch is not finished.
#[test]
fn flush_after_present_put_makes_object_durable() {
    explore("flush_after_present_put_makes_object_durable", 1000, || {
        let world = World::new();
        let config = tiers(Size::mib(1));
        let scenario = Scenario::new(&world, &config, LEN);
        run_all(vec![
            thread(&scenario, |p| {
                let bytes = bytes_of(10, LEN);
                let pieces = [&bytes[..]];
                let puts = [1, 2].map(|page| PutSlice { key: part(page, 0), pieces: &pieces });
                let begun = p.history.begin_put(1, 10);
                let outcomes = p.store.put_batch(&puts, Options::default());
                p.history.end(begun, outcomes[0] == Ok(PutOutcome::Stored));
            }),
            thread(&scenario, |p| {
                assert!(is_allowed(&p.put(1, 10)));
                p.flush();
            }),
        ]);
        world.sim.crash_seeded(CrashMode::DropAll, 1);
        let scenario = scenario.reopened(&world, &config, drop);
        assert_eq!(scenario.get(1), Some(10), "flushed and gone");
        scenario.ends_clean();
    });
}

/// A close during puts and gets: they finish or return `Closed`, and objects put before are present
/// afterwards.
#[test]
fn close_during_calls_keeps_stored_objects() {
    explore("close_during_calls_keeps_stored_objects", 1200, || {
        let world = World::new();
        let config = tiers(Size::mib(1));
        let scenario = Scenario::new(&world, &config, LEN);
        assert_eq!(scenario.put(1, 10), Ok(PutOutcome::Stored));
        run_all(vec![
            thread(&scenario, |p| {
                let outcome = p.put(2, 20);
                assert!(is_allowed(&outcome), "{outcome:?}");
                p.get(1);
            }),
            thread(&scenario, |p| {
                p.flush();
            }),
        ]);
        let mut session = scenario.store.session().expect("a session");
        let late = shuttle::thread::spawn(move || {
            let memory = AlignedBuf::new(LEN).expect("memory");
            let get = Get { key: part(1, 0), range: None, destination: Destination::owned(memory) };
            let ticket = session.submit_get(vec![get], Options::default());
            let Some(CompletedBatch::Get(mut done)) = session.wait(ticket, Duration::from_secs(50))
            else {
                panic!("a get did not end")
            };
            match done.remove(0).outcome {
                Ok(outcome) => assert!(outcome.is_hit(), "{outcome:?}"),
                Err(error) => assert_eq!(error.kind, ErrorKind::Closed, "{error}"),
            }
        });
        let scenario = scenario.reopened(&world, &config, |store| {
            store.close().expect("closed");
            late.join().expect("no panic");
        });
        assert_eq!(scenario.get(1), Some(10), "closed and gone");
        assert_eq!(scenario.get(2), Some(20), "closed and gone");
        scenario.ends_clean();
    });
}

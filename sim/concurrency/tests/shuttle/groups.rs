//! Groups used by several threads: begun, filled, committed, aborted, cleared, expired, attached.
//! Each is visible whole or not at all.

use std::sync::Arc;

use pagelith::{Error, ErrorKind, Options, PutOutcome, PutSlice, Result, Size};
use pagelith_layouts::key::ObjectKey;

use super::env::{World, memory, tiers};
use super::explore::explore;
use super::helpers::{Scenario, bytes_of, get_pair, is_allowed, part, put_pair, run_all, thread};

const LEN: usize = 8 << 10;

/// Long enough for another thread to finish, if it keeps running.
const SOON: Options = Options::within(std::time::Duration::from_millis(40));

fn scenario() -> Arc<Scenario> {
    Scenario::new(&World::new(), &memory(Size::kib(128)), LEN)
}

fn required() -> [ObjectKey; 2] {
    [part(1, 0), part(1, 1)]
}

/// Begins or joins the group of page 1, puts one component with `value`, and tries to commit.
fn contribute(p: &Scenario, component: u64, value: u64) -> Result<PutOutcome> {
    let group = p.store.begin_group(&required(), Options::default())?;
    let begun = p.history.begin_put(1, value);
    let bytes = bytes_of(value, p.len);
    let put = PutSlice { key: part(1, component), pieces: &[&bytes] };
    let outcome = group.put(&[put], Options::default()).remove(0);
    p.history.end(begun, outcome == Ok(PutOutcome::Waiting));
    let fair = match &outcome {
        Ok(PutOutcome::Waiting | PutOutcome::AlreadyPresent) => true,
        Ok(_) => false,
        Err(error) => is_expected_error(error),
    };
    assert!(fair, "{outcome:?}");
    let outcome = group.commit(SOON);
    let fair = match &outcome {
        Ok(PutOutcome::Stored | PutOutcome::AlreadyPresent | PutOutcome::Waiting) => true,
        Ok(_) => false,
        Err(error) => is_expected_error(error),
    };
    assert!(fair, "{outcome:?}");
    outcome
}

/// The group was committed, cleared or aborted by another thread, or another thread is committing
/// it.
fn is_expected_error(error: &Error) -> bool {
    [ErrorKind::Unavailable, ErrorKind::Busy].contains(&error.kind)
}

fn assert_whole_or_absent(p: &Scenario) -> bool {
    let exists = p.store.exists_batch(&required(), Options::default());
    assert_eq!(exists[0], exists[1], "half of a group is present");
    let found = get_pair(p, 1);
    assert_eq!(found[0].is_some(), found[1].is_some(), "half of a group was got {found:?}");
    exists[0]
}

/// Two threads each put a member and both commit; a third reads.
#[test]
fn group_committed_by_two_threads_is_whole() {
    explore("group_committed_by_two_threads_is_whole", 3000, || {
        let scenario = scenario();
        run_all(vec![
            thread(&scenario, |p| drop(contribute(p, 0, 10))),
            thread(&scenario, |p| drop(contribute(p, 1, 11))),
            thread(&scenario, |p| {
                assert_whole_or_absent(p);
                assert_whole_or_absent(p);
            }),
        ]);
        // The later thread saw the other's member, unless each found the group busy.
        if !assert_whole_or_absent(&scenario) {
            let group =
                scenario.store.begin_group(&required(), Options::default()).expect("joined");
            assert_eq!(group.missing(), [], "a member was lost");
            assert_eq!(group.commit(Options::default()), Ok(PutOutcome::Stored));
        }
        assert_eq!(get_pair(&scenario, 1), [Some(10), Some(11)]);
        scenario.ends_clean();
    });
}

/// The same while the namespace is cleared and a member removed.
#[test]
fn group_cleared_during_commit_is_whole_or_absent() {
    explore("group_cleared_during_commit_is_whole_or_absent", 3000, || {
        let scenario = scenario();
        run_all(vec![
            thread(&scenario, |p| drop(contribute(p, 0, 10))),
            thread(&scenario, |p| drop(contribute(p, 1, 11))),
            thread(&scenario, |p| {
                p.clear(&[1]);
                assert_whole_or_absent(p);
            }),
            thread(&scenario, |p| {
                let begun = p.history.begin_remove(1);
                p.store.remove(&[part(1, 1)], Options::default()).expect("removed");
                // Removing a member removes the group; but an open group only loses the member.
                p.history.end(begun, false);
                assert_whole_or_absent(p);
            }),
        ]);
        assert_whole_or_absent(&scenario);
        scenario.ends_clean();
    });
}

/// A member that was put and not committed is removed while the group is committed: it is gone
/// afterwards, in either order.
#[test]
fn group_with_member_removed_during_commit_is_whole_or_absent() {
    explore("group_with_member_removed_during_commit_is_whole_or_absent", 2000, || {
        let scenario = scenario();
        let group = scenario.store.begin_group(&required(), Options::default()).expect("begun");
        for key in required() {
            let put = PutSlice { key, pieces: &[&bytes_of(10, LEN)] };
            assert_eq!(group.put(&[put], Options::default()), [Ok(PutOutcome::Waiting)]);
        }
        drop(group);
        run_all(vec![
            thread(&scenario, |p| {
                let group = p.store.begin_group(&required(), Options::default()).expect("joined");
                let outcome = group.commit(SOON);
                let fair = match &outcome {
                    Ok(PutOutcome::Stored | PutOutcome::AlreadyPresent | PutOutcome::Waiting) => {
                        true
                    }
                    Ok(_) => false,
                    Err(error) => is_expected_error(error),
                };
                assert!(fair, "{outcome:?}");
            }),
            thread(&scenario, |p| {
                p.store.remove(&[part(1, 1)], Options::default()).expect("removed");
                assert_eq!(
                    p.store.exists_batch(&required(), Options::default()),
                    [false; 2],
                    "removed but present"
                );
            }),
            thread(&scenario, |p| {
                if let Ok(group) = p.store.begin_group(&required(), Options::default()) {
                    group.abort();
                }
            }),
        ]);
        assert!(!assert_whole_or_absent(&scenario), "removed but present");
        scenario.ends_clean();
    });
}

/// One thread aborts the group that another fills, and a group in one call is put in between.
#[test]
fn group_aborted_while_filled_is_absent() {
    explore("group_aborted_while_filled_is_absent", 2000, || {
        let scenario = scenario();
        run_all(vec![
            thread(&scenario, |p| drop(contribute(p, 0, 10))),
            thread(&scenario, |p| {
                if let Ok(group) = p.store.begin_group(&required(), Options::default()) {
                    group.abort();
                }
                assert_whole_or_absent(p);
            }),
            thread(&scenario, |p| {
                let outcome = put_pair(p, 1, 20);
                assert!(is_allowed(&outcome), "{outcome:?}");
                assert_whole_or_absent(p);
            }),
        ]);
        assert!(assert_whole_or_absent(&scenario), "a group that was put in one call is not there");
        scenario.ends_clean();
    });
}

/// The deadline of a group passes while it is filled and committed.
#[test]
fn group_expiring_during_commit_is_whole_or_absent() {
    explore("group_expiring_during_commit_is_whole_or_absent", 2000, || {
        let mut config = memory(Size::kib(128));
        config.groups.deadline_ms = 1;
        let world = World::new();
        let clock = world.sim.clock.clone();
        let scenario = Scenario::new(&world, &config, LEN);
        run_all(vec![
            thread(&scenario, |p| drop(contribute(p, 0, 10))),
            thread(&scenario, |p| drop(contribute(p, 1, 11))),
            thread(&scenario, move |p| {
                clock.advance(std::time::Duration::from_millis(2));
                // Any put drops expired groups.
                let outcome = p.put(2, 20);
                assert!(is_allowed(&outcome), "{outcome:?}");
                assert_whole_or_absent(p);
            }),
        ]);
        assert_whole_or_absent(&scenario);
        scenario.ends_clean();
    });
}

/// An attached group is put before, with or after its base, while the base is removed.
#[test]
fn attached_group_put_during_base_changes_follows_its_base() {
    explore("attached_group_put_during_base_changes_follows_its_base", 1000, || {
        let scenario = Scenario::new(&World::new(), &tiers(Size::mib(1)), LEN);
        run_all(vec![
            thread(&scenario, |p| {
                let outcome = put_pair(p, 1, 10);
                assert!(is_allowed(&outcome), "{outcome:?}");
            }),
            thread(&scenario, |p| {
                let bytes = bytes_of(30, p.len);
                let put = [PutSlice { key: part(1, 5), pieces: &[&bytes] }];
                let outcome =
                    p.store.put_attached(&[(part(1, 0), &put)], Options::default()).remove(0);
                assert!(is_allowed(&outcome) || outcome == Ok(PutOutcome::Waiting), "{outcome:?}");
            }),
            thread(&scenario, |p| {
                let begun = p.history.begin_remove(1);
                p.store.remove(&[part(1, 0)], Options::default()).expect("removed");
                p.history.end(begun, true);
            }),
            thread(&scenario, |p| {
                let keys = [part(1, 0), part(1, 1), part(1, 5)];
                let exists = p.store.exists_batch(&keys, Options::default());
                assert_eq!(exists[0], exists[1], "half of a group is present");
                assert!(exists[0] || !exists[2], "an attached object is present without its base");
                get_pair(p, 1);
            }),
        ]);
        assert_whole_or_absent(&scenario);
        scenario.ends_clean();
    });
}

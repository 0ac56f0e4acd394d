//! Removes and clears against everything that could bring an object back: puts and groups between
//! admission and publication, promotion, and the flusher's writes and their completion.

use std::sync::Arc;

use pagelith::{Options, PutOutcome, Size};

use super::env::{World, memory, tiers};
use super::explore::explore;
use super::helpers::{Scenario, is_allowed, part, put_pair, run_all, thread};

const LEN: usize = 24 << 10;

/// A put between admission and publication, while the namespace is cleared and the key removed.
#[test]
fn object_removed_during_put_is_not_returned_later() {
    explore("object_removed_during_put_is_not_returned_later", 3000, || {
        let scenario = Scenario::new(&World::new(), &memory(Size::kib(64)), LEN);
        let mut threads = Vec::new();
        threads.push(thread(&scenario, |p| {
            assert!(is_allowed(&p.put(1, 10)));
            p.get(1);
        }));
        threads.push(thread(&scenario, |p| {
            p.remove(1);
            p.get(1);
            assert!(is_allowed(&p.put(1, 11)));
        }));
        threads.push(thread(&scenario, |p| {
            p.clear(&[1]);
            p.get(1);
        }));
        run_all(threads);
        scenario.get(1);
        scenario.ends_clean();
    });
}

/// The same with an SSD tier: the flusher writes and drops frames, and gets promote their objects.
#[test]
fn object_removed_during_write_and_promotion_stays_absent() {
    explore("object_removed_during_write_and_promotion_stays_absent", 1500, || {
        let world = World::new();
        let config = tiers(Size::mib(1));
        let scenario = Scenario::new(&world, &config, 8 << 10);
        assert_eq!(scenario.put(1, 10), Ok(PutOutcome::Stored));
        // After the reopening it is on SSD only, and the gets promote it.
        let scenario = scenario.reopened(&world, &config, |store| assert!(store.close().is_ok()));
        let mut threads = Vec::new();
        threads.push(thread(&scenario, |p| {
            p.get(1);
            p.get(1);
        }));
        threads.push(thread(&scenario, |p| {
            p.remove(1);
            assert_eq!(p.get(1).filter(|v| *v == 10), None, "removed but present");
        }));
        threads.push(thread(&scenario, |p| {
            assert!(is_allowed(&p.put(1, 11)));
            p.get(1);
        }));
        run_all(threads);
        scenario.get(1);
        scenario.ends_clean();
    });
}

/// A group adopts an object that was put by itself, while that is removed and put again.
#[test]
fn object_removed_while_a_group_adopts_it_stays_absent() {
    explore("object_removed_while_a_group_adopts_it_stays_absent", 3000, || {
        adopted(memory(Size::kib(64)))
    });
}

/// The same with an SSD tier and no DRAM tier: the adopted object is read from SSD.
#[test]
fn object_removed_while_a_group_adopts_it_from_ssd_stays_absent() {
    explore("object_removed_while_a_group_adopts_it_from_ssd_stays_absent", 1000, || {
        adopted(tiers(Size::ZERO))
    });
}

fn adopted(config: pagelith::Config) {
    let world = World::new();
    let cold = config.ssd.bytes > Size::ZERO;
    let scenario = Scenario::new(&world, &config, 8 << 10);
    assert_eq!(scenario.put(1, 10), Ok(PutOutcome::Stored));
    if cold {
        scenario.flush();
    }
    let mut threads = Vec::new();
    threads.push(thread(&scenario, |p| assert!(is_allowed(&put_pair(p, 1, 20)))));
    threads.push(thread(&scenario, |p| {
        p.remove(1);
        p.get(1);
    }));
    threads.push(thread(&scenario, |p| {
        assert!(is_allowed(&p.put(1, 11)));
        p.get(1);
    }));
    run_all(threads);
    scenario.get(1);
    assert_whole_or_absent(&scenario, 1);
    scenario.ends_clean();
}

/// The second component of a page is visible only with the first.
fn assert_whole_or_absent(scenario: &Arc<Scenario>, page: u64) {
    let exists = scenario.store.exists_batch(&[part(page, 0), part(page, 1)], Options::default());
    assert!(exists[0] || !exists[1], "half of a group is present {exists:?}");
}

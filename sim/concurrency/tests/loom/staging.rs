//! Staging memory: loom's cells detect two users of one run of pages.

use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::thread;
use pagelith_io::staging::StagingPool;

use super::every_order;

/// Stands for the pages of the pool: loom reports concurrent accesses.
struct Shadow {
    pages: [UnsafeCell<u32>; 2],
    base: usize,
}

// SAFETY: the test checks access to the cells; loom reports an access that is not ordered with the
// others.
unsafe impl Sync for Shadow {}
// SAFETY: as above.
unsafe impl Send for Shadow {}

/// Takes a page, uses it, and returns it; waits for one if none is free.
fn take_turn(pool: &StagingPool, shadow: &Shadow) {
    let part = loop {
        let seen = pool.released().value();
        match pool.try_part(4096) {
            Some(part) => break part,
            None => pool.released().wait(seen, Duration::MAX),
        }
    };
    let page = (part.addr() - shadow.base) / 4096;
    // SAFETY: loom's cell only tracks the access.
    shadow.pages[page].with_mut(|count| unsafe { *count += 1 });
}

fn turns(pages: usize, users: usize) {
    let pool = StagingPool::new(pages * 4096).unwrap();
    let base = pool.try_part(4096).unwrap().addr();
    let shadow = Arc::new(Shadow { pages: [UnsafeCell::new(0), UnsafeCell::new(0)], base });
    let others: Vec<_> = (1..users)
        .map(|_| {
            let (pool, shadow) = (pool.clone(), shadow.clone());
            thread::spawn(move || take_turn(&pool, &shadow))
        })
        .collect();
    take_turn(&pool, &shadow);
    others.into_iter().for_each(|o| o.join().unwrap());
    assert_eq!((pool.in_use(), pool.largest_free()), (0, pool.capacity()));
    // SAFETY: every other thread has ended.
    let used: u32 = shadow.pages.iter().map(|page| page.with(|count| unsafe { *count })).sum();
    assert_eq!(used as usize, users);
}

#[test]
fn one_page_is_never_used_twice_at_once() {
    every_order("staging_two_users_of_one_page", None, || turns(1, 2));
}

#[test]
fn two_pages_are_never_shared_by_three_users() {
    every_order("staging_three_users_of_two_pages", Some(3), || turns(2, 3));
}

//! Removes and clears against everything that could bring an object back: puts and groups between
//! admission and publication, promotion, and the flusher's writes and their completion.

use std::sync::Arc;

use pagelith::{Options, PutOutcome, Size};

use super::explore::explore;
use super::kit::{Play, is_fair, part, put_pair, thread, together};
use super::world::{World, memory, tiers};

const LEN: usize = 24 << 10;

/// A put between admission and publication, while the namespace is cleared and the key removed.
#[test]
fn removed_while_put() {
    explore("removed_while_put", 3000, || {
        let play = Play::new(&World::new(), &memory(Size::kib(64)), LEN);
        let mut threads = Vec::new();
        threads.push(thread(&play, |p| {
            assert!(is_fair(&p.put(1, 10)));
            p.get(1);
        }));
        threads.push(thread(&play, |p| {
            p.remove(1);
            p.get(1);
            assert!(is_fair(&p.put(1, 11)));
        }));
        threads.push(thread(&play, |p| {
            p.clear(&[1]);
            p.get(1);
        }));
        together(threads);
        play.get(1);
        play.ends_clean();
    });
}

/// The same with an SSD tier: the flusher writes and drops frames, and gets promote what they read.
#[test]
fn removed_while_written_and_promoted() {
    explore("removed_while_written_and_promoted", 1500, || {
        let world = World::new();
        let config = tiers(Size::mib(1));
        let play = Play::new(&world, &config, 8 << 10);
        assert_eq!(play.put(1, 10), Ok(PutOutcome::Stored));
        // After the reopening it is on SSD only, and the gets promote it.
        let play = play.reopened(&world, &config, |store| assert!(store.close().is_ok()));
        let mut threads = Vec::new();
        threads.push(thread(&play, |p| {
            p.get(1);
            p.get(1);
        }));
        threads.push(thread(&play, |p| {
            p.remove(1);
            assert_eq!(p.get(1).filter(|v| *v == 10), None, "removed and here");
        }));
        threads.push(thread(&play, |p| {
            assert!(is_fair(&p.put(1, 11)));
            p.get(1);
        }));
        together(threads);
        play.get(1);
        play.ends_clean();
    });
}

/// A group adopts an object that was put by itself, while that is removed and put again.
#[test]
fn removed_while_adopted() {
    explore("removed_while_adopted", 3000, || adopted(memory(Size::kib(64))));
}

/// The same with an SSD tier and no DRAM tier: the adopted object is read from SSD.
#[test]
fn removed_while_adopted_from_ssd() {
    explore("removed_while_adopted_from_ssd", 1000, || adopted(tiers(Size::ZERO)));
}

fn adopted(config: pagelith::Config) {
    let world = World::new();
    let cold = config.ssd.bytes > Size::ZERO;
    let play = Play::new(&world, &config, 8 << 10);
    assert_eq!(play.put(1, 10), Ok(PutOutcome::Stored));
    if cold {
        play.flush();
    }
    let mut threads = Vec::new();
    threads.push(thread(&play, |p| assert!(is_fair(&put_pair(p, 1, 20)))));
    threads.push(thread(&play, |p| {
        p.remove(1);
        p.get(1);
    }));
    threads.push(thread(&play, |p| {
        assert!(is_fair(&p.put(1, 11)));
        p.get(1);
    }));
    together(threads);
    play.get(1);
    whole_or_not(&play, 1);
    play.ends_clean();
}

/// The second component of a page is visible only with the first.
fn whole_or_not(play: &Arc<Play>, page: u64) {
    let here = play.store.exists_batch(&[part(page, 0), part(page, 1)], Options::default());
    assert!(here[0] || !here[1], "half of a group is here {here:?}");
}

//! A segment's readers against its reuse: the rule of `locate`, `release_segment` and
//! `SegmentGuards::leave`, with the production guards and versions. Shuttle tests the rule as the
//! engine implements it (`tests/shuttle/reclaim.rs`). Here loom tries every order of its steps, and
//! loom's cell models the bytes.

use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;
use pagelith_io::seqlock::SeqLocks;
use pagelith_io::signal::Signal;
use pagelith_layouts::ids::{Incarnation, SegmentId};
use pagelith_tiers::ssd::guards::SegmentGuards;
use pagelith_tiers::ssd::segments::{SegmentState, SegmentTable};

use super::every_order;

const SEGMENT: SegmentId = SegmentId(0);

struct Shared {
    guards: SegmentGuards,
    versions: SeqLocks,
    /// The incarnation in which the index finds an object; 0 is none.
    entry: AtomicU64,
    /// Raised when a reader leaves; the engine's flusher polls instead.
    left: Signal,
    bytes: UnsafeCell<u64>,
}

// SAFETY: the test checks access to the cell; loom reports an access that is not ordered with the
// others.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

fn new() -> Arc<Shared> {
    let mut table = SegmentTable::new(1);
    table.set_state(SEGMENT, SegmentState::Reclaiming);
    table.get_mut(SEGMENT).incarnation = Incarnation(1);
    Arc::new(Shared {
        guards: SegmentGuards::of(&table),
        versions: SeqLocks::new(1),
        entry: AtomicU64::new(1),
        left: Signal::default(),
        bytes: UnsafeCell::new(1),
    })
}

fn read(shared: &Shared) {
    let Some(mark) = shared.versions.stamp(0) else { return };
    let entry = shared.entry.load(Relaxed);
    if entry == 0 {
        return;
    }
    let Some(incarnation) = shared.guards.enter(SEGMENT) else { return };
    if shared.versions.validate(&[mark]) {
        assert_eq!(incarnation.0, entry, "another incarnation was entered");
        // SAFETY: loom's cell only tracks the access.
        let found = shared.bytes.with(|bytes| unsafe { *bytes });
        assert_eq!(found, incarnation.0, "bytes of a later incarnation were read");
    }
    shared.guards.leave(SEGMENT);
    shared.left.raise();
}

/// A section that makes the index find another incarnation.
fn set_entry(shared: &Shared, incarnation: u64) {
    shared.versions.begin(0);
    shared.entry.store(incarnation, Relaxed);
    shared.versions.end(0);
}

fn reclaim(shared: &Shared) {
    set_entry(shared, 0);
    loop {
        let seen = shared.left.value();
        if shared.guards.close_if_empty(SEGMENT) {
            break;
        }
        shared.left.wait(seen, Duration::MAX);
    }
    // SAFETY: loom's cell only tracks the access.
    shared.bytes.with_mut(|bytes| unsafe { *bytes = 2 });
    shared.guards.open(SEGMENT, Incarnation(2));
    set_entry(shared, 2);
}

#[test]
fn segment_is_not_reused_under_a_reader() {
    every_order("segment_a_reader_and_a_reclaim", None, || {
        let shared = new();
        let theirs = shared.clone();
        let reader = thread::spawn(move || read(&theirs));
        reclaim(&shared);
        reader.join().unwrap();
        read(&shared);
    });
}

#[test]
fn segment_is_not_reused_under_two_readers() {
    every_order("segment_two_readers_and_a_reclaim", Some(2), || {
        let shared = new();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || read(&shared))
            })
            .collect();
        reclaim(&shared);
        readers.into_iter().for_each(|r| r.join().unwrap());
    });
}

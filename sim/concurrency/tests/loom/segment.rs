//! A segment's readers against its reuse: the rule of `locate`, `release_segment` and `Flusher::leave`, told with the
//! production table. The rule as the engine has it is under shuttle (`tests/shuttle/reclaim.rs`); here every order of
//! its steps is tried, and loom's cell stands for the segment's bytes.

use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::thread;
use pagelith_io::signal::Signal;
use pagelith_layouts::ids::{Incarnation, SegmentId};
use pagelith_tiers::ssd::segments::{SegmentState, SegmentTable};

use super::every_order;

const SEGMENT: SegmentId = SegmentId(0);

struct Shared {
    /// The table, and whether the index still finds an object in the segment.
    core: Mutex<(SegmentTable, bool)>,
    /// Raised where a reader leaves; the engine's flusher polls instead.
    left: Signal,
    bytes: UnsafeCell<u64>,
}

// SAFETY: the cell is what is tested; loom reports an access that is not ordered with the others.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

fn read(shared: &Shared) {
    let mut core = shared.core.lock().unwrap();
    if !core.1 {
        return;
    }
    let segment = core.0.get_mut(SEGMENT);
    segment.readers += 1;
    let incarnation = segment.incarnation;
    drop(core);
    // SAFETY: loom's cell only tracks the access.
    let found = shared.bytes.with(|bytes| unsafe { *bytes });
    assert_eq!(found, incarnation.0, "bytes of a later incarnation were read");
    shared.core.lock().unwrap().0.get_mut(SEGMENT).readers -= 1;
    shared.left.raise();
}

fn reclaim(shared: &Shared) {
    shared.core.lock().unwrap().1 = false;
    loop {
        let seen = shared.left.value();
        let mut core = shared.core.lock().unwrap();
        let segment = core.0.get_mut(SEGMENT);
        if segment.readers == 0 {
            segment.state = SegmentState::Free;
            break;
        }
        drop(core);
        shared.left.wait(seen, Duration::MAX);
    }
    let mut core = shared.core.lock().unwrap();
    assert_eq!(core.0.next_free(), Some(SEGMENT));
    let segment = core.0.get_mut(SEGMENT);
    segment.state = SegmentState::Open;
    segment.incarnation = Incarnation(segment.incarnation.0 + 1);
    let incarnation = segment.incarnation;
    drop(core);
    // SAFETY: loom's cell only tracks the access.
    shared.bytes.with_mut(|bytes| unsafe { *bytes = incarnation.0 });
}

#[test]
fn two_readers_and_a_reclaim() {
    every_order("segment_two_readers_and_a_reclaim", None, || {
        let mut table = SegmentTable::new(1);
        table.get_mut(SEGMENT).state = SegmentState::Reclaiming;
        let shared = Arc::new(Shared {
            core: Mutex::new((table, true)),
            left: Signal::default(),
            bytes: UnsafeCell::new(0),
        });
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

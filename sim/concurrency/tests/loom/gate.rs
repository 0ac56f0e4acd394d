//! The gate of the lanes: who closes it has alone what is behind it, whoever went in before has gone, and who waits for it to open is
//! let in. Loom's cells stand for the core, and for what each of those inside has to itself.

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::Mutex;
use loom::thread;
use pagelith_io::gate::Gate;

use super::every_order;

#[derive(Default)]
struct Store {
    gate: Gate,
    /// Had by who closes the gate.
    lock: Mutex<()>,
    /// Changed by who has it closed, seen by those inside.
    core: Cell,
    /// Changed by one of those inside each, and by who has it closed.
    lanes: [Cell; 2],
}

struct Cell(UnsafeCell<u64>);

impl Default for Cell {
    fn default() -> Cell {
        Cell(UnsafeCell::new(0))
    }
}

impl Cell {
    fn get(&self) -> u64 {
        // SAFETY: loom's cell only tracks the access.
        self.0.with(|cell| unsafe { *cell })
    }

    fn add(&self) {
        // SAFETY: loom's cell only tracks the access.
        self.0.with_mut(|cell| unsafe { *cell += 1 });
    }
}

// SAFETY: the cells are what is tested; loom reports an access that is not ordered with the others.
unsafe impl Sync for Store {}
// SAFETY: as above.
unsafe impl Send for Store {}

impl Store {
    fn inside(&self, lane: usize) -> u64 {
        let _inside = self.gate.enter();
        self.lanes[lane].add();
        self.core.get()
    }

    fn alone(&self) {
        let _one = self.lock.lock().expect("no panic");
        self.gate.close();
        self.core.add();
        self.lanes.iter().for_each(Cell::add);
        self.gate.open();
    }
}

#[test]
fn those_inside_and_who_is_alone_do_not_meet() {
    every_order("gate", Some(3), || {
        let store = Arc::new(Store::default());
        let lanes = [0, 1].map(|lane| {
            let store = store.clone();
            thread::spawn(move || store.inside(lane))
        });
        store.alone();
        lanes.into_iter().for_each(|lane| assert!(lane.join().expect("no panic") <= 1));
        store.alone();
        assert_eq!(store.core.get(), 2);
        assert!(store.lanes.iter().all(|lane| lane.get() == 3), "a change is lost");
    });
}

/// Two that close it one after the other, and one that comes meanwhile: it is let in between them, or before, or behind.
#[test]
fn who_waits_is_let_in() {
    every_order("gate_closed_twice", Some(3), || {
        let store = Arc::new(Store::default());
        let lane = {
            let store = store.clone();
            thread::spawn(move || {
                let first = store.inside(0);
                assert!(store.inside(0) >= first);
            })
        };
        let other = {
            let store = store.clone();
            thread::spawn(move || store.alone())
        };
        store.alone();
        lane.join().expect("no panic");
        other.join().expect("no panic");
        store.alone();
        assert_eq!((store.core.get(), store.lanes[0].get()), (3, 5));
    });
}

//! Lock-free readers of a frame against a thread that drops, frees and refills it: the rule of
//! `locate` and `Core::drop_frame`, with the production reader counts, table and versions. Loom's
//! cells model the frame's page number and its memory.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;
use pagelith_io::guarded_table::{GuardedTable, GuardedTableOwner};
use pagelith_io::seqlock::SeqLocks;

use super::every_order;

/// The only frame.
const FRAME: usize = 0;

/// A page's number, in a cell whose accesses loom checks.
struct Page(UnsafeCell<u64>);

// SAFETY: the test checks access to the cell; loom reports an access that is not ordered with the
// others.
unsafe impl Sync for Page {}
// SAFETY: as above.
unsafe impl Send for Page {}

impl Page {
    fn new(page: u64) -> Page {
        let cell = Page(UnsafeCell::new(0));
        cell.set(page);
        cell
    }

    fn get(&self) -> u64 {
        // SAFETY: loom's cell only tracks the access.
        self.0.with(|page| unsafe { *page })
    }

    fn set(&self, page: u64) {
        // SAFETY: loom's cell only tracks the access.
        self.0.with_mut(|cell| unsafe { *cell = page });
    }
}

struct Core {
    owner: GuardedTableOwner<Page>,
    /// The frame was dropped and is not freed yet.
    dead: bool,
}

struct Store {
    core: Mutex<Core>,
    table: GuardedTable<Page>,
    versions: SeqLocks,
    /// The page that the index finds in the frame; 0 is none.
    entry: AtomicU64,
    memory: Page,
}

impl Store {
    /// With page 1 in its frame.
    fn new() -> Arc<Store> {
        let mut owner = GuardedTableOwner::new(1);
        let table = owner.table();
        assert!(owner.fill(FRAME, Arc::new(Page::new(1))));
        let core = Mutex::new(Core { owner, dead: false });
        let (versions, entry, memory) = (SeqLocks::new(1), AtomicU64::new(1), Page::new(1));
        Arc::new(Store { core, table, versions, entry, memory })
    }

    fn get_times(&self, times: usize) {
        for _ in 0..times {
            self.get();
        }
    }

    /// Gets the present page, if the lookup is still valid; returns its number.
    fn get(&self) -> Option<u64> {
        let mark = self.versions.stamp(0)?;
        let page = self.entry.load(Relaxed);
        if page == 0 {
            return None;
        }
        let reader = self.table.enter(FRAME)?;
        // The page is compared before the lookup is validated.
        let entered = reader.get();
        let holds = self.versions.validate(&[mark]);
        if holds {
            assert_eq!(entered, page, "another page's frame was entered");
            assert_eq!(self.memory.get(), page, "bytes of another page were read");
        }
        if reader.leave() {
            self.free(&mut self.core.lock().unwrap());
        }
        holds.then_some(page)
    }

    /// Frees the frame if it is dead and has no readers.
    fn free(&self, core: &mut Core) {
        if !core.dead {
            return;
        }
        if let Some(page) = core.owner.take(FRAME) {
            core.dead = false;
            page.set(0);
            self.memory.set(0);
        }
    }

    /// Drops the present page, and puts `page` if the memory is free by then.
    fn drop_and_put(&self, page: u64) {
        let mut core = self.core.lock().unwrap();
        self.versions.begin(0);
        if self.entry.load(Relaxed) != 0 {
            self.entry.store(0, Relaxed);
            core.dead = true;
            core.owner.close(FRAME);
            self.free(&mut core);
        }
        if !core.dead {
            self.memory.set(page);
            assert!(core.owner.fill(FRAME, Arc::new(Page::new(page))));
            self.entry.store(page, Relaxed);
        }
        self.versions.end(0);
    }
}

/// Gets of two threads, `gets[i]` each, while another thread puts `puts` one after the other.
fn get_during_drops(gets: [usize; 2], puts: &[u64]) {
    let store = Store::new();
    let (theirs, puts) = (store.clone(), puts.to_vec());
    let writer = thread::spawn(move || {
        for page in puts {
            theirs.drop_and_put(page);
        }
    });
    let theirs = store.clone();
    let reader = (gets[1] > 0).then(|| thread::spawn(move || theirs.get_times(gets[1])));
    store.get_times(gets[0]);
    writer.join().unwrap();
    reader.into_iter().for_each(|reader| reader.join().unwrap());
    assert!(!store.core.lock().unwrap().dead, "a dropped frame was not freed");
    let there = store.entry.load(Relaxed);
    assert_eq!(store.get(), (there != 0).then_some(there), "an unchanged page is not found");
}

#[test]
fn get_during_frame_drop_returns_own_page_or_none() {
    every_order("kept_dropped_while_got", None, || get_during_drops([1, 0], &[2]));
}

#[test]
fn two_gets_during_frame_drop_return_own_page_or_none() {
    every_order("kept_dropped_while_two_get", Some(2), || get_during_drops([1, 1], &[2]));
}

/// The page found by the lookup, or the one entered, has been replaced.
#[test]
fn get_during_two_frame_drops_returns_own_page_or_none() {
    every_order("kept_dropped_twice_while_got", Some(3), || get_during_drops([2, 0], &[2, 3]));
}

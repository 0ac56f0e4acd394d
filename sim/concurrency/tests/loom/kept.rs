//! A frame that is entered without a lock against its being dropped, freed and filled again: the rule of `locate` and
//! `Core::drop_frame`, told with the production words, table and versions. Loom's cell stands for the frame's memory.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::Mutex;
use loom::sync::atomic::AtomicU64;
use loom::sync::atomic::Ordering::Relaxed;
use loom::thread;
use pagelith_io::kept::{Keeper, Kept};
use pagelith_io::versions::Versions;

use super::every_order;

/// The one frame there is.
const FRAME: usize = 0;

struct Core {
    keeper: Keeper<u64>,
    /// The frame was dropped and is not freed yet.
    dead: bool,
}

struct Store {
    core: Mutex<Core>,
    kept: Kept<u64>,
    versions: Versions,
    /// Which page the index finds in the frame; 0 is none.
    entry: AtomicU64,
    memory: UnsafeCell<u64>,
}

// SAFETY: the cell is what is tested; loom reports an access that is not ordered with the others.
unsafe impl Sync for Store {}
// SAFETY: as above.
unsafe impl Send for Store {}

impl Store {
    /// With page 1 in its frame.
    fn new() -> Arc<Store> {
        let mut keeper = Keeper::new(1);
        let kept = keeper.kept();
        assert!(keeper.fill(FRAME, Arc::new(1)));
        let core = Mutex::new(Core { keeper, dead: false });
        let (versions, entry, memory) = (Versions::new(1), AtomicU64::new(1), UnsafeCell::new(1));
        Arc::new(Store { core, kept, versions, entry, memory })
    }

    /// Get what is there, if the look holds; which page it was.
    fn get(&self) -> Option<u64> {
        let mark = self.versions.mark(0)?;
        let page = self.entry.load(Relaxed);
        if page == 0 {
            return None;
        }
        let inside = self.kept.enter(FRAME)?;
        let holds = self.versions.hold(&[mark]);
        if holds {
            assert_eq!(*inside, page, "another page's frame was entered");
            // SAFETY: loom's cell only tracks the access.
            let found = self.memory.with(|memory| unsafe { *memory });
            assert_eq!(found, page, "bytes of another page were read");
        }
        if inside.leave() {
            self.free(&mut self.core.lock().unwrap());
        }
        holds.then_some(page)
    }

    /// Free the frame if it is dead and nobody is inside.
    fn free(&self, core: &mut Core) {
        if core.dead && core.keeper.take(FRAME).is_some() {
            core.dead = false;
            // SAFETY: loom's cell only tracks the access.
            self.memory.with_mut(|memory| unsafe { *memory = 0 });
        }
    }

    /// Drop what is there, and put `page` if its memory is free by then.
    fn drop_and_put(&self, page: u64) {
        let mut core = self.core.lock().unwrap();
        self.versions.begin(0);
        self.entry.store(0, Relaxed);
        core.dead = true;
        core.keeper.close(FRAME);
        self.free(&mut core);
        if !core.dead {
            // SAFETY: loom's cell only tracks the access.
            self.memory.with_mut(|memory| unsafe { *memory = page });
            assert!(core.keeper.fill(FRAME, Arc::new(page)));
            self.entry.store(page, Relaxed);
        }
        self.versions.end(0);
    }

    fn ends_clean(&self, page: u64) {
        assert!(!self.core.lock().unwrap().dead, "nobody freed what was dropped");
        if self.entry.load(Relaxed) != 0 {
            assert_eq!(self.get(), Some(page));
        }
    }
}

#[test]
fn one_gets_while_another_drops_and_puts() {
    every_order("kept_dropped_while_got", None, || {
        let store = Store::new();
        let theirs = store.clone();
        let writer = thread::spawn(move || theirs.drop_and_put(2));
        store.get();
        writer.join().unwrap();
        store.ends_clean(2);
    });
}

#[test]
fn two_get_while_another_drops_and_puts() {
    every_order("kept_dropped_while_two_get", Some(3), || {
        let store = Store::new();
        let threads = [true, false].map(|gets| {
            let store = store.clone();
            thread::spawn(move || {
                if gets {
                    store.get();
                } else {
                    store.drop_and_put(2);
                }
            })
        });
        store.get();
        threads.into_iter().for_each(|t| t.join().unwrap());
        store.ends_clean(2);
    });
}

/// What was looked up before, or what is entered, is another page by now.
#[test]
fn one_gets_while_another_drops_and_puts_twice() {
    every_order("kept_dropped_twice_while_got", Some(4), || {
        let store = Store::new();
        let theirs = store.clone();
        let writer = thread::spawn(move || {
            theirs.drop_and_put(2);
            let filled = theirs.core.lock().unwrap().keeper.count(FRAME) == 0;
            if filled && theirs.entry.load(Relaxed) == 2 {
                theirs.drop_and_put(3);
            }
        });
        store.get();
        store.get();
        writer.join().unwrap();
        assert!(!store.core.lock().unwrap().dead, "nobody freed what was dropped");
    });
}

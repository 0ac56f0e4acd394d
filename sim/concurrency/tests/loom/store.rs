//! A real store without an SSD tier: production index, frames, arena and open groups, in every
//! order of two threads' critical sections.

use std::sync::Arc;
use std::time::Duration;

use loom::thread;
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::{
    Config, ErrorKind, GetOutcome, GetSlice, MachineLimits, MissCause, Options, PutOutcome,
    PutSlice, Result, Size, Store,
};
use pagelith_io::fault::IoFault;
use pagelith_io::runtime::{Env, Join, Runtime, Task};
use pagelith_io::signal::Signal;
use pagelith_sim::clock::SimClock;
use pagelith_sim::entropy::SimEntropy;

use super::every_order;

/// No time passes and no call waits: without room a call returns `Busy`.
const NOW: Options = Options::within(Duration::ZERO);
/// One fits into the arena of 64 KiB, two do not.
const LARGE: usize = 40 << 10;
const SMALL: usize = 100;
/// Stack of a thread that opens or uses a store, in words; loom's own is 4096.
const STACK_WORDS: usize = 64 << 10;

struct NoTasks;

impl Runtime for NoTasks {
    fn spawn(
        &self,
        name: &str,
        _: Box<dyn Task>,
        _: Signal,
    ) -> std::result::Result<Box<dyn Join>, IoFault> {
        panic!("a store in memory has no task name={name}")
    }

    fn pause(&self, _: &Signal, _: u64, _: Duration) {
        thread::yield_now();
    }
}

fn open() -> Arc<Store> {
    let mut c = Config::default();
    c.dram.bytes = Size::kib(64);
    c.staging.bytes = Size::kib(128);
    c.staging.chunk_bytes = Size::kib(64);
    c.namespaces_max = 4;
    c.index.max_objects = Some(8);
    c.memory.reserve = Size::ZERO;
    let facts = MachineLimits::new(1 << 30, "test".into());
    let env = Env {
        disk: None,
        clock: Arc::new(SimClock::new()),
        entropy: Arc::new(SimEntropy::new(1)),
        runtime: Arc::new(NoTasks),
    };
    Arc::new(Store::open_in(c.validate(&facts).unwrap(), env).unwrap())
}

fn namespace() -> Namespace {
    Namespace { model: "m".into(), ..Namespace::default() }
}

fn key(page: u8, component: &str) -> ObjectKey {
    ObjectKey::new(
        namespace().id(),
        PrefixHash([page; 32]),
        Role::Target,
        "kv",
        component,
        Shard::Whole,
    )
    .unwrap()
}

fn put(store: &Store, key: ObjectKey, value: u8, len: usize) -> Result<PutOutcome> {
    store.put_batch(&[PutSlice { key, pieces: &[&vec![value; len]] }], NOW).remove(0)
}

/// The value found, after a check of every byte.
fn get(store: &Store, key: ObjectKey, len: usize) -> Option<u8> {
    let mut to = vec![0; len];
    let outcome = store
        .get_batch(&mut [GetSlice { key, range: None, pieces: &mut [&mut to] }], NOW)
        .remove(0);
    match outcome {
        Ok(GetOutcome::Hit { .. }) => {
            assert!(to.iter().all(|b| *b == to[0]), "bytes of several values");
            Some(to[0])
        }
        Ok(GetOutcome::Miss(MissCause::Absent)) => None,
        other => panic!("unexpected outcome of get {other:?}"),
    }
}

fn ends_clean(store: &Store) {
    assert_eq!(store.stats().damaged, 0);
    store.clear(namespace().id(), Options::default()).unwrap();
    let stats = store.stats();
    assert_eq!((stats.dram_bytes, stats.waiting_bytes, stats.groups_waiting), (0, 0, 0));
}

/// Runs `one` on a thread and `other` on this one.
fn run_both(
    store: &Arc<Store>,
    one: impl FnOnce(&Store) + Send + 'static,
    other: impl FnOnce(&Store),
) {
    let theirs = store.clone();
    let thread = on_large_stack(move || one(&theirs));
    other(store);
    thread.join().unwrap();
}

/// As [`every_order`], for a body that needs the stack of a whole store.
fn every_order_of_stores(
    name: &str,
    preemptions: Option<usize>,
    body: impl Fn() + Sync + Send + 'static,
) {
    let body = Arc::new(body);
    every_order(name, preemptions, move || {
        let body = body.clone();
        on_large_stack(move || body()).join().unwrap();
    });
}

fn on_large_stack(body: impl FnOnce() + Send + 'static) -> thread::JoinHandle<()> {
    thread::Builder::new().stack_size(STACK_WORDS).spawn(body).unwrap()
}

/// A frame is evicted, and its memory filled by another object, while its bytes are copied out.
#[test]
fn get_during_eviction_returns_own_bytes_or_misses() {
    every_order_of_stores("store_evicted_while_got", Some(3), || {
        let store = open();
        assert_eq!(put(&store, key(1, "k"), 1, LARGE), Ok(PutOutcome::Stored));
        let other = |store: &Store| {
            let outcome = put(store, key(2, "k"), 2, LARGE);
            let busy = outcome.as_ref().is_err_and(|e| e.kind == ErrorKind::Busy);
            assert!(busy || outcome == Ok(PutOutcome::Stored), "{outcome:?}");
        };
        run_both(&store, other, |store| {
            let found = get(store, key(1, "k"), LARGE);
            assert!(found.is_none_or(|value| value == 1), "{found:?}");
        });
        ends_clean(&store);
    });
}

/// Two puts of one key: one is stored, and both find its bytes.
#[test]
fn concurrent_puts_of_one_key_store_one() {
    every_order_of_stores("store_two_first_writers", Some(6), || {
        let store = open();
        let (mine, theirs) =
            (Arc::new(std::sync::Mutex::new(None)), Arc::new(std::sync::Mutex::new(None)));
        let them = theirs.clone();
        let me = mine.clone();
        run_both(
            &store,
            move |store| *them.lock().unwrap() = Some(put(store, key(1, "k"), 1, SMALL)),
            move |store| *me.lock().unwrap() = Some(put(store, key(1, "k"), 2, SMALL)),
        );
        let outcomes = [theirs, mine].map(|o| o.lock().unwrap().take().unwrap().unwrap());
        let first = outcomes.iter().position(|o| *o == PutOutcome::Stored).expect("one is stored");
        assert_eq!(outcomes[1 - first], PutOutcome::AlreadyPresent);
        assert_eq!(get(&store, key(1, "k"), SMALL), Some(first as u8 + 1));
        ends_clean(&store);
    });
}

/// A clear between a put's admission and its publication: an object stored after the clear ended
/// was admitted after it began.
#[test]
fn put_during_clear_is_current_or_absent() {
    every_order_of_stores("store_cleared_while_put", None, || {
        let store = open();
        let stored = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let before = stored.clone();
        let hidden = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let must_be_gone = hidden.clone();
        run_both(
            &store,
            move |store| {
                let outcome = put(store, key(1, "k"), 1, SMALL);
                stored
                    .store(outcome == Ok(PutOutcome::Stored), std::sync::atomic::Ordering::SeqCst);
            },
            move |store| {
                let was_stored = before.load(std::sync::atomic::Ordering::SeqCst);
                store.clear(namespace().id(), NOW).unwrap();
                must_be_gone.store(was_stored, std::sync::atomic::Ordering::SeqCst);
            },
        );
        let found = get(&store, key(1, "k"), SMALL);
        if hidden.load(std::sync::atomic::Ordering::SeqCst) {
            assert_eq!(found, None, "cleared but present");
        }
        ends_clean(&store);
    });
}

/// Two threads each put a member of one group, and both commit.
#[test]
fn concurrent_commits_publish_group_once() {
    every_order_of_stores("store_two_commit", Some(4), || {
        let store = open();
        let required = [key(1, "a"), key(1, "b")];
        let one = |member: usize| {
            move |store: &Store| {
                let required = [key(1, "a"), key(1, "b")];
                let Ok(group) = store.begin_group(&required, NOW) else { panic!("begun") };
                let outcome =
                    group.try_put(&PutSlice { key: required[member], pieces: &[&[7; SMALL]] });
                assert_eq!(outcome, Ok(PutOutcome::Waiting));
                let _ = group.commit(NOW);
            }
        };
        run_both(&store, one(0), one(1));
        let exists = store.exists_batch(&required, NOW);
        assert_eq!(exists[0], exists[1], "half of a group is present");
        if !exists[0] {
            let group = store.begin_group(&required, NOW).unwrap();
            assert_eq!(group.missing(), [], "a member was lost");
            assert_eq!(group.commit(NOW), Ok(PutOutcome::Stored));
        }
        ends_clean(&store);
    });
}

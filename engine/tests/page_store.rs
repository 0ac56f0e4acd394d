//! The interface of all stores: the same calls over an embedded store and over a client of it, and
//! clones, builders and queues of batches.
#![allow(clippy::disallowed_methods, reason = "the tests need real threads")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pagelith::client::Client;
use pagelith::io::signal::Signal;
use pagelith::layouts::ids::{NamespaceId, PrefixHash};
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::server::Serving;
use pagelith::transport::address::Address;
use pagelith::{
    AlignedBuf, BatchQueue, CompletedBatch, Destination, ErrorKind, Event, Get, GetOutcome, Hint,
    Options, PageStore, PagesQuery, Priority, Put, PutOutcome, PutSlice, Size, Source, Store,
};

const LONG: Duration = Duration::from_secs(30);

fn model() -> NamespaceId {
    Namespace { model: "m".into(), page_tokens: 64, ..Namespace::default() }.id()
}

fn key(page: u8, component: &str) -> ObjectKey {
    ObjectKey::new(model(), PrefixHash([page; 32]), Role::Target, "kv", component, Shard::Whole)
        .expect("a key")
}

fn store() -> Store {
    Store::builder().dram("8MiB").set(|config| config.events.max = 64).open().expect("a store")
}

fn buffer(byte: u8) -> AlignedBuf {
    let mut buffer = AlignedBuf::new(4096).expect("memory");
    buffer.fill(byte);
    buffer
}

/// Runs `body` over a store, a client over TCP, and a client that shares the store's memory.
fn over_each_store(body: impl Fn(&dyn PageStore)) {
    body(&store());
    let shared = Store::builder()
        .dram("8MiB")
        .set(|config| (config.dram.shared, config.events.max) = (true, 64))
        .open()
        .expect("a store");
    let dir = tempfile::tempdir().expect("a directory");
    for (store, address) in [
        (store(), "tcp:127.0.0.1:0".parse().expect("an address")),
        (shared, Address::Unix(dir.path().join("socket"))),
    ] {
        let serving = Serving::builder(&store, address).start().expect("serves");
        let client = Client::to(serving.address(), None, LONG).expect("attached");
        body(&client);
        drop(client);
        serving.end().expect("no thread panics");
    }
}

#[test]
fn code_written_once_runs_over_every_store() {
    let plain = Options::default();
    over_each_store(|store| {
        // Events of a store process count from the first call.
        store.take_events(64, plain).expect("events");
        let page = [key(1, "k"), key(1, "v")];
        let options = plain.request(store.begin_request());
        let stored = store.put_page(&[(page[0], b"keys"), (page[1], b"values")], options);
        assert_eq!(stored, Ok(PutOutcome::Stored));
        assert_eq!(store.put_one(key(2, "k"), b"x", options), Ok(PutOutcome::Stored));
        let mut bytes = [0; 6];
        let got = store.get_one(page[1], &mut bytes, options).expect("an answer");
        assert!(got.is_hit() && &bytes == b"values", "{got:?}");
        assert_eq!(store.exists_batch(&[page[0], key(3, "k")], plain), Ok(vec![true, false]));
        assert_eq!(store.exists_prefix(&[page[0], page[1], key(3, "k")], plain), Ok(2));
        let pages = [page[0].hash(), key(2, "k").hash(), key(3, "k").hash()];
        let query = PagesQuery { pages: &pages, anchor: &page[..1], pools: &[] };
        assert_eq!(store.exists_groups(&query, plain).map(|found| found.usable_pages), Ok(2));
        assert_eq!(store.prefetch(&page, plain), Ok(0), "they are in DRAM");
        assert_eq!(store.lease(&page, Duration::from_millis(1), plain), Ok(2));
        let short = Duration::from_millis(1);
        for hint in [
            Hint::Demote,
            Hint::SessionEnded,
            Hint::Retain(short),
            Hint::ExpectedBack(short),
            Hint::Priority(Priority::Low),
            Hint::Priority(Priority::High),
        ] {
            assert_eq!(store.hint(&page, hint, plain), Ok(2), "{hint:?}");
        }
        let pin = store.pin(&page, plain).expect("pinned");
        assert_eq!((pin.pinned(), pin.is_held()), (2, true));

        let group = store.begin_group(&[key(4, "k"), key(4, "v")], plain).expect("begun");
        let put = PutSlice { key: key(4, "v"), pieces: &[b"v"] };
        assert_eq!(group.put(&[put], plain), [Ok(PutOutcome::Waiting)]);
        assert_eq!(group.missing(plain), Ok(vec![key(4, "k")]));
        assert_eq!(group.commit(plain), Ok(PutOutcome::Waiting));
        assert_eq!(group.abort(), Ok(()));

        match store.view_batch(&[page[1], key(3, "k")], plain) {
            Ok(views) => {
                let [Some(view), None] = &views[..] else { panic!("{}", views.len()) };
                assert!(view.copy_out(2, &mut bytes[..4]) && &bytes[..4] == b"lues");
                assert_eq!((view.length(), view.is_held()), (6, true));
                assert!(view.address().is_some());
            }
            Err(error) => assert_eq!(error.kind, ErrorKind::Incompatible, "over TCP"),
        }

        let mut session = store.session().expect("a session");
        let put = Put::new(key(5, "k"), Source::owned(buffer(5)));
        let put = session.submit_put(vec![put.into()], plain);
        let Some(CompletedBatch::Put(done)) = session.wait(put, LONG) else { panic!("not done") };
        assert_eq!(done[0].outcome, Ok(PutOutcome::Stored));
        let get = Get::new(key(5, "k"), Destination::owned(buffer(0)));
        let get = session.submit_get(vec![get], plain);
        let Some((done, CompletedBatch::Get(gets))) = session.wait_any(LONG) else { panic!() };
        assert!(done == get && gets[0].outcome.as_ref().is_ok_and(GetOutcome::is_hit));
        assert_eq!(gets[0].destination.pieces().next(), Some(&[5; 4096][..]));
        assert!(session.poll().is_none());

        assert_eq!(store.remove(&[key(2, "k")], plain), Ok(1));
        assert!(store.clear(model(), plain).is_ok());
        assert_eq!(store.exists_batch(&page, plain), Ok(vec![false, false]));
        assert!(store.flush(plain).is_ok());
        let events = store.take_events(64, plain).expect("events").events;
        let stored = events.iter().filter(|event| matches!(event, Event::Stored { .. })).count();
        assert_eq!((stored, events.contains(&Event::Cleared { namespace: model() })), (4, true));
        let stats = store.stats(plain).expect("counters");
        let stats: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
        assert_eq!(stats["puts_stored"], 4);
    });
}

#[test]
fn missing_of_a_group_that_another_caller_aborted_is_unavailable() {
    over_each_store(|store| {
        let page = [key(1, "k"), key(1, "v")];
        let begin = || store.begin_group(&page, Options::default()).expect("begun");
        let (first, second) = (begin(), begin());
        assert_eq!(first.missing(Options::default()).expect("open"), page);
        second.abort().expect("open");
        let ended = first.missing(Options::default()).expect_err("it was aborted");
        assert_eq!(ended.kind, ErrorKind::Unavailable, "{ended}");
    });
}

#[test]
fn calls_of_a_clone_fail_as_closed_after_a_close() {
    let store = store();
    let other = store.clone();
    let plain = Options::default();
    let pin = PageStore::pin(&other, &[key(1, "k")], plain).expect("pinned");
    let group = other.begin_group(&[key(2, "k")], plain).expect("begun");
    store.put_one(key(1, "k"), b"x", plain).expect("stored");
    assert!(other.get_one(key(1, "k"), &mut [0], plain).expect("an answer").is_hit());
    store.close().expect("closed");
    let closed = |error: Option<pagelith::Error>| {
        assert_eq!(error.map(|error| error.kind), Some(ErrorKind::Closed));
    };
    closed(other.put_one(key(1, "k"), b"x", plain).err());
    closed(other.get_one(key(1, "k"), &mut [0], plain).err());
    closed(PageStore::exists_batch(&other, &[key(1, "k")], plain).err());
    closed(PageStore::exists_prefix(&other, &[key(1, "k")], plain).err());
    closed(PageStore::prefetch(&other, &[key(1, "k")], plain).err());
    closed(PageStore::pin(&other, &[key(1, "k")], plain).err());
    closed(PageStore::hint(&other, &[key(1, "k")], Hint::Demote, plain).err());
    closed(other.remove(&[key(1, "k")], plain).err());
    closed(other.flush(plain).err());
    closed(group.put(&[PutSlice { key: key(2, "k"), pieces: &[b"x"] }], plain).remove(0).err());
    closed(group.commit(plain).err());
    closed(other.session().err());
    assert_eq!(other.exists_batch(&[key(1, "k")], plain), [false]);
    assert!(!pin.is_held());
    closed(other.close().err());
}

#[test]
fn store_stays_open_until_its_last_clone_is_dropped() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = || Store::builder().dram("8MiB").ssd(dir.path(), "64MiB").open();
    let store = open().expect("a store");
    let other = store.clone();
    drop(store);
    assert!(other.put_one(key(1, "k"), b"x", Options::default()).is_ok());
    assert_eq!(open().expect_err("it is open").kind, ErrorKind::Denied);
    drop(other);
    open().expect("the lock is released").close().expect("closed");
}

/// The sessions of calls in progress are not kept for later calls.
#[test]
fn gets_during_a_close_hit_or_fail_as_closed() {
    let dir = tempfile::tempdir().expect("a directory");
    let open = || Store::builder().dram("8MiB").ssd(dir.path(), "64MiB").open().expect("a store");
    let store = open();
    store.put_one(key(1, "k"), &[1; 4096], Options::default()).expect("stored");
    // The close begins once each thread has got the object, and while it gets it again.
    let running = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        for store in [store.clone(), store.clone()] {
            let running = &running;
            scope.spawn(move || {
                for n in 0.. {
                    let got = store.get_one(key(1, "k"), &mut [0; 4096], Options::default());
                    if n == 0 {
                        // Before a check can end this thread, since the others wait for it.
                        running.wait();
                    }
                    match got {
                        Ok(outcome) => assert!(outcome.is_hit(), "{outcome:?}"),
                        Err(error) => {
                            assert!(n > 0, "the store is open {error}");
                            return assert_eq!(error.kind, ErrorKind::Closed, "{error}");
                        }
                    }
                }
            });
        }
        running.wait();
        store.close().expect("closed");
    });
    // No session of those calls holds a file of the store.
    open().close().expect("closed");
}

#[test]
fn builder_reports_each_wrong_size_by_its_setting() {
    let refused = |builder: pagelith::StoreBuilder| {
        let error = builder.open().expect_err("refused");
        assert_eq!(error.kind, ErrorKind::Invalid);
        error.message
    };
    let message = refused(Store::builder().dram("8G").ssd("/a", "lots"));
    let lines: Vec<&str> = message.lines().collect();
    assert!(lines[0].starts_with("dram.bytes: \"G\" is no unit"), "{message}");
    assert_eq!(lines[1..], ["ssd.bytes: no decimal number before the unit"]);
    let uneven = Store::builder().ssd("/a", "1TiB").ssd("/b", Size::gib(1));
    let expected = "ssd.bytes: must be the same for each directory, got=1GiB first=1TiB";
    assert_eq!(refused(uneven), expected);
    assert!(refused(Store::builder().dram("1B")).starts_with("dram.bytes: must be 0 or"));
}

#[test]
fn builder_adds_up_the_bytes_of_its_drives() {
    let dirs = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let drives = dirs
        .iter()
        .fold(Store::builder().dram(Size::mib(8)), |builder, dir| builder.ssd(dir.path(), "64MiB"));
    let store = drives.open().expect("a store");
    let used = |dir: &tempfile::TempDir| {
        let files = std::fs::read_dir(dir.path()).expect("the directory");
        files.map(|file| file.expect("a file").metadata().expect("its size").len()).sum::<u64>()
    };
    store.close().expect("closed");
    let bytes: u64 = dirs.iter().map(used).sum();
    assert!(bytes > 120 << 20 && bytes <= 128 << 20, "{bytes}");
}

struct RaiseOnWake(Signal);

impl Wake for RaiseOnWake {
    fn wake(self: Arc<Self>) {
        self.0.raise();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let (woken, mut future) = (Signal::default(), pin!(future));
    let waker = Waker::from(Arc::new(RaiseOnWake(woken.clone())));
    loop {
        let seen = woken.value();
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        woken.wait(seen, LONG);
        assert_ne!(woken.value(), seen, "the future did not wake its task");
    }
}

#[test]
fn batches_of_a_queue_are_awaited_over_every_store() {
    over_each_store(|store| {
        let batches = BatchQueue::new(store, 2).expect("a queue");
        let put = |page: u8| Put::new(key(page, "k"), Source::owned(buffer(page))).into();
        let ticket = batches.submit_put((0..8).map(put).collect(), Options::default());
        let Some(CompletedBatch::Put(done)) = block_on(batches.completion(ticket)) else {
            panic!("no outcome")
        };
        assert!(done.iter().all(|done| done.outcome == Ok(PutOutcome::Stored)));
        let get = |page: u8| Get::new(key(page, "k"), Destination::owned(buffer(0)));
        let get = |page| batches.submit_get(vec![get(page)], Options::default());
        let tickets: Vec<_> = (0..8).map(|page| (page, get(page))).collect();
        for (page, ticket) in tickets {
            let Some(CompletedBatch::Get(done)) = block_on(batches.completion(ticket)) else {
                panic!("no outcome")
            };
            assert!(done[0].outcome.as_ref().is_ok_and(GetOutcome::is_hit));
            assert_eq!(done[0].destination.pieces().next(), Some(&[page; 4096][..]));
        }
    });
}

//! Submit and poll: several batches in flight on one session, with owned memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::harness::Store;
use pagelith::io::buffer::AlignedBuf;
use pagelith::{
    CompletedBatch, Destination, ErrorKind, Get, GetOutcome, Options, Put, PutGroup, PutOutcome,
    Source, Tier,
};

use super::env::TestEnv;
use super::helpers::*;

const LEN: usize = 60_000;

fn owned(n: u64) -> Get {
    let destination = Destination::owned(AlignedBuf::new(LEN).expect("memory"));
    Get { key: key(n), range: None, destination }
}

fn single(n: u64, source: Source) -> PutGroup {
    PutGroup::new(vec![Put { key: key(n), source }])
}

fn got(done: Option<CompletedBatch>) -> Vec<(pagelith::Result<GetOutcome>, Vec<u8>)> {
    let Some(CompletedBatch::Get(done)) = done else { panic!("not a finished get: {done:?}") };
    done.into_iter()
        .map(|d| (d.outcome, d.destination.pieces().flatten().copied().collect()))
        .collect()
}

fn cold_store(world: &TestEnv, pages: u64) -> Store {
    let config = world.config();
    let store = world.open(&config);
    store_pages(&store, 0..pages, LEN);
    world.reopen(store, &config)
}

pub fn several_batches_in_flight_complete_in_any_order(world: &TestEnv) {
    let store = cold_store(world, 12);
    let mut session = store.session().expect("a session");
    let gets: Vec<_> = (0..6)
        .map(|i| session.submit_get(vec![owned(2 * i), owned(2 * i + 1)], Options::default()))
        .collect();
    let put = session
        .submit_put(vec![single(50, Source::shared(bytes(50, LEN).into()))], Options::default());
    let exists = session.submit_exists(&[key(3), key(50)], Options::default());
    assert_eq!(gets.iter().collect::<std::collections::BTreeSet<_>>().len(), 6, "tickets differ");
    let long = Duration::from_secs(30);
    // The last first; the rest in order of completion.
    for i in (3..6).rev() {
        for (n, (outcome, memory)) in (2 * i as u64..).zip(got(session.wait(gets[i], long))) {
            assert_eq!(outcome, Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes: LEN as u64 }));
            assert!(memory == bytes(n, LEN), "n={n}");
        }
    }
    let mut seen = BTreeMap::new();
    while seen.len() < 5 {
        // In any order, by wait or by poll.
        let ended = if seen.len() % 2 == 0 { session.wait_any(long) } else { session.poll() };
        if let Some((ticket, done)) = ended {
            assert!(seen.insert(ticket, done).is_none(), "a ticket comes once");
        }
    }
    for (i, ticket) in gets.iter().enumerate().take(3) {
        let memory = got(seen.remove(ticket));
        assert!(memory[1].1 == bytes(2 * i as u64 + 1, LEN), "i={i}");
    }
    let Some(CompletedBatch::Put(done)) = seen.remove(&put) else { panic!("the put is not done") };
    assert_eq!(done[0].outcome, Ok(PutOutcome::Stored));
    let Some(CompletedBatch::Exists(found)) = seen.remove(&exists) else {
        panic!("exists is not done")
    };
    assert_eq!(found, vec![true, true]);
    assert!(session.wait(gets[0], long).is_none(), "handed out already");
    assert!(session.wait_any(long).is_none(), "nothing is under way");
    assert!(session.poll().is_none());
}

pub fn owned_buffers_are_returned(world: &TestEnv) {
    let store = cold_store(world, 2);
    let mut session = store.session().expect("a session");
    let mut source = AlignedBuf::new(LEN).expect("memory");
    source.copy_from_slice(&bytes(9, LEN));
    let at = source.as_ptr();
    let ticket = session.submit_put(vec![single(9, Source::owned(source))], Options::default());
    let Some(CompletedBatch::Put(mut done)) = session.wait(ticket, Duration::from_secs(30)) else {
        panic!("no put")
    };
    let done = done.remove(0);
    assert_eq!(done.outcome, Ok(PutOutcome::Stored));
    let back = done.source.into_buffer().expect("the buffer");
    assert_eq!((back.as_ptr(), back[..] == bytes(9, LEN)[..]), (at, true));
    // From SSD, from memory, a miss, and a request that is refused.
    for (n, len, hits) in [(0, LEN, true), (9, LEN, true), (77, LEN, false), (1, LEN - 1, false)] {
        let buffer = AlignedBuf::new(len).expect("memory");
        let at = buffer.as_ptr();
        let get = Get { key: key(n), range: None, destination: Destination::owned(buffer) };
        let ticket = session.submit_get(vec![get], Options::default());
        let Some(CompletedBatch::Get(mut done)) = session.wait(ticket, Duration::from_secs(30))
        else {
            panic!("no get n={n}")
        };
        let done = done.remove(0);
        assert_eq!(
            done.outcome.as_ref().is_ok_and(GetOutcome::is_hit),
            hits,
            "n={n} {:?}",
            done.outcome
        );
        let back = done.destination.into_buffer().expect("the buffer");
        assert_eq!((back.as_ptr(), back.len()), (at, len), "n={n}");
    }
    let shared: Arc<[u8]> = bytes(10, LEN).into();
    let ticket =
        session.submit_put(vec![single(10, Source::shared(shared.clone()))], Options::default());
    assert!(session.wait(ticket, Duration::from_secs(30)).is_some());
    assert_eq!(Arc::strong_count(&shared), 1, "nothing holds the caller's memory any more");
}

pub fn session_dropped_with_batches_in_flight_leaks_nothing(world: &TestEnv) {
    if world.constant {
        return; // Each get would read hundreds of records.
    }
    let store = cold_store(world, 12);
    for _ in 0..4 {
        let mut session = store.session().expect("a session");
        for n in 0..12 {
            session.submit_get(vec![owned(n)], Options::default());
        }
        drop(session);
    }
    hit_page(&store, 3, LEN);
    // Nothing pins the segments that were being read: they are reclaimed.
    put_until(&store, 1000, LEN, 40 << 20);
    assert!(!is_page_present(&store, 3, LEN));
    store.close().expect("closed");
}

pub fn closed_store_answers_closed(world: &TestEnv) {
    let store = cold_store(world, 1);
    let mut session = store.session().expect("a session");
    store.close().expect("closed");
    let ticket = session.submit_get(vec![owned(0)], Options::default());
    let mut outcomes = got(session.wait(ticket, Duration::from_secs(30)));
    refused(outcomes.remove(0).0, ErrorKind::Closed, "store is closed");
    let put = session
        .submit_put(vec![single(5, Source::shared(bytes(5, 10).into()))], Options::default());
    let Some(CompletedBatch::Put(mut done)) = session.wait(put, Duration::from_secs(30)) else {
        panic!("no put")
    };
    refused(done.remove(0).outcome, ErrorKind::Closed, "store is closed");
}

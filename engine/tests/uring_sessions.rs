//! A store over io_uring whose sessions move between threads.
#![allow(clippy::disallowed_methods, reason = "the test needs real threads")]

use std::sync::Barrier;
use std::sync::mpsc::channel;
use std::time::Duration;

use pagelith::config::{Promote, SsdIo};
use pagelith::layouts::{
    ids::PrefixHash, key::ObjectKey, key::Role, namespace::Namespace, shard::Shard,
};
use pagelith::{
    AlignedBuf, CompletedBatch, Config, Destination, Get, GetOutcome, GetSlice, MachineLimits,
    Options, PutSlice, Session, Size, Store, Tier,
};

const OBJECTS: u32 = 24;
const LEN: usize = 40_000;
const LONG: Duration = Duration::from_secs(60);

fn key(n: u32) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&n.to_le_bytes());
    let id = Namespace::default().id();
    ObjectKey::new(id, PrefixHash(hash), Role::Target, "kv", "k", Shard::Whole).unwrap()
}

fn bytes(n: u32) -> Vec<u8> {
    (0..LEN as u32).map(|i| (i.wrapping_mul(2_654_435_761) ^ n).to_be_bytes()[0]).collect()
}

fn config(home: &tempfile::TempDir) -> Config {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(8);
    config.dram.promote = Promote::Never;
    config.ssd.bytes = Size::mib(64);
    config.ssd.dirs = vec![home.path().join("store")];
    config.ssd.io = SsdIo::Uring;
    config
}

fn open(config: &Config) -> pagelith::Result<Store> {
    Store::open(config.validate(&MachineLimits::of_this_machine().unwrap()).unwrap())
}

/// A store whose objects are on SSD only, or `None` (and a printed line) if io_uring is refused on
/// this machine.
fn cold(home: &tempfile::TempDir) -> Option<Store> {
    let config = config(home);
    let store = match open(&config) {
        Ok(store) => store,
        Err(e) => {
            eprintln!("skipped: {e}");
            return None;
        }
    };
    for n in 0..OBJECTS {
        let bytes = bytes(n);
        let put = PutSlice { key: key(n), pieces: &[&bytes] };
        assert!(store.put_batch(&[put], Options::default())[0].is_ok());
    }
    store.close().unwrap();
    Some(open(&config).unwrap())
}

fn is_hit(outcome: &pagelith::Result<GetOutcome>) -> bool {
    matches!(outcome, Ok(GetOutcome::Hit { tier: Tier::Ssd, .. }))
}

/// Get all in one call; returns the number of hits, after comparing their bytes.
fn get(store: &Store, options: Options) -> usize {
    let mut memory = vec![vec![0; LEN]; OBJECTS as usize];
    let mut pieces: Vec<_> = memory.iter_mut().map(|to| [&mut to[..]]).collect();
    let asked = (0..OBJECTS).zip(&mut pieces);
    let mut gets: Vec<_> =
        asked.map(|(n, pieces)| GetSlice { key: key(n), range: None, pieces }).collect();
    let outcomes = store.get_batch(&mut gets, options);
    let hits = outcomes.iter().zip(&memory).zip(0..).filter(|((outcome, to), n)| {
        let hit = is_hit(outcome);
        assert!(!hit || **to == bytes(*n), "a hit brought other bytes n={n}");
        hit
    });
    hits.count()
}

#[test]
fn short_lived_threads_share_a_store() {
    let home = tempfile::tempdir().unwrap();
    let Some(store) = cold(&home) else { return };
    for _ in 0..6 {
        let together = Barrier::new(4);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    together.wait();
                    for _ in 0..4 {
                        assert_eq!(get(&store, Options::default()), OBJECTS as usize);
                    }
                });
            }
        });
        assert_eq!(get(&store, Options::default()), OBJECTS as usize);
    }
    assert_eq!(store.stats().damaged, 0);
}

fn begin(session: &mut Session) -> pagelith::Ticket {
    let destination = || Destination::owned(AlignedBuf::new(LEN).unwrap());
    let gets = (0..OBJECTS).map(|n| Get { key: key(n), range: None, destination: destination() });
    session.submit_get(gets.collect(), Options::default())
}

fn end(session: &mut Session, ticket: pagelith::Ticket) {
    let Some(CompletedBatch::Get(done)) = session.wait(ticket, LONG) else { panic!("no gets") };
    assert_eq!(done.len(), OBJECTS as usize);
    for (done, n) in done.into_iter().zip(0..) {
        assert!(is_hit(&done.outcome), "n={n} {:?}", done.outcome);
        assert!(done.destination.into_buffer().unwrap()[..] == bytes(n)[..], "other bytes n={n}");
    }
}

/// From a thread that stays alive to another and back, with two batches in flight.
#[test]
fn session_moves_between_threads_with_reads_in_flight() {
    let home = tempfile::tempdir().unwrap();
    let Some(store) = cold(&home) else { return };
    let mut session = store.session().unwrap();
    std::thread::scope(|scope| {
        let (there, come) = channel();
        let (back, backs) = channel();
        scope.spawn(move || {
            for (mut session, ticket) in come {
                let own = begin(&mut session);
                end(&mut session, ticket);
                back.send((session, own)).unwrap();
            }
        });
        for _ in 0..10 {
            let ticket = begin(&mut session);
            there.send((session, ticket)).unwrap();
            let own;
            (session, own) = backs.recv().unwrap();
            end(&mut session, own);
        }
        drop(there);
    });
    assert_eq!(store.stats().damaged, 0);
}

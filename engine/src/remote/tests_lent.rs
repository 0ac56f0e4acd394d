//! What a client reads itself out of a store's files, and until when it may.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::disk::{Completion, Op, Queue};
use pagelith_io::shm::Region;
use pagelith_io::system::SystemClock;
use pagelith_layouts::wire::request::Terms;
use pagelith_transport::address::Address;
use pagelith_transport::rights::Rights;
use tempfile::TempDir;

use super::call::{Got, Reply, Wanted};
use super::reads::Reads;
use super::tests::{PATIENCE, Pair, key, object, parts};
use crate::batch::{Options, PutSlice};
use crate::config::{Config, Facts, Promote};
use crate::error::ErrorKind;
use crate::outcome::{GetOutcome, MissCause, Tier};
use crate::store::Store;

const LEN: usize = 100_000;

/// A pair whose store has one object, on SSD alone, and says that `files` are its own.
fn lending(files: impl FnOnce(&Store, &TempDir) -> Vec<Arc<OwnedFd>>) -> (Pair, TempDir) {
    let dir = tempfile::tempdir().expect("a directory");
    let mut config = Config::default();
    config.dram.bytes = crate::Size::ZERO;
    config.dram.shared = true;
    config.dram.promote = Promote::Never;
    config.ssd.bytes = crate::Size::mib(16);
    config.ssd.segment_bytes = Some(crate::Size::mib(1));
    config.ssd.dirs = vec![dir.path().join("store")];
    config.ssd.shared = true;
    config.index.max_objects = Some(10_000);
    let store = Store::open(config.validate(&Facts::of_this_machine().expect("facts")).expect("valid"));
    let store = store.expect("opened");
    let bytes = object(1, LEN);
    let put = PutSlice { key: key(1, "k"), pieces: &[&bytes] };
    store.put_batch(&[put], Options::default()).remove(0).expect("put");
    store.flush(Options::default()).expect("flushed");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let (address, lends) = (Address::Unix(dir.path().join("socket")), files(&store, &dir));
    let (server, caller) = Pair::meet_lending(&store, &clock, address, Rights::all(), (&[], lends));
    (Pair { store, server, caller, clock }, dir)
}

fn own(store: &Store, _dir: &TempDir) -> Vec<Arc<OwnedFd>> {
    store.shared_files()
}

/// Readers of the store's segments.
fn inside(pair: &Pair) -> u64 {
    pair.store.shared.published.guards.as_ref().map_or(0, |guards| guards.count())
}

fn ask(pair: &mut Pair, within: Duration, sent: bool) {
    let wanted = Wanted { key: key(1, "k"), range: None, parts: parts(&[LEN]), sent };
    let terms = Terms { deadline_ms: within.as_millis() as u32, ..Terms::default() };
    pair.caller.get(1, vec![wanted], terms, pair.clock.now().after(within)).expect("room");
    pair.caller.poll(pair.clock.now(), &mut Vec::new());
}

/// Until the client has been told where the object lies, and has not looked.
fn lend(pair: &mut Pair, within: Duration) {
    ask(pair, within, false);
    let until = pair.clock.now().after(PATIENCE);
    while pair.server.ops() > 0 || inside(pair) == 0 {
        pair.server.turn();
        assert!(pair.clock.now() < until, "it is not told");
    }
    assert_eq!(inside(pair), 1);
}

fn got(pair: &mut Pair) -> Got {
    let Reply::Get(mut got) = pair.reply() else { panic!("another reply") };
    got.remove(0)
}

#[test]
fn a_segment_is_held_until_the_client_has_read() {
    let (mut pair, _dir) = lending(own);
    lend(&mut pair, PATIENCE);
    let got = got(&mut pair);
    assert_eq!(got.outcome, Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes: LEN as u64 }));
    assert_eq!((got.parts.len(), got.parts[0].bytes()), (1, &object(1, LEN)[..]));
    let until = pair.clock.now().after(PATIENCE);
    while inside(&pair) > 0 {
        pair.server.turn();
        pair.caller.poll(pair.clock.now(), &mut Vec::new());
        assert!(pair.clock.now() < until, "it is held for ever");
    }
}

#[test]
fn a_client_that_never_reads_holds_a_segment_until_its_time_is_up() {
    let (mut pair, _dir) = lending(own);
    // However quick the drive is.
    pair.caller.reads = Reads::by(Box::new(Stuck { held: Vec::new(), goes_on: Arc::new(true.into()) }));
    let soon = Duration::from_millis(100);
    lend(&mut pair, soon);
    let since = pair.clock.now();
    while inside(&pair) > 0 {
        pair.server.turn();
        assert!(pair.clock.now().since(since) < PATIENCE, "it is held for ever");
    }
    let got = got(&mut pair);
    assert!(matches!(got.outcome, Ok(GetOutcome::Miss(MissCause::Late))), "{:?}", got.outcome);
    assert_eq!(got.parts.iter().map(|part| part.len()).sum::<usize>(), LEN, "memory is lost");
    let until = pair.clock.now().after(PATIENCE);
    while pair.caller.is_owed() {
        pair.server.turn();
        pair.caller.poll(pair.clock.now(), &mut Vec::new());
        assert!(pair.clock.now() < until, "the link has no room for another");
    }
}

#[test]
fn a_client_that_is_gone_holds_nothing() {
    let (mut pair, _dir) = lending(own);
    lend(&mut pair, PATIENCE);
    let Pair { store, mut server, caller, .. } = pair;
    drop(caller);
    while server.closed().is_none() {
        server.turn();
    }
    assert_eq!(store.shared.published.guards.as_ref().map(|guards| guards.count()), Some(0));
}

/// The link ends while the client reads: an error, its memory back, and once.
#[test]
fn what_is_read_when_the_store_goes_comes_back() {
    let (mut pair, _dir) = lending(own);
    ask(&mut pair, PATIENCE, false);
    let until = pair.clock.now().after(PATIENCE);
    while inside(&pair) == 0 {
        pair.server.turn();
        assert!(pair.clock.now() < until, "it is not told");
    }
    pair.server.close();
    let got = got(&mut pair);
    // The outcome was on its way too, or not.
    match got.outcome {
        Ok(GetOutcome::Hit { .. }) => assert_eq!(got.parts[0].bytes(), object(1, LEN)),
        other => assert_eq!(other.expect_err("no hit").kind, ErrorKind::Unavailable),
    }
    assert_eq!(got.parts.iter().map(|part| part.len()).sum::<usize>(), LEN, "memory is lost");
}

/// A drive that ends nothing until it is told to.
struct Stuck {
    held: Vec<(u64, Op)>,
    goes_on: Arc<AtomicBool>,
}

impl Queue for Stuck {
    fn room(&self) -> usize {
        1
    }

    fn in_flight(&self) -> usize {
        self.held.len()
    }

    fn submit(&mut self, token: u64, op: Op) -> Result<(), Op> {
        self.held.push((token, op));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Completion>) {
        if self.goes_on.load(Ordering::Relaxed) {
            let over = |(token, op)| Completion { token, result: Ok(()), op };
            done.extend(self.held.drain(..).map(over));
        }
    }

    fn wait(&mut self, done: &mut Vec<Completion>, _timeout: Duration) {
        self.poll(done);
    }
}

/// What the kernel has may be written at any time: whoever it is of gets it back when it does not, and not at its deadline.
#[test]
fn memory_that_is_read_into_is_waited_for_whatever_the_time() {
    let (mut pair, _dir) = lending(own);
    let goes_on = Arc::new(AtomicBool::new(false));
    pair.caller.reads = Reads::by(Box::new(Stuck { held: Vec::new(), goes_on: goes_on.clone() }));
    let (soon, began) = (Duration::from_millis(50), pair.clock.now());
    lend(&mut pair, soon);
    let mut replies = Vec::new();
    while pair.clock.now().since(began) < 4 * soon {
        pair.server.turn();
        pair.caller.wait(pair.clock.now(), Duration::from_millis(1), &mut replies);
        assert!(replies.is_empty(), "its memory is given back while it is read into");
    }
    assert_eq!((pair.caller.calls(), inside(&pair)), (1, 0), "and the store holds nothing for it");
    goes_on.store(true, Ordering::Relaxed);
    let got = got(&mut pair);
    assert_eq!(got.outcome, Ok(GetOutcome::Miss(MissCause::Late)));
    assert_eq!(got.parts.iter().map(|part| part.len()).sum::<usize>(), LEN, "memory is lost");
}

#[test]
fn a_get_whose_deadline_is_shorter_than_reads_lately_took_is_left_to_the_store() {
    let (mut pair, _dir) = lending(own);
    let (goes_on, took) = (Arc::new(AtomicBool::new(false)), Duration::from_millis(200));
    pair.caller.reads = Reads::by(Box::new(Stuck { held: Vec::new(), goes_on: goes_on.clone() }));
    let began = pair.clock.now();
    lend(&mut pair, PATIENCE);
    while pair.clock.now().since(began) < took {
        pair.caller.wait(pair.clock.now(), Duration::from_millis(1), &mut Vec::new());
    }
    goes_on.store(true, Ordering::Relaxed);
    // Nothing was read: its bytes are not the object's.
    assert_eq!(self::got(&mut pair).outcome, Ok(GetOutcome::Miss(MissCause::Damaged)));
    for (within, lent) in [(took / 2, 0), (PATIENCE, LEN as u64)] {
        let before = pair.store.stats().lent_bytes;
        ask(&mut pair, within, false);
        self::got(&mut pair);
        assert_eq!(pair.store.stats().lent_bytes - before, lent, "{within:?}");
    }
}

/// Whatever the files hold: no byte of it is a hit, and the store is asked for its own.
#[test]
fn what_is_not_in_the_files_is_asked_for_by_its_bytes() {
    // Too short for where the object lies, and zeros.
    for length in [4096, 64 << 20] {
        let other = |_: &Store, _: &TempDir| {
            let memory = Region::new(length).expect("memory");
            vec![Arc::new(memory.as_fd().try_clone_to_owned().expect("a descriptor"))]
        };
        let (mut pair, _dir) = lending(other);
        ask(&mut pair, PATIENCE, false);
        let no = got(&mut pair);
        assert_eq!(no.outcome, Ok(GetOutcome::Miss(MissCause::Damaged)), "length={length}");
        assert!(no.again && no.parts[0].bytes().iter().all(|byte| *byte == 0));
        ask(&mut pair, PATIENCE, true);
        let sent = got(&mut pair);
        assert_eq!(sent.outcome, Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes: LEN as u64 }));
        assert_eq!(sent.parts[0].bytes(), object(1, LEN));
    }
}

/// A process that can read no file asks for nothing to be left to it.
#[test]
fn who_cannot_read_files_is_sent_the_bytes() {
    let (pipe, _other) = std::io::pipe().expect("a pipe");
    let (mut pair, _dir) = lending(|_, _| vec![Arc::new(OwnedFd::from(pipe))]);
    ask(&mut pair, PATIENCE, false);
    let sent = got(&mut pair);
    assert_eq!(sent.outcome, Ok(GetOutcome::Hit { tier: Tier::Ssd, bytes: LEN as u64 }));
    assert_eq!((sent.parts[0].bytes(), pair.store.stats().lent_bytes), (&object(1, LEN)[..], 0));
}

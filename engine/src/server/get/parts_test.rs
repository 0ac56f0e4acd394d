//! Long objects are read in several batches: they count once, and whether they are loaded is
//! decided once.
#![allow(clippy::disallowed_methods, reason = "a test sets up real files")]

use std::sync::Arc;
use std::time::Duration;

use pagelith_io::clock::Clock;
use pagelith_io::system::SystemClock;
use pagelith_layouts::wire::request::RequestOptions;
use pagelith_transport::rights::Rights;

use crate::Size;
use crate::api::outcome::{GetOutcome, MissCause, Tier};
use crate::api::request::{Options, PutSlice};
use crate::config::{Config, MachineLimits, Promote};
use crate::rpc::call::{ItemRequest, Response};
use crate::server::tests::{Pair, TIMEOUT, key, object, parts};
use crate::store::embedded::Store;

/// More than the staging memory of the server.
const LONG: usize = 20 << 20;

/// A store without a DRAM tier that has object 1, on SSD. Its client recomputes a page in a second.
fn pair(dir: &std::path::Path) -> Pair {
    let mut config = Config::default();
    (config.dram.bytes, config.dram.promote) = (Size::ZERO, Promote::Never);
    (config.ssd.bytes, config.ssd.segment_bytes) = (Size::mib(256), Some(Size::mib(32)));
    config.ssd.dirs = vec![dir.to_owned()];
    config.index.max_objects = Some(1000);
    (config.read.prefill_tokens_per_s, config.read.page_tokens) = (1, 1);
    let facts = MachineLimits::of_this_machine().expect("facts");
    let store = Store::open(config.validate(&facts).expect("valid")).expect("opened");
    let put = PutSlice { key: key(1, "k"), pieces: &[&object(1, LONG)] };
    store.put_batch(&[put], Options::default()).remove(0).expect("put");
    store.flush(Options::default()).expect("flushed");
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let address = "tcp:127.0.0.1:0".parse().expect("an address");
    let (server, caller) = Pair::connect(&store, &clock, address, Rights::all(), &[]);
    Pair { store, server, caller, clock }
}

/// From now on each byte seems to take a second.
fn loads_are_slow(pair: &Pair) {
    let shared = &pair.store.shared;
    shared.reads.loads.note(1 << 30, Duration::from_secs(1 << 30), shared.now());
}

fn ask(pair: &mut Pair, page: u8) {
    let wanted =
        ItemRequest { key: key(page, "k"), range: None, parts: parts(&[LONG]), by_value: false };
    let deadline = pair.clock.now().after(TIMEOUT);
    pair.caller.get(1, vec![wanted], RequestOptions::default(), deadline).expect("link capacity");
}

/// Ask for a page; its first batch has begun.
fn begin(pair: &mut Pair, page: u8) {
    ask(pair, page);
    while pair.server.ctx.batches.is_empty() {
        pair.server.poll();
    }
}

fn outcome(pair: &mut Pair) -> GetOutcome {
    let Response::Get(mut got) = pair.reply() else { panic!("unexpected reply") };
    got.remove(0).outcome.expect("an outcome")
}

const HIT: GetOutcome = GetOutcome::Hit { tier: Tier::Ssd, bytes: LONG as u64 };

#[test]
fn long_object_counts_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut pair = pair(dir.path());
    ask(&mut pair, 1);
    assert_eq!(outcome(&mut pair), HIT);
    let stats = pair.store.stats();
    assert_eq!((stats.hits_ssd, stats.bytes_ssd), (1, LONG as u64));
    ask(&mut pair, 2);
    assert_eq!(outcome(&mut pair), GetOutcome::Miss(MissCause::Absent));
    let stats = pair.store.stats();
    assert_eq!(stats.misses.get("absent"), Some(&1), "{stats:?}");
    assert_eq!(stats.absent.values().sum::<u64>(), 1, "{stats:?}");
}

#[test]
fn load_that_has_begun_is_not_given_up_as_slow() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut pair = pair(dir.path());
    begin(&mut pair, 1);
    loads_are_slow(&pair);
    assert_eq!(outcome(&mut pair), HIT);
    ask(&mut pair, 1);
    assert_eq!(outcome(&mut pair), GetOutcome::Miss(MissCause::Absent), "now it is slow");
    let stats = pair.store.stats();
    assert_eq!((stats.misses.get("slow"), stats.misses.get("absent")), (Some(&1), None));
}

/// Its batch still has memory, and its result must not reach the next operation of its number.
#[test]
fn cancelled_get_counts_until_its_batch_has_ended() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut pair = pair(dir.path());
    begin(&mut pair, 1);
    let counted = |pair: &Pair| pair.store.shared.bytes.served.bytes();
    let (id, bytes) = (*pair.server.ops.keys().next().expect("the get"), counted(&pair));
    assert!(bytes > 0);
    pair.server.cancel(id);
    assert!(pair.server.ctx.batches.is_empty(), "no result reaches an operation");
    assert_eq!((pair.server.cancelled_batches.len(), counted(&pair)), (1, bytes));
    while pair.server.cancelled_batches.len() > 0 {
        pair.server.poll();
    }
    assert_eq!(counted(&pair), 0);
}

#[test]
fn request_of_another_store_is_loaded_though_loads_are_slow() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut pair = pair(dir.path());
    pair.caller = pair.caller.for_store();
    loads_are_slow(&pair);
    ask(&mut pair, 1);
    assert_eq!(outcome(&mut pair), HIT);
}

#[test]
fn client_that_does_not_read_leaves_staging_memory_to_others() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut slow = pair(dir.path());
    let (store, clock) = (slow.store.clone(), slow.clock.clone());
    let address = "tcp:127.0.0.1:0".parse().expect("an address");
    let (mut server, caller) = Pair::connect(&store, &clock, address, Rights::all(), &[]);
    server.ctx.staging = slow.server.ctx.staging.pool().user();
    let mut other = Pair { store, server, caller, clock };
    // From then on neither end of its link is polled.
    begin(&mut slow, 1);
    ask(&mut other, 1);
    assert_eq!(outcome(&mut other), HIT);
    assert_eq!(outcome(&mut slow), HIT);
}

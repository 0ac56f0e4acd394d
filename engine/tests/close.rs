//! Duration of a close, and the objects that it reports as not durable.

use std::sync::Arc;
use std::time::Duration;

use pagelith::config::SsdAdmissionRule;
use pagelith::io::clock::Clock;
use pagelith::io::entropy::Entropy;
use pagelith::io::fault::{FaultKind, FaultOp, IoFault};
use pagelith::io::runtime::{Env, Join, Runtime, Task};
use pagelith::io::signal::Signal;
use pagelith::io::system::SystemEntropy;
use pagelith::layouts::ids::PrefixHash;
use pagelith::layouts::key::{ObjectKey, Role};
use pagelith::layouts::namespace::Namespace;
use pagelith::layouts::shard::Shard;
use pagelith::rpc::Peer;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::dial::SocketDial;
use pagelith::{
    Config, ErrorKind, MachineLimits, Options, PageStore, PutOutcome, PutSlice, Size, Store,
};
use pagelith_sim::disk::FaultPlan;
use pagelith_sim::env::SimWorld;

const LEN: usize = 50_000;
const PAGES: u64 = 60;

fn key(page: u64) -> ObjectKey {
    component(page, "k")
}

fn component(page: u64, component: &str) -> ObjectKey {
    let model = Namespace { model: "m".into(), page_tokens: 64, ..Namespace::default() }.id();
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&page.to_le_bytes());
    ObjectKey::new(model, PrefixHash(hash), Role::Target, "kv", component, Shard::Whole)
        .expect("a key")
}

fn config() -> pagelith::ValidConfig {
    validated(&unvalidated())
}

fn validated(config: &Config) -> pagelith::ValidConfig {
    config
        .validate(&MachineLimits::of_this_machine().expect("facts"))
        .unwrap_or_else(|error| panic!("{error}"))
}

fn unvalidated() -> Config {
    let mut config = Config::default();
    config.deadline_ms = 100;
    config.close_timeout_ms = 60_000;
    config.dram.bytes = Size::mib(4);
    config.ssd.bytes = Size::mib(32);
    config.ssd.segment_bytes = Some(Size::mib(1));
    config.ssd.dirs = vec!["/sim/0".into()];
    config.ssd.write_depth = 1;
    config.memory.reserve = Size::ZERO;
    config
}

fn open(world: &SimWorld) -> Store {
    Store::open_in(config(), world.env()).expect("a store")
}

fn put(store: &Store) {
    for page in 0..PAGES {
        let put = PutSlice { key: key(page), pieces: &[&[page as u8; LEN]] };
        assert_eq!(
            store.put_batch(&[put], Options::default()),
            [Ok(PutOutcome::Stored)],
            "page={page}"
        );
    }
}

fn found(store: &Store) -> u64 {
    let keys: Vec<_> = (0..PAGES).map(key).collect();
    store.exists_batch(&keys, Options::default()).into_iter().filter(|here| *here).count() as u64
}

#[test]
fn close_of_slow_drive_exceeds_call_deadline_and_loses_nothing() {
    let world = SimWorld::new(1);
    let store = open(&world);
    world.disk.set_latency(Duration::from_millis(60));
    put(&store);
    let begun = world.clock.now();
    let report = store.close_within(Duration::from_secs(60));
    let took = world.clock.now().since(begun);
    assert_eq!(
        (report.unsaved_objects, report.unsaved_bytes, &report.error),
        (0, 0, &None),
        "{report:?}"
    );
    assert!(took > Duration::from_millis(100), "it was not slow: {took:?}");
    world.disk.set_latency(Duration::ZERO);
    assert_eq!(found(&open(&world)), PAGES);
}

/// Objects that reclaim has evicted from SSD are only cached in DRAM, and are not counted.
#[test]
fn close_after_the_log_has_wrapped_reports_no_loss() {
    let world = SimWorld::new(5);
    let mut config = Config::default();
    config.deadline_ms = 1000;
    config.dram.bytes = Size::mib(8);
    config.ssd.bytes = Size::mib(12);
    config.ssd.segment_bytes = Some(Size::mib(1));
    config.ssd.dirs = vec!["/sim/0".into()];
    config.index.max_objects = Some(1000);
    config.memory.reserve = Size::ZERO;
    let open = || {
        let valid = config.validate(&MachineLimits::of_this_machine().expect("facts"));
        Store::open_in(valid.unwrap_or_else(|error| panic!("{error}")), world.env())
            .expect("a store")
    };
    let store = open();
    for page in 0..400 {
        let put = PutSlice { key: key(page), pieces: &[&[1; LEN]] };
        assert_eq!(
            store.put_batch(&[put], Options::default()),
            [Ok(PutOutcome::Stored)],
            "page={page}"
        );
        store.flush(Options::default()).expect("flushed");
    }
    let keys: Vec<_> = (0..400).map(key).collect();
    let count = |store: &Store| {
        store.exists_batch(&keys, Options::default()).iter().filter(|here| **here).count()
    };
    let here = count(&store);
    let report = store.close_within(Duration::from_secs(60));
    assert_eq!(
        (report.unsaved_objects, report.unsaved_bytes, &report.error),
        (0, 0, &None),
        "{report:?}"
    );
    let found = count(&open());
    assert!(
        (1..here).contains(&found),
        "DRAM had none that the log has not: here={here} found={found}"
    );
}

#[test]
fn timed_out_close_counts_unsaved_objects() {
    let world = SimWorld::new(2);
    let store = open(&world);
    world.disk.set_latency(Duration::from_millis(60));
    put(&store);
    let report = store.close_within(Duration::from_millis(300));
    let error = report.error.as_ref().map(|error| error.kind);
    assert_eq!(error, Some(ErrorKind::Unavailable), "{report:?}");
    assert!(report.unsaved_objects > 0, "{report:?}");
    assert_eq!(report.unsaved_objects, PAGES - report.flushed.durable_objects, "{report:?}");
    assert_eq!(report.unsaved_bytes, report.unsaved_objects * LEN as u64, "{report:?}");
}

/// The state was written and synced, and its base was not: without it the state is lost.
#[test]
fn timed_out_close_counts_attached_object_without_its_base_as_unsaved() {
    let world = SimWorld::new(6);
    let mut config = unvalidated();
    config.ssd.admission = SsdAdmissionRule::SecondTouch;
    let store = Store::open_in(validated(&config), world.env()).expect("a store");
    let base = PutSlice { key: key(1), pieces: &[&[1; LEN]] };
    assert_eq!(store.put_batch(&[base], Options::default()), [Ok(PutOutcome::Stored)]);
    let (state_key, mut state) = (component(1, "state"), [2; LEN]);
    let attached = PutSlice { key: state_key, pieces: &[&state] };
    let outcomes = store.put_attached(&[(key(1), &[attached])], Options::default());
    assert_eq!(outcomes, [Ok(PutOutcome::Stored)]);
    // A hit makes the state worth a write, and not its base.
    let hit = store.get_one(state_key, &mut state, Options::default()).expect("got");
    assert!(hit.is_hit());
    (0..1000).for_each(|_| world.runtime.run_for(Duration::from_millis(1)));
    assert_eq!(store.stats().unflushed_bytes, 0);
    store.remove(&[key(9)], Options::default()).expect("synced");
    world.disk.hold(FaultOp::Write, None);
    let report = store.close_within(Duration::from_millis(50));
    assert!(report.error.is_some(), "{report:?}");
    let unsaved = (report.unsaved_objects, report.unsaved_bytes);
    assert_eq!(unsaved, (2, 2 * LEN as u64), "{report:?}");
    world.disk.release();
}

#[test]
fn close_of_failed_tier_ends_at_once_and_counts_unsaved_objects() {
    let world = SimWorld::new(3);
    let store = open(&world);
    (1..4).for_each(|nth| {
        world.disk.inject(FaultPlan::Fail { op: FaultOp::Sync, nth, kind: FaultKind::Device });
    });
    put(&store);
    assert_eq!(
        store.flush(Options::default()).map_err(|error| error.kind),
        Err(ErrorKind::Unavailable)
    );
    assert_eq!(store.stats().ssd_state, "read-only");
    let here = found(&store);
    let begun = world.clock.now();
    let report = store.close_within(Duration::from_secs(60));
    let took = world.clock.now().since(begun);
    assert!(took < Duration::from_millis(500), "{took:?}");
    assert_eq!(
        (report.unsaved_objects, report.unsaved_bytes),
        (here, here * LEN as u64),
        "{report:?}"
    );
    let said = report.error.expect("an error").message;
    assert!(said.contains("ssd tier is read-only"), "{said}");
}

#[test]
fn close_of_hung_drive_ends_once_the_stall_is_detected() {
    let world = SimWorld::new(4);
    let store = open(&world);
    world.disk.hold(FaultOp::Write, None);
    let put = PutSlice { key: key(1), pieces: &[&[1; LEN]] };
    assert_eq!(store.put_batch(&[put], Options::default()), [Ok(PutOutcome::Stored)]);
    let begun = world.clock.now();
    let report = store.close_within(Duration::from_secs(60));
    let took = world.clock.now().since(begun);
    assert!(took < Duration::from_secs(1), "{took:?}");
    assert_eq!((report.unsaved_objects, report.unsaved_bytes), (1, LEN as u64), "{report:?}");
    world.disk.release();
}

/// A runtime that can start every thread except the peer writer's.
struct NoWriter(Arc<dyn Runtime>);

impl Runtime for NoWriter {
    fn spawn(
        &self,
        name: &str,
        task: Box<dyn Task>,
        wake: Signal,
    ) -> Result<Box<dyn Join>, IoFault> {
        if name == "pagelith-remote" {
            return Err(IoFault::found(FaultKind::Exhausted, FaultOp::Spawn, name, 0, "planted"));
        }
        self.0.spawn(name, task, wake)
    }

    fn pause(&self, signal: &Signal, seen: u64, timeout: Duration) {
        self.0.pause(signal, seen, timeout);
    }
}

#[test]
fn open_without_a_peer_writer_thread_is_refused_and_releases_files() {
    let world = SimWorld::new(5);
    put(&open(&world));
    let clock: Arc<dyn Clock> = Arc::new(world.clock.clone());
    let address = "tcp:127.0.0.1:1".parse().expect("an address");
    let offer = Capabilities::of_this_build(SystemEntropy.bytes16());
    let dial = Arc::new(SocketDial::new(address, None, offer, clock));
    let peer = Peer { name: "store".to_owned(), weight: 1.0, preferred: false, dial };
    let env = world.env();
    let env = Env { runtime: Arc::new(NoWriter(env.runtime.clone())), ..env };
    let error = Store::open_in_with_peers(config(), env, vec![peer]).expect_err("no thread");
    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
    open(&world).close().expect("closed");
}

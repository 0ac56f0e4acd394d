//! Stores, clients and peers over RDMA: which bytes it carries, and what is refused. Over the fake
//! verbs library, or the devices of the one that `TEST_PAGELITH_VERBS` names.
#![allow(clippy::disallowed_methods, reason = "tests copy files")]
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

#[path = "suite/device.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod device;
#[path = "suite/env.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod env;
#[path = "../../io/tests/verbs/fake.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod fake;
#[allow(dead_code)]
#[path = "../../io/tests/devices/fake.rs"]
mod fake_device;
#[path = "suite/harness.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod harness;
#[path = "suite/helpers.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod helpers;
#[path = "rdma/layouts.rs"]
mod layouts;
#[path = "suite/rdma.rs"]
#[allow(dead_code, reason = "each test program uses its own part")]
mod rdma;

use std::sync::Arc;

use env::{IoKind, TestEnv};
use fake::{Fake, copied, load};
use harness::{Store, Transport};
use helpers::{bytes, key};
use pagelith::config::{Config, RdmaConfig};
use pagelith::io::shm::SharedRegion;
use pagelith::io::verbs::{Device, Library};
use pagelith::rpc::Peer;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::dial::SocketDial;
use pagelith::transport::peer_address::{BulkTransport, PeerAddress};
use pagelith::transport::rdma::host::RdmaHost;
use pagelith::transport::rdma::rdma_use::RdmaUse;
use pagelith::transport::shown::REGIONS_MAX;
use pagelith::{
    AlignedBuf, Error, ErrorKind, GetOutcome, GetSlice, MachineLimits, Options, PutOutcome,
    PutSlice, Size, Tier,
};

const OBJECT: usize = 100_000;
const PAGES: u64 = 8;

/// A store process and its client; `None`, and a line that says so, without devices.
fn served() -> Option<(TestEnv, Store)> {
    served_with(Size::mib(16))
}

/// The same, with an arena of this size.
fn served_with(arena: Size) -> Option<(TestEnv, Store)> {
    if let Some(why) = rdma::unavailable() {
        println!("skipped: {why}");
        return None;
    }
    let world = TestEnv::over(Transport::Rdma, IoKind::Blocking, false, 1);
    let store = world.open(&world.memory_config(arena));
    Some((world, store))
}

fn buffers() -> Vec<AlignedBuf> {
    AlignedBuf::many(PAGES as usize, OBJECT).expect("memory")
}

/// The address and length of all buffers together.
fn whole(buffers: &[AlignedBuf]) -> (*const u8, usize) {
    let (first, last) = (&buffers[0], &buffers[buffers.len() - 1]);
    (first.as_ptr(), last.as_ptr().addr() + last.len() - first.as_ptr().addr())
}

fn put(client: &pagelith::client::Client, buffers: &[AlignedBuf]) {
    let pieces: Vec<[&[u8]; 1]> = buffers.iter().map(|buffer| [&buffer[..]]).collect();
    let puts: Vec<PutSlice<'_>> =
        (0..).zip(&pieces).map(|(n, pieces)| PutSlice { key: key(n), pieces }).collect();
    for outcome in client.put_batch(&puts, Options::default()) {
        assert_eq!(outcome, Ok(PutOutcome::Stored));
    }
}

/// Get all pages, and compare every byte. Returns the tier of each hit.
fn get(
    of: impl FnOnce(&mut [GetSlice<'_, '_>]) -> Vec<pagelith::Result<GetOutcome>>,
    buffers: &mut [AlignedBuf],
) -> Vec<Option<Tier>> {
    buffers.iter_mut().for_each(|buffer| buffer.fill(0));
    let mut pieces: Vec<[&mut [u8]; 1]> =
        buffers.iter_mut().map(|buffer| [&mut buffer[..]]).collect();
    let mut gets: Vec<GetSlice<'_, '_>> = (0..)
        .zip(&mut pieces)
        .map(|(n, pieces)| GetSlice { key: key(n), range: None, pieces })
        .collect();
    let outcomes = of(&mut gets);
    for (n, buffer) in (0..).zip(buffers.iter()) {
        assert!(buffer[..] == bytes(n, OBJECT)[..], "page {n} differs");
    }
    let tier = |outcome: pagelith::Result<GetOutcome>| match outcome {
        Ok(GetOutcome::Hit { tier, .. }) => Some(tier),
        _ => None,
    };
    outcomes.into_iter().map(tier).collect()
}

#[test]
fn registered_memory_moves_by_rdma_alone_and_other_memory_over_tcp() {
    let Some((world, store)) = served() else { return };
    let (client, [server, own]) = (store.client(), store.devices());
    let mut buffers = buffers();
    (0..).zip(&mut buffers).for_each(|(n, buffer)| buffer.copy_from_slice(&bytes(n, OBJECT)));
    let total = PAGES * OBJECT as u64;
    let (base, len) = whole(&buffers);
    let registered = client.register_memory(base, len).expect("registered").expect("devices");
    put(client, &buffers);
    let tiers = get(|gets| client.get_batch(gets, Options::default()), &mut buffers);
    assert_eq!(tiers, vec![Some(Tier::Memory); PAGES as usize]);
    let counts = own.counters().counts();
    assert_eq!((counts.bytes_placed, counts.stream_unregistered), (total, 0));
    assert!(counts.notices > 0);
    // The server counts a WRITE when its completion arrives, which the client does not wait for.
    helpers::until(&world, "WRITEs completed", || store.stats().rdma_bytes_written == total);
    let stats = store.stats();
    assert_eq!(stats.rdma_bytes_read, total);
    assert_eq!((stats.rdma_rails, stats.rdma_rails_up), (1, 1));
    assert!(stats.rdma_links > 0 && stats.rdma_registered_bytes > 0, "{stats:?}");

    // The same memory without a registration: the same bytes, over TCP.
    drop(registered);
    assert_eq!(own.registered_bytes(), 0);
    get(|gets| client.get_batch(gets, Options::default()), &mut buffers);
    let counts = own.counters().counts();
    assert_eq!((counts.bytes_placed, counts.stream_unregistered), (total, total));
    assert_eq!(server.counters().counts().bytes_written, total);
}

#[test]
fn shared_region_beyond_the_limit_is_not_registered() {
    let Some((_world, store)) = served() else { return };
    let (client, [_, own]) = (store.client(), store.devices());
    let region = || Arc::new(SharedRegion::new(4096).expect("memory"));
    (0..REGIONS_MAX).for_each(|_| client.share(region()).expect("shared"));
    let registered = own.registered_bytes();
    assert_eq!(registered, REGIONS_MAX as u64 * 4096);
    let error = client.share(region()).expect_err("one more");
    assert!(error.message.ends_with("too many shared memory regions max=32"), "{error}");
    assert_eq!(own.registered_bytes(), registered);
}

#[test]
fn peer_writes_hits_into_registered_memory_and_reads_puts_from_the_arena() {
    let Some((world, store)) = served() else { return };
    let [_, own] = store.devices();
    let config = world.memory_config(Size::mib(16));
    let config = config.validate(&MachineLimits::of_this_machine().expect("facts")).expect("valid");
    let clock = Arc::new(pagelith::io::system::SystemClock::new());
    let offer = Capabilities::of_this_build([3; 16]);
    let dial = SocketDial {
        rdma: RdmaUse::Demanded(own.clone()),
        ..SocketDial::new(store.address().clone(), None, offer, clock)
    };
    let peer = Peer { name: "a".into(), weight: 1.0, preferred: false, dial: Arc::new(dial) };
    let front = pagelith::Store::open_with_peers(config, vec![peer]).expect("opened");
    front.register_rdma(own).expect("registered");
    let error = front.register_rdma(own).expect_err("twice");
    assert_eq!(error.kind, ErrorKind::Invalid);
    let mut buffers = buffers();
    (0..).zip(&mut buffers).for_each(|(n, buffer)| buffer.copy_from_slice(&bytes(n, OBJECT)));
    let (base, len) = whole(&buffers);
    let registered = front.register_memory(base, len).expect("registered");
    assert!(registered.is_used());
    for (n, buffer) in (0..).zip(&buffers) {
        let object = PutSlice { key: key(n), pieces: &[&buffer[..]] };
        assert_eq!(front.put_batch(&[object], Options::default()), [Ok(PutOutcome::Stored)]);
    }
    let total = PAGES * OBJECT as u64;
    helpers::until(&world, "the peer has all pages", || front.stats().remote_stored == PAGES);
    assert_eq!(store.stats().rdma_bytes_read, total);
    // Another store has none of them: it gets all from the peer.
    drop((registered, front));
    let client = store.client();
    let registered = client.register_memory(base, len).expect("registered");
    let before = own.counters().counts().bytes_placed;
    get(|gets| client.get_batch(gets, Options::default()), &mut buffers);
    assert_eq!(own.counters().counts().bytes_placed - before, total);
    drop(registered);
}

/// A verbs library of its own with a device for each script, and its controls.
fn library(scripts: &[&str]) -> (tempfile::TempDir, Arc<Library>, Fake) {
    let (dir, path) = copied();
    let (library, control) = (load(&path), Fake::at(&path));
    scripts.iter().for_each(|script| assert!(control.device(script) > 0));
    (dir, library, control)
}

fn refused(library: &Arc<Library>, config: &RdmaConfig) -> Error {
    pagelith::rdma::open_host_of(library, config).expect_err("no devices")
}

#[test]
fn devices_that_cannot_be_used_are_refused_by_name() {
    let (_dir, library, control) = library(&["port=down", "gids=fe80::1/2", ""]);
    let device = |list: &str| {
        let mut rdma = RdmaConfig::default();
        rdma.devices = Some(list.into());
        rdma
    };
    let cases = [
        (device("mlx5_9"), ErrorKind::Invalid, "device=mlx5_9 found=fake1,fake2,fake3"),
        (device("fake1"), ErrorKind::Unavailable, "wanted=device fake1 candidates=fake1/1 down"),
        (
            device("fake2"),
            ErrorKind::Unavailable,
            "device=fake2 port=1 wanted=best gids=0: fe80::1",
        ),
        (
            {
                let mut rdma = device("fake3");
                rdma.gid_index = Some(9);
                rdma
            },
            ErrorKind::Unavailable,
            "device=fake3 port=1 wanted=index 9 gids=",
        ),
        (device("fake1,fake3"), ErrorKind::Invalid, "the process has no GPU"),
        (
            {
                let mut rdma = device("fake1,fake3");
                rdma.gpu = Some(1000);
                rdma
            },
            ErrorKind::Invalid,
            "the process's GPU is not visible",
        ),
    ];
    for (config, kind, part) in cases {
        let error = refused(&library, &config);
        assert!(error.message.starts_with("rdma: ") && error.message.contains(part), "{error}");
        assert_eq!(error.kind, kind, "{error}");
    }
    assert!((1..=3).all(|device| control.objects(device) == 0));
    let mut forced = device("fake3");
    forced.gid_index = Some(1);
    let host = pagelith::rdma::open_host_of(&library, &forced).expect("a device");
    assert_eq!(host.rails()[0].attachment().expect("a GID").gid.index, 1);
}

#[test]
fn memory_that_a_device_refuses_is_named_and_nothing_stays_registered() {
    for (script, setting, part) in [
        ("max-mr-size=100", "dram.bytes", "device=fake1 bytes=4096 max_mr_size=100"),
        ("fail-registration=2", "staging.bytes", "fake1"),
    ] {
        let (_dir, library, control) = library(&[script]);
        let host =
            pagelith::rdma::open_host_of(&library, &RdmaConfig::default()).expect("a device");
        let world = TestEnv::new(IoKind::Blocking, false, 1);
        let store = world.open(&world.memory_config(Size::mib(1)));
        let error = store.register_rdma(&host).expect_err("refused");
        assert!(error.message.starts_with(&format!("{setting}: rdma: ")), "{error}");
        assert!(error.message.contains(part), "{error}");
        assert_eq!((control.count(1, "regions"), host.registered_bytes()), (0, 0));
        // The store goes on without RDMA.
        assert!(store.rdma().is_none());
    }
}

fn memory_config() -> Config {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(1);
    config
}

fn open(config: &Config) -> pagelith::Result<pagelith::Store> {
    let facts = MachineLimits::of_this_machine().expect("facts");
    pagelith::Store::open(config.validate(&facts).expect("valid"))
}

#[test]
fn store_that_demands_rdma_does_not_open_without_devices_and_auto_opens_with_tcp() {
    if Library::load().is_ok_and(|library| Device::names(&library).is_ok()) {
        println!("skipped: this host has RDMA devices");
        return;
    }
    let peer = |transport| {
        let address: PeerAddress = "tcp:127.0.0.1:9".parse().expect("an address");
        let mut config = memory_config();
        config.remote.peers = vec![address.with_transport(transport).expect("fits").into()];
        config
    };
    let mut serving = memory_config();
    serving.rdma.serve = true;
    for config in [serving, peer(BulkTransport::Rdma)] {
        let error = open(&config).expect_err("no devices");
        assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
        assert!(error.message.starts_with("rdma: ") && error.message.contains("; "), "{error}");
    }
    let store = open(&peer(BulkTransport::Auto)).expect("opened");
    assert!(store.rdma().is_none());
    assert_eq!(store.stats().rdma_links_without.get("host"), Some(&1));
    assert_eq!(store.stats().rdma_rails, 0);
}

/// A store without RDMA at the other end.
#[test]
fn client_that_demands_rdma_is_refused_by_a_store_without_it() {
    let (_dir, library, _control) = library(&[""]);
    let host: Arc<RdmaHost> =
        pagelith::rdma::open_host_of(&library, &RdmaConfig::default()).expect("a device");
    let world = TestEnv::over(Transport::Tcp, IoKind::Blocking, false, 1);
    let store = world.open(&world.memory_config(Size::mib(1)));
    let client = pagelith::client::Client::dial(store.address(), None);
    let timeout = std::time::Duration::from_secs(10);
    let demanding = SocketDial { rdma: RdmaUse::Demanded(host.clone()), ..client.clone() };
    let error = pagelith::client::Client::over(demanding, timeout).expect_err("no RDMA there");
    assert_eq!(error.kind, ErrorKind::Incompatible);
    let address = store.address().to_string();
    assert!(error.message.contains("start the peer with --rdma"), "{error}");
    assert!(error.message.ends_with(&format!("address={address}")), "{error}");
    let offering = SocketDial { rdma: RdmaUse::Offered(host.clone()), ..client };
    pagelith::client::Client::over(offering, timeout).expect("over TCP");
    assert_eq!(host.counters().counts().no_rdma_peer, 2);
}

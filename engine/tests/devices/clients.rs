//! Devices of a client of a store process.

use std::time::Duration;

use pagelith::client::Client;
use pagelith::config::DramPin;
use pagelith::server::Serving;
use pagelith::transport::address::Address;
use pagelith::{
    DeviceGet, DeviceGroup, DeviceHandle, DevicePut, DriverKind, ErrorKind, GetOutcome, Options,
    PutOutcome, Store,
};

use crate::fake::Fake;
use crate::support::{config, key, late, memory_of, object, open, put};

const LONG: Duration = Duration::from_secs(30);
const STAGING: usize = 1 << 20;

/// A store that is served over shared memory, and a client of it.
struct Served {
    home: tempfile::TempDir,
    store: Store,
    serving: Serving,
    client: Client,
}

impl Served {
    fn new() -> Served {
        let home = tempfile::tempdir().expect("a directory");
        let mut config = config(&home, DramPin::Off);
        config.dram.shared = true;
        let store = open(&config);
        let address = Address::Unix(home.path().join("socket"));
        let serving = Serving::builder(&store, address).start().expect("serves");
        let client = Client::to(serving.address(), None, LONG).expect("attached");
        Served { home, store, serving, client: client.with_device_staging(STAGING) }
    }

    fn bind(&self, fake: &Fake) -> DeviceHandle {
        fake.start(0);
        self.client.bind_device_of(&fake.driver(), 0).expect("an initialised device")
    }

    fn end(self) {
        let Served { home, store, serving, client } = self;
        drop(client);
        serving.end().expect("no thread panics");
        store.close().expect("durable");
        drop(home);
    }
}

/// What is left at a device.
fn left(fake: &Fake) -> [u64; 6] {
    ["retained", "streams", "events", "work", "locked-chunks", "violations"]
        .map(|what| fake.count(what))
}

#[test]
fn client_binds_in_the_order_of_any_store_and_locks_its_staging_memory() {
    let served = Served::new();
    let fake = Fake::new(DriverKind::Cuda, "");
    let error = served.client.bind_device_of(&fake.driver(), 0).expect_err("no context");
    assert!(error.kind == ErrorKind::Invalid && error.message.contains("code=3"), "{error}");
    assert_eq!(fake.count("locked-bytes"), 0);
    fake.start(0);
    fake.change("fail-lock=1");
    let error = served.client.bind_device_of(&fake.driver(), 0).expect_err("refused");
    assert!(error.kind == ErrorKind::Busy && error.message.contains("lower staging_bytes"));
    let handle = served.bind(&fake);
    assert_eq!(fake.count("locked-bytes"), STAGING as u64);
    let again = served.bind(&fake);
    assert!(again.is_clone_of(&handle));
    // All devices of a client share its staging memory.
    let larger = served.client.clone().with_device_staging(2 * STAGING);
    let error = larger.bind_device_of(&fake.driver(), 0).expect_err("another size");
    let sizes = format!("has={STAGING} staging_bytes={}", 2 * STAGING);
    assert!(error.kind == ErrorKind::Invalid && error.message.ends_with(&sizes), "{error}");
    assert!(served.bind(&fake).is_clone_of(&handle), "the size is as before");
    drop((handle, again, larger));
    served.end();
    assert_eq!(left(&fake), [0; 6]);
}

#[test]
fn handle_of_another_store_and_objects_beyond_staging_are_refused() {
    let served = Served::new();
    let fake = Fake::new(DriverKind::Cuda, "");
    fake.start(0);
    let other = fake.driver().bind(0).expect("bound");
    let (memory, pieces) = memory_of(&fake, &other, 9_000);
    let gets = [DeviceGet { key: key(1), range: None, pieces: &pieces }];
    // Before the client has a device of its own, and after.
    for _ in 0..2 {
        let got = served.client.get_to_device(&other, None, &gets, Options::default()).remove(0);
        let error = got.expect_err("another store's");
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        assert!(error.message.contains("was not bound through this store"), "{error}");
        drop(served.bind(&fake));
    }
    let handle = served.bind(&fake);
    let (large, pieces) = memory_of(&fake, &handle, STAGING / 2 + 1);
    let puts = [DevicePut { key: key(1), pieces: &pieces }];
    let group = [DeviceGroup::new(&puts)];
    let put = served.client.put_from_device(&handle, None, &group, &[], Options::default());
    let error = put[0].as_ref().expect_err("too large");
    let text = "bytes exceed half of the staging memory; raise staging_bytes bytes=524289 max=";
    assert!(error.message.contains(text), "{error}");
    drop((memory, large, other, handle));
    served.end();
}

/// The device hangs beyond the deadline: its memory of both sides stays, and the client works.
#[test]
fn memory_of_late_calls_of_a_client_is_kept_until_device_is_done() {
    let served = Served::new();
    let fake = Fake::new(DriverKind::Cuda, "");
    let handle = served.bind(&fake);
    put(&served.store, 1);
    let (memory, pieces) = memory_of(&fake, &handle, object(1).len());
    let gets = [DeviceGet { key: key(1), range: None, pieces: &pieces }];
    let options = Options::default().timeout(Duration::from_millis(200));
    fake.change("hang=1");
    let error = late(|| served.client.get_to_device(&handle, None, &gets, options).remove(0));
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    let puts = [DevicePut { key: key(2), pieces: &pieces }];
    let group = [DeviceGroup::new(&puts)];
    let put = served.client.put_from_device(&handle, None, &group, &[], options).remove(0);
    assert!(put.is_err() && !served.store.exists_batch(&[key(2)], Options::default())[0]);
    fake.change("hang=0");
    while handle.late_copies() > 0 {
        fake.step();
    }
    assert!(memory.bytes() == object(1));
    let put = served.client.put_from_device(&handle, None, &group, &[], Options::default());
    assert_eq!(put, [Ok(PutOutcome::Stored)]);
    let gets = [DeviceGet { key: key(2), range: None, pieces: &pieces }];
    let got = served.client.get_to_device(&handle, None, &gets, Options::default());
    assert!(got[0].as_ref().is_ok_and(GetOutcome::is_hit) && memory.bytes() == object(1));
    drop((memory, pieces, handle));
    served.end();
    assert_eq!(left(&fake), [0; 6]);
}

/// The caller keeps the handle, as an engine does, and makes no further call with it.
#[test]
fn late_memory_of_a_client_is_released_when_it_is_dropped() {
    let served = Served::new();
    let fake = Fake::new(DriverKind::Cuda, "");
    let handle = served.bind(&fake);
    put(&served.store, 1);
    let (memory, pieces) = memory_of(&fake, &handle, object(1).len());
    let gets = [DeviceGet { key: key(1), range: None, pieces: &pieces }];
    let options = Options::default().timeout(Duration::from_millis(200));
    fake.change("hang=1");
    late(|| served.client.get_to_device(&handle, None, &gets, options).remove(0));
    fake.change("hang=0");
    while fake.count("work") > 0 {
        fake.step();
    }
    assert_eq!(fake.count("events"), 1, "the end of the late copy");
    served.end();
    let kept = ["events", "locked-chunks", "violations"].map(|what| fake.count(what));
    assert_eq!(kept, [0; 3]);
    assert!(memory.bytes() == object(1));
    drop((memory, pieces, handle));
    assert_eq!(left(&fake), [0; 6]);
}

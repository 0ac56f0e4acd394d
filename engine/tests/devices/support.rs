//! Stores and objects of the tests.

use std::sync::Arc;

use pagelith::config::{DramPin, Promote};
use pagelith::layouts::{
    ids::PrefixHash, key::ObjectKey, key::Role, namespace::Namespace, shard::Shard,
};
use pagelith::{
    Config, DeviceGet, DeviceHandle, DeviceRange, DriverKind, GetOutcome, MachineLimits, MissCause,
    Options, PutSlice, Size, Store,
};

use crate::fake::{DeviceMemory, Fake};

/// Staging memory: two halves of 256 KiB for copies, and as much for the store's own reads.
const STAGING: Size = Size::mib(1);

pub fn key(n: usize) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&(n as u64).to_le_bytes());
    let id = Namespace::default().id();
    ObjectKey::new(id, PrefixHash(hash), Role::Target, "kv", "k", Shard::Whole).expect("a key")
}

/// Object `n`: its length and its bytes differ from those of every other.
pub fn object(n: usize) -> Vec<u8> {
    let length = 20_000 + n * 1_357 % 60_000;
    (0..length).map(|at| ((at ^ n).wrapping_mul(2_654_435_761) >> 11) as u8).collect()
}

/// The error of a get whose copy the device does not end in time. If the process stalls before the
/// copy begins, the get is a late miss, and repeated.
pub fn late(mut get: impl FnMut() -> pagelith::Result<GetOutcome>) -> pagelith::Error {
    loop {
        match get() {
            Ok(GetOutcome::Miss(MissCause::Late)) => {}
            other => return other.expect_err("the device hangs"),
        }
    }
}

pub fn config(home: &tempfile::TempDir, pin: DramPin) -> Config {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(4);
    config.dram.pin = pin;
    config.dram.promote = Promote::Never;
    config.ssd.bytes = Size::mib(64);
    config.ssd.segment_bytes = Some(Size::mib(4));
    config.ssd.dirs = vec![home.path().join("store")];
    config.staging.bytes = STAGING;
    config.staging.chunk_bytes = Size::kib(64);
    config.index.max_objects = Some(65_536);
    config
}

pub fn open(config: &Config) -> Store {
    let limits = MachineLimits::of_this_machine().expect("limits");
    Store::open(config.validate(&limits).expect("a valid configuration")).expect("a store")
}

pub fn pin(kind: DriverKind) -> DramPin {
    match kind {
        DriverKind::Cuda => DramPin::Cuda,
        DriverKind::Ascend => DramPin::Ascend,
    }
}

pub fn put(store: &Store, n: usize) {
    let bytes = object(n);
    let put = PutSlice { key: key(n), pieces: &[&bytes] };
    store.put_batch(&[put], Options::default())[0].as_ref().expect("stored");
}

/// Memory of a device for an object, in pieces of uneven lengths.
pub fn memory_of(
    fake: &Arc<Fake>,
    device: &DeviceHandle,
    bytes: usize,
) -> (DeviceMemory, Vec<DeviceRange>) {
    let memory = fake.memory(device, bytes);
    let cuts = [0, bytes / 3, bytes / 3 + 1, bytes];
    let piece = |cut: &[usize]| memory.range.slice(cut[0], cut[1] - cut[0]).expect("inside");
    let pieces = cuts.windows(2).map(piece).collect();
    (memory, pieces)
}

/// A store with its memory locked for device 0, which the calling thread initialised.
pub struct Bench {
    pub home: tempfile::TempDir,
    pub fake: Arc<Fake>,
    pub store: Store,
    pub device: DeviceHandle,
}

impl Bench {
    pub fn new(kind: DriverKind, script: &str) -> Bench {
        let home = tempfile::tempdir().expect("a directory");
        let store = open(&config(&home, pin(kind)));
        Bench::of(home, store, kind, script)
    }

    pub fn of(home: tempfile::TempDir, store: Store, kind: DriverKind, script: &str) -> Bench {
        let fake = Fake::new(kind, script);
        fake.start(0);
        let device = store.bind_device_of(&fake.driver(), 0).expect("an initialised device");
        Bench { home, fake, store, device }
    }

    /// Memory of the device for an object, in pieces of uneven lengths.
    pub fn memory(&self, bytes: usize) -> (DeviceMemory, Vec<DeviceRange>) {
        memory_of(&self.fake, &self.device, bytes)
    }

    /// Get a whole object into memory of the device.
    pub fn get(
        &self,
        n: usize,
        pieces: &[DeviceRange],
        options: Options,
    ) -> pagelith::Result<GetOutcome> {
        let get = DeviceGet { key: key(n), range: None, pieces };
        self.store.get_to_device(&self.device, None, &[get], options).remove(0)
    }

    /// Close the store and check that nothing is left at the device.
    pub fn end(self) {
        let Bench { home, fake, store, device } = self;
        store.close().expect("durable");
        drop((home, device));
        let left = ["retained", "streams", "events", "work", "locked-chunks", "violations"];
        assert_eq!(left.map(|what| fake.count(what)), [0; 6]);
    }
}

//! Devices and registered memory of a process, over the fake verbs library.
#![allow(clippy::disallowed_methods, reason = "tests copy files")]
#![allow(clippy::print_stdout, reason = "tests say what they skip")]

#[allow(dead_code, reason = "not every test needs all of it")]
#[path = "../../io/tests/verbs/fake.rs"]
mod fake;

use std::sync::Arc;

use fake::{Fake, copied, load};
use pagelith_io::verbs::{
    DeviceMemory, GidWish, HostMemory, Locality, NicWish, RemoteAccess, VerbsError,
};
use pagelith_transport::rdma::host::{RdmaHost, RdmaSettings};

const MIB: usize = 1 << 20;

/// A verbs library with a world of its own.
struct World {
    _dir: tempfile::TempDir,
    control: Fake,
    settings: RdmaSettings,
}

impl World {
    /// A host with a device for each script, `fake1` first.
    fn new(scripts: &[&str]) -> World {
        let (dir, path) = copied();
        let library = load(&path);
        let control = Fake::at(&path);
        for (script, number) in scripts.iter().zip(1..) {
            assert_eq!(control.device(script), number);
        }
        let settings = RdmaSettings { library: Some(library), ..RdmaSettings::default() };
        World { _dir: dir, control, settings }
    }

    fn open(&self) -> Arc<RdmaHost> {
        RdmaHost::open(&self.settings).expect("a host")
    }

    /// The error of a host with these settings.
    fn refused(&self, nics: NicWish, gid: GidWish) -> VerbsError {
        let settings = RdmaSettings { nics, gid, ..self.settings.clone() };
        RdmaHost::open(&settings).expect_err("no host")
    }

    fn regions(&self) -> [u64; 2] {
        [1, 2].map(|device| self.control.count(device, "regions"))
    }
}

fn any() -> NicWish {
    NicWish::Near(Locality::default())
}

fn memory(bytes: usize) -> Arc<HostMemory> {
    Arc::new(HostMemory::new(bytes).expect("memory"))
}

fn base(memory: &HostMemory) -> usize {
    memory.base().as_ptr().addr()
}

#[test]
fn active_ports_with_addresses_are_rails() {
    let world = World::new(&["", "port=down", "gids=fe80::1/2", ""]);
    let host = world.open();
    let rails: Vec<_> = host.rails().iter().map(ToString::to_string).collect();
    assert_eq!(rails, ["fake1/1", "fake4/1"]);
    assert_eq!(host.choice().candidates.len(), 4);
    // The devices that have no rail are closed again.
    drop(host);
    assert!((1..=4).all(|device| world.control.objects(device) == 0));
}

#[test]
fn host_without_usable_port_is_refused_by_name() {
    let world = World::new(&[]);
    assert_eq!(world.refused(any(), GidWish::Best), VerbsError::NoDevice);
    let world = World::new(&["port=down", "gids=fe80::1/2"]);
    let refused =
        |device: &str, gid| world.refused(NicWish::Device(device.into()), gid).to_string();
    let text = refused("fake1", GidWish::Best);
    assert!(text.contains("wanted=device fake1 candidates=fake1/1 down"), "{text}");
    let text = refused("fake2", GidWish::Best);
    assert!(text.contains("device=fake2 port=1 wanted=best gids=0: fe80::1"), "{text}");
    let text = refused("fake2", GidWish::Index(7));
    assert!(text.contains("device=fake2 port=1 wanted=index 7 gids="), "{text}");
    let text = refused("mlx5_0", GidWish::Best);
    assert!(text.ends_with("device=mlx5_0 found=fake1,fake2"), "{text}");
    let text = world.refused(any(), GidWish::Best).to_string();
    assert!(text.contains("device=fake2 port=1 wanted=best"), "{text}");
    assert!((1..=2).all(|device| world.control.objects(device) == 0));
}

#[test]
fn forced_gid_index_is_used_and_follows_the_port() {
    let mut world = World::new(&[""]);
    world.settings.gid = GidWish::Index(1);
    let host = world.open();
    let rail = &host.rails()[0];
    assert_eq!(rail.attachment().expect("attached").gid.index, 1);
    world.control.change(1, "gids=192.0.2.7/2");
    let text = rail.attachment().expect_err("no index 1").to_string();
    assert!(text.contains("device=fake1 port=1 wanted=index 1"), "{text}");
    world.control.change(1, "port=down");
    let text = rail.attachment().expect_err("down").to_string();
    assert!(text.ends_with("device=fake1 port=1 state=down"), "{text}");
}

#[test]
fn region_is_registered_with_every_rail_in_equal_chunks() {
    let world = World::new(&["max-mr-size=1048576", "max-mr-size=3145728"]);
    let host = world.open();
    let memory = memory(3 * MIB - 5);
    let version = host.version();
    let region = host.register(memory.clone(), RemoteAccess::WRITE).expect("registered");
    assert_ne!(host.version(), version);
    assert_eq!((region.chunk_bytes(), world.regions()), (MIB as u64, [3, 3]));
    for rail in 0..2 {
        assert_eq!(region.remote_keys(rail).expect("keys").len(), 3);
        let mut pieces = Vec::new();
        region.local(rail, MIB - 1, MIB + 2, &mut pieces).expect("inside");
        assert_eq!(pieces.len(), 3);
    }
    assert_eq!(region.remote_keys(2), None);
    let at = base(&memory);
    let offset_of = |address, length| region.offset_of(address, length);
    assert_eq!(offset_of(at, 1), Some(0));
    assert_eq!(offset_of(at + 7, 3 * MIB - 12), Some(7));
    for (address, length) in [(at, 0), (at - 1, 1), (at, 3 * MIB), (at + 8, usize::MAX)] {
        assert_eq!(offset_of(address, length), None);
    }
    assert_eq!(host.registered_bytes(), 2 * (3 * MIB as u64 - 5));
    assert_eq!(host.regions().len(), 1);
}

#[test]
fn registration_that_fails_at_the_second_device_leaves_nothing() {
    let world = World::new(&["", "fail-registration=2 max-mr-size=1048576"]);
    let host = world.open();
    let memory = memory(2 * MIB);
    host.register(memory.clone(), RemoteAccess::READ).expect_err("the second chunk");
    assert_eq!((world.regions(), host.registered_bytes()), ([0, 0], 0));
    assert_eq!((Arc::strong_count(&memory), host.regions().len()), (1, 0));
    host.register(memory, RemoteAccess::READ).expect("the third registration does not fail");
    assert_eq!(world.regions(), [2, 2]);
}

#[test]
fn unregistered_memory_is_free_although_links_know_the_region() {
    let world = World::new(&["", ""]);
    let host = world.open();
    let (first, second) = (memory(MIB), memory(MIB));
    let region = host.register(first.clone(), RemoteAccess::READ_WRITE).expect("registered");
    let kept = host.register(second, RemoteAccess::NONE).expect("registered");
    assert_eq!(world.regions(), [2, 2]);
    host.unregister(&region).expect("deregistered");
    assert_eq!((world.regions(), host.registered_bytes()), ([1, 1], 2 * MIB as u64));
    assert_eq!((region.offset_of(base(&first), 1), region.remote_keys(0)), (None, None));
    region.local(0, 0, 1, &mut Vec::new()).expect_err("not registered");
    host.unregister(&region).expect("nothing to do");
    assert_eq!(host.regions().iter().map(|region| region.number()).collect::<Vec<_>>(), [1]);
    // The other region has no remote access, so no keys.
    assert!(kept.is_registered() && kept.remote_keys(0).is_none());
}

//! Libraries, devices, ports and GIDs that are found, missing or changing.

use std::sync::Arc;

use pagelith_io::verbs::{
    Device, DeviceEvent, GidKind, GidWish, Library, LinkLayer, Mtu, Port, PortState, VerbsError,
};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{Fake, LONG, copied, devices, fake, is_real, library, load, open_fake};

fn refused(library: &Arc<Library>, name: &str) -> String {
    Device::open(library, name).expect_err("no such device").to_string()
}

#[test]
fn library_without_devices_is_reported() {
    let (_dir, path) = copied();
    let library = load(&path);
    assert_eq!(Device::names(&library), Err(VerbsError::NoDevice));
    assert!(refused(&library, "mlx5_0").starts_with("no RDMA device; check `rdma link`"));
    assert_eq!(library.path(), path.to_str().expect("a text"));
}

#[test]
fn kernel_without_rdma_is_reported() {
    let (_dir, path) = copied();
    let library = load(&path);
    Fake::at(&path).remove_kernel_support();
    let error = Device::names(&library).expect_err("no kernel support");
    assert_eq!(error, VerbsError::KernelWithoutRdma { errno: 38 });
    let text = error.to_string();
    assert!(text.starts_with("the kernel offers no RDMA: Function not implemented"), "{text}");
    assert!(text.contains("load the module ib_uverbs"), "{text}");
}

#[test]
fn unknown_device_is_reported_with_the_names_of_all() {
    let (_dir, path) = copied();
    let library = load(&path);
    let control = Fake::at(&path);
    assert_eq!((control.device(""), control.device("")), (1, 2));
    let text = refused(&library, "mlx5_7");
    assert!(text.ends_with("choose one of those found device=mlx5_7 found=fake1,fake2"), "{text}");
}

#[test]
fn port_has_state_link_layer_mtu_and_gids() {
    let Some([device, _]) = devices() else { return };
    let port = Port::of(&device, 1).expect("a port");
    assert_eq!((port.state, port.link_layer), (PortState::Active, LinkLayer::Ethernet));
    assert_eq!((port.mtu, port.mtu.bytes()), (Mtu::of_code(5).expect("an MTU"), 4096));
    // Of both the fake device and those of the virtual machine.
    let gid = port.choose_gid(GidWish::Best).expect("a GID");
    let address = gid.gid.ipv4().expect("an IPv4 address");
    assert_eq!((gid.kind, &address.octets()[..3]), (GidKind::RoceV2, &[192, 0, 2][..]));
    assert!(gid.index > 0, "index 0 is link-local");
    assert_eq!(port.choose_gid(GidWish::Address(address.into())), Ok(gid));
    assert_eq!(port.scored_gids(GidWish::Best).len(), port.gids.len());
    let error = Port::of(&device, 9).expect_err("no port 9");
    assert!(matches!(error, VerbsError::PortUnknown { port: 9, .. }), "{error}");
    assert!(device.limits().max_mr_size > 1 << 20 && device.limits().max_qp_wr > 100);
}

#[test]
fn changes_of_addresses_and_port_are_events() {
    let Some(fake) = fake() else { return };
    let number = fake.device("");
    let device = open_fake(number);
    assert_eq!(device.next_event(), Ok(None));
    fake.change(number, "gids=192.0.2.7/2");
    fake.change(number, "port=down gids=");
    let next = || device.next_event().expect("events");
    assert_eq!(next(), Some(DeviceEvent::AddressChange(1)));
    assert_eq!(next(), Some(DeviceEvent::AddressChange(1)));
    assert_eq!(next(), Some(DeviceEvent::PortError(1)));
    assert_eq!(next(), None);
    let port = Port::of(&device, 1).expect("a port");
    let error = port.check_active().expect_err("down").to_string();
    assert!(error.ends_with(&format!("device=fake{number} port=1 state=down")), "{error}");
    port.choose_gid(GidWish::Best).expect_err("no GIDs");
    fake.change(number, "port=active");
    assert_eq!(next(), Some(DeviceEvent::PortActive(1)));
}

/// In the virtual machine, which has its interfaces for itself.
#[test]
fn address_added_to_interface_is_an_event_of_its_device() {
    if std::env::var("TEST_PAGELITH_VM").as_deref() != Ok("1") {
        println!("skipped: needs the virtual machine");
        return;
    }
    let [device, _] = devices().expect("a device");
    while device.next_event().expect("events").is_some() {}
    let ip = |action: &str| {
        let arguments = ["address", action, "198.51.100.9/32", "dev", "wire0"];
        let status = std::process::Command::new("ip").args(arguments).status();
        assert!(status.is_ok_and(|status| status.success()), "ip {action}");
    };
    for action in ["add", "delete"] {
        ip(action);
        let mut polled = [PollFd::new(&*device, PollFlags::IN)];
        poll(&mut polled, Timespec::try_from(LONG).ok().as_ref()).expect("polled");
        assert_eq!(device.next_event(), Ok(Some(DeviceEvent::AddressChange(1))), "{action}");
    }
}

#[test]
fn system_library_is_found_or_its_absence_named() {
    match Library::load() {
        Ok(library) => match Device::names(&library) {
            Ok(names) => assert!(!names.is_empty()),
            Err(VerbsError::NoDevice | VerbsError::KernelWithoutRdma { .. }) => {
                assert_ne!(std::env::var("TEST_PAGELITH_VM").as_deref(), Ok("1"));
            }
            Err(error) => panic!("{error}"),
        },
        Err(VerbsError::LibraryAbsent { reason, .. }) => {
            assert!(reason.contains("libibverbs"), "{reason}");
            assert!(!is_real());
        }
        Err(error) => panic!("{error}"),
    }
    assert!(!library().path().is_empty());
}

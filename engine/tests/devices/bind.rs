//! Binding, and page-locked memory.

use pagelith::config::DramPin;
use pagelith::{Device, Driver, DriverKind, ErrorKind};

use crate::fake::Fake;
use crate::support::{config, open, pin, put};

#[test]
fn absent_driver_is_unavailable_and_store_works() {
    let home = tempfile::tempdir().expect("a directory");
    let store = open(&config(&home, DramPin::Off));
    // SAFETY: there is no such library.
    let error = unsafe { Driver::load_from(DriverKind::Cuda, "/nowhere/libcuda.so.1") };
    let text = error.expect_err("no library").to_string();
    assert!(text.contains("install the NVIDIA driver"), "{text}");
    put(&store, 1);
    store.close().expect("durable");
}

/// The order of a server that began to transfer before its device had a context.
#[test]
fn bind_before_device_is_initialised_names_the_remedy_and_later_works() {
    for (kind, code, remedy) in [
        (DriverKind::Cuda, "code=3", "torch.cuda.set_device"),
        (DriverKind::Ascend, "code=107002", "torch.npu.set_device"),
    ] {
        let home = tempfile::tempdir().expect("a directory");
        let store = open(&config(&home, pin(kind)));
        let fake = Fake::new(kind, "");
        let error = store.bind_device_of(&fake.driver(), 0).expect_err("no context");
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.message.contains(code) && error.message.contains(remedy), "{error}");
        assert_eq!(fake.count("locked-bytes"), 0);
        fake.start(0);
        let handle = store.bind_device_of(&fake.driver(), 0).expect("initialised");
        assert_eq!(handle.device(), Device { driver: kind, ordinal: 0 });
        assert!(fake.count("locked-bytes") > 0);
    }
}

#[test]
fn first_bound_device_locks_planned_memory_until_store_is_dropped() {
    for kind in DriverKind::ALL {
        let home = tempfile::tempdir().expect("a directory");
        let store = open(&config(&home, pin(kind)));
        let plan = store.opened().memory;
        assert_eq!(plan.locked, plan.arena + plan.staging);
        let fake = Fake::new(kind, "devices=2");
        fake.start(1);
        fake.start(0);
        let first = store.bind_device_of(&fake.driver(), 0).expect("initialised");
        assert_eq!(fake.count("locked-bytes"), plan.locked);
        // Locked memory is locked for all devices, and a device is bound once.
        fake.start(1);
        store.bind_device_of(&fake.driver(), 1).expect("initialised");
        let again = store.bind_device_of(&fake.driver(), 0).expect("bound");
        assert_eq!((again.device(), fake.count("locked-bytes")), (first.device(), plan.locked));
        put(&store, 1);
        store.close().expect("durable");
        assert_eq!(fake.count("locked-bytes"), 0, "{kind}");
    }
}

#[test]
fn memory_that_cannot_be_locked_is_busy_and_nothing_is_locked() {
    for kind in DriverKind::ALL {
        let home = tempfile::tempdir().expect("a directory");
        let store = open(&config(&home, pin(kind)));
        let fake = Fake::new(kind, "");
        fake.start(0);
        // The arena, the staging memory after it, and the limit between both.
        for script in ["fail-lock=1", "fail-lock=2", "fail-lock=0 lock-limit=4194304"] {
            fake.change(script);
            let error = store.bind_device_of(&fake.driver(), 0).expect_err("refused");
            assert_eq!(error.kind, ErrorKind::Busy, "{error}");
            assert!(error.message.contains("set dram.pin to off"), "{error}");
            let left = ["locked-bytes", "retained"].map(|what| fake.count(what));
            assert_eq!(left, [0, 0], "{kind} {script}");
            put(&store, 1);
        }
        fake.change("lock-limit=1000000000");
        store.bind_device_of(&fake.driver(), 0).expect("enough");
        assert_eq!(fake.count("locked-bytes"), store.opened().memory.locked);
    }
}

#[test]
fn store_without_pin_locks_nothing() {
    let home = tempfile::tempdir().expect("a directory");
    let store = open(&config(&home, DramPin::Off));
    assert_eq!(store.opened().memory.locked, 0);
    let fake = Fake::new(DriverKind::Cuda, "");
    fake.start(0);
    store.bind_device_of(&fake.driver(), 0).expect("initialised");
    assert_eq!(fake.count("locked-bytes"), 0);
}

#[test]
fn device_of_another_driver_than_pin_is_refused() {
    let home = tempfile::tempdir().expect("a directory");
    let store = open(&config(&home, DramPin::Ascend));
    let error = store.bind_device(Device::cuda(0)).expect_err("another driver");
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(error.message.contains("set it to cuda device=cuda:0 dram.pin=ascend"), "{error}");
}

//! The order of start-up, and contexts of threads.

use pagelith_io::device::{Device, DeviceError, DeviceHandle, DriverKind};
use pagelith_io::staging::StagingPool;

use crate::fake::Fake;

/// Copy to the device and back, on the calling thread.
fn copies_work(fake: &std::sync::Arc<Fake>, handle: &DeviceHandle) {
    let memory = fake.memory(handle, 5_000);
    let staging = StagingPool::new(16_384).expect("memory");
    let mut part = staging.try_part(8_192).expect("free");
    part.bytes_mut().expect("exclusive").fill(7);
    let (from, rest) = part.split(5_000);
    drop(rest);
    let mut copies = handle.begin(None).expect("a stream");
    copies.to_device(from, &memory.range).expect("queued");
    copies.submit().expect("submitted");
    while !copies.poll().expect("no fault") {}
    assert_eq!(memory.bytes(), vec![7; 5_000]);
}

/// Registration or a transfer before the engine has initialised the device.
#[test]
fn bind_before_device_is_initialised_names_call_code_and_remedy() {
    for (kind, call, code, remedy) in [
        (DriverKind::Cuda, "cuCtxGetCurrent", 3, "torch.cuda.set_device"),
        (DriverKind::Ascend, "aclrtGetDevice", 107_002, "torch.npu.set_device"),
    ] {
        let fake = Fake::new(kind, "");
        let error = fake.driver().bind(0).expect_err("no context");
        let device = Device { driver: kind, ordinal: 0 };
        assert_eq!(error, DeviceError::ContextAbsent { device, call, code });
        let text = error.to_string();
        assert!(text.contains("initialise it first") && text.contains(remedy), "{text}");
        assert!(text.ends_with(&format!("device={device} call={call} code={code}")), "{text}");
        assert_eq!((fake.count("retained"), fake.current()), (0, 0), "{kind} made a context");
    }
}

#[test]
fn bind_of_cuda_device_without_context_names_invalid_context() {
    let fake = Fake::new(DriverKind::Cuda, "devices=2");
    fake.start(0);
    // With a context of another device, and with none.
    for call in ["cuDevicePrimaryCtxGetState", "cuCtxGetDevice"] {
        let error = fake.driver().bind(1).expect_err("no context of device 1");
        let device = Device::cuda(1);
        assert_eq!(error, DeviceError::ContextAbsent { device, call, code: 201 });
        fake.leave();
    }
}

#[test]
fn bind_after_device_is_initialised_allows_copies() {
    for kind in DriverKind::ALL {
        let (fake, handle) = Fake::bound(kind, "late=2");
        copies_work(&fake, &handle);
        drop(handle);
        let left = ["retained", "streams", "events", "work", "violations"];
        assert_eq!(left.map(|what| fake.count(what)), [0; 5], "{kind}");
    }
}

/// A worker of the store was never given a context.
#[test]
fn worker_thread_without_context_copies_through_handle() {
    for kind in DriverKind::ALL {
        let (fake, handle) = Fake::bound(kind, "");
        let own = fake.current();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(fake.current(), 0);
                copies_work(&fake, &handle);
                assert_eq!(fake.current(), 0, "{kind} left its context");
            });
        });
        assert_eq!(fake.current(), own);
    }
}

#[test]
fn context_is_kept_after_engine_ends_its_use_until_handle_is_dropped() {
    for kind in DriverKind::ALL {
        let (fake, handle) = Fake::bound(kind, "");
        fake.stop(0);
        std::thread::scope(|scope| scope.spawn(|| copies_work(&fake, &handle)).join())
            .unwrap_or_else(|_| panic!("{kind}: the context has gone"));
        drop(handle);
        assert_eq!(fake.count("retained"), 0);
        let error = fake.driver().bind(0).expect_err("the device has ended");
        assert!(error.to_string().contains("initialise it first"), "{error}");
    }
}

#[test]
fn thread_with_another_context_has_it_back_after_each_call() {
    for kind in DriverKind::ALL {
        let (fake, handle) = Fake::bound(kind, "devices=2");
        fake.start(1);
        let other = fake.current();
        copies_work(&fake, &handle);
        assert_eq!(fake.current(), other, "{kind}");
    }
}

#[test]
fn bind_in_another_context_is_refused() {
    let fake = Fake::new(DriverKind::Cuda, "");
    fake.start(0);
    fake.enter_other_context(0);
    let error = fake.driver().bind(0).expect_err("not the primary context");
    let text = error.to_string();
    assert!(text.starts_with("the thread's context is another one: the device's, but"), "{text}");
    assert_eq!(fake.count("retained"), 0);

    let fake = Fake::new(DriverKind::Ascend, "devices=2");
    fake.start(0);
    fake.enter_other_context(0);
    let other = fake.current();
    let error = fake.driver().bind(0).expect_err("not the default context");
    assert!(error.to_string().contains("but not its default one"), "{error}");
    assert_eq!((fake.count("retained"), fake.current()), (0, other));
    fake.leave();
    fake.start(1);
    let error = fake.driver().bind(0).expect_err("the context of device 1");
    let text = error.to_string();
    assert!(text.contains("that of device 1; bind on a thread"), "{text}");
}

/// A context of another device is no obstacle under CUDA: the primary one is applied.
#[test]
fn cuda_device_is_bound_from_thread_of_another_device() {
    let fake = Fake::new(DriverKind::Cuda, "devices=2");
    fake.start(0);
    fake.start(1);
    let handle = fake.driver().bind(0).expect("device 0 was initialised");
    copies_work(&fake, &handle);
}

#[test]
fn unknown_device_is_refused_with_the_number_of_devices() {
    for kind in DriverKind::ALL {
        let fake = Fake::new(kind, "devices=2");
        fake.start(1);
        let device = Device { driver: kind, ordinal: 2 };
        let error = fake.driver().bind(2).expect_err("devices 0 and 1");
        assert_eq!(error, DeviceError::NoDevice { device, count: 2 });
    }
}

#[test]
fn devices_are_listed_with_driver_version() {
    let fake = Fake::new(DriverKind::Cuda, "devices=2");
    let (version, devices) = fake.driver().devices().expect("two devices");
    assert_eq!((version.as_str(), devices.len()), ("12.4", 2));
    let last = &devices[1];
    assert_eq!((last.ordinal, last.model.as_str()), (1, "Fake GPU"));
    assert_eq!((last.pci.as_deref(), last.memory_bytes), (Some("0000:FA:0E.0"), Some(80 << 30)));
    let (version, devices) =
        Fake::new(DriverKind::Ascend, "").driver().devices().expect("a device");
    assert_eq!((version.as_str(), devices[0].model.as_str()), ("1.14.0", "Fake NPU"));
    for kind in DriverKind::ALL {
        let error = Fake::new(kind, "devices=0").driver().devices().expect_err("no device");
        assert!(error.to_string().starts_with("no such device; check `"), "{error}");
    }
}

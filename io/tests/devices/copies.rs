//! Copies: order, faults, and memory that the device is not done with.

use std::sync::Arc;

use pagelith_io::buffer::Part;
use pagelith_io::device::{Copies, DeviceError, DeviceHandle, DriverKind};
use pagelith_io::staging::StagingPool;

use crate::fake::{DeviceMemory, Fake};

const BYTES: usize = 8_192;

fn pattern(seed: usize) -> Vec<u8> {
    (0..BYTES).map(|at| (at * 31 + seed * 7 + at / 251) as u8).collect()
}

fn filled(staging: &StagingPool, seed: usize) -> Part {
    let mut part = staging.try_part(BYTES).expect("free staging memory");
    part.bytes_mut().expect("exclusive").copy_from_slice(&pattern(seed));
    part
}

fn finish(copies: &mut Copies) {
    while !copies.poll().expect("no fault") {}
}

#[test]
fn copies_of_many_streams_land_out_of_order_and_whole() {
    for kind in DriverKind::ALL {
        for seed in 1..20 {
            let (fake, handle) = Fake::bound(kind, &format!("late={} seed={seed}", seed % 4));
            let staging = StagingPool::new(16 * BYTES).expect("memory");
            let memories: Vec<DeviceMemory> = (0..8).map(|_| fake.memory(&handle, BYTES)).collect();
            let mut all: Vec<Copies> = Vec::new();
            for (at, memory) in memories.iter().enumerate() {
                let mut copies = handle.begin(None).expect("a stream");
                copies.to_device(filled(&staging, at), &memory.range).expect("queued");
                copies.submit().expect("submitted");
                all.push(copies);
            }
            all.iter_mut().rev().for_each(finish);
            drop(all);
            assert_eq!(staging.in_use(), 0, "the parts are returned");
            let mut back: Vec<Copies> = Vec::new();
            for (at, memory) in memories.iter().enumerate() {
                assert_eq!(memory.bytes(), pattern(at), "{kind} seed={seed}");
                let mut copies = handle.begin(None).expect("a stream");
                let part = staging.try_part(BYTES).expect("free");
                copies.to_host(&memory.range, part).expect("queued");
                copies.submit().expect("submitted");
                back.push(copies);
            }
            for (at, mut copies) in back.into_iter().enumerate() {
                finish(&mut copies);
                let parts = copies.into_parts();
                assert_eq!(parts[0].bytes(), pattern(at), "{kind} seed={seed}");
            }
        }
    }
}

/// The engine zeroes a block on its own stream; the copy into it must not come first.
#[test]
fn copy_begins_after_work_of_callers_stream() {
    for kind in DriverKind::ALL {
        for seed in 1..20 {
            let (fake, handle) = Fake::bound(kind, &format!("late=3 seed={seed}"));
            let memory = fake.memory(&handle, BYTES);
            let stream = fake.stream();
            memory.fill_later(0, stream);
            // SAFETY: the stream is of the bound context, and is never destroyed.
            let caller = unsafe { handle.caller_stream(stream) };
            let staging = StagingPool::new(BYTES).expect("memory");
            let mut copies = handle.begin(Some(&caller)).expect("a stream");
            copies.to_device(filled(&staging, 3), &memory.range).expect("queued");
            copies.submit().expect("submitted");
            finish(&mut copies);
            assert_eq!(memory.bytes(), pattern(3), "{kind} seed={seed}");
        }
    }
}

/// The caller gave up: the device still has both sides of the copy, until it is done.
#[test]
fn memory_of_dropped_copies_is_kept_until_device_is_done() {
    for kind in DriverKind::ALL {
        let (fake, handle) = Fake::bound(kind, "hang=1");
        let staging = StagingPool::new(4 * BYTES).expect("memory");
        let (memory, owner) = (fake.memory(&handle, BYTES), Arc::new(()));
        let mut copies = handle.begin(None).expect("a stream");
        let held = Box::new(owner.clone());
        copies.to_device(filled(&staging, 1), &memory.range).expect("queued");
        copies.hold(held);
        copies.submit().expect("submitted");
        assert!(!copies.poll().expect("no fault"));
        drop(copies);
        assert_eq!((handle.late_copies(), staging.in_use()), (1, BYTES), "{kind}");
        assert_eq!(Arc::strong_count(&owner), 2, "{kind}");
        // The caller's own range of the device may go too.
        let address = memory.address;
        drop(memory);
        assert_eq!(fake.count("violations"), 0, "memory of the device was freed {address}");
        fake.change("hang=0");
        while handle.late_copies() > 0 {
            fake.step();
        }
        assert_eq!((staging.in_use(), Arc::strong_count(&owner)), (0, 1), "{kind}");
        drop(handle);
        let left = ["retained", "streams", "events", "work", "violations"];
        assert_eq!(left.map(|what| fake.count(what)), [0; 5], "{kind}");
    }
}

/// Copies that were queued and never submitted are waited for too.
#[test]
fn memory_of_copies_that_were_not_submitted_is_kept() {
    let (fake, handle) = Fake::bound(DriverKind::Cuda, "hang=1");
    let staging = StagingPool::new(BYTES).expect("memory");
    let memory = fake.memory(&handle, BYTES);
    let mut copies = handle.begin(None).expect("a stream");
    copies.to_device(filled(&staging, 1), &memory.range).expect("queued");
    drop(copies);
    assert_eq!((handle.late_copies(), staging.in_use()), (1, BYTES));
    fake.change("hang=0");
    while handle.late_copies() > 0 {}
    assert_eq!((staging.in_use(), memory.bytes()), (0, pattern(1)));
}

/// After the last handle nothing waits for the device any more.
#[test]
fn memory_of_copies_that_outlive_the_handle_is_leaked() {
    let (fake, handle) = Fake::bound(DriverKind::Cuda, "hang=1");
    let staging = StagingPool::new(BYTES).expect("memory");
    let memory = fake.memory(&handle, BYTES);
    let mut copies = handle.begin(None).expect("a stream");
    copies.to_device(filled(&staging, 1), &memory.range).expect("queued");
    drop((copies, handle));
    let address = memory.address;
    drop(memory);
    assert_eq!((staging.in_use(), fake.count("violations")), (BYTES, 0), "freed {address}");
    assert_eq!((fake.count("retained"), fake.count("work")), (1, 2));
}

#[test]
fn failed_copy_is_an_error_that_names_call_and_code() {
    for (kind, call, code) in [
        (DriverKind::Cuda, "cuMemcpyHtoDAsync_v2", 1),
        (DriverKind::Ascend, "aclrtMemcpyAsync", 107_000),
    ] {
        let (fake, handle) = Fake::bound(kind, "fail-copy=2");
        let staging = StagingPool::new(2 * BYTES).expect("memory");
        let memory = fake.memory(&handle, BYTES);
        let mut copies = handle.begin(None).expect("a stream");
        copies.to_device(filled(&staging, 1), &memory.range).expect("queued");
        let error = copies.to_device(filled(&staging, 2), &memory.range);
        let error = error.expect_err("the second copy fails").to_string();
        assert!(error.starts_with(&format!("{call} failed: ")), "{error}");
        assert!(error.ends_with(&format!("code={code}")), "{error}");
        drop(copies);
        // The first copy was queued: its memory is kept until then.
        while handle.late_copies() > 0 {}
        assert_eq!((staging.in_use(), fake.count("violations")), (0, 0), "{kind}");
    }
}

#[test]
fn lost_device_is_an_error_and_its_copies_are_kept() {
    for kind in DriverKind::ALL {
        let (fake, handle) = Fake::bound(kind, "lose-at-copy=1");
        let staging = StagingPool::new(BYTES).expect("memory");
        let memory = fake.memory(&handle, BYTES);
        let mut copies = handle.begin(None).expect("a stream");
        copies.to_device(filled(&staging, 1), &memory.range).expect("queued");
        copies.submit().expect("submitted");
        let error = loop {
            match copies.poll() {
                Ok(done) => assert!(!done, "the copy was never made"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains("if the device is lost, restart this process"), "{error}");
        drop(copies);
        assert_eq!((handle.late_copies(), staging.in_use()), (1, BYTES), "{kind}");
    }
}

#[test]
fn memory_of_another_device_or_length_is_refused() {
    let (fake, handle) = Fake::bound(DriverKind::Cuda, "");
    let staging = StagingPool::new(2 * BYTES).expect("memory");
    let address = fake.allocate(BYTES);
    let range = |at: u64, bytes: usize, handle: &DeviceHandle| {
        // SAFETY: the allocation is never freed; what is outside of it is refused.
        unsafe { handle.range(at, bytes, Arc::new(())) }
    };
    for (at, bytes) in [(address - 1, 2), (address, BYTES + 1), (address + BYTES as u64, 1)] {
        let error = range(at, bytes, &handle).expect_err("outside of the allocation");
        assert!(error.to_string().starts_with("the range is not memory of the device"), "{error}");
    }
    let outside = DeviceError::OutsideMemory { offset: 0, bytes: 0, memory: 0 };
    assert_eq!(range(address, 0, &handle).expect_err("empty"), outside);
    let whole = range(address, BYTES, &handle).expect("allocated");
    assert_eq!(whole.slice(1, BYTES - 1).expect("inside").bytes(), BYTES - 1);
    for (offset, bytes) in [(0, 0), (1, BYTES), (usize::MAX, 2)] {
        let error = whole.slice(offset, bytes).expect_err("outside");
        assert_eq!(error, DeviceError::OutsideMemory { offset, bytes, memory: BYTES });
    }
    let mut copies = handle.begin(None).expect("a stream");
    let short = whole.slice(0, 1).expect("inside");
    let error = copies.to_device(filled(&staging, 1), &short).expect_err("other lengths");
    assert_eq!(error, DeviceError::OutsideMemory { offset: 0, bytes: BYTES, memory: 1 });
    let other = fake.driver().bind(0).expect("bound again");
    let foreign = range(address, BYTES, &other).expect("allocated");
    let error = copies.to_device(filled(&staging, 1), &foreign).expect_err("foreign");
    assert!(matches!(error, DeviceError::ForeignMemory { .. }), "{error}");
}

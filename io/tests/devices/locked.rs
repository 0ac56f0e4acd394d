//! Page-locked memory: chunks, rollback, and copies across chunks.

use std::sync::Arc;

use pagelith_io::device::{CHUNK_BYTES, DeviceError, DriverKind, LockedMemory};
use pagelith_io::staging::StagingPool;
use pagelith_io::verbs::DeviceMemory;

use crate::fake::Fake;

const BYTES: usize = 2 * CHUNK_BYTES + 4096;

/// Memory whose address is a multiple of a chunk's, or not.
fn memory() -> Arc<StagingPool> {
    Arc::new(StagingPool::new(BYTES).expect("memory"))
}

/// Chunks of a memory of that length at this address.
fn chunks(memory: &StagingPool) -> u64 {
    let start = memory.base().addr().get();
    ((start + BYTES).div_ceil(CHUNK_BYTES) - start / CHUNK_BYTES) as u64
}

#[test]
fn memory_is_locked_in_chunks_and_unlocked_with_the_value() {
    for kind in DriverKind::ALL {
        let (fake, handle) = Fake::bound(kind, "");
        let memory = memory();
        let locked = LockedMemory::new(&handle, "staging.bytes", memory.clone()).expect("locked");
        assert_eq!(locked.bytes(), BYTES);
        assert_eq!(fake.count("locked-bytes"), BYTES as u64);
        assert_eq!(fake.count("locked-chunks"), chunks(&memory));
        drop(locked);
        assert_eq!(fake.count("locked-chunks"), 0);
        assert_eq!(Arc::strong_count(&memory), 1, "the memory is released");
    }
}

#[test]
fn failed_chunk_unlocks_those_before_it() {
    for (kind, call, code) in [
        (DriverKind::Cuda, "cuMemHostRegister_v2", 2),
        (DriverKind::Ascend, "aclrtHostRegister", 207_001),
    ] {
        let (fake, handle) = Fake::bound(kind, "");
        for script in ["fail-lock=1", "fail-lock=3", "lock-limit=100000000"] {
            fake.change(script);
            let memory = memory();
            let error = LockedMemory::new(&handle, "dram.bytes", memory.clone());
            let error = error.expect_err("refused");
            let text = error.to_string();
            let DeviceError::NotLocked { call: found, code: number, bytes, .. } = error else {
                panic!("{text}");
            };
            assert_eq!((found, number, bytes), (call, code, BYTES), "{text}");
            assert!(text.contains("set dram.pin to off"), "{text}");
            assert_eq!((fake.count("locked-chunks"), Arc::strong_count(&memory)), (0, 1));
        }
    }
}

#[test]
fn memory_that_is_locked_already_is_refused_whole() {
    let (fake, handle) = Fake::bound(DriverKind::Cuda, "");
    let memory = memory();
    let locked = LockedMemory::new(&handle, "dram.bytes", memory.clone()).expect("locked");
    let error = LockedMemory::new(&handle, "dram.bytes", memory.clone()).expect_err("locked twice");
    let text = error.to_string();
    assert!(text.contains("end the other registration of these addresses"), "{text}");
    assert!(text.ends_with("code=712"), "{text}");
    assert_eq!(fake.count("locked-bytes"), BYTES as u64, "the first registration stays");
    drop(locked);
    assert_eq!(fake.count("locked-bytes"), 0);
}

/// A driver refuses a copy that begins in one registration and ends in another.
#[test]
fn copy_across_chunks_is_made_in_runs() {
    for kind in DriverKind::ALL {
        let (fake, handle) = Fake::bound(kind, "");
        let pool = memory();
        let locked = LockedMemory::new(&handle, "staging.bytes", pool.clone()).expect("locked");
        let device = fake.memory(&handle, BYTES);
        let mut part = pool.try_part(BYTES).expect("free");
        for (at, byte) in part.bytes_mut().expect("exclusive").iter_mut().enumerate() {
            *byte = (at % 253) as u8;
        }
        let mut copies = handle.begin(None).expect("a stream");
        copies.to_device(part, &device.range).expect("queued");
        copies.submit().expect("submitted");
        while !copies.poll().expect("no fault") {}
        drop(copies);
        let expected: Vec<u8> = (0..BYTES).map(|at| (at % 253) as u8).collect();
        assert!(device.bytes() == expected, "{kind}");
        drop(locked);
        assert_eq!(fake.count("violations"), 0);
    }
}

/// The engine ended the driver: the memory stays locked, so it is never given back.
#[test]
fn memory_that_cannot_be_unlocked_is_leaked() {
    let (fake, handle) = Fake::bound(DriverKind::Cuda, "lose-at-copy=1");
    let pool = memory();
    let locked = LockedMemory::new(&handle, "staging.bytes", pool.clone()).expect("locked");
    let device = fake.memory(&handle, 4096);
    let mut copies = handle.begin(None).expect("a stream");
    copies.to_device(pool.try_part(4096).expect("free"), &device.range).expect("queued");
    copies.submit().expect("submitted");
    while copies.poll().is_ok() {}
    drop(locked);
    assert_eq!(fake.count("locked-bytes"), BYTES as u64);
    assert!(Arc::strong_count(&pool) > 1, "the memory is leaked");
}

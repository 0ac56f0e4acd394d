//! Registration of memory: chunks, limits and rollback.

use std::sync::Arc;

use pagelith_io::verbs::{
    CompletionKind, CompletionQueue, DeviceMemory, HostMemory, MemoryRegion, Operation,
    ProtectionDomain, RegisteredMemory, RemoteAccess, VerbsError,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::support::{BYTES, CAPACITY, devices, ends, fake, is_real, open_fake, pattern};

const MIB: usize = 1 << 20;

fn memory(bytes: usize) -> (Arc<HostMemory>, Arc<dyn DeviceMemory>) {
    let memory = Arc::new(HostMemory::new(bytes).expect("memory"));
    (memory.clone(), memory)
}

#[test]
fn write_from_memory_in_chunks_crosses_their_edges() {
    let Some((a, b)) = ends(RemoteAccess::WRITE) else { return };
    let (host, shared) = memory(BYTES - 1_000);
    host.copy_in(0, &pattern(9, BYTES - 1_000));
    let all = RegisteredMemory::new(&a.domain, &shared, MIB / 2 + 1, RemoteAccess::NONE)
        .expect("registered");
    assert_eq!(all.chunks().len(), 4);
    let mut from = Vec::new();
    all.local(5, MIB + 17, &mut from).expect("inside");
    assert_eq!(from.len(), 3);
    a.post(1, Operation::Write { from: &from, to: b.remote(3) });
    assert_eq!(a.completed(1), CompletionKind::Write);
    assert_eq!(b.bytes(3, MIB + 17), pattern(9, BYTES)[5..MIB + 22]);
    for (offset, length) in [(0, 0), (BYTES - 1_000, 1), (usize::MAX, 2)] {
        let error = all.local(offset, length, &mut from).expect_err("outside");
        assert!(error.to_string().starts_with("range is not inside of the memory region"));
    }
}

#[test]
fn range_outside_of_memory_or_region_is_refused() {
    let Some([device, _]) = devices() else { return };
    let domain = ProtectionDomain::new(&device).expect("a domain");
    let (_, shared) = memory(8_192);
    let register = |offset, bytes| {
        MemoryRegion::new(&domain, &shared, offset, bytes, RemoteAccess::READ_WRITE)
    };
    for (offset, bytes) in [(0, 0), (1, 8_192), (8_192, 1), (usize::MAX, 2)] {
        let error = register(offset, bytes).expect_err("outside of the memory");
        assert_eq!(error, VerbsError::OutsideRegion { offset, length: bytes, region: 8_192 });
    }
    let region = register(4_096, 4_096).expect("registered");
    assert!(region.local(4_095, 1).is_ok() && region.local(4_095, 2).is_err());
    assert!(region.remote(4_095).is_some() && region.remote(4_096).is_none());
}

#[test]
fn region_over_device_limit_is_refused_and_registered_in_chunks() {
    let Some(fake) = fake() else { return };
    let number = fake.device("max-mr-size=1048576");
    let domain = ProtectionDomain::new(&open_fake(number)).expect("a domain");
    let (_, shared) = memory(3 * MIB);
    let access = RemoteAccess::READ;
    let error = MemoryRegion::new(&domain, &shared, 0, 3 * MIB, access).expect_err("too large");
    assert_eq!(
        error.to_string(),
        format!(
            "memory region exceeds the device's limit; register it in chunks device=fake{number} \
             bytes=3145728 max_mr_size=1048576"
        )
    );
    let all = RegisteredMemory::new(&domain, &shared, usize::MAX, access).expect("in chunks");
    assert_eq!((all.chunks().len(), fake.count(number, "regions")), (3, 3));
}

#[test]
fn failed_chunk_rolls_back_those_before_it() {
    let Some(fake) = fake() else { return };
    let number = fake.device("fail-registration=4");
    let domain = ProtectionDomain::new(&open_fake(number)).expect("a domain");
    let (host, shared) = memory(8 * MIB);
    let access = RemoteAccess::READ;
    RegisteredMemory::new(&domain, &shared, MIB, access).expect_err("the fourth chunk");
    assert_eq!(fake.count(number, "registrations"), 4);
    assert_eq!(fake.count(number, "regions"), 0);
    drop(shared);
    assert_eq!(Arc::strong_count(&host), 1, "the memory is kept by nothing");
}

#[test]
fn capacity_over_device_limit_is_named() {
    let Some([device, _]) = devices() else { return };
    let error = CompletionQueue::new(&device, u32::MAX).err().expect("too many completions");
    let text = error.to_string();
    assert!(text.contains(" completions=4294967295 limit="), "{text}");
    assert!(CAPACITY.pieces <= device.limits().max_sge);
}

/// The limit counts for a process without the capability to lock memory, so a thread gives it up.
#[test]
fn locked_memory_limit_is_named_with_bytes_and_limit() {
    let device = if is_real() {
        devices().map(|[device, _]| device)
    } else {
        fake().map(|fake| open_fake(fake.device("fail-registration=5")))
    };
    let Some(device) = device else { return };
    let before = getrlimit(Resource::Memlock);
    let thread = std::thread::spawn(move || {
        let mut sets = capabilities(None).expect("capabilities");
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).expect("fewer capabilities");
        let limit = before.maximum.map_or(4 * MIB as u64, |maximum| maximum.min(4 * MIB as u64));
        setrlimit(Resource::Memlock, Rlimit { current: Some(limit), ..before }).expect("a limit");
        let domain = ProtectionDomain::new(&device).expect("a domain");
        let (_, shared) = memory(64 * MIB);
        let register = || RegisteredMemory::new(&domain, &shared, MIB, RemoteAccess::READ);
        let error = register().expect_err("64 MiB");
        (error, limit, device.name().to_owned())
    });
    let (error, limit, name) = thread.join().expect("the thread");
    setrlimit(Resource::Memlock, before).expect("the limit of before");
    let bytes = 64 * MIB as u64;
    let expected = VerbsError::LockedMemory { device: name, bytes, registered: 0, limit };
    assert_eq!(error, expected);
    assert!(error.to_string().contains("`ulimit -l`"), "{error}");
}

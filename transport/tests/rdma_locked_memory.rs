//! The locked-memory limit of a process that registers memory. The limit is the whole process's, so
//! this test has a process of its own.
#![allow(clippy::disallowed_methods, reason = "the test copies a file and starts a thread")]
#![allow(clippy::print_stdout, reason = "the test says what it skips")]

#[allow(dead_code, reason = "the test does not need all of it")]
#[path = "../../io/tests/verbs/fake.rs"]
mod fake;

use std::sync::Arc;

use fake::{Fake, copied, load};
use pagelith_io::verbs::{HostMemory, RemoteAccess, VerbsError};
use pagelith_transport::rdma::host::{RdmaHost, RdmaSettings};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

const MIB: usize = 1 << 20;

/// The limit counts for a process without the capability to lock memory, so a thread gives it up.
#[test]
fn locked_memory_limit_counts_all_regions_once_for_each_device() {
    let (_dir, path) = copied();
    let control = Fake::at(&path);
    assert_eq!((control.device(""), control.device("")), (1, 2));
    let settings = RdmaSettings { library: Some(load(&path)), ..RdmaSettings::default() };
    let host = RdmaHost::open(&settings).expect("a host");
    let memory = |bytes| Arc::new(HostMemory::new(bytes).expect("memory"));
    let before = getrlimit(Resource::Memlock);
    let thread = std::thread::spawn(move || {
        let mut sets = capabilities(None).expect("capabilities");
        sets.effective.remove(CapabilitySet::IPC_LOCK);
        set_capabilities(None, sets).expect("fewer capabilities");
        let limit = 5 * MIB as u64;
        if before.maximum.is_some_and(|maximum| maximum < limit) {
            println!("skipped: the hard limit of locked memory is below 5 MiB");
            return;
        }
        setrlimit(Resource::Memlock, Rlimit { current: Some(limit), ..before }).expect("a limit");
        let region = host.register(memory(2 * MIB), RemoteAccess::READ).expect("4 of 5 MiB");
        let error = host.register(memory(MIB), RemoteAccess::READ).expect_err("6 of 5 MiB");
        let (device, mib) = ("fake1,fake2".to_owned(), MIB as u64);
        let expected =
            VerbsError::LockedMemory { device, bytes: 2 * mib, registered: 4 * mib, limit };
        assert_eq!(error, expected);
        host.unregister(&region).expect("deregistered");
        host.register(memory(MIB), RemoteAccess::READ).expect("2 of 5 MiB");
    });
    let result = thread.join();
    setrlimit(Resource::Memlock, before).expect("the limit of before");
    result.expect("the thread");
}

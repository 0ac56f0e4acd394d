//! A process that reaches a limit: of locked memory, descriptors or threads. Limits apply to a
//! process, so each test runs in a child of this program.
#![allow(clippy::disallowed_methods, reason = "the test needs real threads")]

use std::io::Write as _;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use pagelith::config::{Promote, SsdIo};
use pagelith::io::system::{SystemClock, SystemEntropy};
use pagelith::layouts::{
    ids::PrefixHash, key::ObjectKey, key::Role, namespace::Namespace, shard::Shard,
};
use pagelith::transport::address::Address;
use pagelith::transport::capability::Capabilities;
use pagelith::transport::handshake::ClientAuth;
use pagelith::transport::limits::LinkLimits;
use pagelith::transport::pending::HandshakeProgress;
use pagelith::transport::rights::Rights;
use pagelith::transport::socket::{AdmissionResult, ListenConfig, Listener, connect};
use pagelith::{
    AlignedBuf, Config, ErrorKind, GetOutcome, GetSlice, MachineLimits, Options, PutOutcome,
    PutSlice, Size, Store,
};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_thread_res_uid};

const CHILD: &str = "TEST_PAGELITH_LIMITED";
const OBJECTS: u32 = 64;
const LEN: usize = 64 << 10;
const NOBODY: u32 = 65_534;

/// Run a test's body in a child of this program; in the child, run it directly.
fn in_child(name: &str, body: impl FnOnce()) {
    if std::env::var_os(CHILD).is_some() {
        return body();
    }
    let program = std::env::current_exe().expect("this program");
    let output = std::process::Command::new(program)
        .args(["--exact", name, "--nocapture"])
        .env(CHILD, "1")
        .output()
        .expect("the child ran");
    let (said, log) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}\n{log}");
    for line in log.lines().filter(|line| line.starts_with("skipped: ")) {
        // Bypasses the test harness's capture, so that skipped tests are reported.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

fn limit(resource: Resource, most: u64) {
    let maximum = getrlimit(resource).maximum;
    setrlimit(resource, Rlimit { current: Some(most), maximum }).expect("a lower limit");
}

/// From now on this thread, and threads that it starts, may not lock more memory than the limit.
fn drop_ipc_lock() {
    let mut sets = capabilities(None).expect("capabilities");
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    sets.permitted.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).expect("fewer");
}

/// From now on this thread, and threads that it starts, belong to a user whose threads are limited.
fn drop_root(home: &tempfile::TempDir) {
    if rustix::process::getuid().is_root() {
        let nobody = rustix::process::Uid::from_raw(NOBODY);
        rustix::fs::chown(home.path(), Some(nobody), None).expect("given away");
        set_thread_res_uid(nobody, nobody, nobody).expect("another user");
    }
}

fn key(n: u32) -> ObjectKey {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&n.to_le_bytes());
    let id = Namespace::default().id();
    ObjectKey::new(id, PrefixHash(hash), Role::Target, "kv", "k", Shard::Whole).unwrap()
}

fn bytes(n: u32) -> Vec<u8> {
    (0..LEN as u32).map(|i| (i.wrapping_mul(2_654_435_761) ^ n).to_be_bytes()[0]).collect()
}

fn config(home: &tempfile::TempDir, io: SsdIo) -> Config {
    let mut config = Config::default();
    config.dram.bytes = Size::mib(8);
    config.dram.promote = Promote::Never;
    config.ssd.bytes = Size::mib(64);
    config.ssd.dirs = vec![home.path().join("store")];
    config.ssd.io = io;
    config
}

fn open(config: &Config) -> pagelith::Result<Store> {
    Store::open(config.validate(&MachineLimits::of_this_machine().unwrap()).unwrap())
}

fn put_all(store: &Store) {
    for n in 0..OBJECTS {
        let bytes = bytes(n);
        let put = PutSlice { key: key(n), pieces: &[&bytes] };
        assert_eq!(store.put_batch(&[put], Options::default())[0], Ok(PutOutcome::Stored), "n={n}");
    }
}

/// Get all objects one by one; each is a hit with its bytes.
fn get_all(store: &Store) {
    let mut to = AlignedBuf::new(LEN).unwrap();
    for n in 0..OBJECTS {
        let get = GetSlice { key: key(n), range: None, pieces: &mut [&mut to] };
        let outcome = store.get_batch(&mut [get], Options::default()).remove(0);
        assert!(outcome.as_ref().is_ok_and(GetOutcome::is_hit), "n={n} {outcome:?}");
        assert!(to[..] == bytes(n)[..], "other bytes n={n}");
    }
}

/// Get all objects in `threads` threads at once, each of which is inside a call when the others
/// begin.
fn get_all_at_once(store: &Store, threads: usize) {
    let together = Barrier::new(threads);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                together.wait();
                get_all(store);
            });
        }
    });
}

#[test]
fn sessions_beyond_the_locked_memory_limit_read_without_a_ring() {
    in_child("sessions_beyond_the_locked_memory_limit_read_without_a_ring", || {
        drop_ipc_lock();
        limit(Resource::Memlock, 64 << 10);
        let home = tempfile::tempdir().unwrap();
        let store = open(&config(&home, SsdIo::Auto)).unwrap();
        put_all(&store);
        store.close().unwrap();
        let store = open(&config(&home, SsdIo::Auto)).unwrap();
        let mut sessions: Vec<_> = (0..8).map(|_| store.session().expect("a session")).collect();
        get_all_at_once(&store, 8);
        sessions.clear();
        get_all_at_once(&store, 8);
    });
}

#[test]
fn store_above_the_locked_memory_limit_opens_blocking_and_names_it() {
    in_child("store_above_the_locked_memory_limit_opens_blocking_and_names_it", || {
        drop_ipc_lock();
        limit(Resource::Memlock, 0);
        let home = tempfile::tempdir().unwrap();
        let store = open(&config(&home, SsdIo::Auto)).unwrap();
        let report = store.opened().clone();
        // Kernels from 5.12 to 6.13 do not count rings as locked memory.
        let counts_rings = report.backend == Some(pagelith::io::disk::IoBackend::Blocking);
        if !counts_rings {
            eprintln!("skipped: this kernel does not count rings as locked memory");
        }
        assert!(
            !counts_rings || report.backend_reason.contains("RLIMIT_MEMLOCK=0 (ulimit -l)"),
            "{report:?}"
        );
        put_all(&store);
        store.close().unwrap();
        let store = open(&config(&home, SsdIo::Auto)).unwrap();
        get_all_at_once(&store, 4);
        store.close().unwrap();
        let asked = open(&config(&home, SsdIo::Uring)).map(drop);
        assert!(
            !counts_rings || asked.as_ref().is_err_and(|e| e.message.contains("RLIMIT_MEMLOCK=0")),
            "{asked:?}"
        );
    });
}

/// With `auto`, sessions work without a ring; with `uring`, which requires one, calls wait for a
/// free session.
#[test]
fn calls_work_without_free_descriptors() {
    in_child("calls_work_without_free_descriptors", || {
        for io in [SsdIo::Auto, SsdIo::Uring] {
            let home = tempfile::tempdir().unwrap();
            let store = match open(&config(&home, io)) {
                Ok(store) => store,
                Err(error) if io == SsdIo::Uring => {
                    eprintln!("skipped: io_uring is refused here: {error}");
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            put_all(&store);
            store.close().unwrap();
            let store = open(&config(&home, io)).unwrap();
            // One session for which `uring` can wait.
            get_all(&store);
            let before = getrlimit(Resource::Nofile);
            limit(Resource::Nofile, 0);
            get_all_at_once(&store, 4);
            let refused = store.session().map(drop);
            match io {
                SsdIo::Uring => {
                    let error = refused.expect_err("no ring");
                    assert_eq!(error.kind, ErrorKind::Busy);
                    assert!(error.message.contains("RLIMIT_NOFILE=0 (ulimit -n)"), "{error}");
                }
                SsdIo::Auto | SsdIo::Blocking => assert_eq!(refused, Ok(())),
            }
            setrlimit(Resource::Nofile, before).unwrap();
            store.close().unwrap();
        }
    });
}

#[test]
fn acknowledged_objects_are_durable_without_new_threads() {
    in_child("acknowledged_objects_are_durable_without_new_threads", || {
        let home = tempfile::tempdir().unwrap();
        drop_root(&home);
        let store = open(&config(&home, SsdIo::Auto)).unwrap();
        limit(Resource::Nproc, 0);
        put_all(&store);
        let flushed = store.flush(Options::default()).unwrap();
        assert_eq!((flushed.durable_objects, flushed.lost_objects), (u64::from(OBJECTS), 0));
        assert_eq!(store.stats().ssd_state, "on");
        get_all(&store);
        store.close().unwrap();
        let refused = open(&config(&home, SsdIo::Auto)).map(drop).expect_err("no thread");
        assert_eq!(refused.kind, ErrorKind::Busy);
        assert!(refused.message.contains("RLIMIT_NPROC=0 (ulimit -u)"), "{refused}");
        limit(Resource::Nproc, 10_000);
        get_all(&open(&config(&home, SsdIo::Auto)).unwrap());
    });
}

/// A connection without a free descriptor is logged once, not in a loop, and is accepted when one
/// is free.
#[test]
fn listener_without_descriptors_pauses_and_accepts_later() {
    in_child("listener_without_descriptors_pauses_and_accepts_later", || {
        let home = tempfile::tempdir().unwrap();
        let address = Address::Unix(home.path().join("s"));
        let listen = ListenConfig {
            address: address.clone(),
            admission: ClientAuth::Connection(Rights::all()),
            allow_remote: false,
        };
        let clock = Arc::new(SystemClock::new());
        let mut listener = Listener::new(
            &listen,
            Capabilities::of_this_build([1; 16]),
            Arc::new(SystemEntropy),
            clock.clone(),
            LinkLimits::default(),
        )
        .unwrap();
        let connect = || {
            connect(
                &address,
                Capabilities::of_this_build([1; 16]),
                None,
                None,
                &SystemEntropy,
                (clock.clone(), LinkLimits::default()),
                &[],
            )
        };
        let mut client = HandshakeProgress::Waiting(connect().unwrap());
        let before = getrlimit(Resource::Nofile);
        limit(Resource::Nofile, 0);
        let mut arrivals = Vec::new();
        for _ in 0..100 {
            listener.poll(&mut arrivals);
        }
        // One, and another if this thread stalls for longer than the listener's pause.
        let refused = |arrival: &_| matches!(arrival, AdmissionResult::Refused { .. });
        assert!((1..10).contains(&arrivals.len()), "{}", arrivals.len());
        assert!(arrivals.iter().all(refused), "a client without a descriptor was let in");
        setrlimit(Resource::Nofile, before).unwrap();
        arrivals.clear();
        while arrivals.is_empty() {
            listener.wait(&mut arrivals, Duration::from_millis(5));
            client = match client {
                HandshakeProgress::Waiting(pending) => pending.wait(Duration::from_millis(5)),
                other => other,
            };
        }
        assert!(matches!(arrivals[..], [AdmissionResult::Link(_)]));
    });
}

//! A store process with three tenants. One is well-behaved, clients of the second are killed, and
//! the third is hostile: it never reads its responses, and passes invalid descriptors as memory. In
//! addition, unauthenticated connections send nothing. The first tenant must have its hits with
//! correct bytes, the process must keep its memory plan, and all resources of the others must be
//! released.
//!
//! `TEST_PAGELITH_SOAK_S=1800 cargo test --release -p pagelith-cli --test soak -- --nocapture` runs
//! a campaign, which compares latencies too. The other tenants take processor time, as any program
//! does: on two cores each wake-up of the first tenant then waits for a time slice of the
//! scheduler. So the baseline is the first tenant while threads that never touch the store take
//! that time. `benches/results/soak.md` has the figures.
#![allow(
    clippy::disallowed_methods,
    reason = "a test sets up and polls at real processes, threads and time"
)]

mod common;
#[path = "soak/hostile.rs"]
mod hostile;
#[path = "soak/unauthenticated.rs"]
mod unauthenticated;
#[path = "soak/well_behaved.rs"]
mod well_behaved;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use common::store_process::{StoreProcess, command};
use pagelith::Size;
use pagelith::key_file;
use pagelith::layouts::ids::NamespaceId;
use pagelith::layouts::namespace::Namespace;
use pagelith::transport::address::Address;
use pagelith::transport::auth::Key;
use serde_json::Value;

/// Default duration in seconds: long enough that every tenant is active several times.
const SECONDS: u64 = 4;
/// Divisor of the duration for the phase of the well-behaved tenant alone, and for the phase with
/// busy threads.
const ALONE: u32 = 10;
/// Number of the busy threads, and the duration of their bursts and pauses. Together they take one
/// core, like the other tenants.
const BURNERS: usize = 2;
const BURST: Duration = Duration::from_millis(5);
/// Minimum duration in seconds for a comparison of latencies.
const CAMPAIGN_SECONDS: u64 = 300;
/// Maximum ratio of the 99th percentile with the other tenants to that with the busy threads.
const SLOWER_MAX: f64 = 3.0;
/// Memory outside of the plan, see `docs/memory.md`: sessions, tables, the program itself.
const BEYOND_PLAN_BYTES: u64 = 128 << 20;
/// Maximum time until the resources of clients are released: seconds on a busy machine.
const RELEASE_MAX: Duration = Duration::from_secs(60);
/// Large enough that nothing is evicted, so that a miss is a failure and not an effect of the other
/// tenants' puts.
const SSD: &str = "4GiB";
/// Gauges of the store's content; all others are gauges of activity, and return to zero.
const CONTENT_GAUGES: [&str; 6] =
    ["objects", "index_bytes", "dram_objects", "dram_bytes", "dram_peak_bytes", "ssd_state"];

/// Signals the end of a phase to all waiting threads.
#[derive(Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    /// Wait for `pause` or until the end of the phase; true at the end.
    fn within(&self, pause: Duration) -> bool {
        let stopped = self.stopped.lock().expect("a lock");
        *self.changed.wait_timeout_while(stopped, pause, |stopped| !*stopped).expect("a lock").0
    }

    fn now(&self) {
        *self.stopped.lock().expect("a lock") = true;
        self.changed.notify_all();
    }
}

/// Address, key and namespace of a tenant.
struct Tenant {
    address: Address,
    key: Key,
    namespace: NamespaceId,
}

impl Tenant {
    /// A tenant with a new key and a namespace of this name; adds the key to the server's file.
    fn new(name: &str, rights: &str, home: &Path, address: &Address) -> Tenant {
        let namespace = Namespace { model: name.into(), ..Namespace::default() }.id();
        let own = PathBuf::from(common::store_process::keys(home, &[name]));
        let entry = std::fs::read_to_string(&own).expect("an entry");
        let may = format!("rights = [{rights}]\nnamespaces = [\"{namespace}\"]\n\n");
        let mut ring = File::options().append(true).open(ring(home)).expect("the server's file");
        write!(ring, "{entry}{may}").expect("written");
        Tenant { address: address.clone(), key: key_file::own(&own).expect("a key"), namespace }
    }
}

fn ring(home: &Path) -> PathBuf {
    home.join("server.keys")
}

fn seconds() -> u64 {
    std::env::var("TEST_PAGELITH_SOAK_S")
        .map_or(SECONDS, |text| text.parse().expect("a number of seconds"))
}

/// Gauges of activity that are not zero.
fn gauges_left(server: &StoreProcess) -> Vec<String> {
    let (status, text) = server.get("/metrics");
    assert_eq!(status, 200);
    let gauges = text
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE pagelith_")?.strip_suffix(" gauge"));
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("pagelith_{name} ")));
        line.and_then(|value| value.parse::<i64>().ok())
            .unwrap_or_else(|| panic!("{name} is not in\n{text}"))
    };
    let left = gauges.filter(|name| !CONTENT_GAUGES.contains(name)).map(|name| (name, value(name)));
    left.filter(|(_, value)| *value != 0).map(|(name, value)| format!("{name}={value}")).collect()
}

/// Peak memory of the process, and the memory plan of store and clients that it logged, in bytes.
fn memory(server: &StoreProcess, log: &Path) -> (u64, u64) {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", server.child.id())).expect("a status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    let log_text = std::fs::read_to_string(log).expect("a log");
    let size = |name| {
        log_text.split_whitespace().find_map(|word| word.strip_prefix(name)).expect("a plan")
    };
    let bytes = |name| size(name).parse::<Size>().expect("a size").bytes();
    (peak_kib << 10, bytes("total=") + bytes("clients_total="))
}

/// Start clients that attach, put and get, and kill them.
fn kill_clients(address: &str, key: &str, stop: &Stop) -> u64 {
    let mut kills = 0;
    let mut pause = Duration::from_millis(30);
    loop {
        let seed = (kills % 5 + 1).to_string();
        let args = [
            "replay",
            "--json",
            "--attach",
            address,
            "--key",
            key,
            "--seed",
            &seed,
            "--requests",
            "400",
        ];
        let mut child =
            command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("spawned");
        let over = stop.within(pause);
        // It may have ended by itself.
        let _ = child.kill();
        child.wait().expect("reaped");
        kills += 1;
        // In the handshake, in a lookup, or in a transfer.
        pause = Duration::from_millis([30, 80, 200, 500][(kills % 4) as usize]);
        if over || stop.within(pause) {
            return kills;
        }
    }
}

/// Take only processor time.
fn burn(stop: &Stop) {
    std::thread::scope(|scope| {
        for _ in 0..BURNERS {
            scope.spawn(|| {
                while !stop.within(BURST) {
                    let began = Instant::now();
                    while began.elapsed() < BURST {
                        std::hint::spin_loop();
                    }
                }
            });
        }
    });
}

/// Increment a counter.
fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn well_behaved_tenant_is_unharmed_by_kills_and_a_hostile_tenant() {
    let home = tempfile::tempdir().expect("a directory");
    let (home, log) = (home.path(), home.path().join("log"));
    let address: Address =
        format!("unix:{}", home.join("socket").display()).parse().expect("an address");
    std::fs::write(ring(home), "").expect("written");
    let own = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600);
    std::fs::set_permissions(ring(home), own).expect("made private");
    let behaved = Tenant::new("behaved", "\"read\", \"write\", \"remove\"", home, &address);
    let hostile = Tenant::new("hostile", "\"read\", \"write\"", home, &address);
    // Without namespaces, since a replay chooses its own.
    let dying = common::store_process::keys(home, &["dying"]);
    let entry = std::fs::read_to_string(&dying).expect("an entry");
    let mut file = File::options().append(true).open(ring(home)).expect("the server's file");
    writeln!(file, "{entry}rights = [\"read\", \"write\"]").expect("written");

    let (listen, keys) = (address.to_string(), ring(home));
    let (keys, dir) = (keys.to_str().expect("text"), home.join("store"));
    let flags =
        ["--listen", &listen, "--keys", keys, "--metrics", "127.0.0.1:0", "--ssd", SSD, "--dir"];
    let stderr = Stdio::from(File::create(&log).expect("a log"));
    let mut server =
        StoreProcess::logging_to(stderr, &[&flags[..], &[dir.to_str().expect("text")]].concat());

    let total = Duration::from_secs(seconds());
    let mut client = well_behaved::WellBehavedTenant::new(&behaved);
    let alone = client.work(total / ALONE, |_| ());
    let busy = client.work(total / ALONE, burn);
    let counters = hostile::Counters::default();
    let mut kills = 0;
    let with_others = client.work(total - 2 * (total / ALONE), |stop| {
        std::thread::scope(|scope| {
            let killing = scope.spawn(|| kill_clients(&listen, &dying, stop));
            scope.spawn(|| hostile::never_read(&hostile, &counters, stop));
            scope.spawn(|| hostile::pass_descriptors(&hostile, &counters, stop));
            scope.spawn(|| unauthenticated::connect_silently(&address, &counters, stop));
            kills = killing.join().expect("no panic");
        });
    });
    client.end();

    let began = Instant::now();
    let mut left = gauges_left(&server);
    while !left.is_empty() {
        assert!(began.elapsed() < RELEASE_MAX, "left: {left:?}");
        left = gauges_left(&server);
    }
    let (peak_bytes, plan_bytes) = memory(&server, &log);
    let slower = with_others.p99_us() / busy.p99_us();
    let report = serde_json::json!({
        "seconds": total.as_secs(), "kills": kills, "alone": alone.json(), "busy": busy.json(), "beside": with_others.json(),
        "p99_ratio": rounded(slower), "p99_ratio_idle": rounded(with_others.p99_us() / alone.p99_us()),
        "unread_requests": counters.unread.load(Ordering::Relaxed),
        "descriptors_handed_over": counters.handed.load(Ordering::Relaxed),
        "silent_connections": counters.silent.load(Ordering::Relaxed),
        "peak_bytes": peak_bytes, "plan_bytes": plan_bytes, "gauges_left": left,
    });
    writeln!(std::io::stderr(), "{report}").expect("written");
    assert!(peak_bytes <= plan_bytes + BEYOND_PLAN_BYTES, "{report}");
    assert_eq!((alone.missed, busy.missed, with_others.missed), (0, 0, 0), "{report}");
    assert!(total.as_secs() < CAMPAIGN_SECONDS || slower <= SLOWER_MAX, "{report}");
    assert_clean_end(&mut server, &log);
}

/// SIGTERM ends the server with all objects durable.
fn assert_clean_end(server: &mut StoreProcess, log: &Path) {
    let pid = rustix::process::Pid::from_child(&server.child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("signalled");
    let status = server.child.wait().expect("ended");
    let log_text = std::fs::read_to_string(log).expect("a log");
    assert!(
        status.success() && log_text.contains("lost_objects=0 unsaved_objects=0"),
        "{status}\n{log_text}"
    );
    assert!(!log_text.contains("panicked"), "{log_text}");
}

/// Rounded to two decimals.
fn rounded(value: f64) -> Value {
    ((value * 100.0).round() / 100.0).into()
}

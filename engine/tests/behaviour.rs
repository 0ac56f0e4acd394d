//! Runs every behaviour over every backend and transport, with true fingerprints and with a
//! constant one.

use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

#[macro_use]
mod suite;

use suite::env::{IoKind, TestEnv, unavailable};
use suite::harness::{EMBEDDED_ONLY, Transport};

static SHOWN: AtomicUsize = AtomicUsize::new(0);
static SKIPPED: AtomicUsize = AtomicUsize::new(0);

fn show(name: &str, between: Transport, kind: IoKind, constant: bool, behaviour: fn(&TestEnv)) {
    // Bypasses the test harness's capture, so that skipped behaviours are reported.
    let say = |line: String| {
        let _ = writeln!(std::io::stderr(), "{line}");
    };
    let embedded_only = || {
        let rows = EMBEDDED_ONLY.iter().filter(|_| between != Transport::Embedded);
        rows.filter(|(prefix, _)| name.starts_with(prefix)).map(|(_, why)| (*why).to_owned()).next()
    };
    let no_devices = || if between == Transport::Rdma { suite::rdma::unavailable() } else { None };
    match unavailable(kind).or_else(embedded_only).or_else(no_devices) {
        Some(why) => {
            SKIPPED.fetch_add(1, Ordering::Relaxed);
            say(format!("skipped: {name} over {kind:?} behind {between:?}: {why}"));
        }
        None => {
            behaviour(&TestEnv::behind(between, kind, constant, 1));
            if between == Transport::Rdma && name == OF_EVERY_SIZE {
                let (placed, read) = suite::rdma::counts();
                assert!(placed > 0 && read > 0, "bytes by RDMA: placed={placed} read={read}");
            }
        }
    }
    if SHOWN.fetch_add(1, Ordering::Relaxed) + 1 == suite::ALL.len() * SIDES {
        let skipped = SKIPPED.load(Ordering::Relaxed);
        say(format!("behaviours: shown={} skipped={skipped}", suite::ALL.len() * SIDES - skipped));
    }
}

/// A behaviour whose objects RDMA carries.
const OF_EVERY_SIZE: &str = "round_trip::objects_of_every_size_are_got_from_memory_and_ssd";

/// Number of modules below.
const SIDES: usize = 10;

macro_rules! tests {
    ($side:ident, $between:ident, $kind:ident, $constant:literal, $($module:ident :: $name:ident,)+) => {
        mod $side {
            $(
                #[test]
                #[allow(non_snake_case)]
                fn $name() {
                    let name = concat!(stringify!($module), "::", stringify!($name));
                    super::show(name, super::Transport::$between, super::IoKind::$kind, $constant, super::suite::$module::$name);
                }
            )+
        }
    };
}

for_all_behaviours!(tests, uring, Embedded, Uring, false);
for_all_behaviours!(tests, blocking, Embedded, Blocking, false);
for_all_behaviours!(tests, sim, Embedded, Sim, false);
for_all_behaviours!(tests, uring_constant_fingerprint, Embedded, Uring, true);
for_all_behaviours!(tests, sim_constant_fingerprint, Embedded, Sim, true);
for_all_behaviours!(tests, tcp, Tcp, Blocking, false);
for_all_behaviours!(tests, rdma, Rdma, Blocking, false);
for_all_behaviours!(tests, shared_memory, SharedRings, Blocking, false);
for_all_behaviours!(tests, shown, SharedArena, Blocking, false);
for_all_behaviours!(tests, sim_link, Sim, Sim, false);

//! A store in use on a device of which the first, the second, the third, ... operation is struck,
//! until a run has no fault: once for each kind of fault (rows 2, 3, 4, 7, 8, 9, 10, 11 and 14 of
//! the fault matrix).
//!
//! In every run, no get returns bytes that were not put under its key, every call ends in time, and
//! the store reopens once the faults end. Failures that the device reports cost no object that a
//! flush covered.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use pagelith::io::clock::{Clock, Mono};
use pagelith::io::fault::FaultOp;
use pagelith::layouts::key::ObjectKey;
use pagelith::{AlignedBuf, Store};
use pagelith_sim::disk::{CrashMode, DiskFault, FaultPlan, StrikeRecord};
use pagelith_sim::env::SimWorld;

use super::expected::{ExpectedObjects, SECOND};
use super::report::all;
use super::scene::config_of;

/// Most operations of a kind in a run.
const OPERATIONS_MAX: u64 = 2_000;
/// The deadline of the configuration plus a tenth.
const LONGEST: Duration = Duration::from_millis(2_200);
/// Attempts to open a store while the device has faults.
const OPENINGS: usize = 4;

/// The workload of a run.
type Body = for<'a, 'b> fn(&'a mut Run<'b>);

/// A run in progress.
struct Run<'a> {
    world: &'a SimWorld,
    ssd_mib: u32,
    ledger: ExpectedObjects,
    scratch: AlignedBuf,
    wrong: Vec<String>,
    returned: BTreeSet<ObjectKey>,
    /// Whether the store reported anything.
    reported: bool,
    longest: Duration,
    /// Calls longer than that because a read into the caller's memory had not completed.
    late: usize,
}

impl Run<'_> {
    fn open(&mut self) -> Option<Store> {
        let mut refusal = String::new();
        for _ in 0..OPENINGS {
            match Store::open_in(config_of(self.ssd_mib, 3), self.world.env()) {
                Ok(store) => {
                    let r = store.opened();
                    self.reported |=
                        r.torn_records + u64::from(r.mended_blocks + r.refused_checkpoints) > 0;
                    return Some(store);
                }
                Err(error) => (self.reported, refusal) = (true, error.to_string()),
            }
            // Stuck operations end, and so do processes that wait for them.
            self.world.runtime.run_for(Duration::from_secs(20));
        }
        self.wrong.push(format!("it does not open error={refusal}"));
        None
    }

    /// Makes one call and checks its duration.
    fn timed<T>(&mut self, what: &str, store: &Store, call: impl FnOnce(&mut Self) -> T) -> T {
        let (from, late): (Mono, u64) = (self.world.clock.now(), store.stats().late_direct);
        let out = call(self);
        let took = self.world.clock.now().since(from);
        if store.stats().late_direct > late {
            self.late += 1;
        } else if took > LONGEST {
            self.wrong.push(format!("{what} took {took:?}"));
        } else {
            self.longest = self.longest.max(took);
        }
        out
    }

    fn put(&mut self, store: &Store, page: u32, base: Option<&str>, components: &[&str]) {
        self.timed("put", store, |run| run.ledger.put(store, page, base, components));
    }

    fn flush(&mut self, store: &Store) {
        self.timed("flush", store, |run| run.ledger.flush(store));
    }

    fn remove(&mut self, store: &Store, page: u32, component: &str) {
        self.timed("remove", store, |run| run.ledger.remove(store, page, component));
    }

    /// Reads every object; returns the missing ones.
    fn observe(&mut self, store: &Store) -> BTreeSet<ObjectKey> {
        let strikes = || self.world.disk.struck().len();
        let look = self.ledger.look_at(store, &mut self.scratch, &self.world.clock, strikes);
        let late = store.stats().late_direct > 0;
        if look.longest > LONGEST && !late {
            self.wrong.push(format!("get took {:?}", look.longest));
        }
        self.wrong.extend(look.wrong);
        self.returned.extend(look.returned);
        let stats = store.stats();
        self.reported |= stats.read_errors + stats.flush_errors + stats.damaged > 0;
        look.lost
    }

    fn end(&mut self, store: Store, closed: bool) {
        let stats = store.stats();
        self.reported |= stats.read_errors + stats.flush_errors + stats.damaged > 0;
        if closed {
            self.reported |= store.close().is_err();
        } else {
            drop(store);
            self.world.crash(CrashMode::KeepAll);
        }
        self.ledger.died();
    }

    /// Every operation once: put, flush, read back, remove, clear, seal, close, open.
    fn live(&mut self) {
        let Some(store) = self.open() else { return };
        for page in 0..3 {
            self.put(&store, page, None, &["x"]);
        }
        for page in 3..6 {
            self.put(&store, page, None, &["k", "v"]);
        }
        self.put(&store, 3, Some("k"), &["m", "n"]);
        self.put(&store, SECOND, None, &["k", "v"]);
        self.flush(&store);
        self.end(store, false);

        let Some(store) = self.open() else { return };
        self.observe(&store);
        self.remove(&store, 0, "x");
        self.remove(&store, 4, "k");
        self.timed("clear", &store, |run| run.ledger.clear(&store, SECOND));
        self.put(&store, 0, None, &["x"]);
        self.put(&store, SECOND + 1, None, &["x"]);
        for page in 20..43 {
            self.put(&store, page, None, &["k", "v"]);
        }
        self.flush(&store);
        self.end(store, true);

        let Some(store) = self.open() else { return };
        self.observe(&store);
        self.remove(&store, 5, "k");
        self.put(&store, 6, None, &["x"]);
        self.flush(&store);
        self.observe(&store);
        self.end(store, false);
    }

    /// A log that wraps: reclaim reads, moves and reuses.
    fn wrap(&mut self) {
        let Some(store) = self.open() else { return };
        for page in 0..4 {
            self.put(&store, page, None, &["k", "v"]);
        }
        self.flush(&store);
        let pin = store.pin(&[super::expected::key(0, "k"), super::expected::key(1, "v")]);
        self.remove(&store, 2, "k");
        for page in 20..170 {
            self.put(&store, page, None, &["k", "v"]);
            if page % 25 == 0 {
                self.flush(&store);
            }
        }
        self.flush(&store);
        drop(pin);
        self.end(store, false);
        let Some(store) = self.open() else { return };
        self.observe(&store);
        self.end(store, true);
    }
}

/// The result of a run.
struct Outcome {
    wrong: Vec<String>,
    struck: Vec<StrikeRecord>,
    lost: usize,
    returned: usize,
    reported: bool,
    longest: Duration,
    late: usize,
    /// Operations that the fault can strike.
    could: u64,
}

fn run(fault: DiskFault, nth: u64, ssd_mib: u32, body: Body) -> Outcome {
    let world = SimWorld::new(nth);
    // The n-th strike of each run draws other sectors, bits and places.
    world.disk.set_faults(pagelith_sim::disk::FaultRates::new(nth));
    world.disk.inject(FaultPlan::Strike { fault, nth });
    let scratch = AlignedBuf::new(1 << 17).expect("memory");
    let ledger = ExpectedObjects::default();
    let mut run = Run {
        world: &world,
        ssd_mib,
        ledger,
        scratch,
        wrong: Vec::new(),
        returned: BTreeSet::new(),
        reported: false,
        longest: Duration::ZERO,
        late: 0,
    };
    let mut lost = BTreeSet::new();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        body(&mut run);
        world.disk.clear_faults();
        // The faults end; stuck operations may execute or not.
        world.crash(if nth.is_multiple_of(2) { CrashMode::DropAll } else { CrashMode::KeepAll });
        run.reported |= !run.ledger.errors.is_empty();
        run.ledger.died();
        let Some(store) = run.open() else { return };
        lost = run.observe(&store);
        run.end(store, true);
        // A process with too much damage accepts nothing more; the next one does.
        let Some(store) = run.open() else { return };
        let mut new = ExpectedObjects::default();
        new.put(&store, 999, None, &["k", "v"]);
        new.flush(&store);
        let again = new.observe(&store, &mut run.scratch);
        if !new.errors.is_empty() || !again.lost.is_empty() || !again.wrong.is_empty() {
            run.wrong.push(format!("it does not take new things {:?} {again:?}", new.errors));
        }
        run.end(store, true);
    }));
    if ended.is_err() {
        run.wrong.push("panicked".to_string());
    }
    let Run { wrong, returned, reported, longest, late, .. } = run;
    let could = world.disk.log().iter().filter(|op| fault.strikes(op.kind)).count() as u64;
    let struck = world.disk.take_struck();
    world.crash(CrashMode::KeepAll);
    Outcome {
        wrong,
        struck,
        lost: lost.len(),
        returned: returned.len(),
        reported,
        longest,
        late,
        could,
    }
}

/// Strikes one operation after the other. Faults of reads strike one read in six, with other reads
/// for each kind; delays strike one operation in nine, unless all are requested.
fn strike_each(fault: DiskFault, name: &str, ssd_mib: u32, evicts: bool, body: Body) {
    let (mut injected, mut detected, mut lost, mut returned, mut late) = (0u64, 0u64, 0, 0, 0);
    let (mut worst, mut worst_lost) = (String::new(), 0);
    let mut longest = Duration::ZERO;
    let (step, first) = match fault {
        _ if all() => (1, 1),
        _ if fault.delays() => (9, 1 + fault as u64 % 9),
        _ if fault.strikes(FaultOp::Read) => (6, 1 + fault as u64 % 6),
        _ => (if evicts { 4 } else { 1 }, 1),
    };
    for nth in (first..OPERATIONS_MAX).step_by(step) {
        let o = run(fault, nth, ssd_mib, body);
        let place = format!(
            "fault={fault} nth={nth} plan={name} struck={:?}",
            o.struck.first().map(ToString::to_string)
        );
        assert!(o.wrong.is_empty(), "{place}\n{}", o.wrong.join("\n"));
        longest = longest.max(o.longest);
        if o.struck.is_empty() {
            assert!(
                !o.reported && o.returned == 0 && (evicts || o.lost == 0),
                "reported damage without a fault {place}"
            );
            if nth > o.could {
                break;
            }
            continue;
        }
        injected += 1;
        let seen = o.reported || (o.lost > 0 && !evicts);
        detected += u64::from(seen);
        // A lying device may lose acked objects; a failing one may not, except for those that an
        // open cannot read.
        let honest = fault.failure().is_some() || fault.delays();
        let unread = fault.strikes(FaultOp::Read) && !fault.delays();
        assert!(!honest || o.returned == 0, "{place} returned={}", o.returned);
        assert!(!honest || unread || evicts || o.lost == 0, "{place} lost={}", o.lost);
        if !evicts {
            lost += o.lost;
            if o.lost + o.returned > worst_lost {
                (worst, worst_lost) = (format!(" most by {}", o.struck[0]), o.lost + o.returned);
            }
        }
        returned += o.returned;
        late += o.late;
    }
    eprintln!(
        "plan={name} fault={fault}: injected={injected} detected={detected} harmless={} wrong=0 lost={lost} \
         returned={returned} longest_ms={} late={late}{worst}",
        injected - detected,
        longest.as_millis()
    );
    assert!(injected > 0, "fault={fault} strikes nothing");
}

/// With a whole life of a store, and with a log that wraps.
fn both(fault: DiskFault) {
    strike_each(fault, "live", 12, false, |run| run.live());
    strike_each(fault, "wrap", 7, true, |run| run.wrap());
}

#[test]
fn each_read_fails() {
    both(DiskFault::ReadError);
}

#[test]
fn each_read_is_short() {
    both(DiskFault::ShortRead);
}

#[test]
fn each_read_hits_bad_block() {
    both(DiskFault::BadBlock);
}

#[test]
fn each_read_is_misdirected() {
    both(DiskFault::MisdirectedRead);
}

#[test]
fn each_read_is_stale() {
    both(DiskFault::StaleRead);
}

#[test]
fn each_read_has_a_bit_flipped() {
    both(DiskFault::BitFlipRead);
}

#[test]
fn each_write_fails() {
    both(DiskFault::WriteError);
}

#[test]
fn each_write_is_short() {
    both(DiskFault::ShortWrite);
}

#[test]
fn each_write_is_lost() {
    both(DiskFault::LostWrite);
}

#[test]
fn each_write_is_torn() {
    both(DiskFault::TornWrite);
}

#[test]
fn each_write_is_misdirected() {
    both(DiskFault::MisdirectedWrite);
}

#[test]
fn each_write_lands_with_a_bit_flipped() {
    both(DiskFault::BitFlipAtRest);
}

#[test]
fn each_sync_fails() {
    both(DiskFault::SyncError);
}

#[test]
fn each_create_has_no_space() {
    strike_each(DiskFault::NoSpace, "live", 12, false, |run| run.live());
}

#[test]
fn each_operation_is_slow() {
    both(DiskFault::Slow);
}

#[test]
fn each_operation_is_stuck() {
    both(DiskFault::Stuck);
}

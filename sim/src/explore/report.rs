//! What runs came to, summed up.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What became of the faults of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCount {
    /// How often it struck.
    pub injected: u64,
    /// The store heard of it, or noticed.
    pub detected: u64,
    /// It changed nothing that anybody asked for.
    pub harmless: u64,
}

/// What is wrong with a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Which promise.
    pub kind: FindingKind,
    /// What was seen.
    pub text: String,
    /// The operation, by its place in the whole plan.
    pub at: usize,
}

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Bytes that were not put under that key, were replaced, removed or cleared; a part of a group.
    Wrong,
    /// What a flush covered is not there.
    SyncedLost,
    /// What was put is not there though nothing took it.
    Lost,
    /// A panic.
    Panic,
    /// A call that does not come back, or a store that takes nothing any more.
    Hang,
    /// Memory, permits or locks that did not come home.
    Leak,
    /// A call that came back too late.
    Late,
    /// Memory that changed after its operation had returned, or beside what was asked for.
    Memory,
    /// An error that nothing explains.
    Error,
}

/// The sums of runs. Adding is associative and commutative, so blocks of seeds may be done in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sums {
    /// Runs.
    pub seeds: u64,
    /// Operations done.
    pub ops: u64,
    /// Gets that brought bytes, each byte looked at.
    pub reads_checked: u64,
    /// Their bytes.
    pub bytes_checked: u64,
    /// Gets that missed.
    pub misses: u64,
    /// Objects stored.
    pub puts_stored: u64,
    /// Objects that were there already.
    pub puts_present: u64,
    /// Operations of the disk.
    pub disk_ops: u64,
    /// Reboots after which unsynced writes may be gone, or a process was killed.
    pub crashes: u64,
    /// Reboots after a close.
    pub clean_reboots: u64,
    /// Reboots after a process dropped its store.
    pub abandons: u64,
    /// Stores that a lying device made unreadable, and that said so when they were opened.
    pub refused_opens: u64,
    /// Objects that were removed or cleared, and came back after a device had lost what says so.
    pub returned: u64,
    /// Objects verified by scrubs.
    pub scrubbed: u64,
    /// Pinned objects that were gone because the store had to clear their namespace by itself.
    pub forgotten: u64,
    /// Objects that a later get of a store without room for doubt did find.
    pub durable_checked: u64,
    /// Wrong answers.
    pub wrong: u64,
    /// Objects that a flush covered and that were gone.
    pub synced_lost: u64,
    /// Objects that were there and were not found.
    pub lost: u64,
    /// Panics.
    pub panics: u64,
    /// Calls that did not come back.
    pub hangs: u64,
    /// Things that did not come home.
    pub leaks: u64,
    /// Everything else that was found.
    pub other_findings: u64,
    /// Segments reclaimed.
    pub reclaimed: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Longest recovery in simulated microseconds.
    pub worst_recovery_us: u64,
    /// The most by which a call was late, in simulated microseconds.
    pub longest_over_deadline_us: u64,
    /// Direct reads that came back late.
    pub late_direct: u64,
    /// By kind of fault.
    pub faults: BTreeMap<String, FaultCount>,
    /// How often each kind of fault struck during each kind of operation.
    pub fault_by_operation: BTreeMap<String, u64>,
    /// How often each operation was done.
    pub operations: BTreeMap<String, u64>,
    /// The traces of all runs, in whatever order.
    pub trace_hash: u64,
}

fn add_up<T: Copy + Default>(
    into: &mut BTreeMap<String, T>,
    from: &BTreeMap<String, T>,
    add: impl Fn(&mut T, T),
) {
    for (name, n) in from {
        add(into.entry(name.clone()).or_default(), *n);
    }
}

impl Sums {
    /// Take other runs in.
    pub fn add(&mut self, other: &Sums) {
        macro_rules! sum {
            ($($field:ident)*) => { $(self.$field += other.$field;)* };
        }
        sum!(seeds ops reads_checked bytes_checked misses puts_stored puts_present disk_ops crashes clean_reboots
            abandons refused_opens returned scrubbed forgotten durable_checked wrong synced_lost lost panics hangs leaks
            other_findings reclaimed checkpoints late_direct);
        self.worst_recovery_us = self.worst_recovery_us.max(other.worst_recovery_us);
        self.longest_over_deadline_us = self.longest_over_deadline_us.max(other.longest_over_deadline_us);
        add_up(&mut self.faults, &other.faults, |a, b| {
            a.injected += b.injected;
            a.detected += b.detected;
            a.harmless += b.harmless;
        });
        add_up(&mut self.fault_by_operation, &other.fault_by_operation, |a, b| *a += b);
        add_up(&mut self.operations, &other.operations, |a, b| *a += b);
        self.trace_hash = self.trace_hash.wrapping_add(other.trace_hash);
    }

    /// Count a finding.
    pub fn found(&mut self, kind: FindingKind) {
        let count = match kind {
            FindingKind::Wrong => &mut self.wrong,
            FindingKind::SyncedLost => &mut self.synced_lost,
            FindingKind::Lost => &mut self.lost,
            FindingKind::Panic => &mut self.panics,
            FindingKind::Hang => &mut self.hangs,
            FindingKind::Leak => &mut self.leaks,
            FindingKind::Late | FindingKind::Memory | FindingKind::Error => &mut self.other_findings,
        };
        *count += 1;
    }

    /// How much was found.
    pub fn findings(&self) -> u64 {
        let Sums { wrong, synced_lost, lost, panics, hangs, leaks, other_findings, .. } = self;
        wrong + synced_lost + lost + panics + hangs + leaks + other_findings
    }
}

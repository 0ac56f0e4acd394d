//! The results of runs, summed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The results of one kind of fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCount {
    /// How often it struck.
    pub injected: u64,
    /// The store got an error, or detected it.
    pub detected: u64,
    /// It changed nothing that a call requested.
    pub harmless: u64,
}

/// A violation found by a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The violated promise.
    pub kind: FindingKind,
    /// The observation.
    pub text: String,
    /// The index of the operation in the whole plan.
    pub at: usize,
}

/// Violated promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FindingKind {
    /// Bytes that were not put under that key, or were replaced, removed or cleared; a part of a
    /// group.
    Wrong,
    /// An object that a flush covered is missing.
    SyncedLost,
    /// An object that was put is missing, though nothing removed or evicted it.
    Lost,
    /// A panic.
    Panic,
    /// A call that does not return, or a store that accepts nothing any more.
    Hang,
    /// Memory, permits or locks that were not released.
    Leak,
    /// A call that returned too late.
    Late,
    /// Memory that changed after its operation had ended, or outside of the requested range.
    Memory,
    /// An unexplained error.
    Error,
}

/// Sums of runs. Addition is associative and commutative, so blocks of seeds may run in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTotals {
    /// Runs.
    pub seeds: u64,
    /// Operations executed.
    pub ops: u64,
    /// Gets that returned bytes; each byte was compared.
    pub reads_checked: u64,
    /// Their bytes.
    pub bytes_checked: u64,
    /// Gets that missed.
    pub misses: u64,
    /// Objects stored.
    pub puts_stored: u64,
    /// Objects that were already present.
    pub puts_present: u64,
    /// Operations of the disk.
    pub disk_ops: u64,
    /// Reboots after which unsynced writes may be gone, or a process was killed.
    pub crashes: u64,
    /// Reboots after a close.
    pub clean_reboots: u64,
    /// Reboots after a process dropped its store.
    pub abandons: u64,
    /// Stores that a lying device made unreadable, and that reported so at open.
    pub refused_opens: u64,
    /// Removed or cleared objects that came back after a device had lost the tombstone.
    pub returned: u64,
    /// Objects verified by scrubs.
    pub scrubbed: u64,
    /// Pinned objects that were gone because the store had to clear their namespace itself.
    pub forgotten: u64,
    /// Objects found by a lookup that had to find them.
    pub durable_checked: u64,
    /// Wrong answers.
    pub wrong: u64,
    /// Objects covered by a flush that were missing.
    pub synced_lost: u64,
    /// Objects that were present for certain and were not found.
    pub lost: u64,
    /// Panics.
    pub panics: u64,
    /// Calls that did not return.
    pub hangs: u64,
    /// Resources that were not released.
    pub leaks: u64,
    /// All other findings.
    pub other_findings: u64,
    /// Segments reclaimed.
    pub reclaimed: u64,
    /// Checkpoints written.
    pub checkpoints: u64,
    /// Longest recovery in simulated microseconds.
    pub worst_recovery_us: u64,
    /// The longest delay of a call past its deadline, in simulated microseconds.
    pub longest_over_deadline_us: u64,
    /// Direct reads that came back late.
    pub late_direct: u64,
    /// Results by kind of fault.
    pub faults: BTreeMap<String, FaultCount>,
    /// How often each kind of fault struck during each kind of operation.
    pub fault_by_operation: BTreeMap<String, u64>,
    /// How often each operation was executed.
    pub operations: BTreeMap<String, u64>,
    /// Combined trace hash of all runs, independent of their order.
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

impl RunTotals {
    /// Adds other runs.
    pub fn add(&mut self, other: &RunTotals) {
        macro_rules! sum {
            ($($field:ident)*) => { $(self.$field += other.$field;)* };
        }
        sum!(seeds ops reads_checked bytes_checked misses puts_stored puts_present disk_ops crashes clean_reboots
            abandons refused_opens returned scrubbed forgotten durable_checked wrong synced_lost lost panics hangs leaks
            other_findings reclaimed checkpoints late_direct);
        self.worst_recovery_us = self.worst_recovery_us.max(other.worst_recovery_us);
        self.longest_over_deadline_us =
            self.longest_over_deadline_us.max(other.longest_over_deadline_us);
        add_up(&mut self.faults, &other.faults, |a, b| {
            a.injected += b.injected;
            a.detected += b.detected;
            a.harmless += b.harmless;
        });
        add_up(&mut self.fault_by_operation, &other.fault_by_operation, |a, b| *a += b);
        add_up(&mut self.operations, &other.operations, |a, b| *a += b);
        self.trace_hash = self.trace_hash.wrapping_add(other.trace_hash);
    }

    /// Counts a finding.
    pub fn found(&mut self, kind: FindingKind) {
        let count = match kind {
            FindingKind::Wrong => &mut self.wrong,
            FindingKind::SyncedLost => &mut self.synced_lost,
            FindingKind::Lost => &mut self.lost,
            FindingKind::Panic => &mut self.panics,
            FindingKind::Hang => &mut self.hangs,
            FindingKind::Leak => &mut self.leaks,
            FindingKind::Late | FindingKind::Memory | FindingKind::Error => {
                &mut self.other_findings
            }
        };
        *count += 1;
    }

    /// Number of findings.
    pub fn findings(&self) -> u64 {
        let RunTotals { wrong, synced_lost, lost, panics, hangs, leaks, other_findings, .. } = self;
        wrong + synced_lost + lost + panics + hangs + leaks + other_findings
    }
}

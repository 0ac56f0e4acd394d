//! A disk in memory that can lose power. The model is FoundationDB's power cut (each sector is
//! kept, lost or garbage; see FAULTS, section 1), under the contract of [`pagelith_io::disk`].
//!
//! Invariants:
//! - Data covered by a sync survives every [`CrashMode`]. A sync covers exactly the writes to its
//!   file whose completions had been returned before the sync was submitted.
//! - Create and remove are durable when they return; a file's length never changes.
//! - A process (an incarnation of a store) stays dead once killed, crashed or stopped: its
//!   operations end with [`FaultKind::Device`](pagelith_io::fault::FaultKind::Device) and change
//!   nothing.
//! - A run depends only on the seeds and the calls made: no wall clock, no address, no hash order.

mod control;
mod crash;
mod crash_hooks;
mod execute;
mod fault_injector;
mod fault_rates;
mod file;
mod ignored_syncs;
mod image;
mod plan;
mod process;
mod snapshot;
mod state;
mod table;
mod transfer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagelith_io::fault::FaultOp;

pub use crash::CrashMode;
pub use fault_rates::{DiskFault, FaultRates, FileOffset, StrikeRecord};
pub use plan::{FaultPlan, LoggedOp};
pub use process::SimProcess;
use process::lock;
pub use snapshot::DiskSnapshot;
use state::{Hold, State};

use crate::clock::SimClock;
use crate::entropy::SplitMix64;

/// The simulated machine's disk, from the test's side. Clones share the disk. It outlives the
/// processes that crash on it.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

impl SimDisk {
    /// An empty disk with `dirs` directories. `seed` decides the random outcomes outside of
    /// crashes: how much of a failed write was written, and whether operations of a dropped queue
    /// executed.
    pub fn new(clock: SimClock, dirs: usize, seed: u64) -> SimDisk {
        SimDisk(Arc::new(Mutex::new(State::new(clock, dirs, seed))))
    }

    /// A new process on the machine. Several may live at once; files are locked between them.
    pub fn connect(&self) -> Arc<SimProcess> {
        Arc::new(SimProcess::new(self.0.clone()))
    }

    /// Kills every process and applies `mode` to the files. Releases locks, held completions and
    /// the stop point; injected faults that have not struck yet stay.
    pub fn crash(&self, mode: CrashMode, seed: u64) {
        lock(&self.0).crash(mode, seed);
    }

    /// Allows `n` more changes, counted over all queues and processes in execution order. Changes
    /// are writes and syncs that reached the device (failed by an injected fault or not), and
    /// creates and removes that took effect or were failed by an injected fault. After the `n`-th
    /// change every operation, reads included, ends with a `Device` fault, until a crash or a
    /// restore. The completion of the `n`-th change itself is still delivered. `stop_after(0)`
    /// stops at once.
    pub fn stop_after(&self, n: u64) {
        let mut state = lock(&self.0);
        state.stop_at = Some(state.changes.saturating_add(n));
    }

    /// Whether the stop point is reached.
    pub fn stopped(&self) -> bool {
        lock(&self.0).stopped()
    }

    /// Changes executed since the disk was made, counted like [`SimDisk::stop_after`].
    pub fn ops_done(&self) -> u64 {
        lock(&self.0).changes
    }

    /// The last 65,536 executed operations, oldest first, since the disk was made or restored.
    pub fn log(&self) -> Vec<LoggedOp> {
        lock(&self.0).log.iter().cloned().collect()
    }

    /// The last `n` executed operations, one per line, for a failure message.
    pub fn log_tail(&self, n: usize) -> String {
        let state = lock(&self.0);
        let skip = state.log.len().saturating_sub(n);
        state.log.iter().skip(skip).map(|op| format!("{op}\n")).collect()
    }

    /// From now on operations complete out of order, decided by `seed`. Each takes half to one and
    /// a half times the latency; operations due together execute and are delivered in random order.
    pub fn shuffle(&self, seed: u64) {
        lock(&self.0).order = Some(SplitMix64::new(seed));
    }

    /// Simulated time from submission to execution of later operations; 100 us at first.
    pub fn set_latency(&self, latency: Duration) {
        lock(&self.0).latency = latency;
    }

    /// From now on holds back the completions of reads, writes or syncs on files named `name` (all
    /// files if `None`): the operations execute, but stay in flight. Several holds add up.
    pub fn hold(&self, op: FaultOp, name: Option<&str>) {
        lock(&self.0).holds.push(Hold { op, name: name.map(str::to_string) });
    }

    /// Ends every hold; the next poll or wait delivers the held completions.
    pub fn release(&self) {
        lock(&self.0).holds.clear();
    }

    /// Operations that executed and whose completions a hold keeps back.
    pub fn held(&self) -> usize {
        let state = lock(&self.0);
        state.in_flight.iter().filter(|e| e.outcome.is_some() && state.held(e)).count()
    }

    /// Injects a fault.
    ///
    /// # Panics
    /// If it names a file that does not exist or an offset beyond its end: then the test is wrong.
    pub fn inject(&self, plan: FaultPlan) {
        let mut state = lock(&self.0);
        match plan {
            FaultPlan::Fail { op, nth, kind } => state.pending.add(op, nth, kind),
            FaultPlan::Capacity { bytes } => state.capacity = bytes,
            FaultPlan::Strike { fault, nth } => {
                state.strikes.schedule(fault, nth);
                state.track_previous();
            }
            FaultPlan::Unlink { dir, name } => {
                let found = state.files.find(dir, &name).and_then(|no| state.files.get_mut(no));
                found
                    .unwrap_or_else(|| panic!("unlink of a missing file file=sim{dir}/{name}"))
                    .unlinked = true;
            }
            FaultPlan::FlipBit { dir, name, offset, bit } => {
                assert!(bit < 8, "a byte has eight bits bit={bit}");
                damage(&mut state, (dir, name), offset, 1, |_, byte| byte ^ (1 << bit));
            }
            FaultPlan::Overwrite { dir, name, offset, bytes } => {
                damage(&mut state, (dir, name), offset, bytes.len(), |i, _| bytes[i]);
            }
        }
    }

    /// Sets the rates at which faults strike, in place of earlier rates. They survive crashes, as
    /// those of a sick device do, and end with [`SimDisk::clear_faults`] or a restore. If reads may
    /// be stale, previous block contents are recorded from now on.
    pub fn set_faults(&self, rates: FaultRates) {
        let mut state = lock(&self.0);
        state.strikes.set(rates);
        state.track_previous();
    }

    /// Ends random faults, and [`FaultPlan::Strike`]s that have not struck. Bad blocks stay bad,
    /// and stuck operations stay stuck.
    pub fn clear_faults(&self) {
        let mut state = lock(&self.0);
        state.strikes.disarm();
        state.track_previous();
    }

    /// Every fault that struck through [`SimDisk::set_faults`] or [`FaultPlan::Strike`], oldest
    /// first, since the disk was made or restored or [`SimDisk::take_struck`] was called.
    pub fn struck(&self) -> Vec<StrikeRecord> {
        lock(&self.0).strikes.struck().to_vec()
    }

    /// Returns them and empties the list.
    pub fn take_struck(&self) -> Vec<StrikeRecord> {
        lock(&self.0).strikes.take()
    }

    /// A hash of every operation ever executed on this disk, with its simulated time and outcome:
    /// two runs with equal hashes did the same.
    pub fn trace_hash(&self) -> u64 {
        lock(&self.0).trace
    }

    /// Copies the files with their durable and unsynced state, the change counter and the random
    /// state. Leaves out processes, operations in flight (as if they never executed), holds,
    /// planned faults and the log.
    pub fn snapshot(&self) -> DiskSnapshot {
        lock(&self.0).snapshot()
    }

    /// Restores a copy of this disk or of another. Every process dies as by `kill -9`, without any
    /// of its operations in flight; holds, planned faults, the stop point and the log are cleared.
    pub fn restore(&self, from: &DiskSnapshot) {
        lock(&self.0).restore(from);
    }

    /// Names of the files in a directory, sorted.
    pub fn names(&self, dir: usize) -> Vec<String> {
        lock(&self.0).files.list(dir).into_iter().map(|(name, _)| name).collect()
    }

    /// The bytes that a read would see now, ignoring locks; `None` if the file or range does not
    /// exist.
    pub fn peek(&self, dir: usize, name: &str, offset: u64, len: usize) -> Option<Vec<u8>> {
        let state = lock(&self.0);
        let file = &state.files.get(state.files.find(dir, name)?)?.file;
        offset.checked_add(len as u64).filter(|end| *end <= file.len)?;
        let mut out = vec![0; len];
        file.read(offset, &mut out);
        Some(out)
    }

    /// 512-byte sectors that a power cut could lose now, over all files: a sector written twice
    /// counts twice.
    pub fn unsynced_sectors(&self) -> usize {
        lock(&self.0).files.iter().map(|(_, f)| f.file.unsynced_sectors()).sum()
    }
}

impl fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = lock(&self.0);
        write!(f, "SimDisk(files={}, ops_done={})", state.files.iter().count(), state.changes)
    }
}

fn damage(
    state: &mut State,
    (dir, name): (usize, String),
    offset: u64,
    len: usize,
    change: impl Fn(usize, u8) -> u8,
) {
    let found = state.files.find(dir, &name).and_then(|no| state.files.get_mut(no));
    let named = found.unwrap_or_else(|| panic!("damage to a missing file file=sim{dir}/{name}"));
    let end = offset.checked_add(len as u64);
    assert!(
        end.is_some_and(|end| end <= named.file.len),
        "damage beyond the end of file={} offset={offset} len={len}",
        named.path
    );
    named.file.damage(offset, len, change);
}

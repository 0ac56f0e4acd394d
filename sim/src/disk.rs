//! A disk in memory that can lose power. The model is FoundationDB's power cut (per sector kept, lost or
//! garbage; see FAULTS, section 1), behind the contract of [`pagelith_io::disk`].
//!
//! Invariants:
//! - What a sync covered survives every [`CrashMode`]: the writes to its file whose completions had been
//!   returned before it was submitted, and no others.
//! - Create and remove are durable when they return; a file's length never changes.
//! - A process (an incarnation of a store) is dead for ever once killed, crashed or stopped: its operations
//!   end with [`FaultKind::Device`](pagelith_io::fault::FaultKind::Device) and change nothing.
//! - Nothing depends on anything but the seeds and the calls made: no wall clock, no address, no hash order.

mod control;
mod crash;
mod execute;
mod file;
mod image;
mod lie;
mod plan;
mod process;
mod rates;
mod state;
mod strike;
mod table;
mod transfer;

#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use pagelith_io::fault::FaultOp;

pub use crash::{CrashMode, DiskSnapshot};
pub use plan::{FaultPlan, LoggedOp};
pub use process::SimProcess;
use process::lock;
pub use rates::{DiskFault, FaultRates, Place, Struck};
use state::{Hold, State};

use crate::clock::SimClock;
use crate::entropy::SplitMix64;

/// The simulated machine's disk, as the test sees it. Clones share the disk, and it outlives the processes
/// that crash on it.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<State>>);

impl SimDisk {
    /// An empty disk of `dirs` directories. `seed` decides what is left to chance outside of crashes: how
    /// much a failed write wrote, and whether operations of a dropped queue happened.
    pub fn new(clock: SimClock, dirs: usize, seed: u64) -> SimDisk {
        SimDisk(Arc::new(Mutex::new(State::new(clock, dirs, seed))))
    }

    /// A new process on the machine. Several may live at once; files lock one out from the other.
    pub fn connect(&self) -> Arc<SimProcess> {
        Arc::new(SimProcess::new(self.0.clone()))
    }

    /// Kill every process and do to the files what `mode` says. Locks are released, held completions and the
    /// stop point are gone; injected faults that have not struck yet stay.
    pub fn crash(&self, mode: CrashMode, seed: u64) {
        lock(&self.0).crash(mode, seed);
    }

    /// Let `n` more changes happen, counted over all queues and processes in the order of their execution:
    /// writes and syncs that reached the device (failed by an injected fault or not), creates and removes
    /// that took effect or were failed by an injected fault. Afterwards nothing happens any more: every
    /// operation, reads too, ends with a `Device` fault, until a crash or a restore. The completion of the
    /// `n`-th change itself is still delivered. `stop_after(0)` stops at once.
    pub fn stop_after(&self, n: u64) {
        let mut state = lock(&self.0);
        state.stop_at = Some(state.changes.saturating_add(n));
    }

    /// Whether the stop point is reached.
    pub fn stopped(&self) -> bool {
        lock(&self.0).stopped()
    }

    /// Changes executed since the disk was made, as [`SimDisk::stop_after`] counts them.
    pub fn ops_done(&self) -> u64 {
        lock(&self.0).changes
    }

    /// The last 65,536 executed operations, oldest first, since the disk was made or restored.
    pub fn log(&self) -> Vec<LoggedOp> {
        lock(&self.0).log.iter().cloned().collect()
    }

    /// The last `n` executed operations, one a line, for a failure's message.
    pub fn log_tail(&self, n: usize) -> String {
        let state = lock(&self.0);
        let skip = state.log.len().saturating_sub(n);
        state.log.iter().skip(skip).map(|op| format!("{op}\n")).collect()
    }

    /// From now on operations overtake one another, by `seed`: each takes half to one and a half times the
    /// latency, and those due together execute and are delivered in random order.
    pub fn shuffle(&self, seed: u64) {
        lock(&self.0).order = Some(SplitMix64::new(seed));
    }

    /// Simulated time from submission to execution of operations submitted from now on; 100 us at first.
    pub fn set_latency(&self, latency: Duration) {
        lock(&self.0).latency = latency;
    }

    /// From now on keep back the completions of reads, writes or syncs on files called `name` (all files if
    /// `None`): the operations execute, but stay in flight. Several holds add up.
    pub fn hold(&self, op: FaultOp, name: Option<&str>) {
        lock(&self.0).holds.push(Hold { op, name: name.map(str::to_string) });
    }

    /// End every hold; the next poll or wait delivers what was kept back.
    pub fn release(&self) {
        lock(&self.0).holds.clear();
    }

    /// Operations that executed and are kept back by a hold.
    pub fn held(&self) -> usize {
        let state = lock(&self.0);
        state.in_flight.iter().filter(|e| e.outcome.is_some() && state.held(e)).count()
    }

    /// Order a fault.
    ///
    /// # Panics
    /// If it names a file that does not exist or a place beyond its end: then the test is wrong.
    pub fn inject(&self, plan: FaultPlan) {
        let mut state = lock(&self.0);
        match plan {
            FaultPlan::Fail { op, nth, kind } => state.pending.add(op, nth, kind),
            FaultPlan::Capacity { bytes } => state.capacity = bytes,
            FaultPlan::Strike { fault, nth } => {
                state.strikes.order(fault, nth);
                state.remember();
            }
            FaultPlan::Unlink { dir, name } => {
                let found = state.files.find(dir, &name).and_then(|no| state.files.get_mut(no));
                found.unwrap_or_else(|| panic!("no such file file=sim{dir}/{name}")).unlinked = true;
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

    /// From now on faults strike at these rates, in place of those set before. They stay through crashes, as those
    /// of a sick device do, and end with [`SimDisk::clear_faults`] or a restore. What places held before their last
    /// write is remembered from here on, if reads may be stale.
    pub fn set_faults(&self, rates: FaultRates) {
        let mut state = lock(&self.0);
        state.strikes.set(rates);
        state.remember();
    }

    /// End faults by chance, and [`FaultPlan::Strike`]s that have not struck. Bad blocks stay bad, and what is stuck
    /// stays stuck.
    pub fn clear_faults(&self) {
        let mut state = lock(&self.0);
        state.strikes.disarm();
        state.remember();
    }

    /// Every fault that struck by [`SimDisk::set_faults`] or [`FaultPlan::Strike`], oldest first, since the disk was
    /// made, restored, or [`SimDisk::take_struck`] was called.
    pub fn struck(&self) -> Vec<Struck> {
        lock(&self.0).strikes.struck().to_vec()
    }

    /// Take them.
    pub fn take_struck(&self) -> Vec<Struck> {
        lock(&self.0).strikes.take()
    }

    /// A hash of every operation that was ever executed on this disk, with its simulated time and what became of
    /// it: two runs with the same hash did the same. Costs nothing to ask for.
    pub fn trace_hash(&self) -> u64 {
        lock(&self.0).trace
    }

    /// Copy the files with their durable and unsynced state, the counter and the random state; not the
    /// processes, nor operations in flight (as if they never executed), holds, ordered faults or the log.
    pub fn snapshot(&self) -> DiskSnapshot {
        lock(&self.0).snapshot()
    }

    /// Put a copy back, of this disk or another. Every process dies as by `kill -9`, with none of its
    /// operations in flight left; holds, ordered faults, the stop point and the log are cleared.
    pub fn restore(&self, from: &DiskSnapshot) {
        lock(&self.0).restore(from);
    }

    /// Names of the files in a directory, sorted.
    pub fn names(&self, dir: usize) -> Vec<String> {
        lock(&self.0).files.list(dir).into_iter().map(|(name, _)| name).collect()
    }

    /// The bytes a read would see now, whoever holds the file; `None` if there is no such file or place.
    pub fn peek(&self, dir: usize, name: &str, offset: u64, len: usize) -> Option<Vec<u8>> {
        let state = lock(&self.0);
        let file = &state.files.get(state.files.find(dir, name)?)?.file;
        offset.checked_add(len as u64).filter(|end| *end <= file.len)?;
        let mut out = vec![0; len];
        file.read(offset, &mut out);
        Some(out)
    }

    /// 512-byte sectors at risk in a power cut now, over all files: a sector written twice counts twice.
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
    let named = found.unwrap_or_else(|| panic!("damage to a file that does not exist file=sim{dir}/{name}"));
    let end = offset.checked_add(len as u64);
    assert!(
        end.is_some_and(|end| end <= named.file.len),
        "damage beyond the end of a file file={} offset={offset} len={len}",
        named.path
    );
    named.file.damage(offset, len, change);
}

//! Crashes of processes and of the whole machine, and copies of the machine's disk.

use super::file::SimFile;
use super::ignored_syncs::IgnoredSyncs;
use super::snapshot::DiskSnapshot;
use super::state::{InFlight, State};
use super::transfer::dead;
use crate::entropy::SplitMix64;
use pagelith_io::disk::Op;

/// What a crash does to writes that no sync has covered. First, each write in flight of a process
/// that was not stopped executes or not, decided by the crash's seed, as io_uring's do when their
/// process is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashMode {
    /// `kill -9`: the machine keeps running, so executed writes are not lost yet. They stay
    /// unsynced: a power cut before the next process's sync may still lose them.
    KeepAll,
    /// Power cut that loses every unsynced write.
    DropAll,
    /// Power cut in which each unsynced 512-byte sector is kept, lost or (rarely) garbage, decided
    /// by the seed. A quarter of the writes is kept whole and a quarter lost whole. The order of
    /// writes does not matter, but if two writes to one sector are both kept, the later one wins.
    Random,
}

impl State {
    /// Kills every process, then applies `mode` to the disk.
    pub(crate) fn crash(&mut self, mode: CrashMode, seed: u64) {
        let mut rng = SplitMix64::new(seed);
        self.kill_all(&mut rng);
        match mode {
            CrashMode::KeepAll => {}
            CrashMode::DropAll => self.files.files_mut().for_each(SimFile::drop_unsynced),
            CrashMode::Random => self.files.files_mut().for_each(|f| f.tear_unsynced(&mut rng)),
        }
    }

    fn kill_all(&mut self, rng: &mut SplitMix64) {
        for process in self.alive.clone() {
            self.kill(process, rng);
        }
        self.stop_at = None;
        self.holds.clear();
        self.ignored_syncs = IgnoredSyncs::default();
    }

    /// Kills a process: each write in flight executes or not, decided by `rng`; all operations end
    /// as faults.
    pub(crate) fn kill(&mut self, process: u64, rng: &mut SplitMix64) {
        let own = |e: &InFlight| e.process == process;
        let ids: Vec<u64> = self.in_flight.iter().filter(|e| own(e)).map(|e| e.submitted).collect();
        for id in ids {
            let writes = self.in_flight_of(id).is_some_and(|e| matches!(e.op, Op::Write { .. }));
            if writes && rng.one_in(2) {
                self.execute(id);
            }
            if let Some(entry) = self.in_flight_of(id) {
                entry.outcome = Some(Err(dead(&entry.op)));
                // Returning the dead operation must not touch the write's record, which now belongs
                // to the next process.
                entry.wrote = None;
            }
        }
        self.remove_process(process);
    }

    /// Removes a process: its locks are released, and its writes wait for the next process's sync.
    pub(crate) fn remove_process(&mut self, process: u64) {
        self.alive.remove(&process);
        for open in self.open.values().filter(|o| o.process == process) {
            if let Some(named) = self.files.get_mut(open.file) {
                named.file.orphan();
            }
        }
        self.open.retain(|_, o| o.process != process);
    }

    /// Copies the disk without operations in flight.
    pub(crate) fn snapshot(&self) -> DiskSnapshot {
        DiskSnapshot {
            files: self.files.clone(),
            moment: self.moment,
            changes: self.changes,
            capacity: self.capacity,
            rng: self.rng.clone(),
        }
    }

    /// Restores a copy; kills every process.
    pub(crate) fn restore(&mut self, from: &DiskSnapshot) {
        self.kill_all(&mut SplitMix64::new(0));
        self.files = from.files.clone();
        // The writers of these files are dead now, even if they were alive when the copy was made.
        self.files.files_mut().for_each(SimFile::orphan);
        self.moment = self.moment.max(from.moment);
        self.changes = from.changes;
        self.capacity = from.capacity;
        self.rng = from.rng.clone();
        self.pending = Default::default();
        self.strikes.clear();
        self.track_previous();
        self.log.clear();
    }
}

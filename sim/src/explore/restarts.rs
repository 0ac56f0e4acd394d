//! Restarts of the store process, and checks at quiet moments and at the end of a run.

use std::rc::Rc;
use std::time::Duration;

use pagelith::{ErrorKind, Options, PutOutcome, PutSlice, Stats, Store};
use pagelith_io::clock::Clock;

use super::event_mirror::EventMirror;
use super::objects::{self, Content, NAMESPACES, ObjectId, key};
use super::report::FindingKind;
use super::run::Run;
use crate::disk::CrashMode;
use crate::entropy::SplitMix64;

/// Attempts to open a store on a failing device; after them faults are disabled.
const OPENINGS: u32 = 4;
/// Time for the background task to become idle.
const REST: Duration = Duration::from_secs(2);

/// How often a store whose index is full of cleared objects may refuse the same object: it seals
/// the open segment and reclaims segments, the last of which may have waited for its turn.
const ROUNDS_TO_MAKE_ROOM: usize = 4;

impl Run<'_> {
    /// Enables the plan's device faults.
    fn arm(&mut self) {
        if !self.plan.faults.is_empty() {
            self.rounds += 1;
            self.world.disk.set_faults(self.plan.faults.rates(self.rounds));
        }
    }

    fn disarm(&mut self) {
        self.take_strikes();
        if !self.plan.faults.is_empty() {
            self.world.disk.clear_faults();
        }
    }

    /// Opens the store, with or without faults.
    pub(super) fn open(&mut self) {
        let during = self.rng.one_in(2);
        if during {
            self.arm();
        } else {
            self.disarm();
        }
        let before = self.take_count();
        self.misled = false;
        for attempt in 0..OPENINGS * 2 {
            if attempt == OPENINGS {
                self.disarm();
            }
            let config = self.plan.setup.config();
            match Store::open_in(config, self.world.env()) {
                Ok(store) => {
                    let whole = self.take_count() == before;
                    if self.misled {
                        self.oracle.opened_with_wrong_bytes();
                    }
                    self.opened(Rc::new(store), whole);
                    if !during || attempt >= OPENINGS {
                        self.arm();
                    }
                    return;
                }
                Err(error) => {
                    self.take_strikes();
                    self.trace(|| format!("  open failed {error}"));
                    let refused =
                        matches!(error.kind, ErrorKind::Damaged | ErrorKind::Incompatible);
                    if self.world.disk.stopped() {
                        return;
                    }
                    if error.kind == ErrorKind::Denied && self.plan.faults.delays() {
                        // A stuck operation keeps its files locked until it ends.
                        self.world.runtime.run_for(self.plan.faults.stuck_for());
                        continue;
                    }
                    if error.kind == ErrorKind::Denied {
                        return self.report(
                            FindingKind::Leak,
                            format!("file lock was not released error={error}"),
                        );
                    }
                    if refused && self.oracle.is_flush_unreliable() {
                        self.sums.refused_opens += 1;
                        self.ledger.detected(1);
                        self.disarm();
                        self.remove_all_files();
                    } else if !self.struck {
                        return self.report(
                            FindingKind::Error,
                            format!("store does not open error={error}"),
                        );
                    }
                }
            }
        }
        self.report(FindingKind::Error, "store does not open after faults were disabled");
    }

    fn take_count(&mut self) -> u64 {
        self.take_strikes();
        self.ledger.injected()
    }

    /// The operator recreates the store; the machine does not crash meanwhile.
    fn remove_all_files(&mut self) {
        self.oracle.wiped();
        self.world.disk.stop_after(u64::MAX);
        let process = self.world.disk.connect();
        use pagelith_io::disk::Disk;
        for dir in 0..self.plan.setup.dirs {
            for name in self.world.disk.names(dir) {
                let removed = process.remove(dir, &name);
                removed.expect("a file without a lock");
            }
        }
    }

    fn opened(&mut self, store: Rc<Store>, whole: bool) {
        let report = store.opened().clone();
        self.sums.worst_recovery_us =
            self.sums.worst_recovery_us.max(report.recovery.as_micros() as u64);
        self.trace(|| format!("  opened {report:?}"));
        let noticed =
            report.torn_records + u64::from(report.mended_blocks + report.refused_checkpoints);
        self.ledger.detected(noticed);
        // A checkpoint chunk that a fault hit in any process may stay on disk until a checkpoint
        // replaces it.
        if report.refused_checkpoints > 0 && self.ledger.injected() == 0 {
            self.report(FindingKind::Error, "checkpoint has a head and is incomplete");
        }
        self.fold_hash(report.objects);
        self.store = Some(store.clone());
        self.event_mirror = EventMirror::default();
        for _ in 0..self.plan.setup.sessions {
            self.add_session();
        }
        self.oracle.rebooted(whole);
        if std::mem::take(&mut self.sync_failed) {
            self.oracle.began_after_failed_sync();
            self.sync_unproven = true;
        }
        // Damage from a lying write lasts, and so does a bad block; other faults ended with the
        // last process.
        self.struck = self.oracle.is_flush_unreliable() || self.sync_unproven || !whole;
        self.lateness_excused = !whole;
        if report.made {
            return;
        }
        let all: Vec<ObjectId> = objects::all().collect();
        self.check_exists(&store, &all);
        self.oracle.pins_expired();
        for _ in 0..3 {
            self.get_page();
        }
        self.get_some();
    }

    /// Drops everything that a process holds of its store; returns its counters.
    pub(super) fn drop_process(&mut self) -> Option<Stats> {
        let flights = std::mem::take(&mut self.flights);
        self.drop_outcomes(flights);
        self.views.clear();
        self.pins.clear();
        self.groups.clear();
        self.sessions.clear();
        let stats = self.store.as_ref().map(|store| store.stats())?;
        self.sums.reclaimed += stats.segments_reclaimed;
        self.sums.checkpoints += stats.checkpoints;
        self.sums.late_direct += stats.late_direct;
        if stats.segments_quarantined > 0
            || stats.ssd_state_changes > 1
            || stats.namespaces_forgotten > 0
        {
            // A self-cleared namespace, a quarantine, or a disabled tier drops more than was read,
            // and a checkpoint makes that durable.
            self.oracle.may_all_be_dropped();
        }
        Some(stats)
    }

    fn take_store(&mut self) -> Option<Store> {
        self.store.take().and_then(Rc::into_inner)
    }

    pub(super) fn crash(&mut self) {
        let mode =
            [CrashMode::KeepAll, CrashMode::DropAll, CrashMode::Random][self.rng.below(3) as usize];
        self.crash_machine(mode);
        self.open();
        if self.store.is_none() && self.findings.is_empty() {
            // The disk stopped while the store was opened.
            self.crash_machine(mode);
            self.open();
        }
    }

    pub(super) fn crash_twice(&mut self) {
        self.crash_machine(CrashMode::Random);
        let n = self.rng.below(20);
        self.world.disk.stop_after(n);
        self.open();
        self.crash_machine(CrashMode::Random);
        self.open();
    }

    fn crash_machine(&mut self, mode: CrashMode) {
        self.trace(|| format!("  crash {mode:?}"));
        self.sums.crashes += 1;
        // The disk first: later drops find their process dead.
        self.world.crash(mode);
        self.dying = 0;
        self.oracle.machine_crashed();
        self.drop_process();
        self.store = None;
        self.take_strikes();
        self.sync_failed = false;
    }

    pub(super) fn abandon(&mut self) {
        self.drop_process();
        self.oracle.pins_dropped();
        if let Some(store) = self.take_store() {
            store.abandon();
        }
        self.sums.abandons += 1;
        self.take_strikes();
        self.open();
    }

    pub(super) fn close(&mut self) {
        if self.rng.one_in(2) {
            self.drain();
        }
        let stats = self.drop_process();
        self.oracle.pins_dropped();
        // Also covers objects put before the last flush: see `drop_process`.
        let dropped = stats.is_some_and(|s| s.segments_quarantined > 0 || s.ssd_state_changes > 1);
        let start = self.oracle.tick();
        if let Some(store) = self.take_store() {
            let begun = self.world.clock.now();
            let outcome = store.close();
            let took = self.world.clock.now().since(begun);
            self.take_strikes();
            self.trace(|| format!("  close {outcome:?}"));
            match outcome {
                Ok(report) if !dropped => self.flushed(start, report.lost_objects),
                Ok(_) => {}
                Err(error) => self.check_error("close", &error),
            }
            if self.struck {
                // It may have quarantined a segment until its end, and its checkpoint records that.
                self.oracle.may_all_be_dropped();
            }
            let deadline = self.plan.setup.deadline();
            // Close has the same deadline; the background tasks need a moment each to end.
            self.check_time("close", took, deadline * 3);
        }
        self.sums.clean_reboots += 1;
        self.open();
    }

    /// Checks the invariants that hold when nothing is in flight.
    pub(super) fn audit(&mut self) {
        self.drain();
        let Some(store) = self.store.clone() else { return };
        let stats = store.stats();
        let arena = self.plan.setup.config().arena_bytes();
        if stats.dram_bytes > arena || stats.dram_peak_bytes > arena {
            self.report(FindingKind::Leak, format!("DRAM use exceeds the arena {stats:?}"));
        }
        if self.plan.setup.roomy && stats.segments_reclaimed > 0 {
            self.report(FindingKind::Error, "roomy store reclaimed segments");
        }
        let absent = stats.misses.get("absent").copied().unwrap_or(0);
        if stats.absent.values().sum::<u64>() != absent {
            self.report(FindingKind::Error, format!("absences have no or two causes {stats:?}"));
        }
        if !self.memory.check_all() {
            self.report(FindingKind::Memory, "memory changed after get had ended");
        }
    }

    /// The end of a run: faults are disabled, every object is read once more, everything is
    /// cleared, and the store must still accept and return objects.
    pub(super) fn epilogue(&mut self) {
        self.rng = SplitMix64::new(self.plan.seed ^ 0xe1d);
        if self.world.disk.stopped() || self.store.is_none() || self.dying > 0 {
            self.crash();
        }
        self.disarm();
        if self.plan.faults.delays() {
            // Stuck operations hold memory and files until they end. No session polls gets in
            // flight that long.
            self.lateness_excused |= !self.flights.is_empty();
            self.world.runtime.run_for(self.plan.faults.stuck_for());
        }
        self.audit();
        while !self.pins.is_empty() {
            self.unpin();
        }
        self.views.clear();
        let Some(store) = self.store.clone() else { return };
        let all: Vec<ObjectId> = objects::all().collect();
        self.check_exists(&store, &all);
        let (before, answered) = (gets_counted(&store), self.gets_answered);
        for page in 0..objects::PAGES {
            if !self.findings.is_empty() {
                return;
            }
            self.get_all_of(page);
        }
        self.drain();
        let (counted, ended) = (gets_counted(&store) - before, self.gets_answered - answered);
        if counted != ended {
            let detail = format!("gets ended={ended} hits and misses counted={counted}");
            self.report(FindingKind::Error, detail);
        }
        for ns in 0..NAMESPACES {
            self.clear_one(ns, None);
        }
        self.world.runtime.run_for(REST);
        let stats = store.stats();
        if stats.dram_bytes > 0 || stats.dram_objects > 0 || stats.groups_waiting > 0 {
            self.report(
                FindingKind::Leak,
                format!("memory in use after all namespaces were cleared {stats:?}"),
            );
        }
        drop(store);
        self.check_usable();
    }

    /// The store accepts new objects, keeps them, and returns them after a close.
    fn check_usable(&mut self) {
        let Some(store) = self.store.clone() else { return };
        let changes = store.stats().ssd_state_changes;
        let well = store.stats().ssd_state == "on" || self.plan.setup.ssd_mib == 0;
        let oids: Vec<ObjectId> = objects::oids(0, &[0, 1, 2]);
        self.no += 1;
        let no = self.no;
        self.oracle.tick();
        oids.iter().for_each(|oid| self.oracle.put_begun(*oid, no, objects::length(*oid)));
        let bytes: Vec<Vec<u8>> = oids
            .iter()
            .map(|oid| {
                let mut bytes = vec![0; objects::length(*oid)];
                Content::of(*oid, no).fill(&mut bytes);
                bytes
            })
            .collect();
        let pieces: Vec<[&[u8]; 1]> = bytes.iter().map(|b| [&b[..]]).collect();
        let slices: Vec<_> = oids
            .iter()
            .zip(&pieces)
            .map(|(oid, p)| PutSlice { key: key(*oid), pieces: p })
            .collect();
        let mut outcomes = store.put_batch(&slices, Options::default());
        let refused = outcomes.iter().any(|o| matches!(o, Ok(PutOutcome::Refused)));
        for (slice, outcome) in slices.iter().zip(&mut outcomes) {
            for _ in 0..ROUNDS_TO_MAKE_ROOM {
                if !matches!(outcome, Ok(PutOutcome::Refused)) {
                    break;
                }
                self.world.runtime.run_for(REST);
                *outcome =
                    store.put_batch(std::slice::from_ref(slice), Options::default()).remove(0);
            }
        }
        self.oracle.tick();
        for (oid, outcome) in oids.iter().zip(&outcomes) {
            match outcome {
                Ok(PutOutcome::Stored) => self.oracle.put_stored(*oid, no),
                // The index may be full of cleared objects, in segments that device faults keep
                // from being reclaimed.
                Ok(PutOutcome::Refused) if !self.plan.faults.is_empty() => return,
                outcome => {
                    let text = format!(
                        "empty store refuses put oid={oid} {outcome:?} {:?}",
                        store.stats()
                    );
                    self.report(FindingKind::Hang, text);
                }
            }
        }
        let keys: Vec<_> = oids.iter().map(|oid| key(*oid)).collect();
        let present = store.exists_batch(&keys, Options::default());
        // A write buffer keeps nothing of a tier that stopped writing meanwhile; and while the
        // index was full, each object replaced the one before.
        let well = well && store.stats().ssd_state_changes == changes && !refused;
        if present.iter().any(|present| !present) && well && !self.plan.setup.constant {
            self.report(
                FindingKind::Lost,
                format!("empty store lost objects just put {present:?}"),
            );
        }
        drop(store);
        if !well || !self.findings.is_empty() {
            return;
        }
        self.plain_close();
    }

    /// Closes without faults, reopens, and expects to find every object that fitted.
    fn plain_close(&mut self) {
        self.drop_process();
        let start = self.oracle.tick();
        let Some(store) = self.take_store() else { return };
        match store.close() {
            Ok(report) => self.flushed(start, report.lost_objects),
            Err(error) => self.check_error("close", &error),
        }
        let config = self.plan.setup.config();
        match Store::open_in(config, self.world.env()) {
            Ok(store) => self.opened(Rc::new(store), true),
            // Only an operator repairs a manifest that the device corrupted silently.
            Err(error) if error.kind == ErrorKind::Damaged && self.oracle.is_flush_unreliable() => {
            }
            Err(error) => {
                self.report(FindingKind::Error, format!("store does not open error={error}"))
            }
        }
        self.drain();
    }
}

/// Hits and misses of a store.
fn gets_counted(store: &Store) -> u64 {
    let stats = store.stats();
    stats.hits_memory + stats.hits_ssd + stats.hits_remote + stats.misses.values().sum::<u64>()
}

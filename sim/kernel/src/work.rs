//! A store in use on a failing device: puts, gets, removals, clears and flushes in one thread. Each
//! answer is checked when it arrives, and every page is compared again after each reopening.
//!
//! The contents and the oracle are those of the kill tests: a page's bytes identify its version,
//! and a get may return versions put since the last acked removal.

use std::path::Path;
use std::time::{Duration, Instant};

use pagelith::{ErrorKind, GetSlice, Options, PutOutcome, PutSlice, Result, Store};

use crate::killed::content::{Rng, content, key, length, namespace, version_of};
use crate::killed::model::{Device, Model};
use crate::killed::workload::{NAMESPACES, Plan};
use crate::killed::{LogEntry, Page};
use crate::report::LaneCounts;

/// An open that takes longer counts as hanging.
const OPEN_MAX: Duration = Duration::from_secs(20);

/// A store over several openings.
pub struct StoreRun {
    /// Its directory and parameters.
    pub plan: Plan,
    /// The expected state of its pages.
    pub model: Model,
    /// The counters so far.
    pub seen: LaneCounts,
    /// Timeout of each call.
    pub timeout: Duration,
    /// A call that exceeds its timeout by more than this counts as hanging, on a machine under any
    /// load.
    pub over_max: Duration,
    /// Faults that the store counted; may exceed the number injected.
    pub noticed: u64,
    /// Operations that the device may have done so far.
    pub device: Device,
    rng: Rng,
    version: u64,
}

impl StoreRun {
    /// A store to be made in `dir`. It has room for more than a few hundred steps put.
    pub fn new(dir: &Path, seed: u64) -> StoreRun {
        let plan = Plan {
            dir: dir.to_owned(),
            ssd_mib: 96,
            write_kib: 256,
            write_depth: 4,
            seed,
            pages: 240,
            budget: 8 << 20,
            io: "uring",
            reinsert: seed.is_multiple_of(2),
            only_put: false,
            aim: None,
        };
        let (model, seen, timeout) =
            (Model::default(), LaneCounts::default(), Duration::from_secs(2));
        let device = Device::Healthy;
        StoreRun {
            plan,
            model,
            seen,
            timeout,
            noticed: 0,
            over_max: Duration::from_secs(10),
            device,
            rng: Rng(seed ^ 0x11fe),
            version: seed << 32,
        }
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }

    /// Opens the store; a dead process's transfers may hold its lock for a moment.
    pub fn open(&mut self) -> Store {
        let began = Instant::now();
        loop {
            match self.try_open() {
                Ok(store) => return store,
                Err(e) if e.kind == ErrorKind::Denied && began.elapsed() < OPEN_MAX => {}
                Err(e) => panic!("open: {:?} {e}", e.kind),
            }
        }
    }

    /// Opens the store or returns the error.
    pub fn try_open(&mut self) -> Result<Store> {
        let began = Instant::now();
        let store = self.plan.open()?;
        let took = began.elapsed();
        assert!(took < OPEN_MAX, "hang: open took {took:?}");
        self.seen.worst_recovery_ms = self.seen.worst_recovery_ms.max(took.as_millis() as u64);
        let found = store.opened();
        self.noticed += found.torn_records
            + u64::from(found.mended_blocks)
            + u64::from(found.refused_checkpoints);
        Ok(store)
    }

    /// Adds the store's counters: call once before the store is dropped.
    pub fn take_counters(&mut self, store: &Store) {
        self.note_reclaim(store);
        let stats = store.stats();
        let missed = |cause: &str| stats.misses.get(cause).copied().unwrap_or(0);
        self.noticed += missed("damaged") + missed("unreadable") + missed("late");
        self.noticed += stats.read_errors + stats.flush_errors + stats.checkpoint_failures;
    }

    /// Compares every page.
    pub fn check(&mut self, store: &Store) {
        let device = self.device;
        let tally = self.model.check_on_failing_device(store, device);
        self.note_reclaim(store);
        // Evicted pages do not count as lost.
        let lost = if self.model.evicts { 0 } else { tally.lost };
        let opened = store.opened();
        assert!(
            device != Device::Healthy || lost == 0,
            "{lost} durable pages are missing {opened:?}"
        );
        self.seen.synced_lost += lost as u64;
        self.seen.present += tally.here as u64;
        self.seen.removals_undone += tally.undone as u64;
    }

    fn note_reclaim(&mut self, store: &Store) {
        if store.stats().segments_reclaimed > 0 {
            self.model.apply(LogEntry::Reclaimed);
        }
    }

    /// Makes `steps` random calls.
    pub fn work(&mut self, store: &Store, steps: u32) {
        for _ in 0..steps {
            let page = Page {
                namespace: self.below(NAMESPACES.into()) as u8,
                number: self.below(self.plan.pages.into()) as u32,
            };
            match self.below(1000) {
                0..400 => self.put(store, page),
                400..440 => self.remove(store, page),
                440..443 => self.clear(store, NAMESPACES - 1),
                443..470 => drop(self.flush(store)),
                _ => self.get(store, page),
            }
        }
    }

    fn options(&self) -> Options {
        Options::default().timeout(self.timeout)
    }

    /// Makes a call and measures its duration.
    fn timed<T>(&mut self, what: &str, call: impl FnOnce(Options) -> T) -> T {
        let began = Instant::now();
        let answer = call(self.options());
        let over = began.elapsed().saturating_sub(self.timeout);
        assert!(over < self.over_max, "hang: {what} went on for {over:?} after its time");
        self.seen.longest_over_deadline_ms =
            self.seen.longest_over_deadline_ms.max(over.as_millis() as u64);
        answer
    }

    /// Puts both objects of a page as a new version.
    pub fn put(&mut self, store: &Store, page: Page) {
        self.version += 1;
        let version = self.version;
        let bytes = [0, 1].map(|c| content(page, c, version));
        let pieces: [[&[u8]; 1]; 2] = [[&bytes[0]], [&bytes[1]]];
        let group = [0, 1].map(|c| PutSlice { key: key(page, c), pieces: &pieces[c] });
        self.model.apply(LogEntry::PutBegins(page, version));
        let outcome = self.timed("put", |options| store.put_groups(&[&group], options)).pop();
        match outcome.expect("an outcome") {
            Ok(PutOutcome::Stored) => self.model.apply(LogEntry::Stored(page, version)),
            Ok(PutOutcome::AlreadyPresent) => self.model.apply(LogEntry::Present(page, version)),
            Ok(other) => panic!("put: {other:?}"),
            Err(e) => self.check_error("put", &e),
        }
    }

    /// Remove a page.
    pub fn remove(&mut self, store: &Store, page: Page) {
        self.model.apply(LogEntry::RemoveBegins(page));
        match self.timed("remove", |options| store.remove(&[key(page, 0)], options)) {
            Ok(_) => {
                self.model.apply(LogEntry::Removed(page));
                let exists = store.exists_batch(&[key(page, 0), key(page, 1)], Options::default());
                assert_eq!(exists, [false, false], "removed page is back at once {page:?}");
            }
            Err(e) => self.check_error("remove", &e),
        }
    }

    fn clear(&mut self, store: &Store, number: u8) {
        self.model.apply(LogEntry::ClearBegins(number));
        match self.timed("clear", |options| store.clear(namespace(number), options)) {
            Ok(_) => self.model.apply(LogEntry::Cleared(number)),
            Err(e) => self.check_error("clear", &e),
        }
    }

    /// Flushes; returns whether everything is durable.
    pub fn flush(&mut self, store: &Store) -> bool {
        self.version += 1;
        let number = self.version;
        self.model.apply(LogEntry::FlushBegins(number));
        match self.timed("flush", |options| store.flush(options)) {
            Ok(report) if report.lost_objects == 0 => {
                self.model.apply(LogEntry::Flushed(number));
                return true;
            }
            Ok(_) => {
                self.noticed += 1;
                self.model.some_are_lost();
            }
            Err(e) => self.check_error("flush", &e),
        }
        false
    }

    /// Gets both objects of a page and checks the result.
    pub fn get(&mut self, store: &Store, page: Page) {
        let mut bytes = [0, 1].map(|c| vec![0; length(page, c)]);
        let [k, v] = &mut bytes;
        let (mut k, mut v) = ([&mut k[..]], [&mut v[..]]);
        let mut gets = [
            GetSlice { key: key(page, 0), range: None, pieces: &mut k },
            GetSlice { key: key(page, 1), range: None, pieces: &mut v },
        ];
        let outcomes = self.timed("get", |options| store.get_batch(&mut gets, options));
        let mut hits = 0;
        for (c, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(outcome) if outcome.is_hit() => {
                    hits += 1;
                    let may = self.model.may(page);
                    let found = version_of(page, c, &bytes[c], &may);
                    if may.is_empty() && self.device == Device::Lying {
                        self.seen.removals_undone += 1;
                        continue;
                    }
                    assert!(!may.is_empty(), "removed or cleared page is back {page:?}");
                    assert!(
                        found.is_some_and(|v| may.contains(&v)),
                        "wrong bytes {page:?} {c} {found:?} {may:?}"
                    );
                }
                Ok(_) => {}
                Err(e) => self.check_error("get", &e),
            }
        }
        if hits == 1 {
            // The other get failed: then neither object exists.
            let exists = store.exists_batch(&[key(page, 0), key(page, 1)], Options::default());
            assert_eq!(exists[0], exists[1], "group is not whole {page:?}");
        }
    }

    /// Accepts an error that a failing device may cause.
    fn check_error(&mut self, what: &str, e: &pagelith::Error) {
        let kinds = [ErrorKind::Busy, ErrorKind::NoSpace, ErrorKind::Unavailable];
        assert!(kinds.contains(&e.kind), "{what}: {:?} {e}", e.kind);
        self.noticed += 1;
    }
}

//! A run in progress: the machine, its store, the calls in flight, and the oracle.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use pagelith::{Error, ErrorKind, OpenGroupId, Pin, Session, Store, View};
use pagelith_io::clock::Clock;

use super::batch::Batch;
use super::event_mirror::EventMirror;
use super::faults::{FaultLedger, effect, returns_wrong_bytes};
use super::memory::Memory;
use super::objects::{ObjectId, mix};
use super::ops::{OpKind, PlannedOp};
use super::oracle::{FaultEffect, Oracle, Violation};
use super::plan::ExplorePlan;
use super::report::{Finding, FindingKind, RunTotals};
use crate::disk::DiskFault;
use crate::entropy::SplitMix64;
use crate::env::SimWorld;

/// How much later than its deadline a call may return: a tenth of it plus the steps of waits.
const SLACK: Duration = Duration::from_millis(45);

/// An open group, and the put number of its bytes.
pub(super) struct OpenGroup {
    pub page: usize,
    pub id: OpenGroupId,
    pub no: u32,
    pub filled: Vec<ObjectId>,
}

/// A run in progress.
pub struct Run<'p> {
    pub(super) plan: &'p ExplorePlan,
    pub(super) world: SimWorld,
    pub(super) oracle: Oracle,
    pub(super) store: Option<Rc<Store>>,
    pub(super) sessions: Vec<Session>,
    pub(super) flights: Vec<Batch>,
    pub(super) memory: Memory,
    pub(super) event_mirror: EventMirror,
    pub(super) groups: Vec<OpenGroup>,
    pub(super) pins: Vec<(Pin, Option<ObjectId>)>,
    pub(super) views: Vec<(View, ObjectId, u32)>,
    /// The number of the last put.
    pub(super) no: u32,
    pub(super) rng: SplitMix64,
    pub(super) ledger: FaultLedger,
    /// How often fault rates were set.
    pub(super) rounds: u64,
    /// A fault struck during this process, or a lasting one before it.
    pub(super) struck: bool,
    /// A sync failed while the store was open or being opened.
    pub(super) sync_failed: bool,
    /// A sync had failed when a process began, on a machine that had not crashed since: objects it
    /// read may be damaged by a crash, and be found damaged at any later time.
    pub(super) sync_unproven: bool,
    /// Number of damaged reads that the store had reported at the last check.
    found_damaged: u64,
    /// Gets that ended without an error.
    pub(super) gets_answered: u64,
    /// Steps until a machine with a stopped disk crashes.
    pub(super) dying: u32,
    /// The clock jumped, or the device was slow: batches may be late.
    pub(super) lateness_excused: bool,
    /// A read returned other bytes since this was last set to false.
    pub(super) misled: bool,
    /// Pages that reads in flight and of this operation may touch; `None` for all.
    pub(super) noted_pages: Option<BTreeSet<usize>>,
    /// Prefetches may be in progress.
    pub(super) reads_ahead: bool,
    /// For the answers being checked: see [`Batch::may_be_late`].
    pub(super) may_be_late: bool,
    pub(super) sums: RunTotals,
    pub(super) findings: Vec<Finding>,
    pub(super) verb: OpKind,
    pub(super) at: usize,
    done: BTreeMap<OpKind, u64>,
    hash: u64,
    /// Receives a line for each step.
    pub(super) trace_to: Option<Box<dyn FnMut(String)>>,
}

impl<'p> Run<'p> {
    /// A machine with an empty disk.
    pub fn new(plan: &'p ExplorePlan) -> Run<'p> {
        let setup = &plan.setup;
        let world = SimWorld::with_dirs(mix(plan.seed ^ 0xd15c), setup.dirs);
        world.disk.set_latency(Duration::from_micros(setup.latency_us));
        if setup.shuffle {
            world.disk.shuffle(mix(plan.seed ^ 0x54ff));
        }
        let mut oracle = Oracle::new(setup.roomy, setup.constant);
        if !plan.faults.is_empty() {
            oracle.set_lying();
        }
        oracle.set_quarantine_after(setup.quarantine_after);
        // With pages kept in memory, a pinned object may have left its segment before.
        if setup.objects >= 2048 && setup.dram_kib == 0 && !setup.constant {
            oracle.keeps_pins();
        }
        Run {
            plan,
            world,
            oracle,
            store: None,
            sessions: Vec::new(),
            flights: Vec::new(),
            memory: Memory::default(),
            event_mirror: EventMirror::default(),
            groups: Vec::new(),
            pins: Vec::new(),
            views: Vec::new(),
            no: 0,
            rng: SplitMix64::new(plan.seed),
            ledger: FaultLedger::default(),
            rounds: 0,
            struck: false,
            sync_failed: false,
            sync_unproven: false,
            found_damaged: 0,
            gets_answered: 0,
            dying: 0,
            lateness_excused: false,
            misled: false,
            noted_pages: Some(BTreeSet::new()),
            reads_ahead: false,
            may_be_late: false,
            sums: RunTotals::default(),
            findings: Vec::new(),
            verb: OpKind::Close,
            at: 0,
            done: BTreeMap::new(),
            hash: plan.seed,
            trace_to: None,
        }
    }

    /// Passes each step to `trace_to`.
    pub fn set_trace(&mut self, trace_to: Box<dyn FnMut(String)>) {
        self.trace_to = Some(trace_to);
    }

    /// Executes all operations, up to the first finding.
    pub fn execute_all(&mut self) {
        self.open();
        for (at, op) in &self.plan.ops {
            if !self.findings.is_empty() {
                return;
            }
            (self.at, self.verb) = (*at, op.verb);
            self.step(*op);
        }
        if self.findings.is_empty() {
            self.at = self.plan.ops.last().map_or(0, |(at, _)| at + 1);
            self.verb = OpKind::Audit;
            self.epilogue();
        }
    }

    /// Ends the machine; returns the results of the run.
    pub fn finish(mut self) -> (RunTotals, Vec<Finding>) {
        self.drop_process();
        self.world.crash(crate::disk::CrashMode::KeepAll);
        self.store = None;
        let mut sums = std::mem::take(&mut self.sums);
        sums.seeds = 1;
        sums.ops = self.done.values().sum();
        sums.operations = self.done.iter().map(|(verb, n)| (format!("{verb:?}"), *n)).collect();
        sums.disk_ops = self.world.disk.ops_done();
        let (faults, pairs) = std::mem::take(&mut self.ledger).end();
        (sums.faults, sums.fault_by_operation) = (faults, pairs);
        sums.trace_hash = mix(self.hash);
        self.findings.iter().for_each(|f| sums.found(f.kind));
        (sums, self.findings)
    }

    pub(super) fn trace(&mut self, text: impl FnOnce() -> String) {
        if let Some(trace_to) = self.trace_to.as_mut() {
            trace_to(text());
        }
    }

    pub(super) fn fold_hash(&mut self, x: u64) {
        self.hash = mix(self.hash ^ x);
    }

    pub(super) fn report(&mut self, kind: FindingKind, text: impl Into<String>) {
        let text = format!("{} (at {} {:?})", text.into(), self.at, self.verb);
        self.trace(|| format!("  FOUND {kind:?}: {text}"));
        self.findings.push(Finding { kind, text, at: self.at });
    }

    pub(super) fn judge<T>(&mut self, answer: Result<T, Violation>) -> Option<T> {
        match answer {
            Ok(t) => return Some(t),
            Err(Violation::Bytes(text)) => self.report(FindingKind::Wrong, text),
            // The store reports it: without room for tombstones it cleared the namespaces.
            Err(_) if self.has_self_cleared() => self.sums.forgotten += 1,
            Err(Violation::SyncedLost(text)) => self.report(FindingKind::SyncedLost, text),
            Err(Violation::Lost(text)) => self.report(FindingKind::Lost, text),
        }
        None
    }

    /// Whether the store cleared a namespace by itself.
    fn has_self_cleared(&self) -> bool {
        let forgotten = self.store.as_ref().map_or(0, |s| s.stats().namespaces_forgotten);
        forgotten > 0 && !self.plan.setup.roomy
    }

    /// Records an error as a finding, unless something explains it.
    pub(super) fn check_error(&mut self, what: &str, error: &Error) {
        let internal = error.kind == ErrorKind::Internal;
        // With one fingerprint a pin of one key pins all objects: then no segment can be emptied.
        let pinned = self.plan.setup.constant && !self.pins.is_empty();
        let late = error.kind == ErrorKind::Unavailable && (pinned || !self.flights.is_empty());
        let explained =
            self.world.disk.stopped() || self.struck || error.kind == ErrorKind::Busy || late;
        if internal || !explained {
            self.report(
                FindingKind::Error,
                format!("{what} failed kind={:?} error={error}", error.kind),
            );
        }
    }

    pub(super) fn step(&mut self, op: PlannedOp) {
        *self.done.entry(op.verb).or_default() += 1;
        self.rng = SplitMix64::new(op.r);
        self.oracle.tick();
        self.reads_ahead &=
            self.store.as_ref().is_some_and(|store| store.stats().prefetch_waiting > 0);
        if self.flights.is_empty() && self.plan.setup.scrub_kib == 0 && !self.reads_ahead {
            self.noted_pages = Some(BTreeSet::new());
        }
        let at = self.at;
        self.trace(|| format!("{at} {:?}", op.verb));
        self.dispatch(op.verb);
        let steps = self.rng.below(self.plan.setup.steps + 1);
        for _ in 0..steps {
            if !self.world.runtime.step_once() {
                break;
            }
        }
        self.take_strikes();
        self.fold_hash(self.world.disk.ops_done());
        self.fold_hash(self.world.clock.now().0);
        if self.world.disk.stopped() {
            self.dying = self.dying.saturating_sub(1);
            if self.dying == 0 || self.store.is_none() {
                self.crash();
            }
        }
    }

    fn dispatch(&mut self, verb: OpKind) {
        match verb {
            OpKind::Get => self.get_some(),
            OpKind::GetPage => self.get_page(),
            OpKind::GetRange => self.get_ranges(),
            OpKind::GetBorrowed => self.get_borrowed(),
            OpKind::Put => self.put_page(),
            OpKind::PutMany => self.put_many(),
            OpKind::PutBorrowed => self.put_borrowed(),
            OpKind::PutOther => self.put_other(),
            OpKind::Attach => self.attach(),
            OpKind::Fill => self.fill(),
            OpKind::Commit => self.commit(),
            OpKind::Abort => self.abort(),
            OpKind::Exists => self.exists(),
            OpKind::ExistsGroups => self.exists_groups(),
            OpKind::View => self.view(),
            OpKind::Remove => self.remove(None),
            OpKind::Clear => self.clear(None),
            OpKind::HastyRemoval if self.rng.one_in(2) => self.remove(Some(Duration::ZERO)),
            OpKind::HastyRemoval => self.clear(Some(Duration::ZERO)),
            OpKind::Pin => self.pin(),
            OpKind::Unpin => self.unpin(),
            OpKind::Lease => self.lease(),
            OpKind::Prefetch => self.prefetch(),
            OpKind::Flush => self.flush(),
            OpKind::Poll => self.poll(),
            OpKind::Drain => self.drain(),
            OpKind::Idle => {
                let us = [50, 500, 5_000, 50_000][self.rng.below(4) as usize];
                let us = self.rng.below(us);
                self.world.runtime.run_for(Duration::from_micros(us));
            }
            OpKind::Jump => {
                let seconds = [1, 60, 3600][self.rng.below(3) as usize];
                self.lateness_excused |= !self.flights.is_empty();
                self.world.clock.advance(Duration::from_secs(seconds));
            }
            OpKind::NewSession => self.new_session(),
            OpKind::Scrub => self.scrub(),
            OpKind::Audit => self.audit(),
            OpKind::Close => self.close(),
            OpKind::Abandon => self.abandon(),
            OpKind::Crash => self.crash(),
            // A stopped disk accepts no second stop point.
            OpKind::CrashSoon if self.world.disk.stopped() => {}
            OpKind::CrashSoon => {
                let n = self.rng.below(40);
                self.dying = 1 + self.rng.below(4) as u32;
                self.world.disk.stop_after(n);
            }
            OpKind::CrashTwice => self.crash_twice(),
        }
    }

    /// Handles the faults since the last call; must run before answers are judged.
    pub(super) fn take_strikes(&mut self) {
        if self.plan.faults.is_empty() {
            return;
        }
        if let (true, Some(store)) = (self.sync_unproven, &self.store) {
            // Like a struck read of the damaged record: it may cost the whole segment.
            let stats = store.stats();
            let found = stats.damaged
                + stats.read_errors
                + stats.segments_suspect
                + stats.segments_quarantined;
            if found != std::mem::replace(&mut self.found_damaged, found) {
                self.oracle.struck(FaultEffect::Read);
                self.oracle.may_all_be_dropped();
            }
        }
        for struck in self.world.disk.take_struck() {
            self.trace(|| format!("  struck {struck}"));
            self.ledger.struck(&struck, self.verb);
            self.misled |= returns_wrong_bytes(struck.fault);
            self.struck = true;
            self.sync_failed |= struck.fault == DiskFault::SyncError;
            self.lateness_excused |= struck.fault.delays();
            let Some(effect) = effect(struck.fault) else { continue };
            self.oracle.struck(effect);
            if effect == FaultEffect::Read {
                // An unreadable record is dropped with its group and attached objects, and the next
                // checkpoint records that.
                match &self.noted_pages {
                    Some(pages) => pages.iter().for_each(|page| self.oracle.may_be_dropped(*page)),
                    None => self.oracle.may_all_be_dropped(),
                }
            }
        }
    }

    /// Makes a call that has a deadline.
    pub(super) fn timed<R>(
        &mut self,
        what: &str,
        timeout: Option<Duration>,
        body: impl FnOnce(&Store) -> R,
    ) -> Option<R> {
        let store = self.store.clone()?;
        let timeout = timeout.unwrap_or(self.plan.setup.deadline());
        let begun = self.world.clock.now();
        let result = body(&store);
        let took = self.world.clock.now().since(begun);
        self.take_strikes();
        self.check_time(what, took, timeout);
        Some(result)
    }

    pub(super) fn check_time(&mut self, what: &str, took: Duration, timeout: Duration) {
        let over = took.saturating_sub(timeout);
        let over_us = over.as_micros() as u64;
        if over > timeout / 10 + SLACK {
            // A direct read is waited for until the kernel returns the memory.
            let late_direct = self.store.as_ref().map_or(0, |s| s.stats().late_direct);
            if late_direct > 0 && self.plan.faults.delays() {
                return;
            }
            self.report(FindingKind::Late, format!("{what} took={took:?} timeout={timeout:?}"));
        }
        self.sums.longest_over_deadline_us = self.sums.longest_over_deadline_us.max(over_us);
    }
}

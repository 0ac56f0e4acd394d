//! Runs a plan against a store in a simulated world. Records events for the model, each with the
//! number of changes that the disk had executed.

use std::collections::BTreeMap;

use pagelith::layouts::key::ObjectKey;
use pagelith::{ErrorKind, GetOutcome, GetSlice, MissCause, Options, Pin, Store};
use pagelith_sim::env::SimWorld;
use pagelith_sim::model::{Model, ModelEvent, Put};

use super::objects::{ATTACHED, Contents, FORMS, components, config, key, keys, namespace};
use super::plan::{Plan, Shape, Step};
use super::puts::OpenGroups;

/// A number for bytes that no put wrote.
pub const UNKNOWN_PUT: Put = Put(u64::MAX);

/// A plan in progress.
pub struct Run<'a> {
    pub world: &'a SimWorld,
    pub shape: Shape,
    pub model: Model,
    pub contents: Contents,
    /// Every event, with the changes executed when it happened.
    pub events: Vec<(u64, ModelEvent)>,
    /// Errors so far.
    pub wrong: Vec<String>,
    /// Checkpoints written by processes of this run.
    pub checkpoints: u64,
    pub store: Option<Store>,
    pins: Vec<Pin>,
    /// The number of the last put.
    pub puts: u64,
    /// The device fails operations: calls may fail, and stored objects may be missing.
    pub faulty: bool,
    pub(super) opened: OpenGroups,
}

/// Attempts to open a store on a device that fails a few operations.
const OPENINGS: usize = 6;

impl<'a> Run<'a> {
    /// Begins in `world`, whose disk is empty.
    pub fn new(world: &'a SimWorld, shape: Shape) -> Run<'a> {
        Run {
            world,
            shape,
            model: Model::new(shape.evicts),
            contents: Contents::default(),
            events: Vec::new(),
            wrong: Vec::new(),
            checkpoints: 0,
            store: None,
            pins: Vec::new(),
            puts: 0,
            faulty: false,
            opened: OpenGroups::default(),
        }
    }

    /// Opens the store; false if that failed, which only a stopped disk may cause.
    pub fn open(&mut self) -> bool {
        if self.faulty {
            // After any fault: once the faults end the store opens.
            let open = |_| Store::open_in(config(self.shape), self.world.env());
            self.store = (0..OPENINGS).map(open).find_map(Result::ok);
            if self.store.is_none() {
                self.wrong.push("it does not open any more".to_string());
            }
            return self.store.is_some();
        }
        match Store::open_in(config(self.shape), self.world.env()) {
            Ok(store) => {
                let refused = store.opened().refused_checkpoints;
                if refused > 0 {
                    self.wrong
                        .push(format!("checkpoints with a head and not whole refused={refused}"));
                }
                self.store = Some(store);
                true
            }
            Err(error) => {
                if !self.world.disk.stopped() {
                    self.wrong.push(format!("open failed error={error}"));
                }
                false
            }
        }
    }

    /// Runs the steps of a plan until the disk stops.
    pub fn run(&mut self, plan: &Plan) {
        for step in &plan.steps {
            if self.world.disk.stopped() || (self.store.is_none() && !self.open()) {
                return;
            }
            self.step(*step);
        }
    }

    pub(super) fn event(&mut self, event: ModelEvent) {
        self.model.apply(&event);
        self.events.push((self.world.disk.ops_done(), event));
    }

    /// Accepts an error that is no bug: the disk is stopped, or the arena was full for too long.
    pub(super) fn check_error(&mut self, what: &str, error: &pagelith::Error) {
        if !self.world.disk.stopped() && error.kind != ErrorKind::Busy && !self.faulty {
            self.wrong.push(format!("{what} failed error={error}"));
        }
    }

    /// Executes one step.
    pub fn step(&mut self, step: Step) {
        match step {
            Step::Group(page) => self.put(None, &keys(page, FORMS[0])),
            Step::Base(page, form) => self.put(None, &keys(page, FORMS[form])),
            Step::Single(page) => self.put(None, &[key(page, "x")]),
            Step::Attach(page, which) => {
                let (base, members) = ATTACHED[which];
                self.put(Some(key(page, base)), &keys(page, members));
            }
            Step::Begin(page, form) => self.begin(&keys(page, FORMS[form])),
            Step::Member(page, form, i) => self.members(&keys(page, FORMS[form]), Some(i)),
            Step::Members(page, form) => self.members(&keys(page, FORMS[form]), None),
            Step::Commit(page, form) => self.commit(&keys(page, FORMS[form])),
            Step::Abort(page, form) => self.abort(&keys(page, FORMS[form])),
            Step::Expire => self.expire(),
            Step::Take(page, component) => self.remove(key(page, component)),
            Step::Fill(from, count) => {
                (from..from + count).for_each(|page| self.put(None, &keys(page, FORMS[0])));
            }
            Step::Flush => self.flush(),
            Step::Remove(page) => self.remove(key(page, "k")),
            Step::RemoveSingle(page) => self.remove(key(page, "x")),
            Step::Clear(ns) => self.clear(ns),
            Step::HastyRemoval(ns) => {
                let ns = namespace(ns);
                self.opened.clear(ns);
                self.event(ModelEvent::ClearBegun(ns));
                let Some(store) = &self.store else { return };
                let hasty = Options::default().timeout(std::time::Duration::ZERO);
                let outcome = store.clear(ns, hasty);
                self.event(ModelEvent::ClearEnded(ns, outcome.is_ok()));
            }
            Step::Get(page) => self.get(&components(page)),
            Step::Warm(from, count) => {
                (from..from + count).for_each(|page| self.get(&components(page)))
            }
            Step::Pin(page) => self.pin(&components(page)),
            Step::Unpin => {
                self.pins.clear();
                self.event(ModelEvent::Unpinned);
            }
            Step::Idle(us) => self.world.runtime.run_for(std::time::Duration::from_micros(us)),
            Step::Abandon => {
                self.pins.clear();
                if let Some(store) = self.store.take() {
                    self.checkpoints += store.stats().checkpoints;
                    store.abandon();
                }
                self.reopened();
            }
            Step::Close => self.close(),
        }
    }

    /// Number of operations that the device has failed.
    fn faults(&self) -> usize {
        self.world.disk.log().iter().filter(|op| op.fault.is_some()).count()
    }

    fn flush(&mut self) {
        self.event(ModelEvent::FlushBegun);
        let Some(store) = &self.store else { return };
        let outcome = store.flush(Options::default());
        match &outcome {
            Ok(report) if report.lost_objects > 0 && !self.faulty => {
                self.wrong.push(format!("flush lost objects {report:?}"))
            }
            Ok(_) => {}
            Err(error) => self.check_error("flush", error),
        }
        self.event(ModelEvent::FlushEnded(outcome.is_ok()));
    }

    fn remove(&mut self, key: ObjectKey) {
        self.event(ModelEvent::RemoveBegun(key));
        let Some(store) = &self.store else { return };
        let outcome = store.remove(&[key], Options::default());
        if let Err(error) = &outcome {
            self.check_error("remove", error);
        }
        self.opened.removed(&key);
        self.event(ModelEvent::RemoveEnded(key, outcome.is_ok()));
    }

    fn clear(&mut self, ns: u32) {
        let ns = namespace(ns);
        self.opened.clear(ns);
        self.event(ModelEvent::ClearBegun(ns));
        let Some(store) = &self.store else { return };
        let outcome = store.clear(ns, Options::default());
        if let Err(error) = &outcome {
            self.check_error("clear", error);
        }
        self.event(ModelEvent::ClearEnded(ns, outcome.is_ok()));
    }

    fn pin(&mut self, keys: &[ObjectKey]) {
        for key in keys {
            let Some(store) = &self.store else { return };
            let pin = store.pin(&[*key]);
            let holds = pin.pinned() == 1;
            self.pins.push(pin);
            // With equal fingerprints a pin may be on another object.
            if holds && !self.shape.constant {
                self.event(ModelEvent::Pinned(*key));
            }
        }
    }

    fn close(&mut self) {
        self.pins.clear();
        self.event(ModelEvent::Unpinned);
        self.event(ModelEvent::FlushBegun);
        if let Some(store) = self.store.take() {
            self.checkpoints += store.stats().checkpoints;
            let closed = store.close();
            if let Err(error) = &closed {
                self.check_error("close", error);
            }
            self.event(ModelEvent::FlushEnded(closed.is_ok()));
        }
        self.reopened();
    }

    /// The process ended; reopens and checks everything.
    pub fn reopened(&mut self) {
        self.pins.clear();
        self.store = None;
        self.opened = OpenGroups::default();
        self.event(ModelEvent::Died);
        if self.open() {
            let keep: Vec<ObjectKey> = self.model.keys().copied().collect();
            let pin = self.store.as_ref().map(|s| s.pin(&keep));
            self.check_all_keys();
            drop(pin);
            self.event(ModelEvent::Unpinned);
        }
    }

    /// Gets every key ever put, and judges the answers.
    pub fn check_all_keys(&mut self) {
        let keys: Vec<ObjectKey> = self.model.keys().copied().collect();
        self.get(&keys);
        let Some(store) = &self.store else { return };
        let damaged = store.stats().damaged;
        if damaged > 0 && !self.world.disk.stopped() {
            self.wrong.push(format!("a record that is not intact was indexed damaged={damaged}"));
        }
    }

    pub(super) fn get(&mut self, keys: &[ObjectKey]) {
        let answers = loop {
            let faults = self.faults();
            let Some(answers) = self.get_keys(keys) else { return };
            if !self.faulty || self.faults() == faults {
                break answers;
            }
            // A failed read makes that object a miss, and drops its group, but other objects of the
            // same batch may have been returned. So groups are judged by answers without a fault.
            let unknown = answers.iter().filter(|(_, put)| **put == Some(UNKNOWN_PUT));
            self.wrong.extend(unknown.map(|(key, _)| format!("bytes of no put key={key}")));
        };
        let wrong = self.model.judge(&answers);
        self.wrong.extend(wrong);
        for (key, put) in answers {
            self.event(ModelEvent::Seen(key, put));
        }
    }

    /// Gets these keys; `None` if the disk stopped meanwhile.
    pub fn get_keys(&mut self, keys: &[ObjectKey]) -> Option<BTreeMap<ObjectKey, Option<Put>>> {
        let store = self.store.as_ref()?;
        let mut answers = BTreeMap::new();
        // The objects of a page in one batch: between two batches a page may be evicted.
        for some in keys.chunk_by(|a, b| a.same_page(b)) {
            let exists = store.exists_batch(some, Options::default());
            let mut bufs: Vec<_> = some.iter().map(super::objects::Memory::of).collect();
            let mut pieces: Vec<[&mut [u8]; 1]> =
                bufs.iter_mut().map(|b| [b.bytes_mut()]).collect();
            let mut gets: Vec<GetSlice<'_, '_>> = some
                .iter()
                .zip(&mut pieces)
                .map(|(key, pieces)| GetSlice { key: *key, range: None, pieces })
                .collect();
            let outcomes = store.get_batch(&mut gets, Options::default());
            for (((key, buf), outcome), exists) in some.iter().zip(&bufs).zip(outcomes).zip(exists)
            {
                let answer = match outcome {
                    Ok(GetOutcome::Hit { .. }) => {
                        Some(self.contents.put_of_bytes(key, buf.bytes()).unwrap_or(UNKNOWN_PUT))
                    }
                    Ok(GetOutcome::Miss(cause)) => {
                        let torn = cause == MissCause::Damaged || cause == MissCause::Late;
                        let broken = exists && !self.shape.constant && !self.shape.evicts;
                        if (torn || broken) && !self.world.disk.stopped() && !self.faulty {
                            self.wrong
                                .push(format!("exists and cannot be got key={key} cause={cause}"));
                        }
                        None
                    }
                    // Another object with the same fingerprint may have another length.
                    Err(error) if self.world.disk.stopped() || error.kind == ErrorKind::Busy => {
                        None
                    }
                    Err(error) => {
                        self.wrong.push(format!("get failed key={key} error={error}"));
                        None
                    }
                };
                answers.insert(*key, answer);
            }
        }
        (!self.world.disk.stopped()).then_some(answers)
    }
}

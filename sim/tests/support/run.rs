//! Runs a plan against a store in a simulated world and notes what the model has to know, with the number of
//! changes that the disk had executed by then.

use std::collections::BTreeMap;

use pagelith::layouts::key::ObjectKey;
use pagelith::{ErrorKind, GetOutcome, GetSlice, MissCause, Options, Pin, PutOutcome, PutSlice, Store};
use pagelith_sim::env::SimWorld;
use pagelith_sim::model::{Event, Model, Put, PutEnd};

use super::plan::{Plan, Shape, Step};
use super::world::{Contents, components, config, key, namespace};

/// A number for bytes that nobody put.
pub const NOBODYS: Put = Put(u64::MAX);

/// A plan under way.
pub struct Run<'a> {
    pub world: &'a SimWorld,
    pub shape: Shape,
    pub model: Model,
    pub contents: Contents,
    /// Every event, with the changes executed when it happened.
    pub events: Vec<(u64, Event)>,
    /// What was wrong on the way.
    pub wrong: Vec<String>,
    /// Checkpoints written by processes of this run.
    pub checkpoints: u64,
    pub store: Option<Store>,
    pins: Vec<Pin>,
    /// The number of the last put.
    pub puts: u64,
}

impl<'a> Run<'a> {
    /// Begin in `world`, whose disk is empty.
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
        }
    }

    /// Open the store; false if that failed, which only a stopped disk may cause.
    pub fn open(&mut self) -> bool {
        match Store::open_in(config(self.shape), self.world.env()) {
            Ok(store) => {
                let refused = store.opened().refused_checkpoints;
                if refused > 0 {
                    self.wrong.push(format!("checkpoints with a head and not whole refused={refused}"));
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

    /// Run the steps of a plan until the disk stops.
    pub fn run(&mut self, plan: &Plan) {
        for step in &plan.steps {
            if self.world.disk.stopped() || (self.store.is_none() && !self.open()) {
                return;
            }
            self.step(*step);
        }
    }

    fn event(&mut self, event: Event) {
        self.model.apply(&event);
        self.events.push((self.world.disk.ops_done(), event));
    }

    /// An error that is no bug: the disk is gone, or the arena was full for too long.
    fn excused(&mut self, what: &str, error: &pagelith::Error) {
        if !self.world.disk.stopped() && error.kind != ErrorKind::Busy {
            self.wrong.push(format!("{what} failed error={error}"));
        }
    }

    /// Do one step.
    pub fn step(&mut self, step: Step) {
        match step {
            Step::Group(page) => self.put(&[key(page, "k"), key(page, "v")]),
            Step::Other(page) => self.put(&[key(page, "k"), key(page, "x")]),
            Step::Single(page) => self.put(&[key(page, "x")]),
            Step::Fill(from, count) => {
                (from..from + count).for_each(|page| self.put(&[key(page, "k"), key(page, "v")]));
            }
            Step::Flush => self.flush(),
            Step::Remove(page) => self.remove(key(page, "k")),
            Step::RemoveSingle(page) => self.remove(key(page, "x")),
            Step::Clear(ns) => self.clear(ns),
            Step::Hasty(ns) => {
                let ns = namespace(ns);
                self.event(Event::ClearBegun(ns));
                let Some(store) = &self.store else { return };
                let hasty = Options { timeout: Some(std::time::Duration::ZERO), ..Options::default() };
                let outcome = store.clear(ns, hasty);
                self.event(Event::ClearEnded(ns, outcome.is_ok()));
            }
            Step::Get(page) => self.get(&components(page)),
            Step::Warm(from, count) => (from..from + count).for_each(|page| self.get(&components(page))),
            Step::Pin(page) => self.pin(&components(page)),
            Step::Unpin => {
                self.pins.clear();
                self.event(Event::Unpinned);
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

    fn put(&mut self, keys: &[ObjectKey]) {
        let Some(store) = &self.store else { return };
        self.puts += 1;
        let put = Put(self.puts);
        let begun = Event::PutBegun(put, keys.to_vec());
        self.model.apply(&begun);
        self.events.push((self.world.disk.ops_done(), begun));
        let contents: Vec<_> = keys.iter().map(|k| self.contents.of(k, put)).collect();
        let pieces: Vec<[&[u8]; 1]> = contents.iter().map(|c| [c.as_slice()]).collect();
        let group: Vec<_> =
            keys.iter().zip(&pieces).map(|(key, pieces)| PutSlice { key: *key, pieces }).collect();
        let outcome = store.put_groups(&[&group], Options::default()).remove(0);
        let end = match &outcome {
            Ok(PutOutcome::Stored) => PutEnd::Stored,
            Ok(PutOutcome::AlreadyPresent) => PutEnd::Present,
            Ok(PutOutcome::Refused) | Err(_) => PutEnd::Unknown,
        };
        if let Err(error) = &outcome {
            self.excused("put", error);
        }
        self.event(Event::PutEnded(put, end));
        if end == PutEnd::Present {
            self.present(keys);
        }
    }

    fn flush(&mut self) {
        self.event(Event::FlushBegun);
        let Some(store) = &self.store else { return };
        let outcome = store.flush(Options::default());
        match &outcome {
            Ok(report) if report.lost_objects > 0 => {
                self.wrong.push(format!("flush lost objects {report:?}"))
            }
            Ok(_) => {}
            Err(error) => self.excused("flush", error),
        }
        self.event(Event::FlushEnded(outcome.is_ok()));
    }

    fn remove(&mut self, key: ObjectKey) {
        self.event(Event::RemoveBegun(key));
        let Some(store) = &self.store else { return };
        let outcome = store.remove(&[key], Options::default());
        if let Err(error) = &outcome {
            self.excused("remove", error);
        }
        self.event(Event::RemoveEnded(key, outcome.is_ok()));
    }

    fn clear(&mut self, ns: u32) {
        let ns = namespace(ns);
        self.event(Event::ClearBegun(ns));
        let Some(store) = &self.store else { return };
        let outcome = store.clear(ns, Options::default());
        if let Err(error) = &outcome {
            self.excused("clear", error);
        }
        self.event(Event::ClearEnded(ns, outcome.is_ok()));
    }

    fn pin(&mut self, keys: &[ObjectKey]) {
        for key in keys {
            let Some(store) = &self.store else { return };
            let pin = store.pin(&[*key]);
            let holds = pin.pinned() == 1;
            self.pins.push(pin);
            // With one fingerprint for all, a pin may be on another object.
            if holds && !self.shape.constant {
                self.event(Event::Pinned(*key));
            }
        }
    }

    fn close(&mut self) {
        self.pins.clear();
        self.event(Event::Unpinned);
        self.event(Event::FlushBegun);
        if let Some(store) = self.store.take() {
            self.checkpoints += store.stats().checkpoints;
            let closed = store.close();
            if let Err(error) = &closed {
                self.excused("close", error);
            }
            self.event(Event::FlushEnded(closed.is_ok()));
        }
        self.reopened();
    }

    /// The process ended; open again and look at everything.
    pub fn reopened(&mut self) {
        self.pins.clear();
        self.store = None;
        self.event(Event::Died);
        if self.open() {
            let keep: Vec<ObjectKey> = self.model.keys().copied().collect();
            let pin = self.store.as_ref().map(|s| s.pin(&keep));
            self.look_at_everything();
            drop(pin);
            self.event(Event::Unpinned);
        }
    }

    /// Get every key there ever was, and judge the answers.
    pub fn look_at_everything(&mut self) {
        let keys: Vec<ObjectKey> = self.model.keys().copied().collect();
        self.get(&keys);
        let Some(store) = &self.store else { return };
        let damaged = store.stats().damaged;
        if damaged > 0 && !self.world.disk.stopped() {
            self.wrong.push(format!("what is not intact was indexed damaged={damaged}"));
        }
    }

    fn get(&mut self, keys: &[ObjectKey]) {
        let Some(answers) = self.ask(keys) else { return };
        let wrong = self.model.judge(&answers);
        self.wrong.extend(wrong);
        for (key, put) in answers {
            self.event(Event::Seen(key, put));
        }
    }

    /// What a put was told to be present is present.
    fn present(&mut self, keys: &[ObjectKey]) {
        let Some(answers) = self.ask(keys) else { return };
        for (key, answer) in &answers {
            let allowed = self.model.allowed(key);
            if answer.map_or(!self.shape.evicts, |put| !allowed.puts.contains(&put)) {
                self.wrong.push(format!("put said present key={key} got={answer:?} {allowed:?}"));
            }
        }
    }

    /// Get these keys; `None` if the disk stopped meanwhile.
    pub fn ask(&mut self, keys: &[ObjectKey]) -> Option<BTreeMap<ObjectKey, Option<Put>>> {
        let store = self.store.as_ref()?;
        let mut answers = BTreeMap::new();
        // The objects of a page in one batch: between two a page may be evicted.
        for some in keys.chunk_by(|a, b| a.same_page(b)) {
            let exists = store.exists_batch(some, Options::default());
            let mut bufs: Vec<_> = some.iter().map(super::world::Memory::of).collect();
            let mut pieces: Vec<[&mut [u8]; 1]> = bufs.iter_mut().map(|b| [b.bytes_mut()]).collect();
            let mut gets: Vec<GetSlice<'_, '_>> = some
                .iter()
                .zip(&mut pieces)
                .map(|(key, pieces)| GetSlice { key: *key, range: None, pieces })
                .collect();
            let outcomes = store.get_batch(&mut gets, Options::default());
            for (((key, buf), outcome), exists) in some.iter().zip(&bufs).zip(outcomes).zip(exists) {
                let answer = match outcome {
                    Ok(GetOutcome::Hit { .. }) => {
                        Some(self.contents.whose(key, buf.bytes()).unwrap_or(NOBODYS))
                    }
                    Ok(GetOutcome::Miss(cause)) => {
                        let torn = cause == MissCause::Damaged || cause == MissCause::Late;
                        let broken = exists && !self.shape.constant && !self.shape.evicts;
                        if (torn || broken) && !self.world.disk.stopped() {
                            self.wrong.push(format!("exists and cannot be got key={key} cause={cause}"));
                        }
                        None
                    }
                    // Of all the fingerprints that are equal one may have another length.
                    Err(error) if self.world.disk.stopped() || error.kind == ErrorKind::Busy => None,
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

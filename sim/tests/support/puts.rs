//! The steps that put: groups at once, groups begun and committed, and attached groups. Each
//! outcome of the store is compared with the outcomes that the model allowed before.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use pagelith::layouts::ids::NamespaceId;
use pagelith::layouts::key::ObjectKey;
use pagelith::{
    CompletedBatch, Error, ErrorKind, Group, OpenGroupId, Options, PutGroup, PutOutcome, PutSlice,
    Result, Session, Source, Store, Ticket,
};
use pagelith_io::clock::Clock;
use pagelith_sim::model::{Allowed, Model, ModelEvent, Put, PutEnd};

use super::objects::GROUP_DEADLINE_MS;
use super::run::Run;

/// Longest time that a step is retried while the store is busy.
const BUSY: Duration = Duration::from_secs(2);

/// An open group.
#[derive(Debug)]
struct Opened {
    keys: Vec<ObjectKey>,
    id: OpenGroupId,
    put: Put,
    filled: BTreeSet<ObjectKey>,
    /// Members that were put, and perhaps removed since together with an object of a common group.
    unsure: BTreeSet<ObjectKey>,
}

/// The groups that this process opened.
#[derive(Debug, Default)]
pub struct OpenGroups(Vec<Opened>);

impl OpenGroups {
    /// A namespace is cleared.
    pub fn clear(&mut self, ns: NamespaceId) {
        self.0.retain(|o| o.keys[0].namespace() != ns);
    }

    /// An object and its groups are removed, with the objects put of them for an open group.
    pub fn removed(&mut self, key: &ObjectKey) {
        for open in self.0.iter_mut().filter(|o| o.keys[0].same_page(key)) {
            open.unsure.append(&mut open.filled);
            open.unsure.remove(key);
        }
    }

    /// Whether an open group of other objects requires any of these objects.
    fn conflict(&self, keys: &[ObjectKey]) -> bool {
        self.0.iter().any(|o| o.keys != keys && o.keys.iter().any(|k| keys.contains(k)))
    }
}

type Outcomes = Vec<Result<PutOutcome>>;
/// The allowed results of a get of each object of a put, and of its base, before the put.
type Before = BTreeMap<ObjectKey, Allowed>;

impl Run<'_> {
    /// Puts a group, attached to `base` if given.
    pub(super) fn put(&mut self, base: Option<ObjectKey>, keys: &[ObjectKey]) {
        let Some(store) = self.store.take() else { return };
        self.puts += 1;
        let put = Put(self.puts);
        let before = self.before(keys);
        let base_before = base.map(|base| self.model.allowed(&base));
        self.event(ModelEvent::PutBegun(put, base, keys.to_vec()));
        let contents = self.contents.clone();
        let outcomes = self.submit_until_accepted(&store, |session| {
            let source = |key: &ObjectKey| Source::shared(contents.of(key, put));
            let objects = keys.iter().map(|key| pagelith::Put { key: *key, source: source(key) });
            session
                .submit_put(vec![PutGroup { objects: objects.collect(), base }], Options::default())
        });
        self.store = Some(store);
        let end = self.end(base, keys, &before, &outcomes);
        let stored = match &end {
            PutEnd::Stored(_) => true,
            PutEnd::Present | PutEnd::Waiting | PutEnd::Nothing | PutEnd::Unknown => false,
        };
        match (&end, base_before) {
            (PutEnd::Waiting, None) => {
                self.wrong.push(format!("it has no base and waits put={put:?}"))
            }
            (PutEnd::Waiting, Some(base)) if !base.miss => {
                self.wrong.push(format!(
                    "group waits although its base is present put={put:?} base={base:?}"
                ));
            }
            (PutEnd::Stored(_), Some(base)) if base.puts.is_empty() && !self.shape.constant => {
                self.wrong.push(format!("stored without its base put={put:?} base={base:?}"));
            }
            _ => {}
        }
        self.event(ModelEvent::PutEnded(put, end.clone()));
        let with_base: Vec<ObjectKey> = keys.iter().chain(&base).copied().collect();
        match end {
            PutEnd::Present => self.present(&with_base),
            _ if stored && base.is_some() => self.get(&with_base),
            PutEnd::Stored(_) | PutEnd::Waiting | PutEnd::Nothing | PutEnd::Unknown => {}
        }
    }

    fn before(&self, keys: &[ObjectKey]) -> Before {
        keys.iter().map(|key| (*key, self.model.allowed(key))).collect()
    }

    /// Submits until the store is not busy any more; returns one outcome per object.
    fn submit_until_accepted(
        &mut self,
        store: &Store,
        submit: impl Fn(&mut Session) -> Ticket,
    ) -> Outcomes {
        let until = self.world.clock.now().after(BUSY);
        loop {
            let done = store.session().map(|mut session| {
                let ticket = submit(&mut session);
                loop {
                    if let Some(done) = session.wait(ticket, Duration::from_secs(1)) {
                        break done;
                    }
                }
            });
            let outcomes: Outcomes = match done {
                Ok(CompletedBatch::Put(done)) => done.into_iter().map(|d| d.outcome).collect(),
                Ok(other) => panic!("a put ended as {other:?}"),
                Err(error) => vec![Err(error)],
            };
            let busy =
                |o: &Result<PutOutcome>| o.as_ref().is_err_and(|e| e.kind == ErrorKind::Busy);
            if !outcomes.iter().any(busy)
                || self.world.disk.stopped()
                || self.world.clock.now() >= until
            {
                return outcomes;
            }
            self.world.runtime.run_for(Duration::from_micros(500));
        }
    }

    /// The outcome of a group, from the outcomes of its objects.
    fn end(
        &mut self,
        base: Option<ObjectKey>,
        keys: &[ObjectKey],
        before: &Before,
        outcomes: &Outcomes,
    ) -> PutEnd {
        if let Some(Err(error)) = outcomes.iter().find(|o| o.is_err()) {
            self.refused(base, keys, error);
            let nothing = error.kind == ErrorKind::Invalid || error.kind == ErrorKind::Busy;
            return if nothing { PutEnd::Nothing } else { PutEnd::Unknown };
        }
        let which = |outcome: PutOutcome| -> Vec<ObjectKey> {
            let is = |(_, o): &(&ObjectKey, &Result<PutOutcome>)| **o == Ok(outcome);
            keys.iter().zip(outcomes).filter(is).map(|(key, _)| *key).collect()
        };
        let all = |some: &[ObjectKey]| some.len() == keys.len();
        let (stored, present) = (which(PutOutcome::Stored), which(PutOutcome::AlreadyPresent));
        if all(&present) {
            return PutEnd::Present;
        }
        if all(&which(PutOutcome::Waiting)) {
            return PutEnd::Waiting;
        }
        if all(&which(PutOutcome::Refused)) {
            return PutEnd::Unknown;
        }
        if stored.is_empty() || stored.len() + present.len() != keys.len() {
            self.wrong.push(format!("outcomes that cannot be together {outcomes:?}"));
        }
        let end = PutEnd::Stored(present);
        self.wrong.extend(Model::judge_end(before, &end));
        end
    }

    /// Checks an error: objects in two groups conflict, or the error is allowed anyway.
    fn refused(&mut self, base: Option<ObjectKey>, keys: &[ObjectKey], error: &Error) {
        let conflict = || self.model.may_conflict(base, keys) || self.opened.conflict(keys);
        if error.kind != ErrorKind::Invalid || !conflict() {
            self.check_error("put", error);
        }
    }

    /// Checks that objects reported as present are present.
    fn present(&mut self, keys: &[ObjectKey]) {
        let Some(answers) = self.get_keys(keys) else { return };
        for (key, answer) in &answers {
            let allowed = self.model.allowed(key);
            if answer.map_or(!self.shape.evicts, |put| !allowed.puts.contains(&put)) {
                self.wrong.push(format!(
                    "put reported an existing object key={key} got={answer:?} {allowed:?}"
                ));
            }
        }
    }

    /// Begins a group, or joins it; returns its index in the list.
    fn join(&mut self, store: &Store, keys: &[ObjectKey]) -> Option<(Group, usize)> {
        let group = match store.begin_group(keys, Options::default()) {
            Ok(group) => group,
            Err(error) => {
                self.refused(None, keys, &error);
                return None;
            }
        };
        if let Some(at) = self.opened.0.iter().position(|o| o.keys == keys) {
            if self.opened.0[at].id == group.id() {
                return Some((group, at));
            }
            self.wrong.push(format!("an open group is gone {:?}", self.opened.0[at]));
            self.opened.0.remove(at);
        }
        self.puts += 1;
        let (put, id) = (Put(self.puts), group.id());
        self.opened.0.push(Opened {
            keys: keys.to_vec(),
            id,
            put,
            filled: BTreeSet::new(),
            unsure: BTreeSet::new(),
        });
        Some((group, self.opened.0.len() - 1))
    }

    pub(super) fn begin(&mut self, keys: &[ObjectKey]) {
        let Some(store) = self.store.take() else { return };
        self.join(&store, keys);
        self.store = Some(store);
    }

    /// Puts one object of an open group, or all: none of them becomes visible by that.
    pub(super) fn members(&mut self, keys: &[ObjectKey], which: Option<usize>) {
        let Some(store) = self.store.take() else { return };
        if let Some((group, at)) = self.join(&store, keys) {
            let put = self.opened.0[at].put;
            for key in keys
                .iter()
                .enumerate()
                .filter(|(i, _)| which.is_none_or(|w| w == *i))
                .map(|(_, k)| k)
            {
                let bytes = self.contents.of(key, put);
                let object = PutSlice { key: *key, pieces: &[&bytes] };
                let outcome = group.put(&[object], Options::default()).remove(0);
                let allowed = self.model.allowed(key);
                let Opened { filled, unsure, .. } = &mut self.opened.0[at];
                let was = filled.contains(key) || unsure.contains(key);
                match outcome {
                    Ok(PutOutcome::Waiting) if filled.insert(*key) => {}
                    Ok(PutOutcome::AlreadyPresent) if was || !allowed.puts.is_empty() => {}
                    Ok(other) => {
                        self.wrong.push(format!("put into a group key={key} outcome={other:?}"))
                    }
                    Err(error) => self.check_error("put into a group", &error),
                }
            }
        }
        self.store = Some(store);
        self.get(keys);
    }

    pub(super) fn commit(&mut self, keys: &[ObjectKey]) {
        let Some(store) = self.store.take() else { return };
        let joined = self.join(&store, keys).map(|(group, at)| (group.id(), at));
        if let Some((id, at)) = joined {
            let put = self.opened.0[at].put;
            let before = self.before(keys);
            self.event(ModelEvent::PutBegun(put, None, keys.to_vec()));
            let outcomes = self.submit_until_accepted(&store, |session| {
                session.submit_commit(id, Options::default())
            });
            let end = self.end(None, keys, &before, &outcomes);
            let Opened { filled, unsure, .. } = &self.opened.0[at];
            let put_here = |key: &ObjectKey| filled.contains(key) || unsure.contains(key);
            let missing = |key: &&ObjectKey| !filled.contains(key) && before[*key].miss;
            let end = match end {
                PutEnd::Waiting if keys.iter().any(|key| missing(&key)) => PutEnd::Nothing,
                PutEnd::Waiting => {
                    self.wrong.push(format!("complete, and not committed {:?}", self.opened.0[at]));
                    PutEnd::Nothing
                }
                PutEnd::Stored(kept) => {
                    if !keys.iter().all(|key| put_here(key) || kept.contains(key)) {
                        self.wrong.push(format!("committed without bytes {:?}", self.opened.0[at]));
                    }
                    PutEnd::Stored(kept)
                }
                end => end,
            };
            if end == PutEnd::Unknown {
                let group = store.begin_group(keys, Options::default());
                group.into_iter().for_each(|group| group.abort());
            }
            if end != PutEnd::Nothing {
                self.opened.0.remove(at);
            }
            self.event(ModelEvent::PutEnded(put, end));
        }
        self.store = Some(store);
        self.get(keys);
    }

    pub(super) fn abort(&mut self, keys: &[ObjectKey]) {
        let Some(store) = self.store.take() else { return };
        if let Some((group, at)) = self.join(&store, keys) {
            group.abort();
            self.opened.0.remove(at);
        }
        self.store = Some(store);
        self.get(keys);
    }

    /// The deadline of everything that waits has passed.
    pub(super) fn expire(&mut self) {
        self.world.clock.advance(Duration::from_millis(GROUP_DEADLINE_MS));
        self.world.runtime.run_for(Duration::from_millis(200));
        self.opened = OpenGroups::default();
        self.event(ModelEvent::WaitingDropped);
        let Some(store) = &self.store else { return };
        let waiting = store.stats().groups_waiting;
        if waiting > 0 && !self.world.disk.stopped() {
            self.wrong.push(format!("groups wait past their deadline groups={waiting}"));
        }
    }
}

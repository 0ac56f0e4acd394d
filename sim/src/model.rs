//! The oracle of a cache: which answers a store may give, from what was asked of it and what it acked.
//!
//! A get may bring the put that took effect last, or miss; never anything else. Every put has a number of its
//! own ([`Put`]), and its bytes follow from it, so that a get tells which put it met. The model is told of
//! each call before it is made and after it returned; what lies between at a crash may have happened or not.
//!
//! Rules:
//! - Acked and not crashed since: hit, with that put. After a crash, the same if a flush covered it.
//! - A put that a later durable one replaced, or that a remove or a clear took (acked), never comes back.
//! - What a reopened store was seen to hold it goes on holding; of what it was seen not to hold, nothing comes
//!   back, except what may have been evicted.
//! - Where the log may wrap ([`Model::new`] with `evicts`), a miss is always right, except for what was
//!   pinned all the time.

use std::collections::{BTreeMap, BTreeSet};

use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;

/// Puts after which an object is still in the newest part of the log.
const PUTS_IN_FRONT: u32 = 4;

/// The number of a put; the members of a group have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Put(pub u64);

/// What became of a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PutEnd {
    /// Acked as stored.
    Stored,
    /// Acked as present already: its bytes were not looked at.
    Present,
    /// An error: nothing is known.
    Unknown,
}

/// A call, before it is made or after it returned, or what else changes what may be answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A group is about to be put.
    PutBegun(Put, Vec<ObjectKey>),
    /// It returned.
    PutEnded(Put, PutEnd),
    /// A flush (or close) is about to be asked for.
    FlushBegun,
    /// It returned; true if it succeeded.
    FlushEnded(bool),
    /// An object and its group are about to be removed.
    RemoveBegun(ObjectKey),
    /// It returned; true if it succeeded.
    RemoveEnded(ObjectKey, bool),
    /// A namespace is about to be cleared.
    ClearBegun(NamespaceId),
    /// It returned; true if it succeeded.
    ClearEnded(NamespaceId, bool),
    /// An object is pinned that was here. Counts only if it was put a short time ago.
    Pinned(ObjectKey),
    /// Nothing is pinned any more.
    Unpinned,
    /// The process ended, in whatever way.
    Died,
    /// A get by the process that runs brought this.
    Seen(ObjectKey, Option<Put>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// May be there or not.
    Maybe,
    /// Acked by the process that runs.
    Stored,
    /// Acked, and covered by a flush.
    Flushed,
}

/// What was done to one key.
#[derive(Clone, Debug, Default)]
struct History {
    puts: Vec<(Put, State)>,
    /// The first so many puts never come back.
    gone: usize,
    /// The first so many puts may have been taken by a remove or a clear.
    doubt: usize,
    /// By one that this process began and that may not be durable yet.
    pending: bool,
    pinned: bool,
    /// Puts stored since its own was: what was put long ago may have left the SSD and be in memory only, where
    /// a pin keeps it, but not across a crash.
    since: u32,
    /// It was in two groups: see [`Model::regroup`].
    loose: bool,
}

impl History {
    /// The youngest put that is there for certain, if none was taken or evicted.
    fn certain(&self) -> Option<usize> {
        let certain = |(_, s): &(Put, State)| *s != State::Maybe;
        self.puts.iter().rposition(certain).filter(|at| *at >= self.gone)
    }

    fn begin_taking(&mut self) {
        self.doubt = self.puts.len();
        self.pending = true;
    }

    fn take(&mut self, all: usize) {
        self.gone = self.gone.max(all);
    }
}

/// What a get of a key may bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    /// These puts.
    pub puts: Vec<Put>,
    /// Or nothing.
    pub miss: bool,
}

/// What a store may answer.
#[derive(Clone, Debug)]
pub struct Model {
    keys: BTreeMap<ObjectKey, History>,
    groups: BTreeMap<Put, Vec<ObjectKey>>,
    /// Puts that the flush under way will cover.
    flushing: BTreeSet<Put>,
    evicts: bool,
}

impl Model {
    /// Of an empty store. `evicts`: whether more is put than it has room for.
    pub fn new(evicts: bool) -> Model {
        Model { keys: BTreeMap::new(), groups: BTreeMap::new(), flushing: BTreeSet::new(), evicts }
    }

    /// Take an event in.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::PutBegun(put, members) => {
                self.regroup(members);
                for key in members {
                    self.keys.entry(*key).or_default().puts.push((*put, State::Maybe));
                }
                self.groups.insert(*put, members.clone());
            }
            Event::PutEnded(put, end) => self.put_ended(*put, *end),
            Event::FlushBegun => {
                let stored = self.keys.values().flat_map(|h| &h.puts).filter(|(_, s)| *s == State::Stored);
                self.flushing = stored.map(|(put, _)| *put).collect();
            }
            Event::FlushEnded(ok) => {
                let flushed = std::mem::take(&mut self.flushing);
                for (put, state) in self.keys.values_mut().flat_map(|h| &mut h.puts) {
                    if *ok && *state == State::Stored && flushed.contains(put) {
                        *state = State::Flushed;
                    }
                }
            }
            Event::RemoveBegun(key) => {
                let group = self.keys.get(key).and_then(History::certain);
                let mates = group.map(|at| self.keys[key].puts[at].0).and_then(|p| self.groups.get(&p));
                for key in mates.into_iter().flatten().chain([key]) {
                    let h = self.keys.entry(*key).or_default();
                    h.begin_taking();
                }
            }
            Event::RemoveEnded(key, true) => {
                let h = self.keys.entry(*key).or_default();
                h.take(h.puts.len());
                h.pending = false;
            }
            Event::ClearBegun(namespace) => self.of(*namespace, History::begin_taking),
            Event::ClearEnded(namespace, true) => self.of(*namespace, |h| {
                h.take(h.puts.len());
                h.pending = false;
            }),
            Event::RemoveEnded(_, false) | Event::ClearEnded(_, false) => {}
            Event::Pinned(key) => {
                let h = self.keys.entry(*key).or_default();
                h.pinned |= h.since <= PUTS_IN_FRONT;
            }
            Event::Unpinned => self.keys.values_mut().for_each(|h| h.pinned = false),
            Event::Died => {
                self.flushing.clear();
                self.keys.values_mut().for_each(|h| h.pending = false);
                for (_, state) in self.keys.values_mut().flat_map(|h| &mut h.puts) {
                    if *state == State::Stored {
                        *state = State::Maybe;
                    }
                }
            }
            Event::Seen(key, put) => self.seen(key, *put),
        }
    }

    /// Putting a group that has some members of an older one, not all, replaces those and takes the rest of the
    /// older group. What a member was before may be found again after a crash, if what replaced it was itself
    /// replaced or evicted by then: a store keeps no tombstones of replaced puts.
    fn regroup(&mut self, members: &[ObjectKey]) {
        let regrouped: Vec<Vec<ObjectKey>> = self
            .groups
            .values()
            .filter(|old| old.iter().any(|k| members.contains(k)))
            .filter(|old| old.len() != members.len() || !old.iter().all(|k| members.contains(k)))
            .cloned()
            .collect();
        for key in regrouped.iter().flatten().chain(members.iter().filter(|_| !regrouped.is_empty())) {
            let h = self.keys.entry(*key).or_default();
            h.loose = true;
            if !members.contains(key) {
                h.doubt = h.puts.len();
            }
        }
    }

    fn of(&mut self, namespace: NamespaceId, change: impl Fn(&mut History)) {
        let inside = self.keys.iter_mut().filter(|(key, _)| key.namespace() == namespace);
        inside.for_each(|(_, h)| change(h));
    }

    fn put_ended(&mut self, put: Put, end: PutEnd) {
        if end == PutEnd::Stored {
            self.keys.values_mut().for_each(|h| h.since += 1);
        }
        for key in self.groups.get(&put).into_iter().flatten() {
            let Some(h) = self.keys.get_mut(key) else { continue };
            let Some(at) = h.puts.iter().position(|(p, _)| *p == put) else { continue };
            match end {
                PutEnd::Stored => {
                    h.since = 0;
                    // None of the older ones was there, so none must be found again.
                    h.puts[..at].iter_mut().for_each(|(_, state)| *state = State::Maybe);
                    h.puts[at].1 = State::Stored;
                }
                PutEnd::Present => {
                    h.puts.remove(at);
                }
                PutEnd::Unknown => {}
            }
        }
        if end == PutEnd::Present {
            self.groups.remove(&put);
        }
    }

    fn seen(&mut self, key: &ObjectKey, put: Option<Put>) {
        let evicts = self.evicts;
        let Some(h) = self.keys.get_mut(key) else { return };
        let at = put.and_then(|put| h.puts.iter().position(|(p, _)| *p == put));
        match at {
            Some(at) => {
                // What was evicted may be found again if this one is lost.
                if !h.loose && !evicts {
                    h.take(at);
                }
                h.doubt = h.doubt.min(at);
                if h.puts[at].1 == State::Maybe {
                    h.puts[at].1 = State::Stored;
                }
                // Younger ones were lost.
                if !evicts && !h.loose {
                    h.puts.truncate(at + 1);
                }
            }
            None if !evicts && !h.loose && !h.pending => h.take(h.puts.len()),
            None => {}
        }
    }

    /// What a get of `key` may bring now.
    pub fn allowed(&self, key: &ObjectKey) -> Allowed {
        let Some(h) = self.keys.get(key) else { return Allowed { puts: Vec::new(), miss: true } };
        let certain = h.certain();
        let from = certain.filter(|_| !h.loose).unwrap_or(h.gone).min(h.puts.len());
        let doubtful = h.loose || certain.is_none_or(|at| h.doubt > at);
        Allowed {
            puts: h.puts[from..].iter().map(|(put, _)| *put).collect(),
            miss: doubtful || (self.evicts && !h.pinned),
        }
    }

    /// Every key that was ever put.
    pub fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.keys.keys()
    }

    /// What is wrong with these answers, one line each: every key was asked for, in one process, in one moment.
    pub fn judge(&self, answers: &BTreeMap<ObjectKey, Option<Put>>) -> Vec<String> {
        let mut wrong = Vec::new();
        for (key, answer) in answers {
            let allowed = self.allowed(key);
            let right = match answer {
                Some(put) => allowed.puts.contains(put),
                None => allowed.miss,
            };
            if !right {
                let history = self.keys.get(key);
                wrong.push(format!("wrong answer key={key} got={answer:?} allowed={allowed:?} {history:?}"));
            }
        }
        for (put, members) in self.groups.iter().filter(|(_, members)| members.len() > 1) {
            // A member that was put again meanwhile says nothing about this group any more.
            let youngest = |key: &&ObjectKey| {
                self.keys.get(key).and_then(|h| h.puts.last()).is_some_and(|(p, _)| p == put)
            };
            if members.iter().filter(youngest).count() != members.len() {
                continue;
            }
            let here = members.iter().filter(|key| answers.get(key) == Some(&Some(*put))).count();
            if here != 0 && here != members.len() {
                let seen: Vec<_> = members
                    .iter()
                    .map(|k| format!("{k}={:?} {:?}", answers.get(k), self.keys.get(k)))
                    .collect();
                wrong.push(format!("part of a group put={put:?} here={here} {}", seen.join(" ")));
            }
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::PrefixHash;
    use pagelith_layouts::key::Role;
    use pagelith_layouts::namespace::Namespace;
    use pagelith_layouts::shard::Shard;

    use super::*;

    fn key(component: &str) -> ObjectKey {
        let ns = Namespace::default().id();
        ObjectKey::new(ns, PrefixHash([1; 32]), Role::Target, "kv", component, Shard::Whole).expect("a key")
    }

    fn told(evicts: bool, events: &[Event]) -> Model {
        let mut model = Model::new(evicts);
        events.iter().for_each(|e| model.apply(e));
        model
    }

    fn put(n: u64, keys: &[&str]) -> [Event; 2] {
        let members = keys.iter().map(|k| key(k)).collect();
        [Event::PutBegun(Put(n), members), Event::PutEnded(Put(n), PutEnd::Stored)]
    }

    fn allowed(events: &[Event]) -> (Vec<u64>, bool) {
        let Allowed { puts, miss } = told(false, events).allowed(&key("k"));
        (puts.into_iter().map(|p| p.0).collect(), miss)
    }

    #[test]
    fn an_acked_put_hits_until_a_crash_and_after_it_if_flushed() {
        let [begun, ended] = put(1, &["k"]);
        assert_eq!(allowed(&[]), (vec![], true));
        assert_eq!(allowed(std::slice::from_ref(&begun)), (vec![1], true));
        assert_eq!(allowed(&[begun.clone(), ended.clone()]), (vec![1], false));
        assert_eq!(allowed(&[begun.clone(), ended.clone(), Event::Died]), (vec![1], true));
        let flush = [Event::FlushBegun, Event::FlushEnded(true), Event::Died];
        assert_eq!(allowed(&[&[begun.clone(), ended.clone()][..], &flush].concat()), (vec![1], false));
        let failed = [begun, ended, Event::FlushBegun, Event::FlushEnded(false), Event::Died];
        assert_eq!(allowed(&failed), (vec![1], true));
    }

    #[test]
    fn a_flush_covers_what_was_put_before_it_began() {
        let late = [&[Event::FlushBegun][..], &put(1, &["k"]), &[Event::FlushEnded(true), Event::Died]];
        assert_eq!(allowed(&late.concat()), (vec![1], true));
    }

    #[test]
    fn what_was_removed_or_cleared_never_comes_back() {
        let flushed = [&put(1, &["k"])[..], &[Event::FlushBegun, Event::FlushEnded(true)]].concat();
        let removed = |end: &[Event]| allowed(&[&flushed[..], &[Event::RemoveBegun(key("k"))], end].concat());
        assert_eq!(removed(&[Event::Died]), (vec![1], true));
        assert_eq!(removed(&[Event::RemoveEnded(key("k"), true), Event::Died]), (vec![], true));
        let ns = key("k").namespace();
        let cleared = [Event::ClearBegun(ns), Event::ClearEnded(ns, true)];
        assert_eq!(allowed(&[&flushed[..], &cleared].concat()), (vec![], true));
        let again = [&flushed[..], &cleared, &put(2, &["k"])].concat();
        assert_eq!(allowed(&again), (vec![2], false));
    }

    #[test]
    fn what_was_seen_stays_so() {
        let crashed = [&put(1, &["k"])[..], &[Event::Died]].concat();
        let seen = |put| allowed(&[&crashed[..], &[Event::Seen(key("k"), put)]].concat());
        assert_eq!(seen(Some(Put(1))), (vec![1], false));
        assert_eq!(seen(None), (vec![], true));
    }

    #[test]
    fn a_part_of_a_group_is_told_from_the_whole() {
        let events = [&put(1, &["k", "v"])[..], &[Event::Died]].concat();
        let judge = |k: Option<Put>, v: Option<Put>| {
            told(false, &events).judge(&BTreeMap::from([(key("k"), k), (key("v"), v)])).len()
        };
        assert_eq!(judge(None, None), 0);
        assert_eq!(judge(Some(Put(1)), Some(Put(1))), 0);
        assert_eq!(judge(Some(Put(1)), None), 1);
        assert_eq!(judge(Some(Put(2)), Some(Put(2))), 2, "bytes nobody put");
    }

    #[test]
    fn only_the_pinned_must_stay_where_the_log_wraps() {
        let events = [&put(1, &["k"])[..], &[Event::FlushBegun, Event::FlushEnded(true)]].concat();
        assert!(told(true, &events).allowed(&key("k")).miss);
        let pinned = [&events[..], &[Event::Pinned(key("k")), Event::Died]].concat();
        assert!(!told(true, &pinned).allowed(&key("k")).miss);
    }
}

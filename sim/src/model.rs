//! The oracle of a cache: which answers a store may give, given the calls made and acked.
//!
//! A get may return the put that took effect last, or miss; nothing else. Every put has a unique
//! number ([`Put`]) that determines its bytes, so a get identifies its put. The model gets an event
//! before each call and after its return; a call in progress at a crash may have happened or not.
//!
//! Rules:
//! - Acked and not crashed since: hit, with that put. After a crash, the same if a flush covered
//!   it.
//! - A put never changes visible objects: an object that was stored alone keeps its bytes in the
//!   group that it is put with, and a member of a group is not put with other objects.
//! - An object that an acked remove or clear took never comes back, nor do its group or objects
//!   attached to that.
//! - Of a group all objects are visible or none; of an attached group all or none, and only with
//!   its base.
//! - An object put into a group that is not committed, or that waits for its base, is not visible.
//! - An object that a reopened store was seen to hold stays; one that it was seen not to hold does
//!   not come back, except if it may have been evicted, or if it is attached: then it waits for its
//!   base on SSD too.
//! - Where the log may wrap ([`Model::new`] with `evicts`), a miss is always allowed, except for
//!   objects that were pinned all the time.

mod history;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;

use history::{History, State};

pub use history::{Allowed, Put};

/// The outcome of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PutEnd {
    /// Acked as stored. These of its objects were stored alone before, and keep their bytes.
    Stored(Vec<ObjectKey>),
    /// Acked as present already: its bytes were not read.
    Present,
    /// Acked, and not visible before its base is.
    Waiting,
    /// Nothing was put.
    Nothing,
    /// An error: the effect is unknown.
    Unknown,
}

/// A call, before it is made or after it returned, or another event that changes the allowed
/// answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelEvent {
    /// A group is about to be put or committed; attached to the group of an object, if one is
    /// given.
    PutBegun(Put, Option<ObjectKey>, Vec<ObjectKey>),
    /// The put returned.
    PutEnded(Put, PutEnd),
    /// All waiting groups are dropped.
    WaitingDropped,
    /// A flush (or close) is about to be requested.
    FlushBegun,
    /// The flush returned; true if it succeeded.
    FlushEnded(bool),
    /// An object and its group are about to be removed.
    RemoveBegun(ObjectKey),
    /// The remove returned; true if it succeeded.
    RemoveEnded(ObjectKey, bool),
    /// A namespace is about to be cleared.
    ClearBegun(NamespaceId),
    /// The clear returned; true if it succeeded.
    ClearEnded(NamespaceId, bool),
    /// A present object is pinned. Counts only if it was put recently.
    Pinned(ObjectKey),
    /// Nothing is pinned any more.
    Unpinned,
    /// The process ended for any reason.
    Died,
    /// A get by the running process returned this.
    Seen(ObjectKey, Option<Put>),
}

/// Objects that were put together.
#[derive(Clone, Debug)]
struct Group {
    base: Option<ObjectKey>,
    members: Vec<ObjectKey>,
    /// Members that keep the bytes of an older put; all that may, while it is unknown which do.
    kept: BTreeSet<ObjectKey>,
    waiting: bool,
    /// It never comes back.
    gone: bool,
}

/// The allowed answers of a store.
#[derive(Clone, Debug)]
pub struct Model {
    keys: BTreeMap<ObjectKey, History>,
    groups: BTreeMap<Put, Group>,
    /// Puts that the flush in progress will cover.
    flushing: BTreeSet<Put>,
    /// Groups that are visible for certain and of which an object is being removed.
    removing: Vec<Put>,
    evicts: bool,
}

impl Model {
    /// The model of an empty store. `evicts`: whether more is put than the store can hold.
    pub fn new(evicts: bool) -> Model {
        let (keys, groups, flushing) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Model { keys, groups, flushing, removing: Vec::new(), evicts }
    }

    /// Applies an event.
    pub fn apply(&mut self, event: &ModelEvent) {
        match event {
            ModelEvent::PutBegun(put, base, members) => self.put_begun(*put, *base, members),
            ModelEvent::PutEnded(put, end) => self.put_ended(*put, end),
            ModelEvent::WaitingDropped => self.groups.retain(|_, g| !g.waiting),
            ModelEvent::FlushBegun => {
                let items = self.keys.values().flat_map(|h| &h.items);
                self.flushing = items.filter(|i| i.state == State::Stored).map(|i| i.put).collect();
            }
            ModelEvent::FlushEnded(ok) => {
                let flushed = std::mem::take(&mut self.flushing);
                for item in self.keys.values_mut().flat_map(|h| &mut h.items) {
                    if *ok && item.state == State::Stored && flushed.contains(&item.put) {
                        item.state = State::Flushed;
                    }
                }
            }
            ModelEvent::RemoveBegun(key) => self.remove_begun(key),
            ModelEvent::RemoveEnded(key, true) => self.removed(key),
            ModelEvent::ClearBegun(namespace) => self.of(*namespace, History::begin_removal),
            ModelEvent::ClearEnded(namespace, true) => {
                self.of(*namespace, History::end_removal);
                let inside =
                    self.groups.values_mut().filter(|g| g.members[0].namespace() == *namespace);
                inside.for_each(|g| g.gone = true);
            }
            ModelEvent::RemoveEnded(_, false) | ModelEvent::ClearEnded(_, false) => {}
            ModelEvent::Pinned(key) => self.keys.entry(*key).or_default().pin(),
            ModelEvent::Unpinned => self.keys.values_mut().for_each(|h| h.pinned = false),
            ModelEvent::Died => self.died(),
            ModelEvent::Seen(key, put) => self.seen(key, *put),
        }
    }

    fn of(&mut self, namespace: NamespaceId, change: impl Fn(&mut History)) {
        let inside = self.keys.iter_mut().filter(|(key, _)| key.namespace() == namespace);
        inside.for_each(|(_, h)| change(h));
        // A clear drops waiting groups at once.
        self.groups.retain(|_, g| !g.waiting || g.members[0].namespace() != namespace);
    }

    fn put_begun(&mut self, put: Put, base: Option<ObjectKey>, members: &[ObjectKey]) {
        let alone = |key: &ObjectKey| {
            self.groups_with(key)
                .any(|(put, g)| g.members.len() == 1 && g.base.is_none() && self.has(key, *put))
        };
        let kept = members.iter().copied().filter(alone).collect();
        let group = Group { base, members: members.to_vec(), kept, waiting: false, gone: false };
        self.groups.insert(put, group);
        members.iter().for_each(|key| self.keys.entry(*key).or_default().begin(put));
        // Groups that wait for it become visible with it.
        for put in self.waiting_for(members) {
            for key in self.groups[&put].members.clone() {
                self.keys.entry(key).or_default().begin(put);
            }
        }
    }

    fn has(&self, key: &ObjectKey, put: Put) -> bool {
        self.keys.get(key).is_some_and(|h| h.items.iter().any(|i| i.put == put && !i.gone))
    }

    fn waiting_for(&self, bases: &[ObjectKey]) -> Vec<Put> {
        let waits = |g: &Group| g.waiting && g.base.is_some_and(|base| bases.contains(&base));
        self.groups.iter().filter(|(_, g)| waits(g)).map(|(put, _)| *put).collect()
    }

    fn put_ended(&mut self, put: Put, end: &PutEnd) {
        let Some(members) = self.groups.get(&put).map(|g| g.members.clone()) else { return };
        let waiting = self.waiting_for(&members);
        match end {
            PutEnd::Stored(kept) => {
                self.stored(put, kept);
                for put in waiting {
                    if let Some(g) = self.groups.get_mut(&put) {
                        g.waiting = false;
                    }
                    self.stored(put, &[]);
                }
            }
            PutEnd::Present | PutEnd::Nothing => {
                self.groups.remove(&put);
                self.forget(put, &members);
                waiting
                    .into_iter()
                    .for_each(|put| self.forget(put, &self.groups[&put].members.clone()));
            }
            PutEnd::Waiting => {
                self.forget(put, &members);
                let base = self.groups[&put].base;
                if self.groups.values().any(|g| g.waiting && g.base == base && g.members == members)
                {
                    // It already waits, and its bytes are those of the first put.
                    self.groups.remove(&put);
                } else if let Some(g) = self.groups.get_mut(&put) {
                    g.waiting = true;
                }
            }
            PutEnd::Unknown => {}
        }
    }

    fn stored(&mut self, put: Put, kept: &[ObjectKey]) {
        self.keys.values_mut().for_each(|h| h.since += 1);
        let Some(group) = self.groups.get_mut(&put) else { return };
        group.kept = kept.iter().copied().collect();
        for key in &group.members {
            let Some(h) = self.keys.get_mut(key) else { continue };
            h.since = 0;
            match group.kept.contains(key) {
                true => h.items.retain(|i| i.put != put),
                false => h.store(put),
            }
        }
    }

    fn forget(&mut self, put: Put, members: &[ObjectKey]) {
        for key in members {
            if let Some(h) = self.keys.get_mut(key) {
                h.items.retain(|i| i.put != put);
            }
        }
    }

    /// Groups with this object that may be visible.
    fn groups_with<'a>(&'a self, key: &'a ObjectKey) -> impl Iterator<Item = (&'a Put, &'a Group)> {
        self.groups.iter().filter(move |(_, g)| !g.gone && !g.waiting && g.members.contains(key))
    }

    fn remove_begun(&mut self, key: &ObjectKey) {
        let is_live = |(put, g): &(&Put, &Group)| {
            g.members.iter().all(|m| {
                let certain = self.keys.get(m).and_then(History::certain_put);
                !self.allowed(m).miss && (g.kept.contains(m) || certain == Some(**put))
            })
        };
        self.removing = self.groups_with(key).filter(is_live).map(|(put, _)| *put).collect();
        let mut mates: BTreeSet<ObjectKey> =
            self.groups_with(key).flat_map(|(_, g)| g.members.clone()).chain([*key]).collect();
        // Objects attached to one of them are removed too.
        let attached =
            self.groups.values().filter(|g| g.base.is_some_and(|base| mates.contains(&base)));
        let attached: Vec<ObjectKey> = attached.flat_map(|g| g.members.clone()).collect();
        mates.extend(attached);
        for key in mates {
            self.keys.entry(key).or_default().begin_removal();
        }
    }

    fn removed(&mut self, key: &ObjectKey) {
        let removing = std::mem::take(&mut self.removing);
        let gone = removing.iter().flat_map(|put| self.groups[put].members.clone()).chain([*key]);
        let gone: BTreeSet<ObjectKey> = gone.collect();
        for key in &gone {
            self.keys.entry(*key).or_default().end_removal();
        }
        self.groups.retain(|_, g| !g.waiting || !g.has_any(&gone));
        // A group with a removed member is removed, and so are groups attached to it.
        for (put, group) in self.groups.iter_mut().filter(|(_, g)| g.has_any(&gone)) {
            group.gone = true;
            for m in &group.members {
                let Some(h) = self.keys.get_mut(m) else { continue };
                h.items.iter_mut().filter(|i| i.put == *put).for_each(|i| i.gone = true);
            }
        }
    }

    fn died(&mut self) {
        self.flushing.clear();
        self.removing.clear();
        self.groups.retain(|_, g| !g.waiting);
        self.keys.values_mut().for_each(History::died);
        // An attached group whose base is not found is not found either, though it is still stored
        // on SSD.
        let lost = |g: &&Group| !g.gone && g.base.is_some_and(|base| self.own(&base).miss);
        let lost: Vec<_> =
            self.groups.values().filter(lost).flat_map(|g| g.members.clone()).collect();
        for key in lost {
            let Some(h) = self.keys.get_mut(&key) else { continue };
            h.items.iter_mut().for_each(|i| i.state = State::Maybe);
        }
    }

    fn seen(&mut self, key: &ObjectKey, put: Option<Put>) {
        // An evicted object may be found again if this put is lost, and an attached one once its
        // base is back.
        let attached = self.groups_with(key).any(|(_, g)| g.base.is_some());
        let final_ = !self.evicts && !attached;
        let Some(h) = self.keys.get_mut(key) else { return };
        match put.and_then(|put| h.items.iter().position(|i| i.put == put)) {
            Some(at) => {
                if final_ {
                    h.take(at);
                    // Later puts were lost.
                    h.items.truncate(at + 1);
                }
                h.doubt = h.doubt.min(at);
                if h.items[at].state == State::Maybe {
                    h.items[at].state = State::Stored;
                }
            }
            None if final_ && !h.pending => h.take(h.items.len()),
            None => {}
        }
    }

    /// The allowed results of a get of `key`, ignoring bases.
    fn own(&self, key: &ObjectKey) -> Allowed {
        let none = || Allowed { puts: Vec::new(), miss: true };
        self.keys.get(key).map_or_else(none, |h| h.allowed(self.evicts))
    }

    /// The allowed results of a get of `key` now.
    pub fn allowed(&self, key: &ObjectKey) -> Allowed {
        let mut own = self.own(key);
        let base = |put: &Put| self.groups.get(put).and_then(|g| g.base);
        own.puts.retain(|put| base(put).is_none_or(|base| !self.own(&base).puts.is_empty()));
        let mut bases = self.groups_with(key).filter_map(|(_, g)| g.base);
        own.miss |= own.puts.is_empty() || bases.any(|base| self.own(&base).miss);
        own
    }

    /// Whether these objects may belong to a group, visible or not, with other members.
    pub fn may_conflict(&self, base: Option<ObjectKey>, keys: &[ObjectKey]) -> bool {
        let other = |g: &Group| {
            let same = g.members.len() == keys.len() && g.members.iter().all(|m| keys.contains(m));
            (g.members.len() > 1 || g.base.is_some())
                && (!same || g.base.is_some() != base.is_some())
        };
        keys.iter().any(|key| self.groups_with(key).any(|(_, g)| other(g)))
    }

    /// Every key that was ever put.
    pub fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.keys.keys()
    }

    /// Errors in these answers, one line each: all keys were read by one process at one moment.
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
                wrong.push(format!(
                    "wrong answer key={key} got={answer:?} allowed={allowed:?} {history:?}"
                ));
            }
        }
        for (put, group) in &self.groups {
            wrong.extend(group.judge(*put, answers));
        }
        wrong
    }

    /// Errors in the outcome of a put, given the allowed results `before` of gets of its objects.
    pub fn judge_end(before: &BTreeMap<ObjectKey, Allowed>, end: &PutEnd) -> Vec<String> {
        let PutEnd::Stored(kept) = end else { return Vec::new() };
        let wrong = before.iter().filter_map(|(key, allowed)| match kept.contains(key) {
            true if allowed.puts.is_empty() => {
                Some(format!("kept bytes of an absent object key={key}"))
            }
            false if !allowed.miss => {
                Some(format!("put replaced a visible object key={key} {allowed:?}"))
            }
            true | false => None,
        });
        wrong.collect()
    }
}

impl Group {
    /// Whether any of these is a member or the base.
    fn has_any(&self, keys: &BTreeSet<ObjectKey>) -> bool {
        self.members.iter().chain(&self.base).any(|key| keys.contains(key))
    }

    /// The error, if any, in these answers about this group.
    fn judge(&self, put: Put, answers: &BTreeMap<ObjectKey, Option<Put>>) -> Option<String> {
        let has_put = |key: &ObjectKey| answers.get(key) == Some(&Some(put));
        if !self.members.iter().any(has_put) {
            return None;
        }
        let seen = || {
            let answer = |key: &ObjectKey| format!("{key}={:?}", answers.get(key));
            self.members.iter().chain(&self.base).map(answer).collect::<Vec<_>>().join(" ")
        };
        let missing = |key: &ObjectKey| match answers.get(key) {
            None => false,
            Some(answer) => *answer != Some(put) && !(self.kept.contains(key) && answer.is_some()),
        };
        if self.members.iter().any(missing) {
            return Some(format!("group is partial put={put:?} {}", seen()));
        }
        let alone = self.base.is_some_and(|base| answers.get(&base) == Some(&None));
        alone.then(|| format!("attached group without its base put={put:?} {}", seen()))
    }
}

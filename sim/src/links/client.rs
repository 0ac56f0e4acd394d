//! A client: it makes one call after the other, gives up at deadlines, and reuses its memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use pagelith::Options;
use pagelith_io::runtime::{Step, Task};
use pagelith_layouts::key::ObjectKey;

use super::object_keys::{PAGE, group, key, namespace};
use super::oracle::{NAMESPACES, OBJECTS};
use super::shared::{Begun, Shared};
use super::store_handle::StoreHandle;
use super::views::Views;
use crate::entropy::SplitMix64;
use crate::explore::memory::{Memory, Target};

pub struct SimClient {
    pub handle: StoreHandle,
    pub shared: Shared,
    /// Requests that stores have sent to their peers.
    pub questions: Arc<AtomicU64>,
    pub rng: SplitMix64,
    pub memory: Memory,
    pub views: Views,
    pub left: u32,
    /// It uses the objects `0..of`.
    pub objects_used: usize,
    /// Now and then it has several batches in progress at once.
    pub has_batches: bool,
    /// It removes objects that others use, and requests objects that others remove.
    pub overlaps_removals: bool,
    /// Number of stores whose clients request and put the same objects.
    pub stores: usize,
    /// The objects that it put last.
    pub put_last: Vec<usize>,
    /// The last call found the store unavailable.
    pub store_unavailable: bool,
    /// The last field: its drop is the end of the client's.
    pub drop_end: DropEnd,
}

/// Counts the drop of a client as a step: a session and a store wait in their drops.
pub struct DropEnd {
    pub shared: Shared,
    pub begun: Option<Begun>,
}

impl Drop for DropEnd {
    fn drop(&mut self) {
        if let Some(begun) = self.begun {
            self.shared.end_step(begun);
        }
    }
}

/// Requests of stores to their peers that one object of a client's get or put, or one call, may
/// cause; without faults it is a third of one. `QUESTIONS_FREE` more are allowed, since many calls
/// run at once.
const QUESTIONS_PER_CALL_MAX: u64 = 2;
const QUESTIONS_FREE: u64 = 100;

impl SimClient {
    pub(super) fn options(&mut self) -> Options {
        let micros = [400, 1_000, 3_000, 20_000, 300_000][self.rng.below(5) as usize];
        Options::default().timeout(Duration::from_micros(micros))
    }

    fn end_call(&self, begun: Begun, options: Options, what: &str) {
        self.shared.end_call(begun, options.timeout.unwrap_or_default(), what);
    }

    fn object(&mut self) -> usize {
        // Some objects are requested much more often, so that operations on one object overlap.
        let of = if self.rng.one_in(2) { 12 } else { self.objects_used };
        self.rng.below(of as u64) as usize
    }

    pub(super) fn objects(&mut self, most: u64) -> Vec<usize> {
        let mut some: Vec<usize> = (0..1 + self.rng.below(most)).map(|_| self.object()).collect();
        some.sort_unstable();
        some.dedup();
        some
    }

    /// Keeps returned memory for a while, filled with bytes that no object has, and checks for late
    /// owners and late writes.
    pub(super) fn retire(&mut self, mut target: Target) {
        let held = !target.is_sole_owner();
        target.fill_with(0xC3);
        let touched = !self.memory.retire(target);
        let mut tally = self.shared.tally();
        tally.touched_late += u64::from(touched);
        tally.held_late += u64::from(held);
        if touched {
            tally.add_finding("memory was written after its operation had ended".into());
        }
        if held {
            tally.add_finding("link still owns memory of an ended operation".into());
        }
    }

    /// The objects of `some` that this client puts, if several stores have clients for them: one
    /// store's clients put most objects, and the other clients request them from it.
    pub(super) fn puts(&mut self, mut some: Vec<usize>) -> Vec<usize> {
        if self.stores > 1 && !self.rng.one_in(4) {
            let (own, stores) = (self.handle.store(), self.stores);
            some.retain(|object| (object / PAGE + object / PAGE / stores) % stores == own);
        }
        some
    }

    /// The groups that contain these objects: a third of the time all of them, else the first's.
    pub(super) fn groups(&mut self, some: Vec<usize>) -> Vec<Vec<usize>> {
        let mut groups: Vec<Vec<usize>> = match some {
            some if self.rng.one_in(3) => some.into_iter().map(group).collect(),
            some => vec![group(some[0])],
        };
        groups.dedup();
        groups
    }

    fn put(&mut self, some: Vec<usize>) {
        let options = self.options();
        let groups = self.groups(some);
        self.put_last = groups.iter().map(|group| group[0]).collect();
        let (puts, lent) = self.prepare_put(&groups);
        let begun = self.shared.begin();
        let done = self.handle.put(puts, options);
        self.end_call(begun, options, "put");
        self.put_completed(lent, Some(done));
        self.shared.put_last.store(groups[0][0], Relaxed);
    }

    fn get(&mut self, some: Vec<usize>) {
        let options = self.options();
        let objects = some.clone();
        let (gets, lent) = self.prepare_get(some);
        // An object that is removed while it arrives from a peer must not stay.
        let removes = matches!(self.handle, StoreHandle::Front(..)) && self.rng.one_in(8);
        let (shared, of, removing) = (&self.shared, self.handle.store(), options);
        let begun = shared.begin();
        let done = self.handle.get(gets, options, |store| {
            if removes {
                shared.removed(of, objects, |keys| store.remove(keys, removing));
            }
        });
        if !removes {
            self.end_call(begun, options, "get");
        }
        self.get_completed(lent, Some(done));
    }

    fn exists(&mut self) {
        let (some, options) = (self.objects(12), self.options());
        let keys: Vec<ObjectKey> = some.iter().map(|object| key(*object)).collect();
        let since = self.shared.oracle().moment();
        let begun = self.shared.begin();
        let found = self.handle.pages().exists_batch(&keys, options);
        self.end_call(begun, options, "exists");
        let Ok(found) = found else { return };
        for (object, _) in some.into_iter().zip(found).filter(|(_, here)| *here) {
            let mut tally = self.shared.tally();
            tally.found_here += 1;
            if let Some(wrong) = self.shared.oracle().exists(self.handle.store(), object, since) {
                tally.wrong += 1;
                tally.add_finding(wrong);
            }
        }
    }

    fn remove(&mut self) {
        // A recent put may still be sent to peers, and an object that another client requests may
        // arrive from one.
        let some = match if self.overlaps_removals { self.rng.below(3) } else { 2 } {
            0 if self.rng.one_in(2) => std::mem::take(&mut self.put_last),
            0 => vec![self.shared.put_last.load(Relaxed)],
            1 => vec![self.shared.asked_last.load(Relaxed)],
            _ => self.objects(3),
        };
        if some.is_empty() {
            return;
        }
        let options = self.options();
        self.shared.removing.store(some[0] + 1, Relaxed);
        let (handle, begun) = (&self.handle, self.shared.begin());
        self.shared.removed(handle.store(), some, |keys| handle.pages().remove(keys, options));
        self.end_call(begun, options, "remove");
        self.shared.removing.store(0, Relaxed);
    }

    /// Whether stores sent their peers more requests than clients' calls explain: a store must not
    /// forward a peer's request.
    fn is_forwarding(&self) -> bool {
        let questions = self.questions.load(Relaxed);
        let mut tally = self.shared.tally();
        let cause = tally.operations + tally.gets + tally.puts;
        let is_forwarding = questions > QUESTIONS_FREE + QUESTIONS_PER_CALL_MAX * cause;
        if is_forwarding && tally.circles == 0 {
            tally.circles = 1;
            tally.add_finding(format!(
                "stores forward requests of peers requests={questions} calls={cause}"
            ));
        }
        is_forwarding
    }

    fn pause(&mut self) -> Step {
        if std::mem::take(&mut self.store_unavailable) {
            // An unavailable store is not contacted for a second; calls meanwhile test nothing.
            return Step::Idle(Duration::from_micros(self.rng.below(400_000)));
        }
        Step::Idle(Duration::from_micros(self.rng.below(600)))
    }

    fn use_views(&mut self) {
        if self.views.is_full() || self.rng.one_in(2) {
            return self.views.recheck_one(&mut self.rng, &self.shared);
        }
        let (some, options) = (self.objects(3), self.options());
        self.store_unavailable = self.views.open(&self.handle, &some, options, &self.shared);
    }

    fn clear(&mut self) {
        let (number, options) = (self.rng.below(NAMESPACES as u64) as usize, self.options());
        let begun = self.shared.oracle().moment();
        if self.handle.pages().clear(namespace(number), options).is_ok() {
            let of = (0..OBJECTS).filter(|object| object % NAMESPACES == number);
            of.for_each(|object| self.shared.oracle().removed(self.handle.store(), object, begun));
            self.shared.tally().removals += 1;
        }
    }
}

impl Task for SimClient {
    fn step(&mut self) -> Step {
        if self.left == 0 {
            return Step::Done;
        }
        let begun = self.shared.begin();
        let step = self.call();
        self.shared.end_step(begun);
        step
    }
}

impl SimClient {
    /// One call, or a pause.
    fn call(&mut self) -> Step {
        self.left -= 1;
        if self.is_forwarding() {
            self.left = 0;
        }
        if self.handle.shares_memory() && self.rng.one_in(12) {
            self.use_views();
            return Step::Idle(Duration::from_micros(self.rng.below(600)));
        }
        if self.has_batches && self.rng.one_in(10) {
            self.run_batches();
            return self.pause();
        }
        let removing = if self.overlaps_removals { self.shared.removing.load(Relaxed) } else { 0 };
        match self.rng.below(100) {
            // A store that has not yet applied the removal may send the object back.
            0..70 if removing > 0 => self.get(group(removing - 1)),
            // A store that removes an object itself keeps no copy.
            86..97 if removing > 0 && !self.rng.one_in(8) => self.get(group(removing - 1)),
            0..36 => {
                let some = self.objects(4);
                match self.puts(some.clone()) {
                    own if own.is_empty() => self.get(some),
                    own => self.put(own),
                }
            }
            36..74 => {
                let some = self.objects(6);
                self.get(some);
            }
            74..86 => self.exists(),
            86..97 => self.remove(),
            97 => self.clear(),
            98 => drop(
                self.handle.pages().flush(Options::default().timeout(Duration::from_millis(100))),
            ),
            // Pauses, so that peers that were given up or are idle are contacted again.
            _ => return Step::Idle(Duration::from_millis(1 + self.rng.below(1500))),
        }
        self.shared.tally().operations += 1;
        self.pause()
    }
}

impl Drop for SimClient {
    /// Checks the retained memory once more.
    fn drop(&mut self) {
        self.drop_end.begun = Some(self.shared.begin());
        if !self.memory.check_all() {
            let mut tally = self.shared.tally();
            tally.touched_late += 1;
            tally.add_finding("memory was written after its operation had ended".into());
        }
    }
}

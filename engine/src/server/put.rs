//! Puts: what is here already is answered without its bytes; the rest is pulled into memory of the arena that was set aside
//! for it, a group at a time, and put where it lies.
//!
//! Invariants:
//! - What is put has the checksums that were sent with it, made of what lies in the arena, or of the copy that went there.
//! - What was copied out of a client's memory is put only if the copy has such checksums: a client may
//!   give the put up meanwhile, and write other bytes there.

mod offered;
mod run;

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_layouts::checksum::Checksums;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::pull::{self, PullItem};
use pagelith_layouts::wire::put::Puts;
use pagelith_layouts::wire::request::{Ask, Verb};
use pagelith_layouts::wire::{Frame, Kind};
use pagelith_tiers::policy::{FrameId, Recency};
use pagelith_transport::link::Link;
use pagelith_transport::shown::Shown;

use self::offered::{Memory, Offered};
use self::run::RUN_GROUPS;
use super::answer::{Answered, Verdict};
use super::{Manner, World};
use crate::api::error::{Error, Result};
use crate::api::outcome::{PutDone, PutOutcome, Ticket};
use crate::api::request::{Elsewhere, Options, Put, PutGroup, Source};
use crate::memory::frames::FrameData;
use crate::memory::index::{Entry, name_of};
use crate::memory::visibility::VisibilityFilter;
use crate::read::exists;
use crate::state::read_view::CoreGuard;
use crate::state::reserve;
use crate::state::reserve::SetAside;
use crate::state::shared::Shared;
use crate::store::session::recency;
use crate::write::groups;
use crate::write::groups::Joined;
use crate::write::put;
use crate::write::put::new_keys;
use crate::write::put::{Came, Kind as Together, Size};

/// Bytes that an object takes that is offered, in a group by itself.
pub(crate) const OFFERED_BYTES: usize = size_of::<Offered>() + size_of::<Group>();

enum State {
    New,
    /// So many objects are on their way.
    Pulled(usize),
    /// All of it is here.
    Whole,
    Storing(Ticket),
    /// Its objects are put, and with that its group is whole.
    Committing(Ticket, Joined),
    Done,
}

struct Group {
    base: Option<ObjectKey>,
    /// Numbers of its objects in the put.
    objects: Range<usize>,
    state: State,
}

/// A put under way.
pub(crate) struct PutOp {
    manner: Manner,
    pub verb: Verb,
    block_bytes: u32,
    offered: Vec<Offered>,
    groups: Vec<Group>,
    /// What groups consist of that these are parts of, as keys of any page; `None` if they are whole. Once for all: a
    /// request may have many pages.
    required: Option<Vec<ObjectKey>>,
    /// The open group that they are put into, each by itself.
    into: Option<Joined>,
}

impl PutOp {
    pub fn new(manner: Manner, puts: Puts<'_>, into: Option<Joined>, link: &dyn Link, id: OpId) -> PutOp {
        let objects = puts.items().len();
        let mut groups: Vec<Group> = Vec::with_capacity(objects.min(puts.group_count() as usize));
        let mut offered = Vec::with_capacity(objects);
        for object in puts.objects() {
            let at = offered.len();
            if object.group as usize == groups.len() {
                let base = puts.base(object.group);
                groups.push(Group { base, objects: at..at, state: State::New });
            }
            groups.iter_mut().last().into_iter().for_each(|g| g.objects.end = at + 1);
            let sums: Checksums = object.checksums.iter().collect();
            // What cannot be looked at, or has no checksums to be compared with, is pulled.
            let shown = |place| link.view((id, object.number, 0), place, object.length);
            let shown = object.shown.filter(|_| !sums.is_empty()).and_then(shown);
            offered.push(Offered {
                key: object.key,
                length: object.length,
                sums,
                shown,
                memory: Memory::None,
                verdict: None,
            });
        }
        let verb = Ask::Put(puts).verb();
        let required = puts.required().map(|keys| keys.iter().collect());
        PutOp { manner, verb, block_bytes: puts.block_bytes(), offered, groups, required, into }
    }

    /// Bytes of an object have arrived in `parts`, or are `shown` and belong there.
    pub fn landed(&mut self, item: u32, parts: Vec<Part>, shown: Option<&Shown>) {
        let at = item as usize;
        let Some(object) = self.offered.get_mut(at) else { return };
        object.arrived(parts, shown, self.block_bytes);
        // Groups have their objects one behind the other.
        let of = self.groups.partition_point(|group| group.objects.end <= at);
        let Some(group) = self.groups.get_mut(of) else { return };
        group.state = match std::mem::replace(&mut group.state, State::Done) {
            State::Pulled(1) => State::Whole,
            State::Pulled(left) => State::Pulled(left - 1),
            other => other,
        };
    }

    /// Groups were stored, or were not.
    pub fn done(&mut self, shared: &Shared, ticket: Ticket, done: Vec<PutDone>) {
        let mut done = done.into_iter();
        for at in 0..self.groups.len() {
            let group = &mut self.groups[at];
            if !is_storing(&group.state, ticket) {
                continue;
            }
            if let State::Committing(_, joined) = std::mem::replace(&mut group.state, State::Done) {
                let outcome = joined.committed(shared, done.collect());
                self.settle(at, || verdict(outcome.clone()));
                return;
            }
            for (object, done) in self.offered[group.objects.clone()].iter_mut().zip(&mut done) {
                object.verdict = Some(verdict(done.outcome));
            }
        }
    }

    /// Pull and store as far as it goes; the outcome once all is settled.
    pub fn advance(&mut self, world: &mut World, link: &mut dyn Link, id: OpId) -> Option<Answered> {
        if world.shared().now() >= self.manner.deadline {
            link.retract(id);
            self.give_up();
        }
        let (mut at, mut whole) = (0, Vec::new());
        while at < self.groups.len() {
            // What does not begin now waits, with all behind it.
            if matches!(self.groups[at].state, State::New) && !self.begin(world, link, id, at) {
                break;
            }
            if matches!(self.groups[at].state, State::Whole) {
                whole.push(at);
            }
            at += 1;
            if whole.len() == RUN_GROUPS {
                self.store(world, id, std::mem::take(&mut whole));
            }
        }
        self.store(world, id, whole);
        let over = self.groups.iter().all(|group| is_done(&group.state));
        over.then(|| {
            let late = |key: &ObjectKey| Verdict::Failed(Error::busy(format!("the time was up key={key}")));
            let verdict = |o: Offered| (o.key, o.verdict.unwrap_or_else(|| late(&o.key)));
            Answered::items(self.verb, self.offered.drain(..).map(verdict).collect())
        })
    }

    /// The time is up: what is not being stored will not be.
    fn give_up(&mut self) {
        for group in &mut self.groups {
            match group.state {
                State::New | State::Pulled(_) | State::Whole => {
                    group.state = State::Done;
                    self.offered[group.objects.clone()].iter_mut().for_each(|o| o.memory = Memory::None);
                }
                State::Storing(_) | State::Committing(..) | State::Done => {}
            }
        }
    }

    fn settle(&mut self, at: usize, verdict: impl Fn() -> Verdict) {
        let group = &mut self.groups[at];
        group.state = State::Done;
        for object in &mut self.offered[group.objects.clone()] {
            (object.verdict, object.memory) = (Some(verdict()), Memory::None);
        }
    }

    /// Settle the groups of a run without their bytes, or pull them, from group `at` on and at least that one; false if there is
    /// no room for it now.
    fn begin(&mut self, world: &mut World, link: &mut dyn Link, id: OpId, at: usize) -> bool {
        let mut run = self.run(at);
        if !self.is_left_to_store(world.shared(), &run) {
            self.settle_known(world.shared(), &mut run);
        }
        let Some(first) = run.first().copied() else { return true };
        let is_shown = self.is_shown(first);
        let same = run.iter().take_while(|at| self.is_shown(**at) == is_shown).count();
        run.truncate(same);
        if is_shown {
            self.store_shown(world, id, &run);
            return true;
        }
        let memory = loop {
            match self.set_aside(world, link, &run) {
                SetAside::Now(memory) => break memory,
                // What has no room together may have some one after the other.
                SetAside::Later | SetAside::Full if run.len() > 1 => run.truncate(1),
                SetAside::Later => return false,
                SetAside::Full => {
                    let objects = self.objects(&run);
                    let bytes: u64 = objects.iter().map(|item| self.offered[*item].length).sum();
                    let keys = objects.iter().map(|item| &self.offered[*item].key);
                    let now = world.shared().now();
                    world.shared().lock().count_busy(keys, now);
                    let detail = format!("arena is full of pages in use bytes={bytes}");
                    self.settle(first, || Verdict::Failed(Error::busy(detail.clone())));
                    return true;
                }
            }
        };
        let mut pulls = Vec::new();
        for (item, (arriving, part)) in self.objects(&run).into_iter().zip(memory) {
            let object = &mut self.offered[item];
            object.memory = Memory::Arriving(arriving);
            if let Some(shown) = object.shown.take() {
                object.arrived(vec![part], Some(&shown), self.block_bytes);
                continue;
            }
            pulls.push(PullItem::new(item as u32, 0, part.len() as u64));
            if link.expose(id, item as u32, 0, vec![part]).is_err() {
                link.retract(id);
                return false;
            }
        }
        if !pulls.is_empty() && link.send(Frame::new(Kind::Pull, id, pull::encode(&pulls))).is_err() {
            link.retract(id);
            return false;
        }
        for at in run {
            let group = &mut self.groups[at];
            let is_pulled = |pull: &&PullItem| group.objects.contains(&(pull.item as usize));
            group.state = match pulls.iter().filter(is_pulled).count() {
                0 => State::Whole,
                pulled => State::Pulled(pulled),
            };
        }
        true
    }

    /// Store groups out of the client's memory.
    fn store_shown(&mut self, world: &mut World, id: OpId, run: &[usize]) {
        let groups = run.iter().map(|at| {
            let group = &self.groups[*at];
            let mut objects = Vec::with_capacity(group.objects.len());
            objects.extend(self.offered[group.objects.clone()].iter_mut().filter_map(|o| {
                let source = Source::elsewhere(Elsewhere::Shown(o.vouched()?));
                Some(Put { key: o.key, source })
            }));
            PutGroup { objects, base: group.base }
        });
        let groups = groups.collect();
        self.submit(world, id, groups, run);
    }

    /// Hand groups to the store, which are these of the put.
    fn submit(&mut self, world: &mut World, id: OpId, groups: Vec<PutGroup>, which: &[usize]) {
        let Some(first) = which.first() else { return };
        let ticket =
            world.session.submit_put_as(groups, self.options(world.shared(), *first), self.manner.came);
        which.iter().for_each(|at| self.groups[*at].state = State::Storing(ticket));
        world.batches.insert(ticket, id);
    }

    /// How groups are put, of which this is the first.
    fn options(&self, shared: &Shared, at: usize) -> Options {
        let left = self.manner.deadline.since(shared.now());
        let depth = self.manner.options.depth.saturating_add(at as u32);
        Options { timeout: Some(left), depth, ..self.manner.options }
    }

    /// Numbers of the objects of these groups.
    fn objects(&self, run: &[usize]) -> Vec<usize> {
        run.iter().flat_map(|at| self.groups[*at].objects.clone()).collect()
    }

    /// Whether all of a run is shown and new, so that nothing of it is settled without its bytes: whoever stores it looks at it once more, and
    /// refuses what is wrong with it. Told without the lock.
    fn is_left_to_store(&self, shared: &Shared, run: &[usize]) -> bool {
        let may_be = |at: &usize| {
            let has_base = self.manner.came == Came::Put || self.groups[*at].base.is_none();
            has_base && self.is_shown(*at)
        };
        let keys = run.iter().flat_map(|at| &self.offered[self.groups[*at].objects.clone()]).map(|o| &o.key);
        run.iter().all(may_be) && new_keys::all_new(shared, keys)
    }

    /// Settle those that need no bytes: they are here, or are refused whatever they are like.
    fn settle_known(&mut self, shared: &Shared, run: &mut Vec<usize>) {
        let mut core = shared.lock();
        // Whether an open group has it already is found when it is put there.
        let looks = self.into.is_none() && !shared.config.constant_fingerprint();
        let known = |at: &usize| match looks && self.is_present(shared, &mut core, &self.groups[*at]) {
            true => Some(PutOutcome::AlreadyPresent),
            false => self.has_no_base(shared, &mut core, &self.groups[*at]).then_some(PutOutcome::Refused),
        };
        let known: Vec<Option<PutOutcome>> = run.iter().map(known).collect();
        drop(core);
        let mut known = known.into_iter();
        run.retain(|at| {
            if let Some(outcome) = known.next().flatten() {
                self.settle(*at, || Verdict::Put(outcome));
            } else if let Err(error) = self.check(shared, *at) {
                self.settle(*at, || Verdict::Failed(error.clone()));
            } else {
                return true;
            }
            false
        });
    }

    /// Memory for all objects of these groups, or for none.
    fn set_aside(&self, world: &World, link: &dyn Link, run: &[usize]) -> SetAside {
        let objects = self.objects(run);
        let room = link.room();
        if room.frames == 0 || room.exposures < objects.len() {
            return SetAside::Later;
        }
        let lengths: Vec<u64> = objects.iter().map(|item| self.offered[*item].length).collect();
        reserve::set_aside(&world.session.io.shared, &lengths)
    }

    /// Whether the group is here as it was put, so that its bytes need not travel: one object by the index (what is wrong
    /// about that by chance is an object that is not stored, once in 2^128), several only where one frame holds exactly
    /// these. What lies apart, or on SSD alone, has to be looked at by who stores it.
    fn is_present(&self, shared: &Shared, core: &mut CoreGuard<'_>, group: &Group) -> bool {
        let objects = &group.objects;
        let here = |o: &Offered| {
            let fingerprint = shared.fingerprint(&o.key, core.generation(o.key.namespace()));
            let fits = |e: &Entry| u64::from(e.length) == o.length && core.is_visible(e);
            core.index.find(fingerprint).find(fits)
        };
        let entries: Option<Vec<Entry>> = self.offered[objects.clone()].iter().map(here).collect();
        let Some(entries) = entries else { return false };
        let members = self.required.as_ref().map_or(objects.len(), Vec::len);
        if members > 1 || group.base.is_some() {
            let frame = entries[0].frame.filter(|frame| entries.iter().all(|e| e.frame == Some(*frame)));
            let data = frame.and_then(|frame| core.frames.get(FrameId(frame))).map(|f| &f.data);
            let as_put = |data: &FrameData| {
                let keys = self.offered[objects.clone()].iter().map(|o| &o.key);
                data.members.len() == members
                    && data.is_attached() == group.base.is_some()
                    && keys.into_iter().all(|key| data.members.iter().any(|m| m.key == *key))
            };
            if !data.is_some_and(|data| as_put(data)) {
                return false;
            }
        }
        let keys = self.offered[objects.clone()].iter().map(|o| o.key);
        let at = Recency {
            depth: self.manner.options.depth.saturating_add(objects.start as u32),
            ..recency(shared, &self.manner.options)
        };
        let all = exists::under(shared, core, keys, at).into_iter().all(|here| here);
        core.counters.puts_present += if all { objects.len() as u64 } else { 0 };
        all
    }

    /// Whether a store offers it for a base that is not here: it would not be stored.
    fn has_no_base(&self, shared: &Shared, core: &mut CoreGuard<'_>, group: &Group) -> bool {
        let Some(base) = group.base.filter(|_| self.manner.came != Came::Put) else { return false };
        let name = name_of(shared.fingerprint(&base, core.generation(base.namespace())));
        let has_none = !core.is_base_present(name);
        core.counters.puts_refused += if has_none { group.objects.len() as u64 } else { 0 };
        has_none
    }

    /// Store groups whose bytes are all here, each if they are what they should be.
    fn store(&mut self, world: &mut World, id: OpId, whole: Vec<usize>) {
        let (mut together, mut groups) = (Vec::new(), Vec::new());
        for at in whole {
            let options = self.options(world.shared(), at);
            let objects = &mut self.offered[self.groups[at].objects.clone()];
            if let Some(wrong) = objects.iter().find(|o| !matches!(o.memory, Memory::Whole(_))) {
                let key = wrong.key;
                self.settle(at, || Verdict::Failed(put::unlike(&key)));
            } else if let Some(into) = &self.into {
                let put = |o: &mut Offered| {
                    let arrived = o.take()?;
                    Some(into.put_arrived(world.shared(), &o.key, arrived))
                };
                // Objects that a client says are one group have one outcome here: the worst.
                let worst = objects.iter_mut().filter_map(put).max_by_key(Result::is_err);
                if let Some(outcome) = worst {
                    self.settle(at, || verdict(outcome.clone()));
                }
            } else if self.required.is_some() {
                if let Err(error) = self.store_part(world, id, at, options) {
                    self.settle(at, || Verdict::Failed(error.clone()));
                }
            } else {
                let put = |o: &mut Offered| {
                    Some(Put { key: o.key, source: Source::elsewhere(Elsewhere::Arrived(o.take()?)) })
                };
                let objects = objects.iter_mut().filter_map(put).collect();
                groups.push(PutGroup { objects, base: self.groups[at].base });
                together.push(at);
            }
        }
        self.submit(world, id, groups, &together);
    }

    /// Put what was pulled into its group, and commit that if nothing is missing then.
    fn store_part(&mut self, world: &mut World, id: OpId, at: usize, options: Options) -> Result<()> {
        let shared = world.shared();
        let page = self.offered[self.groups[at].objects.start].key.hash();
        let required: Vec<ObjectKey> = self.required.iter().flatten().map(|key| key.on_page(page)).collect();
        let joined = groups::join(shared, &required, &options, false)?;
        for object in &mut self.offered[self.groups[at].objects.clone()] {
            let Some(arrived) = object.take() else { continue };
            joined.put_arrived(shared, &object.key, arrived)?;
        }
        if !joined.missing(shared).is_empty() {
            self.settle(at, || Verdict::Put(PutOutcome::Waiting));
            return Ok(());
        }
        let ticket = world.session.submit_commit(joined.id(), options);
        self.groups[at].state = State::Committing(ticket, joined);
        world.batches.insert(ticket, id);
        Ok(())
    }

    /// What is wrong with a group whatever its bytes are: they need not travel.
    fn check(&self, shared: &Shared, at: usize) -> Result<()> {
        let group = &self.groups[at];
        let size = |o: &Offered| Size { key: o.key, length: Some(o.length), in_arena: false };
        let sizes: Vec<Size> = self.offered[group.objects.clone()].iter().map(size).collect();
        let together = match &group.base {
            Some(base) => Together::Attached(base),
            None if sizes.len() > 1 => Together::Base,
            None => Together::Single,
        };
        put::check(shared, together, &sizes)
    }
}

fn verdict(outcome: Result<PutOutcome>) -> Verdict {
    match outcome {
        Ok(outcome) => Verdict::Put(outcome),
        Err(error) => Verdict::Failed(error),
    }
}

fn is_done(state: &State) -> bool {
    match state {
        State::Done => true,
        State::New | State::Pulled(_) | State::Whole | State::Storing(_) | State::Committing(..) => false,
    }
}

fn is_storing(state: &State, ticket: Ticket) -> bool {
    match state {
        State::Storing(own) | State::Committing(own, _) => *own == ticket,
        State::New | State::Pulled(_) | State::Whole | State::Done => false,
    }
}

//! Puts: what is here already is answered without its bytes; the rest is pulled into memory of the arena that was set aside
//! for it, a group at a time, and put where it lies.
//!
//! Invariants:
//! - What is put has the checksums that were sent with it, made of what lies in the arena, or of the copy that went there.
//! - What was copied out of a client's memory is put only if it has such checksums: who shows bytes may have given up
//!   meanwhile, and have others there.

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::pull::{self, PullItem};
use pagelith_layouts::wire::put::Puts;
use pagelith_layouts::wire::request::{Ask, Verb};
use pagelith_layouts::wire::{Frame, Kind};
use pagelith_tiers::policy::{FrameId, Recency};
use pagelith_tiers::ssd::read::Verifier;
use pagelith_transport::link::Link;
use pagelith_transport::shown::Shown;

use super::answer::{Answered, Verdict};
use super::{Manner, World};
use crate::batch::{Options, Put, PutGroup, Source};
use crate::error::{Error, ErrorKind, Result};
use crate::exists;
use crate::frames::FrameData;
use crate::groups::{self, Joined};
use crate::index::Entry;
use crate::outcome::{PutDone, PutOutcome, Ticket};
use crate::put::placed::{self, Arrived, Arriving, SetAside};
use crate::put::{self, Kind as Together, Size};
use crate::remote::verify;
use crate::session::recency;
use crate::shared::Shared;
use crate::visibility::Sight;

/// Bytes that are copied in the time of a wake-up, some 40 us.
const NUDGE_BYTES: u64 = 256 << 10;

/// One object to be put.
struct Offered {
    key: ObjectKey,
    length: u64,
    /// Of its blocks, as the client has them; empty for the store's own.
    sums: Vec<Checksum>,
    /// Where they lie in the client's memory, if it shows them.
    shown: Option<Shown>,
    memory: Memory,
    verdict: Option<Verdict>,
}

/// The memory that an object's bytes are in.
enum Memory {
    None,
    /// On their way; the link has it.
    Arriving(Arriving),
    /// Here, and what they should be.
    Whole(Arrived),
    /// Here, and something else.
    Wrong,
}

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
pub(super) struct PutOp {
    manner: Manner,
    verb: Verb,
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
        let mut groups: Vec<Group> = Vec::new();
        let mut offered = Vec::new();
        for object in puts.objects() {
            let at = offered.len();
            if object.group as usize == groups.len() {
                let base = puts.base(object.group);
                groups.push(Group { base, objects: at..at, state: State::New });
            }
            groups.iter_mut().last().into_iter().for_each(|g| g.objects.end = at + 1);
            let sums: Vec<Checksum> = object.checksums.iter().collect();
            // What cannot be looked at, or compared, is pulled.
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
    pub fn landed(&mut self, world: &mut World, item: u32, parts: Vec<Part>, shown: Option<&Shown>) {
        let at = item as usize;
        let Some(object) = self.offered.get_mut(at) else { return };
        object.arrived(parts, shown, self.block_bytes, &mut world.through);
        for group in self.groups.iter_mut().filter(|group| group.objects.contains(&at)) {
            group.state = match std::mem::replace(&mut group.state, State::Done) {
                State::Pulled(1) => State::Whole,
                State::Pulled(left) => State::Pulled(left - 1),
                other => other,
            };
        }
    }

    /// A group was stored, or was not.
    pub fn done(&mut self, shared: &Shared, ticket: Ticket, done: Vec<PutDone>) {
        let Some(at) = self.groups.iter().position(|group| is_storing(&group.state, ticket)) else {
            return;
        };
        let group = &mut self.groups[at];
        if let State::Committing(_, joined) = std::mem::replace(&mut group.state, State::Done) {
            let outcome = joined.committed(shared, done);
            self.settle(at, || verdict(outcome.clone()));
            return;
        }
        for (object, done) in self.offered[group.objects.clone()].iter_mut().zip(done) {
            object.verdict = Some(verdict(done.outcome));
        }
    }

    /// Pull and store as far as it goes; the outcome once all is settled. `is_last` if the client asked for nothing behind
    /// it: there is nothing for that to do but to wait.
    pub fn advance(
        &mut self,
        world: &mut World,
        link: &mut dyn Link,
        id: OpId,
        is_last: bool,
    ) -> Option<Answered> {
        if world.shared().now() >= self.manner.deadline {
            link.retract(id);
            self.give_up();
        }
        for at in 0..self.groups.len() {
            match self.groups[at].state {
                State::New => {
                    if is_last && self.is_soon_over(at) {
                        link.nudge();
                    }
                    if !self.begin(world, link, id, at) {
                        break;
                    }
                }
                State::Whole | State::Pulled(_) | State::Storing(_) | State::Committing(..) | State::Done => {
                }
            }
            if matches!(self.groups[at].state, State::Whole) {
                self.store(world, id, at);
            }
        }
        let over = self.groups.iter().all(|group| is_done(&group.state));
        over.then(|| {
            let late = |key: &ObjectKey| Verdict::Failed(Error::busy(format!("the time was up key={key}")));
            let verdict = |o: Offered| (o.key, o.verdict.unwrap_or_else(|| late(&o.key)));
            Answered::items(self.verb, self.offered.drain(..).map(verdict).collect())
        })
    }

    /// Whether from group `at` on nothing is left but to copy, for as long as a wake-up takes.
    fn is_soon_over(&self, at: usize) -> bool {
        let left = &self.offered[self.groups[at].objects.start..];
        let bytes: u64 = left.iter().map(|o| o.length).sum();
        (NUDGE_BYTES / 2..=NUDGE_BYTES).contains(&bytes) && left.iter().all(|o| o.shown.is_some())
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

    /// Settle a group without its bytes, or pull them; false if there is no room for them now.
    fn begin(&mut self, world: &mut World, link: &mut dyn Link, id: OpId, at: usize) -> bool {
        let objects = self.groups[at].objects.clone();
        // Whether an open group has it already is found when it is put there.
        if self.into.is_none() && self.is_present(world.shared(), &self.groups[at]) {
            self.settle(at, || Verdict::Put(PutOutcome::AlreadyPresent));
            return true;
        }
        if let Err(error) = self.check(world.shared(), at) {
            self.settle(at, || Verdict::Failed(error.clone()));
            return true;
        }
        let room = link.room();
        if room.frames == 0 || room.exposures < objects.len() {
            return false;
        }
        let lengths: Vec<u64> = self.offered[objects.clone()].iter().map(|o| o.length).collect();
        let memory = match placed::set_aside(&world.session.io.shared, &lengths) {
            SetAside::Now(memory) => memory,
            SetAside::Later => return false,
            SetAside::Full => {
                let bytes: u64 = lengths.iter().sum();
                world.shared().lock().counters.puts_busy += lengths.len() as u64;
                let detail = format!("arena is full of pages in use bytes={bytes}");
                self.settle(at, || Verdict::Failed(Error::busy(detail.clone())));
                return true;
            }
        };
        let mut pulls = Vec::with_capacity(memory.len());
        for (item, (arriving, part)) in objects.clone().zip(memory) {
            let object = &mut self.offered[item];
            object.memory = Memory::Arriving(arriving);
            if let Some(shown) = object.shown.take() {
                object.arrived(vec![part], Some(&shown), self.block_bytes, &mut world.through);
                continue;
            }
            pulls.push(PullItem::new(item as u32, 0, part.len() as u64));
            if link.expose(id, item as u32, 0, vec![part]).is_err() {
                link.retract(id);
                return false;
            }
        }
        if pulls.is_empty() {
            self.groups[at].state = State::Whole;
            return true;
        }
        if link.send(Frame::new(Kind::Pull, id, pull::encode(&pulls))).is_err() {
            link.retract(id);
            return false;
        }
        self.groups[at].state = State::Pulled(pulls.len());
        true
    }

    /// Whether the group is here as it was put, so that its bytes need not travel: one object by the index (what is wrong
    /// about that by chance is an object that is not stored, once in 2^128), several only where one frame holds exactly
    /// these. What lies apart, or on SSD alone, has to be looked at by who stores it.
    fn is_present(&self, shared: &Shared, group: &Group) -> bool {
        let objects = &group.objects;
        if shared.config.constant_fingerprint() {
            return false;
        }
        let mut core = shared.lock();
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
        let all = exists::under(shared, &mut core, keys, at).into_iter().all(|here| here);
        core.counters.puts_present += if all { objects.len() as u64 } else { 0 };
        all
    }

    /// Store what was pulled, if it is what it should be.
    fn store(&mut self, world: &mut World, id: OpId, at: usize) {
        let objects = self.groups[at].objects.clone();
        if let Some(key) = self.offered[objects.clone()]
            .iter()
            .find(|o| !matches!(o.memory, Memory::Whole(_)))
            .map(|o| o.key)
        {
            let detail = format!("bytes arrived that do not have the checksums sent with them key={key}");
            self.settle(at, || Verdict::Failed(Error::new(ErrorKind::Unavailable, detail.clone())));
            return;
        }
        if let Some(into) = &self.into {
            let put = |o: &mut Offered| {
                let arrived = o.take()?;
                Some(into.put_arrived(world.shared(), &o.key, arrived))
            };
            // Objects that a client says are one group have one outcome here: the worst.
            let worst = self.offered[objects].iter_mut().filter_map(put).max_by_key(Result::is_err);
            if let Some(outcome) = worst {
                self.settle(at, || verdict(outcome.clone()));
            }
            return;
        }
        let left = self.manner.deadline.since(world.shared().now());
        let depth = self.manner.options.depth.saturating_add(at as u32);
        let options = Options { timeout: Some(left), depth, ..self.manner.options };
        if self.required.is_some() {
            if let Err(error) = self.store_part(world, id, at, options) {
                self.settle(at, || Verdict::Failed(error.clone()));
            }
            return;
        }
        let put = |o: &mut Offered| Some(Put { key: o.key, source: Source::arrived(o.take()?) });
        let puts = self.offered[objects].iter_mut().filter_map(put).collect();
        let group = PutGroup { objects: puts, base: self.groups[at].base };
        let ticket = world.session.submit_put(vec![group], options);
        self.groups[at].state = State::Storing(ticket);
        world.batches.insert(ticket, id);
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
        let together = match group.base {
            Some(base) => Together::Attached(base),
            None if sizes.len() > 1 => Together::Base,
            None => Together::Single,
        };
        put::check(shared, together, &sizes)
    }
}

impl Offered {
    /// All of its bytes are here, or shown: note whether they are those that were offered.
    fn arrived(
        &mut self,
        mut parts: Vec<Part>,
        shown: Option<&Shown>,
        block_bytes: u32,
        through: &mut Vec<u8>,
    ) {
        let Memory::Arriving(arriving) = std::mem::replace(&mut self.memory, Memory::None) else { return };
        let all = 0..self.length;
        let sums = match (shown, &mut parts[..]) {
            (Some(shown), [part]) => verify::copied_through(through, part, &all, shown),
            (Some(shown), parts) => verify::copied(parts, &all, shown),
            (None, parts) => verify::sums(parts, &all),
        };
        let part = parts.pop();
        let right = |sums: &Vec<Checksum>| match &part {
            _ if self.sums.is_empty() => shown.is_none(),
            _ if block_bytes == BLOCK_BYTES => *sums == self.sums,
            // Of blocks of another length.
            Some(part) => {
                let mut verifier = Verifier::new(self.sums.iter().copied(), 0, self.length, block_bytes);
                verifier.update(part.bytes()).is_ok() && verifier.is_complete()
            }
            None => false,
        };
        self.memory = match (sums.filter(right), part) {
            (Some(sums), Some(part)) => Memory::Whole(arriving.arrived(vec![part], sums)),
            _ => Memory::Wrong,
        };
    }

    fn take(&mut self) -> Option<Arrived> {
        match std::mem::replace(&mut self.memory, Memory::None) {
            Memory::Whole(arrived) => Some(arrived),
            Memory::None | Memory::Arriving(_) | Memory::Wrong => None,
        }
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

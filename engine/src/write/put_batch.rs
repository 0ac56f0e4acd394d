//! A batch of groups to be put. What is new is stored at once, [run by run](run); only what may be on SSD already has to be
//! looked at there first, and what is here by itself read, before its group can be made.

pub(crate) mod run;

use std::sync::Arc;

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::clock::Mono;
use pagelith_io::disk::Completion;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{PutDone, PutOutcome, Ticket};
use crate::api::request::{Destination, Elsewhere, Get, Put, PutGroup, Source};
use crate::memory::frames::{FrameMember, FrameRef};
use crate::read::get::{GetBatch, Probed};
use crate::state::core::Core;
use crate::state::shared::Shared;
use crate::store::session::SessionIo;
use crate::write::put::admit::StandaloneMember;
use crate::write::put::copied;
use crate::write::put::copied::{CopiedGroup, CopySource, MemberSource};
use crate::write::put::{Admitted, At, Came, Kind, Size};

/// Where a group's objects come from.
enum From {
    /// The caller.
    Lent(Vec<Put>),
    /// An open group, and what it requires.
    Open(u64, Arc<[ObjectKey]>),
}

impl From {
    fn objects(&self) -> usize {
        match self {
            From::Lent(objects) => objects.len(),
            From::Open(_, required) => required.len(),
        }
    }
}

/// What has to be read before a group can be stored.
enum Needs {
    Nothing,
    /// The headers of these members.
    Headers(Vec<usize>),
    /// These members, which are here by themselves.
    Objects(Vec<StandaloneMember>),
}

struct Group {
    from: From,
    /// An object of the base group that it is attached to.
    base: Option<Box<ObjectKey>>,
    outcome: Option<Result<PutOutcome>>,
    needs: Needs,
    /// What the members' headers on SSD said, once they were looked at.
    probed: Option<Vec<Option<Probed>>>,
    /// The bytes of members that are here by themselves, and where they were when they were asked for; empty before.
    adopted: Vec<Option<(At, AlignedBuf)>>,
    asked: bool,
    /// Which members were stored with bytes that were here; empty if none was.
    takes_in: Vec<bool>,
    /// What of the memory for that it holds, in bytes.
    memory: u64,
}

impl Group {
    fn new(from: From, base: Option<ObjectKey>) -> Group {
        let (adopted, takes_in) = (Vec::new(), Vec::new());
        Group {
            from,
            base: base.map(Box::new),
            outcome: None,
            needs: Needs::Nothing,
            probed: None,
            adopted,
            asked: false,
            takes_in,
            memory: 0,
        }
    }

    fn kind(&self) -> Kind<'_> {
        match &self.base {
            Some(base) => Kind::Attached(base),
            None if self.from.objects() > 1 => Kind::Base,
            None => Kind::Single,
        }
    }

    fn key(&self, member: usize) -> &ObjectKey {
        match &self.from {
            From::Lent(objects) => &objects[member].key,
            From::Open(_, required) => &required[member],
        }
    }

    /// What was put; `None` if it is an open group that is gone.
    fn sizes(&self, shared: &Shared) -> Option<Vec<Size>> {
        match &self.from {
            From::Lent(objects) => {
                let size = |o: &Put| Size {
                    key: o.key,
                    length: Some(o.source.len()),
                    in_arena: matches!(o.source.elsewhere, Some(Elsewhere::Arrived(_))),
                };
                Some(objects.iter().map(size).collect())
            }
            From::Open(id, required) => {
                let core = shared.lock();
                let open = core.waiting.get(*id)?;
                let size = |(i, key): (usize, &ObjectKey)| {
                    let length = open.filled(i);
                    Size { key: *key, length, in_arena: length.is_some() }
                };
                Some(required.iter().enumerate().map(size).collect())
            }
        }
    }

    /// The group as it will be, with the objects of an open group out of the hands of the table, of which none was copied yet. What was
    /// admitted comes back if it is gone, or no longer what that was.
    fn prepare(
        &mut self,
        shared: &Shared,
        admitted: Admitted,
        at: Recency,
    ) -> std::result::Result<CopiedGroup, Box<Admitted>> {
        let (kind, page) = (self.kind().of_frame(), *self.key(0));
        let taken = &self.adopted;
        let adopted = |i: usize| adopted(taken, &admitted.adopts, i);
        match &mut self.from {
            From::Lent(objects) => {
                let mut all: Vec<MemberSource> = Vec::with_capacity(objects.len());
                for (i, Put { key, source }) in objects.iter_mut().enumerate() {
                    let is_here = |e: &Elsewhere| matches!(e, Elsewhere::Arrived(_));
                    let arrived = source.elsewhere.take_if(|e| is_here(e) && adopted(i).is_none());
                    all.push(match arrived {
                        Some(Elsewhere::Arrived(arrived)) => MemberSource::Filled(*key, arrived),
                        _ => MemberSource::ToCopy(*key),
                    });
                }
                Ok(copied::prepare(kind, &page, all.into_iter(), admitted, at))
            }
            From::Open(id, required) => {
                let mut core = shared.lock();
                let open = core.waiting.get_mut(*id).filter(|open| {
                    (0..required.len()).all(|i| takes_in(&admitted.adopts, i) || open.filled(i).is_some())
                });
                let Some(open) = open else { return Err(Box::new(admitted)) };
                let one = |(i, key): (usize, &ObjectKey)| match adopted(i) {
                    Some(_) => Some(MemberSource::ToCopy(*key)),
                    None => open.hand_out(i).map(|member| MemberSource::InArena(Box::new(member))),
                };
                let all: Vec<_> = required.iter().enumerate().filter_map(one).collect();
                drop(core);
                Ok(copied::prepare(kind, &page, all.into_iter(), admitted, at))
            }
        }
    }

    /// The bytes of a member that is to be copied.
    fn bytes(&self, adopts: &[bool], member: usize) -> CopySource<'_> {
        adopted(&self.adopted, adopts, member).unwrap_or_else(|| match &self.from {
            From::Lent(objects) => bytes(&objects[member].source),
            // What is not adopted is in the arena.
            From::Open(..) => CopySource::Caller(&[]),
        })
    }

    /// It cannot be stored now: what of it is in the arena goes back to where it was.
    fn take_back(&self, core: &mut Core, adopts: &[bool], members: Vec<FrameMember>) {
        for (i, member) in members.into_iter().enumerate() {
            let open = match &self.from {
                From::Open(id, _) if !takes_in(adopts, i) => core.waiting.get_mut(*id),
                From::Open(..) | From::Lent(_) => None,
            };
            let nobodys = match open {
                Some(open) => open.take_back(member),
                None => Some(member),
            };
            if let Some(member) = nobodys {
                core.space.free(member.extent);
            }
        }
    }
}

/// The bytes of a source that are not in the arena.
fn bytes(source: &Source) -> CopySource<'_> {
    match &source.elsewhere {
        Some(Elsewhere::Shown(vouched)) => CopySource::Client(vouched),
        Some(Elsewhere::Arrived(_)) | None => CopySource::Caller(&source.parts),
    }
}

/// The bytes of a member that is stored with those that were here, if it is.
fn adopted<'a>(taken: &'a [Option<(At, AlignedBuf)>], adopts: &[bool], i: usize) -> Option<CopySource<'a>> {
    let (_, bytes) = taken.get(i)?.as_ref().filter(|_| takes_in(adopts, i))?;
    Some(CopySource::Adopted(bytes))
}

/// Whether member `i` is stored with bytes that were here.
fn takes_in(adopts: &[bool], i: usize) -> bool {
    adopts.get(i).copied().unwrap_or(false)
}

/// What is being read for a batch.
enum Reading {
    Nothing,
    /// Headers of (group, member).
    Headers(GetBatch, Vec<(usize, usize)>),
    /// Whole objects of (group, member), and where each is.
    Objects(GetBatch, Vec<(usize, usize, At)>),
}

/// A batch of put groups.
pub(crate) struct PutBatch {
    groups: Vec<Group>,
    reading: Reading,
    at: Recency,
    deadline: Mono,
    frames: Vec<FrameRef>,
    unqueued_bytes: u64,
    came: Came,
}

impl PutBatch {
    /// Store what can be stored without looking at the SSD, and begin to look for the rest.
    pub fn begin(
        io: &mut SessionIo,
        groups: Vec<PutGroup>,
        at: Recency,
        deadline: Mono,
        came: Came,
    ) -> PutBatch {
        let _span = tracing::debug_span!("put", groups = groups.len()).entered();
        let group = |g: PutGroup| Group::new(From::Lent(g.objects), g.base);
        Self::begin_groups(io, groups.into_iter().map(group).collect(), at, deadline, came)
    }

    /// Make an open group visible.
    pub fn commit(io: &mut SessionIo, open: u64, at: Recency, deadline: Mono) -> PutBatch {
        let mut core = io.shared.lock();
        let found = core
            .waiting
            .get_mut(open)
            .map(|group| (std::mem::replace(&mut group.committing, true), group.required.clone(), group.at));
        drop(core);
        let (busy, required, at) = found.unwrap_or((false, Arc::new([]), at));
        let mut group = Group::new(From::Open(open, required), None);
        if busy {
            group.outcome = Some(Err(Error::busy("group is being committed")));
        }
        Self::begin_groups(io, vec![group], at, deadline, Came::Put)
    }

    fn begin_groups(
        io: &mut SessionIo,
        groups: Vec<Group>,
        at: Recency,
        deadline: Mono,
        came: Came,
    ) -> PutBatch {
        let (reading, frames, unqueued_bytes) = (Reading::Nothing, Vec::new(), 0);
        let mut batch = PutBatch { groups, reading, at, deadline, frames, unqueued_bytes, came };
        batch.try_groups(io);
        batch.read(io);
        batch
    }

    fn try_groups(&mut self, io: &mut SessionIo) {
        self.try_runs(&io.shared, &mut io.runs);
        io.shared.remote.iter().for_each(|remote| remote.work.raise());
        self.let_go(&io.shared);
    }

    /// An open group that has its outcome: committed it is closed, else it stays open for the next try.
    fn settle_open(&self, shared: &Shared, i: usize) {
        let Group { from: From::Open(id, _), outcome: Some(outcome), .. } = &self.groups[i] else { return };
        let mut core = shared.lock();
        match outcome {
            Ok(PutOutcome::Waiting) | Err(_) => {
                let Some(open) = core.waiting.get_mut(*id) else { return };
                (open.committing, open.lost_some) = (false, false);
                let (namespace, generation) = (open.required[0].namespace(), open.generation);
                if core.generation(namespace) != generation {
                    core.close_group(*id);
                }
            }
            Ok(PutOutcome::Stored | PutOutcome::AlreadyPresent | PutOutcome::Refused) => {
                core.close_group(*id);
            }
        }
    }

    /// Begin to read what groups need: headers first, since what they say may settle the rest.
    fn read(&mut self, io: &mut SessionIo) {
        let mut headers = Vec::new();
        let mut objects = Vec::new();
        for (g, group) in self.groups.iter_mut().enumerate() {
            match std::mem::replace(&mut group.needs, Needs::Nothing) {
                Needs::Nothing => {}
                Needs::Headers(members) => headers.extend(members.into_iter().map(|m| (g, m))),
                Needs::Objects(members) => objects.push((g, members)),
            }
        }
        if !headers.is_empty() {
            let keys: Vec<_> = headers.iter().map(|(g, m)| *self.groups[*g].key(*m)).collect();
            self.reading = Reading::Headers(GetBatch::probe(io, &keys, self.at, self.deadline), headers);
            // They come next.
            objects.into_iter().for_each(|(g, members)| self.groups[g].needs = Needs::Objects(members));
            return;
        }
        let mut gets = Vec::new();
        let mut of = Vec::new();
        for (g, alone) in objects {
            match self.buffers(&io.shared, g, &alone) {
                Ok(buffers) => {
                    for (alone, buffer) in alone.iter().zip(buffers) {
                        let key = *self.groups[g].key(alone.member);
                        gets.push(Get { key, range: None, destination: Destination::owned(buffer) });
                        of.push((g, alone.member, alone.at));
                    }
                }
                Err(error) => {
                    self.groups[g].outcome = Some(Err(error));
                    self.settle_open(&io.shared, g);
                }
            }
        }
        self.let_go(&io.shared);
        if !gets.is_empty() {
            self.reading = Reading::Objects(GetBatch::begin(io, gets, self.at, self.deadline), of);
        }
    }

    /// Memory for the objects that a group takes in. It is not the arena's: all groups together have as much as
    /// there is staging memory, except that one may always go on.
    fn buffers(&mut self, shared: &Shared, g: usize, alone: &[StandaloneMember]) -> Result<Vec<AlignedBuf>> {
        let bytes: u64 = alone.iter().map(|a| a.length).sum();
        {
            let mut core = shared.lock();
            let max = shared.staging.capacity() as u64;
            if core.adopting_bytes > 0 && core.adopting_bytes + bytes > max {
                let now = core.adopting_bytes;
                let detail =
                    format!("too much is read for other groups bytes={bytes} reading={now} max={max}");
                return Err(Error::busy(detail));
            }
            core.adopting_bytes += bytes;
        }
        self.groups[g].memory += bytes;
        let buffers: std::io::Result<Vec<_>> =
            alone.iter().map(|a| AlignedBuf::new(a.length as usize)).collect();
        buffers.map_err(|e| Error::busy(format!("no memory for objects of a group bytes={bytes}: {e}")))
    }

    /// Groups that have their outcome let go of what was read for them.
    fn let_go(&mut self, shared: &Shared) {
        for group in self.groups.iter_mut().filter(|g| g.outcome.is_some() && g.memory > 0) {
            group.adopted.iter_mut().for_each(|bytes| *bytes = None);
            shared.lock().adopting_bytes -= std::mem::take(&mut group.memory);
        }
    }

    /// Go on without waiting; true once every group has its outcome.
    pub fn advance(&mut self, io: &mut SessionIo, ticket: Ticket) -> bool {
        loop {
            match &mut self.reading {
                Reading::Nothing => return true,
                Reading::Headers(batch, _) | Reading::Objects(batch, _) => {
                    if !batch.advance(io, ticket) {
                        return false;
                    }
                }
            }
            match std::mem::replace(&mut self.reading, Reading::Nothing) {
                Reading::Nothing => {}
                Reading::Headers(batch, of) => {
                    for ((g, m), probed) in of.into_iter().zip(batch.into_probed()) {
                        let group = &mut self.groups[g];
                        let members = group.from.objects();
                        group.probed.get_or_insert_with(|| vec![None; members])[m] = probed;
                    }
                }
                Reading::Objects(batch, of) => {
                    for ((g, m, at), buffer) in of.into_iter().zip(batch.into_buffers()) {
                        let group = &mut self.groups[g];
                        let members = group.from.objects();
                        group.adopted.resize_with(members, || None);
                        group.adopted[m] = buffer.map(|bytes| (at, bytes));
                    }
                }
            }
            self.try_groups(io);
            self.read(io);
        }
    }

    /// A read came back.
    pub fn completed(&mut self, io: &mut SessionIo, completion: Completion) {
        match &mut self.reading {
            Reading::Nothing => {}
            Reading::Headers(batch, _) | Reading::Objects(batch, _) => batch.completed(io, completion),
        }
    }

    /// Let go of what is held for a batch that nobody will finish.
    pub fn abandon(&mut self, io: &SessionIo) {
        match &mut self.reading {
            Reading::Nothing => {}
            Reading::Headers(batch, _) | Reading::Objects(batch, _) => batch.abandon(io),
        }
        for i in 0..self.groups.len() {
            let internal = || Error::new(ErrorKind::Unavailable, "its session was dropped");
            self.groups[i].outcome.get_or_insert_with(|| Err(internal()));
            self.settle_open(&io.shared, i);
        }
        self.let_go(&io.shared);
    }

    /// The outcomes, group by group, object by object.
    pub fn finish(self, _io: &mut SessionIo) -> Vec<PutDone> {
        let mut all = Vec::with_capacity(self.groups.iter().map(|group| group.from.objects()).sum());
        self.groups.into_iter().for_each(|group| done(group, &mut all));
        all
    }
}

/// Of each object of a group: the group's outcome, or that it was here by itself.
fn done(group: Group, all: &mut Vec<PutDone>) {
    let internal = || Error::new(ErrorKind::Internal, "put without an outcome");
    let outcome = group.outcome.unwrap_or_else(|| Err(internal()));
    let one = |(i, source): (usize, Source)| {
        let outcome = match &outcome {
            Ok(PutOutcome::Stored) if takes_in(&group.takes_in, i) => Ok(PutOutcome::AlreadyPresent),
            other => other.clone(),
        };
        PutDone { outcome, source }
    };
    match group.from {
        From::Lent(objects) => all.extend(objects.into_iter().map(|o| o.source).enumerate().map(one)),
        From::Open(_, required) => {
            all.extend(required.iter().map(|_| Source::of(Vec::new())).enumerate().map(one));
        }
    }
}

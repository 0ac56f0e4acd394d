//! A batch of groups to be put. Groups of new objects are stored at once, [in runs](run). If the
//! SSD may have an object already, its header is read first. An object that is present by itself is
//! read before its group is stored.

pub(crate) mod run;

use std::sync::Arc;

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::clock::Mono;
use pagelith_io::disk::Completion;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{PutDone, PutOutcome, Ticket};
use crate::api::request::{Destination, Get, Payload, Put, PutGroup, Source};
use crate::memory::frames::{FrameMember, FrameRef};
use crate::read::get::{GetBatch, Probed};
use crate::state::core::Core;
use crate::state::put_spec::{Location, ObjectSize, PutKind, PutOrigin};
use crate::state::session_io::SessionIo;
use crate::state::shared::Shared;
use crate::write::put::Admitted;
use crate::write::put::admit::StandaloneMember;
use crate::write::put::copied;
use crate::write::put::copied::{CopiedGroup, CopySource, MemberSource};

/// The source of a group's objects.
enum GroupSource {
    /// The caller.
    Caller(Vec<Put>),
    /// An open group, and the objects that it requires.
    Open(u64, Arc<[ObjectKey]>),
}

impl GroupSource {
    fn objects(&self) -> usize {
        match self {
            GroupSource::Caller(objects) => objects.len(),
            GroupSource::Open(_, required) => required.len(),
        }
    }
}

/// The reads that a group needs before it can be stored.
enum Needs {
    Nothing,
    /// The headers of these members.
    Headers(Vec<usize>),
    /// These members, which are present by themselves.
    Objects(Vec<StandaloneMember>),
}

struct BatchGroup {
    source: GroupSource,
    /// An object of the base group to which the group is attached.
    base: Option<Box<ObjectKey>>,
    outcome: Option<Result<PutOutcome>>,
    needs: Needs,
    /// The probes of the members' headers on SSD, after they were read.
    probed: Option<Vec<Option<Probed>>>,
    /// The bytes of members that are present by themselves, and their location when the read began;
    /// empty before the read.
    adopted: Vec<Option<(Location, AlignedBuf)>>,
    objects_requested: bool,
    /// Which members were stored with bytes that the store already had; empty if none was.
    adopts: Vec<bool>,
    /// Bytes of its buffers for adopted objects.
    buffer_bytes: u64,
}

impl BatchGroup {
    fn new(source: GroupSource, base: Option<ObjectKey>) -> BatchGroup {
        let (adopted, adopts) = (Vec::new(), Vec::new());
        BatchGroup {
            source,
            base: base.map(Box::new),
            outcome: None,
            needs: Needs::Nothing,
            probed: None,
            adopted,
            objects_requested: false,
            adopts,
            buffer_bytes: 0,
        }
    }

    fn kind(&self) -> PutKind<'_> {
        match &self.base {
            Some(base) => PutKind::Attached(base),
            None if self.source.objects() > 1 => PutKind::Base,
            None => PutKind::Single,
        }
    }

    fn key(&self, member: usize) -> &ObjectKey {
        match &self.source {
            GroupSource::Caller(objects) => &objects[member].key,
            GroupSource::Open(_, required) => &required[member],
        }
    }

    /// The members' keys and lengths; `None` if it is an open group that was dropped.
    fn sizes(&self, shared: &Shared) -> Option<Vec<ObjectSize>> {
        match &self.source {
            GroupSource::Caller(objects) => {
                let size = |o: &Put| ObjectSize {
                    key: o.key,
                    length: Some(o.source.len()),
                    in_arena: matches!(o.source.payload, Some(Payload::Filled(_))),
                };
                Some(objects.iter().map(size).collect())
            }
            GroupSource::Open(id, required) => {
                let core = shared.lock();
                let open = core.pending_groups.get(*id)?;
                let size = |(i, key): (usize, &ObjectKey)| {
                    let length = open.filled(i);
                    ObjectSize { key: *key, length, in_arena: length.is_some() }
                };
                Some(required.iter().enumerate().map(size).collect())
            }
        }
    }

    /// Prepare the admitted group for copying; the objects of an open group are taken out of its
    /// table. Returns `admitted` if the open group was dropped or has changed since admission.
    fn prepare(
        &mut self,
        shared: &Shared,
        admitted: Admitted,
        at: Recency,
    ) -> std::result::Result<CopiedGroup, Box<Admitted>> {
        let (kind, page) = (self.kind().initial_group_kind(), *self.key(0));
        let buffers = &self.adopted;
        let adopted = |i: usize| adopted_bytes(buffers, &admitted.adopts, i);
        match &mut self.source {
            GroupSource::Caller(objects) => {
                let mut all: Vec<MemberSource> = Vec::with_capacity(objects.len());
                for (i, Put { key, source }) in objects.iter_mut().enumerate() {
                    let is_in_arena = |e: &Payload| matches!(e, Payload::Filled(_));
                    let filled = source.payload.take_if(|e| is_in_arena(e) && adopted(i).is_none());
                    all.push(match filled {
                        Some(Payload::Filled(filled)) => MemberSource::Filled(*key, filled),
                        _ => MemberSource::ToCopy(*key),
                    });
                }
                Ok(copied::prepare(kind, &page, all.into_iter(), admitted, at))
            }
            GroupSource::Open(id, required) => {
                let mut core = shared.lock();
                let open = core.pending_groups.get_mut(*id).filter(|open| {
                    (0..required.len())
                        .all(|i| is_adopted(&admitted.adopts, i) || open.filled(i).is_some())
                });
                let Some(open) = open else { return Err(Box::new(admitted)) };
                let one = |(i, key): (usize, &ObjectKey)| match adopted(i) {
                    Some(_) => Some(MemberSource::ToCopy(*key)),
                    None => {
                        open.take_member(i).map(|member| MemberSource::InArena(Box::new(member)))
                    }
                };
                let all: Vec<_> = required.iter().enumerate().filter_map(one).collect();
                drop(core);
                Ok(copied::prepare(kind, &page, all.into_iter(), admitted, at))
            }
        }
    }

    /// The bytes of a member that is to be copied.
    fn member_bytes(&self, adopts: &[bool], member: usize) -> CopySource<'_> {
        adopted_bytes(&self.adopted, adopts, member).unwrap_or_else(|| match &self.source {
            GroupSource::Caller(objects) => source_bytes(&objects[member].source),
            // Objects that are not adopted are already in the arena.
            GroupSource::Open(..) => CopySource::Caller(&[]),
        })
    }

    /// The group cannot be stored now: its objects in the arena return to the open group, or are
    /// freed.
    fn take_back(&self, core: &mut Core, adopts: &[bool], members: Vec<FrameMember>) {
        for (i, member) in members.into_iter().enumerate() {
            let open = match &self.source {
                GroupSource::Open(id, _) if !is_adopted(adopts, i) => {
                    core.pending_groups.get_mut(*id)
                }
                GroupSource::Open(..) | GroupSource::Caller(_) => None,
            };
            let unowned = match open {
                Some(open) => open.restore_member(member),
                None => Some(member),
            };
            if let Some(member) = unowned {
                core.dram.space.free(member.extent);
            }
        }
    }
}

/// The bytes of a source that is not in the arena.
fn source_bytes(source: &Source) -> CopySource<'_> {
    match &source.payload {
        Some(Payload::Client(payload)) => CopySource::Client(payload),
        Some(Payload::Filled(_)) | None => CopySource::Caller(&source.parts),
    }
}

/// The bytes of a member that is adopted, if it is.
fn adopted_bytes<'a>(
    buffers: &'a [Option<(Location, AlignedBuf)>],
    adopts: &[bool],
    i: usize,
) -> Option<CopySource<'a>> {
    let (_, bytes) = buffers.get(i)?.as_ref().filter(|_| is_adopted(adopts, i))?;
    Some(CopySource::Adopted(bytes))
}

/// Whether member `i` is adopted: stored with bytes that the store already has.
fn is_adopted(adopts: &[bool], i: usize) -> bool {
    adopts.get(i).copied().unwrap_or(false)
}

/// The reads in flight for a batch.
enum ActiveReads {
    Nothing,
    /// Headers of (group, member).
    Headers(GetBatch, Vec<(usize, usize)>),
    /// Whole objects of (group, member), and the location of each.
    Objects(GetBatch, Vec<(usize, usize, Location)>),
}

/// A batch of put groups.
pub(crate) struct PutBatch {
    groups: Vec<BatchGroup>,
    reading: ActiveReads,
    at: Recency,
    deadline: Mono,
    frames: Vec<FrameRef>,
    unqueued_bytes: u64,
    origin: PutOrigin,
}

impl PutBatch {
    /// Store the groups that need no read, and begin the reads for the others.
    pub fn begin(
        io: &mut SessionIo,
        groups: Vec<PutGroup>,
        at: Recency,
        deadline: Mono,
        origin: PutOrigin,
    ) -> PutBatch {
        let _span = tracing::debug_span!("put", groups = groups.len()).entered();
        let group = |g: PutGroup| BatchGroup::new(GroupSource::Caller(g.objects), g.base);
        Self::begin_groups(io, groups.into_iter().map(group).collect(), at, deadline, origin)
    }

    /// Make an open group visible.
    pub fn commit(io: &mut SessionIo, open: u64, at: Recency, deadline: Mono) -> PutBatch {
        let mut core = io.shared.lock();
        let found = core.pending_groups.get_mut(open).map(|group| {
            (std::mem::replace(&mut group.committing, true), group.required.clone(), group.at)
        });
        drop(core);
        let (busy, required, at) = found.unwrap_or((false, Arc::new([]), at));
        let mut group = BatchGroup::new(GroupSource::Open(open, required), None);
        if busy {
            group.outcome = Some(Err(Error::busy("group is being committed by another caller")));
        }
        Self::begin_groups(io, vec![group], at, deadline, PutOrigin::Put)
    }

    fn begin_groups(
        io: &mut SessionIo,
        groups: Vec<BatchGroup>,
        at: Recency,
        deadline: Mono,
        origin: PutOrigin,
    ) -> PutBatch {
        let (reading, frames, unqueued_bytes) = (ActiveReads::Nothing, Vec::new(), 0);
        let mut batch = PutBatch { groups, reading, at, deadline, frames, unqueued_bytes, origin };
        batch.try_groups(io);
        batch.begin_reads(io);
        batch
    }

    fn try_groups(&mut self, io: &mut SessionIo) {
        self.try_runs(&io.shared);
        io.shared.remote.peers.iter().for_each(|remote| remote.writer_signal.raise());
        self.release_buffers(&io.shared);
    }

    /// Settle an open group that has its outcome: a committed group is closed, any other stays open
    /// for the next attempt.
    fn settle_open_group(&self, shared: &Shared, i: usize) {
        let BatchGroup { source: GroupSource::Open(id, _), outcome: Some(outcome), .. } =
            &self.groups[i]
        else {
            return;
        };
        let mut core = shared.lock();
        match outcome {
            Ok(PutOutcome::Waiting) | Err(_) => {
                let Some(open) = core.pending_groups.get_mut(*id) else { return };
                (open.committing, open.lost_members) = (false, false);
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

    /// Begin the reads that groups need: headers first, since they may settle the other reads.
    fn begin_reads(&mut self, io: &mut SessionIo) {
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
            self.reading =
                ActiveReads::Headers(GetBatch::probe(io, &keys, self.at, self.deadline), headers);
            // Objects are read in the next round.
            objects
                .into_iter()
                .for_each(|(g, members)| self.groups[g].needs = Needs::Objects(members));
            return;
        }
        let mut gets = Vec::new();
        let mut targets = Vec::new();
        for (g, alone) in objects {
            match self.alloc_buffers(&io.shared, g, &alone) {
                Ok(buffers) => {
                    for (alone, buffer) in alone.iter().zip(buffers) {
                        let key = *self.groups[g].key(alone.member);
                        gets.push(Get {
                            key,
                            range: None,
                            destination: Destination::owned(buffer),
                        });
                        targets.push((g, alone.member, alone.location));
                    }
                }
                Err(error) => {
                    self.groups[g].outcome = Some(Err(error));
                    self.settle_open_group(&io.shared, g);
                }
            }
        }
        self.release_buffers(&io.shared);
        if !gets.is_empty() {
            self.reading =
                ActiveReads::Objects(GetBatch::begin(io, gets, self.at, self.deadline), targets);
        }
    }

    /// Buffers for the objects that a group adopts. They are not in the arena: their sum over all
    /// groups is bounded by the capacity of the staging memory, except that one group may always
    /// proceed.
    fn alloc_buffers(
        &mut self,
        shared: &Shared,
        g: usize,
        alone: &[StandaloneMember],
    ) -> Result<Vec<AlignedBuf>> {
        let bytes: u64 = alone.iter().map(|a| a.length).sum();
        {
            let mut core = shared.lock();
            let max = shared.ssd.staging.capacity() as u64;
            if core.dram.adopting_bytes > 0 && core.dram.adopting_bytes + bytes > max {
                let now = core.dram.adopting_bytes;
                let detail = format!(
                    "buffers for adopted objects are in use bytes={bytes} used={now} max={max}"
                );
                return Err(Error::busy(detail));
            }
            core.dram.adopting_bytes += bytes;
        }
        self.groups[g].buffer_bytes += bytes;
        let buffers: std::io::Result<Vec<_>> =
            alone.iter().map(|a| AlignedBuf::new(a.length as usize)).collect();
        buffers
            .map_err(|e| Error::busy(format!("no memory for adopted objects bytes={bytes}: {e}")))
    }

    /// Free the adopted objects' buffers of groups that have their outcome.
    fn release_buffers(&mut self, shared: &Shared) {
        for group in self.groups.iter_mut().filter(|g| g.outcome.is_some() && g.buffer_bytes > 0) {
            group.adopted.iter_mut().for_each(|bytes| *bytes = None);
            shared.lock().dram.adopting_bytes -= std::mem::take(&mut group.buffer_bytes);
        }
    }

    /// Progress without waiting; true once every group has its outcome.
    pub fn advance(&mut self, io: &mut SessionIo, ticket: Ticket) -> bool {
        loop {
            match &mut self.reading {
                ActiveReads::Nothing => return true,
                ActiveReads::Headers(batch, _) | ActiveReads::Objects(batch, _) => {
                    if !batch.advance(io, ticket) {
                        return false;
                    }
                }
            }
            match std::mem::replace(&mut self.reading, ActiveReads::Nothing) {
                ActiveReads::Nothing => {}
                ActiveReads::Headers(batch, targets) => {
                    for ((g, m), probed) in targets.into_iter().zip(batch.into_probed()) {
                        let group = &mut self.groups[g];
                        let members = group.source.objects();
                        group.probed.get_or_insert_with(|| vec![None; members])[m] = probed;
                    }
                }
                ActiveReads::Objects(batch, targets) => {
                    for ((g, m, at), buffer) in targets.into_iter().zip(batch.into_buffers()) {
                        let group = &mut self.groups[g];
                        let members = group.source.objects();
                        group.adopted.resize_with(members, || None);
                        group.adopted[m] = buffer.map(|bytes| (at, bytes));
                    }
                }
            }
            self.try_groups(io);
            self.begin_reads(io);
        }
    }

    /// Handle the completion of a read.
    pub fn completed(&mut self, io: &mut SessionIo, completion: Completion) {
        match &mut self.reading {
            ActiveReads::Nothing => {}
            ActiveReads::Headers(batch, _) | ActiveReads::Objects(batch, _) => {
                batch.completed(io, completion)
            }
        }
    }

    /// Release the resources of a batch that will not be finished.
    pub fn abandon(&mut self, io: &SessionIo) {
        match &mut self.reading {
            ActiveReads::Nothing => {}
            ActiveReads::Headers(batch, _) | ActiveReads::Objects(batch, _) => batch.abandon(io),
        }
        for i in 0..self.groups.len() {
            let internal = || {
                Error::new(ErrorKind::Unavailable, "session was dropped before the put completed")
            };
            self.groups[i].outcome.get_or_insert_with(|| Err(internal()));
            self.settle_open_group(&io.shared, i);
        }
        self.release_buffers(&io.shared);
    }

    /// The outcomes, group by group, object by object.
    pub fn finish(self, _io: &mut SessionIo) -> Vec<PutDone> {
        let mut all =
            Vec::with_capacity(self.groups.iter().map(|group| group.source.objects()).sum());
        self.groups.into_iter().for_each(|group| collect_results(group, &mut all));
        all
    }
}

/// Append each object's result: the group's outcome, or `AlreadyPresent` for an adopted object.
fn collect_results(group: BatchGroup, all: &mut Vec<PutDone>) {
    let internal = || Error::new(ErrorKind::Internal, "put without an outcome");
    let outcome = group.outcome.unwrap_or_else(|| Err(internal()));
    let one = |(i, source): (usize, Source)| {
        let outcome = match &outcome {
            Ok(PutOutcome::Stored) if is_adopted(&group.adopts, i) => {
                Ok(PutOutcome::AlreadyPresent)
            }
            other => other.clone(),
        };
        PutDone { outcome, source }
    };
    match group.source {
        GroupSource::Caller(objects) => {
            all.extend(objects.into_iter().map(|o| o.source).enumerate().map(one))
        }
        GroupSource::Open(_, required) => {
            all.extend(required.iter().map(|_| Source::of(Vec::new())).enumerate().map(one));
        }
    }
}

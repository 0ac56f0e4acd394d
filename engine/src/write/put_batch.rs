//! A batch of groups to be put. Groups of new objects are stored at once, [in runs](run). If the
//! SSD may have an object already, its header is read first. If an object is present as a single
//! object, it is read before its group is stored.

mod progress;
mod run;

use std::sync::Arc;

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::clock::Mono;
use pagelith_io::disk::Completion;
use pagelith_layouts::key::ObjectKey;
use pagelith_tiers::policy::Recency;

use self::progress::{AdoptedObjects, GroupProgress};
use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::{CompletedPut, PutOutcome, Ticket};
use crate::api::request::{Destination, Get, Source};
use crate::memory::frames::{FrameMember, FrameRef};
use crate::read::get::GetBatch;
use crate::read::recompute::Recompute;
use crate::state::core::Core;
use crate::state::put_spec::{Location, ObjectSize, PutKind, PutOrigin};
use crate::state::session_io::SessionIo;
use crate::state::shared::Shared;
use crate::write::put::AdmittedGroup;
use crate::write::put::admit::StandaloneMember;
use crate::write::put::copy;
use crate::write::put::copy::{CopySource, MemberSource, PreparedGroup};
use crate::write::put::payload::{PayloadGroup, PayloadObject, PutPayload};

/// The source of a group's objects.
enum GroupSource {
    /// The caller.
    Caller(Vec<PayloadObject>),
    /// An open group.
    Open {
        id: u64,
        /// The objects that it requires.
        required: Arc<[ObjectKey]>,
        /// Whether this batch has begun a commit of the group, and must end it.
        is_committing: bool,
    },
}

impl GroupSource {
    fn objects(&self) -> usize {
        match self {
            GroupSource::Caller(objects) => objects.len(),
            GroupSource::Open { required, .. } => required.len(),
        }
    }
}

struct BatchGroup {
    source: GroupSource,
    /// An object of the base group to which the group is attached.
    base: Option<Box<ObjectKey>>,
    progress: GroupProgress,
}

impl BatchGroup {
    fn new(source: GroupSource, base: Option<ObjectKey>) -> BatchGroup {
        BatchGroup { source, base: base.map(Box::new), progress: GroupProgress::new() }
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
            GroupSource::Open { required, .. } => &required[member],
        }
    }

    /// The members' keys and lengths; `None` if it is an open group that was dropped.
    fn sizes(&self, shared: &Shared) -> Option<Vec<ObjectSize>> {
        match &self.source {
            GroupSource::Caller(objects) => {
                let size = |o: &PayloadObject| ObjectSize {
                    key: o.key,
                    length: Some(o.payload.length()),
                    in_arena: o.payload.is_in_arena(),
                };
                Some(objects.iter().map(size).collect())
            }
            GroupSource::Open { id, required, .. } => {
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
    /// table. `adopts` are the members to be adopted. Returns `admitted` if the open group was
    /// dropped or has changed since admission.
    fn prepare(
        &mut self,
        shared: &Shared,
        admitted: AdmittedGroup,
        adopts: &[bool],
        at: Recency,
    ) -> std::result::Result<PreparedGroup, Box<AdmittedGroup>> {
        let (kind, page) = (self.kind().initial_group_kind(), *self.key(0));
        let buffers = self.progress.adopted();
        let adopted = |i: usize| adopted_bytes(buffers, adopts, i);
        match &mut self.source {
            GroupSource::Caller(objects) => {
                let mut all: Vec<MemberSource> = Vec::with_capacity(objects.len());
                for (i, PayloadObject { key, payload }) in objects.iter_mut().enumerate() {
                    let filled = match adopted(i) {
                        None => payload.take_reserved(),
                        Some(_) => None,
                    };
                    all.push(match filled {
                        Some(filled) => MemberSource::Filled(*key, filled),
                        None => MemberSource::ToCopy(*key),
                    });
                }
                Ok(copy::prepare(kind, &page, all.into_iter(), admitted, at))
            }
            GroupSource::Open { id, required, .. } => {
                let mut core = shared.lock();
                let open = core.pending_groups.get_mut(*id).filter(|open| {
                    (0..required.len()).all(|i| is_adopted(adopts, i) || open.filled(i).is_some())
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
                Ok(copy::prepare(kind, &page, all.into_iter(), admitted, at))
            }
        }
    }

    /// The bytes of a member that is to be copied.
    fn member_bytes(&self, adopts: &[bool], member: usize) -> CopySource<'_> {
        adopted_bytes(self.progress.adopted(), adopts, member).unwrap_or_else(|| {
            match &self.source {
                GroupSource::Caller(objects) => payload_bytes(&objects[member].payload),
                // Objects that are not adopted are already in the arena.
                GroupSource::Open { .. } => CopySource::Caller(&[]),
            }
        })
    }

    /// The group cannot be stored now: its objects in the arena return to the open group, or are
    /// freed.
    fn take_back(&self, core: &mut Core, adopts: &[bool], members: Vec<FrameMember>) {
        for (i, member) in members.into_iter().enumerate() {
            let open = match &self.source {
                GroupSource::Open { id, .. } if !is_adopted(adopts, i) => {
                    core.pending_groups.get_mut(*id)
                }
                GroupSource::Open { .. } | GroupSource::Caller(_) => None,
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

/// The bytes of a payload that is not in the arena.
fn payload_bytes(payload: &PutPayload) -> CopySource<'_> {
    match payload {
        PutPayload::Caller(source) => CopySource::Caller(&source.parts),
        PutPayload::Reserved(_) => CopySource::Caller(&[]),
        PutPayload::ClientMemory(payload) => CopySource::Client(payload),
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

/// The reads in flight for a batch, in the order of its groups and of their members.
enum ActiveReads {
    Nothing,
    /// Headers, for groups in [`GroupProgress::NeedHeaders`].
    Headers(GetBatch),
    /// Whole objects, for groups in [`GroupProgress::ReadingObjects`].
    Objects(GetBatch),
}

/// A batch of put groups.
pub(crate) struct PutBatch {
    groups: Vec<BatchGroup>,
    reading: ActiveReads,
    at: Recency,
    deadline: Mono,
    frames: Vec<FrameRef>,
    unqueued_bytes: u64,
    /// Buffers of groups that have their outcome, to be freed without the lock.
    unused_buffers: Vec<AdoptedObjects>,
    origin: PutOrigin,
}

impl PutBatch {
    /// Store the groups that need no read, and begin the reads for the others.
    pub fn begin(
        io: &mut SessionIo,
        groups: Vec<PayloadGroup>,
        at: Recency,
        deadline: Mono,
        origin: PutOrigin,
    ) -> PutBatch {
        let _span = tracing::debug_span!("put", groups = groups.len()).entered();
        let group = |g: PayloadGroup| BatchGroup::new(GroupSource::Caller(g.objects), g.base);
        Self::begin_groups(io, groups.into_iter().map(group).collect(), at, deadline, origin)
    }

    /// Make an open group visible.
    pub fn commit(io: &mut SessionIo, open: u64, at: Recency, deadline: Mono) -> PutBatch {
        let mut core = io.shared.lock();
        let found = core.pending_groups.get_mut(open).map(|group| {
            let is_committing = !std::mem::replace(&mut group.committing, true);
            (is_committing, group.required.clone(), group.at)
        });
        drop(core);
        let is_open = found.is_some();
        let (is_committing, required, at) = found.unwrap_or((false, Arc::new([]), at));
        let source = GroupSource::Open { id: open, required, is_committing };
        let mut group = BatchGroup::new(source, None);
        if is_open && !is_committing {
            let first = group.key(0);
            let detail = "group is being committed by another caller; wait for that commit";
            let error = Error::busy(format!("{detail} key={first}"));
            group.progress.finish(Err(error), Vec::new());
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
        let mut batch = PutBatch {
            groups,
            reading: ActiveReads::Nothing,
            at,
            deadline,
            frames: Vec::new(),
            unqueued_bytes: 0,
            unused_buffers: Vec::new(),
            origin,
        };
        batch.try_groups(io);
        batch.begin_reads(io);
        batch
    }

    fn try_groups(&mut self, io: &mut SessionIo) {
        self.try_runs(&io.shared);
        io.shared.remote.peers.iter().for_each(|remote| remote.writer_signal.raise());
        self.release_buffers(&io.shared);
    }

    /// Set the outcome of a group, and the members that it adopted.
    fn set_outcome(&mut self, group: usize, outcome: Result<PutOutcome>, adopts: Vec<bool>) {
        self.unused_buffers.extend(self.groups[group].progress.finish(outcome, adopts));
    }

    /// End the commit of an open group that has its outcome: a committed group is closed, any other
    /// stays open for the next attempt.
    fn end_commit(&mut self, shared: &Shared, i: usize) {
        let BatchGroup { source, progress, .. } = &mut self.groups[i];
        let (GroupSource::Open { id, is_committing, .. }, Some(outcome)) =
            (source, progress.outcome())
        else {
            return;
        };
        if !std::mem::take(is_committing) {
            return;
        }
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
            Ok(_) => {
                core.close_group(*id);
            }
        }
    }

    /// Begin the reads that groups need: headers first: they may make the other reads needless.
    fn begin_reads(&mut self, io: &mut SessionIo) {
        let mut keys = Vec::new();
        for group in &self.groups {
            keys.extend(group.progress.needed_headers().iter().map(|member| *group.key(*member)));
        }
        if !keys.is_empty() {
            let probe = GetBatch::probe(io, &keys, self.at, self.deadline);
            self.reading = ActiveReads::Headers(probe);
            return;
        }
        let mut gets = Vec::new();
        for i in 0..self.groups.len() {
            let group = &mut self.groups[i];
            match alloc_buffers(&io.shared, group.progress.needed_objects()) {
                Ok(buffers) => {
                    let members = group.progress.needed_objects().iter().zip(buffers);
                    gets.extend(members.map(|(standalone, buffer)| Get {
                        key: *group.key(standalone.member),
                        range: None,
                        destination: Destination::owned(buffer),
                    }));
                    group.progress.begin_objects();
                }
                Err(error) => {
                    self.set_outcome(i, Err(error), Vec::new());
                    self.end_commit(&io.shared, i);
                }
            }
        }
        self.release_buffers(&io.shared);
        if !gets.is_empty() {
            let batch = GetBatch::begin(io, gets, self.at, self.deadline, Recompute::Never);
            self.reading = ActiveReads::Objects(batch);
        }
    }

    /// Free the adopted objects' buffers of groups that have their outcome.
    fn release_buffers(&mut self, shared: &Shared) {
        if !self.unused_buffers.is_empty() {
            let unused = std::mem::take(&mut self.unused_buffers);
            let bytes: u64 = unused.iter().map(|objects| objects.reserved_bytes).sum();
            drop(unused);
            shared.lock().dram.adopting_bytes -= bytes;
        }
    }

    /// Progress without waiting; true once every group has its outcome.
    pub fn advance(&mut self, io: &mut SessionIo, ticket: Ticket) -> bool {
        loop {
            match &mut self.reading {
                ActiveReads::Nothing => return true,
                ActiveReads::Headers(batch) | ActiveReads::Objects(batch) => {
                    if !batch.advance(io, ticket) {
                        return false;
                    }
                }
            }
            match std::mem::replace(&mut self.reading, ActiveReads::Nothing) {
                ActiveReads::Nothing => {}
                ActiveReads::Headers(batch) => {
                    let mut probed = batch.into_probed().into_iter();
                    for BatchGroup { source, progress, .. } in &mut self.groups {
                        progress.end_headers(source.objects(), &mut probed);
                    }
                }
                ActiveReads::Objects(batch) => {
                    let mut buffers = batch.into_buffers().into_iter();
                    for BatchGroup { source, progress, .. } in &mut self.groups {
                        progress.end_objects(source.objects(), &mut buffers);
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
            ActiveReads::Headers(batch) | ActiveReads::Objects(batch) => {
                batch.completed(io, completion)
            }
        }
    }

    /// Release the resources of a batch that will not be finished.
    pub fn abandon(&mut self, io: &SessionIo) {
        match &mut self.reading {
            ActiveReads::Nothing => {}
            ActiveReads::Headers(batch) | ActiveReads::Objects(batch) => batch.abandon(io),
        }
        for i in 0..self.groups.len() {
            if self.groups[i].progress.outcome().is_none() {
                let detail = "session was dropped before the put completed";
                let error = Error::new(ErrorKind::Unavailable, detail);
                self.set_outcome(i, Err(error), Vec::new());
            }
            self.end_commit(&io.shared, i);
        }
        self.release_buffers(&io.shared);
    }

    /// The outcomes, group by group, object by object.
    pub fn finish(self, _io: &mut SessionIo) -> Vec<CompletedPut> {
        let mut all =
            Vec::with_capacity(self.groups.iter().map(|group| group.source.objects()).sum());
        self.groups.into_iter().for_each(|group| collect_results(group, &mut all));
        all
    }
}

/// Buffers for objects that a group adopts. They are not in the arena: their sum over all groups is
/// bounded by the capacity of the staging memory, except that one group may always proceed.
fn alloc_buffers(shared: &Shared, members: &[StandaloneMember]) -> Result<Vec<AlignedBuf>> {
    if members.is_empty() {
        return Ok(Vec::new());
    }
    let bytes = progress::buffer_bytes(members);
    let mut core = shared.lock();
    let (used, max) = (core.dram.adopting_bytes, shared.ssd.staging.capacity() as u64);
    if used > 0 && used + bytes > max {
        let detail =
            format!("buffers for adopted objects are in use bytes={bytes} used={used} max={max}");
        return Err(Error::busy(detail));
    }
    core.dram.adopting_bytes += bytes;
    drop(core);
    let buffer = |standalone: &StandaloneMember| AlignedBuf::new(standalone.length as usize);
    let buffers: std::io::Result<Vec<_>> = members.iter().map(buffer).collect();
    buffers.map_err(|e| {
        shared.lock().dram.adopting_bytes -= bytes;
        Error::busy(format!("no memory for adopted objects bytes={bytes}: {e}"))
    })
}

/// Append each object's result: the group's outcome, or `AlreadyPresent` for an adopted object.
fn collect_results(group: BatchGroup, all: &mut Vec<CompletedPut>) {
    let (outcome, adopts) = match group.progress {
        GroupProgress::Done { outcome, adopts } => (outcome, adopts),
        _ => (Err(Error::new(ErrorKind::Internal, "put without an outcome")), Vec::new()),
    };
    let one = |(i, source): (usize, Source)| {
        let outcome = match &outcome {
            Ok(PutOutcome::Stored) if is_adopted(&adopts, i) => Ok(PutOutcome::AlreadyPresent),
            other => other.clone(),
        };
        CompletedPut::of(outcome, source)
    };
    match group.source {
        GroupSource::Caller(objects) => {
            all.extend(objects.into_iter().map(|o| o.payload.into_source()).enumerate().map(one))
        }
        GroupSource::Open { required, .. } => {
            all.extend(required.iter().map(|_| Source::of(Vec::new())).enumerate().map(one));
        }
    }
}

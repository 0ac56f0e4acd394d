//! Puts. Groups that are present are answered without requesting their bytes. For the others the
//! server reserves arena memory, pulls the bytes into it, one run of groups at a time, and stores
//! them in place.
//!
//! Invariants:
//! - A stored object has the checksums that the client sent, verified over the bytes in the arena.
//! - Bytes copied from client memory are stored only if the copy has these checksums: the client
//!   may cancel the put during the copy and overwrite its memory.

#[cfg(test)]
mod capacity_test;
mod incoming;
mod run;

use std::ops::Range;

use pagelith_io::buffer::Part;
use pagelith_layouts::checksum::Checksums;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::pull::{self, PullItem};
use pagelith_layouts::wire::put::PutBody;
use pagelith_layouts::wire::request::{RequestBody, Verb};
use pagelith_layouts::wire::{Frame, FrameKind};
use pagelith_tiers::policy::{FrameId, Recency};
use pagelith_transport::link::Link;
use pagelith_transport::shown::ShmRef;

use self::incoming::{IncomingBytes, IncomingObject};
use self::run::RUN_GROUPS;
use super::op_outcome::{ItemVerdict, OpOutcome};
use super::{CallContext, ServerCtx};
use crate::api::error::{Error, Result};
use crate::api::outcome::{CompletedPut, PutOutcome, Ticket};
use crate::api::request::Options;
use crate::memory::frames::FrameData;
use crate::memory::index::{Entry, name_of};
use crate::memory::visibility::VisibilityFilter;
use crate::read::exists;
use crate::state::group_memory::no_room;
use crate::state::put_spec::{ObjectSize, PutKind, PutOrigin};
use crate::state::read_view::CoreGuard;
use crate::state::reserve;
use crate::state::reserve::ReserveResult;
use crate::state::session_io::recency;
use crate::state::shared::Shared;
use crate::write::open_group;
use crate::write::open_group::JoinedGroup;
use crate::write::put;
use crate::write::put::new_keys;
use crate::write::put::payload::{PayloadGroup, PayloadObject, PutPayload};
use crate::write::put::publish;

/// Bytes of server state for an object that is a group of its own.
pub(crate) const INCOMING_BYTES: usize = size_of::<IncomingObject>() + size_of::<IncomingGroup>();

enum GroupState {
    /// Nothing was done for it.
    New,
    /// Number of objects whose bytes have not arrived.
    Pulling(usize),
    /// All bytes of the group have arrived.
    Received,
    Storing(Ticket),
    /// All objects of the open group are put; its commit is pending.
    Committing(Ticket, JoinedGroup),
    Done,
}

struct IncomingGroup {
    base: Option<ObjectKey>,
    /// Range of its objects in the put.
    objects: Range<usize>,
    state: GroupState,
}

/// A put in progress.
pub(crate) struct PutOp {
    call: CallContext,
    pub verb: Verb,
    block_bytes: u32,
    objects: Vec<IncomingObject>,
    groups: Vec<IncomingGroup>,
    /// For parts of groups: the keys of all objects of such a group, on any page; `None` if the
    /// groups are complete. Kept once per put, since a request may have many pages.
    required: Option<Vec<ObjectKey>>,
    /// The open group that receives the objects, each by itself.
    open_group: Option<JoinedGroup>,
}

impl PutOp {
    pub fn new(
        call: CallContext,
        puts: PutBody<'_>,
        open_group: Option<JoinedGroup>,
        link: &dyn Link,
        id: OpId,
    ) -> PutOp {
        let objects = puts.items().len();
        let mut groups: Vec<IncomingGroup> =
            Vec::with_capacity(objects.min(puts.group_count() as usize));
        let mut incoming = Vec::with_capacity(objects);
        for object in puts.objects() {
            let at = incoming.len();
            if object.group as usize == groups.len() {
                let base = puts.base(object.group);
                groups.push(IncomingGroup { base, objects: at..at, state: GroupState::New });
            }
            groups.iter_mut().last().into_iter().for_each(|g| g.objects.end = at + 1);
            let sums: Checksums = object.checksums.iter().collect();
            // Bytes that cannot be referenced, or have no checksums to verify the copy against, are
            // pulled.
            let shown = |at| link.peer_ref((id, object.number, 0), at, object.length);
            let shown = object.shown.filter(|_| !sums.is_empty()).and_then(shown);
            let bytes = shown.map_or(IncomingBytes::AtClient, IncomingBytes::InClientMemory);
            let (key, length) = (object.key, object.length);
            incoming.push(IncomingObject { key, length, sums, bytes, verdict: None });
        }
        let verb = RequestBody::Put(puts).verb();
        let required = puts.required().map(|keys| keys.iter().collect());
        let (objects, block_bytes) = (incoming, puts.block_bytes());
        let mut op = PutOp { call, verb, block_bytes, objects, groups, required, open_group };
        if link.params().features & Feature::Rdma.bit() != 0 {
            op.refuse_without_checksums();
        }
        op
    }

    /// Refuse groups with an object without checksums. A device reads the client's memory over
    /// RDMA, and only checksums detect that the client has changed it during the READ.
    fn refuse_without_checksums(&mut self) {
        for at in 0..self.groups.len() {
            let objects = &self.objects[self.groups[at].objects.clone()];
            if let Some(key) = objects.iter().find(|o| o.sums.is_empty()).map(|o| o.key) {
                let text = format!("a put over RDMA needs checksums of its objects key={key}");
                self.set_verdict(at, || ItemVerdict::Failed(Error::invalid(text.clone())));
            }
        }
    }

    /// Records that the bytes of an object have arrived in `parts`, or can be copied from `shown`.
    pub fn receive(&mut self, item: u32, parts: Vec<Part>, shown: Option<&ShmRef>) {
        let at = item as usize;
        let Some(object) = self.objects.get_mut(at) else { return };
        object.receive(parts, shown, self.block_bytes);
        // The object ranges of groups are contiguous and ascending.
        let group_at = self.groups.partition_point(|group| group.objects.end <= at);
        let Some(group) = self.groups.get_mut(group_at) else { return };
        group.state = match std::mem::replace(&mut group.state, GroupState::Done) {
            GroupState::Pulling(1) => GroupState::Received,
            GroupState::Pulling(left) => GroupState::Pulling(left - 1),
            other => other,
        };
    }

    /// Records the results of a batch of groups.
    pub fn done(&mut self, shared: &Shared, ticket: Ticket, done: Vec<CompletedPut>) {
        let mut done = done.into_iter();
        for at in 0..self.groups.len() {
            let group = &mut self.groups[at];
            if !is_storing(&group.state, ticket) {
                continue;
            }
            if let GroupState::Committing(_, joined) =
                std::mem::replace(&mut group.state, GroupState::Done)
            {
                let outcome = joined.commit_outcome(shared, done.collect());
                self.set_verdict(at, || item_verdict(outcome.clone()));
                return;
            }
            for (object, done) in self.objects[group.objects.clone()].iter_mut().zip(&mut done) {
                object.verdict = Some(item_verdict(done.outcome));
            }
        }
    }

    /// Pulls and stores as much as possible; returns the outcome once each group has its outcome.
    pub fn advance(
        &mut self,
        ctx: &mut ServerCtx,
        link: &mut dyn Link,
        id: OpId,
    ) -> Option<OpOutcome> {
        if ctx.shared().now() >= self.call.deadline {
            link.retract(id);
            self.expire();
        }
        let (mut at, mut received) = (0, Vec::new());
        while at < self.groups.len() {
            // A group that cannot begin now blocks the groups after it.
            if matches!(self.groups[at].state, GroupState::New) && !self.begin(ctx, link, id, at) {
                break;
            }
            if matches!(self.groups[at].state, GroupState::Received) {
                received.push(at);
            }
            at += 1;
            if received.len() == RUN_GROUPS {
                self.store(ctx, id, std::mem::take(&mut received));
            }
        }
        self.store(ctx, id, received);
        let all_done = self.groups.iter().all(|group| is_done(&group.state));
        all_done.then(|| {
            let late = |key: &ObjectKey| {
                let detail = "the put was not complete by its deadline; retry, or allow more time";
                ItemVerdict::Failed(Error::busy(format!("{detail} key={key}")))
            };
            let verdict = |o: IncomingObject| (o.key, o.verdict.unwrap_or_else(|| late(&o.key)));
            OpOutcome::items(self.verb, self.objects.drain(..).map(verdict).collect())
        })
    }

    /// The deadline is over: drops every group that is not being stored.
    fn expire(&mut self) {
        for group in &mut self.groups {
            match group.state {
                GroupState::New | GroupState::Pulling(_) | GroupState::Received => {
                    group.state = GroupState::Done;
                    self.objects[group.objects.clone()]
                        .iter_mut()
                        .for_each(|o| o.bytes = IncomingBytes::Released);
                }
                GroupState::Storing(_) | GroupState::Committing(..) | GroupState::Done => {}
            }
        }
    }

    fn set_verdict(&mut self, at: usize, verdict: impl Fn() -> ItemVerdict) {
        let group = &mut self.groups[at];
        group.state = GroupState::Done;
        for object in &mut self.objects[group.objects.clone()] {
            (object.verdict, object.bytes) = (Some(verdict()), IncomingBytes::Released);
        }
    }

    /// Answers for the groups of a run without their bytes, or pulls them. The run begins with
    /// group `at`. Returns false if memory or link capacity is insufficient now.
    fn begin(&mut self, ctx: &mut ServerCtx, link: &mut dyn Link, id: OpId, at: usize) -> bool {
        let mut run = self.run(at);
        if !self.is_checked_by_store(ctx.shared(), &run) {
            self.answer_without_bytes(ctx.shared(), &mut run);
        }
        let Some(first) = run.first().copied() else { return true };
        let is_in_client_memory = self.is_in_client_memory(first);
        let same_source = run
            .iter()
            .take_while(|at| self.is_in_client_memory(**at) == is_in_client_memory)
            .count();
        run.truncate(same_source);
        if is_in_client_memory {
            self.store_from_client_memory(ctx, id, &run);
            return true;
        }
        let memory = loop {
            match self.reserve_memory(ctx, link, &run) {
                ReserveResult::Reserved(memory) => break memory,
                // Groups that do not fit together may fit one at a time.
                ReserveResult::OverLimit | ReserveResult::ArenaFull if run.len() > 1 => {
                    run.truncate(1)
                }
                ReserveResult::OverLimit => return false,
                ReserveResult::ArenaFull => {
                    let objects = self.object_numbers(&run);
                    let bytes: u64 = objects.iter().map(|item| self.objects[*item].length).sum();
                    let keys = objects.iter().map(|item| &self.objects[*item].key);
                    ctx.shared().count_busy(&mut ctx.shared().lock(), keys);
                    self.set_verdict(first, || ItemVerdict::Failed(no_room(bytes)));
                    return true;
                }
            }
        };
        let mut pulls = Vec::new();
        for (item, (reservation, part)) in self.object_numbers(&run).into_iter().zip(memory) {
            let object = &mut self.objects[item];
            let bytes = std::mem::replace(&mut object.bytes, IncomingBytes::Reserved(reservation));
            if let IncomingBytes::InClientMemory(shown) = bytes {
                object.receive(vec![part], Some(&shown), self.block_bytes);
                continue;
            }
            pulls.push(PullItem::new(item as u32, 0, part.len() as u64));
            if link.expose(id, item as u32, 0, vec![part]).is_err() {
                link.retract(id);
                return false;
            }
        }
        if !pulls.is_empty()
            && link.send(Frame::new(FrameKind::Pull, id, pull::encode(&pulls))).is_err()
        {
            link.retract(id);
            return false;
        }
        for at in run {
            let group = &mut self.groups[at];
            let is_pulled = |pull: &&PullItem| group.objects.contains(&(pull.item as usize));
            group.state = match pulls.iter().filter(is_pulled).count() {
                0 => GroupState::Received,
                pulled => GroupState::Pulling(pulled),
            };
        }
        true
    }

    /// Stores groups directly from the client's memory.
    fn store_from_client_memory(&mut self, ctx: &mut ServerCtx, id: OpId, run: &[usize]) {
        let groups = run.iter().map(|at| {
            let group = &self.groups[*at];
            let mut objects = Vec::with_capacity(group.objects.len());
            objects.extend(self.objects[group.objects.clone()].iter_mut().filter_map(|o| {
                let payload = PutPayload::ClientMemory(o.take_client_payload()?);
                Some(PayloadObject { key: o.key, payload })
            }));
            PayloadGroup { objects, base: group.base }
        });
        let groups = groups.collect();
        self.submit(ctx, id, groups, run);
    }

    /// Submits groups to the store; `which` are their numbers in the put.
    fn submit(
        &mut self,
        ctx: &mut ServerCtx,
        id: OpId,
        groups: Vec<PayloadGroup>,
        which: &[usize],
    ) {
        let Some(first) = which.first() else { return };
        let ticket =
            ctx.session.submit_put_as(groups, self.options(ctx.shared(), *first), self.call.origin);
        which.iter().for_each(|at| self.groups[*at].state = GroupState::Storing(ticket));
        ctx.batches.insert(ticket, id);
    }

    /// Options of a batch of groups that begins with group `at`.
    fn options(&self, shared: &Shared, at: usize) -> Options {
        let left = self.call.deadline.since(shared.now());
        let depth = self.call.options.depth.saturating_add(at as u32);
        self.call.options.timeout(left).depth(depth)
    }

    /// Numbers of the objects of these groups.
    fn object_numbers(&self, run: &[usize]) -> Vec<usize> {
        run.iter().flat_map(|at| self.groups[*at].objects.clone()).collect()
    }

    /// Whether all groups of a run are in client memory and have new keys. Nothing in such a run
    /// gets its outcome without its bytes: the store repeats the lookup and rejects invalid groups.
    /// Runs without the core lock.
    fn is_checked_by_store(&self, shared: &Shared, run: &[usize]) -> bool {
        let may_be = |at: &usize| {
            let has_base = self.call.origin == PutOrigin::Put || self.groups[*at].base.is_none();
            has_base && self.is_in_client_memory(*at)
        };
        let keys = run
            .iter()
            .flat_map(|at| &self.objects[self.groups[*at].objects.clone()])
            .map(|o| &o.key);
        run.iter().all(may_be) && new_keys::all_new(shared, keys)
    }

    /// Answers for groups that need no bytes: those that are present and those that are invalid
    /// whatever their bytes are.
    fn answer_without_bytes(&mut self, shared: &Shared, run: &mut Vec<usize>) {
        let mut checked =
            run.iter().map(|at| self.check(shared, *at)).collect::<Vec<_>>().into_iter();
        let mut core = shared.lock();
        // The put into an open group itself detects objects that the group already has.
        let checks_presence = self.open_group.is_none() && !shared.config.constant_fingerprint();
        let known = |at: &usize| {
            let (group, valid) = (&self.groups[*at], checked.next());
            if checks_presence && self.is_present(shared, &mut core, group) {
                return Some(Ok(PutOutcome::AlreadyPresent));
            }
            if let Some(Err(error)) = valid {
                return Some(Err(error));
            }
            let is_refused = self.exceeds_limit(shared, &mut core, group)
                || self.lacks_base(shared, &mut core, group);
            is_refused.then_some(Ok(PutOutcome::Refused))
        };
        let mut known = run.iter().map(known).collect::<Vec<_>>().into_iter();
        drop(core);
        run.retain(|at| {
            let Some(outcome) = known.next().flatten() else { return true };
            self.set_verdict(*at, || item_verdict(outcome.clone()));
            false
        });
    }

    /// Whether the group exceeds a limit of its namespace, and is counted as refused for it.
    /// Nothing is evicted for it before its bytes are here.
    fn exceeds_limit(
        &self,
        shared: &Shared,
        core: &mut CoreGuard<'_>,
        group: &IncomingGroup,
    ) -> bool {
        let objects = &self.objects[group.objects.clone()];
        // An object of an open group counts when the group is committed.
        let has_limits = !core.tenants.is_empty() && self.open_group.is_none();
        let Some(first) = objects.first().filter(|_| has_limits) else { return false };
        let namespace = first.key.namespace();
        let generation = core.generation(namespace);
        let keys = || objects.iter().map(|o| shared.fingerprint(&o.key, generation));
        // A group that is stored on SSD may be present: the store decides after it has read that.
        if keys().any(|fingerprint| core.index.contains(fingerprint)) {
            return false;
        }
        let lengths = objects.iter().map(|object| object.length);
        let exceeds = core.exceeds_quota(namespace, lengths, core.ssd.is_some());
        if exceeds {
            publish::count_refused_put(core, namespace, keys(), true);
        }
        exceeds
    }

    /// Reserves arena memory for all objects of these groups, or for none.
    fn reserve_memory(&self, ctx: &ServerCtx, link: &dyn Link, run: &[usize]) -> ReserveResult {
        let objects = self.object_numbers(run);
        let room = link.capacity();
        // Memory is not exposed for a pull that the link does not take: the retraction of an
        // operation also withdraws the memory of its earlier runs.
        let is_pulled = |item: &&usize| !self.objects[**item].is_in_client_memory();
        let pull_bytes = objects.iter().filter(is_pulled).count() * PullItem::BYTES;
        let pull_bytes_max = room.frame_bytes.min(link.params().control_bytes_max as usize);
        if room.frames == 0 || room.exposures < objects.len() || pull_bytes > pull_bytes_max {
            return ReserveResult::OverLimit;
        }
        let lengths: Vec<u64> = objects.iter().map(|item| self.objects[*item].length).collect();
        reserve::reserve_all(&ctx.session.io.shared, &lengths)
    }

    /// Whether the group is present as it is put, so that its bytes need not be sent. The index
    /// alone decides for a single object; a false match, and thus an object that is not stored, has
    /// a probability of 2^-128. Several objects must be exactly the members of one frame. For
    /// objects in separate frames, or on SSD alone, the store decides after it has read the bytes.
    fn is_present(&self, shared: &Shared, core: &mut CoreGuard<'_>, group: &IncomingGroup) -> bool {
        let objects = &group.objects;
        let find_entry = |o: &IncomingObject| {
            let fingerprint = shared.fingerprint(&o.key, core.generation(o.key.namespace()));
            let fits = |e: &Entry| u64::from(e.length) == o.length && core.is_visible(e);
            core.index.find(fingerprint).find(fits)
        };
        let entries: Option<Vec<Entry>> =
            self.objects[objects.clone()].iter().map(find_entry).collect();
        let Some(entries) = entries else { return false };
        let members = self.required.as_ref().map_or(objects.len(), Vec::len);
        if members > 1 || group.base.is_some() {
            let frame =
                entries[0].frame.filter(|frame| entries.iter().all(|e| e.frame == Some(*frame)));
            let data =
                frame.and_then(|frame| core.dram.frames.get(FrameId(frame))).map(|f| &f.data);
            let as_put = |data: &FrameData| {
                let keys = self.objects[objects.clone()].iter().map(|o| &o.key);
                data.members.len() == members
                    && data.is_attached() == group.base.is_some()
                    && keys.into_iter().all(|key| data.members.iter().any(|m| m.key == *key))
            };
            if !data.is_some_and(|data| as_put(data)) {
                return false;
            }
        }
        let keys = self.objects[objects.clone()].iter().map(|o| o.key);
        let at = Recency {
            depth: self.call.options.depth.saturating_add(objects.start as u32),
            ..recency(shared, &self.call.options)
        };
        let all = exists::exists_locked(shared, core, keys, at).into_iter().all(|here| here);
        core.counters.puts_present += if all { objects.len() as u64 } else { 0 };
        all
    }

    /// Whether a store offers the group for a base that is not present: the put would be refused.
    fn lacks_base(&self, shared: &Shared, core: &mut CoreGuard<'_>, group: &IncomingGroup) -> bool {
        let Some(base) = group.base.filter(|_| self.call.origin != PutOrigin::Put) else {
            return false;
        };
        let name = name_of(shared.fingerprint(&base, core.generation(base.namespace())));
        let is_missing = !core.is_base_present(name);
        core.counters.puts_refused += if is_missing { group.objects.len() as u64 } else { 0 };
        is_missing
    }

    /// Stores groups whose bytes have arrived; a group with a checksum mismatch fails.
    fn store(&mut self, ctx: &mut ServerCtx, id: OpId, received: Vec<usize>) {
        let (mut batch, mut groups) = (Vec::new(), Vec::new());
        for at in received {
            let options = self.options(ctx.shared(), at);
            let objects = &mut self.objects[self.groups[at].objects.clone()];
            if let Some(mismatch) =
                objects.iter().find(|o| !matches!(o.bytes, IncomingBytes::Verified(_)))
            {
                let key = mismatch.key;
                self.set_verdict(at, || ItemVerdict::Failed(put::checksum_mismatch(&key)));
            } else if let Some(open_group) = &self.open_group {
                let put = |o: &mut IncomingObject| {
                    let filled = o.take_verified()?;
                    Some(open_group.put_filled(ctx.shared(), &o.key, filled))
                };
                // The objects that the client put as one group share one outcome here: the worst.
                let worst = objects.iter_mut().filter_map(put).max_by_key(Result::is_err);
                if let Some(outcome) = worst {
                    self.set_verdict(at, || item_verdict(outcome.clone()));
                }
            } else if self.required.is_some() {
                if let Err(error) = self.store_part(ctx, id, at, options) {
                    self.set_verdict(at, || ItemVerdict::Failed(error.clone()));
                }
            } else {
                let put = |o: &mut IncomingObject| {
                    let payload = PutPayload::Reserved(o.take_verified()?);
                    Some(PayloadObject { key: o.key, payload })
                };
                let objects = objects.iter_mut().filter_map(put).collect();
                groups.push(PayloadGroup { objects, base: self.groups[at].base });
                batch.push(at);
            }
        }
        self.submit(ctx, id, groups, &batch);
    }

    /// Puts the pulled objects into their open group and commits it if none is missing.
    fn store_part(
        &mut self,
        ctx: &mut ServerCtx,
        id: OpId,
        at: usize,
        options: Options,
    ) -> Result<()> {
        let shared = ctx.shared();
        let page = self.objects[self.groups[at].objects.start].key.hash();
        let required: Vec<ObjectKey> =
            self.required.iter().flatten().map(|key| key.on_page(page)).collect();
        let joined = open_group::join(shared, &required, &options, false)?;
        for object in &mut self.objects[self.groups[at].objects.clone()] {
            let Some(filled) = object.take_verified() else { continue };
            joined.put_filled(shared, &object.key, filled)?;
        }
        if !joined.missing(shared).is_empty() {
            self.set_verdict(at, || ItemVerdict::Put(PutOutcome::Waiting));
            return Ok(());
        }
        let ticket = ctx.session.submit_commit(joined.id(), options);
        self.groups[at].state = GroupState::Committing(ticket, joined);
        ctx.batches.insert(ticket, id);
        Ok(())
    }

    /// An error if the group is invalid whatever its bytes are: they need not be sent.
    fn check(&self, shared: &Shared, at: usize) -> Result<()> {
        let group = &self.groups[at];
        let size =
            |o: &IncomingObject| ObjectSize { key: o.key, length: Some(o.length), in_arena: false };
        let sizes: Vec<ObjectSize> = self.objects[group.objects.clone()].iter().map(size).collect();
        let kind = match &group.base {
            Some(base) => PutKind::Attached(base),
            None if sizes.len() > 1 => PutKind::Base,
            None => PutKind::Single,
        };
        put::check(shared, kind, &sizes)
    }
}

fn item_verdict(outcome: Result<PutOutcome>) -> ItemVerdict {
    match outcome {
        Ok(outcome) => ItemVerdict::Put(outcome),
        Err(error) => ItemVerdict::Failed(error),
    }
}

fn is_done(state: &GroupState) -> bool {
    match state {
        GroupState::Done => true,
        GroupState::New
        | GroupState::Pulling(_)
        | GroupState::Received
        | GroupState::Storing(_)
        | GroupState::Committing(..) => false,
    }
}

fn is_storing(state: &GroupState, ticket: Ticket) -> bool {
    match state {
        GroupState::Storing(own) | GroupState::Committing(own, _) => *own == ticket,
        GroupState::New | GroupState::Pulling(_) | GroupState::Received | GroupState::Done => false,
    }
}

//! Gets: objects in DRAM are sent from their arena frames, all others are read into staging memory,
//! a chunk at a time, and sent from there.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::OpId;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::outcome::BaseRef;
use pagelith_layouts::wire::request::{GetItem, Verb};
use pagelith_transport::link::{Link, Push};
use rustc_hash::FxHashMap;

use self::requested_object::{ObjectState, RequestedObject, SentObject};
use super::in_flight_sends;
use super::in_flight_sends::{PushRequest, PushResult};
use super::op_outcome::{ItemVerdict, OpOutcome};
use super::{CHUNK_BYTES, CallContext, ServerCtx};
use crate::api::outcome::{CompletedGet, GetOutcome, MissCause, Ticket, Tier};
use crate::api::request::{Destination, Get, Options};
use crate::read::absence;
use crate::read::get::GetPart;
use crate::read::recompute::Recompute;
use crate::state::group_info;
use crate::state::put_spec::PutOrigin;
use crate::state::shared::Shared;

#[cfg(test)]
mod chunk_order_test;
#[cfg(test)]
mod parts_test;
mod requested_object;

/// Bytes of server state per requested object, without its checksums.
pub(crate) const REQUESTED_OBJECT_BYTES: usize = size_of::<RequestedObject>();
/// Maximum number of objects looked up under one acquisition of the core lock, which bounds how
/// long other threads wait for it.
const LOOKUPS_MAX: usize = 32;

/// A get in progress.
pub(crate) struct GetOp {
    call: CallContext,
    objects: Vec<RequestedObject>,
    /// Objects with chunks that are not requested yet, and the offset of the next chunk of the
    /// first.
    next: VecDeque<usize>,
    next_offset: u64,
    /// Object and chunk of each item of the session's batches.
    reading: FxHashMap<Ticket, Vec<(usize, Range<u64>)>>,
    /// Chunks that were read and are not sent, by object and offset: reads complete in any order,
    /// and the bytes of an object are sent in order.
    unsent: BTreeMap<(usize, u64), Push>,
    /// Whether the store has peers, and the objects to request from them as a whole: chunks
    /// requested one by one could be of two objects.
    has_peers: bool,
    remote_queue: VecDeque<usize>,
    /// Whether what is on SSD is loaded: decided by the first batch that finds any.
    recompute: Recompute,
}

impl GetOp {
    pub fn new(call: CallContext, items: impl Iterator<Item = GetItem>) -> GetOp {
        let objects: Vec<RequestedObject> = items.map(|item| RequestedObject::new(&item)).collect();
        let next_offset = objects.first().map_or(0, |object| object.range.start);
        let next = (0..objects.len()).collect();
        let (reading, unsent) = (FxHashMap::default(), BTreeMap::new());
        let (has_peers, remote_queue) = (false, VecDeque::new());
        // Another store does not know what its caller would recompute.
        let recompute = match call.origin {
            PutOrigin::Put => Recompute::asking(call.options.prefill_tokens_per_s),
            PutOrigin::Offered(_) | PutOrigin::Fetched => Recompute::Never,
        };
        GetOp {
            call,
            objects,
            next,
            next_offset,
            reading,
            unsent,
            has_peers,
            remote_queue,
            recompute,
        }
    }

    /// Reads and sends as much as possible; returns the outcome once everything is sent.
    pub fn advance(
        &mut self,
        ctx: &mut ServerCtx,
        link: &mut dyn Link,
        id: OpId,
    ) -> Option<OpOutcome> {
        self.send(ctx, link, id);
        if ctx.shared().now() >= self.call.deadline {
            // The session has the same deadline and ends the reads in progress. Bytes that the
            // link does not take are dropped: it may have no capacity until it ends.
            self.next.clear();
            self.remote_queue.clear();
            self.unsent.clear();
        }
        self.read(ctx, link, id);
        self.request_remote(ctx, id);
        let all_sent = self.next.is_empty()
            && self.remote_queue.is_empty()
            && self.reading.is_empty()
            && self.unsent.is_empty();
        all_sent.then(|| self.outcome(ctx.shared(), link.params().features))
    }

    fn outcome(&mut self, shared: &Shared, features: u64) -> OpOutcome {
        let has = |feature: Feature| features & feature.bit() != 0;
        let sends_members = has(Feature::Members);
        // Bases are sent only to stores, which decide by them whether to keep an object.
        let sends_bases =
            sends_members && has(Feature::Bases) && self.call.origin != PutOrigin::Put;
        let bases =
            match sends_bases && self.objects.iter().any(|object| object.attached().is_some()) {
                true => {
                    let asked: Vec<_> =
                        self.objects.iter().map(|object| (object.key, object.attached())).collect();
                    group_info::bases(shared, &asked)
                }
                false => vec![None; self.objects.len()],
            };
        let verdict = |(object, base): (RequestedObject, Option<BaseRef>)| {
            let length = object.length();
            let verdict = match object.state {
                ObjectState::Sent(SentObject { tier, group_info, sums }) => {
                    let sends_group =
                        sends_members && group_info.attached.is_some() == base.is_some();
                    let members = if sends_group { group_info.members } else { 0 };
                    ItemVerdict::Hit(tier, length, sums, members, base.map(Box::new))
                }
                ObjectState::NoHit(verdict) => verdict,
                ObjectState::Requested | ObjectState::Reading | ObjectState::Remote => {
                    // The session counts the others.
                    shared.count_late(&object.key);
                    ItemVerdict::Miss(MissCause::Late)
                }
                ObjectState::Sending(_) => ItemVerdict::Miss(MissCause::Late),
            };
            (object.key, verdict)
        };
        OpOutcome::items(Verb::Get, self.objects.drain(..).zip(bases).map(verdict).collect())
    }

    /// Requests the next chunks, as far as staging memory suffices.
    fn read(&mut self, ctx: &mut ServerCtx, link: &mut dyn Link, id: OpId) {
        self.has_peers = ctx.session.io.connections.is_some();
        // First the requests that peers may answer, then the chunks that only this store may
        // answer.
        let mut batches = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        while let Some(&at) = self.next.front() {
            if !self.lookup_dram(ctx, link, id, at) {
                break;
            }
            let object = &self.objects[at];
            let chunk = object.chunk(self.next_offset, CHUNK_BYTES);
            if let ObjectState::Reading | ObjectState::Sending(_) = object.state {
                let len = (chunk.end - chunk.start) as usize;
                let Some(part) = ctx.staging.try_part(len) else { break };
                let destination = Destination([part.split(len).0].into());
                // A request for the whole object is refused without a read if the length differs.
                let range = (!object.whole || chunk != object.range).then(|| chunk.clone());
                let (gets, chunks) =
                    &mut batches[usize::from(self.has_peers && chunk != object.range)];
                gets.push(Get { key: object.key, range, destination });
                chunks.push((at, chunk.clone()));
                if chunk.end < object.range.end {
                    self.next_offset = chunk.end;
                    continue;
                }
            }
            self.next.pop_front();
            self.next_offset = self.next.front().map_or(0, |at| self.objects[*at].range.start);
        }
        for ((gets, chunks), local_only) in batches.into_iter().zip([false, true]) {
            if !gets.is_empty() {
                self.submit(ctx, id, gets, chunks, local_only);
            }
        }
    }

    fn submit(
        &mut self,
        ctx: &mut ServerCtx,
        id: OpId,
        gets: Vec<Get>,
        chunks: Vec<(usize, Range<u64>)>,
        local_only: bool,
    ) {
        let options = self.options(ctx, chunks[0].0);
        let continued =
            chunks.iter().map(|(at, chunk)| chunk.start > self.objects[*at].range.start).collect();
        let recompute = match self.recompute {
            Recompute::Undecided { tokens_per_s, .. } => {
                Recompute::Undecided { more: self.rest_of_last(&chunks), tokens_per_s }
            }
            decided => decided,
        };
        let part = GetPart { gets, continued, local_only, recompute };
        let (ticket, decided) = ctx.session.submit_get_part(part, options);
        self.recompute = decided;
        self.reading.insert(ticket, chunks);
        ctx.batches.insert(ticket, id);
    }

    /// Bytes after these chunks of the object of the last: its page needs them too.
    fn rest_of_last(&self, chunks: &[(usize, Range<u64>)]) -> u64 {
        chunks.last().map_or(0, |(at, chunk)| self.objects[*at].range.end - chunk.end)
    }

    /// Options of a batch whose first object is `at`.
    fn options(&self, ctx: &ServerCtx, at: usize) -> Options {
        let left = self.call.deadline.since(ctx.shared().now());
        let depth = self.call.options.depth.saturating_add(at as u32);
        self.call.options.timeout(left).depth(depth)
    }

    /// Requests objects that are longer than a chunk and not local from the peers, one at a time,
    /// as staging memory for the whole range becomes free. One that exceeds the staging memory is
    /// a miss.
    fn request_remote(&mut self, ctx: &mut ServerCtx, id: OpId) {
        while let Some(&at) = self.remote_queue.front() {
            let object = &mut self.objects[at];
            let wanted = object.range.clone();
            let len = object.length() as usize;
            if len > ctx.staging.pool().capacity() {
                absence::count_one(ctx.shared(), &object.key);
                object.state = ObjectState::NoHit(ItemVerdict::Miss(MissCause::Absent));
                self.remote_queue.pop_front();
                continue;
            }
            // An object longer than a link's share gets memory as if the link had none.
            let pool = ctx.staging.pool();
            let part = match len > pool.capacity() / 2 {
                true => pool.try_part(len),
                false => ctx.staging.try_part(len),
            };
            let Some(part) = part else { return };
            let (key, range) = (object.key, (!object.whole).then(|| wanted.clone()));
            self.remote_queue.pop_front();
            let destination = Destination([part.split(len).0].into());
            self.submit(ctx, id, vec![Get { key, range, destination }], vec![(at, wanted)], false);
        }
    }

    /// Looks up object `at` in DRAM, unless it was looked up before, and some of the objects after
    /// it. Sends those that it finds; returns false if the link has no capacity for object `at`.
    fn lookup_dram(
        &mut self,
        ctx: &mut ServerCtx,
        link: &mut dyn Link,
        id: OpId,
        at: usize,
    ) -> bool {
        let is_requested =
            |object: &RequestedObject| matches!(object.state, ObjectState::Requested);
        if !is_requested(&self.objects[at]) {
            return true;
        }
        let most = if self.objects.len() > 2 * in_flight_sends::FIRST_BATCH {
            in_flight_sends::batch_len(at).min(LOOKUPS_MAX)
        } else {
            LOOKUPS_MAX
        };
        let ahead =
            self.objects.iter().enumerate().skip(at).filter(|(_, object)| is_requested(object));
        let requests: Vec<PushRequest> =
            ahead.take(most).map(|(at, object)| push_request(object, id, at)).collect();
        let results = in_flight_sends::push_from_dram(ctx, link, &requests, &self.call.options);
        for (request, result) in requests.iter().zip(results) {
            self.objects[request.item as usize].state = match result {
                PushResult::Sent(sums, group_info) => {
                    ObjectState::Sent(SentObject { tier: Tier::Memory, group_info, sums })
                }
                PushResult::Damaged => ObjectState::NoHit(ItemVerdict::Miss(MissCause::Damaged)),
                PushResult::NotInDram => ObjectState::Reading,
                PushResult::NoCapacity => ObjectState::Requested,
            };
        }
        !is_requested(&self.objects[at])
    }

    /// Takes the results of a batch.
    pub fn done(&mut self, id: OpId, ticket: Ticket, done: Vec<CompletedGet>) {
        let chunks = self.reading.remove(&ticket).unwrap_or_default();
        for ((at, chunk), mut done) in chunks.into_iter().zip(done) {
            let object = &mut self.objects[at];
            let is_part = chunk != object.range;
            let before = match std::mem::replace(&mut object.state, ObjectState::Reading) {
                ObjectState::Sending(sending) => Some(sending),
                ObjectState::Requested | ObjectState::Reading => None,
                ObjectState::Remote if !is_part => None,
                // The chunk is not used.
                state @ (ObjectState::Remote | ObjectState::Sent(_) | ObjectState::NoHit(_)) => {
                    object.state = state;
                    continue;
                }
            };
            // Peers would have to load it too.
            let is_miss = done.outcome.as_ref().is_ok_and(|outcome| {
                !outcome.is_hit() && *outcome != GetOutcome::Miss(MissCause::Slow)
            });
            if is_part && is_miss && self.has_peers && before.is_none() {
                object.state = ObjectState::Remote;
                self.remote_queue.push_back(at);
                continue;
            }
            let parts = std::mem::take(&mut done.destination.0);
            let accepted = match (&done.outcome, parts.first()) {
                (Ok(GetOutcome::Hit { tier, .. }), Some(part)) => {
                    object.accept_chunk(before, &chunk, *tier, &done, part.bytes())
                }
                (Ok(GetOutcome::Miss(cause)), _) => Err(ItemVerdict::Miss(*cause)),
                (Err(error), _) => Err(ItemVerdict::Failed(error.clone())),
                (Ok(GetOutcome::Hit { .. }), None) => Err(ItemVerdict::Miss(MissCause::Gone)),
            };
            match accepted {
                Ok(sending) => {
                    object.state = ObjectState::Sending(sending);
                    let (offset, allow_ref) = (chunk.start - object.range.start, object.allow_ref);
                    let push = Push { op: id, item: at as u32, offset, parts, token: 0, allow_ref };
                    self.unsent.insert((at, offset), push);
                }
                Err(verdict) => object.state = ObjectState::NoHit(verdict),
            }
        }
    }

    /// The operation's deadline.
    pub fn deadline(&self) -> Mono {
        self.call.deadline
    }

    /// Sends the bytes that were read, those of each object in order.
    fn send(&mut self, ctx: &mut ServerCtx, link: &mut dyn Link, id: OpId) {
        let mut later = BTreeMap::new();
        for ((at, offset), push) in std::mem::take(&mut self.unsent) {
            let object = &mut self.objects[at];
            let ObjectState::Sending(sending) = &object.state else { continue };
            // A chunk waits for those before it: they are not read, or the link has no capacity.
            if offset != object.length() - sending.unsent_bytes {
                later.insert((at, offset), push);
                continue;
            }
            let bytes: u64 = push.parts.iter().map(|p| p.len() as u64).sum();
            match link.push(push) {
                Ok(()) => {
                    ctx.pending_pushes.sent(id);
                    object.count_sent(bytes);
                }
                Err(push) => {
                    later.insert((at, offset), push);
                }
            }
        }
        self.unsent = later;
    }
}

/// The push request for an object, item `at` of operation `op`.
fn push_request(object: &RequestedObject, op: OpId, at: usize) -> PushRequest {
    PushRequest {
        op,
        item: at as u32,
        key: object.key,
        range: object.range.clone(),
        whole: object.whole,
        position: at as u32,
        allow_ref: object.allow_ref,
    }
}

//! Gets: objects in DRAM are sent from their arena frames, all others are read into staging memory,
//! a chunk at a time, and sent from there.

use std::collections::VecDeque;
use std::ops::Range;

use pagelith_io::clock::Mono;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksum, Checksums, checksum};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_layouts::wire::outcome::Base;
use pagelith_layouts::wire::request::{GetItem, Verb};
use pagelith_transport::link::{Link, Push};
use rustc_hash::FxHashMap;

use super::in_flight_sends;
use super::in_flight_sends::{PushRequest, PushResult};
use super::op_outcome::{ItemVerdict, OpOutcome};
use super::{CHUNK_BYTES, CallContext, ServerCtx};
use crate::api::error::Error;
use crate::api::group_info::{AttachedTo, GroupInfo};
use crate::api::outcome::{GetDone, GetOutcome, MissCause, Ticket, Tier};
use crate::api::request::{Destination, Get, Options};
use crate::state::group_info;
use crate::state::put_spec::PutOrigin;
use crate::state::shared::Shared;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes of server state per requested object, without its checksums.
pub(crate) const REQUESTED_OBJECT_BYTES: usize = size_of::<RequestedObject>();
/// Maximum number of objects probed under one acquisition of the core lock, which bounds how long
/// other threads wait for it.
const PROBES_MAX: usize = 32;

/// A requested object.
struct RequestedObject {
    key: ObjectKey,
    /// The requested byte range.
    span: Range<u64>,
    /// Whether the span must be the whole object.
    whole: bool,
    /// Whether the bytes may be passed by reference.
    may_show: bool,
    /// Bytes of the span that are not sent yet.
    unsent_bytes: u64,
    /// Whether the object was looked up in DRAM.
    probed: bool,
    /// Whether the object is not local and the peers are asked for the whole span at once.
    is_remote: bool,
    tier: Tier,
    /// Group members and base that the object was put with.
    group_info: GroupInfo,
    /// Checksums of all blocks of the object, from the first chunk that was read: all chunks must
    /// be of the same object.
    object_sums: Option<Checksums>,
    /// Checksums of the blocks that overlap the span, each over the bytes that are sent; empty
    /// before the first chunk.
    sums: Checksums,
    verdict: Option<ItemVerdict>,
}

impl RequestedObject {
    fn new(item: &GetItem) -> RequestedObject {
        let span = item.stretch();
        RequestedObject {
            key: item.key,
            whole: item.range().is_none(),
            may_show: !item.is_sent(),
            unsent_bytes: span.end - span.start,
            probed: false,
            is_remote: false,
            tier: Tier::Memory,
            group_info: GroupInfo::default(),
            object_sums: None,
            sums: Checksums::new(),
            verdict: None,
            span,
        }
    }

    /// Number of blocks that overlap the span.
    fn blocks(&self) -> usize {
        (self.span.end.div_ceil(BLOCK) - self.span.start / BLOCK) as usize
    }

    /// The push request for this object, item `at` of operation `op`.
    fn push_request(&self, op: OpId, at: usize) -> PushRequest {
        let (key, span, whole) = (self.key, self.span.clone(), self.whole);
        PushRequest {
            op,
            item: at as u32,
            key,
            span,
            whole,
            position: at as u32,
            may_show: self.may_show,
        }
    }

    /// The base, if this is a hit on an attached object.
    fn attached(&self) -> Option<&AttachedTo> {
        self.group_info
            .attached
            .as_ref()
            .filter(|_| self.verdict.is_none() && self.unsent_bytes == 0)
    }

    /// The chunk that begins at `from`. Chunks end at block boundaries, so that each block is in
    /// one chunk.
    fn chunk(&self, from: u64) -> Range<u64> {
        let end = (from / BLOCK * BLOCK).saturating_add(CHUNK_BYTES).min(self.span.end);
        from..end
    }

    /// The error for a destination whose length differs from the object's.
    fn length_mismatch(&self, have: u64) -> Error {
        let (key, given) = (&self.key, self.span.end);
        let detail = format!(
            "destination length differs from the object's key={key} object={have} given={given}"
        );
        Error::invalid(detail)
    }

    /// Records the checksums of a chunk that was read completely, or returns why the object is no
    /// hit.
    fn accept_chunk(
        &mut self,
        chunk: &Range<u64>,
        tier: Tier,
        done: &GetDone,
        bytes: &[u8],
    ) -> Result<(), ItemVerdict> {
        if self.whole && tier != Tier::Remote && done.length != self.span.end {
            return Err(ItemVerdict::Failed(self.length_mismatch(done.length)));
        }
        if tier == Tier::Remote {
            // The reply of the peer is all that is known of the object. For a whole object the peer
            // has checked the length.
            let (checksums, info) = done.metadata();
            if checksums.len() != self.blocks() {
                return Err(ItemVerdict::Miss(MissCause::Gone));
            }
            self.sums = checksums.into();
            (self.tier, self.group_info) = (tier, info);
            return Ok(());
        }
        let (checksums, info) = done.metadata();
        let (first, blocks) = (self.span.start / BLOCK, self.blocks());
        let record = self.object_sums.get_or_insert_with(|| checksums.into());
        if record[..] != *checksums {
            // The object was removed and put again between two chunks: bytes of two objects must
            // not be mixed.
            return Err(ItemVerdict::Miss(MissCause::Gone));
        }
        self.sums.resize(blocks, Checksum::default());
        for block in chunk.start / BLOCK..chunk.end.div_ceil(BLOCK) {
            let all = block * BLOCK..((block + 1) * BLOCK).min(done.length);
            let sent = all.start.max(chunk.start)..all.end.min(chunk.end);
            let sum = match sent == all {
                true => record.get(block as usize).copied().unwrap_or_default(),
                false => checksum(
                    &bytes[(sent.start - chunk.start) as usize..(sent.end - chunk.start) as usize],
                ),
            };
            self.sums[(block - first) as usize] = sum;
        }
        (self.tier, self.group_info) = (tier, info);
        Ok(())
    }
}

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
    /// Chunks that were read and did not fit into the link.
    unsent: VecDeque<(usize, Push)>,
    /// Whether the store has peers, and the objects to request from them as a whole: chunks
    /// requested one by one could be of two objects.
    has_peers: bool,
    remote_queue: VecDeque<usize>,
}

impl GetOp {
    pub fn new(call: CallContext, items: impl Iterator<Item = GetItem>) -> GetOp {
        let objects: Vec<RequestedObject> = items.map(|item| RequestedObject::new(&item)).collect();
        let next_offset = objects.first().map_or(0, |w| w.span.start);
        let next = (0..objects.len()).collect();
        let (reading, unsent) = (FxHashMap::default(), VecDeque::new());
        let (has_peers, remote_queue) = (false, VecDeque::new());
        GetOp { call, objects, next, next_offset, reading, unsent, has_peers, remote_queue }
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
            // The session has the same deadline and ends the reads in progress.
            self.next.clear();
            self.remote_queue.clear();
            let late = |w: &RequestedObject| w.verdict.is_none() && w.unsent_bytes > 0;
            if self.reading.is_empty() && self.unsent.is_empty() {
                self.objects.iter_mut().filter(|w| late(w)).for_each(|w| {
                    w.verdict = Some(ItemVerdict::Miss(MissCause::Late));
                });
            }
        }
        self.read(ctx, link, id);
        self.request_remote(ctx, id);
        let all_sent = self.next.is_empty()
            && self.remote_queue.is_empty()
            && self.reading.is_empty()
            && self.unsent.is_empty();
        all_sent.then(|| self.outcome(ctx.shared(), link.facts().features))
    }

    fn outcome(&mut self, shared: &Shared, features: u64) -> OpOutcome {
        let has = |feature: Feature| features & feature.bit() != 0;
        let sends_members = has(Feature::Members);
        // Bases are sent only to stores, which decide by them what to keep.
        let sends_bases =
            sends_members && has(Feature::Bases) && self.call.origin != PutOrigin::Put;
        let bases = match sends_bases && self.objects.iter().any(|w| w.attached().is_some()) {
            true => {
                let asked: Vec<_> = self.objects.iter().map(|w| (w.key, w.attached())).collect();
                group_info::bases(shared, &asked)
            }
            false => vec![None; self.objects.len()],
        };
        let verdict = |(w, base): (RequestedObject, Option<Base>)| {
            let hit = |w: RequestedObject| {
                let sends_group =
                    sends_members && w.group_info.attached.is_some() == base.is_some();
                let members = if sends_group { w.group_info.members } else { 0 };
                ItemVerdict::Hit(
                    w.tier,
                    w.span.end - w.span.start,
                    w.sums,
                    members,
                    base.map(Box::new),
                )
            };
            match (w.verdict, w.unsent_bytes) {
                (Some(verdict), _) => (w.key, verdict),
                (None, 0) => (w.key, hit(RequestedObject { verdict: None, ..w })),
                (None, _) => (w.key, ItemVerdict::Miss(MissCause::Late)),
            }
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
            let object = &self.objects[at];
            let chunk = object.chunk(self.next_offset);
            if !object.probed && object.verdict.is_none() && !self.probe_dram(ctx, link, id, at) {
                break;
            }
            let object = &self.objects[at];
            let needs_read = object.verdict.is_none()
                && !object.is_remote
                && object.unsent_bytes > 0
                && !chunk.is_empty();
            if needs_read {
                let len = (chunk.end - chunk.start) as usize;
                let Some(part) = ctx.staging.try_part(len) else { break };
                let destination = Destination([part.split(len).0].into());
                // A request for the whole object is refused without a read if the length differs.
                let range = (!object.whole || chunk != object.span).then(|| chunk.clone());
                let (gets, chunks) =
                    &mut batches[usize::from(self.has_peers && chunk != object.span)];
                gets.push(Get { key: object.key, range, destination });
                chunks.push((at, chunk.clone()));
                if chunk.end < object.span.end {
                    self.next_offset = chunk.end;
                    continue;
                }
            }
            self.next.pop_front();
            self.next_offset = self.next.front().map_or(0, |at| self.objects[*at].span.start);
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
        let ticket = match local_only {
            true => ctx.session.submit_get_local(gets, options),
            false => ctx.session.submit_get(gets, options),
        };
        self.reading.insert(ticket, chunks);
        ctx.batches.insert(ticket, id);
    }

    /// Options of a batch whose first object is `at`.
    fn options(&self, ctx: &ServerCtx, at: usize) -> Options {
        let left = self.call.deadline.since(ctx.shared().now());
        let depth = self.call.options.depth.saturating_add(at as u32);
        Options { timeout: Some(left), depth, ..self.call.options }
    }

    /// Requests objects that are longer than a chunk and not local from the peers, one at a time,
    /// as staging memory for the whole span becomes free. A span that exceeds the staging memory is
    /// a miss.
    fn request_remote(&mut self, ctx: &mut ServerCtx, id: OpId) {
        while let Some(&at) = self.remote_queue.front() {
            let object = &mut self.objects[at];
            let span = object.span.clone();
            let len = (span.end - span.start) as usize;
            if len > ctx.staging.capacity() {
                object.verdict.get_or_insert(ItemVerdict::Miss(MissCause::Absent));
                self.remote_queue.pop_front();
                continue;
            }
            let Some(part) = ctx.staging.try_part(len) else { return };
            let (key, range) = (object.key, (!object.whole).then(|| span.clone()));
            self.remote_queue.pop_front();
            let destination = Destination([part.split(len).0].into());
            self.submit(ctx, id, vec![Get { key, range, destination }], vec![(at, span)], false);
        }
    }

    /// Looks up the objects from `at` on in DRAM and sends those that it finds; returns false if
    /// the link has no capacity for the first.
    fn probe_dram(
        &mut self,
        ctx: &mut ServerCtx,
        link: &mut dyn Link,
        id: OpId,
        at: usize,
    ) -> bool {
        let most = if self.objects.len() > 2 * in_flight_sends::FIRST_BATCH {
            in_flight_sends::batch_len(at).min(PROBES_MAX)
        } else {
            PROBES_MAX
        };
        let ahead = self
            .objects
            .iter()
            .enumerate()
            .skip(at)
            .filter(|(_, w)| !w.probed && w.verdict.is_none());
        let requests: Vec<PushRequest> =
            ahead.take(most).map(|(at, object)| object.push_request(id, at)).collect();
        let results = in_flight_sends::push_from_dram(ctx, link, &requests, &self.call.options);
        for (request, result) in requests.iter().zip(results) {
            let object = &mut self.objects[request.item as usize];
            object.probed = !matches!(result, PushResult::NoCapacity);
            match result {
                PushResult::Sent(sums, info) => {
                    (object.sums, object.unsent_bytes, object.tier, object.group_info) =
                        (sums, 0, Tier::Memory, info);
                }
                PushResult::Damaged => object.verdict = Some(ItemVerdict::Miss(MissCause::Damaged)),
                PushResult::NotInDram | PushResult::NoCapacity => {}
            }
        }
        self.objects[at].probed
    }

    /// Takes the results of a batch.
    pub fn done(&mut self, id: OpId, ticket: Ticket, done: Vec<GetDone>) {
        let chunks = self.reading.remove(&ticket).unwrap_or_default();
        for ((at, chunk), mut done) in chunks.into_iter().zip(done) {
            let object = &mut self.objects[at];
            let is_part = chunk != object.span;
            let is_miss = done.outcome.as_ref().is_ok_and(|outcome| !outcome.is_hit());
            if is_part
                && is_miss
                && self.has_peers
                && !object.is_remote
                && object.object_sums.is_none()
            {
                object.is_remote = true;
                self.remote_queue.push_back(at);
            }
            if is_part && object.is_remote {
                continue;
            }
            let parts = std::mem::take(&mut done.destination.0);
            let verdict = match (&done.outcome, parts.first()) {
                (Ok(GetOutcome::Hit { tier, .. }), Some(part)) => {
                    object.accept_chunk(&chunk, *tier, &done, part.bytes()).err()
                }
                (Ok(GetOutcome::Miss(cause)), _) => Some(ItemVerdict::Miss(*cause)),
                (Err(error), _) => Some(ItemVerdict::Failed(error.clone())),
                (Ok(GetOutcome::Hit { .. }), None) => Some(ItemVerdict::Miss(MissCause::Gone)),
            };
            match verdict {
                Some(verdict) => {
                    object.verdict.get_or_insert(verdict);
                }
                None => {
                    let offset = chunk.start - object.span.start;
                    let may_show = self.objects[at].may_show;
                    let push = Push { op: id, item: at as u32, offset, parts, token: 0, may_show };
                    self.unsent.push_back((at, push));
                }
            }
        }
    }

    /// The operation's deadline.
    pub fn deadline(&self) -> Mono {
        self.call.deadline
    }

    /// Sends what was read, the bytes of each object in order.
    fn send(&mut self, ctx: &mut ServerCtx, link: &mut dyn Link, id: OpId) {
        let mut later = VecDeque::new();
        // An object waits if its next chunk is not read, or the link has no capacity for it; its
        // later chunks wait too.
        let mut blocked = std::collections::BTreeSet::new();
        for (at, push) in std::mem::take(&mut self.unsent) {
            let object = &mut self.objects[at];
            if object.verdict.is_some() {
                continue;
            }
            let bytes: u64 = push.parts.iter().map(|p| p.len() as u64).sum();
            let sent = object.span.end - object.span.start - object.unsent_bytes;
            if blocked.contains(&at) || push.offset != sent {
                blocked.insert(at);
                later.push_back((at, push));
                continue;
            }
            match link.push(push) {
                Ok(()) => {
                    ctx.pending_pushes.sent(id);
                    object.unsent_bytes -= bytes;
                }
                Err(push) => {
                    blocked.insert(at);
                    later.push_back((at, push));
                }
            }
        }
        self.unsent = later;
    }
}

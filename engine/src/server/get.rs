//! Gets: from DRAM sent from where it lies, else read into staging, a chunk at a time, and sent from there.

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

use super::op_outcome::{OpOutcome, ItemVerdict};
use super::in_flight_sends;
use super::in_flight_sends::{PushResult, PushRequest};
use super::{CHUNK_BYTES, CallContext, ServerCtx};
use crate::api::error::Error;
use crate::api::outcome::{GetDone, GetOutcome, MissCause, Ticket, Tier};
use crate::api::request::{Destination, Get, Options};
use crate::state::group_info;
use crate::state::group_info::{AttachedTo, Together};
use crate::state::shared::Shared;
use crate::write::put::Came;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes that an object takes that is wanted, but for its checksums.
pub(crate) const REQUESTED_OBJECT_BYTES: usize = size_of::<RequestedObject>();
/// Most objects that are probed for in DRAM at a time: others wait for the core's lock as long.
const PROBES_MAX: usize = 32;

/// One object that is wanted.
struct RequestedObject {
    key: ObjectKey,
    /// Which of its bytes.
    span: Range<u64>,
    /// Whether that has to be all of it.
    whole: bool,
    /// Whether its bytes may be shown where they lie.
    may_show: bool,
    /// Bytes that are read and not sent, or not read.
    left: u64,
    /// It was probed for in DRAM.
    probed: bool,
    /// It is not here, and peers are asked for all of it at once.
    is_remote: bool,
    tier: Tier,
    /// What it was put with.
    group_info: Together,
    /// The checksums of all its blocks, as what was read first has them: all must be read of one and the same.
    record: Option<Checksums>,
    /// Of the blocks that the span lies in, of those of their bytes that are sent; empty before any of them was found.
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
            left: span.end - span.start,
            probed: false,
            is_remote: false,
            tier: Tier::Memory,
            group_info: Together::default(),
            record: None,
            sums: Checksums::new(),
            verdict: None,
            span,
        }
    }

    /// Blocks of the object that the span lies in.
    fn blocks(&self) -> usize {
        (self.span.end.div_ceil(BLOCK) - self.span.start / BLOCK) as usize
    }

    /// It, as a request of operation `op`, of which it is item `at`.
    fn push_request(&self, op: OpId, at: usize) -> PushRequest {
        let (key, span, whole) = (self.key, self.span.clone(), self.whole);
        PushRequest { op, item: at as u32, key, span, whole, position: at as u32, may_show: self.may_show }
    }

    /// What it is attached to, if it is a hit that is.
    fn attached(&self) -> Option<&AttachedTo> {
        self.group_info.attached.as_ref().filter(|_| self.verdict.is_none() && self.left == 0)
    }

    /// Its chunks: they end where blocks end, so that each block is in one of them.
    fn chunk(&self, from: u64) -> Range<u64> {
        let end = (from / BLOCK * BLOCK).saturating_add(CHUNK_BYTES).min(self.span.end);
        from..end
    }

    /// It was asked for with a destination of another length.
    fn length_mismatch(&self, have: u64) -> Error {
        let (key, given) = (&self.key, self.span.end);
        let detail = format!("destination has not the object's length key={key} object={have} given={given}");
        Error::invalid(detail)
    }

    /// A chunk was read whole: note its checksums; what is wrong with it otherwise.
    fn accept_chunk(&mut self, chunk: &Range<u64>, tier: Tier, done: &GetDone, bytes: &[u8]) -> Result<(), ItemVerdict> {
        if self.whole && tier != Tier::Remote && done.length != self.span.end {
            return Err(ItemVerdict::Failed(self.length_mismatch(done.length)));
        }
        if tier == Tier::Remote {
            // Nothing but these is known of the object. If all of it was asked for, the peer has compared its length.
            let (checksums, with) = done.proven();
            if checksums.len() != self.blocks() {
                return Err(ItemVerdict::Miss(MissCause::Gone));
            }
            self.sums = checksums.into();
            (self.tier, self.group_info) = (tier, with);
            return Ok(());
        }
        let (checksums, with) = done.proven();
        let (first, blocks) = (self.span.start / BLOCK, self.blocks());
        let record = self.record.get_or_insert_with(|| checksums.into());
        if record[..] != *checksums {
            // Removed and put again in between: no bytes of two objects are one object's.
            return Err(ItemVerdict::Miss(MissCause::Gone));
        }
        self.sums.resize(blocks, Checksum::default());
        for block in chunk.start / BLOCK..chunk.end.div_ceil(BLOCK) {
            let all = block * BLOCK..((block + 1) * BLOCK).min(done.length);
            let sent = all.start.max(chunk.start)..all.end.min(chunk.end);
            let sum = match sent == all {
                true => record.get(block as usize).copied().unwrap_or_default(),
                false => {
                    checksum(&bytes[(sent.start - chunk.start) as usize..(sent.end - chunk.start) as usize])
                }
            };
            self.sums[(block - first) as usize] = sum;
        }
        (self.tier, self.group_info) = (tier, with);
        Ok(())
    }
}

/// A get under way.
pub(crate) struct GetOp {
    call: CallContext,
    wanted: Vec<RequestedObject>,
    /// Objects of which not everything was asked for, and from which byte on of the first.
    next: VecDeque<usize>,
    from: u64,
    /// What each batch of the session reads: object and chunk.
    reading: FxHashMap<Ticket, Vec<(usize, Range<u64>)>>,
    /// What was read and the link had no room for.
    unsent: VecDeque<(usize, Push)>,
    /// Whether peers have what is not here, and what they are to be asked for as a whole: what they send in chunks may be of two objects.
    has_peers: bool,
    remote_queue: VecDeque<usize>,
}

impl GetOp {
    pub fn new(call: CallContext, items: impl Iterator<Item = GetItem>) -> GetOp {
        let wanted: Vec<RequestedObject> = items.map(|item| RequestedObject::new(&item)).collect();
        let from = wanted.first().map_or(0, |w| w.span.start);
        let next = (0..wanted.len()).collect();
        let (reading, unsent) = (FxHashMap::default(), VecDeque::new());
        let (has_peers, remote_queue) = (false, VecDeque::new());
        GetOp { call, wanted, next, from, reading, unsent, has_peers, remote_queue }
    }

    /// Read and send as far as it goes; the outcome once all is on its way.
    pub fn advance(&mut self, ctx: &mut ServerCtx, link: &mut dyn Link, id: OpId) -> Option<OpOutcome> {
        self.send(ctx, link, id);
        if ctx.shared().now() >= self.call.deadline {
            // What is being read is waited for by the session, which has the same deadline.
            self.next.clear();
            self.remote_queue.clear();
            let late = |w: &RequestedObject| w.verdict.is_none() && w.left > 0;
            if self.reading.is_empty() && self.unsent.is_empty() {
                self.wanted.iter_mut().filter(|w| late(w)).for_each(|w| {
                    w.verdict = Some(ItemVerdict::Miss(MissCause::Late));
                });
            }
        }
        self.read(ctx, link, id);
        self.request_remote(ctx, id);
        let over =
            self.next.is_empty() && self.remote_queue.is_empty() && self.reading.is_empty() && self.unsent.is_empty();
        over.then(|| self.answered(ctx.shared(), link.facts().features))
    }

    fn answered(&mut self, shared: &Shared, features: u64) -> OpOutcome {
        let has = |feature: Feature| features & feature.bit() != 0;
        let says_members = has(Feature::Members);
        // Only a store asks what it may keep.
        let says_bases = says_members && has(Feature::Bases) && self.call.origin != Came::Put;
        let bases = match says_bases && self.wanted.iter().any(|w| w.attached().is_some()) {
            true => {
                let asked: Vec<_> = self.wanted.iter().map(|w| (w.key, w.attached())).collect();
                group_info::bases(shared, &asked)
            }
            false => vec![None; self.wanted.len()],
        };
        let verdict = |(w, base): (RequestedObject, Option<Base>)| {
            let hit = |w: RequestedObject| {
                let is_said = says_members && w.group_info.attached.is_some() == base.is_some();
                let members = if is_said { w.group_info.members } else { 0 };
                ItemVerdict::Hit(w.tier, w.span.end - w.span.start, w.sums, members, base.map(Box::new))
            };
            match (w.verdict, w.left) {
                (Some(verdict), _) => (w.key, verdict),
                (None, 0) => (w.key, hit(RequestedObject { verdict: None, ..w })),
                (None, _) => (w.key, ItemVerdict::Miss(MissCause::Late)),
            }
        };
        OpOutcome::items(Verb::Get, self.wanted.drain(..).zip(bases).map(verdict).collect())
    }

    /// Ask for the next chunks, as many as there is staging memory for.
    fn read(&mut self, ctx: &mut ServerCtx, link: &mut dyn Link, id: OpId) {
        self.has_peers = ctx.session.io.desk.is_some();
        // What may be at a peer, and chunks of what is here.
        let mut asked = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        while let Some(&at) = self.next.front() {
            let wanted = &self.wanted[at];
            let chunk = wanted.chunk(self.from);
            if !wanted.probed && wanted.verdict.is_none() && !self.probe_dram(ctx, link, id, at) {
                break;
            }
            let wanted = &self.wanted[at];
            let is_open = wanted.verdict.is_none() && !wanted.is_remote && wanted.left > 0 && !chunk.is_empty();
            if is_open {
                let len = (chunk.end - chunk.start) as usize;
                let Some(part) = ctx.staging.try_part(len) else { break };
                let destination = Destination([part.split(len).0].into());
                // Asked for as a whole it is refused, and not read, where its length is another.
                let range = (!wanted.whole || chunk != wanted.span).then(|| chunk.clone());
                let (gets, chunks) = &mut asked[usize::from(self.has_peers && chunk != wanted.span)];
                gets.push(Get { key: wanted.key, range, destination });
                chunks.push((at, chunk.clone()));
                if chunk.end < wanted.span.end {
                    self.from = chunk.end;
                    continue;
                }
            }
            self.next.pop_front();
            self.from = self.next.front().map_or(0, |at| self.wanted[*at].span.start);
        }
        for ((gets, chunks), local_only) in asked.into_iter().zip([false, true]) {
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
            true => ctx.session.submit_get_here(gets, options),
            false => ctx.session.submit_get(gets, options),
        };
        self.reading.insert(ticket, chunks);
        ctx.batches.insert(ticket, id);
    }

    /// Those of a batch whose first object is `at`.
    fn options(&self, ctx: &ServerCtx, at: usize) -> Options {
        let left = self.call.deadline.since(ctx.shared().now());
        let depth = self.call.options.depth.saturating_add(at as u32);
        Options { timeout: Some(left), depth, ..self.call.options }
    }

    /// Ask peers for what is longer than a chunk and not here, one object after the other as there is staging memory for all of it. What
    /// would never have room there is a miss.
    fn request_remote(&mut self, ctx: &mut ServerCtx, id: OpId) {
        while let Some(&at) = self.remote_queue.front() {
            let wanted = &mut self.wanted[at];
            let span = wanted.span.clone();
            let len = (span.end - span.start) as usize;
            if len > ctx.staging.capacity() {
                wanted.verdict.get_or_insert(ItemVerdict::Miss(MissCause::Absent));
                self.remote_queue.pop_front();
                continue;
            }
            let Some(part) = ctx.staging.try_part(len) else { return };
            let (key, range) = (wanted.key, (!wanted.whole).then(|| span.clone()));
            self.remote_queue.pop_front();
            let destination = Destination([part.split(len).0].into());
            self.submit(ctx, id, vec![Get { key, range, destination }], vec![(at, span)], false);
        }
    }

    /// Look for what begins at `at` in DRAM, and send what is there; false if the link has no room for the first of it.
    fn probe_dram(&mut self, ctx: &mut ServerCtx, link: &mut dyn Link, id: OpId, at: usize) -> bool {
        let most = if self.wanted.len() > 2 * in_flight_sends::FIRST_BATCH {
            in_flight_sends::batch_len(at).min(PROBES_MAX)
        } else {
            PROBES_MAX
        };
        let ahead = self.wanted.iter().enumerate().skip(at).filter(|(_, w)| !w.probed && w.verdict.is_none());
        let requests: Vec<PushRequest> = ahead.take(most).map(|(at, wanted)| wanted.push_request(id, at)).collect();
        let results = in_flight_sends::push_from_dram(ctx, link, &requests, &self.call.options);
        for (request, result) in requests.iter().zip(results) {
            let wanted = &mut self.wanted[request.item as usize];
            wanted.probed = !matches!(result, PushResult::NoCapacity);
            match result {
                PushResult::Sent(sums, with) => {
                    (wanted.sums, wanted.left, wanted.tier, wanted.group_info) = (sums, 0, Tier::Memory, with);
                }
                PushResult::Damaged => wanted.verdict = Some(ItemVerdict::Miss(MissCause::Damaged)),
                PushResult::NotInDram | PushResult::NoCapacity => {}
            }
        }
        self.wanted[at].probed
    }

    /// A batch was read.
    pub fn done(&mut self, id: OpId, ticket: Ticket, done: Vec<GetDone>) {
        let chunks = self.reading.remove(&ticket).unwrap_or_default();
        for ((at, chunk), mut done) in chunks.into_iter().zip(done) {
            let wanted = &mut self.wanted[at];
            let is_part = chunk != wanted.span;
            let is_miss = done.outcome.as_ref().is_ok_and(|outcome| !outcome.is_hit());
            if is_part && is_miss && self.has_peers && !wanted.is_remote && wanted.record.is_none() {
                wanted.is_remote = true;
                self.remote_queue.push_back(at);
            }
            if is_part && wanted.is_remote {
                continue;
            }
            let parts = std::mem::take(&mut done.destination.0);
            let verdict = match (&done.outcome, parts.first()) {
                (Ok(GetOutcome::Hit { tier, .. }), Some(part)) => {
                    wanted.accept_chunk(&chunk, *tier, &done, part.bytes()).err()
                }
                (Ok(GetOutcome::Miss(cause)), _) => Some(ItemVerdict::Miss(*cause)),
                (Err(error), _) => Some(ItemVerdict::Failed(error.clone())),
                (Ok(GetOutcome::Hit { .. }), None) => Some(ItemVerdict::Miss(MissCause::Gone)),
            };
            match verdict {
                Some(verdict) => {
                    wanted.verdict.get_or_insert(verdict);
                }
                None => {
                    let offset = chunk.start - wanted.span.start;
                    let may_show = self.wanted[at].may_show;
                    let push = Push { op: id, item: at as u32, offset, parts, token: 0, may_show };
                    self.unsent.push_back((at, push));
                }
            }
        }
    }

    /// By when it is to be over.
    pub fn deadline(&self) -> Mono {
        self.call.deadline
    }

    /// Send what was read, each object's bytes in order.
    fn send(&mut self, ctx: &mut ServerCtx, link: &mut dyn Link, id: OpId) {
        let mut later = VecDeque::new();
        // An object whose next bytes are not there yet, or that the link has no room for, waits with all behind it.
        let mut waits = std::collections::BTreeSet::new();
        for (at, push) in std::mem::take(&mut self.unsent) {
            let wanted = &mut self.wanted[at];
            if wanted.verdict.is_some() {
                continue;
            }
            let bytes: u64 = push.parts.iter().map(|p| p.len() as u64).sum();
            let sent = wanted.span.end - wanted.span.start - wanted.left;
            if waits.contains(&at) || push.offset != sent {
                waits.insert(at);
                later.push_back((at, push));
                continue;
            }
            match link.push(push) {
                Ok(()) => {
                    ctx.pending_pushes.sent(id);
                    wanted.left -= bytes;
                }
                Err(push) => {
                    waits.insert(at);
                    later.push_back((at, push));
                }
            }
        }
        self.unsent = later;
    }
}

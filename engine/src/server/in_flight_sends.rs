//! Sends of objects in DRAM, directly from their arena frames.
//!
//! Invariants:
//! - A frame is guarded from the time a push of its bytes is queued until the link returns the
//!   push.
//! - The arena bytes in flight on a link are bounded: a peer that does not read prevents the
//!   eviction of no more than that.

use pagelith_io::buffer::Part;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums, checksum};
use pagelith_layouts::ids::OpId;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::wire::greeting::Feature;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::policy::Recency;
use pagelith_transport::link::{Link, Push};
use rustc_hash::FxHashMap;

use super::ServerCtx;
use crate::api::group_info::GroupInfo;
use crate::memory::frames::FrameRef;
use crate::memory::namespaces::NamespaceCounts;
use crate::read::locate;
use crate::read::touch_hits::touch_guarded;
use crate::state::frame_access::FrameGuard;
use crate::state::group_info;
use crate::state::session_io::recency;
use crate::state::shared::Shared;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Maximum number of arena bytes in flight on a link: the smaller of this and 1/`IN_FLIGHT_SHARE`
/// of the arena.
pub(crate) const IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;
pub(crate) const IN_FLIGHT_SHARE: u64 = 8;
/// Number of objects that are looked up and sent before the others, the first one alone: the client
/// wakes up, or processes them, while the server continues.
pub(crate) const FIRST_BATCH: usize = 4;
/// Size of the batches after these, so that a client faster than the lookups need not wait for all
/// of them.
const BATCH: usize = 8;

/// Number of objects to look up together in a long get, from object `at` on.
pub(crate) fn batch_len(at: usize) -> usize {
    match at {
        0 => 1,
        1..FIRST_BATCH => FIRST_BATCH - at,
        FIRST_BATCH..BATCH => BATCH - at,
        _ => usize::MAX,
    }
}

/// The arena frames in flight on a link, by push token.
#[derive(Default)]
pub(crate) struct InFlightSends {
    frames: FxHashMap<u64, (FrameRef, u64)>,
    bytes: u64,
    last_token: u64,
}

/// A request to send one object from DRAM.
pub(crate) struct PushRequest {
    pub op: OpId,
    pub item: u32,
    pub key: ObjectKey,
    pub range: std::ops::Range<u64>,
    /// Whether the range must be the whole object.
    pub whole: bool,
    /// Position of the object in its operation.
    pub position: u32,
    /// Whether the bytes may be passed by reference.
    pub allow_ref: bool,
}

impl PushRequest {
    /// Length of the range.
    fn length(&self) -> u64 {
        self.range.end - self.range.start
    }
}

/// The result of a push request.
pub(crate) enum PushResult {
    /// Pushed: checksums of the blocks that overlap the range, and the group that the object is put
    /// with.
    Sent(Checksums, GroupInfo),
    /// The bytes in memory do not match their checksums; the object was dropped from memory.
    Damaged,
    /// Not pushed: the link has no capacity now.
    NoCapacity,
    /// The object is not in DRAM, its length does not match, or the range exceeds the bound.
    NotInDram,
}

impl InFlightSends {
    /// A token for the next push.
    pub fn next_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    /// Releases the frames of pushes that the link returned.
    pub fn release(&mut self, shared: &Shared, tokens: &[u64]) {
        let frames: Vec<FrameRef> = tokens.iter().filter_map(|token| self.take(*token)).collect();
        if frames.is_empty() {
            return;
        }
        let mut core = shared.lock();
        frames.into_iter().for_each(|frame| core.release_frame(frame));
    }

    fn take(&mut self, token: u64) -> Option<FrameRef> {
        let (frame, bytes) = self.frames.remove(&token)?;
        self.bytes -= bytes;
        Some(frame)
    }
}

/// Pushes those of the objects that are in DRAM, in order; returns the results of as many as were
/// looked up. All lookups share one lock acquisition, as in a batch of the embedding process.
pub(crate) fn push_from_dram(
    ctx: &mut ServerCtx,
    link: &mut dyn Link,
    requests: &[PushRequest],
    options: &crate::api::request::Options,
) -> Vec<PushResult> {
    let shared = ctx.session.io.shared.clone();
    let guards =
        guard_frames(&shared, requests, &ctx.in_flight_sends, link.capacity().pushes, options);
    let mut tally = PushTally::default();
    let mut is_full = false;
    let push = |(request, found): (&PushRequest, Option<(FrameGuard, usize)>)| {
        let Some((guard, member)) = found else { return PushResult::NotInDram };
        // After a push that found no capacity nothing is sent, which keeps the order.
        let result = match is_full {
            true => PushResult::NoCapacity,
            false => push_one(ctx, link, request, &guard, member, &mut tally),
        };
        match &result {
            PushResult::Sent(..) => {}
            PushResult::Damaged => tally.damaged.push(guard.frame),
            PushResult::NotInDram | PushResult::NoCapacity => {
                is_full = true;
                tally.unsent.push(guard.frame);
            }
        }
        result
    };
    let results = requests.iter().zip(guards).map(push).collect();
    tally.apply(&shared);
    results
}

/// Guards the frames of the objects that are in DRAM, within the bytes that the link may have in
/// flight and its capacity of `pushes` pushes.
fn guard_frames(
    shared: &Shared,
    requests: &[PushRequest],
    in_flight: &InFlightSends,
    mut pushes: usize,
    options: &crate::api::request::Options,
) -> Vec<Option<(FrameGuard, usize)>> {
    let most = (shared.config.arena_bytes() / IN_FLIGHT_SHARE).min(IN_FLIGHT_BYTES_MAX);
    let mut left = most.saturating_sub(in_flight.bytes);
    let at = recency(shared, options);
    let mut guards = Vec::with_capacity(requests.len());
    let mut core = shared.lock();
    for request in requests {
        let length = request.length();
        if length > most || length == 0 {
            guards.push(None);
            continue;
        }
        if length > left || pushes == 0 {
            break;
        }
        let at = Recency { depth: at.depth.saturating_add(request.position), ..at };
        let fits = |have: u64| {
            if request.whole { have == request.range.end } else { request.range.end <= have }
        };
        let found = locate::guard_in_memory(shared, &mut core, &request.key, at, fits);
        if let Some((guard, _)) = &found {
            touch_guarded(shared, &mut core, &request.key, guard.frame, at);
            left -= length;
            pushes -= 1;
        }
        guards.push(found);
    }
    guards
}

/// Counters and frames to release, applied under one lock acquisition after the pushes.
#[derive(Default)]
struct PushTally {
    hits: u64,
    bytes: u64,
    unverified: u64,
    damaged: Vec<FrameRef>,
    /// Guarded and not pushed.
    unsent: Vec<FrameRef>,
}

impl PushTally {
    fn apply(self, shared: &Shared) {
        if self.hits == 0 && self.damaged.is_empty() && self.unsent.is_empty() {
            return;
        }
        let mut core = shared.lock();
        core.counters.hits_memory += self.hits;
        core.counters.bytes_memory += self.bytes;
        core.counters.hits_unverified += self.unverified;
        for frame in self.damaged {
            core.counters.miss(crate::api::outcome::MissCause::Damaged);
            let data = core.dram.frames.get_ref(frame).map(|f| f.data.clone());
            let counts = data.and_then(|data| core.namespaces.counts(data.namespace));
            counts.into_iter().for_each(NamespaceCounts::count_miss);
            core.drop_damaged(frame.id);
            core.release_frame(frame);
        }
        self.unsent.into_iter().for_each(|frame| core.release_frame(frame));
    }
}

/// Pushes one object; its frame stays guarded while the push is in flight.
fn push_one(
    ctx: &mut ServerCtx,
    link: &mut dyn Link,
    request: &PushRequest,
    guard: &FrameGuard,
    member: usize,
    tally: &mut PushTally,
) -> PushResult {
    let shared = &ctx.session.io.shared;
    let parts = vec![slice(guard.part(&shared.memory, member), request)];
    // A client that gets a reference verifies the bytes, and so does one that asks again after a
    // mismatch: the server need not verify for them.
    let asks_again = link.params().features & Feature::AsksAgain.bit() != 0;
    let client_verifies = request.allow_ref && (asks_again || link.sends_by_ref(&parts));
    let sampled = ctx.session.io.sampler.next() || !request.allow_ref;
    let (verify, unverified) = (sampled && !client_verifies, !sampled && !client_verifies);
    let Some(sums) = span_checksums(shared, guard, member, request, verify) else {
        return PushResult::Damaged;
    };
    let (token, length) = (ctx.in_flight_sends.next_token(), request.length());
    let push = Push {
        op: request.op,
        item: request.item,
        offset: 0,
        parts,
        token,
        allow_ref: request.allow_ref,
    };
    if link.push(push).is_err() {
        return PushResult::NoCapacity;
    }
    ctx.pending_pushes.sent(request.op);
    if mutant::on(Mutant::SharedFrameReleasedEarly) {
        tally.unsent.push(guard.frame);
        return PushResult::Sent(sums, group_info::of_frame_data(&guard.data));
    }
    ctx.in_flight_sends.frames.insert(token, (guard.frame, length));
    ctx.in_flight_sends.bytes += length;
    let sent = request.position as usize + 1;
    if sent == 1 || sent == FIRST_BATCH || sent.is_multiple_of(BATCH) {
        link.flush_queue();
    }
    tally.hits += 1;
    tally.bytes += length;
    let counts = shared.read_view.namespaces.counts(request.key.namespace());
    counts.into_iter().for_each(|counts| counts.count_hit(length));
    tally.unverified += u64::from(unverified);
    PushResult::Sent(sums, group_info::of_frame_data(&guard.data))
}

fn slice(part: Part, request: &PushRequest) -> Part {
    let (from, len) =
        (request.range.start as usize, (request.range.end - request.range.start) as usize);
    part.split(from).1.split(len).0
}

/// Checksums of the blocks that overlap the range, each over the bytes that are sent; `None` if a
/// block that was to be verified does not match its checksum.
fn span_checksums(
    shared: &Shared,
    guard: &FrameGuard,
    member: usize,
    request: &PushRequest,
    verify: bool,
) -> Option<Checksums> {
    let object_sums = &guard.data.members[member].checksums;
    let (bytes, range) = (guard.bytes(&shared.memory, member), &request.range);
    let block = |block: u64| {
        let all = block * BLOCK..((block + 1) * BLOCK).min(bytes.len() as u64);
        let sent = all.start.max(range.start)..all.end.min(range.end);
        let sum = object_sums.get(block as usize).copied().unwrap_or_default();
        let is_whole = sent == all;
        // A partial block must be verified as a whole before the part gets a checksum of its own.
        if (verify || !is_whole) && checksum(&bytes[all.start as usize..all.end as usize]) != sum {
            return None;
        }
        Some(if is_whole { sum } else { checksum(&bytes[sent.start as usize..sent.end as usize]) })
    };
    (range.start / BLOCK..range.end.div_ceil(BLOCK)).map(block).collect()
}

//! Objects in DRAM, sent from where they lie.
//!
//! Invariants:
//! - A frame is held from when a push of its bytes is queued until the link hands the push back, or is gone itself.
//! - What a link has at a time is bounded: a peer that does not read keeps no more of the arena from eviction than that.

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
use crate::memory::frames::FrameRef;
use crate::read::locate;
use crate::state::frame_access::Held;
use crate::state::group_info::Together;
use crate::state::shared::Shared;
use crate::store::session::recency;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Most bytes of the arena that a link has at a time: an eighth, and at most so many.
pub(crate) const IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;
pub(crate) const IN_FLIGHT_SHARE: u64 = 8;
/// So many objects are looked for and sent on before the others are, the first of them by itself: the client begins with it, or wakes up, meanwhile.
pub(crate) const FIRST_BATCH: usize = 4;
/// Behind them, so many at a time: a client that is quicker than the look-ups does not wait for all of them.
const BATCH: usize = 8;

/// How many objects are looked for at a time, of many, from the one at `at` on.
pub(crate) fn batch_len(at: usize) -> usize {
    match at {
        0 => 1,
        1..FIRST_BATCH => FIRST_BATCH - at,
        FIRST_BATCH..BATCH => BATCH - at,
        _ => usize::MAX,
    }
}

/// What a link has of the arena.
#[derive(Default)]
pub(crate) struct InFlightSends {
    frames: FxHashMap<u64, (FrameRef, u64)>,
    bytes: u64,
    last_token: u64,
}

/// What is wanted of an object.
pub(crate) struct PushRequest {
    pub op: OpId,
    pub item: u32,
    pub key: ObjectKey,
    pub span: std::ops::Range<u64>,
    /// Whether that has to be all of it.
    pub whole: bool,
    /// Objects of the operation before it.
    pub position: u32,
    /// Whether it may be shown where it lies.
    pub may_show: bool,
}

impl PushRequest {
    /// Bytes that are wanted.
    fn length(&self) -> u64 {
        self.span.end - self.span.start
    }
}

/// What became of a request.
pub(crate) enum PushResult {
    /// On its way, with these checksums of the blocks that the span lies in; what it was put with.
    Sent(Checksums, Together),
    /// Its bytes changed in memory: it is gone from there.
    Damaged,
    /// Not now: the link has no room.
    NoCapacity,
    /// Not from DRAM, or not as it is wanted.
    NotInDram,
}

impl InFlightSends {
    /// What the next push is named by.
    pub fn next_token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    /// Pushes came back.
    pub fn release(&mut self, shared: &Shared, tokens: &[u64]) {
        let frames: Vec<FrameRef> = tokens.iter().filter_map(|token| self.take(*token)).collect();
        if frames.is_empty() {
            return;
        }
        let mut core = shared.lock();
        frames.into_iter().for_each(|frame| core.release_frame(frame));
    }

    /// The link is gone, and with it whatever could look at its pushes.
    pub fn release_all(&mut self, shared: &Shared) {
        let tokens: Vec<u64> = self.frames.keys().copied().collect();
        self.release(shared, &tokens);
    }

    fn take(&mut self, token: u64) -> Option<FrameRef> {
        let (frame, bytes) = self.frames.remove(&token)?;
        self.bytes -= bytes;
        Some(frame)
    }
}

/// Send objects from the arena, those that are there, in their order: what became of the first so many of them. All are looked up in
/// one section, as a batch of the store's own is.
pub(crate) fn push_from_dram(
    ctx: &mut ServerCtx,
    link: &mut dyn Link,
    requests: &[PushRequest],
    options: &crate::Options,
) -> Vec<PushResult> {
    let shared = ctx.session.io.shared.clone();
    let held = pin_frames(&shared, requests, &ctx.in_flight_sends, link.room().pushes, options);
    let mut tally = PushTally::default();
    let mut is_full = false;
    let push = |(request, held): (&PushRequest, Option<(Held, usize)>)| {
        let Some((held, member)) = held else { return PushResult::NotInDram };
        // Behind what the link had no room for nothing is sent.
        let result = match is_full {
            true => PushResult::NoCapacity,
            false => push_one(ctx, link, request, &held, member, &mut tally),
        };
        match &result {
            PushResult::Sent(..) => {}
            PushResult::Damaged => tally.damaged.push(held.frame),
            PushResult::NotInDram | PushResult::NoCapacity => {
                is_full = true;
                tally.unsent.push(held.frame);
            }
        }
        result
    };
    let results = requests.iter().zip(held).map(push).collect();
    tally.apply(&shared);
    results
}

/// Hold the frames of these objects, of those that are in DRAM, as far as a link that has `lent` and room for so many pushes may
/// have them.
fn pin_frames(
    shared: &Shared,
    requests: &[PushRequest],
    in_flight: &InFlightSends,
    mut pushes: usize,
    options: &crate::Options,
) -> Vec<Option<(Held, usize)>> {
    let most = (shared.config.arena_bytes() / IN_FLIGHT_SHARE).min(IN_FLIGHT_BYTES_MAX);
    let mut left = most.saturating_sub(in_flight.bytes);
    let at = recency(shared, options);
    let mut held = Vec::with_capacity(requests.len());
    let mut core = shared.lock();
    for request in requests {
        let length = request.length();
        if length > most || length == 0 {
            held.push(None);
            continue;
        }
        if length > left || pushes == 0 {
            break;
        }
        let at = Recency { depth: at.depth.saturating_add(request.position), ..at };
        let fits = |have: u64| if request.whole { have == request.span.end } else { request.span.end <= have };
        let found = locate::hold_in_memory(shared, &mut core, &request.key, at, fits);
        if found.is_some() {
            left -= length;
            pushes -= 1;
        }
        held.push(found);
    }
    held
}

/// What is tally of a grant, in one section behind it.
#[derive(Default)]
struct PushTally {
    hits: u64,
    bytes: u64,
    unverified: u64,
    damaged: Vec<FrameRef>,
    /// Held, and not sent.
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
            core.counters.miss(crate::MissCause::Damaged);
            core.drop_damaged(frame.id);
            core.release_frame(frame);
        }
        self.unsent.into_iter().for_each(|frame| core.release_frame(frame));
    }
}

/// Send one that is held; it is lent then.
fn push_one(
    ctx: &mut ServerCtx,
    link: &mut dyn Link,
    request: &PushRequest,
    held: &Held,
    member: usize,
    tally: &mut PushTally,
) -> PushResult {
    let shared = &ctx.session.io.shared;
    let parts = vec![slice(held.part(&shared.memory, member), request)];
    // Who is shown the bytes compares them with what was put, and so does who is sent them; who finds others asks again.
    let asks_again = link.facts().features & Feature::AsksAgain.bit() != 0;
    let spared = request.may_show && (asks_again || link.shows(&parts));
    let sampled = ctx.session.io.sampler.next() || !request.may_show;
    let (verify, unverified) = (sampled && !spared, !sampled && !spared);
    let Some(sums) = span_checksums(shared, held, member, request, verify) else { return PushResult::Damaged };
    let (token, length) = (ctx.in_flight_sends.next_token(), request.length());
    let push = Push { op: request.op, item: request.item, offset: 0, parts, token, may_show: request.may_show };
    if link.push(push).is_err() {
        return PushResult::NoCapacity;
    }
    ctx.pending_pushes.sent(request.op);
    if mutant::on(Mutant::ShownLetGo) {
        tally.unsent.push(held.frame);
        return PushResult::Sent(sums, Together::of_frame(&held.data));
    }
    ctx.in_flight_sends.frames.insert(token, (held.frame, length));
    ctx.in_flight_sends.bytes += length;
    let sent = request.position as usize + 1;
    if sent == 1 || sent == FIRST_BATCH || sent.is_multiple_of(BATCH) {
        link.send_on();
    }
    tally.hits += 1;
    tally.bytes += length;
    tally.unverified += u64::from(unverified);
    PushResult::Sent(sums, Together::of_frame(&held.data))
}

fn slice(part: Part, request: &PushRequest) -> Part {
    let (from, len) = (request.span.start as usize, (request.span.end - request.span.start) as usize);
    part.split(from).1.split(len).0
}

/// The checksums of the blocks that the span lies in, of those of their bytes that are sent; `None` if a block that was
/// to be verified is not as it was put.
fn span_checksums(shared: &Shared, held: &Held, member: usize, request: &PushRequest, verify: bool) -> Option<Checksums> {
    let kept = &held.data.members[member].checksums;
    let (bytes, span) = (held.bytes(&shared.memory, member), &request.span);
    let block = |block: u64| {
        let all = block * BLOCK..((block + 1) * BLOCK).min(bytes.len() as u64);
        let sent = all.start.max(span.start)..all.end.min(span.end);
        let sum = kept.get(block as usize).copied().unwrap_or_default();
        let is_whole = sent == all;
        // A part of a block that is not as it was put must not get a checksum of its own.
        if (verify || !is_whole) && checksum(&bytes[all.start as usize..all.end as usize]) != sum {
            return None;
        }
        Some(if is_whole { sum } else { checksum(&bytes[sent.start as usize..sent.end as usize]) })
    };
    (span.start / BLOCK..span.end.div_ceil(BLOCK)).map(block).collect()
}

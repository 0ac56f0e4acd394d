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

use super::World;
use crate::memory::frames::FrameRef;
use crate::read::locate;
use crate::state::frame_access::Held;
use crate::state::group_info::Together;
use crate::state::shared::Shared;
use crate::store::session::recency;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Most bytes of the arena that a link has at a time: an eighth, and at most so many.
pub(crate) const LENT_BYTES_MAX: u64 = 64 << 20;
pub(crate) const LENT_SHARE: u64 = 8;
/// So many objects are looked for and sent on before the others are, the first of them by itself: the client begins with it, or wakes up, meanwhile.
pub(crate) const FIRST: usize = 4;
/// Behind them, so many at a time: a client that is quicker than the look-ups does not wait for all of them.
const NEXT: usize = 8;

/// How many objects are looked for at a time, of many, from the one at `at` on.
pub(crate) fn looks(at: usize) -> usize {
    match at {
        0 => 1,
        1..FIRST => FIRST - at,
        FIRST..NEXT => NEXT - at,
        _ => usize::MAX,
    }
}

/// What a link has of the arena.
#[derive(Default)]
pub(crate) struct Lent {
    frames: FxHashMap<u64, (FrameRef, u64)>,
    bytes: u64,
    last: u64,
}

/// What is wanted of an object.
pub(crate) struct Wish {
    pub op: OpId,
    pub item: u32,
    pub key: ObjectKey,
    pub stretch: std::ops::Range<u64>,
    /// Whether that has to be all of it.
    pub whole: bool,
    /// Objects of the operation before it.
    pub behind: u32,
    /// Whether it may be shown where it lies.
    pub may_show: bool,
}

impl Wish {
    /// Bytes that are wanted.
    fn length(&self) -> u64 {
        self.stretch.end - self.stretch.start
    }
}

/// What became of a wish.
pub(crate) enum Granted {
    /// On its way, with these checksums of the blocks that the stretch lies in; what it was put with.
    Sent(Checksums, Together),
    /// Its bytes changed in memory: it is gone from there.
    Damaged,
    /// Not now: the link has no room.
    Later,
    /// Not from DRAM, or not as it is wanted.
    No,
}

impl Lent {
    /// What the next push is named by.
    pub fn token(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Pushes came back.
    pub fn back(&mut self, shared: &Shared, tokens: &[u64]) {
        let frames: Vec<FrameRef> = tokens.iter().filter_map(|token| self.taken(*token)).collect();
        if frames.is_empty() {
            return;
        }
        let mut core = shared.lock();
        frames.into_iter().for_each(|frame| core.release_frame(frame));
    }

    /// The link is gone, and with it whatever could look at its pushes.
    pub fn all_back(&mut self, shared: &Shared) {
        let tokens: Vec<u64> = self.frames.keys().copied().collect();
        self.back(shared, &tokens);
    }

    fn taken(&mut self, token: u64) -> Option<FrameRef> {
        let (frame, bytes) = self.frames.remove(&token)?;
        self.bytes -= bytes;
        Some(frame)
    }
}

/// Send objects from the arena, those that are there, in their order: what became of the first so many of them. All are looked up in
/// one section, as a batch of the store's own is.
pub(crate) fn grant(
    world: &mut World,
    link: &mut dyn Link,
    wishes: &[Wish],
    options: &crate::Options,
) -> Vec<Granted> {
    let shared = world.session.io.shared.clone();
    let held = hold(&shared, wishes, &world.lent, link.room().pushes, options);
    let mut noted = Noted::default();
    let mut is_full = false;
    let send = |(wish, held): (&Wish, Option<(Held, usize)>)| {
        let Some((held, member)) = held else { return Granted::No };
        // Behind what the link had no room for nothing is sent.
        let granted = match is_full {
            true => Granted::Later,
            false => send(world, link, wish, &held, member, &mut noted),
        };
        match &granted {
            Granted::Sent(..) => {}
            Granted::Damaged => noted.damaged.push(held.frame),
            Granted::No | Granted::Later => {
                is_full = true;
                noted.back.push(held.frame);
            }
        }
        granted
    };
    let granted = wishes.iter().zip(held).map(send).collect();
    noted.note(&shared);
    granted
}

/// Hold the frames of these objects, of those that are in DRAM, as far as a link that has `lent` and room for so many pushes may
/// have them.
fn hold(
    shared: &Shared,
    wishes: &[Wish],
    lent: &Lent,
    mut pushes: usize,
    options: &crate::Options,
) -> Vec<Option<(Held, usize)>> {
    let most = (shared.config.arena_bytes() / LENT_SHARE).min(LENT_BYTES_MAX);
    let mut left = most.saturating_sub(lent.bytes);
    let at = recency(shared, options);
    let mut held = Vec::with_capacity(wishes.len());
    let mut core = shared.lock();
    for wish in wishes {
        let length = wish.length();
        if length > most || length == 0 {
            held.push(None);
            continue;
        }
        if length > left || pushes == 0 {
            break;
        }
        let at = Recency { depth: at.depth.saturating_add(wish.behind), ..at };
        let fits = |have: u64| if wish.whole { have == wish.stretch.end } else { wish.stretch.end <= have };
        let found = locate::hold_in_memory(shared, &mut core, &wish.key, at, fits);
        if found.is_some() {
            left -= length;
            pushes -= 1;
        }
        held.push(found);
    }
    held
}

/// What is noted of a grant, in one section behind it.
#[derive(Default)]
struct Noted {
    hits: u64,
    bytes: u64,
    unverified: u64,
    damaged: Vec<FrameRef>,
    /// Held, and not sent.
    back: Vec<FrameRef>,
}

impl Noted {
    fn note(self, shared: &Shared) {
        if self.hits == 0 && self.damaged.is_empty() && self.back.is_empty() {
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
        self.back.into_iter().for_each(|frame| core.release_frame(frame));
    }
}

/// Send one that is held; it is lent then.
fn send(
    world: &mut World,
    link: &mut dyn Link,
    wish: &Wish,
    held: &Held,
    member: usize,
    noted: &mut Noted,
) -> Granted {
    let shared = &world.session.io.shared;
    let parts = vec![cut(held.part(&shared.memory, member), wish)];
    // Who is shown the bytes compares them with what was put, and so does who is sent them; who finds others asks again.
    let asks_again = link.facts().features & Feature::AsksAgain.bit() != 0;
    let spared = wish.may_show && (asks_again || link.shows(&parts));
    let sampled = world.session.io.sampler.next() || !wish.may_show;
    let (verify, unverified) = (sampled && !spared, !sampled && !spared);
    let Some(sums) = proofs(shared, held, member, wish, verify) else { return Granted::Damaged };
    let (token, length) = (world.lent.token(), wish.length());
    let push = Push { op: wish.op, item: wish.item, offset: 0, parts, token, may_show: wish.may_show };
    if link.push(push).is_err() {
        return Granted::Later;
    }
    world.pushed.sent(wish.op);
    if mutant::on(Mutant::ShownLetGo) {
        noted.back.push(held.frame);
        return Granted::Sent(sums, Together::of_frame(&held.data));
    }
    world.lent.frames.insert(token, (held.frame, length));
    world.lent.bytes += length;
    let sent = wish.behind as usize + 1;
    if sent == 1 || sent == FIRST || sent.is_multiple_of(NEXT) {
        link.send_on();
    }
    noted.hits += 1;
    noted.bytes += length;
    noted.unverified += u64::from(unverified);
    Granted::Sent(sums, Together::of_frame(&held.data))
}

fn cut(part: Part, wish: &Wish) -> Part {
    let (from, len) = (wish.stretch.start as usize, (wish.stretch.end - wish.stretch.start) as usize);
    part.split(from).1.split(len).0
}

/// The checksums of the blocks that the stretch lies in, of those of their bytes that are sent; `None` if a block that was
/// to be verified is not as it was put.
fn proofs(shared: &Shared, held: &Held, member: usize, wish: &Wish, verify: bool) -> Option<Checksums> {
    let kept = &held.data.members[member].checksums;
    let (bytes, stretch) = (held.bytes(&shared.memory, member), &wish.stretch);
    let block = |block: u64| {
        let all = block * BLOCK..((block + 1) * BLOCK).min(bytes.len() as u64);
        let sent = all.start.max(stretch.start)..all.end.min(stretch.end);
        let sum = kept.get(block as usize).copied().unwrap_or_default();
        let is_whole = sent == all;
        // A part of a block that is not as it was put must not get a checksum of its own.
        if (verify || !is_whole) && checksum(&bytes[all.start as usize..all.end as usize]) != sum {
            return None;
        }
        Some(if is_whole { sum } else { checksum(&bytes[sent.start as usize..sent.end as usize]) })
    };
    (stretch.start / BLOCK..stretch.end.div_ceil(BLOCK)).map(block).collect()
}

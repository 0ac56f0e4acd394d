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

use super::answer::{Answered, Verdict};
use super::in_flight_sends;
use super::in_flight_sends::{Granted, Wish};
use super::{CHUNK_BYTES, Manner, World};
use crate::api::error::Error;
use crate::api::outcome::{GetDone, GetOutcome, MissCause, Ticket, Tier};
use crate::api::request::{Destination, Get, Options};
use crate::state::group_info;
use crate::state::group_info::{AttachedTo, Together};
use crate::state::shared::Shared;
use crate::write::put::Came;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Bytes that an object takes that is wanted, but for its checksums.
pub(crate) const WANTED_BYTES: usize = size_of::<Wanted>();
/// Most objects that are looked for in DRAM at a time: others wait for the core's lock as long.
const LOOKS: usize = 32;

/// One object that is wanted.
struct Wanted {
    key: ObjectKey,
    /// Which of its bytes.
    stretch: Range<u64>,
    /// Whether that has to be all of it.
    whole: bool,
    /// Whether its bytes may be shown where they lie.
    may_show: bool,
    /// Bytes that are read and not sent, or not read.
    left: u64,
    /// It was looked for in DRAM.
    looked: bool,
    /// It is not here, and peers are asked for all of it at once.
    afar: bool,
    tier: Tier,
    /// What it was put with.
    with: Together,
    /// The checksums of all its blocks, as what was read first has them: all must be read of one and the same.
    record: Option<Checksums>,
    /// Of the blocks that the stretch lies in, of those of their bytes that are sent; empty before any of them was found.
    sums: Checksums,
    verdict: Option<Verdict>,
}

impl Wanted {
    fn new(item: &GetItem) -> Wanted {
        let stretch = item.stretch();
        Wanted {
            key: item.key,
            whole: item.range().is_none(),
            may_show: !item.is_sent(),
            left: stretch.end - stretch.start,
            looked: false,
            afar: false,
            tier: Tier::Memory,
            with: Together::default(),
            record: None,
            sums: Checksums::new(),
            verdict: None,
            stretch,
        }
    }

    /// Blocks of the object that the stretch lies in.
    fn blocks(&self) -> usize {
        (self.stretch.end.div_ceil(BLOCK) - self.stretch.start / BLOCK) as usize
    }

    /// It, as a wish of operation `op`, of which it is item `at`.
    fn wish(&self, op: OpId, at: usize) -> Wish {
        let (key, stretch, whole) = (self.key, self.stretch.clone(), self.whole);
        Wish { op, item: at as u32, key, stretch, whole, behind: at as u32, may_show: self.may_show }
    }

    /// What it is attached to, if it is a hit that is.
    fn attached(&self) -> Option<&AttachedTo> {
        self.with.attached.as_ref().filter(|_| self.verdict.is_none() && self.left == 0)
    }

    /// Its chunks: they end where blocks end, so that each block is in one of them.
    fn chunk(&self, from: u64) -> Range<u64> {
        let end = (from / BLOCK * BLOCK).saturating_add(CHUNK_BYTES).min(self.stretch.end);
        from..end
    }

    /// It was asked for with a destination of another length.
    fn other_length(&self, have: u64) -> Error {
        let (key, given) = (&self.key, self.stretch.end);
        let detail = format!("destination has not the object's length key={key} object={have} given={given}");
        Error::invalid(detail)
    }

    /// A chunk was read whole: note its checksums; what is wrong with it otherwise.
    fn take(&mut self, chunk: &Range<u64>, tier: Tier, done: &GetDone, bytes: &[u8]) -> Result<(), Verdict> {
        if self.whole && tier != Tier::Remote && done.length != self.stretch.end {
            return Err(Verdict::Failed(self.other_length(done.length)));
        }
        if tier == Tier::Remote {
            // Nothing but these is known of the object. If all of it was asked for, the peer has compared its length.
            let (checksums, with) = done.proven();
            if checksums.len() != self.blocks() {
                return Err(Verdict::Miss(MissCause::Gone));
            }
            self.sums = checksums.into();
            (self.tier, self.with) = (tier, with);
            return Ok(());
        }
        let (checksums, with) = done.proven();
        let (first, blocks) = (self.stretch.start / BLOCK, self.blocks());
        let record = self.record.get_or_insert_with(|| checksums.into());
        if record[..] != *checksums {
            // Removed and put again in between: no bytes of two objects are one object's.
            return Err(Verdict::Miss(MissCause::Gone));
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
        (self.tier, self.with) = (tier, with);
        Ok(())
    }
}

/// A get under way.
pub(crate) struct GetOp {
    manner: Manner,
    wanted: Vec<Wanted>,
    /// Objects of which not everything was asked for, and from which byte on of the first.
    next: VecDeque<usize>,
    from: u64,
    /// What each batch of the session reads: object and chunk.
    reading: FxHashMap<Ticket, Vec<(usize, Range<u64>)>>,
    /// What was read and the link had no room for.
    unsent: VecDeque<(usize, Push)>,
    /// Whether peers have what is not here, and what they are to be asked for as a whole: what they send in chunks may be of two objects.
    has_peers: bool,
    afar: VecDeque<usize>,
}

impl GetOp {
    pub fn new(manner: Manner, items: impl Iterator<Item = GetItem>) -> GetOp {
        let wanted: Vec<Wanted> = items.map(|item| Wanted::new(&item)).collect();
        let from = wanted.first().map_or(0, |w| w.stretch.start);
        let next = (0..wanted.len()).collect();
        let (reading, unsent) = (FxHashMap::default(), VecDeque::new());
        let (has_peers, afar) = (false, VecDeque::new());
        GetOp { manner, wanted, next, from, reading, unsent, has_peers, afar }
    }

    /// Read and send as far as it goes; the outcome once all is on its way.
    pub fn advance(&mut self, world: &mut World, link: &mut dyn Link, id: OpId) -> Option<Answered> {
        self.send(world, link, id);
        if world.shared().now() >= self.manner.deadline {
            // What is being read is waited for by the session, which has the same deadline.
            self.next.clear();
            self.afar.clear();
            let late = |w: &Wanted| w.verdict.is_none() && w.left > 0;
            if self.reading.is_empty() && self.unsent.is_empty() {
                self.wanted.iter_mut().filter(|w| late(w)).for_each(|w| {
                    w.verdict = Some(Verdict::Miss(MissCause::Late));
                });
            }
        }
        self.read(world, link, id);
        self.ask_afar(world, id);
        let over =
            self.next.is_empty() && self.afar.is_empty() && self.reading.is_empty() && self.unsent.is_empty();
        over.then(|| self.answered(world.shared(), link.facts().features))
    }

    fn answered(&mut self, shared: &Shared, features: u64) -> Answered {
        let has = |feature: Feature| features & feature.bit() != 0;
        let says_members = has(Feature::Members);
        // Only a store asks what it may keep.
        let says_bases = says_members && has(Feature::Bases) && self.manner.came != Came::Put;
        let bases = match says_bases && self.wanted.iter().any(|w| w.attached().is_some()) {
            true => {
                let asked: Vec<_> = self.wanted.iter().map(|w| (w.key, w.attached())).collect();
                group_info::bases(shared, &asked)
            }
            false => vec![None; self.wanted.len()],
        };
        let verdict = |(w, base): (Wanted, Option<Base>)| {
            let hit = |w: Wanted| {
                let is_said = says_members && w.with.attached.is_some() == base.is_some();
                let members = if is_said { w.with.members } else { 0 };
                Verdict::Hit(w.tier, w.stretch.end - w.stretch.start, w.sums, members, base.map(Box::new))
            };
            match (w.verdict, w.left) {
                (Some(verdict), _) => (w.key, verdict),
                (None, 0) => (w.key, hit(Wanted { verdict: None, ..w })),
                (None, _) => (w.key, Verdict::Miss(MissCause::Late)),
            }
        };
        Answered::items(Verb::Get, self.wanted.drain(..).zip(bases).map(verdict).collect())
    }

    /// Ask for the next chunks, as many as there is staging memory for.
    fn read(&mut self, world: &mut World, link: &mut dyn Link, id: OpId) {
        self.has_peers = world.session.io.connections.is_some();
        // What may be at a peer, and chunks of what is here.
        let mut asked = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
        while let Some(&at) = self.next.front() {
            let wanted = &self.wanted[at];
            let chunk = wanted.chunk(self.from);
            if !wanted.looked && wanted.verdict.is_none() && !self.look(world, link, id, at) {
                break;
            }
            let wanted = &self.wanted[at];
            let is_open = wanted.verdict.is_none() && !wanted.afar && wanted.left > 0 && !chunk.is_empty();
            if is_open {
                let len = (chunk.end - chunk.start) as usize;
                let Some(part) = world.staging.try_part(len) else { break };
                let destination = Destination([part.split(len).0].into());
                // Asked for as a whole it is refused, and not read, where its length is another.
                let range = (!wanted.whole || chunk != wanted.stretch).then(|| chunk.clone());
                let (gets, chunks) = &mut asked[usize::from(self.has_peers && chunk != wanted.stretch)];
                gets.push(Get { key: wanted.key, range, destination });
                chunks.push((at, chunk.clone()));
                if chunk.end < wanted.stretch.end {
                    self.from = chunk.end;
                    continue;
                }
            }
            self.next.pop_front();
            self.from = self.next.front().map_or(0, |at| self.wanted[*at].stretch.start);
        }
        for ((gets, chunks), here_alone) in asked.into_iter().zip([false, true]) {
            if !gets.is_empty() {
                self.submit(world, id, gets, chunks, here_alone);
            }
        }
    }

    fn submit(
        &mut self,
        world: &mut World,
        id: OpId,
        gets: Vec<Get>,
        chunks: Vec<(usize, Range<u64>)>,
        here_alone: bool,
    ) {
        let options = self.options(world, chunks[0].0);
        let ticket = match here_alone {
            true => world.session.submit_get_here(gets, options),
            false => world.session.submit_get(gets, options),
        };
        self.reading.insert(ticket, chunks);
        world.batches.insert(ticket, id);
    }

    /// Those of a batch whose first object is `at`.
    fn options(&self, world: &World, at: usize) -> Options {
        let left = self.manner.deadline.since(world.shared().now());
        let depth = self.manner.options.depth.saturating_add(at as u32);
        Options { timeout: Some(left), depth, ..self.manner.options }
    }

    /// Ask peers for what is longer than a chunk and not here, one object after the other as there is staging memory for all of it. What
    /// would never have room there is a miss.
    fn ask_afar(&mut self, world: &mut World, id: OpId) {
        while let Some(&at) = self.afar.front() {
            let wanted = &mut self.wanted[at];
            let stretch = wanted.stretch.clone();
            let len = (stretch.end - stretch.start) as usize;
            if len > world.staging.capacity() {
                wanted.verdict.get_or_insert(Verdict::Miss(MissCause::Absent));
                self.afar.pop_front();
                continue;
            }
            let Some(part) = world.staging.try_part(len) else { return };
            let (key, range) = (wanted.key, (!wanted.whole).then(|| stretch.clone()));
            self.afar.pop_front();
            let destination = Destination([part.split(len).0].into());
            self.submit(world, id, vec![Get { key, range, destination }], vec![(at, stretch)], false);
        }
    }

    /// Look for what begins at `at` in DRAM, and send what is there; false if the link has no room for the first of it.
    fn look(&mut self, world: &mut World, link: &mut dyn Link, id: OpId, at: usize) -> bool {
        let most = if self.wanted.len() > 2 * in_flight_sends::FIRST {
            in_flight_sends::looks(at).min(LOOKS)
        } else {
            LOOKS
        };
        let ahead = self.wanted.iter().enumerate().skip(at).filter(|(_, w)| !w.looked && w.verdict.is_none());
        let wishes: Vec<Wish> = ahead.take(most).map(|(at, wanted)| wanted.wish(id, at)).collect();
        let granted = in_flight_sends::grant(world, link, &wishes, &self.manner.options);
        for (wish, granted) in wishes.iter().zip(granted) {
            let wanted = &mut self.wanted[wish.item as usize];
            wanted.looked = !matches!(granted, Granted::Later);
            match granted {
                Granted::Sent(sums, with) => {
                    (wanted.sums, wanted.left, wanted.tier, wanted.with) = (sums, 0, Tier::Memory, with);
                }
                Granted::Damaged => wanted.verdict = Some(Verdict::Miss(MissCause::Damaged)),
                Granted::No | Granted::Later => {}
            }
        }
        self.wanted[at].looked
    }

    /// A batch was read.
    pub fn done(&mut self, id: OpId, ticket: Ticket, done: Vec<GetDone>) {
        let chunks = self.reading.remove(&ticket).unwrap_or_default();
        for ((at, chunk), mut done) in chunks.into_iter().zip(done) {
            let wanted = &mut self.wanted[at];
            let is_part = chunk != wanted.stretch;
            let is_miss = done.outcome.as_ref().is_ok_and(|outcome| !outcome.is_hit());
            if is_part && is_miss && self.has_peers && !wanted.afar && wanted.record.is_none() {
                wanted.afar = true;
                self.afar.push_back(at);
            }
            if is_part && wanted.afar {
                continue;
            }
            let parts = std::mem::take(&mut done.destination.0);
            let verdict = match (&done.outcome, parts.first()) {
                (Ok(GetOutcome::Hit { tier, .. }), Some(part)) => {
                    wanted.take(&chunk, *tier, &done, part.bytes()).err()
                }
                (Ok(GetOutcome::Miss(cause)), _) => Some(Verdict::Miss(*cause)),
                (Err(error), _) => Some(Verdict::Failed(error.clone())),
                (Ok(GetOutcome::Hit { .. }), None) => Some(Verdict::Miss(MissCause::Gone)),
            };
            match verdict {
                Some(verdict) => {
                    wanted.verdict.get_or_insert(verdict);
                }
                None => {
                    let offset = chunk.start - wanted.stretch.start;
                    let may_show = self.wanted[at].may_show;
                    let push = Push { op: id, item: at as u32, offset, parts, token: 0, may_show };
                    self.unsent.push_back((at, push));
                }
            }
        }
    }

    /// By when it is to be over.
    pub fn deadline(&self) -> Mono {
        self.manner.deadline
    }

    /// Send what was read, each object's bytes in order.
    fn send(&mut self, world: &mut World, link: &mut dyn Link, id: OpId) {
        let mut later = VecDeque::new();
        // An object whose next bytes are not there yet, or that the link has no room for, waits with all behind it.
        let mut waits = std::collections::BTreeSet::new();
        for (at, push) in std::mem::take(&mut self.unsent) {
            let wanted = &mut self.wanted[at];
            if wanted.verdict.is_some() {
                continue;
            }
            let bytes: u64 = push.parts.iter().map(|p| p.len() as u64).sum();
            let sent = wanted.stretch.end - wanted.stretch.start - wanted.left;
            if waits.contains(&at) || push.offset != sent {
                waits.insert(at);
                later.push_back((at, push));
                continue;
            }
            match link.push(push) {
                Ok(()) => {
                    world.pushed.sent(id);
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

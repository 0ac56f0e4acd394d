//! An order of eviction in parts, so that threads that put need not take turns at it: each part, a *lane*, is an order of its own behind
//! a lock of its own, as the shards of RocksDB's and other caches' LRU are.
//!
//! A frame's number says which lane it is in, whatever it holds. Whoever makes room takes victims out of one lane and puts what comes
//! in their place under their numbers, so each lane gets what is new in turn, and the oldest of each is about as old: it is chosen among
//! several, by a note of how old the oldest of each is. With one lane it is the plain order.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::sync::{Mutex, MutexGuard, PoisonError, at_once};

use super::touches::pack;
use super::{Fifo, FrameId, FramePolicy, Lru, Recency, Touches};

/// Most lanes there can be.
pub const LANES_MAX: usize = 128;

/// Frames numbered side by side in one lane, as a power of two.
const BLOCK_BITS: u32 = 4;

/// Lanes that one who makes room chooses among: their notes are one line of the cache.
const CHOICE: usize = 8;

/// The share of a lane that leaves at once at most, as a divisor.
const SHARE: usize = 8;

/// A lane without frames.
const NOBODY: u64 = u64::MAX;

/// How frame numbers are dealt out to lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    lane_bits: u32,
}

impl Spread {
    /// Of one lane.
    pub const NONE: Spread = Spread { lane_bits: 0 };

    /// Of so many, a power of two.
    fn over(lanes: usize) -> Spread {
        Spread { lane_bits: lanes.trailing_zeros() }
    }

    fn lane(self, frame: FrameId) -> usize {
        (frame.0 >> BLOCK_BITS) as usize & ((1 << self.lane_bits) - 1)
    }

    /// The how-manieth of its lane's numbers this is: tables of a lane have no gaps for those of others.
    pub(super) fn place(self, frame: FrameId) -> usize {
        let block = u64::from(frame.0) >> (BLOCK_BITS + self.lane_bits);
        (block << BLOCK_BITS) as usize | (frame.0 as usize & ((1 << BLOCK_BITS) - 1))
    }
}

/// Two lines of 64 bytes are fetched together.
#[repr(align(128))]
struct Lane(Mutex<Box<dyn FramePolicy>>);

/// Notes of [`CHOICE`] lanes.
#[derive(Default)]
#[repr(align(64))]
struct Notes([AtomicU64; CHOICE]);

/// The lanes of a store.
pub struct Lanes {
    lanes: Box<[Lane]>,
    /// Of each the [`Recency`] of who goes next, or [`NOBODY`], as of when its lock was last given back.
    oldest: Box<[Notes]>,
    spread: Spread,
    name: &'static str,
}

impl Lanes {
    /// So many lanes, a power of two up to [`LANES_MAX`], of the policy of that name. `None` if there is none of that name that can be
    /// divided: a ghost queue counts what all of memory has evicted.
    pub fn new(name: &str, lanes: usize, touches: &Arc<Touches>) -> Option<Lanes> {
        let spread = Spread::over(lanes);
        let make = || -> Option<Box<dyn FramePolicy>> {
            match name {
                "lru" => Some(Box::new(Lru::in_lane(touches.clone(), spread))),
                "fifo" => Some(Box::new(Fifo::in_lane(spread))),
                _ => None,
            }
        };
        if !lanes.is_power_of_two() || lanes > LANES_MAX {
            return None;
        }
        let name = make()?.name();
        let lanes: Option<Box<[Lane]>> =
            (0..lanes).map(|_| make().map(|order| Lane(Mutex::new(order)))).collect();
        let lanes = lanes?;
        let oldest: Box<[Notes]> = (0..lanes.len().div_ceil(CHOICE)).map(|_| Notes::default()).collect();
        oldest.iter().flat_map(|notes| &notes.0).for_each(|note| note.store(NOBODY, Relaxed));
        Some(Lanes { lanes, oldest, spread, name })
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lanes.len()
    }

    fn note(&self, lane: usize) -> &AtomicU64 {
        &self.oldest[lane / CHOICE].0[lane % CHOICE]
    }

    fn lock(&self, lane: usize) -> MutexGuard<'_, Box<dyn FramePolicy>> {
        self.lanes[lane].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, lane: usize, change: impl FnOnce(&mut dyn FramePolicy) -> T) -> T {
        self.change_locked(lane, &mut self.lock(lane), change)
    }

    fn change_locked<T>(
        &self,
        lane: usize,
        order: &mut Box<dyn FramePolicy>,
        change: impl FnOnce(&mut dyn FramePolicy) -> T,
    ) -> T {
        let changed = change(&mut **order);
        let oldest = order.oldest().map_or(NOBODY, pack);
        // Others look at these lines.
        if self.note(lane).load(Relaxed) != oldest {
            self.note(lane).store(oldest, Relaxed);
        }
        changed
    }

    /// Take in frames that were filled, each by what [`FramePolicy::insert`] is told. Those side by side that are of one lane go in at once.
    pub fn insert(&self, frames: &[(FrameId, u64, u128, Recency)]) {
        for of_one in frames.chunk_by(|(a, ..), (b, ..)| self.spread.lane(*a) == self.spread.lane(*b)) {
            self.change(self.spread.lane(of_one[0].0), |order| {
                of_one
                    .iter()
                    .for_each(|(id, bytes, fingerprint, at)| order.insert(*id, *bytes, *fingerprint, *at));
            });
        }
    }

    /// Take up to `most` victims out of a lane that nobody else is at, one of those whose oldest are the oldest among [`CHOICE`]; which ones
    /// these are, `turn` says. `ahead` is told first which frames these may be, and `evictable` is asked as for [`FramePolicy::victim`], both
    /// while the lane is locked.
    pub fn victims(
        &self,
        turn: usize,
        most: usize,
        ahead: impl FnOnce(&[FrameId]),
        mut evictable: impl FnMut(FrameId) -> bool,
        into: &mut Vec<FrameId>,
    ) {
        let begin = into.len();
        let take = |order: &mut dyn FramePolicy| {
            // What is young in this lane is younger than what other lanes have.
            let most = most.min((order.len() / SHARE).max(1));
            order.ahead(most, into);
            ahead(&into[begin..]);
            into.truncate(begin);
            into.extend((0..most).map_while(|_| order.victim(&mut evictable)));
        };
        for group in 0..self.oldest.len() {
            let group = (turn + group) % self.oldest.len();
            let mut choice: [(u64, usize); CHOICE] =
                std::array::from_fn(|i| (self.oldest[group].0[i].load(Relaxed), group * CHOICE + i));
            choice.sort_unstable();
            for (_, lane) in choice.into_iter().take_while(|(oldest, _)| *oldest != NOBODY) {
                if let Some(mut order) = at_once(&self.lanes[lane].0) {
                    return self.change_locked(lane, &mut order, take);
                }
            }
        }
    }
}

/// All lanes as one policy, for who has all of them: its victim is of the lane whose oldest is the oldest.
pub struct AllLanes(pub Arc<Lanes>);

impl AllLanes {
    fn of<T>(&self, frame: FrameId, change: impl FnOnce(&mut dyn FramePolicy) -> T) -> T {
        self.0.change(self.0.spread.lane(frame), change)
    }

    /// The lane whose oldest is the oldest, of those that are not `tried`.
    fn first(&self, tried: u128) -> Option<usize> {
        let untried = (0..self.0.count()).filter(|lane| tried >> lane & 1 == 0);
        let (oldest, lane) = untried.map(|lane| (self.0.note(lane).load(Relaxed), lane)).min()?;
        (oldest != NOBODY).then_some(lane)
    }
}

impl FramePolicy for AllLanes {
    fn name(&self) -> &'static str {
        self.0.name
    }

    fn expect(&mut self, frames: usize) {
        let each = match self.0.count() {
            1 => frames,
            lanes => frames.div_ceil(lanes) + (1 << BLOCK_BITS),
        };
        (0..self.0.count()).for_each(|lane| self.0.change(lane, |order| order.expect(each)));
    }

    fn insert(&mut self, frame: FrameId, bytes: u64, fingerprint: u128, at: Recency) {
        self.of(frame, |order| order.insert(frame, bytes, fingerprint, at));
    }

    fn touch(&mut self, frame: FrameId, at: Recency) {
        self.of(frame, |order| order.touch(frame, at));
    }

    fn counts_touches(&self) -> bool {
        false
    }

    fn remove(&mut self, frame: FrameId) {
        self.of(frame, |order| order.remove(frame));
    }

    fn victim(&mut self, evictable: &mut dyn FnMut(FrameId) -> bool) -> Option<FrameId> {
        let mut tried = 0u128;
        while let Some(lane) = self.first(tried) {
            if let Some(victim) = self.0.change(lane, |order| order.victim(evictable)) {
                return Some(victim);
            }
            tried |= 1 << lane;
        }
        None
    }

    fn ahead(&self, frames: usize, into: &mut Vec<FrameId>) {
        if let Some(lane) = self.first(0) {
            self.0.lock(lane).ahead(frames, into);
        }
    }

    fn oldest(&self) -> Option<Recency> {
        self.0.lock(self.first(0)?).oldest()
    }

    fn len(&self) -> usize {
        (0..self.0.count()).map(|lane| self.0.lock(lane).len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const FRAMES: u32 = 4096;

    fn lanes(name: &str, count: usize) -> Arc<Lanes> {
        let touches = Arc::new(Touches::new(FRAMES as usize).expect("memory"));
        Arc::new(Lanes::new(name, count, &touches).expect("it can be divided"))
    }

    fn at(epoch: u64) -> Recency {
        Recency { epoch, depth: 0 }
    }

    #[test]
    fn numbers_are_dealt_out_to_lanes_without_gaps() {
        for lanes in [1, 2, 16, LANES_MAX] {
            let spread = Spread::over(lanes);
            let mut seen = BTreeSet::new();
            let all = (lanes as u32) << (BLOCK_BITS + 2);
            for frame in (0..all).map(FrameId) {
                assert!(
                    seen.insert((spread.lane(frame), spread.place(frame))),
                    "{frame:?} has another's place"
                );
                assert!(spread.place(frame) < all as usize / lanes && spread.lane(frame) < lanes);
            }
        }
    }

    #[test]
    fn what_cannot_be_divided_is_not() {
        let touches = Arc::new(Touches::new(1).expect("memory"));
        for (name, count) in [("s3fifo", 2), ("lfu", 2), ("lru", 3), ("lru", 0), ("lru", 2 * LANES_MAX)] {
            assert!(Lanes::new(name, count, &touches).is_none(), "{name} {count}");
        }
    }

    fn scattered(all: &mut AllLanes) -> impl Fn(FrameId) -> u64 + use<> {
        let epoch = |f: FrameId| u64::from(f.0.wrapping_mul(2_654_435_761) >> 8);
        (0..FRAMES).for_each(|f| all.insert(FrameId(f), 1, 0, at(epoch(FrameId(f)))));
        epoch
    }

    /// Who has all lanes has the exact order, whatever lane a frame is in.
    #[test]
    fn all_lanes_together_are_the_plain_order() {
        for name in ["lru", "fifo"] {
            let mut all = AllLanes(lanes(name, 8));
            let epoch = scattered(&mut all);
            assert_eq!((all.name(), all.len()), (name, FRAMES as usize));
            let left: Vec<u64> = std::iter::from_fn(|| all.victim(&mut |_| true)).map(&epoch).collect();
            assert!(left.len() == FRAMES as usize && left.is_sorted(), "{name}");
        }
    }

    /// The oldest of a lane, that may not leave, is no reason to take all victims out of that lane.
    #[test]
    fn frames_that_stay_do_not_make_their_lane_the_oldest() {
        let mut all = AllLanes(lanes("lru", 8));
        let epoch = scattered(&mut all);
        let (mut left, mut youngest, mut early) = (0, 0, 0);
        while let Some(victim) = all.victim(&mut |f| f.0 % 7 != 0) {
            youngest = youngest.max(epoch(victim));
            early = early.max(youngest - epoch(victim));
            left += 1;
        }
        assert_eq!(left, (0..FRAMES).filter(|f| f % 7 != 0).count());
        // By two of its lane's neighbours, of which a lane has 512 among 2^24 epochs.
        assert!(early < 1 << 17, "one left {early} before it should");
    }

    /// Each of many who make room, by turns, has the oldest of some lane, and the rest stays about as old in each.
    #[test]
    fn victims_of_turns_are_old_ones_of_every_lane() {
        let (lanes, count) = (lanes("lru", 16), 16);
        let mut epoch = 0u64;
        let mut next = || {
            epoch += 1;
            at(epoch)
        };
        let filled: Vec<_> = (0..FRAMES).map(|f| (FrameId(f), 1, 0, next())).collect();
        lanes.insert(&filled);
        let (mut victims, mut youngest) = (Vec::new(), 0);
        for turn in 0..10 * FRAMES as usize / 16 {
            let mut told = Vec::new();
            lanes.victims(
                turn.wrapping_mul(31),
                16,
                |ids| told.extend_from_slice(ids),
                |_| true,
                &mut victims,
            );
            assert_eq!((&told, victims.len()), (&victims, 16));
            assert!(victims.iter().all(|f| lanes.spread.lane(*f) == lanes.spread.lane(victims[0])));
            let new: Vec<_> = victims.drain(..).map(|f| (f, 1, 0, next())).collect();
            lanes.insert(&new);
            let oldest = (0..count).map(|lane| lanes.lock(lane).oldest().expect("full").epoch);
            youngest = youngest.max(new[0].3.epoch - oldest.min().expect("lanes"));
        }
        // Exactly the oldest would be FRAMES old each time.
        assert!(youngest < u64::from(FRAMES) * 3 / 2, "{youngest}");
    }

    /// What is asked for again stays, also where a lane has no more frames than leave at once.
    #[test]
    fn what_is_asked_for_all_the_time_does_not_leave() {
        for frames in [256, 2048] {
            let lanes = lanes("lru", 16);
            let filled: Vec<_> = (0..frames).map(|f| (FrameId(f), 1, 0, at(1 + u64::from(f)))).collect();
            lanes.insert(&filled);
            let hot = |f: FrameId| f.0 % 23 == 5;
            let (mut epoch, mut victims) = (u64::from(frames), Vec::new());
            for turn in 0..4 * frames as usize {
                epoch += 1;
                let again = (0..frames).map(FrameId).filter(|f| hot(*f));
                again.for_each(|f| lanes.change(lanes.spread.lane(f), |order| order.touch(f, at(epoch))));
                lanes.victims(turn, 16, |_| (), |_| true, &mut victims);
                assert!(
                    !victims.is_empty() && !victims.iter().any(|f| hot(*f)),
                    "frames={frames} turn={turn}"
                );
                let new: Vec<_> = victims.drain(..).map(|f| (f, 1, 0, at(epoch))).collect();
                lanes.insert(&new);
            }
        }
    }

    #[test]
    fn a_lane_that_somebody_is_at_is_not_waited_for() {
        let lanes = lanes("fifo", 2);
        lanes.insert(&[(FrameId(0), 1, 0, at(1)), (FrameId(1 << BLOCK_BITS), 1, 0, at(2))]);
        let mut victims = Vec::new();
        let held = lanes.lock(0);
        lanes.victims(0, 4, |_| (), |_| true, &mut victims);
        assert_eq!(victims, [FrameId(1 << BLOCK_BITS)]);
        lanes.victims(0, 4, |_| (), |_| true, &mut victims);
        assert_eq!(victims.len(), 1, "the other is empty");
        drop(held);
        lanes.victims(0, 4, |_| (), |frame| frame.0 != 0, &mut victims);
        assert_eq!(victims.len(), 1, "it may not go");
        lanes.victims(0, 4, |_| (), |_| true, &mut victims);
        assert_eq!(victims[1..], [FrameId(0)]);
    }
}

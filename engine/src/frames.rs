//! Frames: pages in DRAM. A frame holds the objects of one put group, and comes, goes and is flushed as a
//! whole.
//!
//! Invariants (the first three under the core's lock):
//! - A frame being filled is known to its filler only: it is in no index entry, no policy, no queue.
//! - A frame with readers (views, links, the flusher) keeps its extents. One that was dropped meanwhile is
//!   dead: unreachable, and freed by its last reader.
//! - Serial numbers tell a frame from a later one that took its place.
//! - Threads in lanes have some of the frames each while nobody has the core ([`LaneFrames`]).
//! - Gets enter a frame without the lock, by its number ([`Kept`]). What is dropped is closed to them behind the change of the
//!   index that takes it out of their sight, and freed when the last one inside has left: extents go back only
//!   with the value that those who are inside keep.

mod cells;
mod in_lane;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pagelith_io::kept::{Keeper, Kept};
use pagelith_io::sync::{AtomicU64, Mutex, MutexGuard, PoisonError};
use pagelith_layouts::checksum::Checksums;
use pagelith_layouts::ids::{Generation, NamespaceId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::dram::arena::{Extent, SharedSpace};
use pagelith_tiers::policy::{FrameId, Lanes, Recency, Touches};
use smallvec::SmallVec;

use crate::index::FRAME_MAX;
use cells::Cells;

pub(crate) use in_lane::{LaneFrames, Victims};

/// Where what dropped frames held is not kept any longer for somebody to let go of it behind the lock.
const RETIRED_MAX: usize = 64;

/// Numbers that are made at a time for those who put in lanes.
pub(crate) const SPARE_NUMBERS: usize = 64;

/// What a frame holds; does not change once it is filled.
#[derive(Clone, Debug)]
pub(crate) struct FrameData {
    pub namespace: NamespaceId,
    pub generation: Generation,
    pub sequence: Sequence,
    pub group_kind: GroupKind,
    /// Name of the base group that it is attached to, as records have it; else 0.
    pub base_group: u64,
    /// An object of that group, if this was put since the open; else nobody needs to know, or only headers do.
    pub base: Option<Box<ObjectKey>>,
    pub depth: u32,
    pub members: Members,
}

/// The objects of a frame. One with a single object lies in one allocation with it and its checksums: who gets it finds them side by side.
pub(crate) type Members = SmallVec<[FrameMember; 1]>;

/// One object of a frame.
#[derive(Clone, Debug)]
pub(crate) struct FrameMember {
    pub key: ObjectKey,
    /// What the index knows the key by.
    pub fingerprint: u128,
    pub extent: Extent,
    pub checksums: Checksums,
}

impl FrameData {
    /// The member with this key, compared whole.
    pub fn find(&self, key: &ObjectKey, generation: Generation) -> Option<usize> {
        let at = self.members.iter().position(|m| m.key == *key)?;
        (self.generation == generation).then_some(at)
    }

    /// Whether it is visible only with a base group.
    pub fn is_attached(&self) -> bool {
        self.group_kind == GroupKind::Attached
    }

    /// Padded bytes of all members.
    pub fn bytes(&self) -> u64 {
        self.members.iter().map(|m| m.extent.padded_bytes()).sum()
    }

    /// Bytes of all members.
    pub fn object_bytes(&self) -> u64 {
        self.members.iter().map(|m| m.extent.bytes).sum()
    }
}

/// Where a frame is on its way to SSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameState {
    /// Waits to be written, or to be written again.
    Queued,
    /// Being written.
    Writing,
    /// Written, or never to be: may be evicted.
    Clean,
}

/// One line of the cache.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Frame {
    pub serial: u64,
    pub data: Arc<FrameData>,
    /// Of its first object, and how many it has: whoever evicts one with a single object looks no further, and what it holds was written
    /// by another core, mostly.
    fingerprint: u128,
    extent: Extent,
    members: u16,
    pub state: FrameState,
    /// Those that have the lock when they come and go.
    pub readers: u32,
    pub dead: bool,
    /// Whether every byte was verified since it came here by the arena's own checksums.
    pub verified: bool,
}

const _: () = assert!(size_of::<Option<Frame>>() == 64);

impl Frame {
    /// A filled one; `None` if it has nothing.
    fn new(serial: u64, data: Arc<FrameData>, state: FrameState) -> Option<Frame> {
        let first = data.members.first()?;
        Some(Frame {
            serial,
            fingerprint: first.fingerprint,
            extent: first.extent,
            members: u16::try_from(data.members.len()).unwrap_or(u16::MAX),
            data,
            state,
            readers: 0,
            dead: false,
            verified: false,
        })
    }

    /// What the index knows its object by, and where that lies, if it has a single one.
    pub fn sole(&self) -> Option<(u128, Extent)> {
        (self.members == 1).then_some((self.fingerprint, self.extent))
    }

    /// Whether something is true of what the index knows one of its objects by.
    pub fn any_fingerprint(&self, mut is: impl FnMut(u128) -> bool) -> bool {
        match self.sole() {
            Some((fingerprint, _)) => is(fingerprint),
            None => self.data.members.iter().any(|m| is(m.fingerprint)),
        }
    }
}

/// A frame's number that is nobody's. Whoever has made room keeps it until they make a frame: what is noted under it lies in their own
/// cache.
#[derive(Debug)]
pub(crate) struct Number(u32);

impl Number {
    /// As the index has it.
    pub fn get(&self) -> u32 {
        self.0
    }
}

/// Those that are nobody's, of the frames that there were.
#[derive(Clone, Debug, Default)]
struct Numbers(Arc<Mutex<Vec<u32>>>);

impl Numbers {
    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// That which came back last.
    fn take(&self) -> Option<Number> {
        self.lock().pop().map(Number)
    }

    fn give_back(&self, number: Option<Number>) {
        number.into_iter().for_each(|number| self.lock().push(number.0));
    }
}

/// What a frame leaves that made room.
pub(crate) struct Vacated {
    pub extent: Extent,
    pub number: Number,
}

/// Names a frame and its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrameRef {
    pub id: FrameId,
    pub serial: u64,
}

/// All frames.
pub(crate) struct Frames {
    cells: Cells,
    /// How many numbers there may be.
    numbers: usize,
    /// What those see that come without the lock.
    keeper: Keeper<FrameData>,
    free: Numbers,
    /// Of the last life of any.
    serial: Arc<AtomicU64>,
    touches: Arc<Touches>,
    /// What frames held that are gone.
    retired: Vec<Arc<FrameData>>,
}

impl Frames {
    /// None yet, with room for `most` at a time, numbered below `numbers`; `touches` is told when each is asked for.
    pub fn with_room(most: usize, numbers: usize, touches: Arc<Touches>) -> Frames {
        let numbers = numbers.min(FRAME_MAX as usize + 1);
        let cells = Cells::with_room(most.min(FRAME_MAX as usize + 1));
        let (free, serial, retired) = (Numbers::default(), Arc::default(), Vec::new());
        Frames { cells, numbers, keeper: Keeper::new(numbers), free, serial, touches, retired }
    }

    /// As threads in lanes see them.
    pub fn of_lanes(&self, order: Arc<Lanes>) -> LaneFrames {
        LaneFrames {
            cells: self.cells.of_lanes(),
            kept: self.keeper.kept(),
            numbers: self.free.clone(),
            serial: self.serial.clone(),
            touches: self.touches.clone(),
            order,
        }
    }

    /// When each was last asked for.
    pub fn touches(&self) -> &Arc<Touches> {
        &self.touches
    }

    /// As those see them that come without the lock.
    pub fn kept(&self) -> Kept<FrameData> {
        self.keeper.kept()
    }

    /// Whether there is no number for another frame.
    pub fn is_full(&self) -> bool {
        self.cells.len() >= self.numbers && self.free.lock().is_empty()
    }

    /// Take a filled frame in; `None` if there are too many, or it has nothing.
    pub fn insert(&mut self, data: Arc<FrameData>, state: FrameState, recency: Recency) -> Option<FrameRef> {
        let serial = self.serial.load(Relaxed) + 1;
        self.serial.store(serial, Relaxed);
        let frame = Frame::new(serial, data.clone(), state)?;
        let id = match self.free.take() {
            Some(Number(id)) => id,
            None if self.cells.len() >= self.numbers => return None,
            None => self.cells.push() as u32,
        };
        if !self.keeper.fill(id as usize, data) {
            return None;
        }
        *self.cells.place(id as usize)? = Some(frame);
        self.touches.set(FrameId(id), recency);
        Some(FrameRef { id: FrameId(id), serial })
    }

    /// A frame by number.
    pub fn get(&self, id: FrameId) -> Option<&Frame> {
        self.cells.get(id.0 as usize)
    }

    /// Starts bringing these frames into the cache with what [`FrameData::find`] compares and the checksums, of the first object of each,
    /// all at once. Changes nothing.
    pub fn prefetch(&self, ids: impl Iterator<Item = u32>) {
        let first = |m: &FrameMember| {
            let sum = m.checksums.first().map_or(0, |sum| sum[0]);
            m.extent.bytes ^ u64::from(m.key.as_bytes()[0] ^ sum)
        };
        let touched = ids.fold(0, |sum, id| {
            sum ^ self.get(FrameId(id)).and_then(|f| f.data.members.first()).map_or(0, first)
        });
        std::hint::black_box(touched);
    }

    /// Starts bringing these frames into the cache, with all that dropping them looks at, all at once; `fingerprint` is told what the
    /// index knows their objects by. Changes nothing.
    pub fn prefetch_leaving(&self, ids: &[FrameId], mut fingerprint: impl FnMut(u128)) {
        for id in ids {
            self.cells.prefetch_to_write(id.0 as usize);
            self.keeper.prefetch(id.0 as usize);
        }
        self.touches.prefetch(ids.iter().map(|id| id.0));
        for frame in ids.iter().filter_map(|id| self.get(*id)) {
            match frame.sole() {
                Some((sole, _)) => fingerprint(sole),
                None => frame.data.members.iter().for_each(|m| fingerprint(m.fingerprint)),
            }
        }
    }

    /// A frame by number, to be changed.
    pub fn get_mut(&mut self, id: FrameId) -> Option<&mut Frame> {
        self.cells.place(id.0 as usize)?.as_mut()
    }

    /// A frame in a certain life, to be changed.
    pub fn get_ref(&mut self, frame: FrameRef) -> Option<&mut Frame> {
        self.get_mut(frame.id).filter(|f| f.serial == frame.serial)
    }

    /// Nobody enters a frame any more; whether nobody reads it, by the lock or without.
    pub fn close(&mut self, id: FrameId) -> bool {
        self.keeper.close(id.0 as usize);
        !self.is_read(id)
    }

    /// Whether anybody reads a frame.
    pub fn is_read(&self, id: FrameId) -> bool {
        self.readers(id) > 0
    }

    /// How many read a frame.
    pub fn readers(&self, id: FrameId) -> u64 {
        let counted = self.get(id).map_or(0, |f| f.readers);
        u64::from(counted) + u64::from(self.keeper.count(id.0 as usize))
    }

    /// Free a frame's number and extents; nothing may refer to either any more. Both are the caller's, if the frame has one extent of as
    /// many pages as `wanted` bytes take.
    pub fn free(&mut self, id: FrameId, space: &SharedSpace, wanted: Option<u64>) -> Option<Vacated> {
        let frame = self.cells.place(id.0 as usize).and_then(Option::take)?;
        let twice = mutant::on(Mutant::FrameFreedTwice);
        let fits = |extent: &Extent| wanted.and_then(|bytes| extent.of_as_many_pages(bytes));
        let taken = frame.sole().filter(|_| !twice).and_then(|(_, extent)| fits(&extent));
        match frame.sole() {
            _ if taken.is_some() => {}
            Some((_, extent)) => space.free(extent),
            None => frame.data.members.iter().for_each(|m| space.free(m.extent)),
        }
        if twice {
            frame.data.members.iter().for_each(|m| space.free(m.extent));
        }
        // With a planted bug somebody may still be inside: the number is not used again then.
        let kept = self.keeper.take(id.0 as usize);
        let number = kept.is_some().then_some(Number(id.0));
        if self.retired.len() < RETIRED_MAX {
            self.retired.extend(kept.into_iter().chain([frame.data]));
        }
        match (taken, number) {
            (Some(extent), Some(number)) => return Some(Vacated { extent, number }),
            // Not taken with a planted bug alone.
            (Some(extent), None) => space.free(extent),
            (None, number) => self.give_back(number),
        }
        None
    }

    /// See to it that some numbers are nobody's, for those who put in lanes: they make none. No more than there may be.
    pub fn spare_numbers(&mut self) {
        let mut free = self.free.lock();
        let more = if free.is_empty() { SPARE_NUMBERS.min(self.numbers - self.cells.len()) } else { 0 };
        free.extend((0..more).map(|_| self.cells.push() as u32));
        if more > 0 {
            // The first of them goes first.
            free.reverse();
        }
    }

    /// Take a number back. The next frame that is made in this section has it.
    pub fn give_back(&mut self, number: Option<Number>) {
        self.free.give_back(number);
    }

    /// What frames held that are gone is noted in `into` from here on; what was noted so far. Whoever lets go of it does so behind the lock:
    /// it was allocated by other threads, mostly.
    pub fn retire_into(&mut self, into: Vec<Arc<FrameData>>) -> Vec<Arc<FrameData>> {
        std::mem::replace(&mut self.retired, into)
    }

    /// All frames.
    pub fn iter(&self) -> impl Iterator<Item = (FrameId, &Frame)> {
        self.cells.iter().map(|(i, f)| (FrameId(i as u32), f))
    }
}

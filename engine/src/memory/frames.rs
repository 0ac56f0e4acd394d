//! Frames: pages in DRAM. A frame holds the objects of one put group, and comes, goes and is flushed as a
//! whole.
//!
//! Invariants (the first three under the core's lock):
//! - A frame being filled is known to its filler only: it is in no index entry, no policy, no queue.
//! - A frame with readers (views, links, the flusher) keeps its extents. One that was dropped meanwhile is
//!   dead: unreachable, and freed by its last reader.
//! - Serial numbers tell a frame from a later one that took its place.
//! - Gets enter a frame without the lock, by its number ([`Kept`]). What is dropped is closed to them behind the change of the
//!   index that takes it out of their sight, and freed when the last one inside has left: extents go back only
//!   with the value that those who are inside keep.

use std::sync::Arc;

use pagelith_io::huge;
use pagelith_io::kept::{Keeper, Kept};
use pagelith_layouts::checksum::Checksums;
use pagelith_layouts::ids::{Generation, NamespaceId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::dram::arena::{ArenaSpace, Extent};
use pagelith_tiers::policy::{FrameId, Recency, Touches};
use smallvec::SmallVec;

use crate::memory::index::FRAME_MAX;

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
    slots: Vec<Option<Frame>>,
    /// How many numbers there may be.
    numbers: usize,
    /// What those see that come without the lock.
    keeper: Keeper<FrameData>,
    free: Vec<u32>,
    serial: u64,
    touches: Arc<Touches>,
}

impl Frames {
    /// None yet, with room for `most` at a time, numbered below `numbers`; `touches` is told when each is asked for.
    pub fn with_room(most: usize, numbers: usize, touches: Arc<Touches>) -> Frames {
        let numbers = numbers.min(FRAME_MAX as usize + 1);
        let slots = huge::table(most.min(numbers));
        Frames { slots, numbers, keeper: Keeper::new(numbers), free: Vec::new(), serial: 0, touches }
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
        self.free.is_empty() && self.slots.len() >= self.numbers
    }

    /// Take a filled frame in; `None` if there are too many, or it has nothing.
    pub fn insert(&mut self, data: Arc<FrameData>, state: FrameState, recency: Recency) -> Option<FrameRef> {
        self.serial += 1;
        let first = data.members.first()?;
        let frame = Frame {
            serial: self.serial,
            fingerprint: first.fingerprint,
            extent: first.extent,
            members: u16::try_from(data.members.len()).unwrap_or(u16::MAX),
            data: data.clone(),
            state,
            readers: 0,
            dead: false,
            verified: false,
        };
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.slots.len() >= self.numbers => return None,
            None => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
        };
        if !self.keeper.fill(id as usize, data) {
            return None;
        }
        self.slots[id as usize] = Some(frame);
        self.touches.set(FrameId(id), recency);
        Some(FrameRef { id: FrameId(id), serial: self.serial })
    }

    /// A frame by number.
    pub fn get(&self, id: FrameId) -> Option<&Frame> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    /// A frame by number, to be changed.
    pub fn get_mut(&mut self, id: FrameId) -> Option<&mut Frame> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
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
    pub fn free(&mut self, id: FrameId, space: &mut ArenaSpace, wanted: Option<u64>) -> Option<Vacated> {
        let frame = self.slots.get_mut(id.0 as usize).and_then(Option::take)?;
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
        let number = self.keeper.take(id.0 as usize).map(|_| Number(id.0));
        match (taken, number) {
            (Some(extent), Some(number)) => return Some(Vacated { extent, number }),
            // Not taken with a planted bug alone.
            (Some(extent), None) => space.free(extent),
            (None, number) => self.give_back(number),
        }
        None
    }

    /// Take a number back. The next frame that is made in this section has it.
    pub fn give_back(&mut self, number: Option<Number>) {
        self.free.extend(number.map(|number| number.0));
    }

    /// All frames.
    pub fn iter(&self) -> impl Iterator<Item = (FrameId, &Frame)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(i, f)| f.as_ref().map(|f| (FrameId(i as u32), f)))
    }
}

//! Frames: groups in DRAM. A frame holds the objects of one group, which are inserted, evicted and
//! flushed together.
//!
//! Invariants (the first three under the core's lock):
//! - A frame that is being filled is private to the put: no index entry, policy or queue names it.
//! - A frame with readers (views, connections, the flusher) keeps its extents. If it is dropped
//!   meanwhile it is [`FrameState::Dead`] until its last reader frees it.
//! - `serial` distinguishes a frame from a later one with the same number.
//! - Gets enter a frame by its number without the lock ([`GuardedTable`]). A dropped frame is
//!   closed to new readers after the index no longer leads to it, and freed after the last reader
//!   left. Its extents are freed only together with the value that readers use.

use std::sync::Arc;

use pagelith_io::guarded_table::{GuardedTable, GuardedTableOwner};
use pagelith_io::hugepage;
use pagelith_layouts::checksum::Checksums;
use pagelith_layouts::ids::{Generation, NamespaceId, Sequence};
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_mutants::{self as mutant, Mutant};
use pagelith_tiers::dram::arena::{ArenaSpace, Extent};
use pagelith_tiers::policy::{FrameId, LastRequests, Recency};
use smallvec::SmallVec;

use crate::memory::index::FRAME_MAX;
use crate::memory::namespaces::KnownNamespaces;
use crate::memory::tenants::{QueuedFrame, Tenants};

/// Contents of a frame; immutable once it is filled.
#[derive(Clone, Debug)]
pub(crate) struct FrameData {
    pub namespace: NamespaceId,
    pub generation: Generation,
    pub sequence: Sequence,
    pub group_kind: GroupKind,
    /// Name of the base group that it is attached to, as in records; else 0.
    pub base_name: u64,
    /// An object of the base group, if this group was put since the store was opened. Otherwise it
    /// is not needed, or only record headers have it.
    pub base: Option<Box<ObjectKey>>,
    pub depth: u32,
    pub members: Members,
}

/// The objects of a frame. A single object and its checksums are in the frame's own allocation, so
/// that a get finds them in adjacent cache lines.
pub(crate) type Members = SmallVec<[FrameMember; 1]>;

/// One object of a frame.
#[derive(Clone, Debug)]
pub(crate) struct FrameMember {
    pub key: ObjectKey,
    /// The key's fingerprint in the index.
    pub fingerprint: u128,
    pub extent: Extent,
    pub checksums: Checksums,
}

impl FrameData {
    /// The member with this key; all bytes of the key are compared.
    pub fn find(&self, key: &ObjectKey, generation: Generation) -> Option<usize> {
        let member = self.members.iter().position(|m| m.key == *key)?;
        (self.generation == generation).then_some(member)
    }

    /// Whether it is visible only while its base group is.
    pub fn is_attached(&self) -> bool {
        self.group_kind == GroupKind::Attached
    }

    /// Whether all members are of one pool.
    pub fn has_one_pool(&self) -> bool {
        let mut pools = self.members.iter().map(|member| (member.key.role(), member.key.pool()));
        pools.next().is_some_and(|first| pools.all(|pool| pool == first))
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

/// State of a frame: its progress to SSD, until it is dropped.
///
/// | from | to | when | by |
/// | --- | --- | --- | --- |
/// | | `Unwritten` | its put makes it visible | `publish::insert_frame` |
/// | | `Evictable` | it is promoted from SSD | `promote::promote` |
/// | `Unwritten` | `Writing` | the flusher takes it | `JobWriter` |
/// | `Writing` | `Evictable` | its record is written | `Core::end_write` |
/// | `Writing` | `Unwritten` | its record must be appended again | `Core::requeue_front` |
/// | `Unwritten`, `Writing` | `Evictable` | it will not be written | `Core::end_write` |
/// | `Evictable` | `Unwritten` | it must be written after all | `Core::requeue_frame` |
/// | any | `Dead` | it is evicted, removed, cleared, replaced or damaged | `Core::drop_frame` |
/// | `Dead` | | its last reader leaves, and its extents are freed | `Core::free_if_unused` |
///
/// A frame is not written if admission refuses it, if the SSD tier takes no writes, or if its write
/// was given up.
///
/// Invariants:
/// - The eviction policy has the frames that are `Evictable`, and no others.
/// - `refused` is set only while it is `Evictable` and in the queue's list of refused frames.
/// - A live frame that the queue lists as visible and not queued yet is `Unwritten`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameState {
    /// Waits for its write, or for a repeated one.
    Unwritten,
    /// Being written.
    Writing,
    /// Written, or exempt from being written: may be evicted.
    Evictable,
    /// Dropped: no index entry, policy or queued write leads to it. Its last reader frees it.
    Dead,
}

/// A group in DRAM. One cache line, see the assertion below.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Frame {
    pub serial: u64,
    pub data: Arc<FrameData>,
    /// `fingerprint` and `extent` of the first object, and the number of objects. They let eviction
    /// of a single-object frame skip `data`, which another CPU core usually wrote.
    fingerprint: u128,
    extent: Extent,
    members: u16,
    pub state: FrameState,
    /// Readers that are added and released under the core's lock.
    pub readers: u32,
    /// Whether every byte in the arena was verified against the checksums since it was inserted.
    pub verified: bool,
    /// Whether admission keeps it off SSD.
    pub refused: bool,
}

const _: () = assert!(size_of::<Option<Frame>>() == 64);

impl Frame {
    /// Whether it was dropped.
    pub fn is_dead(&self) -> bool {
        self.state == FrameState::Dead
    }

    /// Fingerprint and extent of its object, if it has only one.
    pub fn single_object(&self) -> Option<(u128, Extent)> {
        (self.members == 1).then_some((self.fingerprint, self.extent))
    }

    /// Whether `matches` is true for the fingerprint of any of its objects.
    pub fn any_fingerprint(&self, mut matches: impl FnMut(u128) -> bool) -> bool {
        match self.single_object() {
            Some((fingerprint, _)) => matches(fingerprint),
            None => self.data.members.iter().any(|m| matches(m.fingerprint)),
        }
    }
}

/// An unused frame number. A thread that evicted a frame keeps its number for the frame that it
/// inserts next, because the number's table entries are in that CPU core's cache.
#[derive(Debug)]
pub(crate) struct FrameNumber(u32);

/// Extent and number of a frame that was freed for a waiting allocation.
pub(crate) struct FreedFrame {
    pub extent: Extent,
    pub number: FrameNumber,
}

/// Identifies a frame: its number, and the serial that distinguishes it from later frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrameRef {
    pub id: FrameId,
    pub serial: u64,
}

/// All frames.
pub(crate) struct Frames {
    slots: Vec<Option<Frame>>,
    /// Frame numbers are below this.
    numbers: usize,
    /// Frame data for readers without the lock.
    guarded_table: GuardedTableOwner<FrameData>,
    free: Vec<u32>,
    serial: u64,
    /// Number of objects in all frames.
    objects: u64,
    last_requests: Arc<LastRequests>,
    namespaces: Arc<KnownNamespaces>,
}

impl Frames {
    /// An empty table for `most` frames at a time, with numbers below `numbers`. `last_requests`
    /// holds the recency of each frame.
    pub fn with_capacity(
        most: usize,
        numbers: usize,
        last_requests: Arc<LastRequests>,
        namespaces: Arc<KnownNamespaces>,
    ) -> Frames {
        let numbers = numbers.min(FRAME_MAX as usize + 1);
        let slots = hugepage::table(most.min(numbers));
        Frames {
            slots,
            numbers,
            guarded_table: GuardedTableOwner::new(numbers),
            free: Vec::new(),
            serial: 0,
            objects: 0,
            last_requests,
            namespaces,
        }
    }

    /// Recency of the last request for each frame.
    pub fn last_requests(&self) -> &Arc<LastRequests> {
        &self.last_requests
    }

    /// The table that readers use without the lock.
    pub fn guarded_table(&self) -> GuardedTable<FrameData> {
        self.guarded_table.table()
    }

    /// Whether all frame numbers are in use.
    pub fn is_full(&self) -> bool {
        self.free.is_empty() && self.slots.len() >= self.numbers
    }

    /// Insert a filled frame; `None` if all numbers are in use, or if it has no objects.
    pub fn insert(
        &mut self,
        data: Arc<FrameData>,
        state: FrameState,
        recency: Recency,
        tenants: &mut Tenants,
    ) -> Option<FrameRef> {
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
            verified: false,
            refused: false,
        };
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.slots.len() >= self.numbers => return None,
            None => {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            }
        };
        self.namespaces.add(data.namespace);
        let counts = self.namespaces.counts(data.namespace);
        counts.into_iter().for_each(|counts| {
            counts.frame_inserted(data.members.len() as u64, data.bytes());
        });
        let (namespace, bytes) = (data.namespace, data.bytes());
        if !self.guarded_table.fill(id as usize, data) {
            return None;
        }
        self.objects += u64::from(frame.members);
        self.slots[id as usize] = Some(frame);
        self.last_requests.set(FrameId(id), recency);
        let (id, serial) = (FrameId(id), self.serial);
        let is_live = |queued: &QueuedFrame| {
            self.get(queued.id).is_some_and(|f| f.serial == queued.serial && !f.is_dead())
        };
        let queued = QueuedFrame { id, serial, request: recency.request };
        tenants.frame_inserted(namespace, queued, bytes, is_live);
        Some(FrameRef { id, serial })
    }

    /// A frame by number.
    pub fn get(&self, id: FrameId) -> Option<&Frame> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    /// A frame by number, mutable.
    pub fn get_mut(&mut self, id: FrameId) -> Option<&mut Frame> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    /// The frame with this number and serial, mutable.
    pub fn get_ref(&mut self, frame: FrameRef) -> Option<&mut Frame> {
        self.get_mut(frame.id).filter(|f| f.serial == frame.serial)
    }

    /// The frame with this number and serial, unless it was dropped.
    pub fn get_live(&mut self, frame: FrameRef) -> Option<&mut Frame> {
        self.get_ref(frame).filter(|f| !f.is_dead())
    }

    /// Refuse new readers of a frame; true if it has no reader, with or without the lock.
    pub fn close(&mut self, id: FrameId) -> bool {
        self.guarded_table.close(id.0 as usize);
        !self.has_readers(id)
    }

    /// Whether a frame has readers.
    pub fn has_readers(&self, id: FrameId) -> bool {
        self.readers(id) > 0
    }

    /// Number of a frame's readers, with and without the lock.
    pub fn readers(&self, id: FrameId) -> u64 {
        let counted = self.get(id).map_or(0, |f| f.readers);
        u64::from(counted) + u64::from(self.guarded_table.count(id.0 as usize))
    }

    /// Free a frame's number and extents, to which nothing may refer any more. Both are returned to
    /// the caller instead if the frame has one extent, of as many 4 KiB units as `wanted` bytes
    /// take.
    pub fn free(
        &mut self,
        id: FrameId,
        (space, tenants): (&mut ArenaSpace, &mut Tenants),
        wanted: Option<u64>,
    ) -> Option<FreedFrame> {
        let frame = self.slots.get_mut(id.0 as usize).and_then(Option::take)?;
        self.objects -= u64::from(frame.members);
        if !tenants.is_empty() {
            tenants.frame_freed(frame.data.namespace, frame.data.bytes());
        }
        if self.namespaces.is_counting() {
            let data = &frame.data;
            let counts = self.namespaces.counts(data.namespace);
            counts.into_iter().for_each(|counts| {
                counts.frame_freed(data.members.len() as u64, data.bytes());
            });
        }
        let twice = mutant::on(Mutant::FrameFreedTwice);
        let fits = |extent: &Extent| wanted.and_then(|bytes| extent.resized_in_place(bytes));
        let taken = frame.single_object().filter(|_| !twice).and_then(|(_, extent)| fits(&extent));
        match frame.single_object() {
            _ if taken.is_some() => {}
            Some((_, extent)) => space.free(extent),
            None => frame.data.members.iter().for_each(|m| space.free(m.extent)),
        }
        if twice {
            frame.data.members.iter().for_each(|m| space.free(m.extent));
        }
        // With a planted bug readers may remain: the number is not reused then.
        let number = self.guarded_table.take(id.0 as usize).map(|_| FrameNumber(id.0));
        match (taken, number) {
            (Some(extent), Some(number)) => return Some(FreedFrame { extent, number }),
            // The number was not reclaimed, which only happens with a planted bug.
            (Some(extent), None) => space.free(extent),
            (None, number) => self.give_back(number),
        }
        None
    }

    /// Return a number. The next frame inserted in this critical section gets it.
    pub fn give_back(&mut self, number: Option<FrameNumber>) {
        self.free.extend(number.map(|number| number.0));
    }

    /// Number of objects in all frames.
    pub fn objects(&self) -> u64 {
        self.objects
    }

    /// Number of readers of at most `most` frames from number `from`; `None` if there are none.
    pub fn readers_of(&self, from: usize, most: usize) -> Option<u64> {
        let numbers = from..self.slots.len().min(from + most);
        let readers = |number| self.readers(FrameId(number as u32));
        (!numbers.is_empty()).then(|| numbers.map(readers).sum())
    }

    /// All frames.
    pub fn iter(&self) -> impl Iterator<Item = (FrameId, &Frame)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(i, f)| f.as_ref().map(|f| (FrameId(i as u32), f)))
    }
}

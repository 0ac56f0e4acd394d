//! Types of a put: its kind and origin, its objects before their bytes are read, and the arena
//! memory reserved for them.

use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_tiers::dram::arena::Extent;

use crate::api::error::Error;
use crate::memory::frames::{FrameNumber, FrameRef};
use crate::memory::index::SsdPlace;
use crate::rpc::removal_fence::FenceEpoch;
use crate::state::core::Core;
use crate::state::shared::Shared;

/// How the objects of a put form a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutKind<'a> {
    /// One standalone object.
    Single,
    /// A page's base group.
    Base,
    /// Objects attached to the base group that contains this key.
    Attached(&'a ObjectKey),
}

/// Exact location of an object. If it differs later, the object was put, moved or written since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Frame(FrameRef),
    Ssd(SsdPlace),
}

impl PutKind<'_> {
    /// The kind of the frame until the put is published, when the base is looked up.
    pub fn initial_group_kind(self) -> GroupKind {
        match self {
            PutKind::Single => GroupKind::Single,
            PutKind::Base | PutKind::Attached(_) => GroupKind::Base,
        }
    }
}

/// An object to be admitted, before its bytes are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectSize {
    pub key: ObjectKey,
    /// In bytes; `None` for an object of an open group that was not put: the store must have it.
    pub length: Option<u64>,
    /// Its bytes are in the arena, so that no memory is reserved for it.
    pub in_arena: bool,
}

/// Origin of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutOrigin {
    /// A caller or a client put it. It is offered to the peer that owns its page.
    Put,
    /// Another store, of which this store is a peer, offered it. It is offered to no further peer.
    /// It is not stored if a removal began or ended since the epoch, or if the epoch is `None`: a
    /// removal was in progress then. The offering store may send its removals over a newer link,
    /// which can overtake the offer.
    Offered(Option<FenceEpoch>),
    /// Fetched from a peer by a get: it does not count as a put, and is offered to no peer.
    Fetched,
}

/// Memory reserved for a group.
#[derive(Debug, Default)]
pub(crate) struct Reservation {
    /// One for each object; `None` if the object is in the arena already.
    pub extents: Vec<Option<Extent>>,
    /// Number of a frame that was evicted for it, to be reused for the group's frame.
    pub number: Option<FrameNumber>,
}

impl Reservation {
    /// An empty reservation for a group of `objects` objects.
    pub fn with_capacity(objects: usize) -> Reservation {
        Reservation { extents: Vec::with_capacity(objects), number: None }
    }

    /// Free the memory.
    pub fn give_back(&mut self, core: &mut Core) {
        self.extents.drain(..).flatten().for_each(|e| core.space.free(e));
        core.frames.give_back(self.number.take());
    }
}

/// Reserve memory for every object of the group that is not in the arena. If there is not enough,
/// reserve none and return false.
pub(crate) fn reserve_group(
    core: &mut Core,
    group: &[ObjectSize],
    reservation: &mut Reservation,
) -> bool {
    for object in group {
        let one = match object.in_arena {
            true => Some(None),
            false => reserve_extent_with_number(
                core,
                object.length.unwrap_or(0),
                &mut reservation.number,
            )
            .map(Some),
        };
        match one {
            Some(extent) => reservation.extents.push(extent),
            None => {
                reservation.give_back(core);
                return false;
            }
        }
    }
    true
}

/// Reserve memory for one object, and evict frames if necessary.
pub(crate) fn reserve_extent(core: &mut Core, length: u64) -> Option<Extent> {
    let mut number = None;
    let extent = reserve_extent_with_number(core, length, &mut number);
    core.frames.give_back(number);
    extent
}

/// As [`reserve_extent`]; stores the number of the evicted frame in `number`.
fn reserve_extent_with_number(
    core: &mut Core,
    length: u64,
    number: &mut Option<FrameNumber>,
) -> Option<Extent> {
    loop {
        if let Some(extent) = core.space.alloc(length) {
            return Some(extent);
        }
        if let Some(left) = core.evict_for(length)? {
            core.frames.give_back(number.replace(left.number));
            return Some(left.extent);
        }
    }
}

/// Drop expired pins and groups, which hold memory. Without an SSD tier no background task does it.
pub(crate) fn expire(shared: &Shared, core: &mut Core) {
    let now = shared.now();
    core.pins.expire(now);
    core.drop_expired_groups(now);
}

/// Queue the frames of a batch for the flusher, the last first. Thus the first page of a chain is
/// younger in the log than later pages, and is reclaimed after them.
pub(crate) fn enqueue(core: &mut Core, frames: &mut Vec<FrameRef>) {
    if let Some(ssd) = core.ssd.as_mut() {
        ssd.enqueue(frames.drain(..));
    }
    frames.clear();
}

/// The error for an object that belongs to one group and is put with another.
pub(crate) fn group_conflict<'a>(
    key: &ObjectKey,
    has: &[ObjectKey],
    given: impl Iterator<Item = &'a ObjectKey>,
) -> Error {
    let (has, given) = (names(has.iter()), names(given));
    Error::invalid(format!(
        "an object is in a group of other objects key={key} has={has} given={given}"
    ))
}

/// Pool, component and shard of each key.
fn names<'a>(keys: impl Iterator<Item = &'a ObjectKey>) -> String {
    let name = |key: &ObjectKey| {
        let text = key.to_string();
        text.splitn(3, '/').nth(2).unwrap_or_default().to_owned()
    };
    keys.map(name).collect::<Vec<_>>().join(",")
}

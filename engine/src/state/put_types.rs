//! What a put knows of its objects before their bytes, and the memory that is reserved for them.

use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_tiers::dram::arena::Extent;

use crate::api::error::Error;
use crate::memory::frames::{FrameNumber, FrameRef};
use crate::memory::index::SsdPlace;
use crate::rpc::removal_fence::FenceEpoch;
use crate::state::core::Core;
use crate::state::shared::Shared;

/// How the objects of a put belong together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    /// One object by itself.
    Single,
    /// A page's base group.
    Base,
    /// Attached to the base group that this key is of.
    Attached(&'a ObjectKey),
}

/// Where an object is, exactly: what is found elsewhere later was put, moved or written since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Frame(FrameRef),
    Ssd(SsdPlace),
}

impl Kind<'_> {
    /// As a frame has it before anything is known of its base.
    pub fn of_frame(self) -> GroupKind {
        match self {
            Kind::Single => GroupKind::Single,
            Kind::Base | Kind::Attached(_) => GroupKind::Base,
        }
    }
}

/// What the store has to know of an object before it looks at its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    pub key: ObjectKey,
    /// In bytes; `None` for an object of an open group that was not put: it has to be here already.
    pub length: Option<u64>,
    pub in_arena: bool,
}

/// Where a group comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    /// A caller or a client put it: the peer that owns its page is offered it.
    Put,
    /// A store offered it that has this one for a peer, at this moment if nothing was being removed then: no other is offered it, and it is
    /// not stored if a removal began or ended meanwhile. What that store tells of its own removals may come over a newer link.
    OfStore(Option<FenceEpoch>),
    /// A peer sent it: it is nobody's put, and no peer is offered it.
    Fetched,
}

/// Where a group's memory is noted.
#[derive(Debug, Default)]
pub(crate) struct Room {
    /// For those that are not in the arena yet.
    pub extents: Vec<Option<Extent>>,
    /// That of a frame which made room for it.
    pub number: Option<FrameNumber>,
}

impl Room {
    /// Of a group of so many objects.
    pub fn of(objects: usize) -> Room {
        Room { extents: Vec::with_capacity(objects), number: None }
    }

    /// It is not needed.
    pub fn give_back(&mut self, core: &mut Core) {
        self.extents.drain(..).flatten().for_each(|e| core.space.free(e));
        core.frames.give_back(self.number.take());
    }
}

/// Memory for every object of the group that has none; none, and false, if there is not enough.
pub(crate) fn set_aside(core: &mut Core, group: &[Size], room: &mut Room) -> bool {
    for object in group {
        let one = match object.in_arena {
            true => Some(None),
            false => set_aside_in(core, object.length.unwrap_or(0), &mut room.number).map(Some),
        };
        match one {
            Some(extent) => room.extents.push(extent),
            None => {
                room.give_back(core);
                return false;
            }
        }
    }
    true
}

/// Memory for one object, evicting what may go.
pub(crate) fn set_aside_one(core: &mut Core, length: u64) -> Option<Extent> {
    let mut number = None;
    let extent = set_aside_in(core, length, &mut number);
    core.frames.give_back(number);
    extent
}

/// The same; a number that it leaves is put there.
fn set_aside_in(core: &mut Core, length: u64, number: &mut Option<FrameNumber>) -> Option<Extent> {
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

/// What holds memory back only until its time is up is let go: without an SSD tier nobody else sees to it.
pub(crate) fn expire(shared: &Shared, core: &mut Core) {
    let now = shared.now();
    core.pins.expire(now);
    core.drop_expired_groups(now);
}

/// Queue the frames of a batch for the flusher, the last first: heads of chains become younger in the log
/// than their children, so that they outlive them.
pub(crate) fn enqueue(core: &mut Core, frames: &mut Vec<FrameRef>) {
    if let Some(ssd) = core.ssd.as_mut() {
        ssd.enqueue(frames.drain(..));
    }
    frames.clear();
}

/// The error for an object that is of one group and is put with another.
pub(crate) fn group_conflict<'a>(
    key: &ObjectKey,
    has: &[ObjectKey],
    given: impl Iterator<Item = &'a ObjectKey>,
) -> Error {
    let (has, given) = (names(has.iter()), names(given));
    Error::invalid(format!("an object is in a group of other objects key={key} has={has} given={given}"))
}

/// Pool, component and shard of each key.
fn names<'a>(keys: impl Iterator<Item = &'a ObjectKey>) -> String {
    let name = |key: &ObjectKey| {
        let text = key.to_string();
        text.splitn(3, '/').nth(2).unwrap_or_default().to_owned()
    };
    keys.map(name).collect::<Vec<_>>().join(",")
}

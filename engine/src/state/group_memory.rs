//! Arena memory reserved for the objects of a group.

use pagelith_tiers::dram::arena::Extent;

use crate::api::error::Error;
use crate::memory::frames::FrameNumber;
use crate::state::core::Core;
use crate::state::put_spec::ObjectSize;

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
        self.extents.drain(..).flatten().for_each(|e| core.dram.space.free(e));
        core.dram.frames.give_back(self.number.take());
    }
}

/// The error of a put without memory for `bytes` bytes.
pub(crate) fn no_room(bytes: u64) -> Error {
    let cause = "its frames are unwritten, pinned or being read";
    Error::busy(format!("no room in the arena: {cause}; retry, or raise dram.bytes bytes={bytes}"))
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
    core.dram.frames.give_back(number);
    extent
}

/// As [`reserve_extent`]; stores the number of the evicted frame in `number`.
fn reserve_extent_with_number(
    core: &mut Core,
    length: u64,
    number: &mut Option<FrameNumber>,
) -> Option<Extent> {
    loop {
        if let Some(extent) = core.dram.space.alloc(length) {
            return Some(extent);
        }
        if let Some(left) = core.evict_for(length)? {
            core.dram.frames.give_back(number.replace(left.number));
            return Some(left.extent);
        }
    }
}

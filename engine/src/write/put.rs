//! The write path: admit, copy with checksums, publish.
//!
//! 1. [`admit`](admit::admit): under the lock, separate present objects from new ones, and reserve
//!    memory, with eviction if necessary. If the arena is full, the outcome is `Busy`; nothing
//!    waits and nothing grows.
//! 2. [`prepare`](copy::prepare) and [`fill`](copy::GroupCopy::fill): without the lock, in the
//!    caller's thread, copy the bytes into the arena once and compute the block checksums.
//! 3. [`confirm`](copy::PreparedGroup::confirm) and [`publish`](publish::publish): under the lock,
//!    make a group that was copied completely visible. It is not published if its namespace was
//!    cleared, or if another thread published the objects first. The caller queues the frames for
//!    the flusher later.
//!
//! Most objects that are put are new. [`new_keys`] detects them first, without the lock.
//!
//! The groups of a batch take each step together, in runs ([`put_batch`](crate::write::put_batch)).
//! One critical section publishes a run and admits the next one: the lock is taken once for each
//! run.
//!
//! A put never changes the bytes of a visible object. If an object of a group is present as a
//! standalone object, the group *adopts* it: its bytes are read and stored again with the group.

pub(crate) mod admit;
pub(crate) mod client_memory;
pub(crate) mod copy;
pub(crate) mod new_keys;
pub(crate) mod payload;
pub(crate) mod publish;

use std::sync::Arc;

use pagelith_layouts::align::align_up;
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::footer;
use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{self, MEMBERS_MAX, OBJECT_BYTES_MAX};

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::PutOutcome;
use crate::memory::frames::{FrameData, FrameMember, FrameRef, Members};
use crate::state::core::Core;
use crate::state::group_memory::Reservation;
use crate::state::put_spec::{Location, ObjectSize, PutKind, PutOrigin};
use crate::state::shared::Shared;

/// A group that has memory reserved and is not visible yet.
pub(crate) struct AdmittedGroup {
    generation: Generation,
    /// Fingerprints of its objects, for the index.
    fingerprints: Vec<u128>,
    reservation: Reservation,
    /// Locations of the objects that are present and will be replaced by the group; empty if none
    /// is present.
    existing: Vec<Option<Location>>,
    /// Which of those are visible, so that the group adopts their bytes; empty if none is.
    pub adopts: Vec<bool>,
    /// ID of the open group, if the put commits one.
    pub open_group: Option<u64>,
    pub origin: PutOrigin,
}

impl AdmittedGroup {
    /// Whether it replaces present objects.
    pub fn has_existing(&self) -> bool {
        !self.existing.is_empty()
    }

    /// Free the reserved memory: the group is not stored.
    pub fn give_back(mut self, core: &mut Core) {
        self.reservation.give_back(core);
    }
}

/// Result of publishing a group. The caller no longer owns its memory.
pub(crate) struct Published {
    pub outcome: PutOutcome,
    /// The frames to be written to SSD: its own, and those of attached groups that waited for it.
    pub frames: Vec<FrameRef>,
}

impl Published {
    /// An outcome without a new frame.
    fn without_frames(outcome: PutOutcome) -> Published {
        Published { outcome, frames: Vec::new() }
    }
}

/// A group that is not published now. The caller owns the members, which are in the arena, in the
/// given order.
pub(crate) struct ReturnedGroup {
    pub error: Error,
    pub members: Vec<FrameMember>,
}

impl ReturnedGroup {
    /// The only reference to the group's data must be this one.
    fn new(error: Error, data: Arc<FrameData>) -> ReturnedGroup {
        ReturnedGroup { error, members: into_members(data).into_vec() }
    }

    /// Free the members.
    pub fn free(self, core: &mut Core) {
        self.members.into_iter().for_each(|m| core.dram.space.free(m.extent));
    }
}

/// The objects of a group that is not visible; the caller has the only reference.
fn into_members(data: Arc<FrameData>) -> Members {
    Arc::try_unwrap(data).map(|data| data.members).unwrap_or_default()
}

/// Check the rules that do not depend on the store's state. Each error names the rule and the
/// value.
pub(crate) fn check(shared: &Shared, kind: PutKind<'_>, group: &[ObjectSize]) -> Result<()> {
    let Some(ObjectSize { key: first, .. }) = group.first() else {
        return Err(Error::invalid("a group has no object"));
    };
    for object in group {
        check_object(shared, object, first)?;
    }
    if let (PutKind::Single, [ObjectSize { length: Some(length), .. }]) = (kind, group) {
        return check_bytes(shared, first, &[*length]);
    }
    let keys: Vec<ObjectKey> = group.iter().map(|o| o.key).collect();
    check_keys(shared, kind, &keys)?;
    check_bytes(shared, first, &group.iter().filter_map(|o| o.length).collect::<Vec<_>>())
}

/// Rules for a single object of a group.
pub(crate) fn check_object(shared: &Shared, object: &ObjectSize, first: &ObjectKey) -> Result<()> {
    let ObjectSize { key, length, .. } = object;
    let max = shared.object_bytes_max.min(OBJECT_BYTES_MAX);
    if *length == Some(0) {
        return Err(Error::invalid(format!("object has no bytes key={key} length=0")));
    }
    if let Some(length) = length.filter(|length| *length > max) {
        return Err(Error::invalid(format!(
            "object is too large; raise ssd.segment_bytes or dram.bytes key={key} length={length} \
             max={max}"
        )));
    }
    if !key.same_page(first) {
        return Err(Error::invalid(format!(
            "a group has objects of two pages key={key} other={first}"
        )));
    }
    Ok(())
}

/// Rules for the keys of a group.
pub(crate) fn check_keys(shared: &Shared, kind: PutKind<'_>, keys: &[ObjectKey]) -> Result<()> {
    let (objects, most) = (keys.len(), MEMBERS_MAX);
    if objects > most {
        return Err(Error::invalid(format!(
            "a group has too many objects objects={objects} max={most}"
        )));
    }
    for (i, key) in keys.iter().enumerate() {
        if keys[..i].contains(key) {
            return Err(Error::invalid(format!("a group has a key twice key={key}")));
        }
        if let PutKind::Attached(base) = kind {
            if !key.same_page(base) {
                return Err(Error::invalid(format!(
                    "base is of another page key={key} base={base}"
                )));
            }
            if key == base {
                return Err(Error::invalid(format!("an object is attached to itself key={key}")));
            }
        }
    }
    if let Some(volume) = &shared.ssd.volume {
        // A group is written by one operation. Its parts are the objects, the record's header and
        // the segment's header.
        let most = volume.disk.facts().parts_max.saturating_sub(2);
        if objects > most {
            return Err(Error::invalid(format!(
                "a group has more objects than a write has parts objects={objects} max={most}"
            )));
        }
    }
    Ok(())
}

/// Rules for the size of a group with objects of these lengths. Each length was checked against the
/// largest object.
pub(crate) fn check_bytes(shared: &Shared, first: &ObjectKey, lengths: &[u64]) -> Result<()> {
    let objects = lengths.len() as u64;
    if let Some(volume) = &shared.ssd.volume {
        let bytes = record::record_bytes(lengths.iter().copied(), BLOCK_BYTES);
        let max = footer::record_bytes_max(volume.geometry.segment_bytes, objects);
        if bytes > max {
            let detail = format!(
                "group is larger than a segment's payload; raise ssd.segment_bytes key={first} \
                 bytes={bytes} max={max}"
            );
            return Err(Error::invalid(detail));
        }
    }
    let bytes: u64 = lengths.iter().map(|length| align_up(*length)).sum();
    let max = shared.config.arena_bytes();
    if bytes > max {
        let detail = format!(
            "group is larger than the arena; raise dram.bytes key={first} bytes={bytes} max={max}"
        );
        return Err(Error::invalid(detail));
    }
    Ok(())
}

/// The error for received bytes whose checksums differ from those sent with them.
pub(crate) fn checksum_mismatch(key: &ObjectKey) -> Error {
    let detail = format!("received bytes do not match the checksums sent with them key={key}");
    Error::new(ErrorKind::Unavailable, detail)
}

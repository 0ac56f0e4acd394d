//! The write path: look, copy with checksums, publish.
//!
//! 1. [`admit`](admit::admit): under the lock, what is present is told apart from what is new, and memory is
//!    set aside, evicting where needed. A full arena answers `Busy` here; nothing waits and nothing grows.
//! 2. [`prepare`](copied::prepare) and [`fill`](copied::GroupCopy::fill): outside the lock, in the caller's thread, one copy into the arena and the block checksums.
//! 3. [`publish`](publish::publish): under the lock again, the group becomes visible as a whole, unless its
//!    namespace was cleared or somebody else was first meanwhile; then it is queued for the flusher.
//!
//! What is new is told apart without the lock first ([`fresh`]), since that is what most of what is put is.
//!
//! Groups of a batch take each step together, as many as [`run`](crate::write::put_batch) lets, and are made visible in the section in
//! which the next are admitted: the lock is met once a run.
//!
//! What is visible never changes its bytes by a put: an object of a group that was put by itself before is
//! *adopted*, its bytes read and stored again with the group's.

pub(crate) mod admit;
pub(crate) mod client_memory;
pub(crate) mod copied;
pub(crate) mod new_keys;
pub(crate) mod publish;

use pagelith_layouts::align::align_up;
use pagelith_layouts::checksum::BLOCK_BYTES;
use pagelith_layouts::footer;
use pagelith_layouts::ids::Generation;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{self, MEMBERS_MAX, OBJECT_BYTES_MAX};

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::outcome::PutOutcome;
use crate::memory::frames::{FrameMember, FrameRef};
use crate::state::core::Core;
use crate::state::put_types::{Location, PutOrigin, PutKind, Reservation, ObjectSize};
use crate::state::shared::Shared;

/// A group with memory of its own, invisible so far.
pub(crate) struct Admitted {
    generation: Generation,
    /// What the index will know its objects by.
    fingerprints: Vec<u128>,
    reservation: Reservation,
    /// Where those of them are that are here already, and give way to the group; empty if none is.
    existing: Vec<Option<Location>>,
    /// Which of those are seen, so that their bytes are the group's; empty if none is.
    pub adopts: Vec<bool>,
    /// The open group that is committed, if it is one.
    pub open_group: Option<u64>,
    pub origin: PutOrigin,
}

impl Admitted {
    /// Whether something is here that gives way to it.
    pub fn has_existing(&self) -> bool {
        !self.existing.is_empty()
    }

    /// Nothing will be stored: free what was set aside.
    pub fn give_back(mut self, core: &mut Core) {
        self.reservation.give_back(core);
    }
}

/// What became of a group that was copied.
pub(crate) enum PublishResult {
    /// That, and these frames are to be written.
    Done(PutOutcome, Vec<FrameRef>),
    /// Not now. All of it lies in the arena, in the order given, and is the caller's.
    Returned(Error, Vec<FrameMember>),
}

/// Check what does not depend on the store's state: every rule names what it refuses.
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

/// The rules for an object of a group by itself.
pub(crate) fn check_object(shared: &Shared, object: &ObjectSize, first: &ObjectKey) -> Result<()> {
    let ObjectSize { key, length, .. } = object;
    let max = shared.object_bytes_max.min(OBJECT_BYTES_MAX);
    if *length == Some(0) {
        return Err(Error::invalid(format!("object has no bytes key={key} length=0")));
    }
    if let Some(length) = length.filter(|length| *length > max) {
        return Err(Error::invalid(format!("object is too large key={key} length={length} max={max}")));
    }
    if !key.same_page(first) {
        return Err(Error::invalid(format!("a group has objects of two pages key={key} other={first}")));
    }
    Ok(())
}

/// The rules for which objects make a group.
pub(crate) fn check_keys(shared: &Shared, kind: PutKind<'_>, keys: &[ObjectKey]) -> Result<()> {
    let (objects, most) = (keys.len(), MEMBERS_MAX);
    if objects > most {
        return Err(Error::invalid(format!("a group has too many objects objects={objects} max={most}")));
    }
    for (i, key) in keys.iter().enumerate() {
        if keys[..i].contains(key) {
            return Err(Error::invalid(format!("a group has a key twice key={key}")));
        }
        if let PutKind::Attached(base) = kind {
            if !key.same_page(base) {
                return Err(Error::invalid(format!("base is of another page key={key} base={base}")));
            }
            if key == base {
                return Err(Error::invalid(format!("an object is attached to itself key={key}")));
            }
        }
    }
    if let Some(volume) = &shared.volume {
        // One write takes a group whole: each object is a part, and so are its header and the segment's head.
        let most = volume.disk.facts().parts_max.saturating_sub(2);
        if objects > most {
            return Err(Error::invalid(format!(
                "a group has more objects than a write has parts objects={objects} max={most}"
            )));
        }
    }
    Ok(())
}

/// The rules for how large a group of objects of these lengths may be; each is at most the largest object.
pub(crate) fn check_bytes(shared: &Shared, first: &ObjectKey, lengths: &[u64]) -> Result<()> {
    let objects = lengths.len() as u64;
    if let Some(volume) = &shared.volume {
        let bytes = record::record_bytes(lengths.iter().copied(), BLOCK_BYTES);
        let max = footer::record_bytes_max(volume.geometry.segment_bytes, objects);
        if bytes > max {
            let detail =
                format!("group is larger than a segment's payload key={first} bytes={bytes} max={max}");
            return Err(Error::invalid(detail));
        }
    }
    let bytes: u64 = lengths.iter().map(|length| align_up(*length)).sum();
    let max = shared.config.arena_bytes();
    if bytes > max {
        let detail = format!("group is larger than the arena key={first} bytes={bytes} max={max}");
        return Err(Error::invalid(detail));
    }
    Ok(())
}

/// Bytes came that are not those that were to come.
pub(crate) fn checksum_mismatch(key: &ObjectKey) -> Error {
    let detail = format!("bytes arrived that do not have the checksums sent with them key={key}");
    Error::new(ErrorKind::Unavailable, detail)
}

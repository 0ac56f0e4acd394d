//! The copy of a put: each object is copied once into the arena, with the checksums of its blocks.
//!
//! All groups of a run are [prepared](prepare) first, and then [filled](GroupCopy::fill) one after
//! the other. The data of a group is built in its final place before its bytes are copied; after
//! the copy only its checksums are written. Reason: non-temporal stores stay queued for a while
//! after a copy. A load that spans several smaller earlier stores, or an atomic read-modify-write,
//! waits until that queue is empty
//! ([0065](../../../docs/decisions/0065-what-is-moved-behind-a-copy.md)).

use std::sync::Arc;

use pagelith_io::buffer::Part;
use pagelith_io::hashed_copy::Copier;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums, block_count};
use pagelith_layouts::ids::Sequence;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_tiers::dram::arena::ArenaMemory;
use pagelith_tiers::policy::Recency;

use super::Admitted;
use super::client_memory::ClientPayload;
use crate::api::error::{Error, ErrorKind};
use crate::memory::frames::{FrameData, FrameMember, FrameNumber, Members};
use crate::state::core::Core;
use crate::state::frame_access::Unpublished;
use crate::state::group_memory::Reservation;
use crate::state::put_spec::{Location, PutOrigin};
use crate::state::reserve;

/// Source of one object of a group to be put.
pub(crate) enum MemberSource {
    /// To be copied.
    ToCopy(ObjectKey),
    /// Already in the arena, in an open group.
    InArena(Box<FrameMember>),
    /// Already in the arena, in a filled reservation.
    Filled(ObjectKey, reserve::FilledReservation),
}

/// Location of the bytes of an object to be copied.
#[derive(Clone, Copy)]
pub(crate) enum CopySource<'a> {
    /// In the caller's memory.
    Caller(&'a [Part]),
    /// Read from the location of the single object that the group adopts.
    Adopted(&'a [u8]),
    /// In a client's shared memory.
    Client(&'a ClientPayload),
}

/// A group whose bytes are in the arena, or about to be copied there. It is not visible yet.
pub(crate) struct CopiedGroup {
    /// The data of the future frame, except its sequence number and its base.
    pub(crate) data: Arc<FrameData>,
    pub(crate) number: Option<FrameNumber>,
    /// From [`Admitted`].
    pub(crate) existing: Vec<Option<Location>>,
    pub(crate) open_group: Option<u64>,
    /// From [`Admitted`].
    pub(crate) origin: PutOrigin,
    /// All objects are in the arena, or have memory there to be copied to.
    pub(crate) complete: bool,
    /// Index of an object whose copy does not have the client's checksums.
    pub(crate) mismatch: Option<usize>,
}

/// The copy of a group's objects. Objects without checksums are still to be copied: every object
/// has at least one block.
pub(crate) struct GroupCopy<'a> {
    members: &'a mut Members,
    complete: &'a mut bool,
    mismatch: &'a mut Option<usize>,
}

impl CopiedGroup {
    /// The objects to be copied. `None` if a part of the group is missing, or if its data is
    /// shared: nothing is stored then, see [`CopiedGroup::is_complete`].
    pub fn begin_copy(&mut self) -> Option<GroupCopy<'_>> {
        let CopiedGroup { data, complete, mismatch, .. } = self;
        let members = &mut Arc::get_mut(data)?.members;
        complete.then_some(GroupCopy { members, complete, mismatch })
    }

    /// Whether the checksums of the objects are `sums`, in this order.
    pub fn has_checksums<'a>(&self, mut sums: impl Iterator<Item = &'a Checksums>) -> bool {
        self.is_complete()
            && self.matches_checksums()
            && self.data.members.iter().all(|m| sums.next() == Some(&m.checksums))
    }

    /// Whether all objects are in the arena. An object that was not copied has no checksums.
    pub fn is_complete(&self) -> bool {
        self.complete && self.data.members.iter().all(|m| !m.checksums.is_empty())
    }

    /// Whether each object has the checksums that its client sent.
    pub fn matches_checksums(&self) -> bool {
        self.mismatch.is_none()
    }

    /// The error for the object with wrong checksums, if there is one.
    pub fn mismatch_error(&self) -> Option<Error> {
        let member = self.data.members.get(self.mismatch?);
        let no_member = || Error::new(ErrorKind::Internal, "a group without objects");
        Some(member.map_or_else(no_member, |m| super::checksum_mismatch(&m.key)))
    }

    /// Free its memory: the group is not published.
    pub fn give_back(self, core: &mut Core) {
        self.data.members.iter().for_each(|m| core.dram.space.free(m.extent));
        core.dram.frames.give_back(self.number);
    }
}

/// Build the data of a group of the page of this object, to be filled by
/// [`CopiedGroup::begin_copy`]. `kind` is single or base; an attached group becomes attached when
/// it is published.
pub(crate) fn prepare(
    kind: GroupKind,
    page: &ObjectKey,
    group: impl ExactSizeIterator<Item = MemberSource>,
    admitted: Admitted,
    at: Recency,
) -> CopiedGroup {
    let Admitted { generation, fingerprints, reservation, existing, open_group, origin, .. } =
        admitted;
    let Reservation { extents, number } = reservation;
    let mut members = Members::with_capacity(group.len());
    let mut complete = true;
    for ((object, extent), fingerprint) in group.zip(extents).zip(fingerprints) {
        let member = match (object, extent) {
            (MemberSource::InArena(member), _) => Some(*member),
            (MemberSource::Filled(key, filled), _) => filled.into_member(key, fingerprint),
            (MemberSource::ToCopy(key), Some(extent)) => {
                let blocks = block_count(extent.bytes, BLOCK_BYTES);
                let checksums = Checksums::with_capacity(blocks as usize);
                Some(FrameMember { key, fingerprint, extent, checksums })
            }
            (MemberSource::ToCopy(_), None) => None,
        };
        match member {
            Some(member) => members.push(member),
            None => complete = false,
        }
    }
    let data = FrameData {
        namespace: page.namespace(),
        generation,
        sequence: Sequence(0),
        group_kind: kind,
        base_group: 0,
        base: None,
        depth: at.depth,
        members,
    };
    CopiedGroup {
        data: Arc::new(data),
        number,
        existing,
        open_group,
        origin,
        complete,
        mismatch: None,
    }
}

impl GroupCopy<'_> {
    /// Copy the objects without checksums. `bytes` returns the source of an object by its index.
    /// The group may be published only after the copier is dropped.
    pub fn fill<'b>(
        &mut self,
        memory: &ArenaMemory,
        copier: &mut Copier,
        mut bytes: impl FnMut(usize) -> CopySource<'b>,
    ) {
        let GroupCopy { members, complete, mismatch } = self;
        for (at, member) in members.iter_mut().enumerate().filter(|(_, m)| m.checksums.is_empty()) {
            let (to, sums) = (Unpublished::new(member.extent), &mut member.checksums);
            match bytes(at) {
                CopySource::Client(payload) => {
                    if !payload.copy(&to, memory, copier, sums) {
                        **mismatch = Some(at);
                    }
                }
                CopySource::Caller(parts) => {
                    let slices: Vec<&[u8]> = parts.iter().map(Part::bytes).collect();
                    **complete &= to.fill_by(memory, copier, &slices, sums);
                }
                CopySource::Adopted(bytes) => {
                    **complete &= to.fill_by(memory, copier, &[bytes], sums)
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pagelith_layouts::ids::{Generation, NamespaceId, PrefixHash};
    use pagelith_layouts::key::Role;
    use pagelith_layouts::shard::Shard;
    use pagelith_tiers::dram::arena::Extent;

    use super::*;

    /// A prepared group of one object.
    fn prepared() -> CopiedGroup {
        let key = ObjectKey::new(
            NamespaceId([7; 16]),
            PrefixHash([7; 32]),
            Role::Target,
            "kv",
            "k",
            Shard::Whole,
        );
        let mut members = Members::new();
        let (extent, checksums) = (Extent { first_page: 0, bytes: 9 }, Checksums::new());
        members.push(FrameMember { key: key.expect("a key"), fingerprint: 7, extent, checksums });
        let data = Arc::new(FrameData {
            namespace: NamespaceId([7; 16]),
            generation: Generation(1),
            sequence: Sequence(0),
            group_kind: GroupKind::Single,
            base_group: 0,
            base: None,
            depth: 0,
            members,
        });
        let (number, existing, open_group, origin) = (None, Vec::new(), None, PutOrigin::Put);
        CopiedGroup { data, number, existing, open_group, origin, complete: true, mismatch: None }
    }

    #[test]
    fn group_without_checksums_is_incomplete() {
        let mut copied = prepared();
        let other = copied.data.clone();
        assert!(copied.begin_copy().is_none(), "another reference exists");
        assert!(!copied.is_complete() && !copied.has_checksums([Checksums::new()].iter()));
        drop(other);
        copied.begin_copy().expect("the only reference").members[0].checksums.push([1; 16]);
        assert!(copied.is_complete() && copied.mismatch_error().is_none());
    }

    #[test]
    fn checksum_mismatch_is_an_error_for_any_member_index() {
        for mismatch in [0, 5] {
            let copied = CopiedGroup { mismatch: Some(mismatch), ..prepared() };
            assert!(!copied.matches_checksums() && copied.mismatch_error().is_some());
        }
    }
}

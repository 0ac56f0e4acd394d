//! The copy of a put: each object is copied once into the arena, with the checksums of its blocks.
//!
//! All groups of a run are [prepared](prepare) first, and then [filled](GroupCopy::fill) one after
//! the other. The data of a group is built in its final place before its bytes are copied; after
//! the copy only its checksums are written. Reason: non-temporal stores stay queued for a while
//! after a copy. A load that spans several smaller earlier stores, or an atomic read-modify-write,
//! waits until that queue is empty
//! ([0006](../../../../docs/decisions/0006-hashing-and-copying.md)).

use std::sync::Arc;

use pagelith_io::buffer::Part;
use pagelith_io::hashed_copy::Copier;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums, block_count};
use pagelith_layouts::ids::Sequence;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_tiers::dram::arena::ArenaMemory;
use pagelith_tiers::policy::Recency;

use super::client_memory::ClientPayload;
use super::{AdmittedGroup, ReturnedGroup};
use crate::api::error::{Error, ErrorKind};
use crate::memory::frames::{FrameData, FrameMember, FrameNumber, Members};
use crate::state::core::Core;
use crate::state::frame_access::UnpublishedExtent;
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
    /// In a client's shared memory. The copy must have the checksums that the client sent.
    Client(&'a ClientPayload),
    /// Received from a peer, with the checksums that the copy must have.
    Fetched(&'a [Part], &'a Checksums),
}

/// Progress of the copy of a group.
#[derive(Clone, Copy)]
enum CopyState {
    /// Each object has memory in the arena. Objects without checksums are still to be copied: every
    /// object has at least one block.
    Prepared,
    /// An object has no memory, or a copy has another length than its object.
    Incomplete,
    /// The copy of the object with this index has other checksums than were sent with the object.
    Mismatch(usize),
    /// Every object is in the arena, with its checksums.
    Copied,
}

/// A group with memory in the arena, to which its objects are being copied. It is not visible.
pub(crate) struct PreparedGroup {
    /// The data of the future frame, except its sequence number and its base.
    data: Arc<FrameData>,
    number: Option<FrameNumber>,
    existing: Vec<Option<Location>>,
    open_group: Option<u64>,
    origin: PutOrigin,
    state: CopyState,
}

/// A group that was copied completely. Each object has the checksums of its bytes in the arena, and
/// they equal those that were sent with it, if any were. Only such a group is published.
pub(crate) struct ConfirmedGroup {
    pub(super) data: Arc<FrameData>,
    /// See [`AdmittedGroup`].
    pub(super) existing: Vec<Option<Location>>,
    /// See [`AdmittedGroup`].
    pub(super) open_group: Option<u64>,
    /// See [`AdmittedGroup`].
    pub(super) origin: PutOrigin,
}

/// The copy of a prepared group's objects.
pub(crate) struct GroupCopy<'a> {
    members: &'a mut Members,
    state: &'a mut CopyState,
}

impl PreparedGroup {
    /// The objects to be copied. `None` if an object has no memory, or if the data is shared: the
    /// group is not confirmed then.
    pub fn begin_copy(&mut self) -> Option<GroupCopy<'_>> {
        let PreparedGroup { data, state, .. } = self;
        let members = &mut Arc::get_mut(data)?.members;
        matches!(state, CopyState::Prepared).then_some(GroupCopy { members, state })
    }

    /// End the copy, after the copier is dropped. A group that was not copied completely is
    /// returned with the reason.
    pub fn confirm(self, core: &mut Core) -> Result<ConfirmedGroup, ReturnedGroup> {
        let PreparedGroup { data, number, existing, open_group, origin, state } = self;
        core.dram.frames.give_back(number);
        let error = match state {
            CopyState::Copied => return Ok(ConfirmedGroup { data, existing, open_group, origin }),
            CopyState::Mismatch(member) => super::checksum_mismatch(&data.members[member].key),
            CopyState::Prepared | CopyState::Incomplete => {
                let first = data.members.first().map(|m| m.key.to_string()).unwrap_or_default();
                let detail = "group was not copied completely; report this as a bug";
                Error::new(ErrorKind::Internal, format!("{detail} key={first}"))
            }
        };
        Err(ReturnedGroup::new(error, data))
    }

    /// Free its memory: the group is not published.
    pub fn give_back(self, core: &mut Core) {
        self.data.members.iter().for_each(|m| core.dram.space.free(m.extent));
        core.dram.frames.give_back(self.number);
    }
}

/// Build the data of a group of the page of this object, to be filled by
/// [`PreparedGroup::begin_copy`]. `kind` is single or base; an attached group becomes attached when
/// it is published.
pub(crate) fn prepare(
    kind: GroupKind,
    page: &ObjectKey,
    group: impl ExactSizeIterator<Item = MemberSource>,
    admitted: AdmittedGroup,
    at: Recency,
) -> PreparedGroup {
    let AdmittedGroup {
        generation, fingerprints, reservation, existing, open_group, origin, ..
    } = admitted;
    let Reservation { extents, number } = reservation;
    let objects = fingerprints.len();
    let mut members = Members::with_capacity(objects);
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
        if let Some(member) = member {
            members.push(member);
        }
    }
    let state = match members.len() == objects {
        true => CopyState::Prepared,
        false => CopyState::Incomplete,
    };
    let data = FrameData {
        namespace: page.namespace(),
        generation,
        sequence: Sequence(0),
        group_kind: kind,
        base_name: 0,
        base: None,
        depth: at.depth,
        members,
    };
    PreparedGroup { data: Arc::new(data), number, existing, open_group, origin, state }
}

impl GroupCopy<'_> {
    /// Copy the objects without checksums, up to the first one that fails. `bytes` returns the
    /// source of an object by its index.
    pub fn fill<'b>(
        self,
        memory: &ArenaMemory,
        copier: &mut Copier,
        mut bytes: impl FnMut(usize) -> CopySource<'b>,
    ) {
        let GroupCopy { members, state } = self;
        for (at, member) in members.iter_mut().enumerate().filter(|(_, m)| m.checksums.is_empty()) {
            let (to, sums) = (UnpublishedExtent::new(member.extent), &mut member.checksums);
            let mut copy = |parts: &[Part]| {
                let slices: Vec<&[u8]> = parts.iter().map(Part::bytes).collect();
                to.fill_by(memory, copier, &slices, sums)
            };
            let (is_whole, matches) = match bytes(at) {
                CopySource::Caller(parts) => (copy(parts), true),
                CopySource::Fetched(parts, sent) => (copy(parts), sums == sent),
                CopySource::Adopted(bytes) => (to.fill_by(memory, copier, &[bytes], sums), true),
                CopySource::Client(payload) => (true, payload.copy(&to, memory, copier, sums)),
            };
            match (is_whole, matches) {
                (true, true) => {}
                (true, false) => return *state = CopyState::Mismatch(at),
                (false, _) => return *state = CopyState::Incomplete,
            }
        }
        *state = CopyState::Copied;
    }
}

#[cfg(test)]
mod tests {
    use pagelith_io::buffer::AlignedBuf;
    use pagelith_io::hashed_copy::CopyMode;
    use pagelith_layouts::checksum::checksum;
    use pagelith_layouts::ids::{Generation, NamespaceId, PrefixHash};
    use pagelith_layouts::key::Role;
    use pagelith_layouts::shard::Shard;

    use super::*;
    use crate::config::{Config, MachineLimits};
    use crate::store::embedded::Store;

    const LENGTH: usize = 9000;

    fn store() -> Store {
        let mut config = Config::default();
        config.dram.bytes = crate::Size::mib(4);
        config.index.max_objects = Some(1000);
        let facts = MachineLimits::of_this_machine().expect("facts");
        Store::open(config.validate(&facts).expect("valid")).expect("opened")
    }

    /// A prepared group of one object; without memory if the arena has less than its length.
    fn prepared(store: &Store, length: u64) -> PreparedGroup {
        let namespace = NamespaceId([7; 16]);
        let key =
            ObjectKey::new(namespace, PrefixHash([7; 32]), Role::Target, "kv", "k", Shard::Whole);
        let key = key.expect("a key");
        let extents = vec![store.shared.lock().dram.space.alloc(length)];
        let admitted = AdmittedGroup {
            generation: Generation(1),
            fingerprints: vec![7],
            reservation: Reservation { extents, number: None },
            existing: Vec::new(),
            adopts: Vec::new(),
            open_group: None,
            origin: PutOrigin::Put,
        };
        let group = [MemberSource::ToCopy(key)].into_iter();
        prepare(GroupKind::Single, &key, group, admitted, Recency { request: 0, depth: 0 })
    }

    fn part() -> Part {
        let mut buffer = AlignedBuf::new(LENGTH).expect("memory");
        buffer.fill(5);
        buffer.into_part()
    }

    /// The error for a group of one object that was copied from `source`, if there is one.
    fn error_of(store: &Store, length: usize, source: CopySource<'_>) -> Option<ErrorKind> {
        let mut group = prepared(store, length as u64);
        let mut copier = Copier::new(CopyMode::NonTemporal);
        let copy = group.begin_copy().expect("memory for every object");
        copy.fill(&store.shared.memory, &mut copier, |_| source);
        drop(copier);
        match group.confirm(&mut store.shared.lock()) {
            Ok(group) => {
                assert_eq!(group.data.members[0].checksums[..], [checksum(&[5; LENGTH])]);
                None
            }
            Err(returned) => {
                assert_eq!(returned.members.len(), 1);
                Some(returned.error.kind)
            }
        }
    }

    #[test]
    fn group_is_confirmed_only_after_it_was_copied_completely() {
        let (store, parts) = (store(), [part()]);
        assert_eq!(error_of(&store, LENGTH, CopySource::Caller(&parts)), None);
        let short = CopySource::Caller(&[]);
        assert_eq!(error_of(&store, LENGTH, short), Some(ErrorKind::Internal));
        let uncopied = prepared(&store, 9).confirm(&mut store.shared.lock());
        assert_eq!(uncopied.err().map(|returned| returned.error.kind), Some(ErrorKind::Internal));
    }

    #[test]
    fn group_without_memory_or_with_shared_data_is_not_copied() {
        let store = store();
        let mut group = prepared(&store, 9);
        let other = group.data.clone();
        assert!(group.begin_copy().is_none(), "another reference exists");
        drop(other);
        assert!(group.begin_copy().is_some());
        let mut group = prepared(&store, 8 << 20);
        assert!(group.begin_copy().is_none(), "no memory");
    }

    #[test]
    fn fetched_object_with_other_checksums_is_not_confirmed() {
        let (store, parts) = (store(), [part()]);
        let (sent, other) = (checksum(&[5; LENGTH]), checksum(&[6; LENGTH]));
        for (sums, error) in [(sent, None), (other, Some(ErrorKind::Unavailable))] {
            let sums = Checksums::from_iter([sums]);
            assert_eq!(error_of(&store, LENGTH, CopySource::Fetched(&parts, &sums)), error);
        }
    }
}

//! Progress of a group of a batch: what must be read before it can be stored, what was read, and
//! its outcome.
//!
//! Headers and objects are each read at most once: a group that needs a read again was changed
//! during the put, and is `Busy`.

use pagelith_io::buffer::AlignedBuf;

use crate::api::error::Result;
use crate::api::outcome::PutOutcome;
use crate::read::get::ProbedObject;
use crate::state::put_spec::Location;
use crate::write::put::admit::StandaloneMember;

/// Progress of a group.
pub(super) enum GroupProgress {
    /// To be admitted, or admitted and being copied.
    Ready(GroupReads),
    /// The record headers of these members must be read, or are being read.
    NeedHeaders { members: Vec<usize>, objects: Option<AdoptedObjects> },
    /// These members are present by themselves: they must be read.
    NeedObjects { members: Vec<StandaloneMember>, headers: Option<Headers> },
    /// These members are being read.
    ReadingObjects { members: Vec<StandaloneMember>, headers: Option<Headers> },
    /// It has its outcome.
    Done {
        outcome: Result<PutOutcome>,
        /// Which members were stored with bytes that the store already had; empty if none was.
        adopts: Vec<bool>,
    },
}

/// The probe of each member's header; `None` for an absent object, or one that was not probed.
pub(super) type Headers = Vec<Option<ProbedObject>>;

/// Data read for a group; empty when it is tried for the first time.
#[derive(Default)]
pub(super) struct GroupReads {
    headers: Option<Headers>,
    objects: Option<AdoptedObjects>,
}

/// Objects that are present by themselves, and were read to be stored again with the group.
pub(super) struct AdoptedObjects {
    /// For each member that was read: its location when the read began, and its bytes.
    members: Vec<Option<(Location, AlignedBuf)>>,
    /// The part of `DramCore::adopting_bytes` that was reserved for the buffers.
    pub reserved_bytes: u64,
}

/// Bytes of buffers for these members.
pub(super) fn buffer_bytes(members: &[StandaloneMember]) -> u64 {
    members.iter().map(|member| member.length).sum()
}

impl GroupProgress {
    /// A group for which nothing was read.
    pub fn new() -> GroupProgress {
        GroupProgress::Ready(GroupReads::default())
    }

    /// Whether the group can be admitted.
    pub fn is_ready(&self) -> bool {
        matches!(self, GroupProgress::Ready(_))
    }

    /// Whether the group can be admitted, and nothing was read for it.
    pub fn is_new(&self) -> bool {
        matches!(self, GroupProgress::Ready(GroupReads { headers: None, objects: None }))
    }

    /// The headers, if they were read.
    pub fn headers(&self) -> Option<&[Option<ProbedObject>]> {
        match self {
            GroupProgress::Ready(reads) => reads.headers.as_deref(),
            _ => None,
        }
    }

    /// The location and the bytes of each member that was read; empty if no member was.
    pub fn adopted(&self) -> &[Option<(Location, AlignedBuf)>] {
        match self {
            GroupProgress::Ready(GroupReads { objects: Some(objects), .. }) => &objects.members,
            _ => &[],
        }
    }

    /// The outcome, if the group has one.
    pub fn outcome(&self) -> Option<&Result<PutOutcome>> {
        match self {
            GroupProgress::Done { outcome, .. } => Some(outcome),
            _ => None,
        }
    }

    /// A ready group needs the headers of these members. False if headers were read before.
    pub fn need_headers(&mut self, members: Vec<usize>) -> bool {
        let GroupProgress::Ready(GroupReads { headers: None, objects }) = self else {
            return false;
        };
        let objects = objects.take();
        *self = GroupProgress::NeedHeaders { members, objects };
        true
    }

    /// A ready group needs the bytes of these members. False if objects were read before.
    pub fn need_objects(&mut self, members: Vec<StandaloneMember>) -> bool {
        let GroupProgress::Ready(GroupReads { headers, objects: None }) = self else {
            return false;
        };
        let headers = headers.take();
        *self = GroupProgress::NeedObjects { members, headers };
        true
    }

    /// The members whose headers are needed.
    pub fn needed_headers(&self) -> &[usize] {
        match self {
            GroupProgress::NeedHeaders { members, .. } => members,
            _ => &[],
        }
    }

    /// The members whose bytes are needed, if a read of them has not begun.
    pub fn needed_objects(&self) -> &[StandaloneMember] {
        match self {
            GroupProgress::NeedObjects { members, .. } => members,
            _ => &[],
        }
    }

    /// A read of the needed objects begins, into buffers that are reserved.
    pub fn begin_objects(&mut self) {
        if let GroupProgress::NeedObjects { members, headers } = self {
            let (members, headers) = (std::mem::take(members), headers.take());
            *self = GroupProgress::ReadingObjects { members, headers };
        }
    }

    /// The headers of a batch were read. Takes those of this group, which has `count` members.
    pub fn end_headers(
        &mut self,
        count: usize,
        probed: &mut impl Iterator<Item = Option<ProbedObject>>,
    ) {
        if let GroupProgress::NeedHeaders { members, objects } = self {
            let (mut headers, objects) = (vec![None; count], objects.take());
            members.iter().zip(probed).for_each(|(member, probed)| headers[*member] = probed);
            *self = GroupProgress::Ready(GroupReads { headers: Some(headers), objects });
        }
    }

    /// The objects of a batch were read. Takes those of this group, which has `count` members.
    pub fn end_objects(
        &mut self,
        count: usize,
        buffers: &mut impl Iterator<Item = Option<AlignedBuf>>,
    ) {
        if let GroupProgress::ReadingObjects { members, headers } = self {
            let reserved_bytes = buffer_bytes(members);
            let mut read: Vec<_> = (0..count).map(|_| None).collect();
            for (StandaloneMember { member, location, .. }, buffer) in members.iter().zip(buffers) {
                read[*member] = buffer.map(|bytes| (*location, bytes));
            }
            let objects = Some(AdoptedObjects { members: read, reserved_bytes });
            *self = GroupProgress::Ready(GroupReads { headers: headers.take(), objects });
        }
    }

    /// The group has its outcome. Returns its buffers: the caller frees them without the lock.
    pub fn finish(
        &mut self,
        outcome: Result<PutOutcome>,
        adopts: Vec<bool>,
    ) -> Option<AdoptedObjects> {
        match std::mem::replace(self, GroupProgress::Done { outcome, adopts }) {
            GroupProgress::Ready(GroupReads { objects, .. })
            | GroupProgress::NeedHeaders { objects, .. } => objects,
            GroupProgress::ReadingObjects { members, .. } => {
                Some(AdoptedObjects { members: Vec::new(), reserved_bytes: buffer_bytes(&members) })
            }
            GroupProgress::NeedObjects { .. } | GroupProgress::Done { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::frames::FrameRef;
    use pagelith_tiers::policy::FrameId;

    fn standalone(member: usize, length: u64) -> StandaloneMember {
        let location = Location::Frame(FrameRef { id: FrameId(1), serial: 1 });
        StandaloneMember { member, length, location }
    }

    #[test]
    fn group_needs_headers_and_objects_once_each() {
        let mut group = GroupProgress::new();
        assert!(group.is_new() && group.need_headers(vec![1]) && !group.is_ready());
        assert_eq!(group.needed_headers(), [1]);
        group.end_headers(2, &mut [None].into_iter());
        assert!(group.is_ready() && !group.is_new() && !group.need_headers(vec![0]));
        assert_eq!(group.headers(), Some(&[None, None][..]));
        assert!(group.need_objects(vec![standalone(1, 9)]) && group.headers().is_none());
        group.begin_objects();
        let buffer = AlignedBuf::new(9).expect("memory");
        group.end_objects(2, &mut [Some(buffer)].into_iter());
        assert!(group.adopted()[0].is_none() && group.adopted()[1].is_some());
        assert!(!group.need_objects(vec![standalone(0, 9)]) && group.headers().is_some());
    }

    #[test]
    fn finished_group_returns_exactly_the_bytes_reserved_for_its_buffers() {
        let reserved = |mut group: GroupProgress| {
            group.finish(Ok(PutOutcome::Stored), Vec::new()).map(|objects| objects.reserved_bytes)
        };
        let needing = || {
            let mut group = GroupProgress::new();
            assert!(group.need_objects(vec![standalone(0, 9), standalone(2, 11)]));
            group
        };
        assert_eq!((reserved(GroupProgress::new()), reserved(needing())), (None, None));
        let mut reading = needing();
        reading.begin_objects();
        assert_eq!(reserved(reading), Some(20));
        let mut read = needing();
        read.begin_objects();
        read.end_objects(3, &mut [None, None].into_iter());
        assert!(read.need_headers(vec![1]));
        assert_eq!(reserved(read), Some(20), "an object was not found");
    }
}

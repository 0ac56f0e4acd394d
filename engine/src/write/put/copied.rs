//! Step 2 of a put: one copy of each object into the arena, and the checksums of its blocks.
//!
//! A run of groups is [prepared](prepare) first, and then [filled](Filling::fill) one behind the other: what becomes of a group lies where it
//! stays before its bytes are copied, and behind the copy its checksums alone are written. Stores past the cache are queued for a while behind a
//! copy, and what was written in small pieces and is moved in large ones, or is counted by an instruction that others see as one, waits for all
//! of them ([0065](../../../docs/decisions/0065-what-is-moved-behind-a-copy.md)).

use std::sync::Arc;

use pagelith_io::buffer::Part;
use pagelith_io::fused::Copier;
use pagelith_layouts::checksum::{BLOCK_BYTES, Checksums, block_count};
use pagelith_layouts::ids::Sequence;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;
use pagelith_tiers::dram::arena::ArenaMemory;
use pagelith_tiers::policy::Recency;

use super::client_memory::Vouched;
use super::{Admitted, At, Came, Room};
use crate::api::error::{Error, ErrorKind};
use crate::memory::frames::{FrameData, FrameMember, Members, Number};
use crate::state::core::Core;
use crate::state::frame_access::Unpublished;
use crate::state::reserve;

/// One object of a group to be put.
pub(crate) enum Incoming {
    /// To be copied.
    Elsewhere(ObjectKey),
    /// In the arena already, in an open group.
    Arena(Box<FrameMember>),
    /// In the arena already, where it arrived.
    Placed(ObjectKey, reserve::Arrived),
}

/// Where the bytes of an object are that are to be copied.
#[derive(Clone, Copy)]
pub(crate) enum Bytes<'a> {
    /// In the caller's memory.
    Lent(&'a [Part]),
    /// Read from where the object was by itself.
    Adopted(&'a [u8]),
    /// In a client's memory.
    Shown(&'a Vouched),
}

/// A group whose bytes lie in the arena, or are about to, invisible so far.
pub(crate) struct Copied {
    /// As the frame will have it, but for its number.
    pub(crate) data: Arc<FrameData>,
    pub(crate) number: Option<Number>,
    /// As admission had it.
    pub(crate) here: Vec<Option<At>>,
    pub(crate) open: Option<u64>,
    /// As admission had it.
    pub(crate) came: Came,
    /// All of it is there.
    pub(crate) whole: bool,
    /// An object that is something else than its client vouched for, by number.
    pub(crate) wrong: Option<usize>,
}

/// A group whose objects are to be copied. Those without checksums are: an object has at least one block.
pub(crate) struct Filling<'a> {
    members: &'a mut Members,
    whole: &'a mut bool,
    wrong: &'a mut Option<usize>,
}

impl Copied {
    /// What is to be copied of it; `None` if a part of it is gone, or somebody else has it: none of it is stored then ([`Copied::is_whole`]).
    pub fn filling(&mut self) -> Option<Filling<'_>> {
        let Copied { data, whole, wrong, .. } = self;
        let members = &mut Arc::get_mut(data)?.members;
        whole.then_some(Filling { members, whole, wrong })
    }

    /// Whether it is what was vouched for: the checksums of each object's blocks, in their order.
    pub fn is<'a>(&self, mut sums: impl Iterator<Item = &'a Checksums>) -> bool {
        self.is_whole()
            && self.is_believed()
            && self.data.members.iter().all(|m| sums.next() == Some(&m.checksums))
    }

    /// Whether all of it is in the arena. What was not copied, for whatever reason, has no checksums.
    pub fn is_whole(&self) -> bool {
        self.whole && self.data.members.iter().all(|m| !m.checksums.is_empty())
    }

    /// Whether each object is what its client vouched for.
    pub fn is_believed(&self) -> bool {
        self.wrong.is_none()
    }

    /// Why it is not to be believed, if it is not.
    pub fn doubt(&self) -> Option<Error> {
        let member = self.data.members.get(self.wrong?);
        let nothing = || Error::new(ErrorKind::Internal, "a group without objects");
        Some(member.map_or_else(nothing, |m| super::unlike(&m.key)))
    }

    /// It is not made visible: its memory is free again.
    pub fn give_back(self, core: &mut Core) {
        self.data.members.iter().for_each(|m| core.space.free(m.extent));
        core.frames.give_back(self.number);
    }
}

/// A group of the page of this object, by itself or a base group, as it will be once it is [filled](Copied::filling); one that is attached is known to be when it is
/// published.
pub(crate) fn prepare(
    kind: GroupKind,
    page: &ObjectKey,
    group: impl ExactSizeIterator<Item = Incoming>,
    admitted: Admitted,
    at: Recency,
) -> Copied {
    let Admitted { generation, fingerprints, room, here, open, came, .. } = admitted;
    let Room { extents, number } = room;
    let mut members = Members::with_capacity(group.len());
    let mut whole = true;
    for ((object, extent), fingerprint) in group.zip(extents).zip(fingerprints) {
        let member = match (object, extent) {
            (Incoming::Arena(member), _) => Some(*member),
            (Incoming::Placed(key, arrived), _) => arrived.into_member(key, fingerprint),
            (Incoming::Elsewhere(key), Some(extent)) => {
                let blocks = block_count(extent.bytes, BLOCK_BYTES);
                let checksums = Checksums::with_capacity(blocks as usize);
                Some(FrameMember { key, fingerprint, extent, checksums })
            }
            (Incoming::Elsewhere(_), None) => None,
        };
        match member {
            Some(member) => members.push(member),
            None => whole = false,
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
    Copied { data: Arc::new(data), number, here, open, came, whole, wrong: None }
}

impl Filling<'_> {
    /// Copy what is to be copied of it, from where `bytes` says that an object is, by number. Only once the copier is dropped it may be
    /// published.
    pub fn fill<'b>(
        &mut self,
        memory: &ArenaMemory,
        copier: &mut Copier,
        mut bytes: impl FnMut(usize) -> Bytes<'b>,
    ) {
        let Filling { members, whole, wrong } = self;
        for (at, member) in members.iter_mut().enumerate().filter(|(_, m)| m.checksums.is_empty()) {
            let (to, sums) = (Unpublished::new(member.extent), &mut member.checksums);
            match bytes(at) {
                Bytes::Shown(vouched) => {
                    if !vouched.copy(&to, memory, copier, sums) {
                        **wrong = Some(at);
                    }
                }
                Bytes::Lent(parts) => {
                    let lent: Vec<&[u8]> = parts.iter().map(Part::bytes).collect();
                    **whole &= to.fill_by(memory, copier, &lent, sums);
                }
                Bytes::Adopted(bytes) => **whole &= to.fill_by(memory, copier, &[bytes], sums),
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

    /// A group of one object that is to be copied.
    fn prepared() -> Copied {
        let key =
            ObjectKey::new(NamespaceId([7; 16]), PrefixHash([7; 32]), Role::Target, "kv", "k", Shard::Whole);
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
        let (number, here, open, came) = (None, Vec::new(), None, Came::Put);
        Copied { data, number, here, open, came, whole: true, wrong: None }
    }

    #[test]
    fn what_was_not_copied_is_not_whole() {
        let mut copied = prepared();
        let held = copied.data.clone();
        assert!(copied.filling().is_none(), "somebody else has it");
        assert!(!copied.is_whole() && !copied.is([Checksums::new()].iter()));
        drop(held);
        copied.filling().expect("nobody else has it").members[0].checksums.push([1; 16]);
        assert!(copied.is_whole() && copied.doubt().is_none());
    }

    #[test]
    fn what_is_wrong_is_in_doubt_whatever_else_is_known_of_it() {
        for wrong in [0, 5] {
            let copied = Copied { wrong: Some(wrong), ..prepared() };
            assert!(!copied.is_believed() && copied.doubt().is_some());
        }
    }
}

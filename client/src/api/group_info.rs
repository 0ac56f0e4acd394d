//! Group metadata of an object: the number of members of its group, and its base.

use pagelith_layouts::ids::Sequence;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{GroupKind, RecordFacts};

/// The group that an object was put with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupInfo {
    /// Number of objects in the group; 0 if unknown.
    pub members: u32,
    /// Their base; `None` if they are not attached.
    pub attached: Option<BaseGroupInfo>,
}

/// The base group that objects are attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseGroupInfo {
    /// Name of the base group, as in records.
    pub base_name: u64,
    /// Together with `base_name`, identifies the group.
    pub sequence: Sequence,
    /// An object of the base group, if known.
    pub base: Option<Box<ObjectKey>>,
}

impl GroupInfo {
    /// The group of a record on SSD.
    pub fn of_record(facts: &RecordFacts, members: usize) -> GroupInfo {
        let to = || BaseGroupInfo {
            base_name: facts.base_group.0,
            sequence: facts.sequence,
            base: None,
        };
        let is_attached = facts.group_kind == GroupKind::Attached;
        GroupInfo { members: members as u32, attached: is_attached.then(to) }
    }
}

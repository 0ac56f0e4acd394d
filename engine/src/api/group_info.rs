//! What an object was put together with, and what it is attached to.

use pagelith_layouts::ids::Sequence;
use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::{GroupKind, RecordFacts};

/// What an object was put with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Together {
    /// How many objects were put together, itself among them; 0 if that is not known.
    pub members: u32,
    /// What they are attached to, if they are.
    pub attached: Option<AttachedTo>,
}

/// What objects are attached to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachedTo {
    /// Name of the base group, as records have it.
    pub base_group: u64,
    /// With that name, tells what was put together from all else.
    pub sequence: Sequence,
    /// An object of the base group, where that is known.
    pub base: Option<Box<ObjectKey>>,
}

impl Together {
    /// Objects on SSD.
    pub fn of_record(facts: &RecordFacts, members: usize) -> Together {
        let to = || AttachedTo { base_group: facts.base_group.0, sequence: facts.sequence, base: None };
        let is_attached = facts.group_kind == GroupKind::Attached;
        Together { members: members as u32, attached: is_attached.then(to) }
    }
}

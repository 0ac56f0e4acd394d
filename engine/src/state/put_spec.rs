//! Specification of a put: its kind, its origin, and its objects before their bytes are read.

use pagelith_layouts::key::ObjectKey;
use pagelith_layouts::record::GroupKind;

use crate::api::error::Error;
use crate::memory::frames::FrameRef;
use crate::memory::index::SsdLocation;
use crate::rpc::removal_fence::FenceVersion;

/// How the objects of a put form a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutKind<'a> {
    /// One standalone object.
    Single,
    /// A page's base group.
    Base,
    /// Objects attached to the base group that contains this key.
    Attached(&'a ObjectKey),
}

/// Exact location of an object. If it differs later, the object was put, reinserted or written
/// since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    Frame(FrameRef),
    Ssd(SsdLocation),
}

impl PutKind<'_> {
    /// The kind of the frame until the put is published, when the base is looked up.
    pub fn initial_group_kind(self) -> GroupKind {
        match self {
            PutKind::Single => GroupKind::Single,
            PutKind::Base | PutKind::Attached(_) => GroupKind::Base,
        }
    }
}

/// An object to be admitted, before its bytes are read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ObjectSize {
    pub key: ObjectKey,
    /// In bytes; `None` for an object of an open group that was not put: the store must have it.
    pub length: Option<u64>,
    /// Its bytes are in the arena, so that no memory is reserved for it.
    pub in_arena: bool,
}

/// Origin of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PutOrigin {
    /// A caller or a client put it. It is offered to the peer that owns its page.
    Put,
    /// Another store, of which this store is a peer, offered it. It is offered to no further peer.
    /// It is not stored if a removal began or ended since this version of the fence, or if it is
    /// `None`: a removal was in progress then. The offering store may send its removals over a
    /// newer link, which can overtake the offer.
    Offered(Option<FenceVersion>),
    /// Fetched from a peer by a get: it does not count as a put, and is offered to no peer.
    Fetched,
}

/// The error for an object that belongs to one group and is put with another.
pub(crate) fn group_conflict<'a>(
    key: &ObjectKey,
    has: &[ObjectKey],
    given: impl Iterator<Item = &'a ObjectKey>,
) -> Error {
    let (has, given) = (names(has.iter()), names(given));
    Error::invalid(format!(
        "an object is in a group of other objects key={key} has={has} given={given}"
    ))
}

/// Pool, component and shard of each key.
fn names<'a>(keys: impl Iterator<Item = &'a ObjectKey>) -> String {
    let name = |key: &ObjectKey| {
        let text = key.to_string();
        text.splitn(3, '/').nth(2).unwrap_or_default().to_owned()
    };
    keys.map(name).collect::<Vec<_>>().join(",")
}

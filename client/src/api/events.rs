//! Events about objects that appear in and leave a store: for routers, and for engines that use a
//! store.

use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;

use crate::api::outcome::Tier;

/// A change to an object. For an object that is attached to a base it reports where the object is
/// stored; the object is visible only together with its base.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// It was added to this tier by a put, a promotion, or a write to SSD. It was not there before.
    Stored {
        /// The tier: `Memory` or `Ssd`.
        tier: Tier,
        /// The object.
        key: ObjectKey,
        /// Whether it was in no tier of this store before.
        new: bool,
    },
    /// It left this tier.
    Removed {
        /// The tier: `Memory` or `Ssd`.
        tier: Tier,
        /// The object.
        key: ObjectKey,
        /// Whether it is now in no tier of this store.
        gone: bool,
    },
    /// All objects of this namespace left every tier.
    Cleared {
        /// The namespace.
        namespace: NamespaceId,
    },
    /// Objects left this tier whose keys the store does not know, because the headers that name
    /// them cannot be read or are untrusted: those of a segment, a record, or the whole tier.
    /// Listeners should look up again the objects that they believe to be in this tier.
    Forgot {
        /// The tier: `Ssd`.
        tier: Tier,
    },
}

impl Event {
    /// The event's namespace; `None` if it has none.
    pub fn namespace(&self) -> Option<NamespaceId> {
        match self {
            Event::Stored { key, .. } | Event::Removed { key, .. } => Some(key.namespace()),
            Event::Cleared { namespace } => Some(*namespace),
            Event::Forgot { .. } => None,
        }
    }
}

/// Events since the last call, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// In the order of the changes.
    pub events: Vec<Event>,
    /// Events before these that were dropped because they were not read in time: look up again the
    /// objects of interest.
    pub lost: u64,
}

/// Events from a given number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventBatch {
    pub events: Vec<Event>,
    /// The number to read from next.
    pub next: u64,
    /// Events that were dropped before the first of these.
    pub lost: u64,
}

//! Events in an outcome: objects that were stored or removed.

use super::{OutcomeHead, TierTag};
use crate::error::FormatError;
use crate::format::{is_zero, structure};
use crate::ids::NamespaceId;
use crate::key::ObjectKey;
use crate::wire::List;

structure! {
    /// One event.
    pub struct EventItem = 160 {
        /// 1 stored, 2 removed, 3 a namespace was cleared, 4 objects with unknown keys were
        /// removed.
        kind: u8,
        /// 1 memory, 2 SSD; zero if a namespace was cleared.
        tier: u8,
        /// 1 if the stored object was in no tier before, or the removed one is in none any more.
        whole: u8,
        /// Zero.
        reserved: [u8; 13],
        /// The namespace that was cleared.
        namespace: NamespaceId,
        /// The object that was stored or removed.
        key: ObjectKey,
    }
}

const WHAT: &str = "event";
const STORED: u8 = 1;
const REMOVED: u8 = 2;
const CLEARED: u8 = 3;
const FORGOT: u8 = 4;

/// A decoded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireEvent {
    /// An object was stored in a tier; true if it was in no tier before.
    Stored(TierTag, ObjectKey, bool),
    /// An object was removed from a tier; true if it is in no tier any more.
    Removed(TierTag, ObjectKey, bool),
    /// All objects of a namespace were removed.
    Cleared(NamespaceId),
    /// Objects with unknown keys were removed from a tier.
    Forgot(TierTag),
}

impl EventItem {
    /// Encode an event.
    pub fn of(happened: &WireEvent) -> EventItem {
        let mut item: EventItem = bytemuck::Zeroable::zeroed();
        match happened {
            WireEvent::Stored(tier, key, new) => {
                (item.kind, item.tier, item.whole, item.key) =
                    (STORED, *tier as u8, u8::from(*new), *key);
            }
            WireEvent::Removed(tier, key, gone) => {
                (item.kind, item.tier, item.whole, item.key) =
                    (REMOVED, *tier as u8, u8::from(*gone), *key);
            }
            WireEvent::Cleared(namespace) => (item.kind, item.namespace) = (CLEARED, *namespace),
            WireEvent::Forgot(tier) => (item.kind, item.tier) = (FORGOT, *tier as u8),
        }
        item
    }

    /// Decode and check the event.
    fn decode(&self) -> Result<WireEvent, FormatError> {
        let tier = match self.tier {
            1 => Some(TierTag::Memory),
            2 => Some(TierTag::Ssd),
            _ => None,
        };
        let has_key = self.kind == STORED || self.kind == REMOVED;
        let checks = [
            ("kind", (STORED..=FORGOT).contains(&self.kind)),
            ("tier", if self.kind == CLEARED { self.tier == 0 } else { tier.is_some() }),
            ("whole", self.whole <= u8::from(has_key)),
            ("reserved", is_zero(&self.reserved)),
            ("namespace", self.kind == CLEARED || is_zero(&self.namespace.0)),
            ("key", has_key || is_zero(bytemuck::bytes_of(&self.key))),
        ];
        if let Some((field, _)) = checks.into_iter().find(|(_, ok)| !ok) {
            return Err(FormatError::field(WHAT, field, "out of range"));
        }
        let whole = self.whole == 1;
        Ok(match (self.kind, tier) {
            (STORED, Some(tier)) => WireEvent::Stored(tier, self.checked_key()?, whole),
            (REMOVED, Some(tier)) => WireEvent::Removed(tier, self.checked_key()?, whole),
            (FORGOT, Some(tier)) => WireEvent::Forgot(tier),
            _ => WireEvent::Cleared(self.namespace),
        })
    }

    fn checked_key(&self) -> Result<ObjectKey, FormatError> {
        self.key.check().map(|()| self.key)
    }
}

/// Decoded events, borrowed from a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventList<'a> {
    items: List<'a, EventItem>,
    /// Position of the next event, for the next request.
    pub next: u64,
    /// Number of events that were dropped before these.
    pub lost: u64,
}

impl<'a> EventList<'a> {
    /// All events, in the order in which they happened.
    pub fn iter(&self) -> impl Iterator<Item = WireEvent> + use<'a> {
        // `read` has checked each item.
        self.items.iter().filter_map(|item| item.decode().ok())
    }
}

pub(super) fn read<'a>(
    head: &OutcomeHead,
    rest: &mut &'a [u8],
) -> Result<EventList<'a>, FormatError> {
    let items = List::<EventItem>::take(rest, head.item_count);
    let items = items
        .ok_or_else(|| FormatError::field("outcome", "item_count", "beyond the end of the body"))?;
    items.iter().try_for_each(|item| item.decode().map(|_| ()))?;
    Ok(EventList { items, next: head.number, lost: head.lost })
}

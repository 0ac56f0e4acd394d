//! What came and went, as an outcome says it.

use super::{OutcomeHead, TierTag};
use crate::error::FormatError;
use crate::format::{is_zero, structure};
use crate::ids::NamespaceId;
use crate::key::ObjectKey;
use crate::wire::List;

structure! {
    /// One event.
    pub struct EventItem = 160 {
        /// 1 stored, 2 removed, 3 a namespace was cleared, 4 objects were forgotten that have no name; 0 is never valid.
        kind: u8,
        /// Where: 1 memory, 2 SSD; zero of what was cleared.
        tier: u8,
        /// 1 of what was stored and was in no tier before, and of what was removed and is in no tier any more; else zero.
        whole: u8,
        /// Zero.
        reserved: [u8; 13],
        /// Which namespace was cleared; else zero.
        namespace: NamespaceId,
        /// The object that was stored or removed; else zero.
        key: ObjectKey,
    }
}

const WHAT: &str = "event";
const STORED: u8 = 1;
const REMOVED: u8 = 2;
const CLEARED: u8 = 3;
const FORGOT: u8 = 4;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// An object is in a tier now; whether it was in none before.
    Stored(TierTag, ObjectKey, bool),
    /// An object is in a tier no more; whether it is in none now.
    Removed(TierTag, ObjectKey, bool),
    /// Everything of a namespace is gone.
    Cleared(NamespaceId),
    /// Objects are gone from a tier that have no name.
    Forgot(TierTag),
}

impl EventItem {
    /// As it is sent.
    pub fn of(happened: &Happened) -> EventItem {
        let mut item: EventItem = bytemuck::Zeroable::zeroed();
        match happened {
            Happened::Stored(tier, key, new) => {
                (item.kind, item.tier, item.whole, item.key) = (STORED, *tier as u8, u8::from(*new), *key);
            }
            Happened::Removed(tier, key, gone) => {
                (item.kind, item.tier, item.whole, item.key) = (REMOVED, *tier as u8, u8::from(*gone), *key);
            }
            Happened::Cleared(namespace) => (item.kind, item.namespace) = (CLEARED, *namespace),
            Happened::Forgot(tier) => (item.kind, item.tier) = (FORGOT, *tier as u8),
        }
        item
    }

    /// What happened; an error if it is nothing that can.
    fn happened(&self) -> Result<Happened, FormatError> {
        let tier = match self.tier {
            1 => Some(TierTag::Memory),
            2 => Some(TierTag::Ssd),
            _ => None,
        };
        let named = self.kind == STORED || self.kind == REMOVED;
        let checks = [
            ("kind", (STORED..=FORGOT).contains(&self.kind)),
            ("tier", if self.kind == CLEARED { self.tier == 0 } else { tier.is_some() }),
            ("whole", self.whole <= u8::from(named)),
            ("reserved", is_zero(&self.reserved)),
            ("namespace", self.kind == CLEARED || is_zero(&self.namespace.0)),
            ("key", named || is_zero(bytemuck::bytes_of(&self.key))),
        ];
        if let Some((field, _)) = checks.into_iter().find(|(_, ok)| !ok) {
            return Err(FormatError::field(WHAT, field, "out of range"));
        }
        let whole = self.whole == 1;
        Ok(match (self.kind, tier) {
            (STORED, Some(tier)) => Happened::Stored(tier, self.checked()?, whole),
            (REMOVED, Some(tier)) => Happened::Removed(tier, self.checked()?, whole),
            (FORGOT, Some(tier)) => Happened::Forgot(tier),
            _ => Happened::Cleared(self.namespace),
        })
    }

    fn checked(&self) -> Result<ObjectKey, FormatError> {
        self.key.check().map(|()| self.key)
    }
}

/// Events; a view that owns nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventsSaid<'a> {
    items: List<'a, EventItem>,
    /// From where on to ask next.
    pub next: u64,
    /// Events before these that were dropped.
    pub lost: u64,
}

impl<'a> EventsSaid<'a> {
    /// All, in the order in which they happened.
    pub fn iter(&self) -> impl Iterator<Item = Happened> + use<'a> {
        // Each was checked when it was read.
        self.items.iter().filter_map(|item| item.happened().ok())
    }
}

pub(super) fn read<'a>(head: &OutcomeHead, rest: &mut &'a [u8]) -> Result<EventsSaid<'a>, FormatError> {
    let items = List::<EventItem>::take(rest, head.item_count);
    let items = items.ok_or_else(|| FormatError::field("outcome", "item_count", "not all there"))?;
    items.iter().try_for_each(|item| item.happened().map(|_| ()))?;
    Ok(EventsSaid { items, next: head.number, lost: head.lost })
}

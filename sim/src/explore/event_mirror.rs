//! The locations of objects according to the store's events.

use std::collections::BTreeMap;

use pagelith::{Event, Tier};
use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;

/// Events kept by the store: more than occur between two look-ups.
pub(super) const EVENTS_MAX: u32 = 1 << 16;

/// The location of an object according to events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObjectTiers {
    pub(super) memory: bool,
    /// `None` if unknown: stored before the open, or on a tier that reported lost entries.
    pub(super) ssd: Option<bool>,
}

/// State derived from the events since the open.
#[derive(Default)]
pub(super) struct EventMirror {
    places: BTreeMap<ObjectKey, ObjectTiers>,
    /// Namespaces in which an object without an event is not on SSD.
    empty: Vec<NamespaceId>,
}

impl EventMirror {
    /// Where an object is.
    pub(super) fn place(&mut self, key: &ObjectKey) -> &mut ObjectTiers {
        let empty = self.empty.contains(&key.namespace());
        self.places
            .entry(*key)
            .or_insert(ObjectTiers { memory: false, ssd: empty.then_some(false) })
    }

    /// Applies an event; false if it contradicts earlier ones.
    pub(super) fn note(&mut self, event: &Event) -> bool {
        match event {
            Event::Stored { tier, key, new } => {
                let place = self.place(key);
                let known = place.memory || place.ssd == Some(true);
                let was = match tier {
                    Tier::Memory => std::mem::replace(&mut place.memory, true),
                    Tier::Ssd | Tier::Remote => place.ssd.replace(true) == Some(true),
                };
                !(was || *new && known)
            }
            Event::Removed { tier, key, gone } => {
                let place = self.place(key);
                let was = match tier {
                    Tier::Memory => std::mem::replace(&mut place.memory, false),
                    Tier::Ssd | Tier::Remote => place.ssd.replace(false) != Some(false),
                };
                let ObjectTiers { memory, ssd } = *place;
                if *gone {
                    place.ssd = Some(false);
                }
                was && if *gone {
                    !memory && ssd != Some(true)
                } else {
                    memory || ssd != Some(false)
                }
            }
            Event::Cleared { namespace } => {
                let of = |key: &ObjectKey| key.namespace() == *namespace;
                let cleared = self.places.iter_mut().filter(|(key, _)| of(key));
                cleared.for_each(|(_, place)| {
                    *place = ObjectTiers { memory: false, ssd: Some(false) }
                });
                self.empty.push(*namespace);
                true
            }
            Event::Forgot { tier } => {
                let on_ssd = self.places.values_mut().filter(|place| place.ssd == Some(true));
                on_ssd.for_each(|place| place.ssd = None);
                *tier == Tier::Ssd
            }
        }
    }
}

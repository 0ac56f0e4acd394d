//! The locations of objects according to the store's events.

use std::collections::BTreeMap;

use pagelith::{Event, Tier};
use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;

/// Events kept by the store: more than occur between two lookups.
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
    objects: BTreeMap<ObjectKey, ObjectTiers>,
    /// Namespaces in which an object without an event is not on SSD.
    empty: Vec<NamespaceId>,
}

impl EventMirror {
    /// Where an object is.
    pub(super) fn tiers_of(&mut self, key: &ObjectKey) -> &mut ObjectTiers {
        let empty = self.empty.contains(&key.namespace());
        self.objects
            .entry(*key)
            .or_insert(ObjectTiers { memory: false, ssd: empty.then_some(false) })
    }

    /// Applies an event; false if it contradicts earlier ones.
    pub(super) fn note(&mut self, event: &Event) -> bool {
        match event {
            Event::Stored { tier, key, new } => {
                let tiers = self.tiers_of(key);
                let known = tiers.memory || tiers.ssd == Some(true);
                let was = match tier {
                    Tier::Memory => std::mem::replace(&mut tiers.memory, true),
                    _ => tiers.ssd.replace(true) == Some(true),
                };
                !(was || *new && known)
            }
            Event::Removed { tier, key, gone } => {
                let tiers = self.tiers_of(key);
                let was = match tier {
                    Tier::Memory => std::mem::replace(&mut tiers.memory, false),
                    _ => tiers.ssd.replace(false) != Some(false),
                };
                let ObjectTiers { memory, ssd } = *tiers;
                if *gone {
                    tiers.ssd = Some(false);
                }
                was && if *gone {
                    !memory && ssd != Some(true)
                } else {
                    memory || ssd != Some(false)
                }
            }
            Event::Cleared { namespace } => {
                let of = |key: &ObjectKey| key.namespace() == *namespace;
                let cleared = self.objects.iter_mut().filter(|(key, _)| of(key));
                cleared.for_each(|(_, tiers)| {
                    *tiers = ObjectTiers { memory: false, ssd: Some(false) }
                });
                self.empty.push(*namespace);
                true
            }
            Event::Forgot { tier } => {
                let on_ssd = self.objects.values_mut().filter(|tiers| tiers.ssd == Some(true));
                on_ssd.for_each(|tiers| tiers.ssd = None);
                *tier == Tier::Ssd
            }
            _ => false,
        }
    }
}

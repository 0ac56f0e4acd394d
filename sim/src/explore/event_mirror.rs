//! A subscriber to the store's events: their contents must match look-ups.

use std::collections::BTreeMap;

use pagelith::{Event, Store, Tier};
use pagelith_layouts::ids::NamespaceId;
use pagelith_layouts::key::ObjectKey;

use super::objects::{Oid, base_of, key};
use super::report::FindingKind;
use super::run::Run;

/// Events kept by the store: more than occur between two look-ups.
pub(super) const EVENTS_MAX: u32 = 1 << 16;

/// The location of an object according to events.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    memory: bool,
    /// `None` if unknown: stored before the open, or on a tier that reported lost entries.
    ssd: Option<bool>,
}

/// State derived from the events since the open.
#[derive(Default)]
pub(super) struct EventMirror {
    places: BTreeMap<ObjectKey, Place>,
    /// Namespaces in which an object without an event is not on SSD.
    empty: Vec<NamespaceId>,
}

impl EventMirror {
    fn place(&mut self, key: &ObjectKey) -> &mut Place {
        let empty = self.empty.contains(&key.namespace());
        self.places.entry(*key).or_insert(Place { memory: false, ssd: empty.then_some(false) })
    }

    /// Applies an event; false if it contradicts earlier ones.
    fn note(&mut self, event: &Event) -> bool {
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
                let Place { memory, ssd } = *place;
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
                cleared.for_each(|(_, place)| *place = Place { memory: false, ssd: Some(false) });
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

fn event_text(event: &Event) -> String {
    match event {
        Event::Stored { tier, key, new } => format!("stored {tier:?} {key} new={new}"),
        Event::Removed { tier, key, gone } => format!("removed {tier:?} {key} gone={gone}"),
        Event::Cleared { namespace } => format!("cleared {namespace}"),
        Event::Forgot { tier } => format!("forgot {tier:?}"),
    }
}

impl Run<'_> {
    /// Applies new events.
    fn apply_events(&mut self, store: &Store) {
        let page = store.take_events(usize::MAX);
        if page.lost > 0 {
            self.report(FindingKind::Wrong, format!("events were dropped count={}", page.lost));
        }
        for event in page.events {
            self.trace(|| format!("  event {}", event_text(&event)));
            if !self.event_mirror.note(&event) {
                self.report(
                    FindingKind::Wrong,
                    format!("event contradicts earlier events {}", event_text(&event)),
                );
            }
        }
    }

    /// Presence of these objects according to events, before the store is asked.
    pub(super) fn expected_presence(&mut self, store: &Store, oids: &[Oid]) -> Vec<Option<bool>> {
        self.apply_events(store);
        let expected = |oid: &Oid| {
            let Place { memory, ssd } = *self.event_mirror.place(&key(*oid));
            if memory { Some(true) } else { ssd }
        };
        oids.iter().map(expected).collect()
    }

    /// Checks that events and a look-up agree about an object.
    pub(super) fn check_event_presence(&mut self, oid: Oid, expected: Option<bool>, exists: bool) {
        // An attached object is visible only with its base.
        let hidden = !exists && base_of(oid).next().is_some();
        if expected.is_some_and(|expected| expected != exists) && !hidden {
            self.report(
                FindingKind::Wrong,
                format!("look-up and events differ exists={exists} events={expected:?} oid={oid}"),
            );
        }
    }
}

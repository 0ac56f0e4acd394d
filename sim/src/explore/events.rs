//! A subscriber to the store's events: their contents must match lookups.

use pagelith::{Event, Store};

use super::event_mirror::ObjectTiers;
use super::objects::{ObjectId, base_of, key};
use super::report::FindingKind;
use super::run::Run;

fn event_text(event: &Event) -> String {
    match event {
        Event::Stored { tier, key, new } => format!("stored {tier:?} {key} new={new}"),
        Event::Removed { tier, key, gone } => format!("removed {tier:?} {key} gone={gone}"),
        Event::Cleared { namespace } => format!("cleared {namespace}"),
        Event::Forgot { tier } => format!("forgot {tier:?}"),
        other => format!("{other:?}"),
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
    pub(super) fn expected_presence(
        &mut self,
        store: &Store,
        oids: &[ObjectId],
    ) -> Vec<Option<bool>> {
        self.apply_events(store);
        let expected = |oid: &ObjectId| {
            let ObjectTiers { memory, ssd } = *self.event_mirror.tiers_of(&key(*oid));
            if memory { Some(true) } else { ssd }
        };
        oids.iter().map(expected).collect()
    }

    /// Checks that events and a lookup agree about an object.
    pub(super) fn check_event_presence(
        &mut self,
        oid: ObjectId,
        expected: Option<bool>,
        exists: bool,
    ) {
        // An attached object is visible only with its base.
        let hidden = !exists && base_of(oid).next().is_some();
        if expected.is_some_and(|expected| expected != exists) && !hidden {
            self.report(
                FindingKind::Wrong,
                format!("lookup and events differ exists={exists} events={expected:?} oid={oid}"),
            );
        }
    }
}

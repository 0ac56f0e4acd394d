//! Visibility of objects that the index leads to: the current generation of each namespace, and the
//! records, segments and tiers that readers must not use.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use pagelith_layouts::ids::{Generation, NamespaceId, SegmentId};
use pagelith_mutants::{self as mutant, Mutant};

use crate::memory::index::{Entry, SsdLocation};

/// Generations, and the records and segments that readers must not use although the index leads to
/// them. The core owns it, and publishes a copy to lock-free readers after each change.
#[derive(Clone, Debug, Default)]
pub(crate) struct Visibility {
    generations: Arc<HashMap<NamespaceId, Generation>>,
    /// The generation that the last clear since the open replaced.
    cleared: Arc<HashMap<NamespaceId, Generation>>,
    records: HashSet<(u32, u16)>,
    segments: BTreeSet<SegmentId>,
    /// The whole SSD tier is hidden.
    ssd_unread: bool,
    changes: u64,
}

impl Visibility {
    /// The current generation of a namespace.
    pub fn generation(&self, namespace: NamespaceId) -> Generation {
        self.generations.get(&namespace).copied().unwrap_or(Generation::FIRST)
    }

    /// The generation of each namespace that was ever cleared.
    pub fn generations(&self) -> &HashMap<NamespaceId, Generation> {
        &self.generations
    }

    /// Whether a namespace has a generation of its own, or fewer than `most` namespaces have one.
    pub fn has_room(&self, namespace: NamespaceId, most: usize) -> bool {
        self.generations.contains_key(&namespace) || self.generations.len() < most
    }

    /// The generation that the last clear of a namespace since the open replaced.
    pub fn cleared_generation(&self, namespace: NamespaceId) -> Option<Generation> {
        self.cleared.get(&namespace).copied()
    }

    /// Set the generation of a namespace.
    pub fn set_generation(&mut self, namespace: NamespaceId, generation: Generation) {
        Arc::make_mut(&mut self.generations).insert(namespace, generation);
        self.changes += 1;
    }

    /// Replace the generation of a namespace that is cleared.
    pub fn clear(&mut self, namespace: NamespaceId, generation: Generation) {
        let replaced = self.generation(namespace);
        Arc::make_mut(&mut self.cleared).insert(namespace, replaced);
        self.set_generation(namespace, generation);
    }

    /// Hide the record at this location until its segment is reused. One of its objects could not
    /// be read or was removed, and the index does not know the other objects of the record.
    pub fn hide_record(&mut self, location: SsdLocation) {
        self.records.insert((location.segment, location.record_sector));
        self.changes += 1;
    }

    /// A segment is reused: none of its old records can be read any more.
    pub fn reuse_segment(&mut self, segment: SegmentId) {
        let before = self.records.len();
        self.records.retain(|(hidden, _)| *hidden != segment.0);
        self.changes += u64::from(self.records.len() != before);
    }

    /// Hide a segment that reclaim empties while the index may still lead to it: part of one of its
    /// groups may be gone already.
    pub fn hide_segment(&mut self, segment: SegmentId) {
        self.segments.insert(segment);
        self.changes += 1;
    }

    /// Stop hiding a segment: the index no longer leads to it.
    pub fn unhide_segment(&mut self, segment: SegmentId) {
        self.changes += u64::from(self.segments.remove(&segment));
    }

    /// Whether the record at a location is hidden.
    pub fn hides(&self, location: SsdLocation) -> bool {
        let record = !self.records.is_empty()
            && self.records.contains(&(location.segment, location.record_sector));
        record || self.ssd_unread || self.segments.contains(&SegmentId(location.segment))
    }

    /// Number of changes so far.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// A copy that also hides the whole tier if `ssd_unread`, and `segments`.
    pub fn with_ssd_state(
        &self,
        ssd_unread: bool,
        segments: impl Iterator<Item = SegmentId>,
    ) -> Visibility {
        let mut copy = self.clone();
        copy.ssd_unread = ssd_unread;
        copy.segments.extend(segments);
        copy
    }
}

/// Decides whether an object is visible, from one view of the index and of the hidden records.
pub(crate) trait VisibilityFilter {
    /// Whether the record at a location is hidden, or its segment or the whole tier is no longer
    /// read.
    fn is_hidden_at(&self, location: SsdLocation) -> bool;
    /// Name of the base group's member that an attached object links to.
    fn link(&self, fingerprint: u128) -> Option<u64>;
    /// Whether `matches` is true for any object with this name.
    fn any_named(&self, name: u64, matches: impl Fn(&Entry) -> bool) -> bool;

    /// Whether an object is stored on SSD only, in a hidden record.
    fn is_hidden(&self, entry: &Entry) -> bool {
        entry
            .ssd
            .filter(|_| entry.frame.is_none())
            .is_some_and(|location| self.is_hidden_at(location))
    }

    /// Whether an entry's object is visible. An attached object is visible only while its base
    /// group is.
    fn is_visible(&self, entry: &Entry) -> bool {
        !self.is_hidden(entry)
            && (!entry.attached
                || self.has_base(entry.fingerprint)
                || mutant::on(Mutant::AttachedWithoutBase))
    }

    /// Whether the base group that an attached object links to is present.
    fn has_base(&self, fingerprint: u128) -> bool {
        self.link(fingerprint).is_some_and(|base| self.is_base_present(base))
    }

    /// Whether an object with this name is present and can be a base for attached objects.
    fn is_base_present(&self, name: u64) -> bool {
        self.any_named(name, |e| !e.attached && !self.is_hidden(e))
    }
}

//! What decides, beside the index, whether an object is seen: which life its namespace is in, and what of the SSD tier is
//! not to be believed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use pagelith_layouts::ids::{Generation, NamespaceId, SegmentId};
use pagelith_mutants::{self as mutant, Mutant};

use crate::memory::index::{Entry, SsdPlace};

/// What is not seen though the index may lead there. The core's own; a copy is published whenever it has changed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Visibility {
    generations: Arc<HashMap<NamespaceId, Generation>>,
    records: HashSet<(u32, u16)>,
    segments: BTreeSet<SegmentId>,
    /// Nothing on SSD is seen.
    unread: bool,
    changes: u64,
}

impl Visibility {
    /// The generation that a namespace has now.
    pub fn generation(&self, namespace: NamespaceId) -> Generation {
        self.generations.get(&namespace).copied().unwrap_or(Generation::FIRST)
    }

    /// Of every namespace that was ever cleared.
    pub fn generations(&self) -> &HashMap<NamespaceId, Generation> {
        &self.generations
    }

    /// A namespace has another generation from here on.
    pub fn set_generation(&mut self, namespace: NamespaceId, generation: Generation) {
        Arc::make_mut(&mut self.generations).insert(namespace, generation);
        self.changes += 1;
    }

    /// Nothing of the record at this place is seen any more, until its segment is used again: one of its objects could not
    /// be read or was removed, and the index does not know who lies with it.
    pub fn hide_record(&mut self, place: SsdPlace) {
        self.records.insert((place.segment, place.record_block));
        self.changes += 1;
    }

    /// A segment is used again: nothing of what it held can come back.
    pub fn reuse(&mut self, segment: SegmentId) {
        let before = self.records.len();
        self.records.retain(|(hidden, _)| *hidden != segment.0);
        self.changes += u64::from(self.records.len() != before);
    }

    /// A victim is emptied, but the index may still lead there: part of a group of its may be gone already.
    pub fn hide_segment(&mut self, segment: SegmentId) {
        self.segments.insert(segment);
        self.changes += 1;
    }

    /// The index does not lead there any more.
    pub fn unhide_segment(&mut self, segment: SegmentId) {
        self.changes += u64::from(self.segments.remove(&segment));
    }

    /// Whether the record at a place is not to be believed.
    pub fn hides(&self, place: SsdPlace) -> bool {
        let record = !self.records.is_empty() && self.records.contains(&(place.segment, place.record_block));
        record || self.unread || self.segments.contains(&SegmentId(place.segment))
    }

    /// How often it has changed.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// A copy that hides what the tier does not read, too.
    pub fn with(&self, unread: bool, segments: impl Iterator<Item = SegmentId>) -> Visibility {
        let mut copy = self.clone();
        copy.unread = unread;
        copy.segments.extend(segments);
        copy
    }
}

/// Where it can be asked whether an object is seen.
pub(crate) trait VisibilityFilter {
    /// Whether the record of a place is not to be believed, or its segment or the whole tier is not read any more.
    fn is_hidden_at(&self, place: SsdPlace) -> bool;
    /// The base that an attached object names.
    fn link(&self, fingerprint: u128) -> Option<u64>;
    /// Whether there is an object of this name of which `is` is true.
    fn any_named(&self, name: u64, is: impl Fn(&Entry) -> bool) -> bool;

    /// Whether an object lies on SSD only, in a record that is not to be believed.
    fn is_hidden(&self, entry: &Entry) -> bool {
        entry.ssd.filter(|_| entry.frame.is_none()).is_some_and(|place| self.is_hidden_at(place))
    }

    /// Whether an entry's object may be seen: what is attached only while its base group is.
    fn is_visible(&self, entry: &Entry) -> bool {
        !self.is_hidden(entry)
            && (!entry.attached || self.has_base(entry.fingerprint) || mutant::on(Mutant::AttachedAlone))
    }

    /// Whether the base group is here that an attached object's link names.
    fn has_base(&self, fingerprint: u128) -> bool {
        self.link(fingerprint).is_some_and(|base| self.is_base_present(base))
    }

    /// Whether an object of this name is here and can have others attached to it.
    fn is_base_present(&self, name: u64) -> bool {
        self.any_named(name, |e| !e.attached && !self.is_hidden(e))
    }
}

//! Lookups without the core's lock while another thread changes the index.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use pagelith_io::seqlock::ReadStamp;

use super::entry::{Entry, stored};
use super::table::Table;

/// Access to the index for threads without the core's lock. A result is valid only if
/// [`IndexReader::validate`] accepts its [`ReadStamps`] afterwards; until then it may be arbitrary.
pub struct IndexReader {
    table: Arc<Table>,
}

/// Versions of the stripes that a reader read.
#[derive(Default)]
pub struct ReadStamps {
    stamps: RefCell<Vec<ReadStamp>>,
    /// A stripe was being changed when it was read.
    torn: Cell<bool>,
}

impl ReadStamps {
    /// Reserve space for the lookups of `keys` keys.
    pub fn reserve(&self, keys: usize) {
        self.stamps.borrow_mut().reserve(keys + keys / 8);
    }
}

impl IndexReader {
    pub(crate) fn new(table: Arc<Table>) -> IndexReader {
        IndexReader { table }
    }

    /// Prefetches the home slots of these fingerprints into the cache. Groups of
    /// [`PREFETCH_GROUP`](super::PREFETCH_GROUP) are most effective. It only affects the time of
    /// the next lookup.
    #[inline]
    pub fn prefetch(&self, fingerprints: &[u128]) {
        self.table.prefetch(fingerprints.iter().map(|f| stored(*f)));
    }

    /// As [`super::Index::find`].
    #[inline]
    pub fn find(&self, fingerprint: u128, stamps: &ReadStamps) -> impl Iterator<Item = Entry> {
        self.table.find(fingerprint, |at| self.note_stripe(stamps, at)).map(|(_, entry)| entry)
    }

    /// As [`super::Index::link`].
    pub fn link(&self, fingerprint: u128, stamps: &ReadStamps) -> Option<u64> {
        self.table.link(fingerprint, |at| self.note_stripe(stamps, at)).map(|(_, base)| base)
    }

    /// As [`super::Index::find_named`].
    pub fn find_named(&self, name: u64, stamps: &ReadStamps) -> impl Iterator<Item = Entry> {
        self.table.find_named(name, |at| self.note_stripe(stamps, at))
    }

    /// Whether all results that were read with `stamps` are from one state of the index: no stripe
    /// that was read has changed since.
    #[inline]
    pub fn validate(&self, stamps: &ReadStamps) -> bool {
        !stamps.torn.get() && self.table.validate(&stamps.stamps.borrow())
    }

    #[inline]
    fn note_stripe(&self, stamps: &ReadStamps, at: usize) {
        match self.table.stamp(at) {
            Some(stamp) => stamps.stamps.borrow_mut().push(stamp),
            None => stamps.torn.set(true),
        }
    }
}

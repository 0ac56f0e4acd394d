//! Looking things up while another thread changes the index.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use pagelith_io::versions::Mark;

use super::entry::{Entry, stored};
use super::table::Table;

/// The index as threads see it that do not have it. What is found counts for something only if the [`Marks`] that it was
/// found by hold afterwards; until then it may be anything.
pub struct Reader {
    table: Arc<Table>,
}

/// What a reader relies on.
#[derive(Default)]
pub struct Marks {
    marks: RefCell<Vec<Mark>>,
    /// Something was being changed where it looked.
    torn: Cell<bool>,
}

impl Marks {
    /// Make room for looks at so many keys.
    pub fn expect(&self, keys: usize) {
        self.marks.borrow_mut().reserve(keys + keys / 8);
    }
}

impl Reader {
    pub(crate) fn new(table: Arc<Table>) -> Reader {
        Reader { table }
    }

    /// Starts bringing these fingerprints' home slots into the cache, [`PREFETCH_GROUP`](super::PREFETCH_GROUP)
    /// at a time to good effect. Changes nothing; only how long the next look at them takes.
    #[inline]
    pub fn prefetch(&self, fingerprints: &[u128]) {
        self.table.prefetch(fingerprints.iter().map(|f| stored(*f)));
    }

    /// As [`super::Index::find`].
    #[inline]
    pub fn find(&self, fingerprint: u128, marks: &Marks) -> impl Iterator<Item = Entry> {
        self.table.find(fingerprint, |at| self.enter(marks, at)).map(|(_, entry)| entry)
    }

    /// As [`super::Index::link`].
    pub fn link(&self, fingerprint: u128, marks: &Marks) -> Option<u64> {
        self.table.link(fingerprint, |at| self.enter(marks, at)).map(|(_, base)| base)
    }

    /// As [`super::Index::find_named`].
    pub fn find_named(&self, name: u64, marks: &Marks) -> impl Iterator<Item = Entry> {
        self.table.find_named(name, |at| self.enter(marks, at))
    }

    /// Whether all that was found by `marks` was so at one moment: nothing has changed since where it was looked for.
    #[inline]
    pub fn holds(&self, marks: &Marks) -> bool {
        !marks.torn.get() && self.table.hold(&marks.marks.borrow())
    }

    #[inline]
    fn enter(&self, marks: &Marks, at: usize) {
        match self.table.mark(at) {
            Some(mark) => marks.marks.borrow_mut().push(mark),
            None => marks.torn.set(true),
        }
    }
}

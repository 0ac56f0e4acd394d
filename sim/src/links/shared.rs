//! State shared by the clients of a run.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pagelith::Result;
use pagelith_layouts::key::ObjectKey;

use super::object_keys::{group, key, removed_with};
use super::oracle::Oracle;
use super::report::Tally;

/// State shared by the clients of a run.
#[derive(Clone)]
pub struct Shared {
    pub oracle: Arc<Mutex<Oracle>>,
    pub tally: Arc<Mutex<Tally>>,
    /// The object that any client requested last.
    pub asked_last: Arc<AtomicUsize>,
    /// The object that any client put last.
    pub put_last: Arc<AtomicUsize>,
    /// The object that is being removed, plus 1; 0 if there is none.
    pub removing: Arc<AtomicUsize>,
}

impl Shared {
    pub fn oracle(&self) -> MutexGuard<'_, Oracle> {
        self.oracle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes objects through store `by`, with the objects that are removed with them.
    pub(super) fn removed(
        &self,
        by: usize,
        some: Vec<usize>,
        remove: impl FnOnce(&[ObjectKey]) -> Result<usize>,
    ) {
        let keys: Vec<ObjectKey> = some.iter().flat_map(|object| group(*object)).map(key).collect();
        let some: Vec<usize> = some.into_iter().flat_map(removed_with).collect();
        let begun = self.oracle().moment();
        if remove(&keys).is_ok() {
            some.into_iter().for_each(|object| self.oracle().removed(by, object, begun));
            self.tally().removals += 1;
        }
    }
}

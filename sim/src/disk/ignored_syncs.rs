//! Syncs that a test lets the disk acknowledge without making anything durable.

use std::collections::BTreeMap;
use std::fmt;

/// Decides whether a sync is ignored, by file (`sim0/segments`) and number (from 1, counted for
/// each file since the hook was set).
type Predicate = Box<dyn Fn(&str, u64) -> bool + Send>;

/// Syncs that succeed and make nothing durable.
#[derive(Default)]
pub(crate) struct IgnoredSyncs {
    pub(super) ignore: Option<Predicate>,
    pub(super) seen: BTreeMap<String, u64>,
}

impl IgnoredSyncs {
    /// Counts a sync of `file`; true if it is to be ignored.
    pub(crate) fn count(&mut self, file: &str) -> bool {
        let Some(ignore) = &self.ignore else { return false };
        let n = self.seen.entry(file.to_string()).or_default();
        *n += 1;
        ignore(file, *n)
    }
}

impl fmt::Debug for IgnoredSyncs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IgnoredSyncs(on={}, seen={:?})", self.ignore.is_some(), self.seen)
    }
}

//! Two things a test of crashes can ask of the disk: to lie about syncs, so that it can be shown that the
//! checker notices a store that leaves one out; and to keep a copy of itself after every change.

use std::collections::BTreeMap;
use std::fmt;

use super::SimDisk;
use super::crash::DiskSnapshot;
use super::process::lock;
use super::state::State;

/// Says of a sync, by file (`sim0/segments`) and number (from 1, counted for each file since the lie began),
/// whether it is a lie.
type Predicate = Box<dyn Fn(&str, u64) -> bool + Send>;

/// Syncs that succeed and make nothing durable.
#[derive(Default)]
pub(crate) struct Lies {
    ignore: Option<Predicate>,
    seen: BTreeMap<String, u64>,
}

impl Lies {
    /// Count a sync of `file`; whether it is to be ignored.
    pub(crate) fn strike(&mut self, file: &str) -> bool {
        let Some(ignore) = &self.ignore else { return false };
        let n = self.seen.entry(file.to_string()).or_default();
        *n += 1;
        ignore(file, *n)
    }
}

impl fmt::Debug for Lies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lies(on={}, seen={:?})", self.ignore.is_some(), self.seen)
    }
}

impl State {
    /// A change was executed.
    pub(crate) fn keep_point(&mut self) {
        if self.points.is_some() {
            let now = self.snapshot();
            self.points.get_or_insert_default().push(now);
        }
    }
}

impl SimDisk {
    /// From now on acknowledge, without making anything durable, the syncs for which `ignore` says so: of which
    /// file (directory and name, `sim0/segments`), and the how-manieth of that file since this call, from 1.
    /// They count and are logged as syncs. What such a sync should have covered is still made durable by the
    /// next honest one, as it would be for a store that forgot this one. Ends with a crash or a restore.
    pub fn ignore_syncs(&self, ignore: impl Fn(&str, u64) -> bool + Send + 'static) {
        lock(&self.0).lies = Lies { ignore: Some(Box::new(ignore)), seen: BTreeMap::new() };
    }

    /// From now on keep a copy of the disk as it is now and after every change. Each copy is what
    /// [`SimDisk::stop_after`] at that change would leave, so that one run gives every crash point.
    pub fn keep_points(&self) {
        let mut state = lock(&self.0);
        state.points = Some(Vec::new());
        state.keep_point();
    }

    /// End [`SimDisk::keep_points`]: point `n` is the disk after `n` changes.
    pub fn take_points(&self) -> Vec<DiskSnapshot> {
        lock(&self.0).points.take().unwrap_or_default()
    }
}

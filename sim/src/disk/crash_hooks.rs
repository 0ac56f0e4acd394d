//! Two hooks for crash tests. One acknowledges syncs without making anything durable, to show that
//! the checker detects a store that omits a sync. The other keeps a copy of the disk after every
//! change.

use std::collections::BTreeMap;

use super::SimDisk;
use super::ignored_syncs::IgnoredSyncs;
use super::process::lock;
use super::snapshot::DiskSnapshot;
use super::state::State;

impl State {
    /// Records a crash point after a change.
    pub(crate) fn keep_point(&mut self) {
        if self.points.is_some() {
            let now = self.snapshot();
            self.points.get_or_insert_default().push(now);
        }
    }
}

impl SimDisk {
    /// From now on acknowledges, without making anything durable, the syncs for which `ignore`
    /// returns true. Its arguments are the file (directory and name, `sim0/segments`) and the
    /// number of the sync for that file since this call, from 1. Such syncs count and are logged as
    /// syncs. The next honest sync makes durable what the ignored one should have covered, as for a
    /// store that omitted it. Ends with a crash or a restore.
    pub fn ignore_syncs(&self, ignore: impl Fn(&str, u64) -> bool + Send + 'static) {
        lock(&self.0).ignored_syncs =
            IgnoredSyncs { ignore: Some(Box::new(ignore)), seen: BTreeMap::new() };
    }

    /// From now on keeps a copy of the disk as it is now and after every change. Each copy equals
    /// the disk that [`SimDisk::stop_after`] at that change would leave, so one run gives every
    /// crash point.
    pub fn keep_points(&self) {
        let mut state = lock(&self.0);
        state.points = Some(Vec::new());
        state.keep_point();
    }

    /// Ends [`SimDisk::keep_points`]: point `n` is the disk after `n` changes.
    pub fn take_points(&self) -> Vec<DiskSnapshot> {
        lock(&self.0).points.take().unwrap_or_default()
    }
}

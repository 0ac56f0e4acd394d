//! Loads that are slower than recomputing: with `read.prefill_tokens_per_s` they are misses.

use super::GetBatch;
use crate::api::outcome::MissCause;
use crate::read::page_depth::PageDepths;
use crate::read::recompute::Recompute;
use crate::read::slot::{HitSource, Settled};
use crate::state::session_io::SessionIo;

impl GetBatch {
    /// Decide once for these objects, which are on SSD: if recent loads say that loading them takes
    /// longer than recomputing their pages, settle them as misses and return true.
    pub(super) fn settle_if_slow(&mut self, io: &mut SessionIo, from_ssd: &[usize]) -> bool {
        let Some(page_seconds) = io.shared.config.page_recompute_seconds() else { return false };
        if self.recompute != Recompute::Undecided || from_ssd.is_empty() {
            return false;
        }
        let now = io.shared.now();
        self.recompute = Recompute::Loading(now, now);
        let (mut depths, mut last) = (PageDepths::default(), 0);
        let mut bytes = 0;
        for &i in from_ssd {
            last = depths.depth_of(&self.slots[i].key);
            bytes += self.slots[i].destination_bytes();
        }
        let pages = f64::from(last) + 1.0;
        let load = io.shared.reads.loads.seconds(bytes, now);
        if load.is_none_or(|seconds| seconds <= pages * page_seconds) {
            return false;
        }
        self.recompute = Recompute::Never;
        from_ssd.iter().for_each(|&i| self.settle(io, i, Settled::Miss(MissCause::Slow)));
        true
    }

    /// Note how long the load of the objects on SSD took.
    pub(super) fn note_load(&self, io: &SessionIo) {
        let Recompute::Loading(began, ended) = self.recompute else { return };
        let loaded = self.slots.iter().filter_map(|slot| match slot.settled() {
            Some(Settled::Hit(hit)) if matches!(hit.source, HitSource::Ssd { .. }) => {
                Some(hit.bytes)
            }
            _ => None,
        });
        let bytes: u64 = loaded.sum();
        if bytes > 0 {
            io.shared.reads.loads.note(bytes, ended.since(began), ended);
        }
    }
}

//! Loads that are slower than recomputing are misses, if the rate of the caller is known: that of
//! its call, or `read.prefill_tokens_per_s`.

use super::GetBatch;
use crate::api::outcome::MissCause;
use crate::read::item::{HitSource, ItemOutcome};
use crate::read::page_depth::PageDepths;
use crate::read::recompute::Recompute;
use crate::state::session_io::SessionIo;

impl GetBatch {
    /// Decide once for the request of these objects, which are on SSD: if recent loads say that
    /// loading them takes longer than recomputing their pages, make them misses and return
    /// true.
    pub(super) fn miss_if_slow(&mut self, io: &mut SessionIo, from_ssd: &[usize]) -> bool {
        // Loads are measured for later calls with a rate, also by those without.
        if from_ssd.is_empty() || !io.shared.config.knows_page_tokens() {
            return false;
        }
        let now = io.shared.now();
        let is_slow = match self.recompute {
            Recompute::Never | Recompute::Loading(..) => return false,
            Recompute::Slow => true,
            Recompute::Load => false,
            Recompute::Undecided { more, tokens_per_s } => {
                let page = io.shared.config.page_recompute_seconds(tokens_per_s);
                page.is_some_and(|page| {
                    let (bytes, pages) = self.size_of(from_ssd);
                    let load = io.shared.reads.loads.seconds(bytes + more, now);
                    load.is_some_and(|seconds| seconds > pages * page)
                })
            }
        };
        if !is_slow {
            self.recompute = Recompute::Loading(now, now);
            return false;
        }
        self.recompute = Recompute::Slow;
        from_ssd.iter().for_each(|&i| self.set_outcome(io, i, ItemOutcome::Miss(MissCause::Slow)));
        true
    }

    /// Bytes of these objects, and the number of pages from the first to the last.
    fn size_of(&self, objects: &[usize]) -> (u64, f64) {
        let (mut depths, mut last, mut bytes) = (PageDepths::default(), 0, 0);
        for &i in objects {
            last = depths.depth_of(&self.items[i].key);
            bytes += self.items[i].destination_bytes();
        }
        (bytes, f64::from(last) + 1.0)
    }

    /// Note how long the load of the objects on SSD took.
    pub(super) fn note_load(&self, io: &SessionIo) {
        let Recompute::Loading(began, ended) = self.recompute else { return };
        let loaded = self.items.iter().filter_map(|item| match item.outcome() {
            Some(ItemOutcome::Hit(hit)) if matches!(hit.source, HitSource::Ssd { .. }) => {
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

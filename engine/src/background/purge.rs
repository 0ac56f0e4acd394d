//! Removes entries from the index: those of a quarantined segment, of a reclaimed one in which a
//! damaged header hid records or, when the tier is off, all.
//! They are hidden at once (`VisibilityFilter::is_hidden_at`); the walk over the index follows in
//! short critical sections. Frames that DRAM holds too are written again.

use std::collections::BTreeSet;

use pagelith_tiers::policy::FrameId;

use crate::background::log_context::LogContext;
use crate::memory::departed::Departure;
use crate::memory::index::{SlotContent, SsdLocation};

/// Drops the entries of the first of `SsdCore::purges`, which stays there until all are dropped.
#[derive(Debug, Default)]
pub(crate) struct Purger(Option<IndexWalk>);

/// A walk over the index that drops entries.
#[derive(Debug, Default)]
struct IndexWalk {
    cursor: u64,
    objects: u64,
    requeued: u64,
}

impl Purger {
    /// Continue the walk, or begin the next one; true if anything was done.
    pub fn step(&mut self, cx: &mut LogContext) -> bool {
        let mut core = cx.shared.lock();
        let first = core.ssd.as_ref().and_then(|s| s.purges.front());
        let Some(segment) = first.copied() else { return false };
        if self.0.is_none()
            && let Some(segment) = segment
        {
            // Nothing more may be appended to it.
            cx.log.seal_open_if(segment);
        }
        let walk = self.0.get_or_insert_default();
        let mut entries = Vec::new();
        let to = walk.cursor + core.index.walk_piece();
        core.index.visit_homes(walk.cursor, to, |visited| {
            let SlotContent::Object(e) = visited else { return };
            let of = |at: &SsdLocation| segment.is_none_or(|s| s.0 == at.segment);
            entries.extend(e.ssd.filter(of).map(|location| (e.fingerprint, location, e.frame)));
        });
        let mut frames = BTreeSet::new();
        for (fingerprint, location, frame) in entries {
            walk.objects += u64::from(core.drop_ssd(fingerprint, location, None, Departure::Lost));
            frames.extend(frame);
        }
        walk.requeued +=
            frames.into_iter().filter(|id| core.requeue_frame(FrameId(*id))).count() as u64;
        walk.cursor = to;
        if to >= core.index.home_slots() {
            segment.into_iter().for_each(|segment| core.visibility.unhide_segment(segment));
            tracing::warn!(
                segment = segment.map(|s| s.0),
                objects = walk.objects,
                requeued = walk.requeued,
                "dropped untrusted entries"
            );
            core.ssd.iter_mut().for_each(|ssd| _ = ssd.purges.pop_front());
            self.0 = None;
        }
        true
    }
}

//! Removes untrusted entries from the index: those of a quarantined segment or, when the tier is
//! off, all. They are hidden at once (`VisibilityFilter::is_hidden_at`); the walk over the index
//! follows in short critical sections. Pages that DRAM holds too are written again.

use std::collections::BTreeSet;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::SegmentId;
use pagelith_tiers::policy::FrameId;
use pagelith_tiers::ssd::segments::SegmentState;

use crate::background::flusher::Flusher;
use crate::memory::index::Visited;
use crate::state::core::Core;

/// A walk over the index that drops entries.
#[derive(Debug)]
pub(crate) struct Purge {
    /// The segment whose entries are dropped; `None` for all.
    pub segment: Option<SegmentId>,
    cursor: u64,
    objects: u64,
    requeued: u64,
}

impl Core {
    /// A record in a segment could not be read, or was not what belongs there. After
    /// `ssd.quarantine_after` such failures the segment is neither read nor used again.
    pub fn suspect(&mut self, segment: SegmentId, now: Mono) {
        let Some(ssd) = self.ssd.as_mut() else { return };
        if !ssd.health.read_failed(segment, now) {
            return;
        }
        tracing::error!(
            segment = segment.0,
            state = ssd.health.state().name(),
            "segment is quarantined"
        );
        ssd.purges.push_back(Some(segment));
        ssd.damage.note(ssd.segments.get(segment).order);
        self.events.forgot();
        if ssd.segments.get(segment).state() == SegmentState::Sealed {
            ssd.segments.set_state(segment, SegmentState::Quarantined);
        }
    }

    /// Set a segment's state, unless it was quarantined in the meantime.
    pub fn set_segment_state(&mut self, segment: SegmentId, state: SegmentState) {
        let Some(ssd) = self.ssd.as_mut() else { return };
        let quarantined = ssd.health.is_quarantined(segment);
        ssd.segments
            .set_state(segment, if quarantined { SegmentState::Quarantined } else { state });
    }

    /// Whether a segment has no reader, and gets none before it is opened with a new incarnation.
    /// The index must no longer lead to it.
    pub fn close_if_unread(&self, segment: SegmentId) -> bool {
        self.ssd.as_ref().is_none_or(|ssd| ssd.guards.close_if_empty(segment))
    }
}

impl Flusher {
    /// Whether entries remain to be dropped from the index.
    pub(crate) fn is_purging(&self) -> bool {
        self.purge.is_some()
            || self.shared.lock().ssd.as_ref().is_some_and(|s| !s.purges.is_empty())
    }

    /// Continue the walk, or begin the next one; true if anything was done.
    pub(crate) fn step_purge(&mut self) -> bool {
        let shared = self.shared.clone();
        let mut core = shared.lock();
        if self.purge.is_none() {
            let next = core.ssd.as_mut().and_then(|s| s.purges.pop_front());
            self.purge = next.map(|segment| Purge { segment, cursor: 0, objects: 0, requeued: 0 });
            if let Some(segment) = next.flatten() {
                // Nothing more may be appended to it.
                self.log.seal_open_if(segment);
            }
        }
        let Some(purge) = self.purge.as_mut() else { return false };
        let mut entries = Vec::new();
        let to = purge.cursor + core.index.walk_piece();
        core.index.visit_homes(purge.cursor, to, |visited| {
            let Visited::Object(e) = visited else { return };
            let of = |at: &crate::memory::index::SsdPlace| {
                purge.segment.is_none_or(|s| s.0 == at.segment)
            };
            entries.extend(e.ssd.filter(of).map(|place| (e.fingerprint, place, e.frame)));
        });
        let mut pages = BTreeSet::new();
        for (fingerprint, place, frame) in entries {
            purge.objects += u64::from(core.drop_ssd(fingerprint, place, None));
            pages.extend(frame);
        }
        purge.requeued +=
            pages.into_iter().filter(|id| core.requeue_frame(FrameId(*id))).count() as u64;
        purge.cursor = to;
        if to >= core.index.home_slots() {
            let Purge { segment, objects, requeued, .. } = *purge;
            segment.into_iter().for_each(|segment| core.visibility.unhide_segment(segment));
            tracing::warn!(
                segment = segment.map(|s| s.0),
                objects,
                requeued,
                "dropped untrusted entries"
            );
            self.purge = None;
        }
        true
    }
}

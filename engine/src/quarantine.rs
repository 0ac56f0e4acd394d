//! What is no longer trusted on SSD leaves the index: the entries of a quarantined segment, or, when the tier is off,
//! all. Nothing of it is seen from the first moment (`Sight::is_hidden_at`); the walk over the index comes after, in
//! short critical sections. What DRAM holds too is written again.

use std::collections::BTreeSet;

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::SegmentId;
use pagelith_tiers::policy::FrameId;
use pagelith_tiers::ssd::segments::SegmentState;

use crate::core::Core;
use crate::flusher::Flusher;
use crate::index::Visited;

/// A walk under way.
#[derive(Debug)]
pub(crate) struct Purge {
    /// Which segment's entries go; all of them if none is named.
    pub what: Option<SegmentId>,
    cursor: u64,
    objects: u64,
    again: u64,
}

impl Core {
    /// Something in a segment could not be read, or was not what belongs there. Too much of it, and the segment is
    /// neither read nor used again.
    pub fn suspect(&mut self, segment: SegmentId, now: Mono) {
        let Some(ssd) = self.ssd.as_mut() else { return };
        if !ssd.health.read_failed(segment, now) {
            return;
        }
        tracing::error!(segment = segment.0, state = ssd.health.state().name(), "segment is quarantined");
        ssd.purges.push_back(Some(segment));
        ssd.damage.note(ssd.segments.get(segment).order);
        self.events.forgot();
        if ssd.segments.get(segment).state() == SegmentState::Sealed {
            ssd.segments.set_state(segment, SegmentState::Quarantined);
        }
    }

    /// What a segment becomes that was to become `state`: nothing if it was quarantined meanwhile.
    pub fn set_segment_state(&mut self, segment: SegmentId, state: SegmentState) {
        let Some(ssd) = self.ssd.as_mut() else { return };
        let quarantined = ssd.health.is_quarantined(segment);
        ssd.segments.set_state(segment, if quarantined { SegmentState::Quarantined } else { state });
    }

    /// Whether nobody reads a segment, and nobody will before it is opened anew: the index must not lead there any more.
    pub fn is_left(&self, segment: SegmentId) -> bool {
        self.ssd.as_ref().is_none_or(|ssd| ssd.guards.close_if_empty(segment))
    }
}

impl Flusher {
    /// Whether entries are still to leave the index.
    pub(crate) fn is_purging(&self) -> bool {
        self.purge.is_some() || self.shared.lock().ssd.as_ref().is_some_and(|s| !s.purges.is_empty())
    }

    /// Go on with the walk, or begin the next; true if anything was done.
    pub(crate) fn step_purge(&mut self) -> bool {
        let shared = self.shared.clone();
        let mut core = shared.lock();
        if self.purge.is_none() {
            let next = core.ssd.as_mut().and_then(|s| s.purges.pop_front());
            self.purge = next.map(|what| Purge { what, cursor: 0, objects: 0, again: 0 });
            if let Some(segment) = next.flatten() {
                // Nothing more is appended to it.
                self.log.seal_open_if(segment);
            }
        }
        let Some(purge) = self.purge.as_mut() else { return false };
        let mut entries = Vec::new();
        let to = purge.cursor + core.index.walk_piece();
        core.index.visit_homes(purge.cursor, to, |visited| {
            let Visited::Object(e) = visited else { return };
            let of = |at: &crate::index::SsdPlace| purge.what.is_none_or(|s| s.0 == at.segment);
            entries.extend(e.ssd.filter(of).map(|place| (e.fingerprint, place, e.frame)));
        });
        let mut pages = BTreeSet::new();
        for (fingerprint, place, frame) in entries {
            purge.objects += u64::from(core.drop_ssd(fingerprint, place, None));
            pages.extend(frame);
        }
        purge.again += pages.into_iter().filter(|id| core.requeue_frame(FrameId(*id))).count() as u64;
        purge.cursor = to;
        if to >= core.index.home_slots() {
            let Purge { what, objects, again, .. } = *purge;
            what.into_iter().for_each(|segment| core.visibility.show_segment(segment));
            tracing::warn!(segment = what.map(|s| s.0), objects, again, "what is not trusted is forgotten");
            self.purge = None;
        }
        true
    }
}

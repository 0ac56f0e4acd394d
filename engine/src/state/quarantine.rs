//! States of segments: quarantine of those whose records cannot be read, and reuse of emptied ones.

use pagelith_io::clock::Mono;
use pagelith_layouts::ids::SegmentId;
use pagelith_tiers::ssd::segments::SegmentState;

use crate::state::core::Core;

impl Core {
    /// A record in a segment could not be read, or was not the expected one. After
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

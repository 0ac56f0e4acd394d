//! Lists the records of a victim without a readable footer, by its record headers in order.

use pagelith_io::disk::Completion;
use pagelith_layouts::footer::{self, FooterEntry};
use pagelith_layouts::ids::SegmentId;
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_tiers::ssd::segment_walk::HeaderWalk;

use crate::background::log_context::LogContext;
use crate::background::log_op::LogOp;

/// A scan of all record headers of the victim.
#[derive(Debug)]
pub(super) struct Scan {
    walk: HeaderWalk,
    entries: Vec<FooterEntry>,
    /// The last read failed and is being retried.
    retrying: bool,
}

/// Result of a step.
pub(super) enum Scanned {
    /// The next read is in flight.
    Reading,
    /// All headers were read.
    All(Vec<FooterEntry>),
    /// There is no memory, or no room in the queue.
    NoRoom,
}

impl Scan {
    pub fn begin(cx: &LogContext, identity: SegmentIdentity) -> Scan {
        let segment = identity.segment;
        let data_end =
            cx.shared.lock().ssd.as_ref().map_or(0, |s| s.segments.get(segment).data_end);
        tracing::info!(segment = segment.0, "segment has no readable footer, its headers are read");
        let end = if data_end > 0 { data_end } else { cx.volume.geometry.segment_bytes };
        Scan { walk: HeaderWalk::new(identity, end), entries: Vec::new(), retrying: false }
    }

    /// Submit the next read.
    pub fn step(&mut self, cx: &mut LogContext, segment: SegmentId) -> Scanned {
        match self.walk.next_read() {
            None => Scanned::All(std::mem::take(&mut self.entries)),
            Some((at, len)) if cx.read(LogOp::Scan, segment, at, len) => Scanned::Reading,
            Some(_) => Scanned::NoRoom,
        }
    }

    /// A read ended; false if it failed twice.
    pub fn ended(&mut self, segment: SegmentId, completion: Completion) -> bool {
        if let Err(fault) = &completion.result {
            tracing::warn!(%fault, segment = segment.0, "reclaim: victim cannot be read; check the drive");
            return !std::mem::replace(&mut self.retrying, true);
        }
        self.retrying = false;
        let entries = &mut self.entries;
        for part in completion.op.into_parts() {
            self.walk.feed(part.bytes(), &mut |record| entries.extend(footer::entries_of(record)));
        }
        true
    }
}

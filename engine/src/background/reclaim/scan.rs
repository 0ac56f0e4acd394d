//! Lists the records of a victim without a readable footer, by its record headers in order.

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::disk::{Completion, Op};
use pagelith_layouts::footer::{self, FooterEntry};
use pagelith_layouts::ids::SegmentId;
use pagelith_tiers::ssd::segment_walk::Walk;

use super::Stage;
use crate::background::flusher::{Flusher, TAG_SCAN};

/// A scan of all record headers of the victim.
#[derive(Debug)]
pub(crate) struct Scan {
    walk: Walk,
    entries: Vec<FooterEntry>,
    tried: bool,
}

impl Flusher {
    pub(crate) fn begin_scan(&mut self) {
        let (Some(volume), Some(r)) = (self.shared.volume.clone(), self.reclaim.as_mut()) else {
            return;
        };
        let data_end = {
            let core = self.shared.lock();
            core.ssd.as_ref().map_or(0, |s| s.segments.get(r.segment).data_end)
        };
        tracing::info!(
            segment = r.segment.0,
            "segment has no readable footer, its headers are read"
        );
        let end = if data_end > 0 { data_end } else { volume.geometry.segment_bytes };
        r.stage = Stage::Scanning;
        r.scan = Some(Scan { walk: Walk::new(r.identity, end), entries: Vec::new(), tried: false });
        self.continue_scan();
    }

    fn continue_scan(&mut self) {
        let Some(volume) = self.shared.volume.clone() else { return };
        let Some((segment, scan)) =
            self.reclaim.as_mut().and_then(|r| Some((r.segment, r.scan.as_mut()?)))
        else {
            return;
        };
        let Some((at, len)) = scan.walk.next_read() else {
            let entries = std::mem::take(&mut scan.entries);
            return self.choose(&entries);
        };
        let (file, offset) = volume.place(segment, at);
        let submitted = AlignedBuf::new(len as usize).ok().is_some_and(|buf| {
            self.log
                .submit(TAG_SCAN, Op::Read { file, offset, parts: vec![buf.into_part()] })
                .is_ok()
        });
        if !submitted {
            self.defer_victim();
        }
    }

    pub(crate) fn scan_read(&mut self, completion: Completion) {
        let Some((segment, scan)) =
            self.reclaim.as_mut().and_then(|r| Some((r.segment, r.scan.as_mut()?)))
        else {
            return;
        };
        if let Err(fault) = &completion.result {
            tracing::warn!(%fault, segment = segment.0, "reclaim: victim cannot be read");
            if !std::mem::replace(&mut scan.tried, true) {
                return self.continue_scan();
            }
            self.suspect(segment);
            return self.defer_unreadable();
        }
        scan.tried = false;
        let Some(part) = completion.op.into_parts().pop() else { return };
        let entries = &mut scan.entries;
        scan.walk.feed(part.bytes(), &mut |record| entries.extend(footer::entries_of(record)));
        self.continue_scan();
    }

    /// Part of a segment could not be read, or is not intact.
    pub(crate) fn suspect(&mut self, segment: SegmentId) {
        let now = self.shared.now();
        let mut core = self.shared.lock();
        core.counters.read_errors += 1;
        core.suspect(segment, now);
    }
}

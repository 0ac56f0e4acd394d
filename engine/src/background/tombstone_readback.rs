//! Reads tombstones back from the device before a removal is answered. A write that was
//! acknowledged but lost, torn or misdirected would let removed objects return at the next open,
//! and nothing else would detect it.

use std::collections::HashMap;

use pagelith_io::disk::Completion;
use pagelith_layouts::ids::SegmentId;
use pagelith_layouts::record::{Record, RecordKind};
use pagelith_tiers::ssd::append::RecordLocation;

use crate::api::error::{Error, ErrorKind};
use crate::background::log_context::LogContext;
use crate::background::log_op::LogOp;
use crate::state::jobs::JobResult;
use crate::state::session_io::release_segment;

/// The removals whose tombstones are not read back yet, by job.
#[derive(Default)]
pub(crate) struct TombstoneReadback {
    /// Where the tombstones of each removal are.
    written: HashMap<u64, RecordLocation>,
    /// Reads in flight, by number: the removal, and the segment that is being read.
    reading: HashMap<u32, (u64, SegmentId)>,
    /// Removals whose read found no room in the queue.
    waiting: Vec<u64>,
}

impl TombstoneReadback {
    /// Submit the reads that found no room in the queue.
    pub fn step(&mut self, cx: &mut LogContext) -> bool {
        let waiting = std::mem::take(&mut self.waiting);
        let any = !waiting.is_empty();
        waiting.into_iter().for_each(|job| self.read_back(cx, job));
        any && self.waiting.is_empty()
    }

    /// The tombstones of a removal were written.
    pub fn written(&mut self, job: u64, location: RecordLocation) {
        self.written.insert(job, location);
    }

    /// The tombstones of a removal are not durable.
    pub fn forget(&mut self, job: u64) {
        self.written.remove(&job);
    }

    /// The device reports a removal's tombstones as durable: read them back.
    pub fn read_back(&mut self, cx: &mut LogContext, job: u64) {
        let Some(location) = self.written.get(&job) else {
            return self.failed(cx, job, "tombstone was not written");
        };
        let (segment, number) = (location.identity.segment, job as u32);
        if cx.read(LogOp::Readback(number), segment, location.offset, location.bytes) {
            self.reading.insert(number, (job, segment));
            // The segment must not be overwritten while the device has the read, however long that
            // takes.
            if let Some(guards) = &cx.shared.read_view.guards {
                guards.enter_again(segment);
            }
        } else {
            // The next step tries again.
            self.waiting.push(job);
        }
    }

    /// A read ended.
    pub fn ended(&mut self, cx: &mut LogContext, number: u32, completion: Completion) {
        let Some((job, segment)) = self.reading.remove(&number) else { return };
        release_segment(&cx.shared, segment);
        let Some(location) = self.written.get(&job).copied() else { return };
        let read = completion.result.is_ok();
        let part = completion.op.into_parts().pop().filter(|_| read);
        if part.is_some_and(|part| holds(part.bytes(), &location)) {
            self.written.remove(&job);
            cx.shared.lock().jobs.complete(job, JobResult::Done);
            cx.shared.signals.progress.raise();
            return;
        }
        cx.shared.lock().counters.damaged += u64::from(read);
        cx.suspect(location.identity.segment);
        self.failed(cx, job, "tombstone cannot be read back");
    }

    fn failed(&mut self, cx: &LogContext, job: u64, reason: &str) {
        self.written.remove(&job);
        let error = Error::new(ErrorKind::Unavailable, format!("remove: {reason}"));
        cx.shared.lock().jobs.complete(job, JobResult::Failed(error));
        cx.shared.signals.progress.raise();
    }
}

/// Whether these bytes are the tombstones written at `location`.
fn holds(bytes: &[u8], location: &RecordLocation) -> bool {
    Record::decode(bytes).is_ok_and(|record| {
        record.expect(location.identity, location.offset).is_ok()
            && record.facts().kind == RecordKind::Tombstones
    })
}

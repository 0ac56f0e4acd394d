//! Reads tombstones back from the device before a removal is answered. A write that was
//! acknowledged but lost, torn or misdirected would let removed objects return at the next open,
//! and nothing else would detect it.

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::disk::{Completion, Op};
use pagelith_layouts::record::{Record, RecordKind};
use pagelith_tiers::ssd::append::RecordPlace;

use crate::api::error::{Error, ErrorKind};
use crate::background::flusher::{Flusher, TAG_READBACK};
use crate::state::core::JobResult;
use crate::state::session_io::release_segment;

impl Flusher {
    /// The device reports a request's tombstones as durable: read them back.
    pub(crate) fn read_back(&mut self, answer: u64) {
        let (Some(volume), Some(place)) =
            (self.shared.volume.clone(), self.tombstones.get(&answer))
        else {
            return self.read_back_ended(answer, "tombstone was not written");
        };
        let (file, offset) = volume.place(place.identity.segment, place.offset);
        let tag = TAG_READBACK + answer % (1 << 32);
        let submitted = AlignedBuf::new(place.bytes as usize).ok().is_some_and(|buf| {
            self.log.submit(tag, Op::Read { file, offset, parts: vec![buf.into_part()] }).is_ok()
        });
        if submitted {
            let segment = place.identity.segment;
            self.reading_back.insert(tag, (answer, segment));
            // The segment must not be overwritten while the device has the read, however long that
            // takes.
            if let Some(guards) = &self.shared.read_view.guards {
                guards.enter_again(segment);
            }
        } else {
            // No room in the queue: the next step tries again.
            self.to_read_back.push(answer);
        }
    }

    /// Submit the reads that found no room in the queue.
    pub(crate) fn step_read_back(&mut self) -> bool {
        let waiting = std::mem::take(&mut self.to_read_back);
        let any = !waiting.is_empty();
        waiting.into_iter().for_each(|answer| self.read_back(answer));
        any && self.to_read_back.is_empty()
    }

    pub(crate) fn read_back_completed(&mut self, tag: u64, completion: Completion) {
        let Some((answer, segment)) = self.reading_back.remove(&tag) else { return };
        release_segment(&self.shared, segment);
        let Some(place) = self.tombstones.get(&answer).copied() else { return };
        let read = completion.result.is_ok();
        let part = completion.op.into_parts().pop().filter(|_| read);
        if part.is_some_and(|part| holds(part.bytes(), &place)) {
            self.tombstones.remove(&answer);
            self.shared.lock().complete_job(answer, JobResult::Done);
            self.shared.progress.raise();
            return;
        }
        self.shared.lock().counters.damaged += u64::from(read);
        self.suspect(place.identity.segment);
        self.read_back_ended(answer, "tombstone cannot be read back");
    }

    fn read_back_ended(&mut self, answer: u64, reason: &str) {
        self.tombstones.remove(&answer);
        let error = Error::new(ErrorKind::Unavailable, format!("remove: {reason}"));
        self.shared.lock().complete_job(answer, JobResult::Failed(error));
        self.shared.progress.raise();
    }
}

/// Whether these bytes are the tombstones written at `place`.
fn holds(bytes: &[u8], place: &RecordPlace) -> bool {
    Record::decode(bytes).is_ok_and(|record| {
        record.expect(place.identity, place.offset).is_ok()
            && record.facts().kind == RecordKind::Tombstones
    })
}

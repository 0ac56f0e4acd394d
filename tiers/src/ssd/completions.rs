//! Handles the log's completions and starts the steps that each one allows.

use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::disk::{Completion, Op};
use pagelith_io::fault::IoFault;

use super::append::{HeaderWrite, RecordLocation};
use super::log::{Log, LogEvent, PendingOp, SPARE_BUFFERS, SealStep, Sealing};
use super::manifest_writer::Change;
use pagelith_layouts::ids::SegmentId;
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_mutants::{self as mutant, Mutant};

impl Log {
    /// Submit operations, collect completions and report events. At most one record write is
    /// handled per call: its owner has work with each, and so can submit the next write before the
    /// work for all is done. With `wait`, waits that long for one completion if any operation is in
    /// flight.
    pub fn pump(&mut self, wait: Option<Duration>, events: &mut Vec<LogEvent>) {
        self.advance(events);
        self.collect(wait.filter(|_| self.completions.is_empty()));
        self.submit_parked();
        // Submit queued writes before other work. The first is submitted alone, so that the device
        // starts on it while the others are submitted.
        for most in [1, usize::MAX] {
            if self.submit_queued(most) {
                self.collect(None);
            }
        }
        let mut done = std::mem::take(&mut self.completions);
        let is_record =
            |c: &Completion| matches!(self.pending.get(&c.token), Some(PendingOp::Records { .. }));
        let first = done.iter().position(is_record).map_or(done.len(), |at| at + 1);
        self.completions = done.split_off(first);
        for completion in done {
            self.completed(completion, events);
        }
        self.advance(events);
    }

    /// Begin every step whose preconditions hold.
    fn advance(&mut self, events: &mut Vec<LogEvent>) {
        // With no write in flight, coalescing more bytes would only delay them.
        if self.record_writes == 0 {
            self.submit_coalesced();
        }
        self.advance_sealing(events);
        self.advance_syncs(events);
        loop {
            match self.manifest.next_op(&self.volume) {
                Ok(Some(op)) => self.begin(op, PendingOp::Manifest),
                Ok(None) => break,
                Err((changes, fault)) => {
                    changes
                        .into_iter()
                        .for_each(|c| self.report_change(c, &Err(fault.clone()), events));
                    events.push(LogEvent::ManifestFailed(fault));
                    break;
                }
            }
        }
    }

    fn advance_sealing(&mut self, events: &mut Vec<LogEvent>) {
        let mut i = 0;
        while i < self.sealing.len() {
            let Sealing { segment, step } = &mut self.sealing[i];
            if *step == SealStep::Writes && segment.writes == 0 {
                if !segment.wants_footer() || self.sync_fault.is_some() {
                    let facts = segment.footer_facts();
                    self.sealing.remove(i);
                    events.push(LogEvent::Sealed { facts, has_footer: false });
                    continue;
                }
                if mutant::on(Mutant::FooterBeforeData) {
                    self.write_footer(i);
                    i += 1;
                    continue;
                }
                // The footer asserts that its records are durable, so they are synced first.
                // `finish_sync_round` continues.
                *step = SealStep::Sync(self.syncs.request(self.token));
            }
            i += 1;
        }
    }

    fn advance_syncs(&mut self, events: &mut Vec<LogEvent>) {
        // After a failed sync no other one is attempted; waiting requests fail.
        while let Some(files) = self.syncs.begin() {
            self.in_sync_round.append(&mut self.unsynced);
            if self.sync_fault.is_some() {
                for file in &files {
                    self.syncs
                        .ended(*file, false)
                        .into_iter()
                        .for_each(|(ids, _)| self.finish_sync_round(ids, false, events));
                }
            } else {
                for file in &files {
                    self.sync_count += 1;
                    self.begin(Op::Sync { file: *file }, PendingOp::Sync { file: *file });
                }
            }
            if !files.is_empty() {
                break;
            }
            let ok = self.sync_fault.is_none() && self.check_files(events);
            self.syncs
                .finish()
                .into_iter()
                .for_each(|(ids, _)| self.finish_sync_round(ids, ok, events));
        }
    }

    fn completed(&mut self, completion: Completion, events: &mut Vec<LogEvent>) {
        let Some(pending) = self.pending.remove(&completion.token) else { return };
        let token = completion.token;
        self.ended += 1;
        match pending {
            PendingOp::Records { segment, file, records, header } => {
                self.syncs.write_ended(token, file);
                self.recycle_buffers(completion.op.into_parts());
                self.records_written(segment, records, header, completion.result, events);
            }
            PendingOp::Footer { segment, file } => {
                self.syncs.write_ended(token, file);
                if let Some(at) = self.sealing.iter().position(|s| s.segment.segment() == segment) {
                    let sealed = self.sealing.remove(at).segment;
                    events.push(LogEvent::Sealed {
                        facts: sealed.footer_facts(),
                        has_footer: completion.result.is_ok(),
                    });
                    if let Err(fault) = completion.result {
                        events.push(LogEvent::WriteFailed(sealed.identity, Vec::new(), fault));
                    }
                }
            }
            PendingOp::Sync { file } => {
                let retried = mutant::on(Mutant::SyncRetried);
                let ok = completion.result.is_ok() || retried;
                if let Err(fault) =
                    completion.result.or_else(|e| if retried { Ok(()) } else { Err(e) })
                {
                    self.record_sync_fault(fault, events);
                }
                if let Some((ids, ok)) = self.syncs.ended(file, ok) {
                    let ok = ok && self.check_files(events);
                    self.finish_sync_round(ids, ok, events);
                }
            }
            PendingOp::Manifest => {
                if let Some((changes, result)) =
                    self.manifest.ended(&self.volume, completion.result)
                {
                    let result = result.and_then(|()| self.volume.disk.check_names());
                    changes.into_iter().for_each(|c| self.report_change(c, &result, events));
                    events.extend(result.err().map(LogEvent::ManifestFailed));
                }
            }
            PendingOp::Other { tag } => events.push(LogEvent::Other(tag, completion)),
        }
    }

    /// Handle the completion of a write of records. Until the write with the segment's header has
    /// completed, records of the segment are kept back and not reported as written: without the
    /// header recovery ignores the segment, so a failure of that write loses them.
    fn records_written(
        &mut self,
        segment: SegmentId,
        mut records: Vec<(u64, RecordLocation)>,
        with_header: bool,
        result: Result<(), IoFault>,
        events: &mut Vec<LogEvent>,
    ) {
        let Some(open) = self.unsealed(segment) else { return };
        open.writes -= 1;
        let identity = open.identity;
        if result.is_err() {
            open.drop_unwritten(&records);
        }
        let ids = |records: Vec<(u64, RecordLocation)>| {
            records.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
        };
        match (result, &mut open.header) {
            (Ok(()), header @ HeaderWrite::Awaited(_)) if with_header => {
                if let HeaderWrite::Awaited(waiting) =
                    std::mem::replace(header, HeaderWrite::Written)
                {
                    records.extend(waiting);
                }
                self.report_written(records, events);
            }
            (Ok(()), HeaderWrite::Awaited(waiting)) => waiting.extend(records),
            (Ok(()), HeaderWrite::Written) => self.report_written(records, events),
            (Ok(()), HeaderWrite::Failed(fault)) => {
                events.push(LogEvent::Unwritten(ids(records), fault.clone()))
            }
            (Err(fault), header) => {
                if let (HeaderWrite::Awaited(waiting), true) = (&mut *header, with_header) {
                    records.append(waiting);
                    *header = HeaderWrite::Failed(fault.clone());
                }
                events.push(LogEvent::WriteFailed(identity, ids(records), fault));
                // Stop appending to a segment whose writes fail.
                self.seal_open_if(segment);
            }
        }
    }

    /// Whether the next open will find the synced files. If not, this counts as a failed sync.
    fn check_files(&mut self, events: &mut Vec<LogEvent>) -> bool {
        let checked = self.volume.disk.check_names();
        checked.map_err(|fault| self.record_sync_fault(fault, events)).is_ok()
    }

    /// Report records that are on the device and that recovery can find.
    fn report_written(&mut self, records: Vec<(u64, RecordLocation)>, events: &mut Vec<LogEvent>) {
        events.push(LogEvent::Written(records.clone()));
        match &self.sync_fault {
            // No later sync will cover them.
            Some(fault) => events.push(LogEvent::Untrusted(records, fault.clone())),
            None => self.unsynced.extend(records),
        }
    }

    /// Seal this segment if it is the open one.
    pub fn seal_open_if(&mut self, segment: SegmentId) {
        if self.open.as_ref().is_some_and(|o| o.segment() == segment) {
            self.seal_open();
        }
    }

    /// Complete a round of syncs: report records as durable or untrusted, write footers that waited
    /// for the round, and complete its requests.
    fn finish_sync_round(
        &mut self,
        ids: Vec<super::sync::SyncId>,
        ok: bool,
        events: &mut Vec<LogEvent>,
    ) {
        let mut covered = std::mem::take(&mut self.in_sync_round);
        if !ok {
            // No later sync will cover records that were written during the failed one.
            covered.append(&mut self.unsynced);
        }
        if ok {
            if !covered.is_empty() {
                events.push(LogEvent::Durable(covered));
            }
        } else if let Some(fault) = self.sync_fault.clone() {
            events.push(LogEvent::Untrusted(covered, fault));
        }
        for i in 0..self.sealing.len() {
            let waits = match self.sealing[i].step {
                SealStep::Sync(id) => ids.contains(&id),
                SealStep::Writes | SealStep::Footer => false,
            };
            if waits && ok {
                self.write_footer(i);
            } else if waits {
                // The next `advance_sealing` handles this segment again.
                self.sealing[i].segment.skip_footer = true;
                self.sealing[i].step = SealStep::Writes;
            }
        }
        events.extend(ids.into_iter().map(|id| LogEvent::Synced { id, durable: ok }));
    }

    fn write_footer(&mut self, i: usize) {
        let segment = self.sealing[i].segment.segment();
        let (bytes, at) = self.sealing[i].segment.footer();
        let Ok(mut buf) = AlignedBuf::new(bytes.len()) else {
            self.sealing[i].segment.skip_footer = true;
            self.sealing[i].step = SealStep::Writes;
            return;
        };
        buf.copy_from_slice(&bytes);
        self.sealing[i].step = SealStep::Footer;
        let (file, offset) = self.volume.file_offset(segment, at);
        self.bytes_written += bytes.len() as u64;
        self.begin(
            Op::Write { file, offset, parts: vec![buf.into_part()] },
            PendingOp::Footer { segment, file },
        );
        self.syncs.write_begun(self.token);
    }

    fn report_change(
        &mut self,
        change: Change,
        result: &Result<(), IoFault>,
        events: &mut Vec<LogEvent>,
    ) {
        match (change, result) {
            (Change::Segment(segment, incarnation, order), Ok(())) => {
                self.preparing = false;
                self.spare = Some((
                    SegmentIdentity { store: self.volume.store, segment, incarnation },
                    order,
                ));
                events.push(LogEvent::Ready(segment, incarnation, order));
            }
            (Change::Segment(segment, ..), Err(fault)) => {
                self.preparing = false;
                events.push(LogEvent::NotReady(segment, fault.clone()));
            }
            (Change::Generation(namespace, generation), result) => {
                events.push(LogEvent::Generation(namespace, generation, result.clone()));
            }
        }
    }

    fn recycle_buffers(&mut self, parts: Vec<Part>) {
        let room = SPARE_BUFFERS.saturating_sub(self.spare_buffers.len());
        let headers = parts.into_iter().filter_map(Part::into_buf);
        self.spare_buffers.extend(headers.filter(|b| b.len() == 4096).take(room));
    }
}

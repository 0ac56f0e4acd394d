//! The log's completions: what each one allows to happen next.

use std::time::Duration;

use pagelith_io::buffer::{AlignedBuf, Part};
use pagelith_io::disk::{Completion, Op};
use pagelith_io::fault::IoFault;

use super::append::{Head, RecordPlace};
use super::log::{Event, Log, Pending, SPARE_BUFFERS, Sealing, Stage};
use super::manifest_writer::Change;
use pagelith_layouts::ids::SegmentId;
use pagelith_layouts::segment::SegmentIdentity;
use pagelith_mutants::{self as mutant, Mutant};

impl Log {
    /// Submit what may be submitted, take what finished, and report what happened: of record writes one, so that its
    /// owner, who has work with each, submits the next before the work with all. With `wait`, waits that long for one
    /// completion if any operation is in flight.
    pub fn pump(&mut self, wait: Option<Duration>, events: &mut Vec<Event>) {
        self.advance(events);
        self.take(wait.filter(|_| self.early.is_empty()));
        // The device has what is made before anything else is done, and begins with the first while the others are submitted.
        for most in [1, usize::MAX] {
            if self.launch(most) {
                self.take(None);
            }
        }
        let mut done = std::mem::take(&mut self.early);
        let is_record = |c: &Completion| matches!(self.pending.get(&c.token), Some(Pending::Records { .. }));
        let first = done.iter().position(is_record).map_or(done.len(), |at| at + 1);
        self.early = done.split_off(first);
        for completion in done {
            self.completed(completion, events);
        }
        self.advance(events);
    }

    /// Begin every step whose time has come.
    fn advance(&mut self, events: &mut Vec<Event>) {
        // With nothing in flight there is no reason to gather any longer.
        if self.record_writes == 0 {
            self.submit_gathered();
        }
        self.advance_sealing(events);
        self.advance_syncs(events);
        loop {
            match self.manifest.next_op(&self.volume) {
                Ok(Some(op)) => self.begin(op, Pending::Manifest),
                Ok(None) => break,
                Err((changes, fault)) => {
                    changes.into_iter().for_each(|c| self.changed(c, &Err(fault.clone()), events));
                    events.push(Event::ManifestFailed(fault));
                    break;
                }
            }
        }
    }

    fn advance_sealing(&mut self, events: &mut Vec<Event>) {
        let mut i = 0;
        while i < self.sealing.len() {
            let Sealing { segment, stage } = &mut self.sealing[i];
            if *stage == Stage::Writes && segment.writes == 0 {
                if !segment.wants_footer() || self.sync_fault.is_some() {
                    let facts = segment.footer_facts();
                    self.sealing.remove(i);
                    events.push(Event::Sealed(facts, false));
                    continue;
                }
                if mutant::on(Mutant::FooterBeforeData) {
                    self.write_footer(i);
                    i += 1;
                    continue;
                }
                // Data first: the footer vouches for it. Answered in `synced`.
                *stage = Stage::Sync(self.syncs.request(self.token));
            }
            i += 1;
        }
    }

    fn advance_syncs(&mut self, events: &mut Vec<Event>) {
        // After a failed sync no other is tried; whoever waits for one hears so.
        while let Some(files) = self.syncs.begin() {
            self.in_round.append(&mut self.unsynced);
            if self.sync_fault.is_some() {
                for file in &files {
                    self.syncs
                        .ended(*file, false)
                        .into_iter()
                        .for_each(|(ids, _)| self.answer(ids, false, events));
                }
            } else {
                for file in &files {
                    self.sync_count += 1;
                    self.begin(Op::Sync { file: *file }, Pending::Sync { file: *file });
                }
            }
            if !files.is_empty() {
                break;
            }
            let ok = self.sync_fault.is_none() && self.files_are_there(events);
            self.syncs.finish().into_iter().for_each(|(ids, _)| self.answer(ids, ok, events));
        }
    }

    fn completed(&mut self, completion: Completion, events: &mut Vec<Event>) {
        let Some(pending) = self.pending.remove(&completion.token) else { return };
        let token = completion.token;
        self.ended += 1;
        match pending {
            Pending::Records { segment, file, units, with_head } => {
                self.syncs.write_ended(token, file);
                self.keep_buffers(completion.op.into_parts());
                self.records_written(segment, units, with_head, completion.result, events);
            }
            Pending::Footer { segment, file } => {
                self.syncs.write_ended(token, file);
                if let Some(at) = self.sealing.iter().position(|s| s.segment.segment() == segment) {
                    let sealed = self.sealing.remove(at).segment;
                    events.push(Event::Sealed(sealed.footer_facts(), completion.result.is_ok()));
                    if let Err(fault) = completion.result {
                        events.push(Event::WriteFailed(sealed.identity, Vec::new(), fault));
                    }
                }
            }
            Pending::Sync { file } => {
                let retried = mutant::on(Mutant::SyncRetried);
                let ok = completion.result.is_ok() || retried;
                if let Err(fault) = completion.result.or_else(|e| if retried { Ok(()) } else { Err(e) }) {
                    self.distrust(fault, events);
                }
                if let Some((ids, ok)) = self.syncs.ended(file, ok) {
                    let ok = ok && self.files_are_there(events);
                    self.answer(ids, ok, events);
                }
            }
            Pending::Manifest => {
                if let Some((changes, result)) = self.manifest.ended(&self.volume, completion.result) {
                    let result = result.and_then(|()| self.volume.disk.check_names());
                    changes.into_iter().for_each(|c| self.changed(c, &result, events));
                    events.extend(result.err().map(Event::ManifestFailed));
                }
            }
            Pending::Other { tag } => events.push(Event::Other(tag, completion)),
        }
    }

    /// A write of records ended. What lies behind a head that is not known to be written is not reported yet, and
    /// so covered by no sync that anybody asks for: if the head fails, it was written for nothing.
    fn records_written(
        &mut self,
        segment: SegmentId,
        mut units: Vec<(u64, RecordPlace)>,
        with_head: bool,
        result: Result<(), IoFault>,
        events: &mut Vec<Event>,
    ) {
        let Some(open) = self.unsealed(segment) else { return };
        open.writes -= 1;
        let identity = open.identity;
        if result.is_err() {
            open.lost(&units);
        }
        let ids = |units: Vec<(u64, RecordPlace)>| units.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        match (result, &mut open.head) {
            (Ok(()), head @ Head::Awaited(_)) if with_head => {
                if let Head::Awaited(behind) = std::mem::replace(head, Head::Written) {
                    units.extend(behind);
                }
                self.readable(units, events);
            }
            (Ok(()), Head::Awaited(behind)) => behind.extend(units),
            (Ok(()), Head::Written) => self.readable(units, events),
            (Ok(()), Head::Failed(fault)) => events.push(Event::Unwritten(ids(units), fault.clone())),
            (Err(fault), head) => {
                if let (Head::Awaited(behind), true) = (&mut *head, with_head) {
                    units.append(behind);
                    *head = Head::Failed(fault.clone());
                }
                events.push(Event::WriteFailed(identity, ids(units), fault));
                // Nothing more goes into a segment that the device refuses.
                self.seal_open_if(segment);
            }
        }
    }

    /// Whether the next open will find what was just synced. If not, it is as if the sync had failed.
    fn files_are_there(&mut self, events: &mut Vec<Event>) -> bool {
        let checked = self.volume.disk.check_names();
        checked.map_err(|fault| self.distrust(fault, events)).is_ok()
    }

    /// Records lie on the device, and will be found there.
    fn readable(&mut self, units: Vec<(u64, RecordPlace)>, events: &mut Vec<Event>) {
        events.push(Event::Written(units.clone()));
        match &self.sync_fault {
            // No sync will follow that could cover it.
            Some(fault) => events.push(Event::Untrusted(units, fault.clone())),
            None => self.unsynced.extend(units),
        }
    }

    /// Nothing more is appended to this segment.
    pub fn seal_open_if(&mut self, segment: SegmentId) {
        if self.open.as_ref().is_some_and(|o| o.segment() == segment) {
            self.seal_open();
        }
    }

    /// A round of syncs is over: tell who asked, write the footers that waited for it, and say what became
    /// durable or is no longer to be trusted.
    fn answer(&mut self, ids: Vec<super::sync::SyncId>, ok: bool, events: &mut Vec<Event>) {
        let mut covered = std::mem::take(&mut self.in_round);
        if !ok {
            // What was written while the failing sync was under way has no other to come.
            covered.append(&mut self.unsynced);
        }
        if ok {
            if !covered.is_empty() {
                events.push(Event::Durable(covered));
            }
        } else if let Some(fault) = self.sync_fault.clone() {
            events.push(Event::Untrusted(covered, fault));
        }
        for i in 0..self.sealing.len() {
            let waits = match self.sealing[i].stage {
                Stage::Sync(id) => ids.contains(&id),
                Stage::Writes | Stage::Footer => false,
            };
            if waits && ok {
                self.write_footer(i);
            } else if waits {
                // Found again by the next look at the segments being sealed.
                self.sealing[i].segment.footerless = true;
                self.sealing[i].stage = Stage::Writes;
            }
        }
        events.extend(ids.into_iter().map(|id| Event::Synced(id, ok)));
    }

    fn write_footer(&mut self, i: usize) {
        let segment = self.sealing[i].segment.segment();
        let (bytes, at) = self.sealing[i].segment.footer();
        let Ok(mut buf) = AlignedBuf::new(bytes.len()) else {
            self.sealing[i].segment.footerless = true;
            self.sealing[i].stage = Stage::Writes;
            return;
        };
        buf.copy_from_slice(&bytes);
        self.sealing[i].stage = Stage::Footer;
        let (file, offset) = self.volume.place(segment, at);
        self.bytes_written += bytes.len() as u64;
        self.begin(
            Op::Write { file, offset, parts: vec![buf.into_part()] },
            Pending::Footer { segment, file },
        );
        self.syncs.write_begun(self.token);
    }

    fn changed(&mut self, change: Change, result: &Result<(), IoFault>, events: &mut Vec<Event>) {
        match (change, result) {
            (Change::Segment(segment, incarnation, order), Ok(())) => {
                self.preparing = false;
                self.spare =
                    Some((SegmentIdentity { store: self.volume.store, segment, incarnation }, order));
                events.push(Event::Ready(segment, incarnation, order));
            }
            (Change::Segment(segment, ..), Err(fault)) => {
                self.preparing = false;
                events.push(Event::NotReady(segment, fault.clone()));
            }
            (Change::Generation(namespace, generation), result) => {
                events.push(Event::Generation(namespace, generation, result.clone()));
            }
        }
    }

    fn keep_buffers(&mut self, parts: Vec<Part>) {
        let room = SPARE_BUFFERS.saturating_sub(self.spare_buffers.len());
        let headers = parts.into_iter().filter_map(Part::into_buf);
        self.spare_buffers.extend(headers.filter(|b| b.len() == 4096).take(room));
    }
}

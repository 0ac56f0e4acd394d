//! The flusher: the one background task of the SSD tier. It owns the log, and runs its parts in
//! turn, one step at a time, so that the log has one owner and one order.
//!
//! | part | does |
//! | --- | --- |
//! | [`JobWriter`] | appends frames and tombstones from the queue |
//! | [`Purger`] | drops the entries of quarantined segments, and all while the tier is off |
//! | [`DeviceProbe`] | tests a failed device |
//! | [`TombstoneReadback`] | reads tombstones back before a removal is answered |
//! | [`Reclaimer`] | empties segments |
//! | [`Checkpointer`] | writes checkpoints of the index |
//! | [`BackgroundScrub`] | verifies records on SSD |
//!
//! The parts share a [`LogContext`]. Each has a `step`, which does what can be done without
//! blocking, and returns whether anything was done.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pagelith_io::disk::Completion;
use pagelith_io::runtime::{Step, Task};
use pagelith_layouts::ids::{Generation, NamespaceId, Sequence};
use pagelith_tiers::ssd::append::RecordLocation;
use pagelith_tiers::ssd::log::{Log, LogEvent};
use pagelith_tiers::ssd::recover::Recovered;
use pagelith_tiers::ssd::segments::SegmentState;
use pagelith_tiers::ssd::sync::SyncId;
use pagelith_tiers::ssd::volume::Volume;

use crate::api::error::{Error, ErrorKind};
use crate::background::checkpoint::Checkpointer;
use crate::background::device_probe::DeviceProbe;
use crate::background::generations::Generations;
use crate::background::job_writer::JobWriter;
use crate::background::log_context::{Closing, LogContext, SyncPurpose};
use crate::background::log_op::LogOp;
use crate::background::pending_records::PendingRecord;
use crate::background::purge::Purger;
use crate::background::reclaim::Reclaimer;
use crate::background::reclaim::reinsertion::record_reinserted;
use crate::background::scrub::BackgroundScrub;
use crate::background::stall_detector::StallDetector;
use crate::background::tombstone_readback::TombstoneReadback;
use crate::state::frame_access::FrameGuard;
use crate::state::jobs::{Job, JobResult};
use crate::state::shared::Shared;

/// Longest sleep without work: leases expire and readers leave without a signal.
const IDLE: Duration = Duration::from_millis(50);
/// Longest wait for a completion.
const WAIT: Duration = Duration::from_millis(10);
/// Frames whose locations enter the index in one critical section: bounds how long others wait for
/// the lock.
const FRAMES: usize = 8;

pub(crate) struct Flusher {
    cx: LogContext,
    writer: JobWriter,
    purger: Purger,
    probe: DeviceProbe,
    readback: TombstoneReadback,
    reclaimer: Reclaimer,
    checkpointer: Checkpointer,
    scrub: BackgroundScrub,
    stall: StallDetector,
    /// Bytes written to the device before this task owned the log.
    bytes_before: u64,
}

impl Flusher {
    /// The task of a store that was recovered. `durable` are the generations in the manifest;
    /// `reason` says why the tier is opened read-only, if it is.
    pub fn new(
        shared: Arc<Shared>,
        volume: Arc<Volume>,
        log: Log,
        durable: HashMap<NamespaceId, Generation>,
        recovered: &Recovered,
        reason: String,
    ) -> Flusher {
        let stall = StallDetector::new(shared.now());
        let generations = Generations::new(durable);
        let mut cx = LogContext::new(shared, volume, log, generations, recovered.next_order);
        cx.reason = reason;
        Flusher {
            cx,
            writer: JobWriter::default(),
            purger: Purger::default(),
            probe: DeviceProbe::default(),
            readback: TombstoneReadback::default(),
            reclaimer: Reclaimer::default(),
            checkpointer: Checkpointer::new(recovered.last_serial),
            scrub: BackgroundScrub::default(),
            stall,
            bytes_before: recovered.bytes_written,
        }
    }

    /// Release memory whose hold has expired; false if the store was abandoned.
    fn expire(&self) -> bool {
        let shared = &self.cx.shared;
        shared.devices.release_late();
        let mut core = shared.lock();
        if !core.jobs.stopped {
            core.expire_step(shared.now());
            if let Some(ssd) = core.ssd.as_mut() {
                ssd.tick_history.note(shared.now(), ssd.ticks.now());
            }
        }
        !core.jobs.stopped
    }

    /// Handle the log's events; true if there were any.
    fn pump(&mut self, wait: Option<Duration>) -> bool {
        let mut events = Vec::new();
        self.cx.log.pump(wait, &mut events);
        let any = !events.is_empty();
        for event in events {
            self.handle(event);
        }
        if self.cx.stopped {
            self.fail_jobs();
        }
        if any {
            let (bytes, syncs) = self.cx.log.written();
            let mut core = self.cx.shared.lock();
            core.counters.bytes_to_device = self.bytes_before + bytes;
            core.counters.syncs = syncs;
            drop(core);
            self.cx.shared.signals.progress.raise();
        }
        any
    }

    fn handle(&mut self, event: LogEvent) {
        let cx = &mut self.cx;
        match event {
            LogEvent::Written(records) => self.written(records),
            LogEvent::WriteFailed(of, ids, fault) => {
                let segment = of.segment.0;
                tracing::warn!(%fault, segment, "write failed, it is repeated in another segment");
                cx.device_failed(&fault, |health, now| {
                    health.write_failed(of.segment, of.incarnation, now)
                });
                self.writes_failed(ids);
            }
            LogEvent::Unwritten(ids, _) => self.writes_failed(ids),
            LogEvent::SyncFailed(fault) => cx.sync_failed(&fault),
            LogEvent::NotReady(segment, fault) => {
                cx.free_segment(segment);
                self.probe.not_ready(cx, &fault);
            }
            LogEvent::Durable(records) => {
                cx.pending_records.count_durable(&mut cx.shared.lock(), &records)
            }
            LogEvent::Untrusted(records, _) => {
                cx.pending_records.drop_untrusted(&mut cx.shared.lock(), &records)
            }
            LogEvent::Synced { id, durable } => self.sync_ended(id, durable),
            LogEvent::Ready(segment, incarnation, order) => {
                let mut core = cx.shared.lock();
                if let Some(ssd) = core.ssd.as_mut() {
                    let s = ssd.segments.get_mut(segment);
                    (s.incarnation, s.order) = (incarnation, order);
                    // From now on nothing of the old incarnation can be recovered.
                    (s.min_sequence, s.data_end) = (Sequence(u64::MAX), 0);
                    ssd.health.reused(segment);
                    ssd.guards.open(segment, incarnation);
                }
                core.visibility.reuse_segment(segment);
            }
            LogEvent::Sealed { facts, has_footer } => {
                let segment = facts.identity.segment;
                let mut core = cx.shared.lock();
                core.counters.segments_sealed += 1;
                if let Some(ssd) = core.ssd.as_mut() {
                    ssd.segments.get_mut(segment).data_end = facts.data_end;
                }
                core.set_segment_state(segment, SegmentState::Sealed);
                drop(core);
                self.checkpointer.segment_sealed();
                tracing::debug!(segment = segment.0, footer = has_footer, "sealed");
            }
            LogEvent::Generation(namespace, generation, result) => {
                cx.generations.ended(&mut cx.shared.lock(), namespace, generation, result);
            }
            LogEvent::ManifestFailed(fault) => cx.manifest_failed(&fault),
            LogEvent::Other(tag, completion) => {
                if let Some(op) = LogOp::decode(tag) {
                    self.ended(op, completion);
                }
            }
        }
    }

    /// An operation of a part ended.
    fn ended(&mut self, op: LogOp, completion: Completion) {
        let cx = &mut self.cx;
        match op {
            LogOp::Checkpoint(_) => self.checkpointer.ended(cx, op, completion),
            LogOp::Footer => self.reclaimer.footer_read(cx, completion),
            LogOp::Scan => self.reclaimer.scan_read(cx, completion),
            LogOp::Record(number) => self.reclaimer.record_read(cx, number, completion),
            LogOp::Scrub => self.scrub.ended(cx, completion),
            LogOp::Readback(number) => self.readback.ended(cx, number, completion),
            LogOp::Probe => {
                if self.probe.ended(cx, completion) {
                    self.resume();
                }
            }
        }
    }

    fn written(&mut self, records: Vec<(u64, RecordLocation)>) {
        let mut frames = Vec::with_capacity(FRAMES);
        for (id, location) in records {
            match self.cx.pending_records.remove(id) {
                Some(PendingRecord::Frame(guard)) => {
                    frames.push((id, guard, location));
                    if frames.len() == FRAMES {
                        self.frames_written(&mut frames);
                    }
                }
                Some(PendingRecord::Reinserted(members)) => {
                    if record_reinserted(&mut self.cx, id, members, &location) {
                        self.reclaimer.record_written();
                    } else {
                        self.reclaimer.record_failed();
                    }
                }
                Some(PendingRecord::Tombstones(None)) => self.reclaimer.record_written(),
                Some(PendingRecord::Tombstones(Some(job))) => self.readback.written(job, location),
                None => {}
            }
        }
        self.frames_written(&mut frames);
    }

    /// Enter the locations of frames into the index, in one critical section.
    fn frames_written(&mut self, frames: &mut Vec<(u64, FrameGuard, RecordLocation)>) {
        if frames.is_empty() {
            return;
        }
        let cx = &mut self.cx;
        let lost = cx.pending_records.frames_written(&mut cx.shared.lock(), frames.drain(..));
        if !lost.is_empty() {
            self.writes_failed(lost);
        }
    }

    /// Return records that were not written to the front of the queue, unless the tier is
    /// read-only.
    fn writes_failed(&mut self, ids: Vec<u64>) {
        let cx = &mut self.cx;
        let give_up = cx.is_read_only();
        // A flush covers these records too, so its job is queued after them.
        cx.requeue_flushes();
        if let Some(ssd) = cx.shared.lock().ssd.as_mut() {
            let flushes = self.checkpointer.flushes.take();
            flushes.rev().for_each(|id| ssd.queue.push_front(Job::Flush { id }));
        }
        for id in ids.into_iter().rev() {
            if cx.write_failed(id, give_up) {
                self.reclaimer.record_failed();
            }
        }
    }

    fn sync_ended(&mut self, id: SyncId, ok: bool) {
        let cx = &mut self.cx;
        let Some(purpose) = cx.syncs.remove(&id) else { return };
        let fault = cx.log.fault().map_or_else(|| "sync failed".to_owned(), ToString::to_string);
        let result = |what: &str| match ok {
            true => JobResult::Done,
            false => {
                JobResult::Failed(Error::new(ErrorKind::Unavailable, format!("{what}: {fault}")))
            }
        };
        match purpose {
            SyncPurpose::Flush(id) => {
                let mut core = cx.shared.lock();
                if ok {
                    // After a failure, bases in DRAM are written again once the tier is on.
                    cx.pending_records.decide_attached(&mut core);
                }
                core.jobs.complete(id, result("flush"));
            }
            SyncPurpose::Tombstones(id) if ok => self.readback.read_back(cx, id),
            SyncPurpose::Tombstones(id) => {
                self.readback.forget(id);
                cx.shared.lock().jobs.complete(id, result("remove"));
            }
            SyncPurpose::Reclaim => self.reclaimer.sync_ended(cx, ok),
            SyncPurpose::Checkpoint(serial) => self.checkpointer.sync_ended(cx, serial, ok),
        }
    }

    /// The probe succeeded: the tier is on again. Queue the frames that are only in DRAM,
    /// but not those that the policy keeps off SSD.
    fn resume(&mut self) {
        self.reclaimer.retry_deferred();
        let cx = &mut self.cx;
        let now = cx.shared.now();
        let mut core = cx.shared.lock();
        if let Some(ssd) = core.ssd.as_mut() {
            ssd.health.probe_ok(now);
        }
        let again = core.requeue_unsaved();
        // The manifest did not take these generations; their jobs have failed already.
        let missing = cx.generations.missing(&core);
        drop(core);
        for (namespace, generation) in missing {
            cx.log.raise_generation(namespace, generation);
        }
        tracing::info!(frames = again, "ssd tier is on again");
        cx.shared.signals.progress.raise();
    }

    /// Keep a spare segment ready for when the open one is full.
    fn prepare_segment(&mut self) -> bool {
        let cx = &mut self.cx;
        // While closing, prepare one only if something remains to be written.
        let done = cx.is_closing() && !self.writer.is_stalled() && !self.reclaimer.needs_room();
        if !cx.log.wants_segment() || done {
            return false;
        }
        !cx.is_read_only() && cx.prepare_free().is_some()
    }

    /// Record writes that the device may have: few while reads are in flight, which would queue
    /// after them.
    fn write_depth(&self) -> usize {
        let shared = &self.cx.shared;
        let config = &shared.config;
        (if shared.reads.are_recent(shared.now()) {
            config.write_depth_reading()
        } else {
            config.write_depth()
        }) as usize
    }

    /// Stop writing if the device completed nothing for as long as a call may take, so that callers
    /// do not wait for it.
    fn detect_stall(&mut self) {
        let cx = &mut self.cx;
        let now = cx.shared.now();
        let stalled_for = self.stall.observe(cx.log.ended(), cx.log.in_flight(), now);
        if stalled_for >= cx.shared.config.deadline() {
            let ms = stalled_for.as_millis();
            cx.stop_writing(&format!("the device completes no submitted operation ms={ms}"));
        }
    }

    /// While the tier accepts no writes, fail queued jobs at once.
    fn fail_jobs(&mut self) -> bool {
        self.cx.stopped = false;
        self.writer.fail_jobs(&mut self.cx, &mut self.checkpointer)
    }

    /// Take a final checkpoint after all other work, then end the task.
    fn close(&mut self) -> bool {
        let cx = &mut self.cx;
        let (job, checkpointed) = match cx.closing {
            Closing::Draining(job) => (job, false),
            Closing::Checkpointing(job) => (job, true),
            Closing::No | Closing::Done => return false,
        };
        let waiting = self.writer.is_stalled() || !self.checkpointer.flushes.is_empty();
        let idle = cx.log.idle() && self.reclaimer.is_idle() && self.checkpointer.is_idle();
        if !idle || waiting {
            return false;
        }
        if !checkpointed && !cx.is_read_only() {
            self.checkpointer.begin(cx, true);
            cx.closing = Closing::Checkpointing(job);
            return true;
        }
        let mut core = cx.shared.lock();
        cx.pending_records.decide_attached(&mut core);
        core.jobs.complete(job, JobResult::Done);
        drop(core);
        cx.closing = Closing::Done;
        cx.shared.signals.progress.raise();
        true
    }
}

impl Task for Flusher {
    fn step(&mut self) -> Step {
        if self.cx.closing == Closing::Done {
            return Step::Done;
        }
        if !self.expire() {
            // Abandoned: operations that have begun end, and no others begin.
            self.cx.log.drop_queued();
            let mut events = Vec::new();
            if self.cx.log.in_flight() == 0 {
                return Step::Done;
            }
            self.cx.log.pump(Some(WAIT), &mut events);
            return Step::Again;
        }
        let mut busy = self.pump(None);
        self.detect_stall();
        busy |= self.purger.step(&mut self.cx);
        let is_quiet = self.reclaimer.is_idle() && self.checkpointer.is_idle();
        busy |= self.probe.step(&mut self.cx, is_quiet);
        busy |= self.readback.step(&mut self.cx);
        busy |= self.prepare_segment();
        busy |= self.reclaimer.step(&mut self.cx);
        busy |= self.fail_jobs();
        self.cx.log.limit_writes(self.write_depth());
        let moves = self.reclaimer.needs_room();
        busy |= self.writer.step(&mut self.cx, &mut self.checkpointer, moves);
        busy |= self.checkpointer.step(&mut self.cx);
        busy |= self.scrub.step(&mut self.cx);
        busy |= self.close();
        if busy {
            return Step::Again;
        }
        if self.cx.log.in_flight() > 0 {
            self.pump(Some(WAIT));
            return Step::Again;
        }
        // Submit the coalesced write before sleeping.
        if self.pump(None) || !self.cx.log.idle() { Step::Again } else { Step::Idle(IDLE) }
    }
}

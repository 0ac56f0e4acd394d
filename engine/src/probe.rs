//! Trying whether a device that failed does its work again, and taking it into use.
//!
//! A trial goes to a segment that holds nothing: its new incarnation is made durable in both copies of the manifest,
//! its head is written, synced, read back and compared. Nothing that was written before the failure is vouched for
//! by it: that was forgotten when it happened, and its segments are reclaimed like others.

use pagelith_io::buffer::AlignedBuf;
use pagelith_io::disk::{Completion, FileId, Op};
use pagelith_io::fault::{FaultOp, IoFault};
use pagelith_layouts::align::ALIGN;
use pagelith_layouts::ids::{Incarnation, SegmentId, SegmentOrder};
use pagelith_layouts::segment::{self, SegmentIdentity};
use pagelith_tiers::ssd::segments::SegmentState;

use crate::flusher::{Flusher, TAG_TRIAL};

/// How far a trial is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Preparing,
    Writing,
    Syncing,
    Reading,
}

/// A trial under way.
#[derive(Debug)]
pub(crate) struct Trial {
    stage: Stage,
    segment: SegmentId,
}

impl Flusher {
    /// Begin a trial when it is time, or go on with it; true if anything was done.
    pub(crate) fn step_probe(&mut self) -> bool {
        match self.trial.as_ref().map(|t| t.stage) {
            Some(Stage::Preparing) => self.log.spare().is_some() && self.write_head(),
            Some(Stage::Writing | Stage::Syncing | Stage::Reading) => false,
            None => self.begin_trial(),
        }
    }

    fn begin_trial(&mut self) -> bool {
        let now = self.shared.now();
        let due = self.shared.lock().ssd.as_ref().is_some_and(|s| s.health.probe_due(now));
        let quiet = self.log.idle() && self.log.in_flight() == 0 && self.reclaim.is_none();
        if !due || !quiet || self.is_purging() || self.checkpoint.is_some() || self.closing.is_some() {
            return false;
        }
        // A trial in files that are gone would succeed and prove nothing.
        if let Some(Err(fault)) = self.shared.volume.as_ref().map(|v| v.disk.check_names()) {
            self.trial_failed(&fault.to_string(), false);
            return true;
        }
        if let Some((identity, _)) = self.log.spare() {
            self.trial = Some(Trial { stage: Stage::Preparing, segment: identity.segment });
            return self.write_head();
        }
        match self.prepare_free() {
            Some(segment) => self.trial = Some(Trial { stage: Stage::Preparing, segment }),
            None => {
                // No segment is free, so no write can be tried: a sync has to do, and reclaim comes next.
                self.trial = Some(Trial { stage: Stage::Reading, segment: SegmentId(0) });
                self.submit_trial(Stage::Syncing, |file, _| Ok(Op::Sync { file }));
            }
        }
        true
    }

    fn write_head(&mut self) -> bool {
        let Some((identity, order)) = self.log.spare() else { return false };
        let Some(bytes) = self.head(identity, order) else { return false };
        self.submit_trial(Stage::Writing, |file, offset| {
            let mut buf = AlignedBuf::new(ALIGN as usize)?;
            buf.copy_from_slice(&bytes);
            Ok(Op::Write { file, offset, parts: vec![buf.into_part()] })
        });
        true
    }

    fn head(&self, identity: SegmentIdentity, order: SegmentOrder) -> Option<[u8; ALIGN as usize]> {
        let volume = self.shared.volume.as_ref()?;
        Some(segment::encode_head(identity, order, volume.geometry.segment_bytes))
    }

    fn submit_trial(&mut self, stage: Stage, op: impl FnOnce(FileId, u64) -> std::io::Result<Op>) {
        let (Some(volume), Some(trial)) = (self.shared.volume.clone(), self.trial.as_mut()) else { return };
        let (file, offset) = volume.place(trial.segment, 0);
        trial.stage = stage;
        let submitted = op(file, offset).ok().is_some_and(|op| self.log.submit(TAG_TRIAL, op).is_ok());
        if !submitted {
            self.trial_failed("no memory or no room in the queue", false);
        }
    }

    /// An operation of the trial ended.
    pub(crate) fn trial_ended(&mut self, completion: Completion) {
        let Some(stage) = self.trial.as_ref().map(|t| t.stage) else { return };
        if let Err(fault) = completion.result {
            return self.trial_failed(&fault.to_string(), fault.op == FaultOp::Sync);
        }
        match stage {
            Stage::Preparing => {}
            Stage::Writing => self.submit_trial(Stage::Syncing, |file, _| Ok(Op::Sync { file })),
            Stage::Syncing if self.log.spare().is_none() => self.trial_ok(),
            Stage::Syncing => self.submit_trial(Stage::Reading, |file, offset| {
                let buf = AlignedBuf::new(ALIGN as usize)?;
                Ok(Op::Read { file, offset, parts: vec![buf.into_part()] })
            }),
            Stage::Reading => {
                let written = self.log.spare().and_then(|(identity, order)| self.head(identity, order));
                let read = completion.op.into_parts().pop();
                let same = read.zip(written).is_some_and(|(part, head)| part.bytes() == head);
                match same {
                    true => self.trial_ok(),
                    // It acks what it does not do.
                    false => self.trial_failed("what was written reads otherwise", true),
                }
            }
        }
    }

    /// The segment of a trial could not be prepared.
    pub(crate) fn not_ready(&mut self, segment: SegmentId, fault: &IoFault) {
        self.free_segment(segment);
        if self.trial.is_some() {
            // What it was of the manifest that failed is told of by itself.
            self.trial_failed(&fault.to_string(), false);
        }
    }

    fn trial_failed(&mut self, reason: &str, sync: bool) {
        self.trial = None;
        reason.clone_into(&mut self.reason);
        // Another one is tried next, if there is one.
        if let Some(segment) = self.log.drop_spare() {
            self.free_segment(segment);
        }
        let now = self.shared.now();
        let mut core = self.shared.lock();
        let Some(ssd) = core.ssd.as_mut() else { return };
        let changed = ssd.health.probe_failed(sync, now);
        let state = ssd.health.state();
        drop(core);
        tracing::warn!(reason, state = state.name(), "ssd tier is not well yet");
        if changed {
            self.state_changed(reason);
        }
    }

    /// The tier is on again: what was refused meanwhile and is still here is written after all.
    fn trial_ok(&mut self) {
        self.trial = None;
        if !self.log.trust_again() {
            return self.trial_failed("the log is not at rest", false);
        }
        self.kept.clear();
        let now = self.shared.now();
        let mut core = self.shared.lock();
        if let Some(ssd) = core.ssd.as_mut() {
            ssd.health.probe_ok(now);
        }
        let again = core.requeue_unsaved();
        // The manifest did not take these; those that waited for it have heard so.
        let missing: Vec<_> = core
            .visibility
            .generations()
            .iter()
            .filter(|(ns, generation)| self.durable_generations.get(ns) != Some(generation))
            .map(|(ns, generation)| (*ns, *generation))
            .collect();
        drop(core);
        for (namespace, generation) in missing {
            self.log.raise_generation(namespace, generation);
        }
        tracing::warn!(pages = again, "ssd tier is on again");
        self.shared.progress.raise();
    }

    /// Prepare the free segment whose turn it is; which one, if there is any.
    pub(crate) fn prepare_free(&mut self) -> Option<SegmentId> {
        let mut core = self.shared.lock();
        let ssd = core.ssd.as_mut()?;
        let id = ssd.segments.next_free()?;
        ssd.segments.set_state(id, SegmentState::Open);
        let incarnation = Incarnation(ssd.segments.get(id).incarnation.0 + 1);
        drop(core);
        self.log.prepare(id, incarnation, self.next_order);
        self.next_order.0 += 1;
        Some(id)
    }

    /// A segment that was prepared, or not quite, and never written to may be prepared again.
    fn free_segment(&mut self, segment: SegmentId) {
        let mut core = self.shared.lock();
        if let Some(ssd) = core.ssd.as_mut() {
            // Of those that were ready its order is the newest, so that another is tried next.
            ssd.segments.set_state(segment, SegmentState::Free);
        }
    }
}
